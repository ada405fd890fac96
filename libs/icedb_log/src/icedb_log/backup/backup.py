"""A backup: each table of a warehouse is copied to another one, as it was at one moment, while everything goes on.

Order, for a table: the copy is looked at; a lease (J4); the state is read (:mod:`icedb_log.backup.source`); its data
files are copied, those that are not there yet; the state takes the place of the one before
(:mod:`icedb_log.backup.target`); the copy is checked as ``icedb fsck`` does; data files that nobody names any more go.
A view and its source are copied together, the view first: what it has taken is in what its source says (V2).

Where a backup is brought back, the same is done the other way round. Of what is read nothing is changed but the lease.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Final

from icedb_log.backup.source import SourceState, read_source, renew_pin
from icedb_log.backup.target import FOLDER, CopiedTable
from icedb_log.clean.leases import Lease, acquire_lease, release_lease, renew_lease
from icedb_log.clock import Clock
from icedb_log.errors import (
    BelowHorizon,
    CommitConflict,
    CorruptLog,
    HaltError,
    IceDBError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from icedb_log.feed.views import find_unfed, read_feed_state, read_registration, source_of
from icedb_log.jobs import StagedBatch
from icedb_log.keys import ROLES, TABLE_NAME, log_name
from icedb_log.log.fence import read_landed
from icedb_log.log.fold import MAX_LANDED, drop_known, find_lost, fold
from icedb_log.model import LogHeads
from icedb_log.repair.fsck import fsck_table
from icedb_log.store.object_store import ObjectInfo, ObjectStore, limit_reads, list_all
from icedb_log.table.table import Table
from icedb_log.units import MIB, MINUTE_MS
from icedb_log.warehouse import Warehouse

LEASE_MS: Final = 60 * MINUTE_MS
"""A backup renews its lease long before that; one that was cut off holds dead files for so long."""
COPY_THREADS: Final = 16
MAX_ATTEMPTS: Final = 10
LEASE_ATTEMPTS: Final = 3
_IN_MEMORY_BYTES: Final = 8 * MIB
_MAX_CLOCK_GAP_MS: Final = 10 * MINUTE_MS
"""Clocks of two stores differ by less."""

Progress = Callable[[str, int, int], None]
"""Told of which table how many data files are copied, and of how many."""


@dataclass(frozen=True, slots=True)
class TableBackup:
    """What became of one table.

    Attributes:
        table: Its name.
        problem: Why its copy is not whole, or older; empty: it is.
        point_ms: Everything that was acknowledged by then is in the copy, unix ms by the store's clock.
        row_count: Rows of the state; ``None``: not all files say.
        file_count: Its live data files.
        size_bytes: Bytes of these.
        copied_files: Data files that this run has copied.
        copied_bytes: Bytes of these.
        deleted_files: Data files of earlier states that went from the copy.
        waiting_batches: Accepted batches that are staged in the copy.
    """

    table: str
    problem: str = ""
    point_ms: int = 0
    row_count: int | None = None
    file_count: int = 0
    size_bytes: int = 0
    copied_files: int = 0
    copied_bytes: int = 0
    deleted_files: int = 0
    waiting_batches: int = 0


@dataclass(slots=True)
class _Copying:
    """One table on its way: its source, its copy, and the lease. Saves what its reader finds."""

    table: Table
    copy: CopiedTable
    lease: Lease
    renewed_ms: int
    lock: Lock = field(default_factory=Lock)

    @property
    def point_ms(self) -> int:
        return self.lease.at_ms

    def stay(self) -> None:
        """Renew the lease if it is time (J4). Raises NotFound: it has ended, what it held may be gone."""
        with self.lock:
            now_ms = self.table.clock.monotonic_ms()
            if now_ms - self.renewed_ms > LEASE_MS // 4:
                renew_lease(self.table, self.lease.lease_id, clock=self.table.clock, ttl_ms=LEASE_MS)
                self.renewed_ms = now_ms

    def save_staged(self, batches: tuple[StagedBatch, ...]) -> frozenset[str]:
        """See :class:`~icedb_log.backup.source.Saver`."""
        there = self.copy.list(self.copy.table.paths.staging_prefix)
        new = [each for each in batches if self.copy.record.staged.get(each.key) not in there]
        return self._each(new, lambda batch: self.copy.put_aside(batch.key, self.table.store.get(batch.key).body))

    def save_beside(self, infos: Iterable[ObjectInfo]) -> frozenset[str]:
        """See :class:`~icedb_log.backup.source.Saver`."""
        paths = self.table.paths
        prefixes = (paths.quarantine_prefix, paths.damaged_prefix, paths.idempotency_prefix)
        there = {key: info for prefix in prefixes for key, info in self.copy.list(prefix).items()}
        new = [info for info in infos if not _is_copied(info, there.get(info.key))]
        return self._each(new, lambda info: _copy(self.table.store, self.copy.table.store, info.key, info.size_bytes))

    def _each(self, wanted: Sequence[ObjectInfo | StagedBatch], act: Callable[..., object]) -> frozenset[str]:
        """Act on each of some objects; return the keys of those that were not there any more."""

        def try_one(each: ObjectInfo | StagedBatch) -> str | None:
            try:
                act(each)
            except NotFound:
                return each.key
            return None

        with _threads(self.table.store) as pool:
            return frozenset(key for key in pool.map(try_one, wanted) if key is not None)

    def copy_data(self, state: SourceState, progress: Progress) -> tuple[int, int]:
        """Copy the data files that are not there yet; return how many, and their bytes."""
        live = {marker.path: marker.size_bytes for marker in state.snapshot.live}
        there = self.copy.list(self.copy.table.paths.data_prefix)
        wanted = [
            path
            for path in state.data_files()
            if path not in there or there[path].size_bytes != live.get(path, there[path].size_bytes)
        ]
        # Dead ones first: of those that had died before the lease nobody knows how long they are there.
        wanted.sort(key=lambda path: (path in live, path))
        done = copied_bytes = 0

        def copy_one(path: str) -> int:
            self.stay()
            try:
                return _copy(self.table.store, self.copy.table.store, path, live.get(path, _IN_MEMORY_BYTES + 1))
            except NotFound as error:
                if path not in live and path not in state.pinned:
                    raise CommitConflict(f"{path}: is gone, and the log files that named it") from error
                raise CorruptLog(
                    f"table {self.table.name}: the data file {path} is not there; `icedb fsck {self.table.name}`"
                ) from error

        with _threads(self.table.store) as pool:
            for size_bytes in pool.map(copy_one, wanted):
                done += 1
                copied_bytes += size_bytes
                progress(self.table.name, done, len(wanted))
        return done, copied_bytes

    def require_grown(self, state: SourceState) -> None:
        """Refuse a source that lacks what its copy has: commits are not taken back, and fences remember them (F5).

        Where the newest objects were lost, fences among them, nothing in the source tells, and its log grows again.

        Raises:
            CorruptLog: The copy is left as it is.
        """
        name = self.table.name
        if self.copy.record.log and not state.log:
            raise CorruptLog(
                f"table {name}: its log is empty, though it had commits: its copy is left as it is. See "
                f"`icedb fsck {name}`; docs/backup.md says how the table is brought back"
            )
        copied = {role: read_landed(self.copy.table, role) for role in ROLES}
        missing = {*find_lost(chain(*copied.values()), state.view)}
        for role, landed in copied.items():
            known = read_landed(self.table, role)
            if len(known) < MAX_LANDED:  # then it has forgotten nothing, whatever merges and the janitor did since
                missing |= drop_known({*landed} - {*known}, state.view)
        if missing:
            raise CorruptLog(
                f"table {name}: it knows nothing of {len(missing)} commits in its copy, the first is {min(missing)}: "
                "its newest objects were lost, or it was set back to an earlier time. Its copy is left as it is; bring "
                "the table back from there, or back up to an empty place (docs/backup.md)"
            )

    def prepare(self, state: SourceState) -> int:
        """Write down the state that the copy is to switch to; return how many batches wait in it."""
        copy, paths = self.copy, self.table.paths
        now_ms, target_ms = self.table.read_store_clock(), copy.table.read_store_clock()
        staged = {batch.key: copy.record.staged.get(batch.key, "") for batch in state.waiting}
        beside = (key for prefix in (paths.quarantine_prefix, paths.idempotency_prefix) for key in copy.list(prefix))
        pins = {key: renew_pin(stored, now_ms=now_ms, claimed_ms=target_ms) for key, stored in state.pins.items()}
        copy.prepare(
            log=state.log,
            records=dict(state.records) | pins,
            deletes=[
                *(key for key in copy.record.staged.values() if key and key not in staged.values()),
                *(key for key in beside if key not in state.beside),
            ],
            staged=staged,
            point_ms=self.point_ms,
            incarnation=self.table.config.incarnation,
        )
        return len(staged)

    def check(self, state: SourceState) -> None:
        """Prove that the copy is whole. Raises CorruptLog: it is not."""
        copy, name = self.copy.table, self.table.name
        report = fsck_table(copy, clock=self.table.clock)
        found = fold(Table.open(copy, clock=self.table.clock).read_log())
        errors = [each for each in report.findings if each.severity == "error"]
        if errors or found.snapshot_id != state.snapshot.snapshot_id:
            what = f"{errors[0].code}: {errors[0].key}" if errors else "it has other data files"
            raise CorruptLog(f"table {name}: its copy is not whole ({what}); run the backup again, `icedb fsck` there")

    def delete_unnamed(self, state: SourceState) -> int:
        """Delete the data files of the copy that nobody names any more; return how many."""
        unnamed = self.copy.list(self.copy.table.paths.data_prefix).keys() - state.data_files()
        self.copy.delete(sorted(unnamed))
        return len(unnamed)


def backup_warehouse(
    source: Warehouse,
    target: Warehouse,
    *,
    source_url: str,
    clock: Clock,
    tables: Sequence[str] = (),
    progress: Progress = lambda *_: None,
) -> Iterator[TableBackup]:
    """Copy tables to another warehouse; yield what became of each. Run again, it copies what has changed since.

    A table that cannot be copied keeps the copy that it has, and the others go on. Tables that are dropped are left as
    they were last copied.

    Args:
        source: Where the tables are.
        target: Where their copies are, under the same keys.
        source_url: How the source is called, in the records of the copy.
        clock: This host's clock.
        tables: Only these, and the views and sources that belong to them; by default all.
        progress: Told now and then what is being done.

    Raises:
        InvalidRequest: Source and target have other prefixes.
        NotFound: There is no such table.
        UnsupportedFormat: The target ignores conditional writes.
        Unavailable: A store did not answer.
    """
    if source.root != target.root:
        raise InvalidRequest(
            f"the keys of a table hold its prefix: the target has the prefix {target.root!r}, and needs {source.root!r}"
        )
    target.store.probe()
    for name in _copied_names(source):  # a copy that is brought back, and whose last run was cut off
        CopiedTable(source, name, source="", clock=clock).finish_switch()
    for group in _find_groups(source, tables, clock=clock):
        try:
            yield from _backup_group(source, target, group, source_url=source_url, clock=clock, progress=progress)
        except IceDBError as error:
            yield from (TableBackup(name, str(error)) for name in group)


def _backup_group(
    source: Warehouse,
    target: Warehouse,
    names: Sequence[str],
    *,
    source_url: str,
    clock: Clock,
    progress: Progress,
) -> list[TableBackup]:
    opened = [Table.open(source.table(name), clock=clock, owner="icedb backup") for name in names]
    copies = [CopiedTable(target, name, source=source_url, clock=clock) for name in names]
    for table, copy in zip(opened, copies, strict=True):
        copy.finish_switch()
        copy.open(incarnation=table.config.incarnation)
        copy.save(state="whole" if copy.record.state == "whole" else "copying")  # whoever else writes to it stops
    with ExitStack() as stack:
        held = [
            _Copying(table, copy, stack.enter_context(_hold(table)), clock.monotonic_ms())
            for table, copy in zip(opened, copies, strict=True)
        ]
        states, copied = _copy_group(held, progress)
        for each, state in zip(held, states, strict=True):
            each.require_grown(state)
        waiting = [each.prepare(state) for each, state in zip(held, states, strict=True)]
        for each in held:
            each.copy.finish_switch()
    for each, state in zip(held, states, strict=True):
        each.check(state)
    return [
        TableBackup(
            each.table.name,
            point_ms=each.point_ms,
            row_count=state.snapshot.live.row_count,
            file_count=len(state.snapshot.live),
            size_bytes=state.snapshot.size_bytes,
            copied_files=file_count,
            copied_bytes=copied_bytes,
            deleted_files=each.delete_unnamed(state),
            waiting_batches=batch_count,
        )
        for each, state, (file_count, copied_bytes), batch_count in zip(held, states, copied, waiting, strict=True)
    ]


@contextmanager
def _hold(table: Table) -> Iterator[Lease]:
    """Hold a table as it is now, and at any time since (J4)."""
    for attempt in range(LEASE_ATTEMPTS):
        try:
            lease = acquire_lease(table, ttl_ms=LEASE_MS, holder=table.owner)
            break
        except BelowHorizon:  # its log took longer to read than it keeps its dead: now is later by now
            if attempt + 1 == LEASE_ATTEMPTS:
                raise
    try:
        yield lease
    finally:
        release_lease(table, lease.lease_id)


def _copy_group(held: Sequence[_Copying], progress: Progress) -> tuple[list[SourceState], list[tuple[int, int]]]:
    """Read the states of some tables, and copy their data files; return how many each, and their bytes.

    A file that had died before the lease may go meanwhile, with the log files that name it: they are read again then.
    """
    for _ in range(MAX_ATTEMPTS):
        states = _read_group(held)
        try:
            return states, [each.copy_data(state, progress) for each, state in zip(held, states, strict=True)]
        except CommitConflict:
            continue
    raise Unavailable(f"table {held[-1].table.name}: dead files went under each of {MAX_ATTEMPTS} reads; run it again")


def _read_group(held: Sequence[_Copying]) -> list[SourceState]:
    """Read the states of a source and its views, so that no commit is missing that a view has still to take (V4).

    WARN: the views first. The other way round: a view takes a commit that its source's log, as it was read, does not
    have; in the copy the batch is committed once more, and the view takes it again.
    """
    sources = [each.table for each in held if any(other.table.config.view_of == each.table.name for other in held)]
    for _ in range(MAX_ATTEMPTS):
        before = {table.name: table.read_heads() for table in sources}
        states = {each.table.name: read_source(each.table, point_ms=each.point_ms, saver=each) for each in held}
        views = [each.table for each in held if each.table.config.view_of in before]
        if not any(_misses_commit(view, before, states) for view in views):
            return [states[each.table.name] for each in held]
    raise Unavailable(
        f"table {held[-1].table.name}: its views and its log changed under each of {MAX_ATTEMPTS} reads; run it again"
    )


def _misses_commit(view: Table, before: Mapping[str, LogHeads], states: Mapping[str, SourceState]) -> bool:
    """Whether a commit has gone from a source that its view, as it was read, had not taken: it took it just then."""
    source = source_of(view, view.config)
    registration = read_registration(source, view.name)
    if registration is None:
        return False
    taken = read_feed_state(states[view.name].view).names
    kept = {log_name(file.key) for file in states[source.name].view.files}
    return not kept.issuperset(find_unfed(before[source.name].files, registration, taken))


def _find_groups(source: Warehouse, tables: Sequence[str], *, clock: Clock) -> list[list[str]]:
    """Return which tables are copied together: a source and its views, the views first. Raises NotFound."""
    names = source.list_tables()
    missing = [name for name in tables if name not in names]
    if missing:
        raise NotFound(f"table {missing[0]!r} does not exist; see `icedb table list`")
    view_of = {}
    for name in names:
        with suppress(HaltError):  # a table whose configuration is damaged says so when it is copied
            view_of[name] = Table.open(source.table(name), clock=clock).config.view_of
    groups: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name in names:
        top, depth = name, 0
        while (above := view_of.get(top)) in names and depth < len(names):
            top, depth = str(above), depth + 1
        groups[top].append((-depth, name))
    wanted = set(tables) or set(names)
    ordered = ([name for _, name in sorted(group)] for group in groups.values())
    return [group for group in ordered if wanted.intersection(group)]


def _copied_names(warehouse: Warehouse) -> list[str]:
    """Return the tables of which a warehouse has a copy that a backup made."""
    prefix = f"{warehouse.root}/{FOLDER}/" if warehouse.root else f"{FOLDER}/"
    names = (info.key.removeprefix(prefix).removesuffix(".json") for info in list_all(warehouse.store, prefix).objects)
    return [name for name in names if TABLE_NAME.fullmatch(name)]


def _is_copied(info: ObjectInfo, found: ObjectInfo | None) -> bool:
    """Whether an object is in the copy as it is: of the same size, and written there certainly after it was written."""
    return (
        found is not None
        and found.size_bytes == info.size_bytes
        and found.modified_ms > info.modified_ms + _MAX_CLOCK_GAP_MS
    )


@contextmanager
def _threads(store: ObjectStore) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(limit_reads(store, COPY_THREADS), "icedb-backup") as pool:
        yield pool


def _copy(source: ObjectStore, target: ObjectStore, key: str, size_bytes: int) -> int:
    """Copy one object under its key; return its size. Raises NotFound."""
    if size_bytes <= _IN_MEMORY_BYTES:
        body = source.get(key).body
        target.put(key, body)
        return len(body)
    with tempfile.TemporaryDirectory(prefix="icedb-backup-") as folder:
        path = Path(folder) / "object"
        source.download(key, path)
        return target.upload(key, path, may_move=True).size_bytes
