"""Key pairs that the Iceberg catalog gives to engines: for one table, one identity and a short time. Pure.

Nothing is stored. The id of a key says whose it is, for which table and until when, and carries a tag (HMAC-SHA256,
128 bits) by the deployment's secret; its secret key is derived from the id by the same secret. So each replica that has
the secret takes the keys of all others, and a new secret ends them all. What a key may do is still asked of the access
file at each request: it gives no right that its identity has not got. Must never log a secret.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass
from secrets import token_urlsafe
from typing import Final

import orjson

SESSION_TOKEN: Final = "icedb-vended"  # no secret: the same for all  # noqa: S105  # nosec B105
"""Goes with each key: engines that only take temporary keys want a session token (Trino). It says nothing."""

_PREFIX: Final = "ICEDBV1"
_TAG_BYTES: Final = 16
_MAX_ID_CHARS: Final = 2048


@dataclass(frozen=True, slots=True)
class Vended:
    """What a key is for: ``identity`` reads ``table`` until ``expires_ms`` (unix ms)."""

    identity: str
    table: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key as an engine gets it."""

    access_key_id: str
    secret_access_key: str

    def __repr__(self) -> str:
        return "KeyPair(…)"


class VendedKeys:
    """Makes keys, and recognises them.

    Args:
        secret: The deployment's, the same at each replica; ``None``: one that nobody knows, and no other replica has.
    """

    def __init__(self, secret: str | None = None) -> None:
        self._secret = (secret or token_urlsafe()).encode()

    def issue(self, vended: Vended) -> KeyPair:
        """Return the key for this; the same one each time."""
        body = orjson.dumps([vended.expires_ms, vended.table, vended.identity])
        access_key_id = _PREFIX + base64.b32encode(self._tag(body) + body).decode().rstrip("=")
        return KeyPair(access_key_id, self._secret_of(access_key_id))

    def read(self, access_key_id: str) -> tuple[Vended, str] | None:
        """Return what a key is for and its secret; ``None``: it was not made with this deployment's secret.

        Whether it has expired, who asks compares with the time of the request.
        """
        if not access_key_id.startswith(_PREFIX) or len(access_key_id) > _MAX_ID_CHARS:
            return None
        text = access_key_id.removeprefix(_PREFIX)
        try:
            decoded = base64.b32decode(text + "=" * (-len(text) % 8))
        except ValueError:  # binascii.Error, or what is not ASCII
            return None
        tag, body = decoded[:_TAG_BYTES], decoded[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(body)):
            return None
        expires_ms, table, identity = orjson.loads(body)
        return Vended(identity, table, expires_ms), self._secret_of(access_key_id)

    def _tag(self, body: bytes) -> bytes:
        return self._mac(b"id", body)[:_TAG_BYTES]

    def _secret_of(self, access_key_id: str) -> str:
        return base64.urlsafe_b64encode(self._mac(b"secret", access_key_id.encode())).decode().rstrip("=")

    def _mac(self, purpose: bytes, message: bytes) -> bytes:
        return hmac.new(self._secret, b"icedb vended key 1 " + purpose + b":" + message, hashlib.sha256).digest()
