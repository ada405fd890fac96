"""The guards, pure: which one holds what, until when, and which one is told of several (J1, J4, J9, V4)."""

import pytest
from icedb_log.holds.guards import (
    EVERY_STATE_MS,
    NO_HOLDS,
    STORE_RESOLUTION_MS,
    Death,
    Hold,
    Holds,
    find_deaths,
)
from icedb_log.model import LogTombstone
from icedb_log.store.store_clock import MAX_STORE_GAP_MS

GRACE_MS = 1000
NOW_MS = 1_000_000
DEATH = Death(tombstoned_ms=500_000, landed_ms=500_000)
AT_MS = 400_000


def leased(name, at_ms, expires_ms):
    until_ms = expires_ms + MAX_STORE_GAP_MS
    return Hold("lease", name, until_ms, since_ms=at_ms - MAX_STORE_GAP_MS)


LEASE = leased("l1", AT_MS, NOW_MS + 5)


def log_guard(*holds, death=DEATH, path="log"):
    return told(Holds(holds).guard_logs([(path, death)], grace_ms=GRACE_MS, now_ms=NOW_MS), path)


def data_guard(*holds, death=DEATH, path="data"):
    return told(Holds(holds).guard_data([(path, death)], grace_ms=GRACE_MS, now_ms=NOW_MS), path)


def told(kept, path):
    found = kept.get(path)
    return found and (found.guard, found.until_ms, found.held_by)


def tagged(name, until_ms=None, files=frozenset(["data"])):
    return Hold("tag", name, until_ms, files=files)


@pytest.mark.parametrize("guard", [log_guard, data_guard])
def test_j1_nothing_but_age_is_asked_while_the_grace_period_lasts(guard):
    for young in (Death(NOW_MS - GRACE_MS + 1, 0), Death(0, NOW_MS - GRACE_MS + 1)):
        assert guard(LEASE, death=young) == ("grace", NOW_MS + 1, "")
    assert guard(*NO_HOLDS.found, death=Death(NOW_MS - GRACE_MS, NOW_MS - GRACE_MS)) is None


def test_j1_a_death_has_the_earliest_proof_that_any_log_file_gives():
    """What a log file says of the landing is no later than its own: it is LastModified that a rewrite moves."""
    for landed_ms, modified_ms, found_ms in ((None, 70, 70), (60, 70, 60), (80, 70, 70)):
        assert find_deaths([([LogTombstone("a", 5, landed_ms)], modified_ms)]) == {"a": Death(5, found_ms)}
    told_twice = [([LogTombstone("a", 9, 40)], 70), ([LogTombstone("a", 5, 50)], 90)]
    assert find_deaths(told_twice) == find_deaths(told_twice[::-1]) == {"a": Death(5, 40)}


@pytest.mark.parametrize("guard", [log_guard, data_guard])
def test_j4_a_lease_holds_what_died_after_its_time_as_readers_saw_it(guard):
    assert guard(LEASE) == ("lease", LEASE.until_ms, "l1")
    since_ms = AT_MS - MAX_STORE_GAP_MS  # servers of one store differ
    assert guard(LEASE, death=Death(since_ms, since_ms - STORE_RESOLUTION_MS)) is None
    assert guard(LEASE, death=Death(since_ms + 1, since_ms - STORE_RESOLUTION_MS)) is not None
    assert guard(LEASE, death=Death(since_ms - 9, since_ms - STORE_RESOLUTION_MS + 1)) is not None


def test_j4_a_tag_holds_its_data_files_and_no_log_file():
    holds = (tagged("q3", 7), tagged("q4"))
    assert data_guard(*holds) == ("tag", None, "q4")
    assert data_guard(*holds, path="other") is None
    assert log_guard(*holds, path="data") is None
    everything = Hold("tag", "q3", since_ms=EVERY_STATE_MS)  # nobody can say which
    assert data_guard(everything, path="other") == ("tag", None, "q3")
    assert log_guard(everything) is None


def test_j9_a_log_file_that_a_fence_names_is_held():
    hold = Hold("commit", "log", NOW_MS + 9, files=("log",), told="merge w/1")
    assert log_guard(hold) == ("commit", NOW_MS + 9, "merge w/1")
    assert log_guard(hold, path="other") is None
    assert data_guard(hold, path="log") is None


def test_v4_a_log_file_that_a_view_has_not_taken_is_held():
    assert log_guard(Hold("view", files={"log"})) == ("view", None, "")
    assert data_guard(Hold("view", files={"data"})) is None


def test_of_several_guards_the_one_that_ends_last_is_told():
    leases = (LEASE, leased("l2", 300_000, NOW_MS + 50), leased("l3", 600_000, NOW_MS + 90))
    assert data_guard(*leases) == ("lease", NOW_MS + 50 + MAX_STORE_GAP_MS, "l2")
    tag = tagged("q3", NOW_MS + 51 + MAX_STORE_GAP_MS)
    assert data_guard(*leases, tag) == ("tag", NOW_MS + 51 + MAX_STORE_GAP_MS, "q3")
