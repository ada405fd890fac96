"""How the rules of the janitor are switched off: vacuums, sweeps, leases, tags, lost commits, quarantine by age."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from icedb_log.clean.deletion import Deleted
from icedb_log.commit.fence import settle_fence
from icedb_log.errors import IceDBError
from icedb_log.holds.stored_holds import HoldReader
from icedb_log.ingest.staging import find_staged
from icedb_log.keys import ROLES
from icedb_log.repair.rebuild_evidence import FenceTraces
from icedb_log.store.store_clock import MAX_STORE_GAP_MS

from icedb_sim.rules.mutations import (
    Other,
    Switch,
    answers,
    around,
    breaks,
    careless,
    early,
    instead,
    keeps,
    repeats,
    seen_with,
    with_arguments,
    with_store,
)

_VACUUM: Final = "clean.vacuum:vacuum_table"
_SWEEP: Final = "clean.orphans:sweep_orphans"
_RUN: Final = "clean.vacuum:VacuumRun."
_READ_LOG: Final = "log.reader:LogReader.read"
_READ_HOLDS: Final = "clean.holds:read_holds"


def holds_without(kind: str) -> Switch:
    """Let a plan not know of something that holds dead objects."""

    def read(original: Any, *args: Any, **kwargs: Any) -> Any:
        holds = original(*args, **kwargs)
        return replace(holds, found=tuple(hold for hold in holds.found if hold.kind != kind))

    return around(_READ_HOLDS, read)


# Vacuums


def _stage_list_first(table: Any) -> Mapping[str, tuple[Any, ...]]:
    logs = [file.log for file in table.read_log().files]
    return find_staged(table, {i for log in logs for i in (*log.batch_ids, *log.refused_ids)})


def read_all_holds(table: Any) -> Any:
    """Read the holds of a table, as a vacuum does, at another time."""
    return HoldReader().read(table)


def _note_all_of_part_gone(original: Any, run: Any, portions: Sequence[Any]) -> None:
    run._gone_data |= {marker.path for portion in portions for marker in portion.markers}
    original(run, portions)


def _strip_before_delete(original: Any, run: Any, portions: Sequence[Any]) -> Any:
    run._gone_data |= {marker.path for portion in portions for marker in portion.markers}
    run._strip_part(portions)
    return original(run, portions)


def _strip_of_all_planned(original: Any, run: Any, key: str) -> None:
    run._gone_logs |= set(run._plan.log_keys)
    original(run, key)


def _strip_without_horizon(original: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
    log = original(file, *args, **kwargs)
    return log and replace(log, horizon_ms=file.log.horizon_ms)


def _delete_then_announce(deleter: Any, chunk: Sequence[Any]) -> Any:
    done = deleter._delete_chunk(chunk)
    if deleter._audit is not None:
        deleter._audit.announce(chunk)
    return done


def _leased_ms(hold: Any) -> Any:
    return hold.since_ms + MAX_STORE_GAP_MS


def _keeps_what_a_committer_said(hold: Any, path: str, death: Any) -> bool:
    return path in hold.files if hold.since_ms is None else _leased_ms(hold) < death.tombstoned_ms


_IGNORES_LEASES: Final = holds_without("lease")
_DELETES_WHAT_IS_LIVE: Final = instead(_RUN + "_find_deletable", lambda run: set(run._plan.data_paths))


class _AllKeys:
    """Has every key."""

    def __contains__(self, key: str) -> bool:
        return True


def _call_all_gone(original: Any, deleter: Any, chunk: Any) -> Deleted:
    original(deleter, chunk)
    return Deleted(frozenset(each.key for each in chunk))


_VACUUM_RULES: Final = (
    breaks(
        "J6",
        "what the store could not delete counts as gone",
        around("clean.deletion:Deleter._delete_chunk", _call_all_gone),
        by="test_vacuum.py::test_j6_a_data_file_that_cannot_be_deleted_stays_named_until_it_is",
    ),
    breaks(
        "J1",
        "a tombstone's age is its committer's word",
        instead("holds.guards:Death.died_ms", lambda death: death.tombstoned_ms),
        profile="skews",
        by="test_vacuum_plan.py::test_j1_a_tombstone_that_landed_late_counts_from_its_landing",
    ),
    breaks(
        "J1",
        "a tombstone's age is its proof of landing alone",
        instead("holds.guards:Death.died_ms", lambda death: death.landed_ms),
        profile="skews",
        by="test_vacuum_plan.py::test_j1_a_tombstone_of_a_clock_that_is_ahead_counts_from_its_time",
    ),
    breaks(
        "J2",
        "staged copies are not deleted before the log files that know them",
        instead(_RUN + "_delete_copies", lambda _, copies: set(copies)),
    ),
    breaks(
        "J2",
        "log files go although a staged copy could not be deleted",
        with_arguments(_RUN + "_delete_log_files", stuck=set()),
    ),
    breaks(
        "J2",
        "log files go although a batch that they refused is still staged",
        instead("clean.vacuum:_hold_decisions", lambda plan, view, staged: plan),
        profile="sleepyreasons",
        by="test_vacuum.py::test_j2_a_log_file_stays_while_a_batch_that_it_refused_is_still_staged",
    ),
    breaks(
        "J2",
        "a vacuum lists staging before it reads the log",
        early(_VACUUM, "clean.vacuum:find_staged", _stage_list_first),
        by="test_vacuum.py::test_j2_staging_is_listed_after_the_log_was_read",
    ),
    breaks(
        "J2",
        "data files go although a log file still lists them as live",
        _DELETES_WHAT_IS_LIVE,
        with_arguments("clean.vacuum_plan:_find_expired_data", dead_logs=_AllKeys()),
    ),
    breaks("J2", "data files go although their log file could not be deleted", _DELETES_WHAT_IS_LIVE),
    keeps(
        "J2",
        "markers are stripped of data files that could not be deleted",
        around(_RUN + "_strip_part", _note_all_of_part_gone),
    ),
    keeps(
        "J2",
        "log files are stripped before the data files of their part are deleted",
        around(_RUN + "_data_candidates", _strip_before_delete),
    ),
    breaks(
        "J2",
        "tombstones are stripped of log files that could not be deleted",
        around(_RUN + "_strip", _strip_of_all_planned),
    ),
    breaks(
        "J3",
        "a strip replaces whatever is there",
        with_store(_RUN + "_strip", careless),
        profile="sleepyjanitors",
        by="test_vacuum.py::test_j3_a_strip_does_not_bring_back_a_log_file_that_was_merged_and_deleted",
    ),
    breaks(
        "F4",
        "a seal is vacuumed at once",
        instead(
            "clean.vacuum_plan:_expired_seals",
            lambda view, config: [file.key for file in view.files if file.log.is_seal],
        ),
    ),
    breaks(
        "R3",
        "a strip does not record the horizon",
        around("clean.vacuum_plan:strip_log_file", _strip_without_horizon),
    ),
    breaks("J4", "leases are ignored", _IGNORES_LEASES),
    breaks(
        "J4",
        "a lease believes the time that a committer gave its tombstones",
        instead("holds.guards:Hold.keeps", _keeps_what_a_committer_said),
        profile="skews",
        by="tests/simulation/test_found_by_simulation.py::test_j4_a_lease_protects_from_tombstones_that_a_slow_clock_dated_back",
    ),
    breaks(
        "J4",
        "leases are read before the log",
        early(_VACUUM, "holds.stored_holds:HoldReader.read", read_all_holds),
        profile="sleepylookers",
    ),
    keeps("J1", "a vacuum does not look at the store's clock", answers("clean.vacuum:check_store_clock", None)),
    breaks(
        "J10",
        "objects are announced when they are deleted, not before",
        instead("clean.deletion:Deleter._delete_announced", _delete_then_announce),
    ),
)


# Orphan sweeps


def _settle_late(original: Any, table: Any) -> Any:
    for role in ROLES:
        settle_fence(table, role)
    return original(table)


_LOG_BEFORE_LISTING: Final = repeats(_SWEEP, _READ_LOG)
_UNSETTLED: Final = answers("clean.orphans:settle_fence", None)

_ORPHAN_RULES: Final = (
    breaks("J5", "all data files look old", answers("clean.table_walk:_is_old", True)),
    breaks(
        "J5",
        "the log is read before the data files are listed",
        _LOG_BEFORE_LISTING,
        profile="sleepyjanitors",
    ),
    breaks("J5", "commits under way are not settled", _UNSETTLED, profile="sleepyputs"),
    breaks(
        "J5",
        "commits under way are settled after the log was read",
        _UNSETTLED,
        around("clean.orphans:_tagged", _settle_late),
        profile="sleepysettlers",
    ),
    breaks(
        "J5",
        "a data file counts as named only while it is live",
        instead(
            "clean.orphans:_named",
            lambda view: {marker.path for file in view.files for marker in file.log.markers if marker.is_live},
        ),
        profile="longgraces",
    ),
    breaks(
        "J5",
        "the share is not looked at",
        answers("clean.orphans:_share", 0.0),
        by="test_orphan_share.py::test_more_than_a_quarter_of_the_bytes_is_not_deleted",
    ),
)


# Commits that were lost, and rebuilds

_REBUILT: Final = "repair.rebuild:build_rebuilt_log"


def _behind_whole_log_files(original: Any, evidence: Any, plan: Any, **kwargs: Any) -> Any:
    return original(replace(evidence, damaged=(), fences=FenceTraces()), plan, **kwargs)


def _without_horizon(original: Any, *args: Any, **kwargs: Any) -> Any:
    return replace(original(*args, **kwargs), horizon_ms=0)


def _without_ingest(original: Any, table: Any, role: Any) -> Any:
    return original(table, role) if role == "merge" else SimpleNamespace(confirm=lambda: None, release=lambda: None)


def _remove_whatever_is_there(table: Any, damaged: Any) -> None:
    table.store.delete([each.key for each in damaged])


_LOST_RULES: Final = (
    breaks("F5", "what the janitor has deleted counts as lost", answers("log.fold:read_horizon_ms", 0)),
    breaks(
        "F5",
        "a vacuum does not read the log again before it calls a commit lost",
        repeats(_VACUUM, _READ_LOG),
        by="test_fsck_lost_commits.py::test_a_commit_that_lands_after_a_vacuum_has_read_the_log_is_not_called_lost",
    ),
    breaks(
        "F5",
        "a vacuum does not say what is lost",
        answers("clean.vacuum:find_lost", ()),
        by="test_fsck_lost_commits.py::test_a_vacuum_deletes_nothing_while_a_commit_is_lost_and_so_hides_it_behind_no_horizon",
    ),
    breaks(
        "B1",
        "a rebuild leaves what nobody has decided about",
        answers("repair.rebuild:require_decided", None),
        by="test_rebuild_plan.py::test_nothing_is_guessed_and_nothing_is_written_before_each_file_is_taken_or_left",
    ),
    breaks(
        "B1",
        "what a file that is taken was made from stays live",
        answers("repair.rebuild_plan:_Findings._find_replaced", frozenset()),
        by="test_rebuild_plan.py::test_an_orphan_of_a_whole_log_is_listed_and_is_no_damage",
    ),
    breaks(
        "B1",
        "two commits that replaced one file are both taken",
        answers("repair.rebuild_plan:_Findings._find_conflicts", ()),
        by="test_rebuild_plan.py::test_of_two_that_replaced_one_file_only_one_can_be_taken",
    ),
    breaks(
        "B1",
        "what was never announced is taken",
        answers("repair.rebuild_evidence:FenceTraces.is_cut_off", False),
        by="test_rebuild_plan.py::test_files_of_a_job_that_failed_are_not_taken",
    ),
    breaks(
        "B3",
        "a new log sorts behind whole log files alone",
        around(_REBUILT, _behind_whole_log_files),
        by="test_rebuild.py::test_the_new_log_sorts_behind_everything_also_what_is_damaged",
    ),
    breaks(
        "B3",
        "a new log has no horizon",
        around(_REBUILT, _without_horizon),
        by="test_rebuild.py::test_time_travel_ends_at_the_rebuild",
    ),
    breaks(
        "B4",
        "a rebuild holds the fence of merges alone",
        around("repair.rebuild:acquire_fence", _without_ingest),
        by="test_rebuild.py::test_a_flush_that_is_cut_off_by_the_rebuild_is_not_taken",
    ),
    breaks(
        "B4",
        "a damaged log file is deleted whatever stands in its place",
        instead("repair.rebuild:_remove_damaged", _remove_whatever_is_there),
        by="test_rebuild.py::test_what_somebody_restored_meanwhile_stays",
    ),
)


# Tags, commits under way

_CREATE_TAG: Final = "holds.tags:create_tag"
_PROVEN: Final = "holds.stored_holds:require_certain"
_IS_LATE: Final = answers("holds.stored_holds:StoredHold.is_late", False)


def _hold_nothing_while_pending(original: Any, stored: Any) -> Any:
    hold = original(stored)
    return replace(hold, paths=frozenset()) if hold.state == "pending" else hold


_TAG_RULES: Final = (
    breaks("J4", "tags are ignored", holds_without("tag")),
    breaks(
        "J4",
        "tags are read before the log",
        early(_VACUUM, "holds.stored_holds:HoldReader.read", read_all_holds),
        profile="sleepytaggers",
    ),
    breaks(
        "J4",
        "a tag is not proven",
        answers(_PROVEN, None),
        by="test_tags.py::test_j4_files_that_died_long_ago_cannot_be_tagged_and_the_error_says_what_can",
    ),
    breaks(
        "J4",
        "a tag is proven by a log that was read before it was there",
        repeats(_CREATE_TAG, _READ_LOG),
        profile="sleepytaggers",
        by="test_tag_faults.py::test_j4_a_maker_that_sleeps_before_its_tag_is_there_looks_again",
    ),
    breaks(
        "J4",
        "a pending tag holds nothing",
        around("holds.stored_holds:_decode_whole", _hold_nothing_while_pending),
        by="test_tag_faults.py::test_j4_a_pending_tag_holds_everything_cannot_be_read_and_runs_out",
    ),
    breaks(
        "J4",
        "files go as soon as their tag has ended",
        instead("holds.stored_holds:StoredHold.held_until_ms", lambda tag, data_grace_ms: tag.ends_ms),
    ),
    breaks(
        "J4",
        "the name is looked at before the tag is there only",
        around(
            "holds.tags:_require_free",
            lambda original, *args, mine="": None if mine else original(*args),
        ),
    ),
    keeps("J9", "log files go although a fence names them", holds_without("commit")),
)


# Leases as readers take and renew them

_LEASE_RULES: Final = (
    breaks("J4", "leases are ignored while they are taken", _IGNORES_LEASES),
    breaks("J4", "a lease is not proven", answers("holds.stored_holds:find_oldest_certain_ms", None)),
    breaks("J4", "a lease is not proven, not even by the horizon", answers(_PROVEN, None)),
    breaks(
        "J4",
        "a lease is proven by a log that was read before it was there",
        early("holds.leases:acquire_lease", _READ_LOG, lambda table: table.read_log()),
    ),
    breaks("J4", "a renewal that landed after the end counts", _IS_LATE),
    breaks(
        "J4",
        "a lease that was renewed after its end is alive again",
        _IS_LATE,
        answers("holds.leases:_take_back", None),
        by="test_lease_faults.py::test_j4_a_lease_whose_renewal_failed_and_that_has_ended_is_not_alive_again",
    ),
    breaks(
        "J4",
        "a renewal shortens a lease",
        instead("holds.stored_holds:StoredHold.ends_ms", lambda hold: hold.modified_ms + (hold.ttl_ms or 0)),
        by="test_lease_holding.py::test_j4_a_renewal_never_shortens_a_lease_whether_or_not_its_answer_gets_lost",
    ),
    breaks(
        "J4",
        "a lease ends before its time",
        instead("holds.stored_holds:StoredHold.held_until_ms", lambda hold, data_grace_ms: hold.ends_ms - 20_000),
        by="test_lease_holding.py::test_j4_a_renewal_may_come_in_the_last_moment",
    ),
    breaks(
        "J4",
        "a lease holds what died after it was written, not what died after its time",
        instead("holds.guards:Hold.keeps", lambda hold, path, death: _leased_ms(hold) + 30_000 < death.seen_dead_ms),
        by="test_guards.py::test_j4_a_lease_holds_what_died_after_its_time_as_readers_saw_it",
    ),
)


# The audit, and quarantine by age


def _announce_if_possible(original: Any, audit: Any, chunk: Sequence[Any]) -> None:
    with suppress(IceDBError):
        original(audit, chunk)


_BEGIN_DROP: Final = "ingest.quarantine_ops:begin_drop"

_SWEEP_RULES: Final = (
    breaks(
        "J10",
        "what could not be announced goes all the same",
        around("clean.deletion:RunAudit.announce", _announce_if_possible),
    ),
    breaks(
        "J11",
        "entries of quarantine go whatever their age",
        around(
            "clean.leftovers:find_leftover_ages",
            lambda original, config: {kind: age * (kind != "quarantine") for kind, age in original(config).items()},
        ),
    ),
    breaks(
        "J11",
        "an entry whose retry has begun goes",
        answers("ingest.quarantine_ops:_is_retried", False),
        by="test_leftovers.py::test_a_retry_that_has_begun_is_left_to_a_person",
    ),
    breaks(
        "J11",
        "an entry goes that was written anew since it was listed",
        answers("ingest.quarantine_ops:_is_newer", False),
        by="test_leftovers.py::test_an_entry_that_was_written_anew_since_the_walk_is_young",
    ),
    breaks(
        "J11",
        "an entry of a batch that is staged goes",
        answers("clean.leftovers:find_staged", {}),
        by="test_leftovers.py::test_an_entry_of_a_batch_that_is_staged_again_is_left_alone",
    ),
    breaks(
        "J11",
        "an entry is taken by looking alone",
        with_store(_BEGIN_DROP, lambda store: Other(store, put_if_match=lambda *_, **__: "")),
        by="test_leftovers.py::test_a_retry_that_begins_meanwhile_stages_the_batch_or_finds_none",
    ),
    breaks(
        "J11",
        "a drop that another sweep began is ended with what this walk found old",
        answers("clean.leftovers:list_payloads", ()),
        by="tests/simulation/test_found_by_simulation.py::test_j11_who_ends_the_drop_of_another_sweep_takes_the_batch_too_that_its_own_walk_found_young",
    ),
)


CLEAN_RULES: Final = (*_VACUUM_RULES, *_ORPHAN_RULES)
HOLD_RULES: Final = (
    *seen_with("checkers:1", *_LOST_RULES),
    *seen_with("taggers:2", *_TAG_RULES),
    *seen_with("lessees:2", *_LEASE_RULES),
    *seen_with("sweepers:2", *_SWEEP_RULES),
)
