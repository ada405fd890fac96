"""What may be deleted, and when: J1, J2, J3, J4, F4."""

from dataclasses import replace

import pytest
from icedb_log.clean.vacuum_plan import STRIP_SHARE, live_paths, plan_vacuum, strip_log_file
from icedb_log.holds.guards import Hold, Holds, find_deaths
from icedb_log.merge.log_folding import FREE_LOG_BYTES, LOG_REST_MS
from icedb_log.model import Widening
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.table.table_config import TableConfig
from icedb_sim.tables.log_views import data, dead, kill, listed, live, log_key, view

CONFIG = TableConfig.create(name="t", data_grace_ms=5_000, log_grace_ms=2_000, seal_age_ms=9_000)
AT = 100_000


def plan(*files, now, leases=()):
    return plan_vacuum(view(*files, now=now), config=CONFIG, holds=Holds(leases))


def leased(at_ms, expires_ms=10**9):
    return Hold("lease", "l", expires_ms + MAX_STORE_GAP_MS, since_ms=at_ms - MAX_STORE_GAP_MS)


def merged(*, at=AT, landed=None, modified=None):
    """One append at 10, merged at ``at``."""
    return (
        listed(10, live("x"), batch_ids=("b1", "b2")),
        listed(
            at,
            live("z"),
            dead("x", at, landed=landed),
            kills=[kill(10, at, landed=landed)],
            merged=True,
            modified_ms=modified,
        ),
    )


def test_a_log_without_tombstones_has_nothing_to_delete():
    assert plan(listed(1, live("x")), now=10**9).is_empty


def test_j1_log_files_and_data_files_have_their_own_grace_periods():
    assert plan(*merged(), now=AT + 2_000 - 1).log_keys == ()
    first = plan(*merged(), now=AT + 2_000)
    assert (first.log_keys, first.data_paths) == ((log_key(10),), ())
    assert plan(*merged(), now=AT + 5_000 - 1).data_paths == ()
    assert plan(*merged(), now=AT + 5_000).data_paths == (data("x"),)


def test_j1_a_tombstone_that_landed_late_counts_from_its_landing():
    # Its committer chose the time, slept, and wrote the log file 50 s later: readers saw the input until then.
    files = merged(modified=AT + 50_000)
    assert plan(*files, now=AT + 51_999).is_empty
    assert plan(*files, now=AT + 52_000).log_keys == (log_key(10),)
    assert plan(*files, now=AT + 54_999).data_paths == ()
    assert plan(*files, now=AT + 55_000).data_paths == (data("x"),)


def test_j1_a_tombstone_of_a_clock_that_is_ahead_counts_from_its_time():
    files = merged(at=AT + 50_000, modified=AT)
    assert plan(*files, now=AT + 51_999).is_empty
    assert plan(*files, now=AT + 52_000).log_keys == (log_key(10),)


def test_j1_the_proof_that_was_carried_along_counts():
    files = merged(landed=AT + 1, modified=AT + 90_000)
    assert plan(*files, now=AT + 2_001).log_keys == (log_key(10),)
    assert plan(*files, now=AT + 5_001).data_paths == (data("x"),)


def test_j1_the_oldest_proof_among_all_log_files_counts():
    old, new = merged(modified=AT + 3)
    again = listed(AT + 70_000, dead("x", AT), kills=[kill(10, AT)], merged=True)
    assert plan(old, new, again, now=AT + 2_003).log_keys == (log_key(10),)


@pytest.mark.parametrize("turned", [False, True])
def test_j1_of_several_claims_the_earliest_time_and_the_earliest_proof_count(turned):
    claims = [([dead("x", AT + 10, landed=AT + 30)], AT + 99), ([dead("x", AT + 20, landed=AT + 25)], AT + 99)]
    (death,) = find_deaths(reversed(claims) if turned else claims).values()
    assert (death.tombstoned_ms, death.landed_ms) == (AT + 10, AT + 25)


def test_what_one_commit_killed_shares_one_death():
    """A million data files would otherwise take as many values again as their markers."""
    file = listed(AT, *[dead(f"d{number}", AT) for number in range(3)], dead("late", AT + 1), merged=True)
    made = plan(file, now=AT + 6_000)
    assert len({id(made.died[data(f"d{number}")]) for number in range(3)}) == 1
    assert made.died[data("late")].tombstoned_ms == AT + 1


def test_the_log_file_that_merged_another_away_is_named():
    old, new = merged()
    assert plan(old, new, now=AT + 2_000).merged_into == {old.key: new.key}


def test_j2_the_batches_of_expired_log_files_are_named():
    assert plan(*merged(), now=AT + 2_000).batch_ids == {log_key(10): ("b1", "b2")}
    assert plan(*merged(), now=AT).batch_ids == {}


def test_j2_a_data_file_that_a_remaining_log_file_lists_as_live_waits():
    old, new = merged()
    other = listed(20, live("x"))
    made = plan(old, other, new, now=AT + 5_000)
    assert made.data_paths == ()
    assert [waiting.path for waiting in made.waiting] == [data("x")]
    # Once it is dead itself, and goes in the same run, it is in nobody's way.
    killed = listed(AT, dead("x", AT), kills=[kill(10, AT), kill(20, AT)], merged=True)
    assert plan(old, other, killed, now=AT + 5_000).data_paths == (data("x"),)


def test_j2_a_dead_log_file_that_alone_names_a_live_data_file_waits():
    """Another writer's removal names what it removed, and nothing of the rest."""
    old, removal = listed(10, live("x"), live("y")), listed(AT, dead("x", AT), kills=[kill(10, AT)], merged=True)
    made = plan(old, removal, now=AT + 60_000)
    assert (made.log_keys, made.data_paths) == ((), ())
    assert {(w.path, w.guard, w.until_ms) for w in made.waiting} >= {(old.key, "live", None)}
    named = listed(20, live("y"))
    assert plan(old, removal, named, now=AT + 60_000).log_keys == (old.key,)


def test_j2_a_dead_log_file_of_which_every_data_file_is_dead_does_not_wait():
    """That one of them is dead may stand in a log file that goes as well."""
    old, second = listed(10, live("y")), listed(20, dead("y", 20))
    removal = listed(AT, live("z"), kills=[kill(10, AT), kill(20, AT)], merged=True)
    assert plan(old, second, removal, now=AT + 60_000).log_keys == (old.key, second.key)


def test_j3_the_few_entries_of_a_large_log_file_wait_for_the_strip_as_long_as_the_oldest_may():
    files = [live(f"z{number}") for number in range(30)]
    large = replace(
        listed(AT + 200, *files, dead("a", AT, landed=AT), dead("b", AT, landed=AT + 100)),
        size_bytes=FREE_LOG_BYTES + 1,
    )
    until_ms = AT + 5_000 + 5_000 // STRIP_SHARE
    waiting = plan(large, now=until_ms - 1).waiting
    assert {(w.path, w.guard, w.until_ms) for w in waiting} == {
        (data("a"), "grace", until_ms),
        (data("b"), "grace", until_ms),
    }
    assert plan(large, now=until_ms).data_paths == (data("a"), data("b"))
    small = replace(large, size_bytes=FREE_LOG_BYTES)
    assert plan(small, now=AT + 5_100).data_paths == (data("a"), data("b"))


def test_live_paths_takes_every_log_file_at_its_word():
    files = [listed(1, live("x")), listed(2, dead("x", 2), live("y"), live("z"))]
    assert live_paths(files, {data("x"), data("y"), data("w")}) == {data("x"), data("y")}


def test_what_waits_says_for_which_guard_and_how_long():
    waiting = {w.path: (w.guard, w.until_ms) for w in plan(*merged(modified=AT + 1), now=AT + 7).waiting}
    assert waiting == {log_key(10): ("grace", AT + 2_001), data("x"): ("grace", AT + 5_001)}


def test_j4_what_was_live_at_a_leased_time_waits_for_the_lease():
    lease = leased(AT - 1)
    made = plan(*merged(), now=AT + 60_000, leases=(lease,))
    assert made.is_empty
    assert {(w.path, w.guard, w.until_ms) for w in made.waiting} == {
        (log_key(10), "lease", 10**9 + MAX_STORE_GAP_MS),
        (data("x"), "lease", 10**9 + MAX_STORE_GAP_MS),
    }


@pytest.mark.parametrize("late_ms", [1000, 1001])  # a second: what S3 cuts off LastModified
def test_j4_what_was_dead_at_the_leased_time_does_not_wait(late_ms):
    at = AT + MAX_STORE_GAP_MS + late_ms  # and what the servers of one store may differ by
    made = plan(*merged(), now=AT + 60_000, leases=(leased(at),))
    assert (made.log_keys, made.data_paths) == ((log_key(10),), (data("x"),))


def test_j4_the_longest_of_several_leases_counts():
    leases = [
        leased(AT - 1, 900_000),
        leased(AT - 2, 800_000),
        leased(AT + MAX_STORE_GAP_MS + 1005, 999_999),
    ]
    assert {w.until_ms for w in plan(*merged(), now=AT + 60_000, leases=tuple(leases)).waiting} == {
        900_000 + MAX_STORE_GAP_MS
    }


def test_f4_a_seal_is_kept_for_its_age_by_the_stores_clock():
    seal = listed(10, is_seal=True, commit_id=None, modified_ms=AT)
    assert plan(seal, now=AT + 8_999).is_empty
    assert plan(seal, now=AT + 9_000).log_keys == (seal.key,)


# -- J3: the strip

STRIPPED = listed(
    AT,
    live("z"),
    dead("x", AT),
    dead("w", 50_000, landed=50_001),
    kills=[kill(10, AT), kill(11, 60_000)],
    merged=True,
    modified_ms=AT + 7,
    schema={"id": "BIGINT"},
    batch_ids=("b",),
    extra={"later": 1},
)


def strip(*, logs=(), data_files=(), file=STRIPPED, others=()):
    return strip_log_file(file, view(file, *others), gone_logs=set(logs), gone_data=set(data_files))


def test_j3_nothing_gone_is_nothing_to_strip():
    assert strip() is None
    assert strip(logs=[log_key(99)], data_files=[data("other")]) is None


def test_j3_a_strip_drops_what_is_gone_and_keeps_time_and_everything_else():
    log = strip(logs=[log_key(10)], data_files=[data("x")])
    assert log.time_ms == AT
    assert [m.path for m in log.markers] == [data("z"), data("w")]
    assert [t.path for t in log.log_tombstones] == [log_key(11)]
    assert (log.commit_id, log.batch_ids, dict(log.schema), log.extra) == (
        "00",
        ("b",),
        {"id": "BIGINT"},
        {"later": 1},
    )


def test_s2_a_strip_keeps_what_was_widened():
    wide = replace(STRIPPED, log=replace(STRIPPED.log, widened={"id": Widening("DOUBLE", 1)}))
    log = strip_log_file(wide, view(wide), gone_logs={log_key(10)}, gone_data=set())
    assert (dict(log.schema), dict(log.widened)) == ({"id": "BIGINT"}, {"id": Widening("DOUBLE", 1)})


def test_j3_a_strip_records_the_horizon():
    assert strip(logs=[log_key(10)]).horizon_ms == AT
    gone = [STRIPPED.log.log_tombstones[1]]
    assert strip(logs=[log_key(11)], others=[listed(10, live("x")), listed(11)]).horizon_ms == gone[0].tombstoned_ms
    later = listed(AT + 9, horizon_ms=AT + 5)
    assert strip(logs=[log_key(10)], others=[later]).horizon_ms == AT + 5


def test_j1_a_strip_keeps_the_proof_of_what_remains():
    log = strip(logs=[log_key(10)])
    assert log.log_tombstones[0].landed_ms == AT + 7
    assert {m.path: m.landed_ms for m in log.markers} == {data("z"): None, data("x"): AT + 7, data("w"): 50_001}


def test_j3_a_live_marker_is_never_dropped():
    assert strip(data_files=[data("z")]) is None
    assert data("z") in {m.path for m in strip(data_files=[data("z"), data("x")]).markers}


# -- large log files are stripped when it pays

LARGE = 100_000


def large(live_count, dead_count, *, at=100, size_bytes=LARGE):
    """A log file of a merge with live and dead data files; all of the dead ones died at the same time."""
    markers = [live(f"l{number}") for number in range(live_count)] + [
        dead(f"d{number}", at) for number in range(dead_count)
    ]
    return listed(at, *markers, merged=True, size_bytes=size_bytes)


def test_what_a_large_log_file_names_is_deleted_when_the_strip_pays():
    just_expired = 100 + CONFIG.data_grace_ms
    assert len(plan(large(7, 1), now=just_expired).data_paths) == 1
    assert plan(large(8, 1), now=just_expired).data_paths == ()
    assert len(plan(large(8, 1, size_bytes=64 * 1024), now=just_expired).data_paths) == 1


def test_what_waits_for_a_strip_waits_one_eighth_of_the_grace_period_longer_at_most():
    until = 100 + CONFIG.data_grace_ms + CONFIG.data_grace_ms // 8
    early, late = plan(large(80, 1), now=until - 1), plan(large(80, 1), now=until)
    assert [(found.path, found.guard, found.until_ms) for found in early.waiting] == [(data("d0"), "grace", until)]
    assert (early.data_paths, late.data_paths) == ((), (data("d0"),))


def test_a_dead_log_file_is_not_asked_again_about_what_was_deleted():
    # The one that took its place was stripped: the data file is gone.
    files = [large(1, 1, at=50), listed(200, live("l0"), kills=[kill(50, 200, merged=True)], merged=True)]
    assert data("d0") not in plan(*files, now=200 + CONFIG.data_grace_ms).data_paths


def test_log_tombstones_alone_do_not_make_a_large_log_file_worth_a_strip():
    few, many = [kill(number, 100) for number in range(2)], [kill(number, 100) for number in range(4)]
    gone = {tombstone.path for tombstone in many}
    for kills, is_stripped in ((few, False), (many, True)):
        file = listed(100, *[live(f"l{number}") for number in range(20)], kills=kills, merged=True, size_bytes=LARGE)
        assert (strip_log_file(file, view(file), gone_logs=gone, gone_data=set()) is not None) == is_stripped
    few_and_old = listed(100, *[live(f"l{number}") for number in range(20)], kills=few, merged=True, size_bytes=LARGE)
    seen = view(few_and_old, now=100 + LOG_REST_MS)
    assert strip_log_file(few_and_old, seen, gone_logs=gone, gone_data=set()) is not None
    small = listed(100, *[live(f"l{number}") for number in range(20)], kills=few, merged=True)
    assert strip_log_file(small, view(small), gone_logs=gone, gone_data=set()) is not None
