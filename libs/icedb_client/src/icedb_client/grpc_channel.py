"""How a snapshot service is reached: addresses, TLS, the token, and what makes a connection notice a dead server.

A token is a secret: it goes over TLS, or to this machine; elsewhere only where the settings say so. Never shown.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from icedb_log.errors import InvalidRequest
from icedb_log.hosts import is_loopback

from icedb_client.bearer_token import MAX_SECRET_BYTES, BearerToken
from icedb_client.settings import ClientSettings

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
FIRST_RECONNECT_MS: Final = 100
LONGEST_RECONNECT_MS: Final = 5_000

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", FIRST_RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", LONGEST_RECONNECT_MS),
    # A name may stand for several replicas: calls go to all of them in turn.
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address, with the channel to it."""

    address: str
    channel: Any


class Endpoints:
    """The addresses of one service; calls take them in turn. Thread-safe.

    Args:
        settings: Addresses, TLS and the token.
        secure: Makes a channel with credentials, e.g. ``grpc.secure_channel``.
        insecure: Makes one without.

    Raises:
        InvalidRequest: A file cannot be read, or a token would go over the network in plain text.
    """

    def __init__(self, settings: ClientSettings, *, secure: Callable[..., Any], insecure: Callable[..., Any]) -> None:
        addresses = settings.snapshot_addresses
        self._token = BearerToken(settings)
        if self._token.is_set and not settings.uses_tls and not settings.token_over_plaintext:
            _require_loopback(addresses)
        credentials = _credentials(settings) if settings.uses_tls else None
        self.uses_tls = credentials is not None
        self.all = tuple(
            Endpoint(
                address,
                insecure(address, options=_OPTIONS)
                if credentials is None
                else secure(address, credentials, options=_OPTIONS),
            )
            for address in addresses
        )
        self._turn = itertools.count()

    def next(self) -> Endpoint:
        """Return whose turn it is."""
        return self.all[next(self._turn) % len(self.all)]

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what goes with each call: the token, as its file has it now."""
        authorization = self._token.authorization()
        return () if authorization is None else (("authorization", authorization),)


def _credentials(settings: ClientSettings) -> Any:
    def read(file: Path | None, name: str) -> bytes | None:
        return None if file is None else _read_secret(file, name)

    return grpc.ssl_channel_credentials(
        root_certificates=read(settings.ca_file, "ICEDB_CA_FILE"),
        private_key=read(settings.client_key_file, "ICEDB_CLIENT_KEY_FILE"),
        certificate_chain=read(settings.client_cert_file, "ICEDB_CLIENT_CERT_FILE"),
    )


def _read_secret(file: Path, name: str) -> bytes:
    try:
        with file.open("rb") as stream:
            body = stream.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"{name} {file}: cannot be read ({type(error).__name__})") from error
    if not body or len(body) > MAX_SECRET_BYTES:
        raise InvalidRequest(f"{name} {file}: has {len(body)} bytes; 1 to {MAX_SECRET_BYTES} are expected")
    return body


def _require_loopback(addresses: Sequence[str]) -> None:
    for address in addresses:
        if not is_loopback(address.rpartition(":")[0]):
            raise InvalidRequest(
                f"the token would go to {address} in plain text, for everybody on the way to read: set ICEDB_TLS or "
                "ICEDB_CA_FILE, or, if the network is yours alone, ICEDB_TOKEN_OVER_PLAINTEXT=true"
            )
