"""Leases: J4."""

import pytest
from icedb_log.holds.leases import read_leases
from icedb_log.holds.stored_holds import MAX_LEASE_TTL_MS, HoldReader, StoredHold
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_sim.fakes.scripted_store import Fault
from icedb_sim.tables.lease_steps import delete_lease, put_lease


def put(table, at_ms=5, ttl_ms=1000, lease_id=None):
    return put_lease(table, at_ms=at_ms, ttl_ms=ttl_ms, clock=table.clock, lease_id=lease_id)


def read(table):
    return read_leases(table)


def test_j4_a_lease_runs_from_its_last_modified_for_its_time_to_live(table):
    started_ms = table.clock.now_ms()
    lease_id = put(table)
    (lease,) = read(table)
    assert (lease.lease_id, lease.at_ms, lease.expires_ms) == (lease_id, 5, started_ms + 1000)
    table.clock.advance(999 + MAX_STORE_GAP_MS)  # servers of one store differ
    assert len(read(table)) == 1
    table.clock.advance(1)
    assert read(table) == ()


@pytest.mark.parametrize(("until_ms", "has_lapsed"), [(None, False), (99, True), (100, True), (101, False)])
def test_j4_a_lease_that_was_renewed_in_the_moment_of_its_end_has_lapsed(until_ms, has_lapsed):
    hold = StoredHold("lease", "", "a", "key", "e", 100, "active", 5, 200, until_ms)
    assert hold.is_late is has_lapsed
    assert hold.status(101) == ("late" if has_lapsed else "active")


def test_j4_a_renewed_lease_runs_anew(table):
    lease_id = put(table)
    table.clock.advance(MAX_STORE_GAP_MS)
    assert put(table, lease_id=lease_id) == lease_id
    table.clock.advance(MAX_STORE_GAP_MS)
    assert len(read(table)) == 1


def test_j4_a_lease_renewed_between_list_and_get_counts_as_renewed(table):
    lease_id = put(table)
    table.clock.advance(900)
    table.store.script = [Fault("get", None, "/holds/lease.", before=lambda: put(table, at_ms=7, lease_id=lease_id))]
    (lease,) = read(table)
    assert (lease.at_ms, lease.expires_ms) == (7, table.clock.now_ms() + 1000)


def test_a_lease_that_was_ended_is_gone_and_ending_it_again_is_fine(table):
    lease_id = put(table)
    delete_lease(table, lease_id=lease_id)
    delete_lease(table, lease_id=lease_id)
    assert read(table) == ()


def test_a_lease_that_vanishes_while_it_is_read_is_gone(table):
    lease_id = put(table)
    other = put(table)
    key = table.paths.hold_key("lease", lease_id)
    table.store.script = [Fault("get", None, key, before=lambda: table.store.inner.delete([key]))]
    assert [lease.lease_id for lease in read(table)] == [other]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b"5",
        b'{"format":1,"state":"active","at":5}',
        b'{"format":1,"state":"active","at":5,"ttl_ms":null}',
        b'{"format":1,"state":"active","at":"x","ttl_ms":5}',
        b'{"format":1,"state":"active","at":null,"ttl_ms":5}',
        b'{"format":1,"at":5,"ttl_ms":5}',
        b'{"format":2,"state":"active","at":5,"ttl_ms":5}',
    ],
)
def test_j4_a_lease_that_nobody_understands_holds_everything_for_a_while(table, body):
    table.store.put(table.paths.hold_key("lease", "0" * 32), body)
    (lease,) = read(table)
    assert lease.at_ms == 0
    table.clock.advance(MAX_LEASE_TTL_MS + MAX_STORE_GAP_MS - 1)
    assert len(read(table)) == 1
    table.clock.advance(1)
    assert read(table) == ()


def test_j4_neither_readers_nor_janitors_clocks_matter(table):
    store_ms = table.clock.now_ms()
    table.store.inner._now_ms = lambda: store_ms
    put(table)
    table.clock.advance(10**9)
    assert len(read(table)) == 1


def test_j4_a_lease_that_certainly_ended_is_not_fetched_any_more(table):
    put(table)
    table.store.put(table.paths.hold_key("lease", "0" * 32), b"{not json")
    table.clock.advance(MAX_LEASE_TTL_MS + MAX_STORE_GAP_MS)
    young = put(table)
    table.store.calls.clear()
    assert [lease.lease_id for lease in read(table)] == [young]
    assert len(table.store.keys_of("get")) == 1


def test_a_reader_fetches_each_state_of_a_lease_once(table):
    lease_id = put(table)
    table.clock.advance(1)
    other = put(table, ttl_ms=60_000)
    reader = HoldReader()

    def fetched():
        table.store.calls.clear()
        leases = read_leases(table, reader=reader)
        return [lease.lease_id for lease in leases], len(table.store.keys_of("get"))

    assert fetched() == ([lease_id, other], 2)
    assert fetched() == ([lease_id, other], 0)
    table.clock.advance(500)
    put(table, lease_id=lease_id)  # the same bytes: only LastModified tells that it was renewed
    assert fetched() == ([lease_id, other], 1)
    delete_lease(table, lease_id=other)
    assert fetched() == ([lease_id], 0)
    table.clock.advance(1000 + MAX_STORE_GAP_MS)
    assert fetched() == ([], 0)


def test_a_lease_says_who_holds_it():
    leases = (StoredHold("lease", "", "a1", "key", "e", 1, holder=holder) for holder in ("", "jane"))
    assert [lease.keeps(data_grace_ms=0).held_by for lease in leases] == ["a1", "a1 (jane)"]
