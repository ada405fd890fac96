"""Reads of one version of an object on kept connections, without boto3's long way to a request.

A table that is opened reads thousands of small log files, and each GetObject of boto3 takes two milliseconds of the
interpreter, which threads cannot share. Here it is a fraction of that. Only what is plainly right is an answer: status
200 or 206, the length, the ETag. Anything else (an error, a redirect, a connection that broke) is no answer, and the
caller asks boto3, which knows what to make of it. So nothing here retries, and nothing explains an error. Credentials,
the address of the bucket and certificates are those that boto3 found. Safe for many threads; not across a fork.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit

import urllib3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, ClientError
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from urllib3.exceptions import HTTPError

from icedb_log.store.request_failures import reason_of_status, report_failure
from icedb_log.store.s3_failures import reason_of

MAX_IDLE_CONNECTIONS: Final = 64
"""Connections kept open for the next reads."""

_OK: Final = (200, 206)
_UNUSUAL: Final = ("Transfer-Encoding", "Content-Encoding")
"""Forms of a body that are left to boto3."""
_S3_EXPRESS: Final = "--x-s3"
"""How names of buckets end that want sessions of their own."""

Read = tuple[dict[str, Any], bytes]
"""An answer as boto3 would put it (ETag, LastModified, ContentRange), and the body."""


@dataclass(frozen=True, slots=True)
class PlainTarget:
    """Where objects are read, and in whose name.

    Attributes:
        base_url: What comes before a quoted key, e.g. ``https://bucket.s3.eu-central-1.amazonaws.com``.
        region: For the signature.
        credentials: What botocore found; they may change.
        ca_bundle: Certificates to trust; ``None``: those that boto3 brings.
        connect_timeout_s: As of :class:`~icedb_log.store.s3_options.S3Options`.
        read_timeout_s: The same.
    """

    base_url: str
    region: str
    credentials: Any
    ca_bundle: str | None
    connect_timeout_s: float
    read_timeout_s: float


class PlainReads:
    """Reads objects of one bucket.

    Args:
        target: Where.
    """

    def __init__(self, target: PlainTarget) -> None:
        self._target = target
        parts = urlsplit(target.base_url)
        self._root = parts.path
        self._origin = target.base_url.removesuffix(parts.path)
        self._pool = urllib3.connection_from_url(
            self._origin,
            maxsize=MAX_IDLE_CONNECTIONS,
            timeout=urllib3.Timeout(connect=target.connect_timeout_s, read=target.read_timeout_s),
            retries=False,
            **({"ca_certs": target.ca_bundle or get_cert_path(verify=True)} if parts.scheme == "https" else {}),
        )

    def read(self, key: str, *, etag: str, byte_range: str | None = None) -> Read | None:
        """Return an object, or a part of it, if it is there in this version and nothing is unusual, else ``None``.

        Args:
            key: Its key.
            etag: Its version.
            byte_range: As of the header ``Range``.
        """
        try:
            path, headers = self._sign(key, {"If-Match": etag} | ({"Range": byte_range} if byte_range else {}))
            answer = self._pool.urlopen("GET", path, headers=headers, redirect=False, decode_content=False)
            if (reason := reason_of_status(answer.status)) is not None:
                report_failure("read", reason)
            described = _describe(answer.headers) if answer.status in _OK else None
        except (OSError, HTTPError) as error:
            report_failure("read", reason_of(error))
            return None
        except (ValueError, BotoCoreError, ClientError):
            return None
        return None if described is None else (described, answer.data)

    def _sign(self, key: str, headers: dict[str, str]) -> tuple[str, dict[str, str]]:
        path = f"{self._root}/{quote(key, safe='/~')}"
        request = AWSRequest("GET", self._origin + path, headers=headers)
        credentials = self._target.credentials.get_frozen_credentials()
        S3SigV4Auth(credentials, "s3", self._target.region).add_auth(request)
        return path, {**request.headers, "Accept-Encoding": "identity"}


def find_target(client: Any, session: Any, bucket: str, *, ca_bundle: str | None) -> PlainTarget | None:
    """Return where a client of boto3 would read a bucket's objects; ``None`` where only boto3 knows how.

    Args:
        client: The client.
        session: Its session.
        bucket: The bucket.
        ca_bundle: Certificates to trust, as configured.
    """
    credentials, config = session.get_credentials(), client.meta.config
    if credentials is None or bucket.endswith(_S3_EXPRESS) or not client.meta.region_name:
        return None
    try:
        url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "x"})
    except (BotoCoreError, ClientError, ValueError):
        return None
    base_url = url.partition("?")[0].removesuffix("/x")
    if config.proxies or get_environ_proxies(base_url):
        return None
    return PlainTarget(
        base_url, client.meta.region_name, credentials, ca_bundle, config.connect_timeout, config.read_timeout
    )


def _describe(headers: Mapping[str, str]) -> dict[str, Any] | None:
    if any(name in headers for name in _UNUSUAL):
        return None
    etag, modified = headers.get("ETag"), headers.get("Last-Modified")
    if not etag or not modified:
        return None
    answer: dict[str, Any] = {"ETag": etag, "LastModified": parsedate_to_datetime(modified)}
    return answer | {"ContentRange": headers["Content-Range"]} if "Content-Range" in headers else answer
