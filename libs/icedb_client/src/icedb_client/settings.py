"""The settings of the client and of the ``icedb`` command, read from the same ``ICEDB_…`` variables as the services.

The token is one of them: fixed, or from a file that is replaced while the client runs. It is never shown.
"""

import logging
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Final, Self
from urllib.parse import SplitResult, urlsplit

from icedb_log.errors import InvalidRequest, Unauthenticated
from icedb_log.hosts import check_redis_url, is_loopback, redact_url
from icedb_log.store_settings import StoreFields
from icedb_log.texts import describe_problem
from icedb_log.units import MINUTE_MS, SECOND_MS
from pydantic import AfterValidator, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

DEFAULT_REDIS_URL: Final = "redis://127.0.0.1:6379/0"
OPTIONS: Final = frozenset({"store", "address", "snapshot_address", "redis_url"})
"""What the ``icedb`` command has an option for."""
MAX_SECRET_BYTES: Final = 64 * 1024
_log = logging.getLogger(__name__)


class ClientSettings(StoreFields):
    """Where everything is. Each value may also be given to :class:`icedb_client.Client` by name.

    Plain values: pydantic-settings, with asyncio and all else that it imports, would take a fifth of ``icedb status``.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    store: str | None = None
    """Where the warehouse lies: a folder, `file:///absolute/folder` or `s3://bucket/prefix`. Not needed to send to a
    front end, nor to read snapshots from a snapshot service."""

    address: str | None = None
    """The front end that events are sent to over HTTP: `https://host:port`. Empty: they are staged in the store, which
    needs its keys. A store that is given by argument or option counts before an address from the environment."""

    snapshot_address: str | None = None
    """`host:port` of the snapshot service; empty: snapshots are read straight from the store. Several replicas with
    commas between are asked in turn, and so are all machines that one name stands for."""

    token: SecretStr | None = None
    """Bearer token for the front end, for the snapshot service, and for workers that are asked to change a table. It is
    sent by TLS, or to this machine."""

    token_file: Path | None = None
    """File with the token instead, read again when it changes: for tokens that expire."""

    token_over_plaintext: bool = False
    """Send the token without TLS to other machines, too, Redis included. Whoever sees the network can then use it."""

    tls: bool = False
    """Speak TLS with the snapshot service, trusting the authorities that this system trusts. For the front end,
    `https://` says it."""

    ca_file: Path | None = None
    """Certificate of the authority that signed the service's certificate (PEM). Implies TLS with the snapshot
    service."""

    client_cert_file: Path | None = None
    """This client's certificate (PEM), for a service that asks for one. Implies TLS with the snapshot service; needs
    the key."""

    client_key_file: Path | None = None
    """The key of the client's certificate (PEM)."""

    redis_url: Annotated[str, Field(repr=False), AfterValidator(check_redis_url)] = DEFAULT_REDIS_URL
    """Redis that wakes the workers. Without it nothing is lost: the workers' periodic sweep finds what is staged."""

    prometheus_url: str | None = None
    """Where Prometheus answers, e.g. `http://prometheus:9090`: `icedb status TABLE` asks it what the table costs a day.
    Empty: it does not say."""

    redis_timeout_ms: Annotated[int, Field(ge=50, le=10_000)] = 300
    """How long one Redis request may take, milliseconds."""

    message_expiry_ms: Annotated[int, Field(ge=SECOND_MS)] = 10 * MINUTE_MS
    """How long a wake-up may wait in a queue, milliseconds. The services should have the same value."""

    snapshot_timeout_ms: Annotated[int, Field(ge=100)] = 30 * SECOND_MS
    """How long a call of the snapshot service may take, milliseconds."""

    @model_validator(mode="before")
    @classmethod
    def _read_environment(cls, given: dict[str, object]) -> dict[str, object]:
        """Return what is given, and of the rest what the variables say that are not empty."""
        names = {name: name.lower().removeprefix("icedb_") for name in os.environ if name.lower().startswith("icedb_")}
        return {field: value for name, field in names.items() if (value := os.environ[name])} | given

    @field_validator("store", mode="before")
    @classmethod
    def _name_folder(cls, store: object) -> object:
        """Return a folder as its URL: its path counts from where this process runs."""
        if isinstance(store, str) and re.match("file:|s3:|[a-z0-9+]+://", store, re.IGNORECASE):
            return store
        return Path(store).expanduser().absolute().as_uri() if isinstance(store, str | Path) and str(store) else store

    @field_validator("address")
    @classmethod
    def _check_front_end(cls, address: str | None) -> str | None:
        if not address:
            return None
        parts = urlsplit(address)
        is_plain = not (parts.query or parts.fragment or "@" in parts.netloc)
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain or not _has_good_port(parts):
            raise ValueError(
                f"{redact_url(address)[:80]!r} is not an address; write https://host:port, or http://127.0.0.1:8088"
            )
        return address.rstrip("/")

    @field_validator("snapshot_address")
    @classmethod
    def _check_address(cls, address: str | None) -> str | None:
        for one in ("x:1",) if address is None else address.split(","):
            host, _, port = one.strip().rpartition(":")
            if not host or "/" in host or not port.isdigit():
                raise ValueError(f"{one[:80]!r} is not an address; write host:port, e.g. 127.0.0.1:50051")
        return address

    @field_validator("token")
    @classmethod
    def _check_token(cls, token: SecretStr | None) -> SecretStr | None:
        text = "x" if token is None else token.get_secret_value()
        if not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("a token is printable ASCII without spaces")
        return token

    @model_validator(mode="after")
    def _check_access(self) -> Self:
        if self.token is not None and self.token_file is not None:
            raise ValueError("ICEDB_TOKEN and ICEDB_TOKEN_FILE are both set: keep one")
        if (self.client_cert_file is None) != (self.client_key_file is None):
            raise ValueError("ICEDB_CLIENT_CERT_FILE and ICEDB_CLIENT_KEY_FILE go together: set both, or neither")
        return self

    @property
    def snapshot_addresses(self) -> tuple[str, ...]:
        """Each address of the snapshot service."""
        return tuple(one.strip() for one in (self.snapshot_address or "").split(",") if one.strip())

    @property
    def uses_tls(self) -> bool:
        """Whether the snapshot service is spoken to with TLS."""
        return self.tls or self.ca_file is not None or self.client_cert_file is not None


def load_client_settings(**given: object) -> ClientSettings:
    """Read settings from the environment; values that are given (not ``None``) win, a store also over an address.

    A variable that is misspelt is told by a warning: it has no effect.

    Raises:
        InvalidRequest: One message that names every value that is wrong, and why.
    """
    for misspelt in ClientSettings.find_misspelt(os.environ):
        _log.warning("%s", misspelt)
    return read_client_settings(given)


def read_client_settings(given: Mapping[str, object]) -> ClientSettings:
    """Read settings as :func:`load_client_settings`, without a warning about variables. Raises as it does."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if "store" in chosen:
        chosen.setdefault("address", None)  # who names the store means it, whatever the environment says
    try:
        return ClientSettings(**chosen)
    except ValidationError as error:
        problems = (
            f"{_name_of(problem['loc'], chosen)}{describe_problem(problem)}"
            for problem in error.errors(include_url=False, include_input=False)
        )
        raise InvalidRequest("settings: " + "; ".join(problems)) from error


def _has_good_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


def _name_of(place: tuple[int | str, ...], given: Collection[str]) -> str:
    """Return where a wrong value comes from: the argument or option of this name, or the environment."""
    if not place:
        return ""
    name = str(place[0])
    if name not in given:
        return f"ICEDB_{name.upper()}: "
    return f"{name} (--{name.replace('_', '-')}): " if name in OPTIONS else f"{name}: "


class BearerToken:
    """Who this client is. Thread-safe."""

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
    """Return if a token may go into messages. Raises InvalidRequest as :func:`require_private`."""
    parts = urlsplit(settings.redis_url)
    if parts.scheme != "rediss":
        remedy = "use rediss:// in ICEDB_REDIS_URL"
        require_private(settings, redact_url(settings.redis_url), parts.hostname or "", remedy=remedy)


def require_private(settings: ClientSettings, address: str, host: str, *, remedy: str) -> None:
    """Return if a token may go to an address in plain text: to this machine, or where the settings say so.

    Raises:
        InvalidRequest: It would go over the network; names the remedy.
    """
    if not is_loopback(host) and not settings.token_over_plaintext:
        raise InvalidRequest(
            f"the token would go to {address} in plain text, for everybody on the way to read: {remedy}, or, if the "
            "network is yours alone, set ICEDB_TOKEN_OVER_PLAINTEXT=true"
        )


def _check_token(token: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Unauthenticated("ICEDB_TOKEN_FILE holds no token: one line of printable characters without spaces")
    return token
