"""An HTTP proxy before the S3 server that fails on purpose: slow, cut, lying, late.

Owns the network between the stack and its store. It has several doors (ports), so that what met the services is told
apart from what met the readers and producers that watch them. A connection has a thread and a connection to the server
of its own; requests (those with a length) and answers are held whole in memory, which S3 traffic of a test allows.

A fault is *active* from :meth:`ActiveFaults.add` to :meth:`ActiveFaults.remove`; each request meets the first active
fault that wants it. What was really done is noted for each door, with its time: so a fault that met nothing counts as
none, and whom it met, and when, can be compared with what that service has counted.

A request that a client gave up may still be on its way here (``late``): nothing is quiet before
:attr:`FaultProxy.late_count` is 0.
"""

import contextlib
import dataclasses
import re
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Final, Literal, Self

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable

from icedb_local.ports import LOOPBACK

Action = Literal[
    "status",  # answered with an error; the server does not see it
    "status_after",  # the server does it, the client is answered with an error
    "hold",  # the server does not see it, the client gets no answer for a while, then the connection ends
    "slow",  # forwarded, but later
    "reset",  # the connection ends; the server does not see it
    "drop",  # the server does it; the connection ends before its answer
    "truncate",  # half of the answer's body comes
    "late",  # the connection ends at once; the server gets the request later
    "ahead",  # the answer says that it is later than it is
]
WRITES: Final = frozenset({"PUT", "POST", "DELETE"})


@dataclass(frozen=True, slots=True)
class ProxyFault:
    """One kind of trouble for some requests.

    Attributes:
        action: What happens to them.
        methods: Which methods; empty: all.
        target: Regular expression that is searched for in path and query.
        status: Of ``status`` and ``status_after``.
        delay_ms: Of ``hold``, ``slow``, ``late`` and ``ahead``.
        limit: Requests that meet it at most; ``None``: all while it is active.
        client: Regular expression that is searched for in address and agent of who sent them.
    """

    action: Action
    methods: frozenset[str] = frozenset()
    target: str = ""
    status: int = 503
    delay_ms: int = 0
    limit: int | None = None
    client: str = ""

    def wants(self, method: str, path: str, client: str) -> bool:
        """Whether a request is one of those."""
        is_one = (not self.methods or method in self.methods) and re.search(self.target, path) is not None
        return is_one and re.search(self.client, client) is not None


@dataclass(slots=True)
class FaultHits:
    """A fault that is or was active, and what it did.

    Attributes:
        fault: Which.
        times_ms: When each request met it, monotonic, by the door through which it came.
        requests: The same requests: method, path and query of each.
        clients: Who sent them: address and agent.
        released: Set when nothing has to wait any more, see :meth:`FaultProxy.release`.
    """

    fault: ProxyFault
    times_ms: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    requests: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    clients: list[str] = dataclasses.field(default_factory=list)
    released: threading.Event = dataclasses.field(default_factory=threading.Event)

    @property
    def by_door(self) -> dict[str, int]:
        """Requests that met it, by the door through which they came."""
        return {door: len(times_ms) for door, times_ms in self.times_ms.items()}

    @property
    def total(self) -> int:
        """Requests that met it."""
        return sum(self.by_door.values())

    @property
    def is_used_up(self) -> bool:
        """Whether its limit is reached."""
        return self.fault.limit is not None and self.total >= self.fault.limit


class ActiveFaults:
    """The faults that are active now, in the order in which they were added. Safe for many threads.

    Args:
        clock: For the times of what they meet.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._active: list[FaultHits] = []

    def add(self, fault: ProxyFault) -> FaultHits:
        """Begin a fault; returns where its hits are counted, which is also what ends it."""
        hits = FaultHits(fault)
        with self._lock:
            self._active.append(hits)
        return hits

    def remove(self, hits: FaultHits) -> None:
        """End a fault. Idempotent."""
        with self._lock:
            self._active = [other for other in self._active if other is not hits]

    def clear(self) -> None:
        """End all of them."""
        with self._lock:
            self._active = []

    def take(self, method: str, path: str, *, door: str, client: str = "") -> FaultHits | None:
        """Return what happens to a request, which is noted there."""
        with self._lock:
            for hits in self._active:
                if not hits.is_used_up and hits.fault.wants(method, path, client):
                    hits.times_ms.setdefault(door, []).append(self._clock.monotonic_ms())
                    hits.requests.setdefault(door, []).append(f"{method} {path}")
                    hits.clients.append(client)
                    return hits
        return None

    def give_back(self, hits: FaultHits, *, door: str) -> None:
        """Forget the last request of a door: the fault turned out not to fit it (a body too short to be cut)."""
        with self._lock:
            hits.times_ms[door].pop()
            hits.requests[door].pop()


MIN_CUT_BYTES: Final = 2
"""Shorter bodies cannot come by half."""
WORDLESS_STATUS: Final = (412, 416)
"""Answers whose status says all: nobody looks at their bodies, so half of one is no trouble."""
STOP_POLL_S: Final = 0.1
_DATE: Final = re.compile(rb"(?im)^date: ([^\r]*)")
_LENGTH_HEADERS: Final = ("content-length", "transfer-encoding")
_ERROR_CODES: Final = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown", 507: "InsufficientStorage"}


@dataclass(frozen=True, slots=True)
class Request:
    """A request, held whole.

    Attributes:
        door: Where it came in.
        client: Who sent it: address and agent.
        method: Its method.
        path: Path and query.
        headers: Those that the server gets.
        body: Its body.
    """

    door: str
    client: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class FaultProxy:
    """The proxy; use as a context manager.

    Args:
        upstream_port: Loopback port of the S3 server.
        doors: Name of each door and its loopback port; 0 for any free one, see :attr:`ports`.
        clock: For the times of what faults meet.
        on_done: Told of each request that the server has answered, and how many bytes the answer's body has. By any
            thread.
        host: Address at which it listens; another one than loopback only for machines of a test's own.
        latency_ms: What each request takes besides, whatever it meets.
    """

    def __init__(
        self,
        upstream_port: int,
        doors: Mapping[str, int],
        *,
        clock: Clock,
        on_done: Callable[[Request, int], object] = lambda *_: None,
        host: str = LOOPBACK,
        latency_ms: int = 0,
    ) -> None:
        self.on_done = on_done
        self.host = host
        self.latency_ms = latency_ms
        self._waiting: list[FaultHits] = []
        self._upstream_port = upstream_port
        self._doors: dict[str, _Door] = {}
        self._late: set[threading.Event] = set()
        self._end = threading.Event()
        self.faults = ActiveFaults(clock)
        self.ports: dict[str, int] = dict(doors)

    def __enter__(self) -> Self:
        self.open_doors()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for hits in self._waiting:
            hits.released.set()
        self.land_late()
        self.close_doors()

    @property
    def late_count(self) -> int:
        """Requests that the server has still to get although their clients have given up."""
        return len(self._late)

    def land_late(self) -> None:
        """Send on what is late, without waiting for its time."""
        for landing in tuple(self._late):
            landing.set()

    def begin(self, fault: ProxyFault) -> FaultHits:
        """Begin a fault; see :class:`ActiveFaults`."""
        hits = self.faults.add(fault)
        self._waiting.append(hits)
        return hits

    def release(self, hits: FaultHits) -> None:
        """End a fault, and let requests that have met it go on now: what is slow is forwarded, what is held ends."""
        self.end(hits)
        hits.released.set()

    def end(self, hits: FaultHits) -> None:
        """End a fault; requests that have met it keep it."""
        self.faults.remove(hits)

    def open_doors(self) -> None:
        """Listen. Idempotent. Raises Unavailable if a port is taken."""
        for name, port in self.ports.items():
            if name not in self._doors:
                try:
                    self._doors[name] = _Door(self, name, port)
                except OSError as error:
                    raise Unavailable(f"the fault proxy cannot listen on {port}: {error}") from error
                self.ports[name] = self._doors[name].server_address[1]

    def close_doors(self) -> int:
        """Refuse connections and break those that are open; returns how many were. Idempotent."""
        doors = tuple(self._doors.values())
        self._doors.clear()
        return sum(door.close() for door in doors)

    def connect(self) -> HTTPConnection:
        """Return a connection to the server, which is made with its first request."""
        return HTTPConnection(LOOPBACK, self._upstream_port)

    def wait(self, delay_ms: int, released: threading.Event | None = None) -> None:
        """Let a request wait, at most until it is released, and for as long as there is a proxy."""
        (released or self._end).wait(delay_ms / 1000)

    def send_late(self, request: Request, delay_ms: int) -> None:
        """Have the server get a request later."""
        landing = threading.Event()
        self._late.add(landing)

        def land() -> None:
            landing.wait(delay_ms / 1000)
            with contextlib.suppress(OSError, HTTPException), contextlib.closing(self.connect()) as upstream:
                if not self._end.is_set():
                    _forward(request, upstream)
            self._late.discard(landing)

        threading.Thread(target=land, name="late request", daemon=True).start()


class _Door(ThreadingTCPServer):
    """Listens, and knows who is connected."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 100

    def __init__(self, proxy: FaultProxy, name: str, port: int) -> None:
        super().__init__((proxy.host, port), _Client)
        self.proxy = proxy
        self.name = name
        self.clients: set[socket.socket] = set()
        threading.Thread(target=self.serve_forever, args=(STOP_POLL_S,), name=f"door {name}", daemon=True).start()

    def close(self) -> int:
        """Listen no more, and break what is open; return how much that was."""
        self.shutdown()
        self.server_close()
        clients = tuple(self.clients)
        for client in clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        return len(clients)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """End a connection: if a side has left, the other one is left, too."""
        if not isinstance(sys.exception(), OSError | HTTPException):
            super().handle_error(request, client_address)


class _Client(BaseHTTPRequestHandler):
    """The connection of a client."""

    server: _Door
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._proxy = self.server.proxy
        self._upstream = self._proxy.connect()
        self.server.clients.add(self.connection)

    def finish(self) -> None:
        self.server.clients.discard(self.connection)
        self._upstream.close()
        super().finish()

    def log_message(self, *_: object) -> None:
        """Keep silent."""

    def _serve(self) -> None:
        """Do to a request what is to be done."""
        request = self._read_request()
        if self._proxy.latency_ms:
            self._proxy.wait(self._proxy.latency_ms)
        hits = self._proxy.faults.take(self.command, self.path, door=self.server.name, client=request.client)
        if hits is None:
            self.wfile.write(b"".join(self._forward(request)[1:]))
            return
        fault = hits.fault
        if fault.action in ("hold", "slow"):
            self._proxy.wait(fault.delay_ms, hits.released)
        if fault.action == "late":
            self._proxy.send_late(request, fault.delay_ms)
        if fault.action in ("hold", "reset", "late"):
            self.close_connection = True
        elif fault.action == "status":
            self.wfile.write(_encode_error(fault.status))
        else:
            self._answer(request, hits)

    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815 - words of the standard library

    def _answer(self, request: Request, hits: FaultHits) -> None:
        """Have the server do it, and say of its answer what is to be said."""
        status, head, body = self._forward(request)
        action = hits.fault.action
        is_cut = action == "truncate" and len(body) >= MIN_CUT_BYTES and status not in WORDLESS_STATUS
        if action == "truncate" and not is_cut:
            self._proxy.faults.give_back(hits, door=self.server.name)
        self.close_connection |= is_cut or action == "drop"
        if action == "status_after":
            self.wfile.write(_encode_error(hits.fault.status))
        elif action != "drop":
            if action == "ahead":
                head = _say_later(head, hits.fault.delay_ms)
            self.wfile.write(head + (body[: len(body) // 2] if is_cut else body))

    def _forward(self, request: Request) -> tuple[int, bytes, bytes]:
        answer = _forward(request, self._upstream)
        self._proxy.on_done(request, len(answer[2]))
        return answer

    def _read_request(self) -> Request:
        length = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionResetError("the client has left in the middle of its request")
        kept = tuple((name, value) for name, value in self.headers.items() if name.lower() != "expect")
        client = f"{self.client_address[0]} {self.headers.get('User-Agent', '')}"
        return Request(self.server.name, client, self.command, self.path, kept, body)


def _forward(request: Request, upstream: HTTPConnection) -> tuple[int, bytes, bytes]:
    """Send a request to the server; return its answer: status, head and body."""
    upstream.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
    for name, value in request.headers:
        upstream.putheader(name, value)
    upstream.endheaders(request.body)
    answer = upstream.getresponse()
    body = answer.read()
    headers = answer.getheaders()
    if body or answer.chunked:
        headers = [(name, value) for name, value in headers if name.lower() not in _LENGTH_HEADERS]
        headers.append(("Content-Length", str(len(body))))
    start = f"HTTP/1.1 {answer.status} {answer.reason}"
    lines = (start, *(f"{name}: {value}" for name, value in headers), "", "")
    return answer.status, "\r\n".join(lines).encode("latin-1"), body


def _say_later(head: bytes, delay_ms: int) -> bytes:
    """Return the head of an answer with a ``Date`` that is so much later."""

    def say(found: re.Match[bytes]) -> bytes:
        later = parsedate_to_datetime(found[1].decode()) + timedelta(milliseconds=delay_ms)
        return b"Date: " + format_datetime(later, usegmt=True).encode()

    return _DATE.sub(say, head)


def _encode_error(status: int) -> bytes:
    """Return an answer with an error as S3 words it."""
    code = _ERROR_CODES.get(status, "InternalError")
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>chaos</Message></Error>".encode()
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
