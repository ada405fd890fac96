"""Channels to the snapshot service: addresses, TLS, the token, and what a failed call means.

A token is a secret: it goes over TLS, or to this machine; elsewhere only where the settings say so. Never shown.
gRPC says "unavailable" for a port that nobody listens on, for TLS where none is spoken, for plain text where TLS
is, and for a certificate that nobody vouches for. :func:`explain_unavailable` finds out which it was, by a handshake.
"""

import itertools
import json
import socket
import ssl
from pathlib import Path
from typing import Any, Final

import grpc
from icedb_log import errors
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_proto import snapshot_pb2_grpc
from icedb_proto.errors import ERROR_METADATA_KEY, ERRORS_BY_CODE, RETRY_METADATA_KEY, TABLE_METADATA_KEY

from icedb_client.settings import MAX_SECRET_BYTES, BearerToken, ClientSettings, require_private

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
FIRST_RECONNECT_MS: Final = 100
LONGEST_RECONNECT_MS: Final = 5_000
CONNECT_TIMEOUT_MS: Final = 5_000
"""Of one attempt to connect, with its handshake: a distant server takes several round trips."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", LONGEST_RECONNECT_MS),
    # WARN: gRPC names it after pauses, and gives up each attempt to connect that takes longer.
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    # A name may stand for several replicas: calls go to all of them in turn.
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
)
PROBE_TIMEOUT_S: Final = 2.0
_CREDENTIALS_HINT: Final = {
    grpc.StatusCode.UNAUTHENTICATED: "; set ICEDB_TOKEN, ICEDB_TOKEN_FILE or a client certificate",
}
_TOO_MANY_CALLS: Final = "oncurrent RPC limit"


class TooLarge(InvalidRequest):
    """An answer does not fit one message. What the caller does: ask for a stream."""


class Channels:
    """The addresses of one service; calls take them in turn. Thread-safe.

    Args:
        settings: Addresses, TLS and the token.

    Raises:
        InvalidRequest: A file cannot be read, or a token would go over the network in plain text.
    """

    def __init__(self, settings: ClientSettings) -> None:
        addresses = settings.snapshot_addresses
        self._token = BearerToken(settings)
        if self._token.is_set and not settings.uses_tls:
            for address in addresses:
                remedy = "set ICEDB_TLS or ICEDB_CA_FILE"
                require_private(settings, address, address.rpartition(":")[0], remedy=remedy)
        credentials = _credentials(settings) if settings.uses_tls else None
        self.all = tuple(
            grpc.insecure_channel(address, options=_OPTIONS)
            if credentials is None
            else grpc.secure_channel(address, credentials, options=_OPTIONS)
            for address in addresses
        )
        stubs = map(snapshot_pb2_grpc.SnapshotServiceStub, self.all)
        self._turns = itertools.cycle(tuple(zip(addresses, stubs, strict=True)))

    def next(self) -> tuple[str, Any]:
        """Return the address whose turn it is, and its stub."""
        return next(self._turns)

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


def retry_after_ms(error: Any) -> int | None:
    """Return how long a server asked to wait; ``None``: it did not ask."""
    value = _metadata(error).get(RETRY_METADATA_KEY)
    return int(value) if value is not None and str(value).isdecimal() else None


def is_passing(error: BaseException) -> bool:
    """Whether the same call may succeed soon: the server is away, or has too much to do."""
    if not isinstance(error, grpc.RpcError):
        return False
    code = error.code()
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return not is_too_large(error)
    return code is grpc.StatusCode.UNAVAILABLE


def is_silent(error: Any) -> bool:
    """Whether no server of ours answered at all."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and ERROR_METADATA_KEY not in _metadata(error)


def is_too_large(error: Any) -> bool:
    """Whether an answer did not fit one message, here or there."""
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or retry_after_ms(error) is not None:
        return False
    named = _metadata(error).get(ERROR_METADATA_KEY)
    return named != errors.Overloaded.__name__ and _TOO_MANY_CALLS not in str(error.details())


def translate(error: Any, *, address: str, timeout_s: float, reason: str = "") -> IceDBError:
    """Return our error.

    Args:
        error: What gRPC raised.
        address: Who was asked.
        timeout_s: How long was waited.
        reason: What :func:`explain_unavailable` found.
    """
    code, details = error.code(), str(error.details())
    if is_too_large(error):
        return TooLarge(details)
    named = _metadata(error).get(ERROR_METADATA_KEY)
    kind = getattr(errors, str(named), None)
    if isinstance(kind, type) and issubclass(kind, IceDBError):
        wait_ms = retry_after_ms(error)
        if kind is errors.Overloaded and wait_ms is not None:
            return errors.Overloaded(details, retry_after_ms=wait_ms)
        if kind is errors.TableNotFound:
            return errors.TableNotFound(details, table=str(_metadata(error).get(TABLE_METADATA_KEY, "")))
        return kind(details + _CREDENTIALS_HINT.get(code, ""))
    if code in ERRORS_BY_CODE:
        return ERRORS_BY_CODE[code](f"snapshot service at {address}: {details}{_CREDENTIALS_HINT.get(code, '')}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        reason = (
            f"snapshot service at {address}: no answer within {timeout_s:g} s; "
            "try again, or raise ICEDB_SNAPSHOT_TIMEOUT_MS"
        )
    elif code is grpc.StatusCode.UNAVAILABLE:
        reason = reason or (
            f"snapshot service at {address} does not answer ({_first_words(details)}); start it, correct "
            "ICEDB_SNAPSHOT_ADDRESS, or unset that to read straight from the store"
        )
    return Unavailable(reason or f"snapshot service at {address}: {code.name}: {details}")


def explain_unavailable(address: str, settings: ClientSettings) -> str:
    """Return why a server cannot be talked to, if it is about TLS; empty if it is not. Takes a few seconds at most.

    Args:
        address: ``host:port``.
        settings: How the client speaks.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = _probe_context(settings)
    try:
        with (
            socket.create_connection((host, int(port)), PROBE_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            spoke_tls, problem = True, ""
    except ssl.SSLCertVerificationError as error:
        spoke_tls, problem = True, error.verify_message or str(error)
    except ssl.SSLError as error:
        spoke_tls, problem = "alert" in str(error).lower(), ""
    except (OSError, ValueError):
        return ""
    if settings.uses_tls and problem:
        return (
            f"snapshot service at {address}: its certificate is not trusted ({problem}); set ICEDB_CA_FILE to the "
            "certificate of the authority that signed it, and use a host name that it is for"
        )
    if settings.uses_tls and not spoke_tls:
        return f"snapshot service at {address} speaks no TLS: unset ICEDB_TLS and ICEDB_CA_FILE, or correct the address"
    if not settings.uses_tls and spoke_tls:
        return (
            f"snapshot service at {address} speaks TLS, this client does not: set ICEDB_TLS=true, or ICEDB_CA_FILE to "
            "the certificate of the authority that signed the server's"
        )
    if settings.uses_tls and settings.client_cert_file is None:
        return (
            f"snapshot service at {address} ended the connection: it may ask for a client certificate; set "
            "ICEDB_CLIENT_CERT_FILE and ICEDB_CLIENT_KEY_FILE"
        )
    return ""


def _probe_context(settings: ClientSettings) -> ssl.SSLContext:
    if not settings.uses_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # nothing is said over it: whether TLS is spoken is all that is asked
    else:
        context = ssl.create_default_context(cafile=None if settings.ca_file is None else str(settings.ca_file))
        if settings.client_cert_file is not None and settings.client_key_file is not None:
            context.load_cert_chain(settings.client_cert_file, settings.client_key_file)
    context.set_alpn_protocols(["h2"])
    return context


def _metadata(error: Any) -> dict[str, Any]:
    return dict(error.trailing_metadata() or ())


def _first_words(details: str) -> str:
    return details.partition(":")[0][:120] if details else "no connection"
