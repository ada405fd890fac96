"""Who sends a request: a signature, presigned or in headers, a bearer token, a client certificate, or nobody.

With an access file, a signature has to be right. Without one everybody may read, and signatures, which most clients
cannot leave out, are not looked at: there is no secret to compare them with.
"""

from collections.abc import Mapping
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.errors import Unauthenticated
from icedb_service.access.access_file import ANYBODY, Identity
from icedb_service.access.credentials import HttpAccess
from icedb_service.access.guard import AccessGuard

from icedb_gateway.errors import S3Error, access_denied
from icedb_gateway.metrics import GatewayMetrics
from icedb_gateway.requests import S3Request
from icedb_gateway.signature import EMPTY_SHA256, UNSIGNED, SignedRequest, check_signature, check_time, read_claim

_BEARER: Final = "bearer "
_STREAMING: Final = "STREAMING-"
_READS: Final = ("GET", "HEAD")


class Authentication:
    """Recognises who sends requests.

    Args:
        guard: Knows keys, tokens and certificates.
        clock: For signatures' times.
        metrics: Where refusals are counted.
    """

    def __init__(self, guard: AccessGuard, *, clock: Clock, metrics: GatewayMetrics) -> None:
        self._guard = guard
        self._access = HttpAccess(guard)
        self._clock = clock
        self._metrics = metrics

    def recognise(self, request: S3Request, scope: Mapping[str, Any]) -> Identity:
        """Return who sends a request.

        Raises:
            S3Error: AccessDenied, InvalidAccessKeyId, SignatureDoesNotMatch, RequestTimeTooSkewed, or malformed.
        """
        if not self._guard.is_enforced:
            return ANYBODY
        try:
            return self._recognise(request, scope)
        except S3Error as error:
            self._metrics.count_refusal(error.code)
            raise

    def _recognise(self, request: S3Request, scope: Mapping[str, Any]) -> Identity:
        signed = request.signed
        if (signed.header("authorization") or "").lower().startswith(_BEARER):
            return self._by_token_or_certificate(scope)
        claim = read_claim(signed)
        if claim is None:
            return self._by_token_or_certificate(scope)
        key = self._guard.access_key(claim.access_key_id)
        if key is None:
            raise S3Error(
                "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.", status=403
            )
        check_signature(signed, claim, secret=key.secret)
        check_time(claim, now_ms=self._clock.now_ms())
        if request.method in _READS:
            _check_empty_body(claim.payload_hash, signed)
        return key.identity

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
