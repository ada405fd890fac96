"""How the rules of ingest are switched off: flushes, quarantine, ids that are used again, and appends."""

from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

from icedb_log.errors import Unavailable
from icedb_log.ingest.content import DIGEST_CHARS
from icedb_log.ingest.flush import FlushLimits, _quarantine_bad_rows
from icedb_log.ingest.quarantine import conflict_name, find_reason, quarantine_batch, reason_key
from icedb_log.ingest.quarantine_ops import _delete_entry, _payloads_of
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.keys import parse_staged_key
from icedb_log.store.object_store import delete_or_raise

from icedb_sim.rules.mutations import Other, answers, around, breaks, careless, inside, instead, seen_with, with_store
from icedb_sim.rules.write import read_before_fence

_QUARANTINE_ROWS: Final = "ingest.flush:_quarantine_bad_rows"
_STALE: Final = "ingest.flush:refuse_stale_id"
_CONFIG: Final = "table.table_config:TableConfig."


def _without_payloads(store: Any) -> object:
    """Return a store to which no payload is written; reasons are written under conditions."""
    return Other(store, put=lambda *_: "")


def _delete_then_stage(table: Any, found: Any, *, payload: Any, retry_id: str) -> None:
    _delete_entry(table, found.entry)
    stage_batch(table, body=payload.body, staging_format=payload.format, batch_id=retry_id)


def _delete_reason_first(table: Any, entry: Any) -> None:
    for keys in ([reason_key(table.paths, entry.batch_id)], _payloads_of(table, entry)):
        report = table.store.delete(keys)
        if report.failed:
            raise Unavailable(f"{report.failed[0].key}: {report.failed[0].reason}; do it again")


# Flushes


def _clear_staging_first(original: Any, commit: Any, output: Any) -> None:
    original(commit, output)
    delete_or_raise(commit.table.store, [batch.key for batch in output.accepted])


def _clear_left_out(original: Any, commit: Any, *args: Any, **kwargs: Any) -> Any:
    output = original(commit, *args, **kwargs)
    if output.accepted:
        delete_or_raise(commit.table.store, [batch.key for batch in output.left_out])
    return output


def _move_refused_first(original: Any, commit: Any, output: Any) -> None:
    table = commit.table
    for refusal in output.rejected:
        quarantine_batch(table, rejected=refusal, clock=table.clock)
    original(commit, output)


def _note_bad_rows(commit: Any, output: Any) -> None:
    commit.output = output


def _land_then_quarantine(original: Any, commit: Any, log: Any, **kwargs: Any) -> Any:
    committed = original(commit, log, **kwargs)
    _quarantine_bad_rows(commit, commit.output)
    return committed


def _logs_without(**nothing: object) -> Any:
    """Return what lets a flush sort batches by a log that does not say something."""

    def sort_out(original: Any, batches: Any, log: Any, **kwargs: Any) -> Any:
        return original(batches, _silent(log, **nothing), **kwargs)

    return sort_out


def _silent(log: Any, **nothing: object) -> Any:
    return replace(log, files=tuple(replace(file, log=replace(file.log, **nothing)) for file in log.files))


def _read_without_ids(original: Any, commit: Any) -> None:
    original(commit)
    commit.log = _silent(commit.log, batch_ids=())


_listing: Final[ContextVar[dict[str, Any] | None]] = ContextVar("listing", default=None)


def _note_limits(original: Any, table: Any, writer: Any, *, limits: Any = None) -> Any:
    token = _listing.set({"limits": limits or FlushLimits()})
    try:
        return original(table, writer, limits=limits)
    finally:
        _listing.reset(token)


def _list_first(original: Any, commit: Any) -> None:
    known, table = _listing.get(), commit.table
    if known is not None:
        limits = known["limits"]
        known["staged"] = list_staged(table, limit=limits.listed_batches, skip=limits.skip)
    original(commit)


def _listed_before(original: Any, *args: Any, **kwargs: Any) -> Any:
    known = _listing.get() or {}
    return known["staged"] if "staged" in known else original(*args, **kwargs)


INGEST_RULES: Final = (
    breaks(
        "I2",
        "staged batches are deleted before the commit",
        around(_QUARANTINE_ROWS, _clear_staging_first),
    ),
    breaks(
        "I2",
        "staging is listed before the log is read",
        around("ingest.flush:flush_table", _note_limits),
        around("table.commit:AppendCommit._read_log", _list_first),
        around("ingest.flush:list_staged", _listed_before),
        profile="sleepycopies",
        by="test_flush.py::test_i2_the_log_is_read_before_staging_is_listed_and_after_the_fence",
    ),
    breaks(
        "I3",
        "ids in the log are not looked at",
        around("ingest.flush:_sort_out", _logs_without(batch_ids=())),
    ),
    breaks(
        "I3",
        "a batch may be staged again at any time",
        inside(_STALE, answers(_CONFIG + "retry_window_ms", 1 << 60)),
    ),
    breaks(
        "I3",
        "an id may lie in the future",
        inside(
            _STALE, instead(_CONFIG + "retry_window_ms", lambda config: config.log_grace_ms - config.log_grace_ms // 4)
        ),
        inside(_STALE, answers(_CONFIG + "id_skew_ms", 1 << 60)),
        profile="hastyproducers",
    ),
    breaks(
        "I5",
        "a batch is moved to quarantine before the commit that refuses it",
        around(_QUARANTINE_ROWS, _move_refused_first),
    ),
    breaks(
        "I5",
        "refused ids in the log are not looked at",
        around("ingest.flush:_sort_out", _logs_without(refused_ids=())),
    ),
    breaks(
        "I5",
        "the reason of bad rows is written without a look at the fence",
        inside(_QUARANTINE_ROWS, answers("log.fence:HeldFence.confirm", None)),
        profile="sleepyreasons",
        by="test_flush_refusals.py::test_i5_a_flush_that_lost_its_fence_says_nothing_of_bad_rows",
    ),
    breaks(
        "I5",
        "the reason of bad rows is written over whatever is there",
        with_store("ingest.quarantine:quarantine_rows", careless),
        profile="sleepyreasons",
    ),
    breaks(
        "I5",
        "the reason of bad rows is written after the commit",
        instead(_QUARANTINE_ROWS, _note_bad_rows),
        around("table.commit:AppendCommit.land", _land_then_quarantine),
    ),
    breaks(
        "I5",
        "what is refused leaves no copy in quarantine",
        with_store("ingest.quarantine:quarantine_batch", _without_payloads),
    ),
    breaks(
        "I5",
        "a retry deletes the batch before it is staged again",
        instead("ingest.quarantine_ops:_stage_again", _delete_then_stage),
    ),
    breaks(
        "I5",
        "the reason of a batch goes before the batch",
        instead("ingest.quarantine_ops:_delete_entry", _delete_reason_first),
    ),
    breaks(
        "I6",
        "what a flush leaves out for its size is cleared from staging",
        around("ingest.flush:_write", _clear_left_out),
        profile="sizedflushes",
    ),
)


# Ids that are used again for other content


def _only_look(original: Any, table: Any, key: str, **kwargs: Any) -> Any:
    name = conflict_name(parse_staged_key(key).batch_id, kwargs["sha256"])
    found = find_reason(table, name)
    if found is not None and found.fields and not found.is_being_dropped:
        return "conflict"
    return original(table, key, **kwargs)


def _take_left_for_kept(original: Any, *args: Any, **kwargs: Any) -> Any:
    settled = original(*args, **kwargs)
    return "conflict" if settled == "left" else settled


_KEEP: Final = "ingest.quarantine:_keep_conflict"

REUSE_RULES: Final = seen_with(
    "reusers:2",
    breaks(
        "I8",
        "a copy of a committed id goes whatever its content is",
        answers("ingest.quarantine:is_same_content", True),
    ),
    breaks(
        "I8",
        "a copy of a refused id goes whatever its content is",
        answers("ingest.quarantine:_is_content_of", True),
        by="test_id_conflicts.py::test_i8_other_content_under_a_refused_id_is_kept_beside_it",
    ),
    breaks("I8", "the janitor deletes copies by their id alone", answers("clean.vacuum:VacuumRun._settle", True)),
    breaks("I8", "other content goes without a copy in quarantine", with_store(_KEEP, _without_payloads)),
    breaks(
        "I8",
        "what a commit does not tell is taken for the same",
        instead("ingest.content:is_same_content", lambda known, sha256: not known or known == sha256[:DIGEST_CHARS]),
        by="test_id_conflicts.py::test_i8_what_an_older_release_has_committed_cannot_be_compared_and_is_kept",
    ),
    breaks(
        "I8",
        "what is told of contents counts for any commit",
        answers("log.codec:_is_own_word", True),
        by="test_id_conflicts.py::test_dig_that_a_merge_of_an_older_release_has_carried_counts_for_nothing_and_goes",
    ),
    breaks(
        "I8",
        "an entry of other content is only looked at",
        around(_KEEP, _only_look),
        by="test_id_conflicts.py::test_j11_a_copy_that_was_accepted_again_makes_its_entry_young",
    ),
    breaks(
        "I8",
        "a copy goes although the janitor drops its entry",
        around(_KEEP, _take_left_for_kept),
        by="test_id_conflicts.py::test_i8_a_copy_waits_while_the_janitor_drops_the_entry_of_its_content",
    ),
)


# Appends of jobs that write files themselves

OUTSIDER_RULES: Final = seen_with(
    "outsiders:2",
    breaks(
        "A1",
        "the log is read before the fence is taken",
        read_before_fence("ingest"),
        profile="sleepyoutsiders",
        by="test_append.py::test_the_log_is_read_under_the_fence",
    ),
    breaks(
        "A2",
        "a commit under the same id is not looked for",
        inside("ingest.append:_commit_once", around("table.commit:AppendCommit._read_log", _read_without_ids)),
    ),
    breaks(
        "A2",
        "an id may be of any age",
        answers("ingest.append:_require_young_id", None),
        profile="sleepyfollowers",
    ),
    breaks(
        "A3",
        "files may be of any age",
        answers("ingest.append:_require_young_files", None),
        profile="sleepyoutsiders",
        by="test_append.py::test_files_that_are_too_old_are_not_committed",
    ),
)
