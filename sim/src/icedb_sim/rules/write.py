"""How the rules of commits are switched off: names, outcomes, fences, merges, deletions and rewrites, retention."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from icedb_log.changes.partition_removal import RemovalResult, _plan, _remove, _result
from icedb_log.changes.retention import JudgedPartition
from icedb_log.commit.fence import CLAIM_MS
from icedb_log.commit.merge_log import build_merge_log
from icedb_log.errors import CommitConflict, Fenced
from icedb_log.log.codec import encode_log_file
from icedb_log.log.fold import add_landed
from icedb_log.log.state import LogState
from icedb_log.log.widening import LoggedSchema
from icedb_log.model import Widening

from icedb_sim.rules.mutations import (
    Switch,
    answers,
    around,
    breaks,
    careless,
    inside,
    instead,
    keeps,
    repeats,
    seen_with,
    with_arguments,
    with_store,
)
from icedb_sim.tables.row_tests import RowTest

_BUILD: Final = "commit.merge_log:build_merge_log"
_FENCE: Final = "commit.fence:HeldFence."
_ACQUIRE: Final = "commit.fence:acquire_fence"
_FOR_EVER: Final = 1 << 60
_EXCHANGE: Final = "commit.exchange:ExchangeCommit."


def merge_log(change: Callable[..., Any]) -> Switch:
    """Let a merge commit another log file than the one that was built.

    Args:
        change: Takes the log file, the log, the inputs of the merge by key, and what else the builder takes.
    """

    def build(original: Any, state: Any, **kwargs: Any) -> Any:
        inputs = {marker.path: group for group in kwargs["merged"] for marker in group.group.inputs}
        return change(original(state, **kwargs), state.view, inputs, **kwargs)

    return around(_BUILD, build)


def _markers_if(keep: Callable[..., bool]) -> Switch:
    """Let a merge commit only some of its markers: those for which this holds, given the inputs by key."""

    def change(log: Any, _: Any, inputs: Any, **kwargs: Any) -> Any:
        return replace(log, markers=tuple(m for m in log.markers if keep(m, inputs, kwargs["merged"])))

    return merge_log(change)


def _is_removal(merged: Any) -> bool:
    return bool(merged) and not any(group.outputs for group in merged)


# Names, outcomes, fences


def _name_by_own_clock(log: Any, _view: Any, inputs: Any, *, now_ms: int, **_: Any) -> Any:
    own_ms = log.time_ms
    markers = [
        replace(m, tombstoned_ms=now_ms) if m.path in inputs and m.tombstoned_ms == own_ms else m for m in log.markers
    ]
    dead = [replace(t, tombstoned_ms=now_ms) if t.tombstoned_ms == own_ms else t for t in log.log_tombstones]
    return replace(log, time_ms=now_ms, markers=tuple(markers), log_tombstones=tuple(dead))


def _name_behind_own_alone(original: Any, state: Any, **kwargs: Any) -> Any:
    inputs = {marker.path for group in kwargs["merged"] for marker in group.group.inputs}
    own = {*kwargs["folded_log_keys"], *(key for path in inputs for key in state.logs_naming(path))}
    log = original(state, **kwargs)
    times = (file.log.time_ms + 1 for file in state.view.files if file.key in own and not file.log.is_seal)
    return _name_by_own_clock(log, state.view, inputs, now_ms=max(kwargs["now_ms"], *times, 0))


def _take_for_landed(*, is_key_taken: bool) -> Switch:
    """Let an answer to a PUT be taken for a landed commit: the refusal, or none at all."""
    wrong = is_key_taken

    def require(original: Any, fence: Any, key: str, log: Any, *, is_key_taken: bool) -> None:
        if is_key_taken is not wrong:
            original(fence, key, log, is_key_taken=is_key_taken)

    return around(_FENCE + "_require_landed", require)


def _put_once_more(original: Any, fence: Any, key: str, log: Any, *, is_key_taken: bool) -> None:
    if is_key_taken:
        original(fence, key, log, is_key_taken=is_key_taken)
        return
    other = fence._paths.log_key(time_ms=log.time_ms, commit_id=fence._clock.new_id(), is_merged=fence._role == "merge")
    fence._store.put_if_absent(other, encode_log_file(log))


def _take_refusal_for_loss(original: Any, fence: Any, key: str, log: Any, *, is_key_taken: bool) -> None:
    if is_key_taken:
        raise Fenced("refused, hence lost")
    original(fence, key, log, is_key_taken=is_key_taken)


def _delete_refused_outputs(original: Any, commit: Any, merged: Any, **kwargs: Any) -> Any:
    try:
        return original(commit, merged, **kwargs)
    except (CommitConflict, Fenced):
        commit.table.store.delete([marker.path for group in merged for marker in group.outputs])
        raise


def _look_at_time_first(original: Any, fence: Any, log: Any, *, last_check: Any = None, **kwargs: Any) -> Any:
    if last_check is not None:
        last_check()
    return original(fence, log, **kwargs)


def read_before_fence(role: str) -> Switch:
    """Let those who take one fence read the log before they have it."""

    def enter(original: Any, commit: Any) -> Any:
        if commit._role == role:
            commit._read_log()
            commit._read_log = lambda: None
        return original(commit)

    return around("commit.commit:Commit.__enter__", enter)


def _merge_seals(original: Any, state: Any, **kwargs: Any) -> Any:
    files = tuple(replace(file, log=replace(file.log, is_seal=False)) for file in state.view.files)
    return original(LogState.of(replace(state.view, files=files)), **kwargs)


def _advance_without_intent(original: Any, fence: Any, *, commit: str | None, **kwargs: Any) -> None:
    if commit is None:
        original(fence, commit=commit, **kwargs)


_REFUSED_IS_LOST: Final = around(_FENCE + "_require_landed", _take_refusal_for_loss)
_DELETE_OUTPUTS: Final = around(_EXCHANGE + "land", _delete_refused_outputs)

WRITE_RULES: Final = (
    breaks("S1", "a merge is named by its own clock alone", merge_log(_name_by_own_clock)),
    breaks(
        "S1",
        "a merge is named behind what it folds and what names its inputs alone",
        around(_BUILD, _name_behind_own_alone),
        by="test_merge_log.py::test_s1_a_fold_is_named_behind_the_merge_that_killed_what_it_leaves_out",
    ),
    breaks("W2", "a lost answer is taken for a landed commit", _take_for_landed(is_key_taken=False)),
    breaks("W2", "a refusal is taken for a landed commit", _take_for_landed(is_key_taken=True)),
    breaks(
        "W2",
        "a lost answer is answered by a second PUT under another name",
        around(_FENCE + "_require_landed", _put_once_more),
        by="test_fence_commit.py::test_w2_a_lost_answer_of_a_commit_that_landed_is_found_out",
    ),
    breaks("W2", "a refusal is taken for a lost commit, whose outputs are deleted", _REFUSED_IS_LOST, _DELETE_OUTPUTS),
    keeps("W2", "outputs are deleted when a commit was certainly refused", _DELETE_OUTPUTS),
    keeps("W2", "a refusal is taken for a lost commit, whose outputs stay", _REFUSED_IS_LOST),
    breaks(
        "W3",
        "old work is committed all the same",
        answers("commit.commit:Stopwatch.require_within", None),
        profile="sleepyintents",
    ),
    breaks(
        "W3",
        "the time is looked at before the intent",
        around(_FENCE + "commit", _look_at_time_first),
        profile="sleepyintents",
    ),
    breaks("F1", "the old commit is not sealed", inside(_ACQUIRE, answers("commit.fence:_settle", False))),
    breaks("F2", "a merge is planned from a log read before the fence", read_before_fence("merge")),
    breaks("F2", "a flush reads the log before the fence", read_before_fence("ingest")),
    breaks("F3", "no intent is written", around(_FENCE + "_advance", _advance_without_intent)),
    breaks("F3", "the intent is written over whatever is there", with_store("commit.fence:write_fence", careless)),
    breaks(
        "F4",
        "a seal is merged away like any log file",
        instead(
            "log.state:LogState.active_files",
            lambda index: tuple(file for key, file in index._files.items() if key not in index._killed),
        ),
        around(_BUILD, _merge_seals),
    ),
)


# Merges


def _carried_log_tombstones_if(*, is_new: bool) -> Switch:
    """Let a merge carry only the log tombstones of what it folds itself, or only the others."""

    def carry(original: Any, folded: Any, time_ms: int) -> Any:
        keys = {file.key for file in folded}
        return tuple(t for t in original(folded, time_ms) if (t.path in keys) is is_new)

    return around("commit.merge_log:_carried_log_tombstones", carry)


def _carried_markers_if(*, is_live: bool) -> Switch:
    """Let a merge carry only live markers of the folded log files, or only dead ones."""
    return around(
        "commit.merge_log:_carried_markers",
        lambda original, *args, **kwargs: [m for m in original(*args, **kwargs) if m.is_live is is_live],
    )


MERGE_RULES: Final = (
    breaks("M1", "live markers of the folded log files are not carried", _carried_markers_if(is_live=False)),
    breaks("M1", "dead markers of the folded log files are not carried", _carried_markers_if(is_live=True)),
    breaks(
        "M1",
        "log tombstones of the folded log files are not carried",
        _carried_log_tombstones_if(is_new=True),
        by="test_merge_log.py::test_m1_log_tombstones_of_folded_log_files_are_carried_and_each_of_them_gets_one",
    ),
    breaks("M1", "the folded log files get no tombstone", _carried_log_tombstones_if(is_new=False)),
    breaks("M1", "the inputs get no tombstone", _markers_if(lambda m, inputs, _: m.is_live or m.path not in inputs)),
    breaks(
        "M1",
        "outputs with columns that the table has not are committed",
        answers("merge.content_check:_find_unknown", []),
        by="test_content_check.py::test_m1_a_column_of_an_output_that_the_table_has_not_is_a_difference",
    ),
    breaks("S2", "a merge forgets what was widened", merge_log(lambda log, *_, **__: replace(log, widened={}))),
    breaks(
        "S2",
        "a merge writes the wider type into its schema line",
        merge_log(
            lambda log, *_, **__: replace(log, schema=LoggedSchema(log.schema, log.widened).effective, widened={})
        ),
    ),
    breaks(
        "S2",
        "a merge says that a column became wider when it merged",
        merge_log(
            lambda log, *_, **__: replace(
                log, widened={name: Widening(each.sql_type, log.time_ms) for name, each in log.widened.items()}
            )
        ),
    ),
    breaks(
        "S2",
        "a merge says of what it carries what it knows of its outputs",
        with_arguments("commit.merge_log:state_inexact", carried=()),
        by="test_exact_values.py::test_s2_a_merge_that_takes_log_files_along_carries_what_they_say",
    ),
    breaks(
        "S2",
        "a column becomes wider without a look at what merges have committed since",
        answers("commit.commit:AppendCommit._require_proven", None),
        by="test_exact_values.py::test_s2_a_merge_that_makes_long_integers_after_the_proof_keeps_the_column_narrow",
    ),
    breaks(
        "S2",
        "a column becomes wider by a commit that the fence of merges does not announce",
        with_arguments("commit.commit:Commit._put", beside=None),
        by="test_exact_values.py::test_s2_a_widening_that_stalls_before_its_put_is_settled_by_the_next_merge",
    ),
    breaks(
        "S2",
        "a column becomes wider under the fence of ingest alone",
        instead(
            "commit.commit:AppendCommit.land",
            lambda commit, log, *, last_check=None, on_landed=None: commit._put(
                log, last_check=last_check, on_landed=on_landed
            ),
        ),
        by="test_exact_values.py::test_s2_a_merge_that_is_at_work_loses_its_fence_to_a_widening",
    ),
    breaks(
        "J1",
        "a new tombstone claims to have landed when its input was made",
        merge_log(
            lambda log, view, inputs, **_: replace(
                log,
                markers=tuple(replace(m, landed_ms=view.store_now_ms) if m.path in inputs else m for m in log.markers),
            )
        ),
        profile="sleepyputs",
    ),
    keeps("R3", "a merge forgets the horizon", merge_log(lambda log, *_, **__: replace(log, horizon_ms=None))),
)


# Deletions, rewrites, removals


def _keep_what_is_to_go(_: Any, rows: list[int], change: Any) -> tuple[list[int], int | None]:
    test = RowTest.parse(change.sql)
    kept = [row for row in rows if test.holds(row)]
    return kept, len(rows) - len(kept) if change.kind == "delete" else None


def _look_once(original: Any, run: Any, log: Any) -> Any:
    if getattr(run, "has_looked", False):
        return None
    run.has_looked = True
    return original(run, log)


def _remove_without_fence(table: Any, choose: Any, *, dry_run: bool = False) -> RemovalResult:
    view, paths = table.read_log(), table.paths
    chosen = _plan(table, view, choose)
    if dry_run or not chosen:
        return _result(chosen)
    merged = [_remove(info.path, markers) for info, markers in chosen]
    log = build_merge_log(
        LogState.of(view),
        merged=merged,
        folded_log_keys=(),
        commit_id=table.clock.new_id(),
        now_ms=table.clock.now_ms(),
    )
    key = paths.log_key(time_ms=log.time_ms, commit_id=log.commit_id or "", is_merged=True)
    table.store.put_if_absent(key, encode_log_file(log))
    return _result(chosen)


CHANGE_RULES: Final = (
    breaks(
        "M3",
        "a removal carries no other markers of the folded log files",
        _markers_if(lambda m, inputs, merged: m.path in inputs or not _is_removal(merged)),
    ),
    breaks(
        "M3",
        "a removal carries live markers only",
        _markers_if(lambda m, inputs, merged: m.is_live or m.path in inputs or not _is_removal(merged)),
    ),
    breaks(
        "M3",
        "a data file of which no row is left gets no tombstone",
        _markers_if(lambda m, inputs, _: m.is_live or m.path not in inputs or bool(inputs[m.path].outputs)),
    ),
    breaks(
        "M3",
        "a deletion keeps the rows for which the condition holds",
        instead("icedb_sim.simulation.changes:SimRowChanger.keep_rows", _keep_what_is_to_go),
        answers("changes.row_changes:_require_counted", None),
    ),
    breaks(
        "M3",
        "files that are not counted are not rewritten",
        inside(
            "changes.row_changes:_Run.find_hits",
            around("changes.row_changes:_batched", lambda original, values, _: original(values[:1], 1)),
        ),
    ),
    breaks(
        "M3",
        "every change says that it is a merge",
        with_arguments("commit.exchange:build_merge_log", change="merge"),
        by="test_log_changes.py::test_each_change_is_told_by_its_log_file",
    ),
    breaks(
        "M4",
        "a removal commits what it planned before the fence",
        repeats("changes.partition_removal:remove_partitions", "changes.partition_removal:_plan"),
        profile="sleepychangers",
    ),
    breaks(
        "M4",
        "a deletion rewrites what it found before the fence",
        repeats("changes.row_changes:delete_rows", "changes.row_changes:_Run.find_hits"),
        profile="sleepychangers",
    ),
    breaks(
        "M7",
        "nobody looks whether a request was carried out",
        answers("log.requests:ChangeRequestId.find_outcome", None),
        by="test_change_requests.py::test_a_run_that_is_disturbed_at_any_call_can_be_repeated",
    ),
    breaks(
        "M7",
        "a request is looked for before the fence alone",
        around("changes.row_changes:_Run.find_earlier", _look_once),
        by="test_change_requests.py::test_a_request_that_another_run_carries_out_meanwhile_is_not_carried_out_again",
    ),
    breaks(
        "M7",
        "a merge does not carry what was asked for",
        merge_log(lambda log, *_, **__: replace(log, requests={})),
        by="test_change_requests.py::test_merges_and_vacuums_carry_it_on",
    ),
    breaks(
        "M7",
        "a request may be of any age",
        answers("log.requests:ChangeRequestId.require_young", None),
        by="test_change_requests.py::test_it_is_forgotten_when_nobody_may_repeat_it_any_more",
    ),
    breaks(
        "M4",
        "a removal commits without the fence",
        instead("changes.partition_removal:remove_partitions", _remove_without_fence),
        by="test_partition_removal.py::test_m4_a_removal_during_a_merge_fences_it",
    ),
    breaks(
        "M4",
        "changes of rows have a fence of their own",
        around(
            "commit.commit:acquire_fence",
            lambda original, table, role, **kwargs: original(
                table, "ingest" if "changer" in table.owner else role, **kwargs
            ),
        ),
    ),
    breaks(
        "M6",
        "outputs with other values are committed",
        answers(_EXCHANGE + "_require_same_contents", None),
        by="test_merge_contents.py::test_m6_the_first_difference_fails_the_run_and_the_second_halts_whoever_runs",
    ),
    breaks(
        "M6",
        "a merge that differs is tried again for ever",
        inside(_EXCHANGE + "_require_same_contents", answers(_FENCE + "differed", "")),
        by="test_merge_contents.py::test_m6_the_first_difference_fails_the_run_and_the_second_halts_whoever_runs",
    ),
    breaks(
        "M6",
        "any commit makes a difference forgotten",
        instead(_EXCHANGE + "_before_release", lambda commit: commit.fence.forget_difference()),
        by="test_merge_contents.py::test_m6_other_commits_do_not_make_it_forgotten_that_a_merge_differed",
    ),
)


# What fences remember


def _note_intent_as_landed(original: Any, fence: Any, *, commit: str | None, **kwargs: Any) -> None:
    fence._state = replace(fence._state, landed=add_landed(fence._state.landed, commit or "none"))
    original(fence, commit=commit, **kwargs)


def _claimed_without_bound(state: Any, modified_ms: int, *, now_ms: int) -> Any:
    return max(0, modified_ms + state.claim_ms - now_ms)


def _advance_by_claim(original: Any, fence: Any, *, commit: str | None, **kwargs: Any) -> None:
    now_ms = fence._clock.monotonic_ms()
    until_ms = vars(fence).setdefault("claimed_until_ms", now_ms + CLAIM_MS)
    if commit is None or now_ms > until_ms:
        fence.claimed_until_ms = now_ms + CLAIM_MS
        original(fence, commit=commit, **kwargs)


def _settle_and_call_it_landed(original: Any, *args: Any) -> bool:
    original(*args)
    return False


FENCE_RULES: Final = (
    *seen_with(
        "checkers:1",
        breaks(
            "F5",
            "an intent counts as landed",
            around(_FENCE + "_advance", _note_intent_as_landed),
            by="test_fsck_lost_commits.py::test_f5_an_intent_is_remembered_by_who_takes_over_if_it_is_read_back_as_landed",
        ),
        breaks(
            "F5",
            "what an owner left counts as landed, sealed or not",
            inside(_ACQUIRE, around("commit.fence:_settle", _settle_and_call_it_landed)),
            answers("commit.fence:_has_landed", True),
            by="test_fsck_lost_commits.py::test_f5_an_intent_that_another_one_sealed_is_not_remembered",
        ),
        breaks(
            "F5",
            "a commit that lands is not remembered",
            inside(_FENCE + "commit", answers("commit.fence:add_landed", ())),
            by="test_fsck_lost_commits.py::test_f5_a_commit_is_remembered_when_the_fence_is_written_next_and_no_earlier",
        ),
    ),
    *seen_with(
        "embedders:2",
        breaks(
            "F6",
            "a claim is believed, and waited for, without any bound",
            instead("commit.fence:FenceState.claimed_ms", _claimed_without_bound),
            with_arguments("commit.fence:_wait_for_others", until_ms=_FOR_EVER),
            profile="fairappends",
        ),
        breaks(
            "F6",
            "a claim counts for as long as it says",
            instead("commit.fence:FenceState.claimed_ms", _claimed_without_bound),
            by="test_fence_claims.py::test_f6_a_claim_counts_for_a_few_seconds_whatever_it_says",
        ),
        breaks(
            "F6",
            "who waits for one who goes on does so for ever",
            with_arguments("commit.fence:_wait_for_others", until_ms=_FOR_EVER),
            by="test_fence_claims.py::test_f6_nobody_waits_longer_than_his_patience_for_one_who_goes_on",
        ),
        breaks(
            "F6",
            "a flush that was interrupted takes as many batches again",
            answers(_FENCE + "interrupted", 0),
            by="test_fence_claims.py::test_f6_a_flush_that_is_interrupted_takes_fewer_batches_until_it_gets_through",
        ),
        breaks(
            "F6",
            "a claim is trusted: while it lasts its owner announces no commit",
            around(_FENCE + "_advance", _advance_by_claim),
            profile="sleepyclaims",
        ),
        breaks(
            "F6",
            "a fence does not say whose files are being written",
            answers(_FENCE + "announce_writing", None),
            by="test_rebuild_plan.py::test_files_of_a_job_that_failed_are_not_taken",
        ),
        keeps("F6", "nobody heeds claims", with_arguments("commit.fence:_wait_for_others", until_ms=0)),
    ),
)


# Retention


def _hour_by_its_beginning(original: Any, *args: Any) -> Any:
    found = original(*args)
    return found and (found[0], found[0])


def _expired_all_the_same(reason: str) -> Any:
    def judge(original: Any, info: Any, *args: Any, **kwargs: Any) -> Any:
        judged = original(info, *args, **kwargs)
        return JudgedPartition(info, None, judged.until_ms or 0) if judged.reason == reason else judged

    return around("changes.retention:_judge", judge)


def _ask_host(original: Any, infos: Any, config: Any, *, store_now_ms: int, host_now_ms: int) -> Any:
    del store_now_ms
    return original(infos, config, store_now_ms=host_now_ms, host_now_ms=host_now_ms)


def _believe_store(original: Any, infos: Any, config: Any, *, store_now_ms: int, host_now_ms: int) -> Any:
    del host_now_ms
    return original(infos, config, store_now_ms=store_now_ms, host_now_ms=store_now_ms)


RETENTION_RULES: Final = seen_with(
    "retainers:2",
    breaks(
        "M5",
        "an hour goes when its beginning is old enough",
        around("changes.retention:parse_time_range", _hour_by_its_beginning),
    ),
    breaks("M5", "what is no time goes, too", _expired_all_the_same("unparsable")),
    breaks("M5", "rows that came just now go", _expired_all_the_same("late")),
    breaks("M5", "the host's clock decides", around("changes.retention:plan_retention", _ask_host)),
    breaks(
        "M5", "clocks that are hours apart are believed", around("changes.retention:plan_retention", _believe_store)
    ),
    breaks("M5", "more than half of the table goes unasked", answers("changes.retention:require_allowed", None)),
    breaks(
        "M5",
        "the policy is read before the fence is taken",
        repeats("changes.retention:retain_table", "commit.table:Table.renewed"),
        by="test_retain.py::test_a_retention_that_is_made_longer_while_the_run_waits_for_the_fence_counts",
    ),
)
