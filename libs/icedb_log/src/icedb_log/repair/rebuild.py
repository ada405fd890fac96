"""A rebuild: a new log from what is left of a table (rules B1 to B6, F1 to F3).

Order: both fences; what orphan sweeps saw is forgotten; the log; the data files; the record; copies of damaged log
files; one commit by the fence of ``merge``; then the damaged log files leave ``_log``, which is the one deletion of a
log file that is not the janitor's (J6). Readers halt on a damaged log file until the last step: by then the new log
says everything. A run that dies anywhere is finished, or made anew, by the next one. The new log file has all that the
log files say that are left, corrected by the plan (B3, S1, S2).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from icedb_log.clean.deletion import Deleter, Doomed
from icedb_log.clean.orphans import read_orphan_record, write_orphan_record
from icedb_log.errors import CorruptLog, InvalidRequest, InvariantViolated, NotFound, SchemaConflict, Unavailable
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fence import acquire_fence
from icedb_log.log.fold import fold
from icedb_log.log.state import LogState
from icedb_log.log.widening import LoggedSchema, is_widening
from icedb_log.merge.merge_log import build_merge_log
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogView
from icedb_log.parquet.footer import Footer, FooterReader
from icedb_log.repair.rebuild_evidence import RebuildEvidence, read_evidence, read_fence_traces
from icedb_log.repair.rebuild_plan import RebuildOptions, RebuildPlan, plan_rebuild
from icedb_log.repair.rebuild_record import DamagedEntry, RebuildReport, close_report, read_reports
from icedb_log.store.object_store import list_all
from icedb_log.store.records import create_record
from icedb_log.table.table import Table

MAX_FORGET_ATTEMPTS: Final = 5
_DEFAULTS: Final = RebuildOptions()


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """What a rebuild did, or would do.

    Attributes:
        report: What was found and decided.
        has_committed: Whether the log was rebuilt.
        is_resumed: Whether this run finished an earlier one.
        is_unfinished: Of a dry run: whether an earlier rebuild has not ended.
    """

    report: RebuildReport
    has_committed: bool = False
    is_resumed: bool = False
    is_unfinished: bool = False


def rebuild_table(table: Table, *, footers: FooterReader, options: RebuildOptions = _DEFAULTS) -> RebuildResult:
    """Make a new log from what is left of a table.

    Idempotent: a log that is whole is left alone, and said to be. Flushes and merges that run meanwhile are fenced off.

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
        report = plan_rebuild(read_evidence(table, footers=footers, fences=fences), options).report
        return RebuildResult(report, is_unfinished=any(each.state == "open" for each, _ in read_reports(table)))
    # WARN: the fence of ingest, too. A flush that is under way would otherwise be cut off after its files were
    # listed here, and taken: another flush commits its batches, and their rows are there twice. What the fences
    # said before tells the files that a flush had written by then from those of flushes that were committed.
    table = replace(table, patience_ms=0)  # F6: a rebuild waits for nobody
    ingest, merge = acquire_fence(table, "ingest"), acquire_fence(table, "merge")
    finished, unlanded = _settle_records(table)
    if finished is not None:
        fences = replace(fences, found_lost=frozenset())
    _call_off_sweeps(table)
    evidence = read_evidence(table, footers=footers, fences=fences)
    plan = plan_rebuild(evidence, options)
    report = plan.report
    # A flush that was committed since a person looked mends nothing, but the damage is not plain any more.
    if not (report.damage or options.is_forced or options.digest == report.digest):
        return RebuildResult(finished or report, is_resumed=finished is not None)
    _require_agreed(plan, options)
    commit_id, rebuild_id = table.clock.new_id(), table.clock.new_id()
    log = build_rebuilt_log(evidence, plan, rebuild_id=rebuild_id, commit_id=commit_id, now_ms=table.clock.now_ms())
    key = table.paths.log_key(time_ms=log.time_ms, commit_id=commit_id, is_merged=True)
    require_rebuilt(table.paths, evidence, plan, log, key=key)
    damaged = tuple(
        entry.model_copy(update={"copy_key": table.paths.damaged_key(rebuild_id, entry.key)})
        for entry in report.damaged
    )
    report = report.model_copy(update={"rebuild_id": rebuild_id, "log_key": key, "damaged": damaged})
    otherwise = f"nothing was committed to table {table.name}, run it again"
    record = report.model_dump_json().encode()
    etag = create_record(table.store, table.paths.rebuild_key(rebuild_id), record, otherwise=otherwise)
    for entry in damaged:
        table.store.put(entry.copy_key, table.store.get(entry.key, if_match=entry.etag).body)
    ingest.confirm()
    merge.commit(log)
    merge.release()
    ingest.release()
    report = _finish(table, report, etag)
    _require_there(table, plan)
    for old, old_etag in unlanded:
        close_report(table, old, state="abandoned", etag=old_etag)
    return RebuildResult(report, has_committed=True)


def require_decided(report: RebuildReport) -> None:
    """Refuse a plan with choices. Raises InvalidRequest.

    WARN: whoever looks before a rebuild refuses it then, and takes no fence: acquiring it cuts off the flush that is
    under way, and the next look cannot tell its files from committed ones any more.
    """
    if report.choices:
        raise InvalidRequest(
            f"table {report.table}: {len(report.choices)} things cannot be told from what is left; `icedb rebuild "
            f"{report.table} --dry-run` lists them. Say --undecided likely, keep-inputs or keep-outputs. Nothing was "
            "written"
        )


def _require_agreed(plan: RebuildPlan, options: RebuildOptions) -> None:
    """Refuse what a person has to decide first, or has agreed to otherwise. Raises InvalidRequest."""
    report, name = plan.report, plan.report.table
    if plan.lacks_feed:
        raise InvalidRequest(
            f"table {name} is a view, and nobody knows which commits of its source it has taken. Say --assume-fed "
            "to count all that are there as taken (later ones come, some of these may be missing), or drop the "
            "view and create it anew. Nothing was written"
        )
    if not plan.live and report.left_out and not (report.choices or options.is_forced):
        raise InvalidRequest(
            f"table {name}: none of the {len(report.left_out)} data files that are left is known to be of this "
            f"table, and the new log would be empty; `icedb rebuild {name} --dry-run` says why. Say --take-foreign "
            "to take files that IceDB did not write, or --force. Nothing was written"
        )
    if options.decision is None and options.digest is None:
        require_decided(report)
    if options.digest not in (None, report.digest):
        raise InvalidRequest(
            f"table {name}: what is left has changed since the report that you agreed to; look again. Nothing was "
            "written"
        )


def _call_off_sweeps(table: Table) -> None:
    """Let no orphan sweep delete anything until the new log names it (B5).

    A sweep deletes what an earlier one saw, and only if it has replaced the record of that. What is not in the
    record any more waits for a grace period at least.
    """
    record = read_orphan_record(table)
    if record.sightings and not write_orphan_record(
        table, {}, replaces=record.etag, clock=table.clock, lost=record.lost
    ):
        raise Unavailable(
            f"table {table.name}: an orphan sweep is running; let it end, stop the janitor, and run the "
            "rebuild again. Nothing was written"
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


def _settle_records(table: Table) -> tuple[RebuildReport | None, list[tuple[RebuildReport, str]]]:
    """Finish rebuilds that were cut off (B4); return the last that had landed, and those that seem not to have.

    Under both fences no commit of theirs is under way any more (F1): its log file is there, or it never landed, or
    it was merged and deleted long ago, and then nothing damaged is left: a merge would have halted.
    """
    finished: RebuildReport | None = None
    unlanded: list[tuple[RebuildReport, str]] = []
    for report, etag in read_reports(table):
        if report.state != "open":
            continue
        try:
            has_landed = not decode_log_file(report.log_key, table.store.get(report.log_key).body).is_seal
        except NotFound:
            has_landed = False
        if has_landed:
            finished = _finish(table, report, etag)
        else:
            unlanded.append((report, etag))
    return finished, unlanded


def _finish(table: Table, report: RebuildReport, etag: str) -> RebuildReport:
    """Do what comes after the commit (B4), and return the record as it is then."""
    _remove_damaged(table, report.damaged)
    _forget_lost(table, report)
    return close_report(table, report, state="done", etag=etag)


def _remove_damaged(table: Table, damaged: tuple[DamagedEntry, ...]) -> None:
    """Take damaged log files out of ``_log`` (B4), if nobody has put something else there."""

    def is_there(entry: DamagedEntry) -> bool:
        try:
            return table.store.head(entry.key).etag == entry.etag
        except NotFound:
            return False

    doomed = [
        Doomed(entry.key, "log_file", "damaged; a rebuild said all that it said", size_bytes=entry.size_bytes)
        for entry in damaged
        if is_there(entry)
    ]
    failed = Deleter(table.store).delete(doomed).failed
    if failed:
        raise Unavailable(
            f"table {table.name}: the log is rebuilt, but {failed[0].key} cannot be deleted, so that readers "
            f"go on to halt ({failed[0].reason}); allow it, and run the rebuild again"
        )


def _forget_lost(table: Table, report: RebuildReport) -> None:
    """Let orphan sweeps go on: of the commits that were lost before, the new log says what was decided (F5).

    Best effort: what stays makes the next rebuild find damage, and decide it again.
    """
    rebuilt_ms = parse_log_key(report.log_key).time_ms
    for _ in range(MAX_FORGET_ATTEMPTS):
        record = read_orphan_record(table)
        lost = {name: each for name, each in record.lost.items() if name_ms(name) > rebuilt_ms}
        if lost == record.lost or write_orphan_record(
            table, record.sightings, replaces=record.etag, clock=table.clock, lost=lost
        ):
            return


_EXTRA_KEY: Final = "rebuilt"
"""Unknown to every reader; merges carry it: a person can see that the table was rebuilt, and by which record."""


def build_rebuilt_log(
    evidence: RebuildEvidence, plan: RebuildPlan, *, rebuild_id: str, commit_id: str, now_ms: int
) -> LogFile:
    """Build the log file of a rebuild. It replaces every whole log file but seals (F4), and sorts behind all (S1).

    Args:
        evidence: What is left of the table.
        plan: What was decided.
        rebuild_id: Names the record.
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
        now_ms=max([now_ms, *(name_ms(key) + 1 for key in behind)]),
    )
    heads = [file.log for file in evidence.damaged]
    schema = _unite_schema(evidence, plan, base)
    return replace(
        base,
        schema=schema.logged,
        widened={name: wide for name, wide in schema.widened.items() if wide != schema.logged[name]},
        inexact=None,  # nobody has looked at the data files' values (S2)
        markers=tuple(_make_markers(evidence, plan, base)),
        batch_ids=tuple(sorted({batch_id for head in heads for batch_id in head.batch_ids})),
        refused_ids=tuple(sorted({batch_id for head in heads for batch_id in head.refused_ids})),
        contents={batch_id: known for head in heads for batch_id, known in head.contents.items()},
        horizon_ms=base.time_ms,  # B3: an older state is not known any more
        feed=plan.feed or base.feed,
        extra={**base.extra, _EXTRA_KEY: rebuild_id},
    )


def name_ms(log_key: str) -> int:
    """Return the time in the name of an object below ``_log``, unix ms; 0 if it is not the name of a log file."""
    digits = log_key.rpartition("/")[2].partition("_")[0]
    return int(digits) if len(digits) == 13 and digits.isascii() and digits.isdigit() else 0  # noqa: PLR2004 - wire


def _make_markers(evidence: RebuildEvidence, plan: RebuildPlan, base: LogFile) -> Iterator[FileMarker]:
    known = {marker.path: marker for marker in base.markers}
    columns = dict.fromkeys([*(field.column for field in evidence.config.partition), *evidence.config.sort])
    for path in sorted(plan.live):
        old, footer = known.get(path), evidence.footers.get(path)
        if footer is None:  # what a log file says of its size shows that it is damaged
            yield old or evidence.markers[path]
            continue
        found = _make_marker(evidence, path)
        bounds = ((name, footer.bounds.get(name)) for name in columns)
        stats = {name: each.to_stats() for name, each in bounds if each is not None}
        # The footer knows best how many rows there are; what nobody says any more is kept as the log has it.
        said = {name: each for name, each in stats.items() if each is not None} or (old or found).stats
        yield replace(old or found, size_bytes=found.size_bytes, row_count=found.row_count, stats=said)
    for path in sorted((known.keys() | plan.dead) - plan.live):
        marker = known.get(path) or _make_marker(evidence, path)
        if marker.is_live:
            salvaged = evidence.markers.get(path)
            tombstoned_ms = None if salvaged is None else salvaged.tombstoned_ms
            marker = replace(marker, tombstoned_ms=tombstoned_ms or base.time_ms, landed_ms=None)
        yield marker


def _make_marker(evidence: RebuildEvidence, path: str) -> FileMarker:
    """Return what is known of a data file that no log file is there to tell of."""
    found = evidence.found(path)
    if found is None:  # named by a damaged log file, and not there
        return replace(evidence.markers[path], tombstoned_ms=None, landed_ms=None)
    rows = found.row_count if isinstance(found, Footer) else None
    return FileMarker(path, found.info.size_bytes, found.info.modified_ms, row_count=rows)


def _unite_schema(evidence: RebuildEvidence, plan: RebuildPlan, base: LogFile) -> LoggedSchema:
    """Return the schema: what log files say, then what data files have, the oldest first, and what is declared (S2).

    Raises:
        SchemaConflict: Two types of one column, neither of which becomes the other.
    """
    logged, widened = dict(base.schema), dict(base.widened)
    origin = dict.fromkeys(logged, "the log")
    # Never a column of the table (flushes and imports refuse it): other writers' merges repeat the path in their files.
    of_paths = {each.name.lower() for each in evidence.config.partition if each.name.lower() != each.column.lower()}
    files = (evidence.footers[path] for path in (plan.live | plan.dead) & evidence.footers.keys())
    said = (
        *((file.key, said) for file in evidence.damaged for said in (file.log.schema, file.log.widened)),
        *((f.info.key, f.columns) for f in sorted(files, key=lambda f: (f.info.modified_ms, f.info.key))),
        ("the configuration", evidence.config.declared),
    )
    for where, columns in said:
        for name, sql_type in columns.items():
            if where in evidence.footers and name.lower() in of_paths and name not in logged:
                continue
            known = logged.setdefault(name, sql_type)
            first = origin.setdefault(name, where)
            if sql_type in (known, widened.get(name)):
                continue
            if is_widening(known, sql_type):
                widened[name] = sql_type
            elif is_widening(sql_type, known) and first != "the log":
                # The narrow files are the older ones, whatever their age says.
                logged[name], widened[name] = sql_type, known
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
