"""One table on a store in memory, with every actor a method: the shortest way to a real history in a test."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from icedb_log.changes.partition_removal import RemovalResult, remove_partitions
from icedb_log.changes.row_changes import ChangeResult, delete_rows, rewrite_partitions
from icedb_log.clean.orphans import OrphanPolicy, OrphanResult, sweep_orphans
from icedb_log.clean.vacuum import VacuumResult, vacuum_table
from icedb_log.clock import Clock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import IceDBError
from icedb_log.ingest.flush import FlushLimits, FlushResult, flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.fold import Snapshot, fold
from icedb_log.log.reader import LogReader
from icedb_log.log.requests import ChangeRequestId
from icedb_log.merge.merge import MergeResult, merge_table
from icedb_log.merge.merge_plan import MergeLimits, MergeOptions
from icedb_log.model import LogView
from icedb_log.repair.rebuild import RebuildResult, rebuild_table
from icedb_log.repair.rebuild_plan import RebuildOptions
from icedb_log.serving.status import TableStatus, read_status
from icedb_log.store.object_store import ObjectStore, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.partitions import PartitionMatcher, parse_partition_filters, select_partitions
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.warehouse import Warehouse

from icedb_sim.fakes.fake_clock import DEFAULT_START_MS, FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Crash, Effect, ScriptedStore
from icedb_sim.tables.row_files import Row, RowFileChanger, RowFileMerger, RowFileWriter, encode_rows, read_live_rows
from icedb_sim.tables.row_footers import RowFooterReader

ANY_SHARE = OrphanPolicy(max_share=1.0)
"""Small tables have few files: what one crash leaves is often most of their bytes."""

DEFAULTS: dict[str, Any] = {
    "partition": (PartitionField(name="p", column="p"),),
    "sort": ("id",),
    "evolution": "add_columns",
    "on_bad_rows": "quarantine_batch",
    "target_file_bytes": 4096,
    "merge_fan_in": 2,
    "data_grace_ms": 60_000,
    "log_grace_ms": 20_000,
    "orphan_age_ms": 200_000,
    "seal_age_ms": 100_000,
}


class SmallTable(TableStore):
    """A table ``<root>/<name>`` with small limits. After each step one millisecond passes.

    Args:
        store: Another store than one in memory.
        name: Name of the table.
        root: Of the warehouse.
        start_ms: Where the wall clock begins, unix ms.
        has_footers: Whether data files say in a footer who wrote them, from what.
        config: Fields of the configuration that differ from :data:`DEFAULTS`.
    """

    def __init__(
        self,
        *,
        store: ObjectStore | None = None,
        name: str = "t",
        root: str = "wh",
        start_ms: int = DEFAULT_START_MS,
        has_footers: bool = False,
        **config: Any,
    ) -> None:
        self.clock = FakeClock(start_ms)
        self._has_footers = has_footers
        self.store: ScriptedStore = ScriptedStore(store or MemoryObjectStore(self.clock.now_ms))
        self.paths = Warehouse(self.store, root).first(name).paths
        self.config = TableConfig.create(name=name, **{**DEFAULTS, **config})
        create_table(self, self.config)

    def opened(self, owner: str = "", *, clock: Clock | None = None, reader: LogReader | None = None) -> Table:
        """Open the table as an operation takes it: reads the configuration."""
        return Table.open(self, clock=clock or self.clock, owner=owner, reader=reader or self.reader())

    def known(self, owner: str = "", *, store: ObjectStore | None = None) -> Table:
        """Return the table as an operation takes it, without a look at the store."""
        return Table.of(self.config, TableStore(store or self.store, self.paths), clock=self.clock, owner=owner)

    def stage(self, rows: Sequence[Row], *, batch_id: str | None = None) -> str:
        """Stage a batch and return its id."""
        return self.stage_bytes(encode_rows(rows), batch_id=batch_id)

    def stage_bytes(self, body: bytes, *, batch_id: str | None = None) -> str:
        """Stage a batch from its bytes and return its id."""
        batch_id = batch_id or new_batch_id(self.clock)
        stage_batch(self, body=body, staging_format="ndjson", batch_id=batch_id)
        self.clock.advance(1)
        return batch_id

    def flush(self, *, limits: FlushLimits | None = None, writer: RowFileWriter | None = None) -> FlushResult:
        """Flush once."""
        writer = writer or RowFileWriter(self.store, self.clock, self._has_footers)
        result = flush_table(
            self.opened("flush"),
            writer,
            limits=limits,
        )
        self.clock.advance(1)
        return result

    def append(self, *ids: int, p: str = "a") -> FlushResult:
        """Stage one batch with a row for each id, and flush it."""
        self.stage([{"id": number, "p": p} for number in ids])
        return self.flush()

    def merge(
        self, *, full: bool = False, limits: MergeLimits | None = None, merger: RowFileMerger | None = None
    ) -> MergeResult:
        """Merge once."""
        merger = merger or RowFileMerger(self.store, self.clock, self._has_footers)
        result = merge_table(
            self.opened("merge"),
            merger,
            options=MergeOptions(full=full, limits=limits),
        )
        self.clock.advance(1)
        return result

    def delete(
        self,
        condition: str,
        *,
        dry_run: bool = False,
        changer: RowFileChanger | None = None,
        request: ChangeRequestId | None = None,
    ) -> ChangeResult:
        """Delete rows once."""
        result = delete_rows(
            self.opened("delete"),
            changer or RowFileChanger(self.store, self.clock, self._has_footers),
            condition,
            dry_run=dry_run,
            request=request,
        )
        self.clock.advance(1)
        return result

    def rewrite(
        self,
        query: str,
        *filters: str,
        dry_run: bool = False,
        changer: RowFileChanger | None = None,
        request: ChangeRequestId | None = None,
    ) -> ChangeResult:
        """Rewrite partitions once; ``filters`` as :func:`parse_partition_filters` takes them."""
        result = rewrite_partitions(
            self.opened("rewrite"),
            changer or RowFileChanger(self.store, self.clock, self._has_footers),
            query,
            matches=PartitionMatcher(parse_partition_filters(filters), self.config),
            dry_run=dry_run,
            request=request,
        )
        self.clock.advance(1)
        return result

    def drop(self, *globs: str, dry_run: bool = False, may_match_all: bool = True) -> RemovalResult:
        """Remove partitions once."""
        result = remove_partitions(
            self.opened("drop"),
            lambda _, infos: select_partitions(
                self.paths.name, globs, [info.path for info in infos], may_match_all=may_match_all
            ),
            dry_run=dry_run,
        )
        self.clock.advance(1)
        return result

    def vacuum(self, *, dry_run: bool = False) -> VacuumResult:
        """Vacuum once."""
        result = vacuum_table(Table.open(self, clock=self.clock, reader=self.reader()), dry_run=dry_run)
        self.clock.advance(1)
        return result

    def sweep(self, *, dry_run: bool = False, policy: OrphanPolicy = ANY_SHARE) -> OrphanResult:
        """Sweep orphans once, whatever their share."""
        return sweep_orphans(Table.open(self, clock=self.clock, reader=self.reader()), dry_run=dry_run, policy=policy)

    def rebuild(self, **options: Any) -> RebuildResult:
        """Rebuild the log from footers once."""
        footers = RowFooterReader(self.store)
        result = rebuild_table(self.opened("rebuild"), footers=footers, options=RebuildOptions(**options))
        self.clock.advance(1)
        return result

    def status(self) -> TableStatus:
        """Read the figures."""
        return read_status(self.opened())

    def reader(self, *, page_size: int = 1000) -> LogReader:
        """Return a reader without threads, so that calls come in one order."""
        return LogReader(self, clock=self.clock, page_size=page_size, fetch=1)

    def view(self) -> LogView:
        """Read the log."""
        return self.reader().read()

    def snapshot(self, *, as_of_ms: int | None = None) -> Snapshot:
        """Read the log and fold it."""
        return fold(self.view(), as_of_ms=as_of_ms)

    def ids(self, *, as_of_ms: int | None = None) -> list[int]:
        """Return the ids of all live rows, ascending."""
        return sorted(row["id"] for row in read_live_rows(self.store, self.snapshot(as_of_ms=as_of_ms)))

    def keys(self, prefix: str = "") -> list[str]:
        """List keys; ``prefix`` is one of the table's own, e.g. ``table.paths.log_prefix``."""
        return [info.key for info in list_all(self.store, prefix or f"{self.paths.prefix}/").objects]

    def log_objects(self) -> list[tuple[str, bytes]]:
        """Return every object of the log with its bytes."""
        return [(key, self.store.get(key).body) for key in self.keys(f"{self.paths.prefix}/_log")]


def try_each_call(
    make: Callable[[], SmallTable], act: Callable[[SmallTable], object], effect: Effect
) -> list[SmallTable]:
    """Run ``act`` once for each call that it makes on the store, with a fault at that call; return the tables.

    Args:
        make: Builds the same table each time.
        act: What is disturbed; it may raise what the fault leads to.
        effect: The fault.
    """
    table = make()
    table.store.calls.clear()
    act(table)
    call_count = len(table.store.calls)
    tables: list[SmallTable] = []
    for number in range(call_count):
        table = make()
        table.store.calls.clear()
        table.store.fault_at = {number: effect}
        with contextlib.suppress(IceDBError, Crash):
            act(table)
        table.store.fault_at = {}
        table.clock.advance(1)
        tables.append(table)
    return tables


_Table = TypeVar("_Table", bound=SmallTable)


def at_each_call(
    make: Callable[[], _Table],
    act: Callable[[_Table], object],
    rival: Callable[[_Table], object],
    *,
    when: Sequence[str] = ("before",),
    step: int = 1,
) -> Iterator[tuple[_Table, IceDBError | None, str]]:
    """Run ``act`` once for each call that it makes on the store, with a rival at that call.

    Args:
        make: Builds the same table each time.
        act: What is disturbed.
        rival: Acts on the same table.
        when: At each call: ``before``, ``after``.
        step: Every how manieth call.

    Yields:
        The table, what was raised, and where the rival came.
    """
    for moment in when:
        number = 0
        while True:
            table = make()
            table.store.calls.clear()
            was_met = table.store.interrupt(number, partial(rival, table), when=moment)
            error: IceDBError | None = None
            try:
                act(table)
            except IceDBError as failure:
                error = failure
            if not was_met():
                break
            yield table, error, f"{moment} call {number}"
            number += step
