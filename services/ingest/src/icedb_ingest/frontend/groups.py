"""Group commit at the door: events of many webhook requests become one staged batch. For one event loop.

Every request is answered only after the PUT of its group (I1), so a group is accepted whole or not at all. A group
stays open while it lingers and while the table's earlier groups are being staged; hence a slow store makes larger
groups, not more of them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from icedb_log.clock import Clock, new_batch_id

from icedb_ingest.frontend.desk import Accepted, Offer

STAGED_AT_ONCE: Final = 4
"""Groups of one table on their way to the store."""

Accept = Callable[[Offer], Awaitable[Accepted]]


@dataclass(slots=True)
class _Group:
    batch_id: str
    done: asyncio.Future[Accepted]
    parts: list[bytes] = field(default_factory=list)
    row_count: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _Places:
    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STAGED_AT_ONCE))
    user_count: int = 0


class EventGroups:
    """Collects events by table.

    Args:
        accept: Makes a batch durable.
        clock: Makes batch ids.
        linger_ms: How long a group waits for more.
        max_rows: Events of one group at most.
        max_bytes: Bytes of one group at most; one request alone may exceed both.
        on_group: Called for each group that was accepted.
    """

    def __init__(
        self,
        accept: Accept,
        *,
        clock: Clock,
        linger_ms: int,
        max_rows: int,
        max_bytes: int,
        on_group: Callable[[], object] = lambda: None,
    ) -> None:
        self._accept = accept
        self._clock = clock
        self._linger_s = linger_ms / 1000
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._on_group = on_group
        self._open: dict[str, _Group] = {}
        self._places: dict[str, _Places] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, table: str, lines: bytes, *, row_count: int) -> Accepted:
        """Add events and wait until they are durable.

        Args:
            table: Name of the table.
            lines: Events as NDJSON, each line ended.
            row_count: How many.

        Raises:
            IceDBError: The group was not accepted; the events may be durable all the same.
        """
        group = self._open.get(table)
        if group is not None and not self._has_room(group, row_count, len(lines)):
            del self._open[table]  # its task stages it as it is
            group = None
        if group is None:
            group = self._begin(table)
        group.parts.append(lines)
        group.row_count += row_count
        group.size_bytes += len(lines)
        return await asyncio.shield(group.done)

    async def finish(self) -> None:
        """Wait until every group is staged or refused."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _has_room(self, group: _Group, row_count: int, size_bytes: int) -> bool:
        return group.row_count + row_count <= self._max_rows and group.size_bytes + size_bytes <= self._max_bytes

    def _begin(self, table: str) -> _Group:
        group = _Group(new_batch_id(self._clock), asyncio.get_running_loop().create_future())
        self._open[table] = group
        task = asyncio.create_task(self._stage(table, group))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return group

    async def _stage(self, table: str, group: _Group) -> None:
        places = self._places.setdefault(table, _Places())
        places.user_count += 1
        try:
            await asyncio.sleep(self._linger_s)
            async with places.free:
                if self._open.get(table) is group:
                    del self._open[table]
                offer = Offer(table, b"".join(group.parts), "ndjson", group.batch_id)
                accepted = await self._accept(offer)
        except BaseException as error:  # noqa: BLE001 - the requests that wait are told, whatever it is
            _tell(group.done, error)
        else:
            self._on_group()
            if not group.done.done():
                group.done.set_result(accepted)
        finally:
            places.user_count -= 1
            if not places.user_count:
                del self._places[table]


def _tell(done: asyncio.Future[Accepted], error: BaseException) -> None:
    if done.done():
        return
    if isinstance(error, asyncio.CancelledError):
        done.cancel()
    else:
        done.set_exception(error)
        done.exception()  # those who wait have it; if nobody does, no loop shall complain
