"""The guards, pure: which one holds what, until when, and which one is told of several (J1, J4, J7, J8, J9, V4)."""

from dataclasses import replace

import pytest
from icedb_log.clean.guards import (
    EVERY_STATE_MS,
    NO_HOLDS,
    STORE_RESOLUTION_MS,
    Death,
    Holds,
    KeptVersions,
    OpenCommit,
    PinnedFiles,
    find_kept_versions,
)
from icedb_log.clean.leases import Lease
from icedb_log.model import ListedLogFile, LogFile, LogView
from icedb_log.store.store_clock import MAX_STORE_GAP_MS

GRACE_MS = 1000
NOW_MS = 1_000_000
DEATH = Death(tombstoned_ms=500_000, landed_ms=500_000)
LEASE = Lease("l1", 400_000, NOW_MS + 5)


def log_guard(holds, death=DEATH, path="log"):
    found = holds.guard_log(path, death, grace_ms=GRACE_MS, now_ms=NOW_MS)
    return found and (found.guard, found.until_ms, found.held_by)


def data_guard(holds, death=DEATH, path="data"):
    found = holds.guard_data(path, death, grace_ms=GRACE_MS, now_ms=NOW_MS)
    return found and (found.guard, found.until_ms, found.held_by)


@pytest.mark.parametrize("guard", [log_guard, data_guard])
def test_j1_nothing_but_age_is_asked_while_the_grace_period_lasts(guard):
    holds = Holds(leases=(LEASE,))
    for young in (Death(NOW_MS - GRACE_MS + 1, 0), Death(0, NOW_MS - GRACE_MS + 1)):
        assert guard(holds, young) == ("grace", NOW_MS + 1, "")
    assert guard(NO_HOLDS, Death(NOW_MS - GRACE_MS, NOW_MS - GRACE_MS)) is None


@pytest.mark.parametrize("guard", [log_guard, data_guard])
def test_j4_a_lease_holds_what_died_after_its_time_as_readers_saw_it(guard):
    holds = Holds(leases=(LEASE,))
    assert guard(holds) == ("lease", LEASE.held_until_ms, "l1")
    since_ms = LEASE.at_ms - MAX_STORE_GAP_MS  # servers of one store differ
    assert guard(holds, Death(since_ms, since_ms - STORE_RESOLUTION_MS)) is None
    assert guard(holds, Death(since_ms + 1, since_ms - STORE_RESOLUTION_MS)) is not None
    assert guard(holds, Death(since_ms - 9, since_ms - STORE_RESOLUTION_MS + 1)) is not None


def test_j7_a_pin_holds_its_data_files_and_no_log_file():
    holds = Holds(pins=(PinnedFiles("q3", frozenset(["data"]), 7), PinnedFiles("q4", frozenset(["data"]), None)))
    assert data_guard(holds) == ("pin", None, "q4")
    assert data_guard(holds, path="other") is None
    assert log_guard(holds, path="data") is None


def test_j7_a_pin_that_cannot_be_understood_holds_every_data_file():
    holds = Holds(pins=(PinnedFiles("q3", None, None),))
    assert data_guard(holds, path="other") == ("pin", None, "q3")


@pytest.mark.parametrize("guard", [log_guard, data_guard])
def test_j8_versions_hold_what_died_after_the_oldest_of_them(guard):
    holds = Holds(versions=KeptVersions(3, 499_999))
    assert guard(holds) == ("versions", None, "the newest 3")
    # Time travel goes by the times of commits: what a commit removed is no part of the state after it.
    assert guard(replace(holds, versions=KeptVersions(3, 500_000))) is None
    assert guard(replace(holds, versions=KeptVersions(3, EVERY_STATE_MS)), Death(1, 1)) is not None


def test_j9_a_log_file_that_a_fence_names_is_held():
    holds = Holds(commits=(OpenCommit("log", "merge", "w/1", NOW_MS + 9),))
    assert log_guard(holds) == ("commit", NOW_MS + 9, "merge w/1")
    assert log_guard(holds, path="other") is None
    assert data_guard(holds, path="log") is None


def test_v4_a_log_file_that_a_view_has_not_taken_is_held():
    assert log_guard(Holds(wanted_logs={"log"})) == ("view", None, "")
    assert data_guard(Holds(wanted_logs={"data"})) is None


def test_of_several_guards_the_one_that_ends_last_is_told():
    leases = (LEASE, Lease("l2", 300_000, NOW_MS + 50), Lease("l3", 600_000, NOW_MS + 90))
    assert data_guard(Holds(leases=leases)) == ("lease", NOW_MS + 50 + MAX_STORE_GAP_MS, "l2")
    pins = (PinnedFiles("q3", frozenset(["data"]), NOW_MS + 51 + MAX_STORE_GAP_MS),)
    assert data_guard(Holds(leases=leases, pins=pins)) == ("pin", NOW_MS + 51 + MAX_STORE_GAP_MS, "q3")
    versions = KeptVersions(2, 0)
    assert data_guard(Holds(leases=leases, pins=pins, versions=versions)) == ("versions", None, "the newest 2")


def test_a_lease_that_is_added_to_holds_counts():
    holds = replace(Holds(leases=(Lease("l9", 999_000, NOW_MS + 1),)), leases=(LEASE,))
    assert data_guard(holds) == ("lease", LEASE.held_until_ms, "l1")


def view(*times, seals=()):
    files = [
        ListedLogFile(f"wh/t/_log/{ms:013}_{name}.jsonl", "e", ms, 1, LogFile(ms, is_seal=ms in seals))
        for ms, name in times
    ]
    return LogView("t", tuple(files), NOW_MS)


def test_j8_versions_count_appends_and_merges_and_no_seals():
    log = view((10, "aa"), (20, "m_bb"), (30, "cc"), (40, "dd"), seals=(30,))
    assert find_kept_versions(log, 0) is None
    assert find_kept_versions(log, 1) == KeptVersions(1, 40)
    assert find_kept_versions(log, 2) == KeptVersions(2, 20)
    assert find_kept_versions(log, 3) == KeptVersions(3, 10)
    assert find_kept_versions(log, 4) == KeptVersions(4, EVERY_STATE_MS)
    assert find_kept_versions(view(), 1) == KeptVersions(1, EVERY_STATE_MS)
