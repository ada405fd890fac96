"""How the rules of the janitor are switched off: vacuums, orphan sweeps, leases, pins, lost commits, quarantine by age.

Rules of the orphan sweep stand behind each other: most are broken in pairs.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from icedb_log.clean.leases import LeaseReader
from icedb_log.clean.pins import PinReader
from icedb_log.errors import IceDBError
from icedb_log.ingest.staging import find_staged
from icedb_log.keys import ROLES
from icedb_log.log.fence import read_landed, settle_fence
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
    is_now,
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


def _stage_list_first(table: Any) -> Mapping[str, tuple[str, ...]]:
    logs = [file.log for file in table.read_log().files]
    return find_staged(table, {i for log in logs for i in (*log.batch_ids, *log.refused_ids)})


def _read_pins(table: Any) -> Any:
    return PinReader().read(table, data_grace_ms=table.config.data_grace_ms)


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


_IGNORES_LEASES: Final = holds_without("lease")
_DELETES_WHAT_IS_LIVE: Final = instead(_RUN + "_find_deletable", lambda run: set(run._plan.data_paths))


class _AllKeys:
    """Has every key."""

    def __contains__(self, key: str) -> bool:
        return True


_VACUUM_RULES: Final = (
    breaks(
        "J1",
        "a tombstone's age is its committer's word",
        instead("clean.guards:Death.died_ms", lambda death: death.tombstoned_ms),
        profile="skews",
        by="test_vacuum_plan.py::test_j1_a_tombstone_that_landed_late_counts_from_its_landing",
    ),
    breaks(
        "J1",
        "a tombstone's age is its proof of landing alone",
        instead("clean.guards:Death.died_ms", lambda death: death.landed_ms),
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
        instead("clean.vacuum:_hold_refusals", lambda plan, view, staged: plan),
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
        around(_RUN + "_doom_data", _strip_before_delete),
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
        instead("clean.guards:_was_seen_at", lambda hold, death: _leased_ms(hold) < death.tombstoned_ms),
        profile="skews",
        by="tests/simulation/test_found_by_simulation.py::test_j4_a_lease_protects_from_tombstones_that_a_slow_clock_dated_back",
    ),
    breaks(
        "J4",
        "leases are read before the log",
        early(_VACUUM, "clean.leases:LeaseReader.read", lambda table: LeaseReader().read(table)),
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


def _is_counted_at_any_age(info: Any, sighting: Any, *, config: Any, now_ms: int) -> bool:
    del config
    return bool(sighting.etag == info.etag and 0 <= sighting.first_seen_ms <= now_ms)


def _is_counted_for_any_etag(original: Any, info: Any, sighting: Any, **kwargs: Any) -> Any:
    return bool(sighting.etag) and original(info, replace(sighting, etag=info.etag), **kwargs)


_ONE_SIGHTING: Final = answers("clean.orphans:is_ripe", True)
_LOG_BEFORE_LISTING: Final = repeats(_SWEEP, _READ_LOG)
_UNSETTLED: Final = answers("clean.orphans:settle_fence", None)

_ORPHAN_RULES: Final = (
    breaks(
        "J5",
        "all data files look old, and one sighting is enough",
        answers("clean.table_walk:_is_old", True),
        instead("clean.orphans:_still_counts", _is_counted_at_any_age),
        _ONE_SIGHTING,
    ),
    keeps("J5", "one sighting is enough", _ONE_SIGHTING),
    breaks(
        "J5",
        "the log is read before the data files are listed, and one sighting is enough",
        _LOG_BEFORE_LISTING,
        _ONE_SIGHTING,
        profile="sleepyjanitors",
    ),
    breaks("J5", "the log is read before the data files are listed", _LOG_BEFORE_LISTING),
    breaks(
        "J5",
        "commits under way are not settled, and one sighting is enough",
        _ONE_SIGHTING,
        _UNSETTLED,
        profile="sleepyputs",
    ),
    breaks(
        "J5",
        "commits under way are settled after the log was read, and one sighting is enough",
        _ONE_SIGHTING,
        _UNSETTLED,
        around("clean.orphans:read_held", _settle_late),
        profile="sleepysettlers",
    ),
    breaks(
        "J5",
        "a data file counts as named only while it is live, and one sighting is enough",
        instead(
            "clean.orphans:_named",
            lambda view: {marker.path for file in view.files for marker in file.log.markers if marker.is_live},
        ),
        _ONE_SIGHTING,
        profile="longgraces",
    ),
    keeps(
        "J5",
        "a sighting counts for another ETag",
        around("clean.orphans:_still_counts", _is_counted_for_any_etag),
    ),
)


# Commits that were lost


def _read_log_and_fences(table: Any) -> Any:
    view = table.read_log()
    return read_landed(table), view


_JUDGE: Final = "repair.rebuild_commits:CommitResolver."

_LOST_RULES: Final = (
    breaks("F5", "what the janitor has deleted counts as lost", answers("log.fold:read_horizon_ms", 0)),
    breaks(
        "F5",
        "a sweep reads the fences after the log",
        instead("clean.orphans:_read_fences_and_log", _read_log_and_fences),
        by="test_fsck_lost_commits.py::test_what_lands_or_is_vacuumed_between_two_reads_is_not_called_lost",
    ),
    breaks(
        "F5",
        "a vacuum does not read the log again before it calls a commit lost",
        repeats(_VACUUM, _READ_LOG),
        by="test_fsck_lost_commits.py::test_a_commit_that_lands_after_a_vacuum_has_read_the_log_is_not_called_lost",
    ),
    breaks(
        "F5",
        "a vacuum writes no loss down",
        answers("clean.vacuum:find_lost", ()),
        by="test_fsck_lost_commits.py::test_the_horizon_hides_no_loss_from_the_sweep",
    ),
    breaks(
        "F5",
        "a loss is forgotten when the horizon has passed it",
        around(
            "clean.orphans:OrphanRecord.with_lost",
            lambda original, record, found, view: {
                name: lost for name, lost in original(record, found, view).items() if name in found
            },
        ),
        by="test_fsck_lost_commits.py::test_a_sweep_remembers_what_the_horizon_has_passed",
    ),
    breaks(
        "F5",
        "a rebuild forgets a loss before it has committed",
        around(
            "repair.rebuild:write_orphan_record",
            lambda original, *args, **kwargs: original(*args, **{**kwargs, "lost": {}}),
        ),
        by="test_fsck_lost_commits.py::test_a_rebuild_that_is_cut_off_is_ended_by_the_next_and_forgets_nothing_before",
    ),
    breaks("J5", "what may be of a lost commit is swept", answers("clean.orphans:_may_be_lost", False)),
    breaks(
        "B1",
        "a rebuild does not believe what a fence says of a lost commit",
        answers(_JUDGE + "_recall", None),
        by="test_fsck_lost_commits.py::test_one_of_seven_log_files_is_lost_and_its_rows_come_back",
    ),
    breaks(
        "B1",
        "a lost merge counts although its inputs were merged again",
        answers(_JUDGE + "_has_proven_rival", False),
        by="test_fsck_lost_commits.py::test_of_a_lost_merge_whose_inputs_were_merged_again_the_later_one_counts",
    ),
    breaks(
        "B1",
        "a lost flush counts although a later one looks the same",
        answers(_JUDGE + "_find_later_twin", ""),
        by="test_fsck_lost_commits.py::test_a_lost_flush_with_a_later_twin_is_decided_by_a_person",
    ),
)


# Pins, versions, commits under way

_CREATE_PIN: Final = "clean.pins:create_pin"


def _hold_nothing_while_pending(original: Any, stored: Any) -> Any:
    pin, paths = original(stored)
    return pin, paths if pin.is_whole else frozenset()


_PIN_RULES: Final = (
    breaks("J7", "pins are ignored", holds_without("pin")),
    breaks(
        "J7",
        "pins are read before the log",
        early(
            _VACUUM,
            "clean.pins:PinReader.read",
            _read_pins,
        ),
        profile="sleepypinners",
    ),
    breaks(
        "J7",
        "a pin is not proven",
        answers("clean.pins:_require_certain", None),
        by="test_pins.py::test_j7_files_that_died_long_ago_cannot_be_pinned_and_the_error_says_what_can",
    ),
    breaks(
        "J7",
        "a pin is proven by a log that was read before it was there",
        repeats(_CREATE_PIN, _READ_LOG),
        profile="sleepypinners",
        by="test_pin_faults.py::test_j7_a_maker_that_sleeps_before_its_pin_is_there_looks_again",
    ),
    breaks(
        "J7",
        "a pending pin holds nothing",
        around("clean.pins:decode_pinned_files", _hold_nothing_while_pending),
        by="test_pin_faults.py::test_j7_a_pending_pin_holds_everything_cannot_be_read_and_runs_out",
    ),
    breaks(
        "J7",
        "files go as soon as their pin has ended",
        instead("clean.pins:Pin.held_until_ms", lambda pin, data_grace_ms: pin.ends_ms),
    ),
    breaks(
        "J7",
        "the name is looked at before the pin is there only",
        around(
            "clean.pins:_require_free",
            lambda original, *args, mine="": None if mine else original(*args),
        ),
    ),
    breaks("J8", "versions are ignored", holds_without("versions")),
    breaks("J8", "with fewer commits than versions nothing is kept", is_now("clean.guards:EVERY_STATE_MS", 1 << 62)),
    breaks(
        "J8",
        "one version too few is kept",
        around(
            "clean.guards:find_kept_versions",
            lambda original, view, count: original(view, max(count - 1, 1) if count else 0),
        ),
        by="test_guards.py::test_j8_versions_count_appends_and_merges_and_no_seals",
    ),
    keeps("J9", "log files go although a fence names them", holds_without("commit")),
)


# Leases as readers take and renew them

_PROVEN: Final = "clean.leases:_require_certain"

_LEASE_RULES: Final = (
    breaks("J4", "leases are ignored while they are taken", _IGNORES_LEASES),
    breaks("J4", "a lease is not proven", answers("clean.leases:find_oldest_certain_ms", None)),
    breaks("J4", "a lease is not proven, not even by the horizon", answers(_PROVEN, None)),
    breaks(
        "J4",
        "a lease is proven by a log that was read before it was there",
        early("clean.leases:acquire_lease", _READ_LOG, lambda table: table.read_log()),
    ),
    breaks("J4", "a renewal that landed after the end counts", answers("clean.leases:_came_too_late", False)),
    breaks(
        "J4",
        "a lease that was renewed after its end is alive again",
        answers("clean.leases:StoredLease.has_lapsed", False),
        answers("clean.leases:_take_back", None),
        by="test_lease_faults.py::test_j4_a_lease_whose_renewal_failed_and_that_has_ended_is_not_alive_again",
    ),
    breaks(
        "J4",
        "a lease ends before its time",
        instead("clean.leases:Lease.held_until_ms", lambda lease: lease.expires_ms - 20_000),
        by="test_lease_holding.py::test_j4_a_renewal_may_come_in_the_last_moment",
    ),
    breaks(
        "J4",
        "a lease holds what died after it was written, not what died after its time",
        instead("clean.guards:_was_seen_at", lambda hold, death: _leased_ms(hold) + 30_000 < death.seen_dead_ms),
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
        answers("clean.leftovers:payloads_of", ()),
        by="tests/simulation/test_found_by_simulation.py::test_j11_who_ends_the_drop_of_another_sweep_takes_the_batch_too_that_its_own_walk_found_young",
    ),
)

CLEAN_RULES: Final = (*_VACUUM_RULES, *_ORPHAN_RULES)
HOLD_RULES: Final = (
    *seen_with("checkers:1", *_LOST_RULES),
    *seen_with("pinners:2", *_PIN_RULES),
    *seen_with("lessees:2", *_LEASE_RULES),
    *seen_with("sweepers:2", *_SWEEP_RULES),
)
