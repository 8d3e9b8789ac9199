"""Where files of jobs may be: one folder, the worker's own bucket, or one of a job's own."""

import hashlib
import io
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from worker.errors import RequestError
from worker.storage.addresses import Web
from worker.storage.bucket import Bucket, Keys, keys_of
from worker.storage.folder import Folder, failed

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")
BUCKET_VARIABLES = (
    "BUCKET_ENDPOINT_URL, BUCKET_ACCESS_KEY_ID, BUCKET_SECRET_ACCESS_KEY and BUCKET_NAME"
)


@dataclass(frozen=True)
class Stores:
    """`keys` are the worker's own, if the deployer has given it any; `folder` is BATCH_FOLDER."""

    folder: Folder
    keys: Keys | None = None
    may_be_private: bool = False

    def bucket(self, config: Any, param: str) -> Bucket:
        """Return the bucket of a job's `s3Config`, or the worker's own where it has none.

        Raises RequestError where there is neither. It blocks.
        """
        if config is not None:
            return Bucket(keys_of(config, may_be_private=self.may_be_private))
        if self.keys is None:
            raise RequestError(
                f"{param}: this worker has no keys for a bucket. Send your own in the job's "
                f"s3Config, or let the deployer set {BUCKET_VARIABLES}.",
                param=param,
            )
        return Bucket(self.keys)

    def keep(self, job: Mapping[str, Any], result: Any, error: RequestError) -> dict[str, Any]:
        """Keep a job's result that is too large to be posted, and say where.

        It goes into the bucket of the job's `s3Config`, else the worker's own, else the folder,
        under the job's id and a random name. Raises RequestError: without a place the `error`, with
        what would make one. It blocks.
        """
        job_id, config = _NO_NAME.sub("_", str(job.get("id", "")))[:100], job.get("s3Config")
        name = f"results/{job_id}-{uuid.uuid4().hex}.json"
        keys = self.keys if config is None else keys_of(config, may_be_private=self.may_be_private)
        if not (keys and keys.home) and not self.folder.exists:
            raise RequestError(
                f"{error.message} Larger results have a place where the job brings an s3Config "
                f"with a bucketName, where the deployer sets {BUCKET_VARIABLES}, or on a network "
                "volume (BATCH_FOLDER).",
                code=error.code,
            )
        content = msgspec.json.encode(result)
        if keys and keys.home:
            bucket, address = Bucket(keys), f"s3://{keys.home}/{name}"
            bucket.write(address, io.BytesIO(content), "result")
            url = bucket.link(address, "result")
        else:
            try:
                with self.folder.create(name, "result") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise failed(error, name, "result") from None
            url = self.folder.url(name)
        digest = hashlib.sha256(content).hexdigest()
        return {"result_url": url, "bytes": len(content), "sha256": digest}

    @property
    def web(self) -> Web:
        return Web(may_be_private=self.may_be_private)


def refuse_large(_job: Mapping[str, Any], _result: Any, error: RequestError) -> Any:
    """Keep nothing. Raises the error."""
    raise error
