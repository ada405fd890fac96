"""W=growth: whether the cost of a commit and of a snapshot grows with the table, and what a day costs.

Along three axes: live data files, commits, tables. Ours works on a store in memory that counts
(:mod:`bench.growth_tables`); the peers append to tables on the S3 server of development, which counts as well. A day in
the life is simulated: of ours a part of it, or all, with real flushes, merges and vacuums; of peers it is computed from
the requests of their appends, at an append a second, without the compactions that they would need.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from icedb_log.store.object_store import list_all

from bench.counting_s3 import BUCKET, Counts, running_counting_s3, take_all
from bench.door_costs import PER_SECOND, SPARING
from bench.figures import OURS, Figure, TakesTurns
from bench.growth_day import DAY_S, Day, Price, day_figures
from bench.growth_tables import ROWS_PER_BATCH, GrowingTable, Usage, measuring, open_store, read_snapshot
from bench.harness import ONE_TURN_S, Case, Options, Size, System, Workload
from bench.processes import Remote
from bench.serve import Peer
from bench.servers import delta_options, iceberg_options
from bench.vacuum_places import Bucket

COMMITS_A_TURN: Final = 10
AXIS_INTERVAL_MS: Final = 5_000
GROWING_PACE: Final = 20
LAST_COMMITS: Final = 100
"""While a table grows, merges and vacuums come twenty times as seldom as in production (they took four fifths of it),
until these last commits: so it is as large as in production when it is measured."""
PATIENCE_S: Final = 15
"""Most figures are counts, the same in each turn."""
ROWS_A_SECOND: Final = 1_000
"""Of a day in the life: 100 batches of 10 rows."""


@dataclass(frozen=True, slots=True)
class Times:
    """What decides how many batches share a request.

    Attributes:
        linger_ms: How long a front end lets a batch wait for others.
        interval_ms: Between two commits.
    """

    linger_ms: int
    interval_ms: int


DAYS: Final = {OURS: Times(100, 1_000), SPARING: Times(500, 5_000)}
"""Of a day in the life: the defaults, and those of :data:`bench.door_costs.SETTINGS`."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How far each axis goes.

    Attributes:
        files: Live data files.
        commits: Of our table.
        peer_commits: Of the peers' tables.
        tables: Tables in a warehouse.
        day_s: Simulated seconds of a day in the life, by the settings of front ends and workers.
    """

    files: tuple[int, ...]
    commits: tuple[int, ...]
    peer_commits: tuple[int, ...]
    tables: tuple[int, ...]
    day_s: Mapping[str, int]


SIZES: Final[Mapping[Size, Sizes]] = {
    "small": Sizes((1_000, 10_000), (100, 300), (10, 40), (1, 30), {OURS: 300}),
    "middle": Sizes(
        (1_000, 10_000, 100_000), (100, 1_000, 3_000), (30, 100, 300), (1, 30, 300), {OURS: 900, SPARING: 3_600}
    ),
    "full": Sizes(
        (1_000, 10_000, 100_000, 1_000_000),
        (100, 1_000, 10_000, 100_000),
        (100, 200, 500),
        (1, 30, 1_000),
        {OURS: 1_800, SPARING: DAY_S},
    ),
}


class Ours:
    """Ours at one place of an axis: a turn is some commits, a cold snapshot, and one after a commit.

    Args:
        table: That is written.
        grow: Brings it to its size, once.
        tables: All tables of the warehouse, if a sweep over them is measured.
    """

    name = OURS

    def __init__(self, table: GrowingTable, grow: Callable[[], None], tables: Sequence[GrowingTable] = ()) -> None:
        self._table = table
        self._grow: Callable[[], None] | None = grow
        self._tables = tables
        self._usages: dict[str, Usage] = {}

    def prepare(self) -> None:
        """Let the table grow to its size."""
        if self._grow is not None:
            self._grow()
            self._grow = None
            self._table.step(with_upkeep=False)  # a writer that knows the table

    def run(self) -> None:
        """Commit, and look."""
        table, store = self._table, self._table.store
        usages = {name: Usage() for name in ("commit", "cold snapshot", "snapshot after a commit", "idle sweep")}
        before = table.used.pop("flush")
        for _ in range(COMMITS_A_TURN):
            table.step(with_upkeep=False)
        usages["commit"], table.used["flush"] = table.used["flush"], before
        with measuring(store, usages["cold snapshot"]):
            count = read_snapshot(store, table.clock)
            count(table.name)
        for _ in range(COMMITS_A_TURN):
            table.step(with_upkeep=False)
            with measuring(store, usages["snapshot after a commit"]):
                count(table.name)
        if self._tables:
            for each in self._tables:
                each.merge("hot")  # what there is to do; after it a sweep finds nothing
            usages["idle sweep"].calls = 1
            for each in self._tables:
                usages["idle sweep"].add(each.merge("hot"))
        self._usages = {name: usage for name, usage in usages.items() if usage.calls}

    def check(self) -> Sequence[Figure]:
        """Return what each took."""
        return [figure for name, usage in self._usages.items() for figure in _figures(name, usage)]


def _figures(name: str, usage: Usage) -> Iterator[Figure]:
    yield Figure(f"{name}: processor time", "ms", usage.cpu_s / usage.calls * 1000)
    yield Figure(f"{name}: requests", "requests", usage.request_count / usage.calls)
    yield Figure(f"{name}: bytes", "kB", usage.moved_bytes / usage.calls / 1000)


@dataclass(slots=True)
class PeerTable:
    """A table of a peer in a process of its own, which grows from case to case.

    Attributes:
        name: The peer.
        remote: Its process.
        endpoint: The server, which counts.
        commit_count: Appends so far.
        seen: What an append took, by the number of appends before it.
    """

    name: str
    remote: Remote
    endpoint: str
    commit_count: int = 0
    seen: dict[int, Usage] = field(default_factory=dict)

    def at(self, commit_count: int) -> "PeerAt":
        """Return the system that measures it at so many commits."""
        return PeerAt(self, commit_count)

    def append(self, count: int) -> Usage:
        """Append, and return what it took."""
        take_all(self.endpoint)
        cpu_s: float = self.remote.ask("append", count)
        self.commit_count += count
        return _usage(take_all(self.endpoint), cpu_s, calls=count)

    def day(self) -> Day:
        """Return what a day of an append a second would use."""
        objects = list_all(Bucket(self.endpoint).open(), f"{self.name}/").objects
        files = [info.size_bytes for info in objects if "/00000-" in info.key or "/part-" in info.key]
        return Day.of_appends(
            self.seen, commit_count=DAY_S, rows=ROWS_A_SECOND, file_bytes=sum(files) / max(len(files), 1)
        )

    def look(self) -> Usage:
        """Look which files are live, and return what it took."""
        take_all(self.endpoint)
        cpu_s: float = self.remote.ask("look", self.commit_count)
        return _usage(take_all(self.endpoint), cpu_s, calls=1)


class PeerAt:
    """A peer at one place of the axis of commits."""

    def __init__(self, table: PeerTable, at: int) -> None:
        self.name = table.name
        self.table = table
        self.at = at
        self._usages: dict[str, Usage] = {}

    def prepare(self) -> None:
        """Let the table grow."""
        if self.table.commit_count < self.at:
            self.table.append(self.at - self.table.commit_count)

    def run(self) -> None:
        """Commit, and look."""
        begun = self.table.commit_count
        self._usages = {"commit": self.table.append(COMMITS_A_TURN), "cold snapshot": self.table.look()}
        self.table.seen[begun] = self._usages["commit"]

    def check(self) -> Sequence[Figure]:
        """Return what each took."""
        return [figure for name, usage in self._usages.items() for figure in _figures(name, usage)]


def _usage(counts: Counts, cpu_s: float, *, calls: int) -> Usage:
    usage = Usage(sent_bytes=counts.received_bytes, received_bytes=counts.sent_bytes, cpu_s=cpu_s, calls=calls)
    kinds = {"put": "put", "post": "put", "list": "list", "get": "get", "head": "get"}
    for operation, count in counts.operations.items():
        usage.requests[kinds.get(operation, "delete")] += count
    return usage


@dataclass(slots=True)
class DayOf(TakesTurns):
    """A day in the life, as a system: its figures are computed from what was counted."""

    name: str
    compute: Callable[[], Day]
    _day: Day | None = None

    def run(self) -> None:
        """Simulate, or compute."""
        self._day = self.compute()

    def check(self) -> Sequence[Figure]:
        """Return the figures of the day."""
        assert self._day is not None
        return day_figures(self._day, Price())


class GrowthWorkload(Workload):
    """Cases along each axis, then the day."""

    description = (
        "what a commit (ours without the rows, peers with 1,000) and a look at the live files take of processor, "
        f"store and wire, as a table grows; and what a day of 100 batches of {ROWS_PER_BATCH} rows a second costs. "
        "Ours is durable when it is acknowledged; what came to the peers since their last append a "
        "second ago is in their writer's memory"
    )

    def __init__(self, folder: Path, options: Options) -> None:
        super().__init__(folder, options)
        self.sizes = SIZES[options.size]

    def cases(self) -> Iterable[Case]:
        """Make one case after the other ready."""
        for cases in (self._files, self._tables, self._commits_and_day):
            yield from cases()

    def _case(self, name: str, systems: Sequence[System], axis: str, at: int) -> Case:
        return Case(name, 1, systems, warm_turn_count=0, is_timed=False, patience_s=PATIENCE_S, axis=axis, at=at)

    def _files(self) -> Iterator[Case]:
        for count in self.sizes.files:
            name = f"{count:,} data files"
            if self.wants(name):
                store, clock = open_store()
                table = GrowingTable(store, clock, batches_per_commit=1)
                system = Ours(table, partial(table.fill, count))
                yield self._case(name, [system], "data files", count)

    def _tables(self) -> Iterator[Case]:
        for count in self.sizes.tables:
            name = f"{count:,} tables"
            if self.wants(name):
                store, clock = open_store()
                tables = [GrowingTable(store, clock, f"t{number:04d}", batches_per_commit=1) for number in range(count)]

                def grow(tables: Sequence[GrowingTable] = tables) -> None:
                    for table in tables:
                        for _ in range(5):
                            table.step(with_upkeep=False)

                yield self._case(name, [Ours(tables[0], grow, tables)], "tables", count)

    def _commits_and_day(self) -> Iterator[Case]:
        with ExitStack() as stack:
            peers: list[PeerTable] = []
            if self.wants("commits") or self.wants("day"):
                endpoint = stack.enter_context(running_counting_s3(self.folder / "s3"))
                peers = [_open_peer(stack, endpoint, self.folder, name) for name in ("Delta", "Iceberg")]
            store, clock = open_store()
            table = GrowingTable(store, clock, batches_per_commit=1, interval_ms=AXIS_INTERVAL_MS)
            for count in sorted({*self.sizes.commits, *self.sizes.peer_commits}):
                systems: list[System] = [peer.at(count) for peer in peers if count in self.sizes.peer_commits]
                if count in self.sizes.commits:
                    systems.insert(0, Ours(table, partial(_grow_to, table, count)))
                name = f"{count:,} commits"
                if self.wants("commits") or self.wants("day"):
                    yield self._case(name, systems, "commits", count)
            yield from self._day(peers)

    def _day(self, peers: Sequence[PeerTable]) -> Iterator[Case]:
        if not self.wants("a day of 100 batches a second"):
            return
        systems: list[System] = [
            DayOf(name, partial(_live, DAYS[name], seconds)) for name, seconds in self.sizes.day_s.items()
        ]
        systems += [DayOf(peer.name, peer.day) for peer in peers]
        yield Case(
            "a day of 100 batches a second", 1, systems, warm_turn_count=0, is_timed=False, patience_s=ONE_TURN_S
        )


def _grow_to(table: GrowingTable, commit_count: int) -> None:
    while table.commit_count < commit_count:
        table.upkeep_pace = GROWING_PACE if table.commit_count < commit_count - LAST_COMMITS else 1
        table.step()


def _live(times: Times, seconds: int) -> Day:
    store, clock = open_store()
    table = GrowingTable(
        store,
        clock,
        batches_per_commit=PER_SECOND * times.interval_ms // 1000,
        batches_per_object=PER_SECOND * times.linger_ms // 1000,
        interval_ms=times.interval_ms,
    )
    for _ in range(seconds * 1000 // times.interval_ms):
        table.step()
    return Day.of_table(table)


def _open_peer(stack: ExitStack, endpoint: str, folder: Path, kind: str) -> PeerTable:
    remote = Remote(is_peer=True)
    stack.callback(remote.close)
    if kind == "Delta":
        arguments: tuple[Any, ...] = (f"s3://{BUCKET}/delta-rs", delta_options(endpoint))
    else:
        arguments = (folder / "catalog.db", f"s3://{BUCKET}/pyiceberg", iceberg_options(endpoint))
    name = remote.take(Peer(f"bench.peers.growth:{kind}", ROWS_A_SECOND, *arguments))
    return PeerTable(name, remote, endpoint)
