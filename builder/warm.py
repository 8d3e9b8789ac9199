"""Compile what a baked model's first start compiles: `python builder/warm.py`.

It runs in the finished image, on a machine with the GPU that the image is for, and only where
WARM=1 asks for it: the worker is started with its defaults, and ended when it is ready. What was
compiled is left below /etc/worker-vllm, where the worker of the image looks for it first.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from worker.configuration.environ import COMPILE_CACHES

HERE = "etc/worker-vllm"


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=10) as reply:
            return reply.status == 200
    except OSError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument(
        "--root", type=Path, default=Path("/"), help="the image's root, or a folder"
    )
    root = parser.parse_args().root
    file = root / HERE / "baked.json"
    if not file.exists():
        print("error: WARM=1 compiles for a model, and none is baked in: set MODEL_NAME")
        return 1
    baked = json.loads(file.read_text())
    port = free_port()
    environ = {name: str(root / HERE / folder) for name, folder in COMPILE_CACHES.items()}
    environ |= {
        "MODEL_NAME": baked["MODEL_NAME"],
        "BASE_PATH": str(root / baked["BASE_PATH"].lstrip("/")),
        "WORKER_MODE": "load_balancer",
        "PORT": str(port),
    }
    worker = subprocess.Popen([sys.executable, "-m", "worker"], env=os.environ | environ)
    while worker.poll() is None and not is_ready(port):
        time.sleep(1)
    worker.terminate()  # nothing, if it is dead already
    if worker.wait() != 0:
        print("error: the worker did not start here: WARM=1 needs the GPU that the image is for")
        return 1
    made = [path for path in (root / HERE).rglob("*") if path.is_file() and path != file]
    size = sum(path.stat().st_size for path in made)
    print(f"Compiled: {len(made)} files, {size / 1e6:.1f} MB.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
