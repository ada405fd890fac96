"""A rebuild: a new log from what is left of a table (rules B1 to B6, F1 to F3).

Order: both fences; what orphan sweeps saw is forgotten; the log; the data files; the record; copies of damaged log
files; one commit by the fence of ``merge``; then the damaged log files leave ``_log``, which is the one deletion of a
log file that is not the janitor's (J6). Readers halt on a damaged log file until the last step: by then the new log
says everything. A run that dies anywhere is finished, or made anew, by the next one.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

from icedb_log.clean.deletion import Deleter, Doomed
from icedb_log.clean.orphan_record import read_orphan_record, write_orphan_record
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, Unavailable
from icedb_log.keys import parse_log_key
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fence import acquire_fence
from icedb_log.parquet.footer import FooterReader
from icedb_log.repair.rebuild_evidence import RebuildEvidence, read_evidence, read_fence_traces
from icedb_log.repair.rebuild_log import build_rebuilt_log, name_ms, require_rebuilt
from icedb_log.repair.rebuild_plan import RebuildPlan, plan_rebuild
from icedb_log.repair.rebuild_record import DamagedEntry, RebuildReport, Side, close_report, put_report, read_reports
from icedb_log.store.object_store import list_all
from icedb_log.table.table import Table

MAX_FORGET_ATTEMPTS: Final = 5

Decision = Literal["keep-inputs", "keep-outputs", "likely"]
_SIDES: Final[dict[Decision | None, Side]] = {"keep-inputs": "inputs", "keep-outputs": "outputs"}


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """What is asked for.

    Attributes:
        is_dry_run: Say what would be done; no fence is taken, nothing is written.
        is_forced: Rebuild although nothing is certainly wrong with the log: log files were lost, and you know it.
        decision: How to decide what nobody can tell; ``None``: refuse if there is any.
        takes_foreign: Take files that IceDB did not write and no record of an import names.
        assumes_fed: Of a view: count all commits that its source has as taken, if nobody knows.
        digest: Of the plan that a person agreed to: it is carried out, with what is likely where that changes nothing
            that was agreed to; any other is refused.
    """

    is_dry_run: bool = False
    is_forced: bool = False
    decision: Decision | None = None
    takes_foreign: bool = False
    assumes_fed: bool = False
    digest: str | None = None

    def plan(self, evidence: RebuildEvidence) -> RebuildPlan:
        """Decide what a rebuilt log says."""
        return plan_rebuild(
            evidence,
            decided=_SIDES.get(self.decision),
            takes_foreign=self.takes_foreign,
            assumes_fed=self.assumes_fed,
        )


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


def rebuild_table(table: Table, *, footers: FooterReader, options: RebuildOptions | None = None) -> RebuildResult:
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
    options = options or RebuildOptions()
    fences = read_fence_traces(table)
    if options.is_dry_run:
        report = options.plan(read_evidence(table, footers=footers, fences=fences)).report
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
    plan = options.plan(evidence)
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
    etag = put_report(table, report)
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
        if report.state == "open" and _has_landed(table, report):
            finished = _finish(table, report, etag)
        elif report.state == "open":
            unlanded.append((report, etag))
    return finished, unlanded


def _has_landed(table: Table, report: RebuildReport) -> bool:
    try:
        return not decode_log_file(report.log_key, table.store.get(report.log_key).body).is_seal
    except NotFound:
        return False


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
