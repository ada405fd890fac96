"""An HTTP proxy before the S3 server that fails on purpose: slow, cut, lying, late.

Owns the network between the stack and its store. It has several doors (ports), so that what met the services is told
apart from what met the readers and producers that watch them. It runs in a thread of its own and speaks HTTP/1.1 over
kept connections; requests and answers are held whole in memory, which S3 traffic of a test allows.

A request that a client gave up may still be on its way here (``late``): nothing is quiet before
:attr:`FaultProxy.late_count` is 0.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable

from icedb_local.chaos.http_messages import (
    MAX_HEAD_BYTES,
    BrokenMessage,
    Message,
    encode_error,
    read_answer,
    read_request,
)
from icedb_local.chaos.proxy_faults import ActiveFaults, FaultHits, ProxyFault
from icedb_local.ports import LOOPBACK

CALL_TIMEOUT_S: Final = 60
MIN_CUT_BYTES: Final = 2
"""Shorter bodies cannot come by half."""
WORDLESS_STATUS: Final = (412, 416)
"""Answers whose status says all: nobody looks at their bodies, so half of one is no trouble."""


@dataclass(slots=True)
class _Upstream:
    """A connection to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class FaultProxy:
    """The proxy; use as a context manager.

    Args:
        upstream_port: Loopback port of the S3 server.
        doors: Name of each door and its loopback port; 0 for any free one, see :attr:`ports`.
        clock: For the times of what faults meet.
    """

    def __init__(self, upstream_port: int, doors: Mapping[str, int], *, clock: Clock) -> None:
        self._upstream_port = upstream_port
        self._doors = dict(doors)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._servers: dict[str, asyncio.Server] = {}
        self._clients: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        self._late: set[asyncio.Task[None]] = set()
        self._landing = asyncio.Event()
        self.faults = ActiveFaults(clock)
        self.ports: dict[str, int] = dict(doors)
        self.request_count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.open_doors()
        return self

    def __exit__(self, *_: object) -> None:
        self.close_doors()
        self._call(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def late_count(self) -> int:
        """Requests that the server has still to get although their clients have given up."""
        return len(self._late)

    def land_late(self) -> None:
        """Send on what is late, without waiting for its time."""
        self._call(self._land_late())

    def begin(self, fault: ProxyFault) -> FaultHits:
        """Begin a fault; see :class:`ActiveFaults`."""
        return self.faults.add(fault)

    def end(self, hits: FaultHits) -> None:
        """End a fault; requests that have met it keep it."""
        self.faults.remove(hits)

    def open_doors(self) -> None:
        """Listen. Idempotent. Raises Unavailable if a port is taken."""
        self._call(self._open())

    def close_doors(self) -> int:
        """Refuse connections and break those that are open; returns how many were. Idempotent."""
        return int(self._call(self._close()))

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    async def _open(self) -> None:
        for door in self._doors:
            if door not in self._servers:

                async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, door: str = door) -> None:
                    await self._serve(reader, writer, door)

                try:
                    server = await asyncio.start_server(serve, LOOPBACK, self.ports[door], limit=MAX_HEAD_BYTES)
                except OSError as error:
                    raise Unavailable(f"the fault proxy cannot listen on {self.ports[door]}: {error}") from error
                self._servers[door] = server
                self.ports[door] = server.sockets[0].getsockname()[1]

    async def _close(self) -> int:
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        broken = len(self._clients)
        for writer in tuple(self._clients):
            writer.transport.abort()
        return broken

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, door: str) -> None:
        # The loop forgets a task whose client has left, although it still waits for the server: its task is kept here.
        self._clients[writer] = asyncio.current_task()
        upstream: list[_Upstream] = []
        try:
            while (request := await read_request(reader, writer)) is not None:
                self.request_count += 1
                hits = self.faults.take(request.method, request.path, door=door)
                if not await self._treat(request, writer, upstream, hits=hits, door=door):
                    break
                await writer.drain()
        except (BrokenMessage, OSError):
            pass  # a side has left: the other one is left, too
        finally:
            self._clients.pop(writer, None)
            for one in (*(one.writer for one in upstream), writer):
                with contextlib.suppress(OSError):
                    one.transport.abort()

    async def _treat(
        self,
        request: Message,
        writer: asyncio.StreamWriter,
        upstream: list[_Upstream],
        *,
        hits: FaultHits | None,
        door: str,
    ) -> bool:
        """Do to a request what is to be done; return whether the connection lives on."""
        if hits is None:
            writer.write(_encode(await self._forward(request, upstream)))
            return True
        fault = hits.fault
        if fault.action in ("hold", "slow"):
            await asyncio.sleep(fault.delay_ms / 1000)
        if fault.action == "late":
            task = asyncio.create_task(self._forward_late(request, fault.delay_ms))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        if fault.action in ("hold", "reset", "late"):
            return False
        if fault.action == "status":
            writer.write(encode_error(fault.status))
            return True
        answer = await self._forward(request, upstream)
        return await self._answer(answer, writer, hits=hits, door=door)

    async def _answer(self, answer: Message, writer: asyncio.StreamWriter, *, hits: FaultHits, door: str) -> bool:
        """Say of an answer what is to be said; return whether the connection lives on."""
        fault = hits.fault
        if fault.action == "drop":
            return False
        is_cut = len(answer.body) >= MIN_CUT_BYTES and answer.status not in WORDLESS_STATUS
        if fault.action == "truncate" and is_cut:
            writer.write(_encode(answer, cut_at=len(answer.body) // 2))
            await writer.drain()
            writer.write_eof()
            return False
        if fault.action == "ahead":
            answer = answer.at_later(fault.delay_ms)
        if fault.action == "truncate":
            self.faults.give_back(hits, door=door)
        writer.write(encode_error(fault.status) if fault.action == "status_after" else _encode(answer))
        return True

    async def _forward(self, request: Message, upstream: list[_Upstream]) -> Message:
        """Send a request to the server over this client's own connection, and return the answer."""
        is_fresh = not upstream
        if is_fresh:
            upstream.append(_Upstream(*await asyncio.open_connection(LOOPBACK, self._upstream_port)))
        connection = upstream[0]
        has_body = bool(request.body) or request.header("content-length") != ""
        connection.writer.write(request.encode_head(length=len(request.body) if has_body else None) + request.body)
        await connection.writer.drain()
        answer = await read_answer(connection.reader, method=request.method)
        if answer.header("connection") == "close":
            upstream.clear()
            connection.writer.close()
        return answer

    async def _land_late(self) -> None:
        self._landing.set()
        self._landing.clear()

    async def _forward_late(self, request: Message, delay_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._landing.wait(), delay_ms / 1000)
        upstream: list[_Upstream] = []
        with contextlib.suppress(BrokenMessage, OSError):
            await self._forward(request, upstream)
        for one in upstream:
            one.writer.close()


def _encode(answer: Message, *, cut_at: int | None = None) -> bytes:
    """Return an answer's bytes; with ``cut_at`` its head promises the whole body and so many bytes follow."""
    is_bodiless = not answer.body and answer.header("transfer-encoding") != "chunked"
    head = answer.encode_head(length=None if is_bodiless else len(answer.body))
    return head + (answer.body if cut_at is None else answer.body[:cut_at])
