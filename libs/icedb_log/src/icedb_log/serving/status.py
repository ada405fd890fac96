"""A table's state in figures, computed from its log: what operators watch, also when every worker is dead.

And the same in one word, with reasons (:func:`find_health`), for people: it says nothing that the figures do not, and
the alerts of ``deploy/prometheus`` ring for the same things.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from icedb_log.commit.fence import FenceLook, look_at_fences
from icedb_log.commit.table import Table
from icedb_log.errors import HaltError, IceDBError, NotFound, TableHalted
from icedb_log.feed.views import ViewLag, count_refused, read_registration, read_view_lag, source_of
from icedb_log.holds.erasures import find_oldest_open
from icedb_log.holds.leases import Lease, read_leases
from icedb_log.holds.stored_holds import HoldReader
from icedb_log.ingest.pressure import Pressure, measure_pressure, read_pressure
from icedb_log.ingest.quarantine import entry_of, is_bad_rows, is_reason
from icedb_log.ingest.staging import StagedListing, list_all_staged
from icedb_log.keys import TablePaths
from icedb_log.log.fold import find_lost, fold, union_schema
from icedb_log.log.live_files import LiveFiles
from icedb_log.log.reader import LogReader
from icedb_log.log.state import LogState
from icedb_log.merge.merge_plan import MergeIndex
from icedb_log.merge.small_files import (
    MANY_SMALL_FILES,
    Backlog,
    measure_small_files,
)
from icedb_log.model import FileMarker, LogView, Widening
from icedb_log.publish.head import Publications, find_narrow_before, read_publications
from icedb_log.store.object_store import list_all
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MINUTE_MS


@dataclass(frozen=True, slots=True)
class TableStatus:
    """Figures of one table.

    Attributes:
        config: Its configuration.
        snapshot_id: Of the newest state.
        live_files: Live data files.
        live_rows: Rows in them; ``None`` when some file does not say.
        live_bytes: Bytes of them.
        partition_count: Partitions with at least one live data file.
        log_files: Objects below ``_log`` (the wire allows less than 1,000).
        tombstoned_files: Dead data files still named.
        tombstoned_logs: Dead log files still there.
        pressure: How much the table slows its producers down (back-pressure), by these figures.
        staged_batches: Batches that wait for a flush.
        staged_bytes: Bytes of them, as they were staged.
        staged_lag_ms: How long the oldest of them has been waiting; 0 when there is none.
        quarantined_batches: Batches that wait for a person, whole or with some of their rows.
        bad_row_batches: Those of them whose other rows are live.
        merge_lag_ms: Age of the oldest data file that the hot lane would merge now; 0 when there is none.
        merge_lag_files: Data files that it would merge now.
        merge_lag_bytes: Bytes of them.
        open_erasures: Erasures that have not ended.
        oldest_erasure_ms: How long ago the oldest of them was asked for; 0 when there is none.
        lost_commits: Commits that landed and whose log files are not there (F5), by name: rows are missing.
        leases: Leases that last: who holds the table, since when, until when (J4).
        published_ms: The time whose state engines are shown that do not read the log; 0: none.
        filling: Promoted columns that readers do not see yet (S4).
        filling_files: Live data files that lack one of them, and
        filling_bytes: bytes of these.
        held_back: Why engines may be shown an older state than the newest, or none: data files may be narrow (S2);
            empty: none is. Files of other writers that engines would read wrongly are no part of it: a publisher tells.
        publications: Publications that hold data files: the current one, and those that have left lately (J4).
        view: How far it is behind its source, if it is a view.
        last_commit_ms: Time of the newest commit; 0 for an empty log.
        horizon_ms: Oldest time that can still be read.
        store_now_ms: The store's clock at the reading.
        halted: Why flushes of the table halt, as the ingest worker said last; empty: they do not.
        failing: Why they fail, again and again or in a way that nobody foresaw; empty: they do not.
        workers: Who is at work on the table now, as the fences say.
    """

    config: TableConfig
    snapshot_id: str
    live_files: int
    live_rows: int | None
    live_bytes: int
    partition_count: int
    log_files: int
    tombstoned_files: int
    tombstoned_logs: int
    pressure: Pressure
    staged_batches: int
    staged_bytes: int
    staged_lag_ms: int
    quarantined_batches: int
    bad_row_batches: int
    merge_lag_ms: int
    merge_lag_files: int
    merge_lag_bytes: int
    open_erasures: int
    oldest_erasure_ms: int
    lost_commits: tuple[str, ...]
    leases: tuple[Lease, ...]
    published_ms: int
    publications: int
    held_back: str
    view: ViewLag | None
    last_commit_ms: int
    horizon_ms: int
    store_now_ms: int
    filling: tuple[str, ...] = ()
    filling_files: int = 0
    filling_bytes: int = 0
    halted: str = ""
    failing: str = ""
    workers: tuple[FenceLook, ...] = ()

    @property
    def oldest_lease_ms(self) -> int:
        """How far back the oldest leased time lies; 0 without leases. What died since then cannot be deleted."""
        return max(0, self.store_now_ms - min((lease.at_ms for lease in self.leases), default=self.store_now_ms))

    @property
    def rest_ms(self) -> int:
        """How long ago the newest commit was; 0 without one."""
        return max(0, self.store_now_ms - self.last_commit_ms) if self.last_commit_ms else 0


def read_status(
    table: Table,
    *,
    read_source: Callable[[TablePaths], LogReader] | None = None,
    holds: HoldReader | None = None,
    ended_erasures: set[str] | None = None,
    log: LogState | None = None,
) -> TableStatus:
    """Read a table's figures. Costs two listings, three small reads and the log files that the reader does not know.

    One listing more for each of what is there: staged batches, batches in quarantine, erasures; two for holds.

    Args:
        table: The table.
        read_source: Returns a reader of the source of a view, to be reused.
        holds: A reader of the table's holds to reuse, with its cache.
        ended_erasures: Records of erasures that have ended, to be kept from call to call
            (:func:`icedb_log.holds.erasures.list_open_ids`).
        log: The log as it was read a moment ago: then it is not read again.

    Raises:
        HaltError: The log cannot be read.
        Unavailable: The store did not answer.
    """
    store, paths, config = table.store, table.paths, table.config
    log = LogState.of(table.read_log()) if log is None else log.copy()
    view, snapshot = log.view, fold(log.view, state=log)
    waiting = measure_backlog(log, paths=paths, config=config)
    folders = store.list_folders(paths.services_prefix)
    staged = list_all_staged(table) if "staging" in folders else StagedListing((), (), False, view.store_now_ms)
    in_quarantine = list_all(store, paths.quarantine_prefix).objects if "quarantine" in folders else ()
    quarantined = {entry_of(info.key) for info in in_quarantine if is_reason(info.key)}
    with_bad_rows = {entry_of(info.key) for info in in_quarantine if is_bad_rows(info.key)}
    said = read_pressure(table)
    erasure_count, asked_ms = find_oldest_open(table, ended=ended_erasures) if "erasures" in folders else (0, None)
    widened = union_schema(view.table, view.files).widened
    has_holds = "holds" in folders
    published = Publications(None, (), view.store_now_ms)
    if has_holds or widened:
        published = read_publications(table, is_whole=bool(widened))
    current = None if published.head is None else published.head.current
    published_ms = 0 if current is None else current.as_of_ms
    ends = published.find_ends(data_grace_ms=config.data_grace_ms)
    fences = look_at_fences(table, now_ms=staged.store_now_ms)
    lacking = measure_filling(snapshot.live, config)
    oldest_staged_ms = min((batch.staged_ms for batch in staged.batches), default=staged.store_now_ms)
    return TableStatus(
        config=config,
        snapshot_id=snapshot.snapshot_id,
        live_files=len(snapshot.live),
        live_rows=snapshot.row_count,
        live_bytes=snapshot.size_bytes,
        partition_count=snapshot.live.partition_count,
        log_files=len(view.files),
        tombstoned_files=len(snapshot.tombstoned_ms),
        tombstoned_logs=sum(1 for file in view.files if file.key in snapshot.log_tombstoned_ms),
        pressure=measure_pressure(log_files=len(view.files), backlog_files=waiting.file_count),
        staged_batches=len(staged.batches),
        staged_bytes=sum(batch.size_bytes for batch in staged.batches),
        staged_lag_ms=max(0, staged.store_now_ms - oldest_staged_ms),
        quarantined_batches=len(quarantined),
        bad_row_batches=len(quarantined & with_bad_rows),
        merge_lag_ms=0 if waiting.oldest_ms is None else max(0, view.store_now_ms - waiting.oldest_ms),
        merge_lag_files=waiting.file_count,
        merge_lag_bytes=waiting.size_bytes,
        open_erasures=erasure_count,
        oldest_erasure_ms=max(0, view.store_now_ms - asked_ms) if asked_ms else 0,
        lost_commits=_find_lost(table, view, landed=[name for fence in fences for name in fence.landed]),
        leases=read_leases(table, reader=holds) if has_holds else (),
        published_ms=published_ms,
        held_back=_find_held_back(published, snapshot.live, widened),
        publications=sum(end_ms is None or end_ms > published.store_now_ms for _, end_ms in ends),
        view=None if config.view_of is None else _read_view(table, read_source),
        last_commit_ms=snapshot.last_commit_ms,
        horizon_ms=snapshot.horizon_ms,
        store_now_ms=view.store_now_ms,
        filling=tuple(column for column in config.find_hidden(snapshot.schema) if config.promoted[column]),
        filling_files=lacking.file_count,
        filling_bytes=lacking.size_bytes,
        halted="" if said is None else said.find_halt(store_now_ms=staged.store_now_ms),
        failing="" if said is None else said.find_failure(store_now_ms=staged.store_now_ms),
        workers=tuple(fence for fence in fences if fence.claimed_ms),
    )


def status_to_json(name: str, state: TableStatus | IceDBError) -> dict[str, Any]:
    """Return a table's figures, or why they could not be read, for a document."""
    if isinstance(state, IceDBError):
        error = {"kind": type(state).__name__, "message": str(state)}
        return {"table": name, "halted": isinstance(state, HaltError), "error": error}
    figures = {
        field: getattr(state, field)
        for field in TableStatus.__dataclass_fields__
        if field not in ("config", "pressure", "leases", "view", "last_commit_ms", "horizon_ms", "halted", "workers")
    }
    workers = ("owner", "role", "claimed_ms", "commit")
    return {
        "table": name,
        "halted": bool(state.halted),
        **({"error": {"kind": TableHalted.__name__, "message": state.halted}} if state.halted else {}),
        **figures,
        "pressure": asdict(state.pressure),
        "leases": [asdict(lease) for lease in state.leases],
        "view": None if state.view is None else asdict(state.view),
        "workers": [{field: getattr(worker, field) for field in workers} for worker in state.workers],
        "last_commit_ms": state.last_commit_ms or None,
        "horizon_ms": state.horizon_ms or None,
    }


def measure_filling(live: LiveFiles, config: TableConfig) -> Backlog:
    """Return which live data files lack promoted columns (S4): a merge writes them anew. Pure."""
    count = config.count_promoted()
    chunks = [chunk for chunk in live.chunks if chunk.fewest_promoted < count]
    told = (zip(chunk.promoted_counts(), chunk.sizes(), strict=True) for chunk in chunks)
    sizes = [size_bytes for files in told for promoted, size_bytes in files if promoted < count]
    return Backlog(len(sizes), sum(sizes), None)


def _find_held_back(published: Publications, live: LiveFiles, widened: Mapping[str, Widening]) -> str:
    before_ms = find_narrow_before(published.head, widened)
    count = sum(created_ms < before_ms for chunk in live.chunks for created_ms in chunk.created()) if before_ms else 0
    if not count:
        return ""
    columns = ", ".join(f"{name!r} ({widening.sql_type})" for name, widening in widened.items())
    return (
        f"{count} live data files are older than the wider type of a column, {columns}, and engines of Iceberg would "
        "read narrow ones wrongly; merges write them anew before anything else"
    )


def find_lost_commits(table: Table) -> tuple[str, ...]:
    """Return the commits of a table that landed and whose log files are not there (F5), by name: rows are missing.

    Costs two small reads, and one of the log only where a fence names a commit that is not known.

    Raises:
        HaltError: The log cannot be read.
        Unavailable: The store did not answer.
    """
    fences = look_at_fences(table, now_ms=table.clock.now_ms())
    return _find_lost(table, table.read_log(), landed=[name for fence in fences for name in fence.landed])


def _find_lost(table: Table, view: LogView, *, landed: Sequence[str]) -> tuple[str, ...]:
    """Return the commits that fences prove to be lost (F5)."""
    if not find_lost(landed, view):
        return ()
    lost = find_lost(landed, table.read_log())  # what landed after the log was read is no loss
    if lost:
        read_table_config(table)  # a purge empties the log
    return lost


def _read_view(view: Table, read_source: Callable[[TablePaths], LogReader] | None) -> ViewLag:
    source = source_of(view, view.config)
    try:
        registration = read_registration(source, view.name)
        if registration is not None and registration.state == "detached":
            # Its source may have been dropped since, and purged: the registration is still there.
            return ViewLag(view.name, source.name, "detached", 0, 0, count_refused(view))
        return read_view_lag(view, view.other(source.paths, reader=read_source(source.paths) if read_source else None))
    except (NotFound, HaltError):  # the source's own trouble: the view's figures are there all the same
        return ViewLag(view.name, source.name, "broken", 0, 0, 0)


def measure_backlog(log: LogState, *, paths: TablePaths, config: TableConfig) -> Backlog:
    """Return how much :func:`list_backlog` lists. Pure.

    Of a log that names more than ``MANY_SMALL_FILES`` small files, all of those in partitions that have the fan-in of
    them: a backlog of this size is no question of the policy, and its plan takes a gigabyte.
    """
    small = measure_small_files(log.live, config)
    if small.file_count > MANY_SMALL_FILES:
        return small
    waiting = list_backlog(log, paths=paths, config=config)
    oldest_ms = min((marker.created_ms for marker in waiting), default=None)
    return Backlog(len(waiting), sum(marker.size_bytes for marker in waiting), oldest_ms)


def list_backlog(log: LogState, *, paths: TablePaths, config: TableConfig) -> tuple[FileMarker, ...]:
    """Return the data files that the hot lane would merge now, whatever one run would take. Pure.

    Not counted is what the policy leaves alone: files below the fan-in of their tier, and what only the cold lane
    merges, which has no hurry; nor what is written anew for other reasons.
    """
    index = MergeIndex(paths, config, log=log.copy())
    index.update(log.view)
    return tuple(marker for group in index.find_waiting() for marker in group.inputs)


LATE_MS: Final = 15 * MINUTE_MS
"""What waits for longer is late: merges, staged batches, views."""
VERY_LATE_MS: Final = 60 * MINUTE_MS

HealthLevel = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Health:
    """How a table is.

    Attributes:
        level: ``ok``; ``warn``: look at it soon; ``bad``: look now.
        word: The worst there is to say, for a narrow column.
        reasons: All there is to say, the worst first; empty for ``ok``.
    """

    level: HealthLevel
    word: str
    reasons: tuple[str, ...] = ()


def find_health(state: TableStatus | IceDBError) -> Health:
    """Return how a table is, given its figures, or why they could not be read."""
    if isinstance(state, IceDBError):
        is_halted = isinstance(state, HaltError)
        return Health("bad" if is_halted else "warn", "halted" if is_halted else "unread", (str(state),))
    found = sorted((*_find_stops(state), *_find_late(state), *_find_view(state)), key=lambda each: each[0] != "bad")
    if not found:
        return Health("ok", "ok")
    return Health(found[0][0], found[0][1], tuple(reason for _, _, reason in found))


_Found = tuple[HealthLevel, str, str]


def _find_stops(state: TableStatus) -> Iterator[_Found]:
    if state.halted:
        yield "bad", "halted", state.halted
    if state.failing:
        yield "bad", "failing", f"flushes fail, and batches wait: {state.failing}"
    if state.lost_commits:
        yield "bad", "lost", f"commits are lost ({len(state.lost_commits)}): `icedb fsck {state.config.name}`"
    if state.pressure.level == "stop":
        yield "bad", "stop", f"batches are refused: {state.pressure.reason}"
    if state.pressure.level == "slow":
        yield "warn", "slow", f"flushes come less often: {state.pressure.reason}"


def _find_late(state: TableStatus) -> Iterator[_Found]:
    waits = (
        ("lagging", "merges wait", state.merge_lag_ms),
        ("waiting", "staged batches wait", state.staged_lag_ms),
        ("behind", "the view is behind its source", 0 if state.view is None else state.view.lag_ms),
    )
    for word, what, waits_ms in waits:
        if waits_ms > LATE_MS:
            yield "bad" if waits_ms > VERY_LATE_MS else "warn", word, f"{what}: for {waits_ms // MINUTE_MS} min now"
    if state.quarantined_batches:
        yield "warn", "quarant.", f"batches in quarantine wait for a person: {state.quarantined_batches}"


def _find_view(state: TableStatus) -> Iterator[_Found]:
    view = state.view
    if view is not None and view.state not in ("active", "pending"):
        yield "warn", view.state, f"this view of {view.source} is {view.state}: it is not fed"
    if view is not None and view.refused_commits:
        yield "warn", "refused", f"commits of {view.source} that this view cannot take: {view.refused_commits}"
