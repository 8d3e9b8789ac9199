"""A RunPod serverless endpoint on your own machine.

It speaks the platform's protocol to an unchanged worker on one side and to real clients on the
other. From the command line::

    python -m local_endpoint -- python my_worker.py

and in a test::

    with local_endpoint.serve(Knobs(rtt_ms=50)) as endpoint:
        ...
"""

from local_endpoint.control import WorkerInfo
from local_endpoint.faults import Faults
from local_endpoint.job import Status
from local_endpoint.knobs import Knobs
from local_endpoint.process import WorkerError
from local_endpoint.recording import Post, Record, Request
from local_endpoint.serving import LocalEndpoint, serve

__all__ = [
    "Faults",
    "Knobs",
    "LocalEndpoint",
    "Post",
    "Record",
    "Request",
    "Status",
    "WorkerError",
    "WorkerInfo",
    "serve",
]
