"""Reads of one version of an object of S3 without boto3's long way to a request.

A table that is opened reads thousands of small log files, and what a request costs the interpreter is what threads
cannot share: boto3 takes two milliseconds for one, an HTTP library and botocore's signer half of one, and this a tenth.
So connections are sockets, a request is one string, and of an answer only what is plainly right is one: status 200 or
206, a length, an ETag and a time. Anything else (an error, a redirect, a form of a body that is not announced by its
length, a connection that broke) is no answer, and the caller asks boto3, which knows what to make of it. So nothing
here is tried again but what a kept connection was too old for, and nothing explains an error; each is reported.
"""

import hashlib
import hmac
import socket
import ssl
import time
import weakref
from collections import deque
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlsplit

from botocore.exceptions import BotoCoreError, ClientError
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

from icedb_log.clock import SystemClock
from icedb_log.store.request_failures import reason_of_status, report_failure
from icedb_log.units import KIB, SECOND_MS

MAX_IDLE_CONNECTIONS: Final = 64
"""Connections that are kept open for the next reads."""
_RECEIVED_BYTES: Final = 64 * KIB
_MAX_HEAD_BYTES: Final = 64 * KIB
_OK: Final = (200, 206)
_NO_BODY: Final = (204, 304)
_HEAD_END: Final = b"\r\n\r\n"
_NO_CONTENT_SHA256: Final = hashlib.sha256().hexdigest()
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_S3_EXPRESS: Final = "--x-s3"
"""How names of buckets end that want sessions of their own."""

Read = tuple[dict[str, Any], bytes]
"""An answer as boto3 would put it (ETag, LastModified, ContentRange), and the body."""


class PlainReads:
    """Reads of one bucket on kept connections. Safe for many threads; not across a fork.

    Args:
        base_url: What comes before a quoted key, e.g. ``https://bucket.s3.eu-central-1.amazonaws.com``.
        region: For the signature.
        credentials: What botocore found; they may change.
        ca_bundle: Certificates to trust; ``None``: those that boto3 brings.
        connect_timeout_s: As of the boto3 client.
        read_timeout_s: The same.
    """

    def __init__(
        self,
        base_url: str,
        *,
        region: str,
        credentials: Any,
        ca_bundle: str | None,
        connect_timeout_s: float,
        read_timeout_s: float,
    ) -> None:
        parts = urlsplit(base_url)
        is_tls = parts.scheme == "https"
        self._root, self._host, self._name = parts.path, parts.netloc, parts.hostname or ""
        self._port = parts.port or (443 if is_tls else 80)
        self._tls = ssl.create_default_context(cafile=ca_bundle or get_cert_path(verify=True)) if is_tls else None
        self._region = region
        self._credentials = credentials
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._clock = SystemClock()
        self._idle: deque[socket.socket] = deque()
        weakref.finalize(self, _close_all, self._idle)
        self._signing_key = ("", "", b"")

    @classmethod
    def like(cls, client: Any, session: Any, bucket: str, *, ca_bundle: str | None) -> "PlainReads | None":
        """Return reads where a client of boto3 would read a bucket's objects; ``None`` where only boto3 knows how."""
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
        return cls(
            base_url,
            region=client.meta.region_name,
            credentials=credentials,
            ca_bundle=ca_bundle,
            connect_timeout_s=config.connect_timeout,
            read_timeout_s=config.read_timeout,
        )

    def read(self, key: str, *, etag: str, byte_range: str | None = None) -> Read | None:
        """Return an object, or a part of it, if it is there in this version and nothing is unusual, else ``None``.

        Args:
            key: Its key.
            etag: Its version.
            byte_range: As of the header ``Range``.
        """
        try:
            request = self._make_request(key, etag, byte_range)
            return self._ask(request)
        except OSError as error:
            report_failure("read", "timeout" if isinstance(error, TimeoutError) else "broken")
        except (ValueError, BotoCoreError, ClientError):
            pass
        return None

    def _make_request(self, key: str, etag: str, byte_range: str | None) -> bytes:
        """Return a signed request: Signature Version 4, of these headers in this order."""
        credentials = self._credentials.get_frozen_credentials()
        path = f"{self._root}/{quote(key, safe='/~')}"
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock.now_ms() // SECOND_MS))
        headers = {
            "Host": self._host,
            "If-Match": etag,
            "Range": byte_range,
            "X-Amz-Content-SHA256": _NO_CONTENT_SHA256,
            "X-Amz-Date": stamp,
            "X-Amz-Security-Token": credentials.token,
        }
        sent = {name: value for name, value in headers.items() if value}
        if not all(map(str.isprintable, sent.values())):
            raise ValueError("a header that would end a line")
        names = ";".join(sent).lower()
        said = "".join(f"{name.lower()}:{value}\n" for name, value in sent.items())
        canonical = f"GET\n{path}\n\n{said}\n{names}\n{_NO_CONTENT_SHA256}"
        scope = f"{stamp[:8]}/{self._region}/s3/aws4_request"
        text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._find_key(credentials.secret_key, stamp[:8]), text.encode(), "sha256").hex()
        signed = f"Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        return (
            f"GET {path} HTTP/1.1\r\n{lines}Authorization: {_ALGORITHM} {signed}\r\nAccept-Encoding: identity\r\n\r\n"
        ).encode("latin-1")

    def _find_key(self, secret: str, day: str) -> bytes:
        """Return the key of a day's signatures; the last one is kept."""
        known_secret, known_day, key = self._signing_key
        if (known_secret, known_day) != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._signing_key = secret, day, key
        return key

    def _ask(self, request: bytes) -> Read | None:
        while True:
            try:
                connection, is_kept = self._idle.pop(), True
            except IndexError:
                connection, is_kept = self._connect(), False
            is_reusable = False
            try:
                begun = _begin(connection, request)
                if begun or not is_kept:  # the server ends connections that were idle for too long for it
                    answer, is_reusable = _receive(connection, begun)
                    return answer
            finally:
                if is_reusable and len(self._idle) < MAX_IDLE_CONNECTIONS:
                    self._idle.append(connection)
                else:
                    connection.close()

    def _connect(self) -> socket.socket:
        try:
            connection = socket.create_connection((self._name, self._port), self._connect_timeout_s)
        except TimeoutError:
            raise
        except OSError as error:
            report_failure("read", "unreachable")
            raise ValueError("no connection") from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=self._name)
            connection.settimeout(self._read_timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection


def _close_all(connections: deque[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def _begin(connection: socket.socket, request: bytes) -> bytes:
    """Send a request and return the first bytes of its answer; none if the connection has ended before."""
    try:
        connection.sendall(request)
        return connection.recv(_RECEIVED_BYTES)
    except (ConnectionResetError, BrokenPipeError):
        return b""


def _receive(connection: socket.socket, begun: bytes) -> tuple[Read | None, bool]:
    """Return an answer, if it is one, and whether the connection is good for another request. Raises OSError."""
    received = bytearray(begun)
    part = begun
    while (end := received.find(_HEAD_END)) < 0:
        if not part:
            raise ConnectionAbortedError("broke off")
        if len(received) > _MAX_HEAD_BYTES:
            return None, False
        part = connection.recv(_RECEIVED_BYTES)
        received += part
    first, *lines = received[:end].decode("latin-1").split("\r\n")
    version, _, status_text = first.partition(" ")
    status = int(status_text[:3])
    if (reason := reason_of_status(status)) is not None:
        report_failure("read", reason)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    size_bytes = 0 if status in _NO_BODY else int(headers.get("content-length", -1))
    if size_bytes < 0 or "transfer-encoding" in headers or version != "HTTP/1.1":
        return None, False
    body = memoryview(received)[end + len(_HEAD_END) :]
    if len(body) > size_bytes:
        return None, False
    content = bytes(body) if len(body) == size_bytes else _receive_rest(connection, body, size_bytes)
    is_reusable = headers.get("connection", "").lower() != "close"
    described = _describe(headers) if status in _OK else None
    return None if described is None else (described, content), is_reusable


def _receive_rest(connection: socket.socket, begun: memoryview, size_bytes: int) -> bytes:
    content = bytearray(size_bytes)
    content[: len(begun)] = begun
    at = len(begun)
    with memoryview(content) as view:
        while at < size_bytes:
            count = connection.recv_into(view[at:])
            if not count:
                raise ConnectionAbortedError("broke off")
            at += count
    return bytes(content)


def _describe(headers: dict[str, str]) -> dict[str, Any] | None:
    """Return what boto3 would say of an answer; ``None`` if it is unusual."""
    etag, modified = headers.get("etag"), headers.get("last-modified")
    if not etag or not modified or "content-encoding" in headers:
        return None
    answer: dict[str, Any] = {"ETag": etag, "LastModified": _parse_date(modified)}
    return answer | {"ContentRange": headers["content-range"]} if "content-range" in headers else answer


_parse_date = lru_cache(256)(parsedate_to_datetime)
