"""Sends files: part by part from the store to the client, one part ahead, never more in memory than a body may have.

The first part is there before the answer begins, so that a store that fails becomes an error and not half a file. After
that a failure can only break the connection off: the client sees fewer bytes than were announced, and asks again. A
client that leaves, or stands still, stops the reading; what a thread is fetching for it then is thrown away.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from icedb_log.errors import Overloaded, Unavailable
from icedb_log.store.object_store import ObjectInfo, ObjectStore, StoredObject
from icedb_log.units import SECOND_MS
from icedb_service.access.guard import Holder, Places
from icedb_service.budget import RETRY_AFTER_MS, Budget, Hold
from starlette.types import Receive, Send

from icedb_gateway.metrics import GatewayMetrics
from icedb_gateway.settings import GatewaySettings

T = TypeVar("T")

SLICE_BYTES: Final = 256 * 1024
"""What is given to the connection at once: it holds no more of a body than this when the client reads slowly."""
BODY_WAIT_MS: Final = 5000
"""How long a request waits until its file may be sent."""


class ClientLeft(Exception):
    """The client closed its connection, or read nothing for too long."""


@dataclass(frozen=True, slots=True)
class OpenBody:
    """The bytes of an object from ``start`` on, ``length`` of them, the first part of which is there."""

    key: str
    start: int
    length: int
    first: StoredObject


class Bodies:
    """Fetches and sends. Use it from one event loop."""

    def __init__(self, store: ObjectStore, *, settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._room = Budget(
            Places("files on their way", setting="ICEDB_GATEWAY_MAX_BODIES", size=settings.gateway_max_bodies),
            wait_ms=BODY_WAIT_MS,
            explain=lambda count, _: Overloaded(
                f"{count} files are being sent already (ICEDB_GATEWAY_MAX_BODIES): try again",
                retry_after_ms=RETRY_AFTER_MS,
            ),
            on_change=metrics.bodies.set,
        )
        self._pool = ThreadPoolExecutor(settings.read_threads, "icedb-bodies")

    def turn(self, holder: Holder) -> Hold:
        """Return a turn for one more body, for an ``async with`` block that waits for it.

        Raises:
            RateLimited: The caller has its share of those that are being sent.
            Overloaded: Too many are being sent.
        """
        return self._room.hold(holder=holder)

    async def describe(self, key: str) -> ObjectInfo:
        """Return what the store says of an object. Raises NotFound, Unavailable."""
        return await self._run(lambda: self._store.head(key))

    async def open(self, key: str, *, start: int, length: int) -> OpenBody:
        """Fetch the first part of a body.

        Raises:
            NotFound: The object is not there.
            Unavailable: The store did not answer in time.
        """
        part_bytes = min(length, self._settings.part_bytes)
        first = await self._run(lambda: self._store.get_range(key, start=start, length=part_bytes))
        return OpenBody(key, start, length, first)

    async def send(self, body: OpenBody, send: Send, receive: Receive) -> None:
        """Send a body after its headers, to the end.

        Raises:
            ClientLeft: The client does not want it any more.
            IceDBError: The store failed; the connection has to be broken off.
        """
        sending = asyncio.ensure_future(self._send(body, send))
        leaving = asyncio.ensure_future(_wait_for_end(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise ClientLeft
            await sending
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    def close(self) -> None:
        """Take no more work; what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _send(self, body: OpenBody, send: Send) -> None:
        etag = body.first.info.etag
        part, position, end = body.first.body, body.start, body.start + body.length
        while True:
            if not part and position < end:
                raise Unavailable(f"{body.key}: ends at byte {position}, before {end}; read it again")
            position += len(part)
            following = self._start_next(body.key, position, end, etag) if position < end else None
            try:
                for start in range(0, len(part), SLICE_BYTES):
                    await self._send_slice(part[start : start + SLICE_BYTES], send, has_more=True)
                if following is None:
                    # WARN: only a further message waits until the connection has taken the bytes before it. Without, a
                    # client that stands still would keep the last part in memory, and count as served.
                    await self._send_slice(b"", send, has_more=False)
                    return
                part = (await following).body
            finally:
                if following is not None:
                    following.cancel()

    def _start_next(self, key: str, position: int, end: int, etag: str) -> "asyncio.Task[StoredObject]":
        length = min(end - position, self._settings.part_bytes)
        fetch = self._run(lambda: self._store.get_range(key, start=position, length=length, if_match=etag))
        task = asyncio.ensure_future(fetch)
        task.add_done_callback(_take_outcome)
        return task

    async def _send_slice(self, body: bytes, send: Send, *, has_more: bool) -> None:
        try:
            async with asyncio.timeout(self._settings.gateway_send_timeout_ms / SECOND_MS):
                await send({"type": "http.response.body", "body": body, "more_body": has_more})
        except TimeoutError:
            raise ClientLeft from None
        self._metrics.sent_bytes.inc(len(body))

    async def _run(self, function: Callable[[], T]) -> T:
        running = asyncio.get_running_loop().run_in_executor(self._pool, function)
        running.add_done_callback(_take_outcome)
        try:
            return await asyncio.wait_for(asyncio.shield(running), self._settings.read_wait_ms / SECOND_MS)
        except TimeoutError:
            raise Unavailable(
                f"the object store did not answer within {self._settings.read_wait_ms} ms "
                "(ICEDB_READ_WAIT_MS): try again"
            ) from None


async def _wait_for_end(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _take_outcome(done: "asyncio.Future[Any]") -> None:
    """Take the error of what nobody waits for any more."""
    if not done.cancelled():
        done.exception()
