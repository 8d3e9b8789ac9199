"""A real S3 server, moto's, as a process of its own."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import boto3

from local_endpoint.process import free_port
from waiting import wait_until


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """Start one with the buckets `home` and `callers`, and give its URL."""
    port = str(free_port())
    program = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def listens() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", int(port))) == 0

    try:
        wait_until(listens)
        client = client_of(f"http://127.0.0.1:{port}")
        for name in ("home", "callers"):
            client.create_bucket(Bucket=name)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)


def client_of(url: str) -> Any:
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=url, **keys)
