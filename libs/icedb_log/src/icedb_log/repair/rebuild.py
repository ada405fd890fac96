"""A rebuild: a new log from what is left of a table (rules B1 to B5, F1 to F3).

Order: both fences; the log; the data files; copies of damaged log files; one commit by the fence of ``merge``; then
the damaged log files leave ``_log``, which is the one deletion of a log file that is not the janitor's (J6). Readers
halt on a damaged log file until the last step: by then the new log says everything. A run that dies anywhere is run
again: the log names what it had committed. Must never name a data file that neither a log file nor a person names.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from icedb_log.clean.deletion import DeleteCandidate, Deleter
from icedb_log.commit.fence import acquire_fence
from icedb_log.commit.merge_log import build_merge_log
from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog, InvalidRequest, InvariantViolated, NotFound, SchemaConflict, Unavailable
from icedb_log.keys import TablePaths, find_log_name, parse_log_key
from icedb_log.log.fold import fold
from icedb_log.log.state import LogState
from icedb_log.log.widening import LoggedSchema, is_widening
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogView, Widening
from icedb_log.parquet.footer import Footer, FooterReader
from icedb_log.repair.rebuild_evidence import RebuildEvidence, read_evidence, read_fence_traces
from icedb_log.repair.rebuild_plan import DamagedEntry, RebuildOptions, RebuildPlan, plan_rebuild
from icedb_log.store.object_store import list_all
from icedb_log.table.promoted_paths import MAX_PROMOTED

_DEFAULTS: Final = RebuildOptions()


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """What a rebuild did, or would do.

    Attributes:
        plan: What was found, and what was asked for.
        log_key: The new log file; empty: the log was left alone.
    """

    plan: RebuildPlan
    log_key: str = ""

    @property
    def has_committed(self) -> bool:
        """Whether there is a new log."""
        return bool(self.log_key)


def rebuild_table(table: Table, *, footers: FooterReader, options: RebuildOptions = _DEFAULTS) -> RebuildResult:
    """Make a new log from what is left of a table.

    Idempotent: a log that is whole is left alone, unless a file is taken. Flushes and merges that run meanwhile are
    fenced off.

    Args:
        table: The table; its log is not read by its reader, which would halt.
        footers: Reads footers.
        options: What is asked for.

    Raises:
        InvalidRequest: Somebody has to decide something first; the message says what. Nothing was written.
        SchemaConflict: Log files or data files disagree about the type of a column.
        Fenced: Another run took over; run again.
        CommitConflict: The commit certainly did not land; run again.
        CommitOutcomeUnknown: Nobody knows yet; run again.
        HaltError: Something cannot be understood; nothing was written.
        Unavailable: The store did not answer; run again.
    """
    fences = read_fence_traces(table)
    if options.is_dry_run:
        return RebuildResult(plan_rebuild(read_evidence(table, footers=footers, fences=fences), options))
    # WARN: the fence of ingest, too. A flush that is under way would otherwise be cut off after its files were
    # listed here, and taken: another flush commits its batches, and their rows are there twice.
    table = replace(table, patience_ms=0)  # F6: a rebuild waits for nobody
    ingest, merge = acquire_fence(table, "ingest"), acquire_fence(table, "merge")
    evidence = read_evidence(table, footers=footers, fences=fences)
    plan = plan_rebuild(evidence, options)
    if not has_work(plan, options):
        return RebuildResult(plan)
    require_decided(plan)
    if options.digest not in (None, plan.digest):
        raise InvalidRequest(
            f"table {plan.table}: what is left has changed since the plan that you agreed to; look again. Nothing was "
            "written"
        )
    commit_id = table.clock.new_id()
    log = build_rebuilt_log(evidence, plan, commit_id=commit_id, now_ms=table.clock.now_ms())
    key = table.paths.log_key(time_ms=log.time_ms, commit_id=commit_id, is_merged=True)
    require_rebuilt(table.paths, evidence, plan, log, key=key)
    damaged = tuple(replace(each, copy_key=table.paths.damaged_key(commit_id, each.key)) for each in plan.damaged)
    for each in damaged:
        table.store.put(each.copy_key, table.store.get(each.key, if_match=each.etag).body)
    ingest.confirm()
    merge.commit(log)
    merge.release()
    ingest.release()
    _remove_damaged(table, damaged)
    _require_there(table, plan)
    return RebuildResult(replace(plan, damaged=damaged), key)


def has_work(plan: RebuildPlan, options: RebuildOptions) -> bool:
    """Return whether a new log is to be written."""
    return bool(plan.damage or plan.of("taken") or options.is_forced)


def require_decided(plan: RebuildPlan) -> None:
    """Refuse a plan of which something waits for a person. Raises InvalidRequest.

    WARN: who looks before a rebuild refuses the plan then, and takes no fence: acquiring it cuts off the flush that is
    under way, and the next look cannot tell its files from committed ones any more.
    """
    name = plan.table
    if waiting := plan.of("waiting"):
        raise InvalidRequest(
            f"table {name}: no log file names {len(waiting)} data files with {plan.rows_of('waiting')} rows; say "
            f"--take GLOB or --leave GLOB for each (`icedb rebuild {name} --dry-run` lists them). Nothing was written"
        )
    if plan.conflicts:
        raise InvalidRequest(f"table {name}: {plan.conflicts[0]}; --leave the other. Nothing was written")
    if plan.lacks_feed:
        raise InvalidRequest(
            f"table {name} is a view, and which commits of its source it has taken is not known. Use --assume-fed "
            "to count all that are there as taken (later ones come, some of these may be missing), or drop the "
            "view and create it anew. Nothing was written"
        )


def _require_there(table: Table, plan: RebuildPlan) -> None:
    """See that no sweep that had begun before deleted what is live now."""
    missing = sorted(plan.live - {info.key for info in list_all(table.store, table.paths.data_prefix).objects})
    if missing:
        raise CorruptLog(
            f"table {table.name}: the log is rebuilt, and {len(missing)} data files that it names were "
            f"deleted meanwhile, by an orphan sweep that was under way: the first is {missing[0]}. Bring them back "
            f"from a backup, or run `icedb rebuild {table.name} --force` to go on without their rows"
        )


def _remove_damaged(table: Table, damaged: tuple[DamagedEntry, ...]) -> None:
    """Take damaged log files out of ``_log`` (B4), if nobody has put something else there."""

    def is_there(entry: DamagedEntry) -> bool:
        try:
            return table.store.head(entry.key).etag == entry.etag
        except NotFound:
            return False

    candidates = [
        DeleteCandidate(entry.key, "log_file", "damaged; a rebuild said all that it said", size_bytes=entry.size_bytes)
        for entry in damaged
        if is_there(entry)
    ]
    failed = Deleter(table.store).delete(candidates).failed
    if failed:
        raise Unavailable(
            f"table {table.name}: the log is rebuilt, but {failed[0].key} cannot be deleted, so that readers "
            f"go on to halt ({failed[0].reason}); allow it, and run the rebuild again"
        )


def build_rebuilt_log(evidence: RebuildEvidence, plan: RebuildPlan, *, commit_id: str, now_ms: int) -> LogFile:
    """Build the log file of a rebuild. It replaces every whole log file but seals (F4), and sorts behind all (S1).

    Args:
        evidence: What is left of the table.
        plan: What was decided.
        commit_id: Of this commit.
        now_ms: The committer's clock.

    Raises:
        SchemaConflict: Log files or data files disagree about the type of a column.
        InvalidRequest: A damaged log file has a name beyond the end of all time.
    """
    view = evidence.view
    # B3: behind what is lost, too: its horizon says that it was decided (F5).
    behind = (*(file.key for file in evidence.damaged), *evidence.fences.landed)
    base = build_merge_log(
        LogState.of(view),
        merged=(),
        folded_log_keys=[file.key for file in view.files],
        commit_id=commit_id,
        now_ms=max([now_ms, *(name.time_ms + 1 for name in map(find_log_name, behind) if name is not None)]),
        promoted_count=len(evidence.config.promoted),
    )
    markers = tuple(_make_markers(evidence, plan, base))
    schema = _unite_schema(evidence, plan, base, markers)
    return replace(
        base,
        schema=schema.logged,
        widened={name: wide for name, wide in schema.widened.items() if wide.sql_type != schema.logged[name]},
        inexact=None,  # nobody has looked at the data files' values (S2)
        markers=markers,
        horizon_ms=base.time_ms,  # B3: an older state is not known any more
        feed=plan.feed or base.feed,
        rebuilt=commit_id,  # followers begin anew (L2)
    )


def _make_markers(evidence: RebuildEvidence, plan: RebuildPlan, base: LogFile) -> Iterator[FileMarker]:
    # Also what log files alone name that are dead, and that no merge carried on.
    known = {marker.path: marker for file in evidence.view.files for marker in file.log.markers}
    known |= {marker.path: marker for marker in base.markers}
    columns = dict.fromkeys([*(field.column for field in evidence.config.partition), *evidence.config.sort])
    for path in sorted(plan.live):
        old, footer = known.get(path), evidence.footers.get(path)
        if footer is None:  # the log names it, and what it says of its size shows that it is damaged
            yield known[path]
            continue
        found = _make_marker(evidence, path)
        bounds = ((name, footer.bounds.get(name)) for name in columns)
        stats = {name: each.to_stats() for name, each in bounds if each is not None}
        # The footer knows best how many rows there are; what nobody says any more is kept as the log has it.
        said = {name: each for name, each in stats.items() if each is not None} or (old or found).stats
        yield replace(old or found, size_bytes=found.size_bytes, row_count=found.row_count, stats=said)
    for path in sorted((known.keys() | plan.dead) - plan.live):
        marker = known.get(path) or _make_marker(evidence, path)
        yield replace(marker, tombstoned_ms=base.time_ms, landed_ms=None) if marker.is_live else marker


def _make_marker(evidence: RebuildEvidence, path: str) -> FileMarker:
    """Return what is known of a data file that no log file tells of."""
    found = evidence.footers.get(path) or evidence.unreadable[path]
    rows, count = (None, 0)
    if isinstance(found, Footer):
        rows, count = found.row_count, evidence.config.count_in(found.columns)
    return FileMarker(path, found.info.size_bytes, found.info.modified_ms, row_count=rows, promoted_count=count)


def _unite_schema(
    evidence: RebuildEvidence, plan: RebuildPlan, base: LogFile, markers: Iterable[FileMarker]
) -> LoggedSchema:
    """Return the schema: what log files say, then what data files have, the oldest first, and what is declared (S2).

    Promoted columns that the log does not have are in it if every live data file has them (S4).

    Raises:
        SchemaConflict: Two types of one column, neither of which becomes the other.
    """
    logged, widened = dict(base.schema), dict(base.widened)
    origin = dict.fromkeys(logged, "the log")
    # Never a column of the table (flushes and imports refuse it): other writers' merges repeat the path in their files.
    of_paths = {each.name.lower() for each in evidence.config.partition if each.name.lower() != each.column.lower()}
    fewest = min((marker.promoted_count for marker in markers if marker.is_live), default=MAX_PROMOTED)
    hidden = evidence.config.find_hidden(logged).keys() - evidence.config.find_filled(logged, fewest=fewest).keys()
    files = (evidence.footers[path] for path in (plan.live | plan.dead) & evidence.footers.keys())
    said = (
        *((f.info.key, f.columns) for f in sorted(files, key=lambda f: (f.info.modified_ms, f.info.key))),
        ("the configuration", evidence.config.declared),
    )
    for where, columns in said:
        for name, sql_type in columns.items():
            if name in hidden or (where in evidence.footers and name.lower() in of_paths and name not in logged):
                continue
            known = logged.setdefault(name, sql_type)
            first = origin.setdefault(name, where)
            if sql_type == known or (name in widened and sql_type == widened[name].sql_type):
                continue
            if is_widening(known, sql_type):
                widened[name] = Widening(sql_type, base.time_ms)
            elif is_widening(sql_type, known) and first != "the log":
                # The narrow files are the older ones, whatever their age says.
                logged[name], widened[name] = sql_type, Widening(known, base.time_ms)
            elif not is_widening(sql_type, known):
                raise SchemaConflict(
                    f"table {evidence.paths.name}: column {name!r} is {known} in {first} and {sql_type} in {where}: a "
                    "log that names both cannot be read; move one of the two away (and its rows with it), then rebuild "
                    "again"
                )
    return LoggedSchema(logged, widened)


def require_rebuilt(paths: TablePaths, evidence: RebuildEvidence, plan: RebuildPlan, log: LogFile, *, key: str) -> None:
    """A rebuilt log says what was decided: beside the log files that it replaces, and without them (S1, M1)."""
    files = evidence.view.files
    new = ListedLogFile(key, "", evidence.view.store_now_ms, 0, log)
    dead = {tombstone.path for tombstone in log.log_tombstones}
    for others in (files, tuple(file for file in files if file.key not in dead)):
        snapshot = fold(LogView(paths.name, (*others, new), evidence.view.store_now_ms))
        wrong = sorted({marker.path for marker in snapshot.live} ^ plan.live)
        if wrong:
            raise InvariantViolated(
                f"table {paths.name}: {wrong[0]} would not be what was decided (B3); {len(wrong)} differ"
            )
    if any(file.key >= key for file in files if not file.log.is_seal) or parse_log_key(key).time_ms != log.time_ms:
        raise InvariantViolated(f"table {paths.name}: {key} does not sort behind the log files that it replaces (S1)")
