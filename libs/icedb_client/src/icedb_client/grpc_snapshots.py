"""Asks the snapshot service, waiting or awaiting: addresses, TLS, the token, retries, and what a failed call means.

A token is a secret: it goes over TLS, or to this machine; elsewhere only where the settings say so. Never shown.
gRPC says "unavailable" for a port that nobody listens on, for TLS where none is spoken, for plain text where TLS
is, and for a certificate that nobody vouches for. :func:`explain_unavailable` finds out which it was, by a handshake.
"""

import asyncio
import itertools
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import grpc
import grpc.aio
from icedb_log import errors
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_log.hosts import is_loopback
from icedb_proto import snapshot_pb2 as pb
from icedb_proto import snapshot_pb2_grpc
from icedb_proto.errors import ERROR_METADATA_KEY, ERRORS_BY_CODE, RETRY_METADATA_KEY
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
    wait_random,
)

from icedb_client.grpc_plans import Call, Plans, TooLarge, read_event
from icedb_client.requests import Answerer, AnswerT, Request, SnapshotEvent
from icedb_client.settings import MAX_SECRET_BYTES, BearerToken, ClientSettings

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
PROBE_TIMEOUT_S: Final = 2.0
_CREDENTIALS_HINT: Final = {
    grpc.StatusCode.UNAUTHENTICATED: "; set ICEDB_TOKEN, ICEDB_TOKEN_FILE or a client certificate",
}
_TOO_MANY_CALLS: Final = "oncurrent RPC limit"
MAX_TRIES: Final = 4
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
_GROWING: Final = wait_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S) + wait_random(0, FIRST_PAUSE_S)


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


def retry_policy(timeout_s: float) -> dict[str, Any]:
    """Return how a call is retried, for tenacity: what may pass, a few times, as long as the time-out leaves room."""
    return {
        "retry": retry_if_exception(is_passing),
        "stop": stop_after_attempt(MAX_TRIES) | stop_before_delay(timeout_s),
        "wait": _pause_s,
        "reraise": True,
    }


def _pause_s(state: RetryCallState) -> float:
    """Return how long to wait: as long as the server asked for, else longer each time."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked_ms = retry_after_ms(error) if isinstance(error, grpc.RpcError) else None
    return _GROWING(state) if asked_ms is None else max(asked_ms / 1000, FIRST_PAUSE_S)


class WatchState:
    """What a watch has told already, and how long it has had no server.

    Args:
        patience_s: How long it may have none.
        clock: For that.
    """

    def __init__(self, patience_s: float, *, clock: Clock) -> None:
        self._patience_ms = patience_s * 1000
        self._clock = clock
        self._told: dict[str, tuple[str | None, str | None]] = {}
        self._pause_s = FIRST_PAUSE_S
        self._since_ms: int | None = None

    def is_news(self, event: pb.SnapshotEvent) -> bool:
        """Whether an event says something that was not told yet; another replica begins with what is known."""
        self._since_ms, self._pause_s = None, FIRST_PAUSE_S
        state = (
            event.snapshot_id if event.HasField("snapshot_id") else None,
            event.problem if event.HasField("problem") else None,
        )
        if event.table in self._told and self._told[event.table] == state:
            return False
        self._told[event.table] = state
        return True

    def pause_s(self, error: Any) -> float | None:
        """Return how long to wait before the next server is asked; ``None``: the watch has ended."""
        now_ms = self._clock.monotonic_ms()
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        if not is_passing(error) or now_ms - self._since_ms > self._patience_ms:
            return None
        asked_ms = retry_after_ms(error)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s if asked_ms is None else asked_ms / 1000


class _ServiceCalls:
    """What calls share, waited for or awaited: the replicas in turn, their time-outs, and how a call is begun.

    Args:
        settings: Addresses, time-out, TLS, token.
        clock: For deadlines.
        secure: Makes a channel with credentials.
        insecure: Makes one without.

    Raises:
        InvalidRequest: A file cannot be read, or a token would go over the network in plain text.
    """

    def __init__(
        self, settings: ClientSettings, *, clock: Clock, secure: Callable[..., Any], insecure: Callable[..., Any]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._timeout_s = settings.snapshot_timeout_ms / 1000
        self._plans = Plans(settings.s3)
        self._endpoints = Endpoints(settings, secure=secure, insecure=insecure)
        self._stubs = {
            each.address: snapshot_pb2_grpc.SnapshotServiceStub(each.channel) for each in self._endpoints.all
        }

    def _begin(self, method: str, message: Any, asked: list[Endpoint], *, ends_ms: int | None = None) -> Any:
        """Begin a call of the replica whose turn it is, and note in ``asked`` which that is."""
        endpoint = self._endpoints.next()
        asked[:] = [endpoint]
        timeout_s = None if ends_ms is None else max(1, ends_ms - self._clock.monotonic_ms()) / 1000
        call = getattr(self._stubs[endpoint.address], method)
        return call(message, timeout=timeout_s, metadata=self._endpoints.metadata())


class GrpcSnapshots(_ServiceCalls):
    """Asks a snapshot service, or several replicas of one in turn. Thread-safe; close it when done.

    Args:
        settings: Addresses, time-out, TLS, token.
        clock: For deadlines and pauses.

    Raises:
        InvalidRequest: A file cannot be read, or a token would go over the network in plain text.
    """

    def __init__(self, settings: ClientSettings, *, clock: Clock) -> None:
        super().__init__(settings, clock=clock, secure=grpc.secure_channel, insecure=grpc.insecure_channel)
        self._policy = Retrying(**retry_policy(self._timeout_s), sleep=lambda s: clock.sleep_ms(round(s * 1000)))

    def close(self) -> None:
        """Close the channels. May be called again."""
        for endpoint in self._endpoints.all:
            endpoint.channel.close()

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """Return the answer; see :class:`icedb_client.requests.Answerer`."""
        plan = self._plans.plan(request, self)
        try:
            call = next(plan)
            while True:
                try:
                    answer = self._call(call)
                except IceDBError as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(answer)
        except StopIteration as done:
            return cast("AnswerT", done.value)

    def watch(self, tables: Sequence[str]) -> Iterator[SnapshotEvent]:
        """Follow events from one replica to the next; see :class:`icedb_client.requests.Answerer`."""
        state = WatchState(self._timeout_s, clock=self._clock)
        message = pb.WatchSnapshotsRequest(tables=tables)
        asked: list[Endpoint] = []
        while True:
            stream = self._begin("WatchSnapshots", message, asked)
            try:
                for event in stream:
                    if state.is_news(event):
                        yield read_event(event)
            except grpc.RpcError as error:
                pause_s = state.pause_s(error)
                if pause_s is None:
                    raise self._translate(error, asked[0]) from error
                self._clock.sleep_ms(round(pause_s * 1000))
            finally:
                stream.cancel()

    def _call(self, call: Call) -> Any:
        asked: list[Endpoint] = []
        ends_ms = self._clock.monotonic_ms() + self._settings.snapshot_timeout_ms

        def once() -> Any:
            answer = self._begin(call.method, call.message, asked, ends_ms=ends_ms)
            return list(answer) if call.is_stream else answer

        try:
            return self._policy(once)
        except grpc.RpcError as error:
            raise self._translate(error, asked[0]) from error

    def _translate(self, error: Any, endpoint: Endpoint) -> IceDBError:
        reason = explain_unavailable(endpoint.address, self._settings) if is_silent(error) else ""
        return translate(error, address=endpoint.address, timeout_s=self._timeout_s, reason=reason)


class AioSnapshots(_ServiceCalls):
    """Asks a snapshot service, or several replicas in turn, from one event loop; close it when done.

    Args:
        settings: Addresses, time-out, TLS, token.
        clock: For deadlines.
        answerer: Who is asked for leases by readers, which block.

    Raises:
        InvalidRequest: A file cannot be read, or a token would go over the network in plain text.
    """

    def __init__(self, settings: ClientSettings, *, clock: Clock, answerer: Answerer) -> None:
        super().__init__(settings, clock=clock, secure=grpc.aio.secure_channel, insecure=grpc.aio.insecure_channel)
        self._answerer = answerer
        self._policy = AsyncRetrying(**retry_policy(self._timeout_s))

    async def close(self) -> None:
        """Close the channels. May be called again."""
        for endpoint in self._endpoints.all:
            await endpoint.channel.close()

    async def ask(self, request: Request[AnswerT]) -> AnswerT:
        """Return the answer; see :class:`icedb_client.requests.Answerer`."""
        plan = self._plans.plan(request, self._answerer)
        try:
            call = next(plan)
            while True:
                try:
                    answer = await self._call(call)
                except IceDBError as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(answer)
        except StopIteration as done:
            return cast("AnswerT", done.value)

    async def watch(self, tables: Sequence[str]) -> AsyncGenerator[SnapshotEvent, None]:
        """Follow events from one replica to the next; see :class:`icedb_client.requests.Answerer`."""
        state = WatchState(self._timeout_s, clock=self._clock)
        message = pb.WatchSnapshotsRequest(tables=tables)
        asked: list[Endpoint] = []
        while True:
            stream = self._begin("WatchSnapshots", message, asked)
            try:
                async for event in stream:
                    if state.is_news(event):
                        yield read_event(event)
            except grpc.RpcError as error:
                pause_s = state.pause_s(error)
                if pause_s is None:
                    raise await self._translate(error, asked[0]) from error
                await asyncio.sleep(pause_s)
            finally:
                stream.cancel()

    async def _call(self, call: Call) -> Any:
        asked: list[Endpoint] = []
        ends_ms = self._clock.monotonic_ms() + self._settings.snapshot_timeout_ms

        async def once() -> Any:
            answer = self._begin(call.method, call.message, asked, ends_ms=ends_ms)
            return [message async for message in answer] if call.is_stream else await answer

        try:
            return await self._policy(once)
        except grpc.RpcError as error:
            raise await self._translate(error, asked[0]) from error

    async def _translate(self, error: Any, endpoint: Endpoint) -> IceDBError:
        reason = ""
        if is_silent(error):
            reason = await asyncio.to_thread(explain_unavailable, endpoint.address, self._settings)
        return translate(error, address=endpoint.address, timeout_s=self._timeout_s, reason=reason)
