"""A worker whose engine tells its figures, as vLLM's does: the model "tiny", on two ranks.

It generates 20 tokens a second whether it has a job or not, and counts what it does in its log.
With the argument `flood` it first fills its log with 3,000 lines.
"""

import os
import sys
import threading
import time

import prometheus_client
import quick_worker

LABELS = ["model_name", "engine"]
running = prometheus_client.Gauge("vllm:num_requests_running", "Running.", LABELS)
waiting = prometheus_client.Gauge("vllm:num_requests_waiting", "Waiting.", LABELS)
cache = prometheus_client.Gauge("vllm:kv_cache_usage_perc", "Cache.", LABELS)
tokens = prometheus_client.Counter("vllm:generation_tokens", "Tokens.", LABELS)


def generate():
    for count in range(10**6):
        tokens.labels("tiny", "0").inc(2)
        print(f"step {count}\n", end="", flush=True)  # in one write: another thread prints too
        time.sleep(0.1)


for rank, values in {"0": (3, 1, 0.25), "1": (2, 0, 0.5)}.items():
    for gauge, value in zip((running, waiting, cache), values, strict=True):
        gauge.labels("tiny", rank).set(value)
prometheus_client.start_http_server(int(os.environ["METRICS_PORT"]), "127.0.0.1")
if "flood" in sys.argv:
    print(*(f"flood {count}" for count in range(3000)), sep="\n", flush=True)
threading.Thread(target=generate, daemon=True).start()
quick_worker.main()
