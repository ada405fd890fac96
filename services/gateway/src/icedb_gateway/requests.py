"""What a request asks for: bucket, key and parameters, from an ASGI scope. Pure.

Paths are taken as they were sent (``raw_path``) and decoded once: a key may hold every character.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_plus, unquote_to_bytes

from icedb_gateway.errors import S3Error
from icedb_gateway.signature import SignedRequest

MAX_QUERY_BYTES: Final = 16 * 1024
_SIGNATURE_PREFIX: Final = "x-amz-"
_OLD_SIGNATURE: Final = ("AWSAccessKeyId", "Signature", "Expires")
"""Of version 2: refused where signatures count, and passed over where they do not."""


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


def parse_request(scope: Mapping[str, Any], *, domain: str | None) -> S3Request:
    """Read a request.

    Args:
        scope: Of ASGI, type ``http``.
        domain: Of virtual-hosted addresses; ``None``: there are none.

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
    bucket, key = _split_path(path, host=by_name.get("host", ""), domain=domain)
    return S3Request(
        method=scope["method"].upper(),
        bucket=bucket,
        key=key,
        parameters=_parameters(query),
        headers=by_name,
        signed=SignedRequest(scope["method"].upper(), raw_path, query, headers),
    )


def _split_path(path: str, *, host: str, domain: str | None) -> tuple[str, str]:
    name = host.partition(":")[0].lower()
    if domain is not None and name.endswith(f".{domain}"):
        return name.removesuffix(f".{domain}"), path[1:]
    bucket, _, key = path[1:].partition("/")
    return bucket, key


def _parse_query(raw: bytes) -> Sequence[tuple[str, str]]:
    if len(raw) > MAX_QUERY_BYTES:
        raise S3Error("InvalidArgument", f"the query has more than {MAX_QUERY_BYTES} bytes")
    pairs = []
    for part in raw.decode("latin-1").split("&"):
        if part:
            name, _, value = part.partition("=")
            pairs.append((_unquote(name), _unquote(value)))
    return pairs


def _unquote(text: str) -> str:
    return unquote_plus(text, errors="surrogateescape")


def _parameters(query: Sequence[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in query:
        if name.lower().startswith(_SIGNATURE_PREFIX) or name in _OLD_SIGNATURE:
            continue
        if name in found:
            raise S3Error("InvalidArgument", f"the parameter {name[:80]!r} is there twice")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise S3Error("InvalidArgument", f"the parameter {name[:80]!r} is not UTF-8") from None
        found[name] = value
    return found
