"""A batch's input and output become a source and a target."""

from threading import Event
from typing import BinaryIO

from worker.bulk.ledger import temporary
from worker.bulk.source import Given, InFile, Source, identity
from worker.bulk.target import InBucket, Nowhere, OnVolume, Put, Target
from worker.errors import RequestError
from worker.request import BatchRequest
from worker.storage import folder
from worker.storage.stores import Stores

WEB = ("https://", "http://")


def source(request: BatchRequest, stores: Stores, max_line_bytes: int, over: Event) -> Source:
    """Open what a batch reads; what is not on the volume is fetched first, until `over` is set.

    Raises RequestError. It blocks.
    """
    given = request.source
    if not isinstance(given, str):
        return Given(given)
    if not given.startswith(("s3://", *WEB)):
        return InFile(stores.folder.read(given, "input"), given, max_line_bytes)
    file = temporary()
    try:
        _fetch(request, given, file, stores, over)
        return InFile(file, given.partition("?")[0], max_line_bytes)
    except OSError as error:
        file.close()
        raise folder.failed(error, "the input's copy", "input") from None
    except BaseException:
        file.close()
        raise


def _fetch(request: BatchRequest, given: str, file: BinaryIO, stores: Stores, over: Event) -> None:
    if given.startswith(WEB):
        stores.web.read(given, file, "input", over)
    elif not stores.bucket(request.s3_config, "input").read(given, file, "input"):
        raise RequestError(f"input: there is no object {given}.", code=404, param="input")


def target(request: BatchRequest, stores: Stores) -> Target:
    """Return where a batch writes; nothing is opened yet. Raises RequestError. It blocks."""
    name, is_ordered = request.target, request.is_ordered
    if name is None:
        return Nowhere()
    if name.startswith(WEB):
        return Put(stores.web, name, is_ordered=is_ordered)
    whose = identity(request.source)
    if name.startswith("s3://"):
        bucket = stores.bucket(request.s3_config, "output")
        return InBucket(bucket, name, whose, is_ordered=is_ordered)
    return OnVolume(stores.folder, name, whose, is_ordered=is_ordered)
