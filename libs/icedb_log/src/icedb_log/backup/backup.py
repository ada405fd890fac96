"""A backup: each table of a warehouse is copied to another one, as it was at one moment, while everything goes on.

A copy is a table: the live data files of one snapshot, one log file that names them, the records that survive, and the
batches that were accepted and not committed. Order, for a table: a lease (J4); the state is read
(:mod:`icedb_log.backup.source`); its data files are copied, those that are not there in their size; the folded log file
is written, which replaces the one before as a merge does (M1), so that one PUT is the switch; the records; what the
copy has besides goes; it is checked as ``icedb fsck`` does.

A view and its source are read together, the view first: what it has taken is in what its source says (V2). The log
files of appends that it has still to take (V4) stay beside the folded one. Bringing a copy back is the same, the other
way round. Of what is read nothing is changed but the lease.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from threading import Lock
from typing import Final

from icedb_log.backup.copy import COPY_THREADS, TableCopy, copy_object
from icedb_log.backup.fold_log import FoldedLog, fold_log
from icedb_log.backup.source import SourceState, read_source
from icedb_log.clock import Clock
from icedb_log.commit.fence import read_landed
from icedb_log.commit.table import Table
from icedb_log.errors import (
    BelowHorizon,
    CommitConflict,
    CorruptLog,
    HaltError,
    IceDBError,
    InvalidRequest,
    NotFound,
    Unavailable,
    crashes_told,
)
from icedb_log.feed.views import find_needed, read_feed_state, read_registration, source_of
from icedb_log.holds.leases import Lease, acquire_lease, release_lease, renew_lease
from icedb_log.keys import ROLES, Role, first_id_of, log_name
from icedb_log.log.codec import encode_log_file
from icedb_log.log.fold import MAX_LANDED, drop_known, find_lost, fold
from icedb_log.log.reader import LogReader
from icedb_log.model import ListedLogFile, LogHeads
from icedb_log.repair.fsck import fsck_table
from icedb_log.store.object_store import limit_reads
from icedb_log.table.table_config import table_not_found
from icedb_log.units import MINUTE_MS, SECOND_MS
from icedb_log.warehouse import Warehouse

LEASE_MS: Final = 60 * MINUTE_MS
"""A backup renews its lease long before that; one that was cut off holds dead files for so long."""
MAX_ATTEMPTS: Final = 10
LEASE_ATTEMPTS: Final = 3
_RECORDS: Final = (
    "fence/",
    "erasures/",
    "imports/",
    "views/",
    "refused/",
    "quarantine/",
    "idempotency/",
    "fields.json",
)
"""What survives beside log and data, below ``_icedb/`` of the table, with its configuration."""

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
    """One table on its way. ``unfed`` are the keys of log files, as they were read, that a view has still to take."""

    table: Table
    copy: TableCopy
    lease: Lease
    renewed_ms: int
    unfed: frozenset[str] = frozenset()
    lock: Lock = field(default_factory=Lock)

    def stay(self) -> None:
        """Renew the lease if it is time (J4). Raises NotFound: it has ended, what it held may be gone."""
        with self.lock:
            now_ms = self.table.clock.monotonic_ms()
            if now_ms - self.renewed_ms > LEASE_MS // 4:
                renew_lease(self.table, self.lease.lease_id, clock=self.table.clock, ttl_ms=LEASE_MS)
                self.renewed_ms = now_ms

    def fold(self, state: SourceState) -> FoldedLog:
        """Return the log that the copy is to have."""
        copy = self.copy
        staged = copy.record.staged
        # A batch that left its group to be staged alone waits under another name.
        waiting = {first_id_of(name) for key, name in staged.items() if key in state.waiting}
        return fold_log(
            self.table.paths,
            state.view,
            state.snapshot,
            unfed=self.unfed,
            before=self._read_copied_log(),
            aliases={key: name for key, name in staged.items() if first_id_of(name) not in waiting},
            commit_id=copy.clock.new_id(),
            now_ms=copy.clock.now_ms(),
        )

    def _read_copied_log(self) -> tuple[ListedLogFile, ...]:
        try:
            return LogReader(self.copy.table, clock=self.copy.clock).read().files
        except HaltError:  # who reads the copy halts, until the new log file has taken the place of what is damaged
            return ()

    def copy_data(self, state: SourceState, folded: FoldedLog, progress: Progress) -> tuple[int, int]:
        """Copy the data files that are not there in their size; return how many, and their bytes."""
        live = {marker.path: marker.size_bytes for marker in state.snapshot.live}
        sizes = {m.path: m.size_bytes for log in folded.logs() for m in log.markers if m.is_live}
        there = self.copy.find(self.copy.table.paths.data_prefix)
        wanted = [
            path for path, size_bytes in sizes.items() if path not in there or there[path].size_bytes != size_bytes
        ]
        wanted.sort(key=lambda path: (path in live, path))  # dead ones first: nothing but a view keeps them
        done = copied_bytes = 0

        def copy_one(path: str) -> int:
            self.stay()
            try:
                return copy_object(self.table.store, self.copy.table.store, path, sizes[path])
            except NotFound as error:
                if path not in live:
                    raise CommitConflict(f"{path}: is gone, and the log file that named it") from error
                raise CorruptLog(
                    f"table {self.table.name}: the data file {path} is not there; `icedb fsck {self.table.name}`"
                ) from error

        with ThreadPoolExecutor(limit_reads(self.table.store, COPY_THREADS), "icedb-backup") as pool:
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
        had_commits = any(file.log.markers or file.log.batch_ids for file in self._read_copied_log())
        if had_commits and all(file.log.is_seal for file in state.view.files):
            raise CorruptLog(
                f"table {name}: its log is empty, though it had commits: its copy is left as it is. See "
                f"`icedb fsck {name}`; docs/backup.md says how the table is brought back"
            )
        copied: dict[Role, tuple[str, ...]] = {}
        with suppress(HaltError):  # of a damaged fence of the copy nothing is known, and it is written anew
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

    def switch(self, state: SourceState, folded: FoldedLog) -> int:
        """Let the copy say what was read; return how many data files went from it."""
        copy, store, paths = self.copy, self.copy.table.store, self.copy.table.paths
        kept = {file.key: encode_log_file(file.log) for file in folded.kept}
        copy.write_record(log=tuple({*copy.record.log, *kept, folded.key}))
        for key, content in kept.items():
            store.put(key, content)
        # WARN: this one PUT is the switch (S1). What was staged and is in this log has its name in the copy in it; the
        # records come after it: an import or an erasure is not called done by a copy that lacks its commit.
        store.put(folded.key, encode_log_file(folded.switch))
        for key in sorted(state.records, key=lambda key: (key == paths.config_key, key)):  # then it is a table
            body = state.records[key]
            if body is not None:
                store.put(key, body)
        old = {key for prefix in _RECORDS for key in copy.find(f"{paths.prefix}/_icedb/{prefix}")}
        copy.delete([*({*copy.record.log} - {*kept, folded.key}), *(old - state.records.keys())])
        store.put(folded.key, encode_log_file(folded.final))  # what it had replaced is gone
        staged = {key: name for key, name in copy.record.staged.items() if key in state.waiting}
        copy.delete({*copy.record.staged.values()} - {*staged.values()})
        unnamed = copy.find(paths.data_prefix).keys() - folded.data_files()
        copy.delete(sorted(unnamed))
        copy.write_record(log=(*kept, folded.key), staged=staged, point_ms=self.lease.at_ms)
        return len(unnamed)

    def check(self, state: SourceState) -> None:
        """Prove that the copy is whole. Raises CorruptLog: it is not."""
        copy, name = self.copy.table, self.table.name
        report = fsck_table(copy, clock=self.table.clock)
        found = fold(Table.open(copy, clock=self.table.clock).read_log())
        errors = [each for each in report.findings if each.severity == "error"]
        if errors or found.snapshot_id != state.snapshot.snapshot_id:
            what = f"{errors[0].code}: {errors[0].key}" if errors else "it has other data files"
            raise CorruptLog(f"table {name}: its copy is not whole ({what}); run the backup again, `icedb fsck` there")


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

    A table that cannot be read or copied keeps the copy that it has, and the others go on. Tables that are dropped are
    left as they were last copied.

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
    for group in _find_groups(source, tables, clock=clock):
        names = group.names
        try:
            if group.error is not None:
                raise group.error
            with crashes_told(f"{', '.join(names)}: a copy"):
                found = _backup_group(source, target, names, source_url=source_url, clock=clock, progress=progress)
        except IceDBError as error:
            found = [TableBackup(name, str(error)) for name in names]
        yield from found


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
    copies = [
        TableCopy(target, table.name, number=table.paths.number, source=source_url, clock=clock) for table in opened
    ]
    for copy in copies:
        copy.open()
    with ExitStack() as stack:
        held = [
            _Copying(table, copy, stack.enter_context(_hold(table)), clock.monotonic_ms())
            for table, copy in zip(opened, copies, strict=True)
        ]
        states, folded, copied = _copy_group(held, progress)
        work = list(zip(held, states, folded, strict=True))
        # The source before its views: a view that is older takes again what it lacks; the other way round rows come
        # twice where a run is cut off in between.
        deleted = [each.switch(state, log) for each, state, log in reversed(work)][::-1]
    for each, state, _ in work:
        each.check(state)
    return [
        TableBackup(
            each.table.name,
            point_ms=each.lease.at_ms,
            row_count=state.snapshot.live.row_count,
            file_count=len(state.snapshot.live),
            size_bytes=state.snapshot.size_bytes,
            copied_files=file_count,
            copied_bytes=copied_bytes,
            deleted_files=deleted_files,
            waiting_batches=len(state.waiting),
        )
        for (each, state, _), (file_count, copied_bytes), deleted_files in zip(work, copied, deleted, strict=True)
    ]


@contextmanager
def _hold(table: Table) -> Iterator[Lease]:
    """Hold a table as it is now, and at any time since (J4)."""
    for attempt in range(LEASE_ATTEMPTS):
        try:
            lease = acquire_lease(table, ttl_ms=LEASE_MS, holder=table.owner)
            break
        except BelowHorizon:  # its log took longer to read than it keeps its dead, or is a copy of this very second
            if attempt + 1 == LEASE_ATTEMPTS:
                raise
            table.clock.sleep_ms(SECOND_MS)
    try:
        yield lease
    finally:
        release_lease(table, lease.lease_id)


def _copy_group(
    held: Sequence[_Copying], progress: Progress
) -> tuple[list[SourceState], list[FoldedLog], list[tuple[int, int]]]:
    """Read the states of some tables, and copy their data files; return states, logs, and how many each, with bytes.

    A dead file that a view had still to take may go meanwhile, with its log file: they are read again then.
    """
    for _ in range(MAX_ATTEMPTS):
        states = _read_group(held)
        for each, state in zip(held, states, strict=True):
            each.require_grown(state)
        folded = [each.fold(state) for each, state in zip(held, states, strict=True)]
        try:
            work = zip(held, states, folded, strict=True)
            return states, folded, [each.copy_data(state, log, progress) for each, state, log in work]
        except CommitConflict:
            continue
    raise Unavailable(f"table {held[-1].table.name}: dead files went under each of {MAX_ATTEMPTS} reads; run it again")


def _read_group(held: Sequence[_Copying]) -> list[SourceState]:
    """Read the states of a source and its views, so that no commit is missing that a view has still to take (V4).

    WARN: the views first. The other way round: a view takes a commit that its source's log, as it was read, does not
    have; in the copy the batch is committed once more, and the view takes it again.
    """
    by_name = {each.table.name: each for each in held}
    views = [each.table for each in held if each.table.config.view_of in by_name]
    sources = [by_name[name].table for name in dict.fromkeys(str(view.config.view_of) for view in views)]
    for _ in range(MAX_ATTEMPTS):
        before = {table.name: table.read_heads() for table in sources}
        states = {each.table.name: read_source(each.table, point_ms=each.lease.at_ms, copy=each.copy) for each in held}
        unfed = [_find_unfed(view, before, states) for view in views]
        if all(keys is not None for keys in unfed):
            for each in held:
                of_views = (
                    keys for keys, view in zip(unfed, views, strict=True) if view.config.view_of == each.table.name
                )
                each.unfed = frozenset().union(*(keys for keys in of_views if keys))
            return [states[each.table.name] for each in held]
    raise Unavailable(
        f"table {held[-1].table.name}: its views and its log changed under each of {MAX_ATTEMPTS} reads; run it again"
    )


def _find_unfed(
    view: Table, before: Mapping[str, LogHeads], states: Mapping[str, SourceState]
) -> frozenset[str] | None:
    """Return the log files of its source that a view, as it was read, has to take.

    ``None``: one of them went from the source meanwhile: the view has just taken it.
    """
    source = source_of(view, view.config)
    registration = read_registration(source, view.name)
    if registration is None:
        return frozenset()
    taken, log = read_feed_state(states[view.name].view), states[source.name].view
    kept = {log_name(file.key) for file in log.files}
    if not kept.issuperset(find_needed(before[source.name].files, registration, taken)):
        return None
    return frozenset(source.paths.named_log_key(name) for name in find_needed(log.files, registration, taken))


@dataclass(frozen=True, slots=True)
class _Group:
    """Tables that are copied together: a source and its views, the views first.

    Attributes:
        names: Of the tables.
        error: Why the configuration of the last one cannot be read: nobody knows whether it is a view, and of what.
    """

    names: Sequence[str]
    error: IceDBError | None


def _find_groups(source: Warehouse, tables: Sequence[str], *, clock: Clock) -> list[_Group]:
    """Return which tables are copied together. Raises NotFound."""
    names = source.list_tables()
    missing = [name for name in tables if name not in names]
    if missing:
        raise table_not_found(missing[0], names)
    view_of: dict[str, str | None] = {}
    unread: dict[str, IceDBError] = {}
    for name in names:
        try:
            with crashes_told(f"table {name}: its configuration"):
                view_of[name] = Table.open(source.table(name), clock=clock).config.view_of
        except IceDBError as error:
            # WARN: it is not copied, even if it can be read a moment later: a copy of a view that is newer than that of
            # its source takes rows twice.
            unread[name] = error
    groups: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name in names:
        top, depth = name, 0
        while (above := view_of.get(top)) in names and depth < len(names):
            top, depth = str(above), depth + 1
        groups[top].append((-depth, name))
    wanted = set(tables) or set(names)
    ordered = (_Group([name for _, name in sorted(group)], unread.get(top)) for top, group in groups.items())
    return [group for group in ordered if wanted.intersection(group.names)]
