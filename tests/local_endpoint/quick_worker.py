"""A worker without the SDK, so that it starts at once: it takes one job after the other.

It does what `input` says: `seconds` to work, `exit` with a code in the middle of it, an `error` to
fail with. SIGTERM ends it when its job is done. With the argument `broken` it ends at its start,
with `stubborn` it ignores SIGTERM, and with `heart` a child of it pings. It prints its working
directory.
"""

import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

WORKER = os.environ["RUNPOD_POD_ID"]
told_to_stop = threading.Event()


def call(url, message=None):
    data = None if message is None else json.dumps(message).encode()
    headers = {"Authorization": os.environ["RUNPOD_AI_API_KEY"]}
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")
    except (urllib.error.URLError, OSError):
        return None


def url(name, job_id=""):
    template = os.environ[f"RUNPOD_WEBHOOK_{name}"]
    return template.replace("$RUNPOD_POD_ID", WORKER).replace("$ID", job_id or WORKER)


def beat():
    while True:
        call(url("PING"))
        time.sleep(0.1)


def main():
    if "broken" in sys.argv:
        print("no such model")
        raise SystemExit(7)
    if "heart" in sys.argv and os.fork() == 0:
        beat()
    number = signal.SIG_IGN if "stubborn" in sys.argv else lambda *_: told_to_stop.set()
    signal.signal(signal.SIGTERM, number)
    print(f"{os.getcwd()}\n", end="")  # in one write
    while not told_to_stop.is_set():
        job = call(url("GET_JOB"))
        if job is None:
            time.sleep(0.01)
            continue
        order = job["input"]
        time.sleep(order.get("seconds", 0))
        if "exit" in order:
            os._exit(order["exit"])
        end = {"error": order["error"]} if "error" in order else {"output": WORKER}
        call(url("POST_OUTPUT", job["id"]), end)


if __name__ == "__main__":
    main()
