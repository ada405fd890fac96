"""Leases under any fault, and with any rival, at any call: J4, W2."""

import pytest
from icedb_log.commit.table import Table
from icedb_log.errors import BelowHorizon, CommitOutcomeUnknown, NotFound
from icedb_log.holds.leases import acquire_lease, release_lease, renew_lease
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.row_files import read_live_rows
from icedb_sim.tables.small_table import SmallTable, at_each_call, try_each_call

TTL_MS = 600_000
BOTH = ("before", "after")
FAULTS = [
    Effect.CRASH_BEFORE,
    Effect.CRASH_AFTER,
    Effect.LOSE_ANSWER,
    Effect.TRY_TWICE,
    Effect.UNAVAILABLE,
    Effect.DELAY,
]


def make_dying():
    """Return a table of which two data files and two log files are dead, and have not been for long."""
    table = SmallTable()
    table.append(1)
    table.append(2)
    table.at_ms = table.clock.now_ms() - 1
    table.merge(full=True)
    table.lease = None
    return table


def make_leased():
    """Return the same under a lease that ends in a moment, when everything is old."""
    table = make_dying()
    acquire(table)
    table.clock.advance(TTL_MS - 2)
    return table


def acquire(table):
    table.lease = None
    table.lease = acquire_lease(
        Table.open(table, clock=table.clock, reader=table.reader()), ttl_ms=TTL_MS, at_ms=table.at_ms
    )


def renew(table):
    lease, table.lease = table.lease, None
    table.lease_id = lease.lease_id
    table.lease = renew_lease(table, lease.lease_id, clock=table.clock, ttl_ms=TTL_MS)


def vacuum(table):
    table.vacuum()
    table.vacuum()


def require_held(table, where=""):
    """Clean as far as possible until the last moment of the lease, and see that the table can be read as it was."""
    assert table.clock.now_ms() < table.lease.expires_ms, where
    table.clock.advance(table.lease.expires_ms - 1 - table.clock.now_ms())
    vacuum(table)
    rows = read_live_rows(table.store, table.snapshot(as_of_ms=table.at_ms))
    assert sorted(row["id"] for row in rows) == [1, 2], where


def let_go(table):
    """See that nothing is held up for good, whatever became of a lease."""
    table.clock.advance(TTL_MS + MAX_STORE_GAP_MS)
    vacuum(table)
    assert len(table.keys(table.paths.data_prefix)) == 1
    assert table.ids() == [1, 2]


@pytest.mark.parametrize("effect", FAULTS)
def test_j4_whatever_fails_at_whichever_call_a_lease_that_was_given_holds(effect):
    tables = try_each_call(make_dying, acquire, effect)
    assert len(tables) >= 7
    given = 0
    for table in tables:
        if table.lease is not None:
            given += 1
            require_held(table)
        table.store.land_delayed()
        let_go(table)
    assert bool(given) == (effect in (Effect.LOSE_ANSWER, Effect.TRY_TWICE))


@pytest.mark.parametrize("aged_ms", [0, 60_000])
def test_j4_a_lease_taken_while_a_janitor_sleeps_at_any_call_holds(aged_ms):
    """Aged: the janitor knows that the files may go. Otherwise: they get old while it sleeps."""

    def make():
        table = make_dying()
        table.clock.advance(aged_ms)
        return table

    def take(table):
        try:
            acquire(table)
        except BelowHorizon:
            return
        table.clock.advance(TTL_MS - 10_000)

    given = 0
    for table, _, where in at_each_call(make, vacuum, take, when=BOTH):
        if table.lease is not None:
            given += 1
            require_held(table, where)
        let_go(table)
    assert (given == 0) == (aged_ms > 0)


def test_j4_a_taker_that_sleeps_at_any_call_has_a_lease_that_holds_or_none():
    def age_and_clean(table):
        table.clock.advance(table.config.data_grace_ms)
        vacuum(table)

    for table, error, where in at_each_call(make_dying, acquire, age_and_clean, when=BOTH):
        if table.lease is not None:
            require_held(table, where)
        else:
            assert isinstance(error, BelowHorizon), where
            assert table.keys(table.paths.holds_of("lease")) == [], where


@pytest.mark.parametrize("effect", FAULTS)
def test_j4_whatever_fails_at_whichever_call_a_renewal_can_be_repeated_in_time(effect):
    tables = try_each_call(make_leased, renew, effect)
    assert len(tables) >= 4
    for table in tables:
        if table.lease is None:
            table.lease = renew_lease(table, table.lease_id, clock=table.clock, ttl_ms=TTL_MS)
        table.store.land_delayed()  # what was under way all the time is refused: another state is there
        require_held(table)
        let_go(table)


@pytest.mark.parametrize("effect", FAULTS)
def test_j4_a_lease_whose_renewal_failed_and_that_has_ended_is_not_alive_again(effect):
    for table in try_each_call(make_leased, renew, effect):
        if table.lease is not None:
            continue
        table.clock.advance(TTL_MS + MAX_STORE_GAP_MS)
        vacuum(table)
        table.store.land_delayed()  # it lands now: the object is young again
        with pytest.raises(NotFound, match="has ended"):
            renew_lease(table, table.lease_id, clock=table.clock, ttl_ms=TTL_MS)
        let_go(table)


def test_j4_a_lease_renewed_while_a_janitor_sleeps_at_any_call_holds():
    def renew_and_sleep(table):
        renew(table)
        table.clock.advance(TTL_MS - 10_000)

    count = 0
    for table, _, where in at_each_call(make_leased, vacuum, renew_and_sleep, when=BOTH):
        count += 1
        require_held(table, where)
        let_go(table)
    assert count > 10


def test_j4_a_renewer_that_sleeps_over_the_end_is_told():
    def end_and_clean(table):
        table.clock.advance(MAX_STORE_GAP_MS + 1)
        vacuum(table)

    told = 0
    for table, error, where in at_each_call(make_leased, renew, end_and_clean, when=BOTH):
        is_written = any(call.method == "put_if_match" for call in table.store.calls)
        if table.lease is not None:
            # It slept when it was renewed already.
            assert is_written, where
            require_held(table, where)
        else:
            told += 1
            assert isinstance(error, NotFound), where
        let_go(table)
    assert told >= 3


@pytest.mark.parametrize("effect", FAULTS)
def test_j4_ending_a_lease_can_be_repeated_whatever_fails(effect):
    def end(table):
        release_lease(table, table.lease.lease_id)

    for table in try_each_call(make_leased, end, effect):
        end(table)
        table.store.land_delayed()
        assert table.keys(table.paths.holds_of("lease")) == []


def test_w2_an_answer_that_never_comes_is_unknown_and_the_lease_ends_by_itself():
    table = make_dying()
    table.store.script = [Fault("put_if_absent", Effect.DELAY, "/holds/lease.")]
    with pytest.raises(CommitOutcomeUnknown):
        acquire(table)
    table.store.land_delayed()
    assert len(table.keys(table.paths.holds_of("lease"))) == 1
    let_go(table)
