"""The client's bearer token: fixed, or from a file that is replaced while the client runs. Never shown."""

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from icedb_log.errors import InvalidRequest, Unauthenticated
from icedb_log.hosts import is_loopback, redact_url

from icedb_client.settings import ClientSettings

MAX_SECRET_BYTES: Final = 64 * 1024


class BearerToken:
    """Who this client is. Thread-safe.

    Args:
        settings: Have the token, or its file.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._fixed = settings.token.get_secret_value() if settings.token is not None else None
        self._file = settings.token_file
        self._known: tuple[tuple[int, int], str] | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is one."""
        return self._fixed is not None or self._file is not None

    def authorization(self) -> str | None:
        """Return what goes with a call or a message, as the token's file has it now; ``None`` without a token.

        Raises:
            Unauthenticated: The file cannot be read, or holds no token.
        """
        token = self._fixed if self._file is None else self._read(self._file)
        return None if token is None else f"Bearer {token}"

    def _read(self, file: Path) -> str:
        try:
            found = file.stat()
            state = (found.st_mtime_ns, found.st_size)
            if self._known is None or self._known[0] != state:
                with file.open("rb") as stream:
                    body = stream.read(MAX_SECRET_BYTES)
                self._known = (state, _check_token(body.decode().strip()))
        except (OSError, UnicodeDecodeError) as error:
            raise Unauthenticated(f"ICEDB_TOKEN_FILE {file}: cannot be read ({type(error).__name__})") from error
        return self._known[1]


def require_private_redis(settings: ClientSettings) -> None:
    """Return if a token may go into messages: over TLS, to this machine, or where the settings say so.

    Raises:
        InvalidRequest: It would go over the network in plain text.
    """
    parts = urlsplit(settings.redis_url)
    is_private = parts.scheme == "rediss" or is_loopback(parts.hostname or "")
    if not is_private and not settings.token_over_plaintext:
        raise InvalidRequest(
            f"the token would go to {redact_url(settings.redis_url)} in plain text, for everybody on the way to read: "
            "use rediss:// in ICEDB_REDIS_URL, or, if the network is yours alone, ICEDB_TOKEN_OVER_PLAINTEXT=true"
        )


def _check_token(token: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Unauthenticated("ICEDB_TOKEN_FILE holds no token: one line of printable characters without spaces")
    return token
