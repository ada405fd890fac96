"""How the rules of ingest are switched off: flushes, quarantine, ids that are used again, and appends."""

from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

from icedb_log.batch_ids import is_keyed
from icedb_log.content import DIGEST_CHARS, hash_content
from icedb_log.errors import NotFound, Unavailable
from icedb_log.imports.import_records import read_records
from icedb_log.ingest.flush import FlushLimits, _quarantine_bad_rows, _run_job
from icedb_log.ingest.quarantine import conflict_name, find_reason, list_payloads, quarantine_batch, reason_key
from icedb_log.ingest.quarantine_ops import _delete_entry, _read_payload
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.store.object_store import delete_or_raise

from icedb_sim.rules.mutations import (
    UNASKED,
    Other,
    answers,
    around,
    breaks,
    careless,
    early,
    inside,
    instead,
    is_now,
    seen_with,
    with_arguments,
    with_store,
)
from icedb_sim.rules.write import read_before_fence

_QUARANTINE_ROWS: Final = "ingest.flush:_quarantine_bad_rows"
_STALE: Final = "ingest.flush:refuse_stale_id"
_CONFIG: Final = "table.table_config:TableConfig."


def _without_payloads(store: Any) -> object:
    """Return a store to which no payload is written; reasons are written under conditions."""
    return Other(store, put=lambda *_: "")


def _delete_then_stage(table: Any, entry: Any, *, retry_id: str) -> None:
    payload = None
    with suppress(NotFound):
        payload = _read_payload(table, entry)
    _delete_entry(table, entry)
    if payload is not None:
        stage_batch(table, body=payload.body, staging_format=payload.format, batch_id=retry_id)


def _delete_reason_first(table: Any, entry: Any) -> None:
    for keys in ([reason_key(table.paths, entry.batch_id)], list_payloads(table, entry.batch_id)):
        report = table.store.delete(keys)
        if report.failed:
            raise Unavailable(f"{report.failed[0].key}: {report.failed[0].reason}; do it again")


# Flushes


def _clear_staging_first(original: Any, commit: Any, output: Any) -> None:
    original(commit, output)
    delete_or_raise(commit.table.store, sorted({batch.key for batch in output.accepted}))


def _clear_left_out(original: Any, commit: Any, *args: Any, **kwargs: Any) -> Any:
    output = original(commit, *args, **kwargs)
    if output.accepted:
        delete_or_raise(commit.table.store, sorted({batch.key for batch in output.left_out}))
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


def _note_limits(original: Any, table: Any, writer: Any, *, limits: Any = None, is_staged: bool = False) -> Any:
    token = _listing.set({"limits": limits or FlushLimits()})
    try:
        return original(table, writer, limits=limits, is_staged=is_staged)
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
        "I1",
        "a batch is staged over whatever is there",
        with_store("ingest.staging:stage_batch", careless),
        by="test_staging.py::test_i1_the_same_id_with_other_content_is_refused",
    ),
    breaks(
        "I2",
        "staged batches are deleted before the commit",
        around(_QUARANTINE_ROWS, _clear_staging_first),
    ),
    breaks(
        "I2",
        "staging is listed before the log is read",
        around("ingest.flush:flush_table", _note_limits),
        around("commit.commit:AppendCommit._read_log", _list_first),
        around("ingest.flush:list_staged", _listed_before),
        profile="sleepycopies",
        by="test_flush.py::test_i2_the_log_is_read_before_staging_is_listed_and_after_the_fence",
    ),
    breaks(
        "I3",
        "ids in the log are not looked at",
        around("ingest.flush:_classify_batches", _logs_without(batch_ids=())),
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
        around("ingest.flush:_classify_batches", _logs_without(refused_ids=())),
    ),
    breaks(
        "I5",
        "the reason of bad rows is written without a look at the fence",
        inside(_QUARANTINE_ROWS, answers("commit.fence:HeldFence.confirm", None)),
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
        around("commit.commit:AppendCommit.land", _land_then_quarantine),
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


# Batches that crash who reads them


def _run_whole(commit: Any, writer: Any, batches: Any, *, sizes: Any, crashes: Any) -> Any:
    del crashes
    return _run_job(commit, writer, batches, sizes=sizes)


def _run_without_proof(original: Any, commit: Any, writer: Any, batches: Any, **kwargs: Any) -> Any:
    return original(commit, writer, batches, **kwargs) if batches else None


def _die_at_one_batch_only(original: Any, commit: Any, classified: Any) -> None:
    fence = commit.fence
    fence._state = replace(fence._state, losses=replace(fence.losses, alone_count=0))
    original(commit, classified)


def _forget_whatever_is_left(original: Any, commit: Any, left: Any) -> None:
    del left
    original(commit, ())


POISON_RULES: Final = seen_with(
    "poisoners:2",
    breaks("I5", "a batch that crashes its reader is not isolated", instead("ingest.flush:_run_isolating", _run_whole)),
    breaks("I5", "a batch that ends its reader is not isolated", answers("ingest.flush:_take_fewer", None)),
    breaks(
        "I5",
        "nobody knows which batch was read alone",
        around("ingest.flush:_take_fewer", _die_at_one_batch_only),
    ),
    breaks(
        "I5",
        "after several losses each commit has as few batches",
        instead("commit.losses:Losses.note_read", lambda losses: losses),
        by="test_flush_crashes.py::test_i5_few_commits_however_many_were_lost",
    ),
    breaks(
        "I5",
        "a batch is refused although jobs crash without it, too",
        around("ingest.flush:_run_job", _run_without_proof),
        by="test_flush_crashes.py::test_a_machine_that_reads_nothing_refuses_nothing",
    ),
)

SIZE_RULES: Final = seen_with(
    "sizers:2",
    breaks(
        "I5",
        "a flush forgets who was lost over batches of the other size",
        around("ingest.flush:_forget_lost", _forget_whatever_is_left),
    ),
)


# Ids that are used again for other content


def _only_look(original: Any, table: Any, batch: Any, body: Any, **kwargs: Any) -> Any:
    found = find_reason(table, conflict_name(batch.batch_id, hash_content(body, batch.format)))
    if found is not None and found.fields and not found.is_being_dropped:
        return "conflict"
    return original(table, batch, body, **kwargs)


def _take_left_for_kept(original: Any, *args: Any, **kwargs: Any) -> Any:
    outcome = original(*args, **kwargs)
    return "conflict" if outcome == "left" else outcome


_KEEP: Final = "ingest.quarantine:_keep"

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
    breaks(
        "I8", "the janitor deletes copies by their id alone", answers("clean.vacuum:VacuumRun._may_delete_copy", True)
    ),
    breaks("I8", "other content goes without a copy in quarantine", with_store(_KEEP, _without_payloads)),
    breaks(
        "I8",
        "what a commit does not tell is taken for the same",
        instead("content:is_same_content", lambda known, sha256: not known or known == sha256[:DIGEST_CHARS]),
        by="test_id_conflicts.py::test_i8_what_was_committed_without_its_content_cannot_be_compared_and_is_kept",
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


# Groups of batches


def _clear_touched(decided: Any, groups: Any) -> Any:
    del groups
    return tuple({batch.key: None for batch in decided})


def _hold_refusals_only(original: Any, plan: Any, view: Any, staged: Any) -> Any:
    alone = {i: copies for i, copies in staged.items() if not any(copy.is_grouped for copy in copies)}
    return original(plan, view, alone)


def _find_ids_alone(ids: Any, others: Any) -> dict[str, str]:
    return {batch_id: batch_id for batch_id in ids._ids.intersection(others)}


def _find_staged_ids_alone(original: Any, table: Any, batch_ids: Any) -> Any:
    return original(table, [batch_id for batch_id in batch_ids if not is_keyed(batch_id)])


def _list_by_name(original: Any, *args: Any, **kwargs: Any) -> Any:
    listing = original(*args, **kwargs)
    return replace(listing, batches=tuple(sorted(listing.batches, key=lambda batch: (batch.batch_id, batch.name))))


def _leave_out_gone(original: Any, store: Any, info: Any) -> Any:
    try:
        return original(store, info)
    except NotFound:
        return ()


GROUP_RULES: Final = seen_with(
    "groupers:2",
    breaks(
        "I2", "a group goes when one of its batches is decided", instead("ingest.staging:find_cleared", _clear_touched)
    ),
    breaks(
        "I3",
        "of two copies the one decides whose key comes first",
        around("ingest.flush:list_staged", _list_by_name),
        by="test_groups.py::test_i3_the_copy_that_was_staged_first_decides",
    ),
    breaks(
        "I3",
        "a copy that is too late alone takes the place of the one in its group",
        inside("ingest.flush:_has_own_copy", answers(_STALE, None)),
        by="test_groups.py::test_i3_what_would_be_too_late_alone_stays_in_its_group",
    ),
    breaks("I7", "a batch of a key is known by its id alone", instead("batch_ids:BatchIds.find_in", _find_ids_alone)),
    breaks(
        "I7",
        "an id that was made from a key may come late",
        inside(_STALE, answers("batch_ids:is_keyed", False)),
        by="test_keyed_batches.py::test_i7_an_id_of_a_key_that_comes_late_is_refused",
    ),
    breaks(
        "I7",
        "of two copies with one key the one decides whose id is lower",
        answers("ingest.flush:_find_first_of_keys", {}),
        by="test_keyed_batches.py::test_i7_the_copy_of_a_key_that_was_staged_first_decides",
    ),
    breaks(
        "J2",
        "a vacuum looks for copies of a batch by its id alone",
        around("clean.vacuum:find_staged", _find_staged_ids_alone),
        by="test_keyed_batches.py::test_j2_a_log_file_goes_only_with_the_copies_of_its_keys",
    ),
    breaks(
        "J2",
        "a log file goes while a group has one of its batches",
        around("clean.vacuum:_hold_decisions", _hold_refusals_only),
        by="test_groups.py::test_j2_a_log_file_stays_while_a_group_names_one_of_its_ids",
    ),
    breaks(
        "R5",
        "a group that has gone since it was listed is left out",
        around("ingest.groups:read_group", _leave_out_gone),
        by="test_groups.py::test_r5_a_batch_that_moves_out_of_its_group_is_never_nowhere",
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
        inside("ingest.append:_commit_once", around("commit.commit:AppendCommit._read_log", _read_without_ids)),
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


# Imports of files


_records: Final[ContextVar[Any]] = ContextVar("records", default=None)


def _read_records_first(original: Any, way: Any, placed: Any, result: Any) -> None:
    way.records_before = read_records(way.table)
    original(way, placed, result)


def _confirm_by_records_before(original: Any, way: Any, placed: Any, commit: Any) -> Any:
    token = _records.set(way.records_before)
    try:
        return original(way, placed, commit)
    finally:
        _records.reset(token)


def _read_before(original: Any, table: Any) -> Any:
    known = _records.get()
    return original(table) if known is None else known


def _look_early(way: Any, placed: Any) -> Any:
    now_ms = way.table.read_store_clock()
    return [way._find_age_ms(each, now_ms=now_ms) for each in placed] if hasattr(way, "_find_age_ms") else UNASKED


_SETTLE: Final = "imports.import_records:settle_records"

IMPORT_RULES: Final = seen_with(
    "importers:2",
    breaks(
        "N2",
        "what a committed record names is imported again",
        answers("imports.import_records:find_imported", {}),
    ),
    breaks(
        "N2",
        "the records are read before the log",
        around("imports.imports:_commit_once", _read_records_first),
        around("imports.imports:_Copies.confirm", _confirm_by_records_before),
        around("imports.imports:read_records", _read_before),
        by="test_imports.py::test_two_imports_of_the_same_files_at_once",
    ),
    breaks(
        "N2",
        "a commit is announced by no record",
        answers("imports.imports:create_record", None),
    ),
    breaks(
        "N3",
        "what became of a pending record is not looked at",
        instead(_SETTLE, lambda table, records, *, named, confirm, assumed=None: tuple(records)),
        by="test_imports.py::test_a_crash_after_the_commit_is_settled_also_when_its_files_were_merged",
    ),
    breaks(
        "N3",
        "who has lost the fence settles a pending record",
        with_arguments(_SETTLE, confirm=lambda: None),
        by="test_imports.py::test_n3_who_has_lost_the_fence_settles_no_record",
    ),
    breaks(
        "N4",
        "a file in place is taken although the log has named it since",
        inside("imports.imports:_InPlace.confirm", answers("imports.imports:named_paths", frozenset())),
        by="test_imports_in_place.py::test_in_place_two_imports_of_the_same_files_at_once",
    ),
    breaks(
        "N4",
        "a file in place is looked at before the log is read",
        early("imports.imports:_commit_once", "imports.imports:map_each", _look_early),
        by="test_imports_in_place.py::test_in_place_what_was_merged_and_vacuumed_meanwhile_is_not_made_live_again",
    ),
    breaks(
        "N4",
        "a file in place may be of any age",
        is_now("imports.imports:_CLOCK_MARGIN_MS", -(1 << 60)),
        by="test_imports_in_place.py::test_in_place_old_files_are_refused_because_the_sweep_may_be_deleting_them",
    ),
    breaks(
        "N6",
        "a file in place may have field ids",
        around(
            "imports.imports:_InPlace.find_problem",
            lambda original, way, file: original(way, replace(file, has_field_ids=False)),
        ),
        by="libs/icedb/tests/test_field_ids.py::test_n6_a_file_in_place_that_has_ids_is_refused",
    ),
)
