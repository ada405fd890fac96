"""Who watches tables and asks for snapshots, in processes of their own: the service is not measured with them.

How late a message is, is told by the time of the commit that it names, which the same host's clock has written.
"""

import asyncio
import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

import grpc
from icedb_proto import snapshot_pb2 as pb
from icedb_proto import snapshot_pb2_grpc

WAVE: Final = 100
"""Streams that one process opens at once: gRPC itself cancels some of a thousand new ones."""
CALLS_A_CHANNEL: Final = 100
AT_ONCE: Final = 16
"""Calls of a process that differ from each other."""
END_LIMIT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Crowd:
    """Watchers, and callers, of one process.

    Attributes:
        address: Of the service.
        tables: Names of all tables.
        first: Number of the first watcher: each watches other tables.
        watchers: How many.
        tables_each: How many tables each names; 0: none, which is all.
        always: A table that each names besides; empty: none.
    """

    address: str
    tables: Sequence[str]
    first: int = 0
    watchers: int = 0
    tables_each: int = 5
    always: str = ""


@dataclass(slots=True)
class Heard:
    """What a crowd has met since it was asked last.

    Attributes:
        late_ms: How late each message was.
        call_ms: How long each call took.
        failed: Streams and calls that ended in an error.
        last_s: When the last message came, unix seconds.
    """

    late_ms: list[float] = field(default_factory=list)
    call_ms: list[float] = field(default_factory=list)
    failed: int = 0
    last_s: float = 0.0

    def add(self, other: "Heard") -> None:
        """Take in what another crowd has met."""
        self.late_ms += other.late_ms
        self.call_ms += other.call_ms
        self.failed += other.failed
        self.last_s = max(self.last_s, other.last_s)


class Crowds:
    """Several crowds, seen from the process that has started them."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def take(self) -> Heard:
        """Return what they have met since the last time."""
        return self._ask(("take",))

    def call(self, seconds: float, per_second: float) -> Heard:
        """Let them ask for snapshots at a pace, all together, and return what they have met."""
        return self._ask(("call", seconds, per_second / len(self._pipes)))

    def churn(self, count: int) -> Heard:
        """Let them make so many calls that differ, all together, and return what they have met."""
        return self._ask(("churn", count // len(self._pipes)))

    def _ask(self, words: tuple[Any, ...]) -> Heard:
        for pipe in self._pipes:
            pipe.send(words)
        total = Heard()
        for pipe in self._pipes:
            total.add(pipe.recv())
        return total


@contextmanager
def crowds(parts: Sequence[Crowd]) -> Iterator[Crowds]:
    """Start a process for each; yield when all watchers have had the first message about each of their tables."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for part in parts:
            ours, theirs = context.Pipe()
            process = context.Process(target=_live, args=(part, theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        found = Crowds(pipes)
        if found.take().failed:
            raise RuntimeError("watchers were refused")
        yield found
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(END_LIMIT_S)
            process.kill()


def _live(crowd: Crowd, pipe: Connection) -> None:
    asyncio.run(_Client(crowd, pipe).run())


class _Client:
    """A process of watchers and callers."""

    def __init__(self, crowd: Crowd, pipe: Connection) -> None:
        self._crowd = crowd
        self._pipe = pipe
        self._heard = Heard()
        self._rng = random.Random(crowd.first)
        self._number = 0

    async def run(self) -> None:
        """Watch, and do as is asked until nobody asks any more."""
        channels = [self._open() for _ in range(1 + self._crowd.watchers // CALLS_A_CHANNEL)]
        stubs = [snapshot_pb2_grpc.SnapshotServiceStub(channel) for channel in channels]
        watching: list[asyncio.Task[None]] = []
        while len(watching) < self._crowd.watchers:
            ready = [asyncio.Event() for _ in range(min(WAVE, self._crowd.watchers - len(watching)))]
            watching += [
                asyncio.create_task(self._watch(stubs[(len(watching) + each) % len(stubs)], event))
                for each, event in enumerate(ready)
            ]
            await asyncio.gather(*(event.wait() for event in ready))
        try:
            while True:
                what, *numbers = await asyncio.to_thread(self._pipe.recv)
                if what == "call":
                    await self._call(stubs[-1], *numbers)
                elif what == "churn":
                    await self._churn(stubs[-1], *numbers)
                found, self._heard = self._heard, Heard()
                self._pipe.send(found)
        except (EOFError, OSError):
            for task in watching:
                task.cancel()
            for channel in channels:
                await channel.close()

    def _open(self) -> Any:
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
        return grpc.aio.insecure_channel(self._crowd.address, options=options)

    async def _watch(self, stub: Any, ready: asyncio.Event) -> None:
        crowd = self._crowd
        names = set(self._rng.sample(crowd.tables, min(crowd.tables_each, len(crowd.tables))))
        names |= {crowd.always} if crowd.always else set()
        waits_for = len(names) or len(crowd.tables)
        try:
            async for event in stub.WatchSnapshots(pb.WatchSnapshotsRequest(tables=sorted(names))):
                if waits_for:
                    waits_for -= 1
                    if not waits_for:
                        ready.set()
                    continue
                self._heard.last_s = time.time()
                self._heard.late_ms.append(1000 * self._heard.last_s - event.last_commit_ms)
        except grpc.RpcError:
            self._heard.failed += 1
            ready.set()

    async def _call(self, stub: Any, seconds: float, per_second: float) -> None:
        begin_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(int(seconds * per_second)):
                await asyncio.sleep(max(0.0, begin_s + number / per_second - time.monotonic()))
                group.create_task(self._ask(stub))

    async def _churn(self, stub: Any, count: int) -> None:
        waiting = iter(range(count))

        async def work() -> None:
            for _ in waiting:
                try:
                    await self._ask_otherwise(stub, self._rng.choice(self._crowd.tables))
                except grpc.RpcError:
                    self._heard.failed += 1

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def _ask_otherwise(self, stub: Any, table: str) -> None:
        """Make a call, or open a stream, unlike those before."""
        self._number += 1
        match self._number % 6:
            case 0:
                await stub.GetSnapshot(pb.GetSnapshotRequest(table=table, where=f"n > {self._number}"))
            case 1:
                await stub.GetSnapshot(pb.GetSnapshotRequest(table=table, as_of_ms=_now_ms() - self._number))
            case 2:
                known = await stub.GetSnapshot(pb.GetSnapshotRequest(table=table, columnar=True))
                since = pb.GetSnapshotRequest(table=table, since_snapshot_id=known.snapshot_id)
                await stub.GetSnapshot(since)
            case 3:
                async for _ in stub.GetChanges(pb.GetChangesRequest(table=table, from_ms=_now_ms() - 1000)):
                    pass
            case 4:
                await stub.ListTables(pb.ListTablesRequest(glob=f"t*{self._number}"))
            case _:
                watching = stub.WatchSnapshots(pb.WatchSnapshotsRequest(tables=[table]))
                await watching.read()
                watching.cancel()

    async def _ask(self, stub: Any) -> None:
        begin_s = time.monotonic()
        try:
            await stub.GetSnapshot(pb.GetSnapshotRequest(table=self._rng.choice(self._crowd.tables)))
        except grpc.RpcError:
            self._heard.failed += 1
        else:
            self._heard.call_ms.append(1000 * (time.monotonic() - begin_s))


def _now_ms() -> int:
    return int(1000 * time.time())
