"""Reads of one version of an object of S3 without boto3's long way to a request.

A table that is opened reads thousands of small log files, and what a request costs the interpreter is what threads
cannot share: boto3 takes two milliseconds for one, botocore's signer most of half of one, and urllib3's pool as much
again as the client of the standard library that it is built on. So that one is used as it is, and requests are signed
here, with a key that is kept. Of an answer only what is plainly right is one: status 200 or 206, a length, an ETag
and a time. Anything else (an error, a redirect, a form of a body that is not announced by its length, a connection
that broke) is no answer, and the caller asks boto3, which knows what to make of it. So nothing here is tried again,
and nothing explains an error; each is reported.
"""

import hashlib
import hmac
import ssl
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.parse import quote, urlsplit

from botocore.exceptions import BotoCoreError, ClientError
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from urllib3.util import wait_for_read

from icedb_log.clock import SystemClock
from icedb_log.store.request_costs import report_answer
from icedb_log.store.request_failures import Reason, reason_of_status, report_failure
from icedb_log.units import SECOND_MS

MAX_IDLE_CONNECTIONS: Final = 64
"""Connections that are kept open for the next reads."""
_OK: Final = (200, 206)
_UNUSUAL: Final = ("Transfer-Encoding", "Content-Encoding")
"""Forms of a body that are left to boto3."""
_NO_CONTENT_SHA256: Final = hashlib.sha256().hexdigest()
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
"""What no library says in the header ``Host``, which is signed."""
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
        timeouts_s: To connect, and for each read of a socket.
    """

    def __init__(
        self,
        base_url: str,
        *,
        region: str,
        credentials: Any,
        ca_bundle: str | None,
        timeouts_s: tuple[float, float],
    ) -> None:
        parts = urlsplit(base_url)
        self._scheme, self._netloc, self._root = parts.scheme, parts.netloc, parts.path
        self._host = parts.netloc.removesuffix(_DEFAULT_PORTS[parts.scheme])
        self._ca_bundle = ca_bundle
        self._timeouts_s = timeouts_s
        self._idle: deque[HTTPConnection] = deque()
        weakref.finalize(self, _close_all, self._idle)
        self._region = region
        self._credentials = credentials
        self._clock = SystemClock()
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
            timeouts_s=(config.connect_timeout, config.read_timeout),
        )

    def read(self, key: str, *, etag: str, byte_range: str | None = None) -> Read | None:
        """Return an object, or a part of it, if it is there in this version and nothing is unusual, else ``None``.

        Args:
            key: Its key.
            etag: Its version.
            byte_range: As of the header ``Range``.
        """
        path = f"{self._root}/{quote(key, safe='/~')}"
        try:
            headers = self._sign(path, etag, byte_range)
            answer, body = self._exchange(path, headers)
        except (OSError, HTTPException) as error:
            report_failure("read", _reason_of(error))
            return None
        except (ValueError, BotoCoreError, ClientError):
            return None
        report_answer("get", path, status=answer.status, sent_bytes=0, received_bytes=len(body))
        if (reason := reason_of_status(answer.status)) is not None:
            report_failure("read", reason)
        described = _describe(answer.headers) if answer.status in _OK else None
        return None if described is None else (described, body)

    def _exchange(self, path: str, headers: Mapping[str, str]) -> tuple[HTTPResponse, bytes]:
        """Send a request on a kept connection or a new one. Raises OSError, HTTPException, ValueError."""
        connection = self._take_connection()
        is_kept = False
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            is_kept = not answer.will_close and len(self._idle) < MAX_IDLE_CONNECTIONS
        finally:
            if is_kept:
                self._idle.append(connection)
            else:
                connection.close()
        return answer, body

    def _take_connection(self) -> HTTPConnection:
        """Return a connection that the server has not ended, kept or new. Raises OSError."""
        while self._idle:
            try:
                kept = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if not wait_for_read(kept.sock, timeout=0):  # nothing has come on it: else that is its end
                return kept
            kept.close()
        connect_s, read_s = self._timeouts_s
        connection = (
            HTTPConnection(self._netloc, timeout=connect_s)
            if self._scheme == "http"
            else HTTPSConnection(self._netloc, timeout=connect_s, context=self._tls)
        )
        try:
            connection.connect()
        except (TimeoutError, ssl.SSLError):
            raise
        except OSError as error:
            raise _NoConnection from error
        connection.sock.settimeout(read_s)
        return connection

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._ca_bundle or get_cert_path(verify=True))
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _sign(self, path: str, etag: str, byte_range: str | None) -> dict[str, str]:
        """Return the headers of a request: Signature Version 4, of these in this order."""
        credentials = self._credentials.get_frozen_credentials()
        stamp = _format_stamp(self._clock.now_ms() // SECOND_MS)
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
        del sent["Host"]  # the library says it
        return {**sent, "Authorization": f"{_ALGORITHM} {signed}", "Accept-Encoding": "identity"}

    def _find_key(self, secret: str, day: str) -> bytes:
        """Return the key of a day's signatures; the last one is kept."""
        known_secret, known_day, key = self._signing_key
        if (known_secret, known_day) != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._signing_key = secret, day, key
        return key


class _NoConnection(OSError):
    """Nothing was sent."""


def _close_all(connections: Iterable[HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


def _reason_of(error: BaseException) -> Reason:
    if isinstance(error, TimeoutError):
        return "timeout"
    return "unreachable" if isinstance(error, _NoConnection) else "broken"


def _describe(headers: HTTPMessage) -> dict[str, Any] | None:
    """Return what boto3 would say of an answer; ``None`` if it is unusual."""
    if any(name in headers for name in _UNUSUAL) or "Content-Length" not in headers:
        return None
    etag, modified = headers.get("ETag"), headers.get("Last-Modified")
    if not etag or not modified:
        return None
    answer: dict[str, Any] = {"ETag": etag, "LastModified": parsedate_to_datetime(modified)}
    return answer | {"ContentRange": headers["Content-Range"]} if "Content-Range" in headers else answer


def _format_stamp(now_s: int) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
