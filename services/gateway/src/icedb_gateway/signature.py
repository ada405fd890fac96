"""AWS Signature Version 4 from the server's side: what a request claims, and whether its signature is right. Pure.

Source: "Authenticating Requests (AWS Signature Version 4)" in Amazon S3's API reference. The signature that a request
ought to have is botocore's: its canonical request and its signer. What a claim must look like, how long it holds and
which headers it has to cover is decided here. The body of a request is covered by ``x-amz-content-sha256``, which is
signed; who takes the body compares it. Must never log a secret, and compares signatures in constant time.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders

from icedb_gateway.errors import S3Error, access_denied

ALGORITHM: Final = "AWS4-HMAC-SHA256"
UNSIGNED: Final = "UNSIGNED-PAYLOAD"
EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
MAX_SKEW_MS: Final = 15 * 60 * 1000
"""How far a request's time may lie from ours (S3's own limit)."""
MAX_EXPIRES_S: Final = 7 * 24 * 3600
"""How long a presigned URL may be valid (S3's own limit)."""

_TERMINATOR: Final = "aws4_request"
_SERVICE: Final = "s3"
_CREDENTIAL: Final = re.compile(
    r"(?P<id>[!-~]+)/(?P<date>[0-9]{8})/(?P<region>[!-.0-~]*)/(?P<service>[^/]+)/(?P<end>[^/]+)"
)
_HEADER_FIELD: Final = re.compile(r"\s*(?P<name>Credential|SignedHeaders|Signature)=(?P<value>[^,]*?)\s*")
_SIGNATURE: Final = re.compile(r"[0-9a-f]{64}")
_AMZ_DATE: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_PRESIGNED_SIGNATURE: Final = "X-Amz-Signature"
_PAYLOAD_HASH: Final = "x-amz-content-sha256"
_SESSION_TOKEN: Final = "x-amz-security-token"  # the name of a header  # noqa: S105  # nosec B105
_PRESIGNED: Final = (
    *("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders"),
    _PRESIGNED_SIGNATURE,
)


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """What of a request goes into its signature, as it came over the wire.

    Attributes:
        method: In capitals.
        raw_path: The path as it was sent, percent-encoded.
        query: Names and values, decoded, in the order in which they were sent.
        headers: Names in lower case, and values, in the order in which they were sent.
    """

    method: str
    raw_path: bytes
    query: Sequence[tuple[str, str]]
    headers: Sequence[tuple[str, str]]

    def header(self, name: str) -> str | None:
        """Return the value of a header, several joined by commas; ``None`` if it is not there."""
        values = [" ".join(value.split()) for header, value in self.headers if header == name]
        return ",".join(values) if values else None


@dataclass(frozen=True, slots=True)
class Claim:
    """The signature that a request carries, and all that it was made with but the secret.

    Attributes:
        access_key_id: Whose secret.
        region: Of the key's scope.
        amz_date: When it was signed, ``20260102T030405Z``.
        signed_headers: Names, in lower case, ascending.
        signature: 64 hex digits.
        payload_hash: What the signature says of the body.
        expires_s: How long a presigned URL is valid; ``None``: signed in headers.
        session_token: What goes with a temporary key; who takes the claim compares it.
    """

    access_key_id: str
    region: str
    amz_date: str
    signed_headers: tuple[str, ...]
    signature: str
    payload_hash: str
    expires_s: int | None
    session_token: str | None = None


def read_claim(request: SignedRequest) -> Claim | None:
    """Return what a request claims; ``None`` if it is not signed at all.

    Raises:
        S3Error: It is signed in a way that cannot be right, or that this server does not know.
    """
    names = {name for name, _ in request.query}
    authorization = request.header("authorization")
    is_presigned = bool(names & {*_PRESIGNED})
    if authorization is not None and is_presigned:
        raise S3Error("InvalidArgument", "Only one auth mechanism allowed: a header or query parameters, not both.")
    if is_presigned:
        return replace(_read_presigned(request), session_token=_session_token(request))
    if authorization is None:
        if names >= {"AWSAccessKeyId", "Signature"}:
            raise _wrong_mechanism()
        return None
    return replace(_read_header(request, authorization), session_token=_session_token(request))


def _session_token(request: SignedRequest) -> str | None:
    """Return the session token, of the header, which has to be signed, or of the query, which always is."""
    in_query = [value for name, value in request.query if name.lower() == _SESSION_TOKEN]
    return ",".join(in_query) if in_query else request.header(_SESSION_TOKEN)


def check_signature(request: SignedRequest, claim: Claim, *, secret: str) -> None:
    """Raise S3Error if the signature was not made of this request with this secret, or leaves a header out."""
    unsigned = {name for name, _ in request.headers if name not in claim.signed_headers and name.startswith("x-amz-")}
    if unsigned or "host" not in claim.signed_headers:
        missing = ", ".join(sorted(unsigned | ({"host"} - set(claim.signed_headers))))
        raise access_denied(f"There were headers present in the request which were not signed: {missing}")
    if not hmac.compare_digest(_sign(request, claim, secret), claim.signature):
        raise S3Error(
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided. Check your key, your "
            "signing method, and that no proxy in between changes the Host header, the path or signed headers.",
            status=403,
        )


def check_time(claim: Claim, *, now_ms: int) -> None:
    """Raise S3Error if the request is not of now (RequestTimeTooSkewed), or its URL has expired (AccessDenied)."""
    signed_ms = _read_time(claim.amz_date)
    if signed_ms - now_ms > MAX_SKEW_MS or (claim.expires_s is None and now_ms - signed_ms > MAX_SKEW_MS):
        raise S3Error(
            "RequestTimeTooSkewed",
            f"The difference between the request time {claim.amz_date} and the current time is too large: at most "
            f"{MAX_SKEW_MS // 60_000} minutes are allowed. Set the client's clock.",
            status=403,
        )
    if claim.expires_s is not None and now_ms > signed_ms + claim.expires_s * 1000:
        raise access_denied("Request has expired")


def _read_header(request: SignedRequest, authorization: str) -> Claim:
    mechanism, _, rest = authorization.partition(" ")
    if mechanism != ALGORITHM:
        raise _wrong_mechanism()
    matches = [_HEADER_FIELD.fullmatch(part) for part in rest.split(",")]
    fields = {match["name"]: match["value"] for match in matches if match is not None}
    if not len(matches) == len(fields) == len(("Credential", "SignedHeaders", "Signature")):
        raise _malformed("expected Credential=…, SignedHeaders=…, Signature=…, each once")
    amz_date = request.header("x-amz-date")
    if amz_date is None:
        raise access_denied("AWS authentication requires a valid x-amz-date header")
    payload_hash = request.header(_PAYLOAD_HASH)
    if payload_hash is None:
        raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    return _make_claim(fields, amz_date=amz_date, payload_hash=payload_hash, expires_s=None)


def _read_presigned(request: SignedRequest) -> Claim:
    found: dict[str, str] = {}
    for name, value in request.query:
        if name in _PRESIGNED:
            if name in found:
                raise _malformed_query(f"{name} is there twice")
            found[name] = value
    missing = [name for name in _PRESIGNED if name not in found]
    if missing:
        raise _malformed_query(f"{', '.join(missing)} is missing")
    if found["X-Amz-Algorithm"] != ALGORITHM:
        raise _wrong_mechanism()
    expires = found["X-Amz-Expires"]
    if not (expires.isascii() and expires.isdigit() and len(expires) <= len(str(MAX_EXPIRES_S))):
        raise _malformed_query("X-Amz-Expires should be a number of seconds")
    if not 0 < int(expires) <= MAX_EXPIRES_S:
        raise _malformed_query(f"X-Amz-Expires must be 1 to {MAX_EXPIRES_S} seconds")
    return _make_claim(
        {name.removeprefix("X-Amz-"): value for name, value in found.items()},
        amz_date=found["X-Amz-Date"],
        payload_hash=request.header(_PAYLOAD_HASH) or UNSIGNED,
        expires_s=int(expires),
    )


def _make_claim(fields: Mapping[str, str], *, amz_date: str, payload_hash: str, expires_s: int | None) -> Claim:
    """Return the claim of ``Credential``, ``SignedHeaders`` and ``Signature``, if they have the form that S3 knows."""
    signature, signed_headers = fields["Signature"], fields["SignedHeaders"]
    match = _CREDENTIAL.fullmatch(fields["Credential"])
    if match is None or match["end"] != _TERMINATOR or match["service"] != _SERVICE:
        raise _malformed("the Credential has to be <key id>/<yyyymmdd>/<region>/s3/aws4_request")
    if not _AMZ_DATE.fullmatch(amz_date):
        raise access_denied("AWS authentication requires a valid x-amz-date, e.g. 20260102T030405Z")
    _read_time(amz_date)
    if amz_date[:8] != match["date"]:
        raise _malformed(f"the Credential's date {match['date']} is not that of x-amz-date, {amz_date}")
    if not _SIGNATURE.fullmatch(signature):
        raise _malformed("a Signature has 64 lower-case hex digits")
    names = tuple(signed_headers.split(";"))
    if not all(names) or list(names) != sorted(set(names)) or signed_headers != signed_headers.lower():
        raise _malformed("SignedHeaders has to be lower-case names, ascending, each once, between semicolons")
    return Claim(match["id"], match["region"], amz_date, names, signature, payload_hash, expires_s)


class _Signer(S3SigV4Auth):  # type: ignore[misc]  # botocore has no types
    """botocore's signer, of the headers that a claim names: it would leave out some that others sign."""

    def __init__(self, claim: Claim, secret: str) -> None:
        super().__init__(SimpleNamespace(secret_key=secret), _SERVICE, claim.region)
        self._names = claim.signed_headers

    def headers_to_sign(self, request: Any) -> HTTPHeaders:
        signed = HTTPHeaders()
        for name in self._names:
            for value in request.headers.get_all(name, [""]):
                signed[name] = value
        return signed


def _sign(request: SignedRequest, claim: Claim, secret: str) -> str:
    """Return the signature that the claim ought to have."""
    path = quote(unquote_to_bytes(request.raw_path), safe="/-_.~")
    is_presigned = claim.expires_s is not None
    query = [pair for pair in request.query if not (is_presigned and pair[0] == _PRESIGNED_SIGNATURE)]
    signed = AWSRequest(request.method, f"http://host{path or '/'}", params=query)
    for name, value in request.headers:
        signed.headers[name] = value
    if _PAYLOAD_HASH not in signed.headers:
        signed.headers[_PAYLOAD_HASH] = claim.payload_hash
    signed.context["timestamp"] = claim.amz_date
    signer = _Signer(claim, secret)
    return str(signer.signature(signer.string_to_sign(signed, signer.canonical_request(signed)), signed))


def _read_time(amz_date: str) -> int:
    try:
        return int(datetime.strptime(amz_date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()) * 1000
    except ValueError:
        raise access_denied(f"AWS authentication requires a valid time, not {amz_date[:40]!r}") from None


def _wrong_mechanism() -> S3Error:
    return S3Error(
        "InvalidRequest",
        f"The authorization mechanism you have provided is not supported. Please use {ALGORITHM}.",
    )


def _malformed(why: str) -> S3Error:
    return S3Error("AuthorizationHeaderMalformed", f"The authorization header you provided is invalid: {why}.")


def _malformed_query(why: str) -> S3Error:
    return S3Error("AuthorizationQueryParametersError", f"The query parameters of a presigned URL are invalid: {why}.")
