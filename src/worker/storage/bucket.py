"""A bucket of S3's kind, read and written with boto3, which RunPod's SDK brings along."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from worker.errors import RequestError
from worker.sentences import shown
from worker.storage.addresses import judged, private

LINK_S = 604_800  # how long a signed link holds: seven days, the most there is
_REGION = re.compile(r"\bs3(?:api)?[.-](?!amazonaws)([a-z]{2}[\w-]+)\.", re.IGNORECASE)


class _PrivateError(Exception):
    """Raised inside boto3, which wraps it."""


@dataclass(frozen=True)
class Keys:
    """What a bucket is opened with; `may_be_private` says whether its server may be anywhere.

    `home` is the bucket, with a folder in it or not, for what names no place of its own. Where
    they are bound they are good for nothing else.
    """

    endpoint: str
    key_id: str
    secret: str
    home: str = ""
    is_bound: bool = False
    may_be_private: bool = False

    def __repr__(self) -> str:
        return f"Keys({self.endpoint!r}, {self.home!r})"


def keys_of(config: Any, *, may_be_private: bool) -> Keys:
    """Read a job's `s3Config`. Raises RequestError: nothing in it comes from anywhere else."""
    config = config if isinstance(config, Mapping) else {}
    for name in ("endpointUrl", "accessId", "accessSecret"):
        if not (isinstance(config.get(name), str) and config[name]):
            raise RequestError(
                "s3Config must hold endpointUrl, accessId, accessSecret and bucketName, each a "
                f"text; {name} is missing.",
                param="s3Config",
            )
    if urlsplit(config["endpointUrl"]).scheme not in ("http", "https"):
        raise RequestError("s3Config: endpointUrl must be an https address.", param="s3Config")
    bucket = config.get("bucketName")
    return Keys(
        config["endpointUrl"],
        config["accessId"],
        config["accessSecret"],
        home=bucket if isinstance(bucket, str) else "",
        may_be_private=may_be_private,
    )


class Bucket:
    """The objects that some keys open. Everything here blocks: call it off the event loop."""

    def __init__(self, keys: Keys) -> None:
        import boto3  # here: it takes a while, and most workers need none
        import botocore.awsrequest
        from botocore.config import Config

        region = _REGION.search(urlsplit(keys.endpoint).netloc)
        self._keys = keys
        self._client = boto3.session.Session().client(
            "s3",
            endpoint_url=keys.endpoint,
            aws_access_key_id=keys.key_id,
            aws_secret_access_key=keys.secret,
            region_name=region[1] if region else "us-east-1",
            config=Config(
                signature_version="s3v4",
                connect_timeout=10,
                read_timeout=60,
                retries={"max_attempts": 3, "mode": "standard"},
                # Servers of S3's kind do not all know the newer checksums.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                proxies=None if keys.may_be_private else {},
            ),
        )
        if not keys.may_be_private:
            pools = (
                botocore.awsrequest.AWSHTTPConnectionPool,
                (botocore.awsrequest.AWSHTTPSConnectionPool),
            )
            session = self._client._endpoint.http_session
            session._manager.pool_classes_by_scheme = judged(_PrivateError, pools)

    def split(self, address: str, param: str) -> tuple[str, str]:
        """Return bucket and key of an `s3://bucket/key`. Raises RequestError."""
        bucket, _, key = address.removeprefix("s3://").partition("/")
        parts = key.split("/")
        if not bucket or not key or "" in parts or ".." in parts or not key.isprintable():
            raise RequestError(
                f'{param}: {shown(address)} is no object\'s address: "s3://bucket/key".',
                param=param,
            )
        if self._keys.is_bound and not f"{bucket}/{key}".startswith(f"{self._keys.home}/"):
            raise RequestError(
                f"{param}: {shown(address)} does not lie in s3://{self._keys.home}/, where this "
                "worker's keys may be used (BUCKET_NAME). A job's own s3Config opens others.",
                code=403,
                param=param,
            )
        return bucket, key

    def read(self, address: str, file: BinaryIO, param: str) -> bool:
        """Copy an object into a file; False where there is none. Raises RequestError."""
        bucket, key = self.split(address, param)
        try:
            self._client.download_fileobj(bucket, key, file)
        except Exception as error:
            if _status(error) == 404 and "Bucket" not in str(error):
                return False
            raise self._sentence(error, address, param) from None
        return True

    def write(self, address: str, file: BinaryIO, param: str, note: str = "") -> None:
        """Write a file as an object; `note` is kept beside it. Raises RequestError."""
        bucket, key = self.split(address, param)
        more = {"ExtraArgs": {"Metadata": {"batch": note}}} if note else {}
        try:
            self._client.upload_fileobj(file, bucket, key, **more)
        except Exception as error:
            raise self._sentence(error, address, param) from None

    def note(self, address: str, param: str) -> str | None:
        """Return the note beside an object, None where there is no object. Raises RequestError."""
        bucket, key = self.split(address, param)
        try:
            found = self._client.head_object(Bucket=bucket, Key=key)
        except Exception as error:
            if _status(error) == 404:
                return None
            raise self._sentence(error, address, param) from None
        return str(found.get("Metadata", {}).get("batch", ""))

    def below(self, address: str, param: str) -> dict[str, str]:
        """Return the addresses of the objects that begin so, in order, and each one's version.

        Raises RequestError.
        """
        bucket, prefix = self.split(f"{address}x", param)
        pages = self._client.get_paginator("list_objects_v2")
        try:
            found = {
                f"s3://{bucket}/{one['Key']}": str(one["ETag"])
                for page in pages.paginate(Bucket=bucket, Prefix=prefix[:-1])
                for one in page.get("Contents", ())
            }
        except Exception as error:
            raise self._sentence(error, address, param) from None
        return dict(sorted(found.items()))

    def remove(self, addresses: list[str], param: str) -> None:
        """Remove objects. Raises RequestError."""
        try:
            for address in addresses:
                bucket, key = self.split(address, param)
                self._client.delete_object(Bucket=bucket, Key=key)
        except Exception as error:
            raise self._sentence(error, addresses[0], param) from None

    def link(self, address: str, param: str) -> str:
        """Return a signed address of an object that anybody may read for LINK_S."""
        bucket, key = self.split(address, param)
        return str(
            self._client.generate_presigned_url(
                "get_object", {"Bucket": bucket, "Key": key}, ExpiresIn=LINK_S
            )
        )

    def _sentence(self, error: Any, address: str, param: str) -> Exception:
        """Return what a caller is told of an error of boto3's, which may name keys."""
        if isinstance(error, OSError) and error.errno:
            return error
        if status := _status(error):
            code = error.response["Error"].get("Code")
            return RequestError(
                f"{param}: the bucket's server answered {status} ({code}) for {shown(address)}.",
                param=param,
            )
        cause: Any = error
        while cause is not None:
            if isinstance(cause, _PrivateError):
                return private(f"{param}: the endpoint of the bucket")
            cause = getattr(cause, "kwargs", {}).get("error") or cause.__cause__
        return RequestError(
            f"{param}: the bucket's server was not reached for {shown(address)}: "
            f"{type(error).__name__}.",
            param=param,
        )


def _status(error: Any) -> int:
    answer = getattr(error, "response", None) or {}
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
