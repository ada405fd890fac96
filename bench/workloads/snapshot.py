"""W=snapshot: which data files are live. Warm, after a commit, cold, and in how much memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from icedb_log.keys import TablePaths
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings

from bench.callers import AnyCaller, CallerPool, CallersSystem, running_callers
from bench.figures import OURS
from bench.harness import Case, Options, System, Workload
from bench.processes import ProcessWork, Remote, started
from bench.serve import Peer
from bench.servers import KEY, delta_options, iceberg_options
from bench.slow_s3 import running_slow_s3
from bench.snapshot_callers import ClientCaller, EmbeddedCaller, StubCaller, uri_of
from bench.snapshot_service import running_service
from bench.snapshot_systems import (
    ColdBound,
    ColdIceDB,
    ColdSequential,
    EmbeddedRefresh,
    IceDBRefresh,
    RestartedService,
    ServiceMemory,
)
from bench.snapshot_tables import TABLE, build_icedb
from bench.snapshot_work import File, Shape

CALLERS: Final = (1, 8)
PEERS: Final = "bench.peers.snapshot"
CATALOG: Final = "bench.peers.snapshot_iceberg:IcebergCatalog"
DAY: Final = File(4).day
EVENT: Final = "event-03"
WHERE: Final = f"ts >= TIMESTAMP '{DAY} 00:00:00' AND ts < TIMESTAMP '{DAY} 23:59:59' AND event = '{EVENT}'"
ICEBERG_WHERE: Final = f"ts >= '{DAY}T00:00:00' and ts <= '{DAY}T23:59:59' and event = '{EVENT}'"
MERGED_COMMITS: Final = 50
"""Commits whose log files the merger has folded into one, where it ran."""
DELTA_BEHIND: Final = 50
"""Commits since the last checkpoint: half of what there is between two."""
PATIENCE_S: Final = 6.0
"""A system whose turns have taken so long has had enough of them."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large everything is.

    Attributes:
        warm: Live data files of the tables that are asked for again and again.
        seconds: How long callers call in a turn.
        cold: The tables that are opened cold.
        memory: The table that is held in memory.
        warm_commits: Commits of each warm table.
        latency_ms: What each request to the S3 server waits.
        iceberg_files: Above it PyIceberg is left out where 8 callers call.
    """

    warm: tuple[int, ...]
    seconds: float
    cold: tuple[Shape, ...]
    memory: Shape
    warm_commits: int = 100
    latency_ms: int = 15
    iceberg_files: int = 10_000


FULL: Final = Sizes((100, 10_000, 100_000), 0.8, (Shape(10_000, 2_000), Shape(4_750, 950)), Shape(1_000_000, 1_000))
QUICK: Final = Sizes((100, 10_000), 0.3, (Shape(1_000, 200),), Shape(100_000, 1_000))


class SnapshotWorkload(Workload):
    """Tables of several sizes, made when their case is asked for."""

    description = "which data files are live, by the real service and by libraries in the callers, two cores"

    def __init__(self, folder: Path, options: Options) -> None:
        super().__init__(folder, options)
        self.sizes = QUICK if options.is_quick else FULL

    def cases(self) -> Iterable[Case]:
        """Make one case after the other ready."""
        with running_callers(max(CALLERS)) as pool:
            for file_count in self.sizes.warm:
                yield from self._warm(pool, file_count)
        for shape in self.sizes.cold:
            yield from self._cold(shape)
        yield from self._memory()

    def _warm(self, pool: CallerPool, file_count: int) -> Iterator[Case]:
        names = {count: f"warm, {file_count:,} files, {count} caller{'s' * (count > 1)}" for count in CALLERS}
        pruned = f"warm with filters, {file_count:,} files, 1 caller"
        refresh = f"after a commit, {file_count:,} files, 1 caller"
        if not any(map(self.wants, (*names.values(), pruned, refresh))):
            return
        tables = Tables(self.folder / f"warm-{file_count}", Shape(file_count, self.sizes.warm_commits))
        with running_service(StoreSettings(uri_of(tables.icedb)), tables.folder) as service:
            for count, name in names.items():
                if self.wants(name):
                    callers = _warm_callers(service.address, tables, is_alone=count == 1)
                    if count > 1 and file_count > self.sizes.iceberg_files:
                        callers = [caller for caller in callers if caller.name != "pyiceberg"]
                    yield self._calls(name, callers, pool, count=count, file_count=file_count)
            if self.wants(pruned):
                yield from self._pruned(pruned, service.address, tables, pool)
            if self.wants(refresh):
                more = {"file_count": file_count, "commit_count": tables.shape.commit_count}
                with started(Peer(f"{PEERS}:DeltaRefresh", tables.delta, **more)) as delta:
                    systems: list[System] = [
                        IceDBRefresh(service.address, tables.icedb),
                        EmbeddedRefresh(service.address, tables.icedb),
                        IceDBRefresh(service.address, tables.icedb, is_kept=True),
                        IceDBRefresh(service.address, tables.icedb, is_kept=True, is_known=True),
                        *delta,
                    ]
                    yield Case(
                        name=refresh, row_count=1, systems=systems, unit="calls", is_timed=False, patience_s=PATIENCE_S
                    )

    def _calls(self, name: str, callers: Sequence[AnyCaller], pool: CallerPool, *, count: int, file_count: int) -> Case:
        systems: list[System] = [
            CallersSystem(caller, pool=pool, count=count, seconds=self.sizes.seconds, file_count=file_count)
            for caller in callers
        ]
        return Case(
            name=name,
            row_count=1,
            systems=systems,
            warm_turn_count=0,
            unit="calls",
            is_timed=False,
            patience_s=PATIENCE_S,
        )

    def _pruned(self, name: str, address: str, tables: "Tables", pool: CallerPool) -> Iterator[Case]:
        of_day = [File(number) for number in range(tables.shape.file_count) if File(number).day == DAY]
        of_where = [file for file in of_day if file.bounds["event"][0] == EVENT]
        by_day: list[AnyCaller] = [
            StubCaller(address, day=DAY),
            EmbeddedCaller(uri_of(tables.icedb), day=DAY),
            _delta(tables, name="delta-rs", day=DAY),
            _delta(tables, name="delta-rs, kept open", day=DAY, is_kept_open=True),
        ]
        by_where: list[AnyCaller] = [
            StubCaller(address, where=WHERE),
            EmbeddedCaller(uri_of(tables.icedb), where=WHERE),
            _iceberg(tables, row_filter=ICEBERG_WHERE),
        ]
        yield self._calls(
            f"{name}, one partition: {len(of_day):,} files", by_day, pool, count=1, file_count=len(of_day)
        )
        yield self._calls(f"{name}, where: {len(of_where):,} files", by_where, pool, count=1, file_count=len(of_where))

    def _cold(self, shape: Shape) -> Iterator[Case]:
        latency_ms = self.sizes.latency_ms
        directory = f"cold, {shape.commit_count:,} commits, {shape.file_count:,} files, a directory"
        bucket = f"cold, {shape.commit_count:,} commits, {shape.file_count:,} files, S3 with {latency_ms} ms a request"
        if not any(map(self.wants, (directory, bucket))):
            return
        root = self.folder / f"cold-{shape.commit_count}"
        tables = Tables(root, shape, is_cold=True)
        if self.wants(directory):
            yield from _opens(directory, root, uri_of(root), None, tables)
        if self.wants(bucket):
            with running_slow_s3(root, self.folder / f"s3-{shape.commit_count}", latency_ms=latency_ms) as endpoint:
                s3 = S3Options(endpoint, access_key_id=KEY, secret_access_key=KEY)
                yield from _opens(bucket, root, "s3:/", s3, tables)

    def _memory(self) -> Iterator[Case]:
        shape = self.sizes.memory
        name = f"memory of the service, {shape.file_count:,} files, all of them sent once"
        if self.wants(name):
            root = self.folder / "memory"
            build_icedb(root, shape, merge_every=MERGED_COMMITS)
            system = ServiceMemory(StoreSettings(uri_of(root)), self.folder / "memory-log", file_count=shape.file_count)
            yield Case(
                name=name,
                row_count=shape.file_count,
                systems=[system],
                warm_turn_count=0,
                unit="files",
                patience_s=PATIENCE_S,
            )


class Tables:
    """The same table in each format, below one folder."""

    def __init__(self, folder: Path, shape: Shape, *, is_cold: bool = False) -> None:
        self.folder, self.shape = folder, shape
        self.icedb, self.delta = folder / "icedb", folder / "delta"
        build_icedb(self.icedb, shape)
        builder = Remote(is_peer=True)
        try:
            builder.take(Peer("bench.peers.snapshot_delta:Builder"))
            builder.ask("build_delta", self.delta, shape, shape.commit_count - (DELTA_BEHIND if is_cold else 0))
            metadata = builder.ask("build_iceberg", folder / "iceberg", shape, f"file://{folder}/iceberg")
            self.iceberg = Peer(CATALOG, folder / "iceberg.db", metadata, {})
            if is_cold:
                build_icedb(folder / "icedb-folded", shape, merge_every=MERGED_COMMITS)
                builder.ask("build_delta", folder / "delta-plain", shape, None)
                builder.ask("build_iceberg", folder / "iceberg-s3", shape, "s3://iceberg-s3")
        finally:
            builder.close()


def _warm_callers(address: str, tables: Tables, *, is_alone: bool) -> list[AnyCaller]:
    more: list[AnyCaller] = [StubCaller(address, "icedb, read now", max_staleness_ms=0), ClientCaller(address)]
    return [
        StubCaller(address),
        EmbeddedCaller(uri_of(tables.icedb)),
        StubCaller(address, "icedb-bytes", is_parsed=False),
        StubCaller(address, "icedb-bytes, columnar", is_parsed=False, is_columnar=True),
        ClientCaller(address, "icedb-client, columnar", is_columnar=True),
        *(more if is_alone else ()),
        _delta(tables, name="delta-rs"),
        _delta(tables, name="delta-rs, kept open", is_kept_open=True),
        _iceberg(tables),
    ]


def _delta(tables: Tables, **options: object) -> Peer:
    return Peer(f"{PEERS}:DeltaCaller", uri_of(tables.delta), **options)


def _iceberg(tables: Tables, **options: object) -> Peer:
    return Peer(f"{PEERS}:IcebergCaller", tables.iceberg, name="pyiceberg", **options)


def _opens(name: str, root: Path, base: str, s3: S3Options | None, tables: Tables) -> Iterator[Case]:
    count, store = tables.shape.file_count, StoreSettings(f"{base}/icedb", s3)
    folded = StoreSettings(f"{base}/icedb-folded", s3)
    endpoint = "" if s3 is None else s3.endpoint_url or ""
    delta, iceberg = (delta_options(endpoint), iceberg_options(endpoint)) if endpoint else ({}, {})
    catalog = tables.iceberg
    if s3 is not None:
        catalog = Peer(CATALOG, root / "iceberg-s3.db", f"{base}/iceberg-s3/metadata/v1.metadata.json", iceberg)
    works: list[ProcessWork | Peer] = [
        ColdIceDB(OURS, count, store),
        ColdIceDB("icedb, log files folded", count, folded),
        RestartedService("icedb, process started", count, store, root / "log"),
        Peer(f"{PEERS}:ColdDelta", "delta-rs, no checkpoint", count, f"{base}/delta-plain", delta),
        Peer(f"{PEERS}:ColdDelta", "delta-rs, checkpoint", count, f"{base}/delta", delta),
        Peer(f"{PEERS}:ColdIceberg", "pyiceberg", count, catalog),
        ColdSequential("sequential reader", count, store, TablePaths(TABLE, TABLE)),
        ColdBound("bound: bytes of the log", tables.shape.commit_count, store, TablePaths(TABLE, TABLE)),
    ]
    with started(*works) as systems:
        yield Case(name=name, row_count=count, systems=systems, unit="files", warm_turn_count=0, patience_s=PATIENCE_S)
