"""Batches of ten rows by HTTP, from a process of its own that does little else: an event loop, no library.

At a rate each batch has a time at which it is due, and its latency counts from then: a front end that falls behind
shows. Without one each of so many connections sends as soon as it has its answer.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import orjson
from icedb_log.clock import SystemClock, new_batch_id

from bench.tiny_work import make_rows

ACCEPTED: Final = b"202"
_GOLDEN: Final = 0.618033988749895
_HEAD: Final = (
    b"POST /v1/tables/%b/batches HTTP/1.1\r\nHost: bench\r\nContent-Type: application/x-ndjson\r\n"
    b"Idempotency-Key: %b\r\nContent-Length: %d\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class HttpLoad:
    """What is sent.

    Attributes:
        port: The front end's.
        table: Where to.
        batch_count: How many batches.
        in_flight: How many wait for their answers at once, at most.
        per_second: How many a second; 0: as many as there are answers.
    """

    port: int
    table: str
    batch_count: int
    in_flight: int
    per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Answered:
    """A batch that was acknowledged: its id, when, and how long that took; by the clock that never runs backwards."""

    batch_id: str
    at_s: float
    latency_s: float


class HttpSenders:
    """Sends loads. For a :class:`bench.processes.Remote`."""

    name = "http senders"

    def send(self, load: HttpLoad) -> list[Answered]:
        """Send all of a load; return what was acknowledged, which is all of it."""
        return asyncio.run(_send(load))


async def _send(load: HttpLoad) -> list[Answered]:
    answered: list[Answered] = []
    numbers, begun_s = iter(range(load.batch_count)), perf_counter()
    await asyncio.gather(*(_connection(load, numbers, begun_s, answered) for _ in range(load.in_flight)))
    return answered


async def _connection(load: HttpLoad, numbers: Iterator[int], begun_s: float, answered: list[Answered]) -> None:
    clock, table = SystemClock(), load.table.encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", load.port)
    for number in numbers:
        body = b"".join(orjson.dumps(row) + b"\n" for row in make_rows(number))
        due_s = 0.0
        if load.per_second:
            due_s = begun_s + (number + number * _GOLDEN % 1) / load.per_second
            await asyncio.sleep(max(0.0, due_s - perf_counter()))
        batch_id = new_batch_id(clock)
        from_s = due_s or perf_counter()
        writer.write(_HEAD % (table, batch_id.encode(), len(body)) + body)
        await _read_answer(reader)
        now_s = perf_counter()
        answered.append(Answered(batch_id, now_s, now_s - from_s))
    writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    _, _, rest = head.lower().partition(b"content-length:")
    body = await reader.readexactly(int(rest.partition(b"\r\n")[0]))
    if head.split(b" ", 2)[1] != ACCEPTED:
        raise RuntimeError(f"{head.splitlines()[0]!r} {body[:300]!r}")
