"""What a request asks for, from an ASGI scope, and who sends it.

Paths are taken as they were sent (``raw_path``) and decoded once: a key may hold every character.

A sender shows a signature, presigned or in headers, a bearer token, a client certificate, or nothing. With an access
file, a signature has to be right. Without one everybody may read, and signatures, which most clients cannot leave out,
are not looked at: there is no secret to compare them with. A key may also be one that the Iceberg catalog has given
away: then it is for one table only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote_plus, unquote_to_bytes

from icedb_log.clock import Clock
from icedb_log.errors import Unauthenticated
from icedb_log.warehouse import Warehouse
from icedb_service.access.access_file import ANYBODY, Identity
from icedb_service.access.credentials import HttpAccess
from icedb_service.access.guard import AccessGuard
from icedb_service.readers import TableNames, TableReads

from icedb_gateway.errors import S3Error, access_denied
from icedb_gateway.metrics import GatewayMetrics
from icedb_gateway.settings import GatewaySettings
from icedb_gateway.signature import EMPTY_SHA256, UNSIGNED, SignedRequest, check_signature, check_time, read_claim
from icedb_gateway.vended_keys import SESSION_TOKEN, VendedKeys

MAX_QUERY_BYTES: Final = 16 * 1024
_SIGNATURE_PREFIX: Final = "x-amz-"
_OLD_SIGNATURE: Final = ("AWSAccessKeyId", "Signature", "Expires")
"""Of version 2: refused where signatures count, and passed over where they do not."""


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """What the parts of a gateway share."""

    warehouse: Warehouse
    settings: GatewaySettings
    metrics: GatewayMetrics
    clock: Clock
    guard: AccessGuard
    reads: TableReads
    names: TableNames
    keys: VendedKeys = field(default_factory=VendedKeys)


@dataclass(frozen=True, slots=True)
class S3Request:
    """A request.

    Attributes:
        method: In capitals.
        bucket: Empty: none, as for ListBuckets.
        key: Empty: the bucket itself.
        parameters: Decoded, by name; without those of a presigned URL.
        headers: By name in lower case; of several of one name the last.
        signed: What signatures are made of.
    """

    method: str
    bucket: str
    key: str
    parameters: Mapping[str, str]
    headers: Mapping[str, str]
    signed: SignedRequest

    @property
    def resource(self) -> str:
        """What errors call it."""
        return f"/{self.bucket}/{self.key}" if self.key else f"/{self.bucket}"


def parse_request(scope: Mapping[str, Any]) -> S3Request:
    """Read a request from a scope of ASGI; the bucket stands first in its path.

    Raises:
        S3Error: InvalidURI, InvalidArgument: it cannot be read.
    """
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    query = _parse_query(scope["query_string"])
    by_name = dict(headers)
    try:
        path = unquote_to_bytes(raw_path).decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", "Couldn't parse the specified URI: its path is not UTF-8.") from None
    bucket, _, key = path[1:].partition("/")
    return S3Request(
        method=scope["method"].upper(),
        bucket=bucket,
        key=key,
        parameters=_parameters(query),
        headers=by_name,
        signed=SignedRequest(scope["method"].upper(), raw_path, query, headers),
    )


def _parse_query(raw: bytes) -> Sequence[tuple[str, str]]:
    if len(raw) > MAX_QUERY_BYTES:
        raise S3Error("InvalidArgument", f"the query has more than {MAX_QUERY_BYTES} bytes")
    pairs = (part.partition("=") for part in raw.decode("latin-1").split("&") if part)
    try:
        return [(unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict")) for name, _, value in pairs]
    except UnicodeDecodeError:
        raise S3Error("InvalidArgument", "the query is not UTF-8") from None


def _parameters(query: Sequence[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in query:
        if name.lower().startswith(_SIGNATURE_PREFIX) or name in _OLD_SIGNATURE:
            continue
        if name in found:
            raise S3Error("InvalidArgument", f"the parameter {name[:80]!r} is there twice")
        found[name] = value
    return found


_BEARER: Final = "bearer "
_STREAMING: Final = "STREAMING-"
_READS: Final = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends a request: an identity, with all that it may do, or with a key that is vended for one ``table``."""

    identity: Identity
    table: str | None = None


class Authentication:
    """Recognises who sends requests."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self._guard = parts.guard
        self._access = HttpAccess(parts.guard, max_requests=parts.settings.http_max_connections)

    def recognise(self, request: S3Request, scope: Mapping[str, Any]) -> Sender:
        """Return who sends a request, and hold a place for it until it ends.

        Raises:
            S3Error: AccessDenied, InvalidAccessKeyId, SignatureDoesNotMatch, RequestTimeTooSkewed, or malformed.
            RateLimited: The identity holds its share of the requests.
        """
        if not self._guard.is_enforced:
            return Sender(ANYBODY)
        try:
            sender = self._recognise(request, scope)
        except S3Error as error:
            self._parts.metrics.count_refusal(error.code)
            raise
        self._access.hold(scope, sender.identity)
        return sender

    def _recognise(self, request: S3Request, scope: Mapping[str, Any]) -> Sender:
        signed = request.signed
        has_token = (signed.header("authorization") or "").lower().startswith(_BEARER)
        claim = None if has_token else read_claim(signed)
        if claim is None:
            return Sender(self._by_token_or_certificate(scope))
        key = self._guard.access_key(claim.access_key_id)
        vended = self._parts.keys.read(claim.access_key_id) if key is None else None
        if key is not None:
            sender, secret = Sender(key.identity), key.secret
        elif vended is not None:
            sender, secret = Sender(Identity(vended[0].identity), vended[0].table), vended[1]
        else:
            raise S3Error(
                "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.", status=403
            )
        if claim.session_token is not None and (vended is None or claim.session_token != SESSION_TOKEN):
            raise S3Error("InvalidToken", "Session tokens are not known here: use a key pair of this endpoint's own.")
        now_ms = self._parts.clock.now_ms()
        check_signature(signed, claim, secret=secret)
        check_time(claim, now_ms=now_ms)
        if vended is not None and now_ms >= vended[0].expires_ms:
            raise S3Error("ExpiredToken", "The key has expired: load the table from the catalog again.")
        if request.method in _READS:
            _check_empty_body(claim.payload_hash, signed)
        return sender

    def _by_token_or_certificate(self, scope: Mapping[str, Any]) -> Identity:
        try:
            return self._access.recognise(scope)
        except Unauthenticated as error:
            raise access_denied(
                f"Access Denied: {error}; S3 clients sign requests with an access key of this endpoint"
            ) from error


def _check_empty_body(payload_hash: str, signed: SignedRequest) -> None:
    """Refuse a body that is announced, or one that is signed: reads have none."""
    has_body = signed.header("content-length") not in (None, "0") or signed.header("transfer-encoding") is not None
    is_empty = payload_hash in (EMPTY_SHA256, UNSIGNED) or payload_hash.startswith(_STREAMING)
    if has_body or not is_empty:
        raise S3Error(
            "XAmzContentSHA256Mismatch",
            "The provided 'x-amz-content-sha256' header does not match what was computed: reads have no body.",
        )
