"""Reads of one version of an object on kept connections, without boto3's long way to a request.

A table that is opened reads thousands of small log files, and each GetObject of boto3 takes two milliseconds of the
interpreter, which threads cannot share. Here it is a tenth of that. Only what is plainly right is an answer: status 200
or 206, the length, the ETag. Anything else (an error, a redirect, a connection that broke) is no answer, and the caller
asks boto3, which knows what to make of it. So nothing here retries, and nothing explains an error. Credentials, the
address of the bucket, proxies and certificates are those that boto3 found. Safe for many threads; not across a fork.
"""

import socket
import ssl
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, ClientError
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

MAX_IDLE_CONNECTIONS: Final = 64
"""Connections kept open for the next reads."""

_MAX_HEAD_BYTES: Final = 64 * 1024
_RECEIVE_BYTES: Final = 256 * 1024
_HEAD_ENDS: Final = b"\r\n\r\n"
_OK: Final = ("200", "206")
_UNUSUAL: Final = ("transfer-encoding", "content-encoding")
"""Forms of a body that are left to boto3."""
_S3_EXPRESS: Final = "--x-s3"
"""How names of buckets end that want sessions of their own."""
_PORTS: Final = {"http": 80, "https": 443}


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
        connect_timeout_s: As of :class:`~icedb_log.storage.s3_options.S3Options`.
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
        self._address = (parts.hostname or "", parts.port or _PORTS[parts.scheme])
        # As it is signed: without the port that the scheme means anyway.
        self._host = parts.netloc.removesuffix(f":{_PORTS[parts.scheme]}")
        self._root = parts.path
        self._context = (
            ssl.create_default_context(cafile=target.ca_bundle or get_cert_path(verify=True))
            if parts.scheme == "https"
            else None
        )
        self._idle: deque[socket.socket] = deque()
        weakref.finalize(self, _close_all, self._idle)

    def read(self, key: str, *, etag: str, byte_range: str | None = None) -> Read | None:
        """Return an object, or a part of it, if it is there in this version and nothing is unusual, else ``None``.

        Args:
            key: Its key.
            etag: Its version.
            byte_range: As of the header ``Range``.
        """
        try:
            request = self._sign(key, {"If-Match": etag} | ({"Range": byte_range} if byte_range else {}))
            return self._send(request)
        except (OSError, ValueError, BotoCoreError, ClientError):  # ssl's errors are OSErrors
            return None

    def _sign(self, key: str, headers: dict[str, str]) -> bytes:
        path = f"{self._root}/{quote(key, safe='/~')}"
        base = self._target.base_url.removesuffix(self._root)
        request = AWSRequest("GET", base + path, headers=headers)
        credentials = self._target.credentials.get_frozen_credentials()
        S3SigV4Auth(credentials, "s3", self._target.region).add_auth(request)
        lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        return f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n{lines}Accept-Encoding: identity\r\n\r\n".encode()

    def _send(self, request: bytes) -> Read | None:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        is_kept = False
        try:
            connection.sendall(request)
            head = _receive_head(connection)
            if head is None:
                return None
            body = _receive_body(connection, head)
            answer = _describe(head.headers)
            is_kept = body is not None and head.headers.get("connection", "").lower() != "close"
        finally:
            if is_kept and len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
            else:
                connection.close()
        return None if body is None or answer is None else (answer, body)

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address, timeout=self._target.connect_timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_hostname=self._address[0])
            connection.settimeout(self._target.read_timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection


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


def _close_all(connections: deque[socket.socket]) -> None:
    while connections:
        connections.pop().close()


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of a good answer, and what came of the body with it."""

    headers: Mapping[str, str]
    size_bytes: int
    begun: bytes


def _receive_head(connection: socket.socket) -> _Head | None:
    received = bytearray()
    while (end := received.find(_HEAD_ENDS)) < 0:
        part = connection.recv(_RECEIVE_BYTES)
        if not part or len(received) > _MAX_HEAD_BYTES:
            return None
        received += part
    first, *lines = received[:end].decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "")
    if not first.startswith("HTTP/1.1 ") or first[9:12] not in _OK or not length.isdecimal():
        return None
    if any(name in headers for name in _UNUSUAL):
        return None
    return _Head(headers, int(length), bytes(received[end + len(_HEAD_ENDS) :]))


def _receive_body(connection: socket.socket, head: _Head) -> bytes | None:
    if len(head.begun) >= head.size_bytes:
        # More than was announced: whatever it is, the next answer on this connection would begin with it.
        return head.begun if len(head.begun) == head.size_bytes else None
    body = bytearray(head.size_bytes)
    filled = len(head.begun)
    body[:filled] = head.begun
    with memoryview(body) as view:
        while filled < head.size_bytes:
            count = connection.recv_into(view[filled:])
            if not count:
                return None
            filled += count
    return bytes(body)


def _describe(headers: Mapping[str, str]) -> dict[str, Any] | None:
    etag, modified = headers.get("etag"), headers.get("last-modified")
    if not etag or not modified:
        return None
    answer: dict[str, Any] = {"ETag": etag, "LastModified": parsedate_to_datetime(modified)}
    return answer | {"ContentRange": headers["content-range"]} if "content-range" in headers else answer
