"""RunPod's Python client: run_sync, run, stream, cancel, health, and a job that fails.

It finds the endpoint's host in RUNPOD_ENDPOINT_BASE_URL by itself.
"""

import json
import os
import time

import runpod

endpoint = runpod.Endpoint(os.environ["ENDPOINT_ID"], api_key=os.environ["API_KEY"])
chat = {
    "messages": [{"role": "user", "content": os.environ["PROMPT"]}],
    "sampling_params": {"temperature": 0, "max_tokens": 30},
}
endless = {"prompt": "On", "sampling_params": {"n": 8, "max_tokens": 400, "ignore_eos": True}}
said = {}

said["run_sync"] = endpoint.run_sync(chat)

job = endpoint.run(chat)
said["run"] = job.output(timeout=30)
said["status"] = job.status()

job = endpoint.run(chat | {"stream": True, "max_batch_size": 1})
said["streamed"] = job.job_id
said["chunks"] = list(job.stream())

job = endpoint.run(chat | {"model": "nope"})
said["failed_output"] = job.output(timeout=30)
said["failed_status"] = job.status()

job = endpoint.run(endless)
while job.status() == "IN_QUEUE":
    time.sleep(0.05)
said["cancelled"] = job.job_id
said["cancel"] = job.cancel()
said["cancelled_status"] = job.status()

said["health"] = endpoint.health()

try:
    runpod.Endpoint(os.environ["ENDPOINT_ID"], api_key="wrong").health()
except RuntimeError as error:
    said["unauthorized"] = str(error)

print(json.dumps(said))
