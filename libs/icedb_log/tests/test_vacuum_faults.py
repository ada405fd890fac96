"""A vacuum whatever fails, whoever comes between, and after any history: the same table (J2, J3, J6, R3)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_log.errors import InvalidRequest, PreconditionFailed
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.small_table import SmallTable, at_each_call, try_each_call
from icedb_sim.tables.table_steps import assert_clean, make_dead_table, rival_of


@pytest.mark.parametrize(
    "effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.UNAVAILABLE, Effect.DELAY]
)
def test_whatever_fails_at_whichever_call_the_next_run_cleans_up(effect):
    tables = try_each_call(make_dead_table, SmallTable.vacuum, effect)
    assert len(tables) >= 8
    for table in tables:
        assert table.ids() == [1, 2]
        table.vacuum()
        assert_clean(table)
        table.store.land_delayed()
        assert_clean(table)
        assert table.ids() == [1, 2]


@pytest.mark.parametrize("what", ["vacuum", "merge", "append"])
def test_any_other_actor_at_any_moment_is_harmless(what):
    def act(rival):
        if what == "append":
            rival.append(3)
        else:
            getattr(rival, what)(**({"full": True} if what == "merge" else {}))

    expected = [1, 2, 3] if what == "append" else [1, 2]
    for table, error, _ in at_each_call(make_dead_table, SmallTable.vacuum, lambda table: act(rival_of(table))):
        assert error is None
        assert table.ids() == expected
        table.vacuum()
        assert_clean(table)
        assert table.ids() == expected


steps = st.lists(
    st.sampled_from(["append", "append", "merge", "full", "vacuum", "lease", "second", "seconds", "minute"]),
    min_size=4,
    max_size=25,
)


@settings(max_examples=150)
@given(steps)
def test_r3_time_travel_gives_what_was_there_or_an_error_never_less(history):
    table = SmallTable()
    known = {}
    leased = {}
    number = 0
    for step in history:
        if step == "append":
            number += 1
            table.append(number)
        elif step in ("merge", "full"):
            table.merge(full=step == "full")
        elif step == "vacuum":
            table.vacuum()
        elif step == "lease":
            at_ms = table.clock.now_ms()
            put_lease(table, at_ms=at_ms, ttl_ms=3_600_000, clock=table.clock)
            leased[at_ms] = list(range(1, number + 1))
            table.clock.advance(1)
        else:
            table.clock.advance({"second": 1_000, "seconds": 10_000, "minute": 60_000}[step])
        known[table.clock.now_ms() - 1] = list(range(1, number + 1))
        assert table.ids() == list(range(1, number + 1))
        horizon_ms = table.snapshot().horizon_ms
        for at_ms, expected in known.items():
            if at_ms < horizon_ms:
                with pytest.raises(InvalidRequest):
                    table.ids(as_of_ms=at_ms)
            else:
                assert table.ids(as_of_ms=at_ms) == expected
        for at_ms, expected in leased.items():
            assert table.ids(as_of_ms=at_ms) == expected


def test_f4_a_seal_goes_by_its_own_age_also_where_a_dead_log_file_was():
    """Its owner died; the request of its commit, which landed, is under way a second time."""
    table = SmallTable(seal_age_ms=10_000_000)
    table.append(0)
    table.stage([{"id": 1, "p": "a"}])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_AFTER, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    table.clock.advance(1)
    key = max(table.keys(table.paths.log_prefix))
    body = table.store.get(key).body
    table.merge(full=True)
    table.clock.advance(300_000)
    table.store.script = [Fault("put_if_match", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.vacuum()  # before the strip: a merge still says that the log file is dead
    assert key not in table.keys(table.paths.log_prefix)
    table.clock.advance(1)
    table.append(2)  # seals it
    for _ in range(2):
        table.clock.advance(1)
        assert key not in table.vacuum().deleted_logs
        with pytest.raises(PreconditionFailed):
            table.store.put_if_absent(key, body)
        assert table.ids() == [0, 1, 2]
    table.clock.advance(table.config.seal_age_ms)
    assert key in table.vacuum().deleted_logs
    assert table.snapshot().log_tombstoned_ms == {}
