"""Taking, renewing and ending leases: J4."""

from dataclasses import replace

import orjson
import pytest
from icedb_log.commit.table import Table
from icedb_log.errors import (
    BelowHorizon,
    CommitOutcomeUnknown,
    CorruptLog,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from icedb_log.holds.guards import STORE_RESOLUTION_MS, Hold
from icedb_log.holds.leases import MIN_LEASE_TTL_MS, acquire_lease, read_leases, release_lease, renew_lease
from icedb_log.holds.stored_holds import MAX_LEASE_TTL_MS, HoldReader, find_oldest_certain_ms
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogTombstone, LogView
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.trash.drop import drop_table
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.row_files import read_live_rows
from icedb_sim.tables.small_table import SmallTable

TTL_MS = 600_000
DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def table():
    table = SmallTable()
    table.append(1)
    table.append(2)
    return table


def acquire(table, **options):
    options.setdefault("ttl_ms", TTL_MS)
    return acquire_lease(Table.open(table, clock=table.clock, reader=table.reader()), **options)


def renew(table, lease, ttl_ms=TTL_MS):
    return renew_lease(table, lease.lease_id, clock=table.clock, ttl_ms=ttl_ms)


def release(table, lease):
    release_lease(table, lease.lease_id)


def leased(at_ms):
    return Hold("lease", since_ms=at_ms - MAX_STORE_GAP_MS)


def ids_at(table, at_ms):
    return sorted(row["id"] for row in read_live_rows(table.store, table.snapshot(as_of_ms=at_ms)))


def held(table):
    return [lease.lease_id for lease in read_leases(table)]


def clean(table):
    """Vacuum until nothing more goes."""
    table.vacuum()
    table.clock.advance(1000)
    table.vacuum()


def test_j4_a_janitor_keeps_what_is_leased_and_lets_it_go_afterwards(table):
    lease = acquire(table, holder="jane")
    assert lease.at_ms == table.clock.now_ms()
    assert lease.expires_ms == lease.at_ms + TTL_MS
    newest = table.snapshot()
    table.clock.advance(1)
    table.append(3)
    table.merge(full=True)
    table.clock.advance(TTL_MS - 10_000)
    clean(table)
    assert {(w.guard, w.held_by) for w in table.vacuum().waiting} == {("lease", f"{lease.lease_id} (jane)")}
    assert ids_at(table, lease.at_ms) == [1, 2]
    assert len(read_live_rows(table.store, newest)) == 2
    table.clock.advance(10_000 + MAX_STORE_GAP_MS)
    clean(table)
    assert len(table.keys(table.paths.data_prefix)) == 1
    with pytest.raises(BelowHorizon):
        ids_at(table, lease.at_ms)


def test_j4_any_state_since_the_leased_time_is_held(table):
    lease = acquire(table)
    table.clock.advance(1000)
    table.append(3)
    later = table.snapshot()  # the newest state, read after the lease was taken
    table.merge(full=True)
    table.clock.advance(TTL_MS - 60_000)
    clean(table)
    assert sorted(row["id"] for row in read_live_rows(table.store, later)) == [1, 2, 3]
    assert ids_at(table, lease.at_ms) == [1, 2]


def test_j4_a_renewed_lease_goes_on_and_says_who_holds_it(table):
    lease = acquire(table, ttl_ms=30_000, holder="jane")
    table.merge(full=True)
    for _ in range(5):
        table.clock.advance(lease.expires_ms - table.clock.now_ms() - 1)
        lease = renew(table, lease, 30_000)
        assert lease.expires_ms == table.clock.now_ms() + 30_000
        clean(table)
    assert lease.holder == "jane"
    assert ids_at(table, lease.at_ms) == [1, 2]
    assert len(table.keys(table.paths.data_prefix)) == 3


def test_j4_a_lease_that_has_ended_is_not_renewed(table):
    lease = acquire(table, ttl_ms=5000)
    table.clock.advance(5000)
    table.store.calls.clear()
    with pytest.raises(NotFound, match="Take another lease and read again"):
        renew(table, lease)
    assert table.store.keys_of("put_if_match") == []  # nothing is held in vain
    # Neither by one that looked in time and slept before it wrote.
    lease = acquire(table, ttl_ms=5000)
    table.store.script = [Fault("put_if_match", None, "/holds/lease.", before=lambda: table.clock.advance(5000))]
    with pytest.raises(NotFound, match="has ended"):
        renew(table, lease)
    with pytest.raises(NotFound, match="has ended"):
        renew(table, lease)


def test_j4_a_renewal_may_come_in_the_last_moment(table):
    lease = acquire(table, ttl_ms=5000)
    table.clock.advance(4999)
    lease = renew(table, lease, 5000)
    assert lease.expires_ms == table.clock.now_ms() + 5000
    assert held(table) == [lease.lease_id]


def test_j4_ending_a_lease_may_be_repeated_and_leaves_nothing(table):
    lease = acquire(table)
    other = acquire(table)
    release(table, lease)
    release(table, lease)
    assert held(table) == [other.lease_id]
    with pytest.raises(NotFound, match="was released"):
        renew(table, lease)


def test_j4_an_old_time_whose_files_are_still_there_for_certain_can_be_held(table):
    table.clock.advance(DAY_MS)
    at_ms = table.clock.now_ms() - DAY_MS
    lease = acquire(table, at_ms=at_ms)  # nothing has died since
    table.merge(full=True)
    table.clock.advance(TTL_MS - 1)
    clean(table)
    assert ids_at(table, lease.at_ms) == [1, 2]


def test_j4_a_time_whose_files_a_janitor_may_be_about_to_delete_is_refused(table):
    at_ms = table.clock.now_ms() - 1
    table.merge(full=True)
    died_ms = table.clock.now_ms() - 1
    oldest_ms = died_ms + STORE_RESOLUTION_MS + MAX_STORE_GAP_MS  # readers may have seen them alive until then
    table.clock.advance(table.config.log_grace_ms - MAX_STORE_GAP_MS - 2)
    lease = acquire(table, at_ms=at_ms)
    release(table, lease)
    table.clock.advance(MAX_STORE_GAP_MS)
    assert ids_at(table, at_ms) == [1, 2]  # it can be read, as long as it goes well
    with pytest.raises(BelowHorizon, match=f"the oldest time that can be held is {oldest_ms} "):
        acquire(table, at_ms=at_ms)
    assert held(table) == []
    with pytest.raises(BelowHorizon):
        acquire(table, at_ms=oldest_ms - 1)
    table.clock.advance(STORE_RESOLUTION_MS)
    assert acquire(table, at_ms=oldest_ms).at_ms == oldest_ms


def test_j4_a_time_below_the_horizon_is_refused_and_leaves_nothing(table):
    at_ms = table.clock.now_ms() - 1
    table.merge(full=True)
    table.clock.advance(DAY_MS)
    clean(table)
    with pytest.raises(BelowHorizon, match="cannot be held"):
        acquire(table, at_ms=at_ms)
    assert table.keys(table.paths.holds_of("lease")) == []


def test_j4_the_log_is_read_after_the_lease_is_there(table):
    """A taker that sleeps before its lease is written proves it by what is there then."""
    at_ms = table.clock.now_ms() - 1

    def merge_and_clean():
        table.merge(full=True)
        table.clock.advance(DAY_MS)
        clean(table)

    table.store.script = [Fault("put_if_absent", None, "/holds/lease.", before=merge_and_clean)]
    with pytest.raises(BelowHorizon):
        acquire(table, at_ms=at_ms)
    assert table.keys(table.paths.holds_of("lease")) == []


@pytest.mark.parametrize("ttl_ms", [0, -1, MIN_LEASE_TTL_MS - 1, MAX_LEASE_TTL_MS + 1])
def test_a_lease_has_a_bounded_time_to_live(table, ttl_ms):
    lease = acquire(table)
    with pytest.raises(InvalidRequest, match=f"not {ttl_ms}"):
        acquire(table, ttl_ms=ttl_ms)
    with pytest.raises(InvalidRequest, match=f"not {ttl_ms}"):
        renew(table, lease, ttl_ms)


def test_a_time_in_the_future_of_the_store_is_refused(table):
    now_ms = table.clock.now_ms()
    with pytest.raises(InvalidRequest, match="in the future"):
        acquire(table, at_ms=now_ms + 1000)
    assert acquire(table, at_ms=now_ms + 999).at_ms == now_ms + 999  # a store tells whole seconds
    with pytest.raises(InvalidRequest, match="unix milliseconds"):
        acquire(table, at_ms=-1)


@pytest.mark.parametrize("lease_id", ["", "x", "../table", "a/../../x", "A" * 32, "0" * 33])
def test_what_is_no_id_of_a_lease_touches_nothing(table, lease_id):
    before = table.keys(table.paths.prefix)
    with pytest.raises(InvalidRequest, match="32 hex digits"):
        release_lease(table, lease_id)
    with pytest.raises(InvalidRequest, match="32 hex digits"):
        renew_lease(table, lease_id, clock=table.clock, ttl_ms=TTL_MS)
    assert table.keys(table.paths.prefix) == before


def test_no_more_leases_last_at_once_than_are_allowed(table):
    reader = HoldReader()
    for _ in range(3):
        acquire(table, reader=reader, max_leases=3, ttl_ms=5000)
    with pytest.raises(Overloaded, match="3 leases last already"):
        acquire(table, reader=reader, max_leases=3)
    table.clock.advance(5000 + MAX_STORE_GAP_MS)  # those that are forgotten end by themselves
    acquire(table, reader=reader, max_leases=3)


@pytest.mark.parametrize("holder", ["x" * 201, "a\nb"])
def test_a_holder_is_a_short_line(table, holder):
    with pytest.raises(InvalidRequest, match="printable"):
        acquire(table, holder=holder)


def test_a_table_that_is_dropped_or_damaged_gives_no_lease(table):
    table.store.script = [
        Fault("put_if_absent", None, "/holds/lease.", before=lambda: drop_table(table, clock=table.clock))
    ]
    with pytest.raises(NotFound, match="trash"):
        acquire(table)
    assert table.keys(table.paths.holds_of("lease")) == []
    broken = SmallTable()
    broken.store.put(broken.paths.log_key(time_ms=1, commit_id="aa", is_merged=False), b"{")
    with pytest.raises(CorruptLog):
        acquire(broken)
    assert broken.keys(broken.paths.holds_of("lease")) == []


def test_a_lease_that_ended_while_it_was_taken_is_refused(table):
    table.store.script = [Fault("list_page", None, "/_log/", before=lambda: table.clock.advance(5000))]
    with pytest.raises(Unavailable, match="ask for a longer one"):
        acquire(table, ttl_ms=5000)
    assert table.keys(table.paths.holds_of("lease")) == []


def test_two_who_renew_one_lease_at_once_both_go_on(table):
    lease = acquire(table, ttl_ms=30_000)
    table.clock.advance(1000)
    table.store.script = [Fault("put_if_match", None, "/holds/lease.", before=lambda: renew(table, lease, 40_000))]
    renewed = renew(table, lease, 50_000)
    assert renewed.expires_ms == table.clock.now_ms() + 50_000
    assert [each.expires_ms for each in read_leases(table)] == [renewed.expires_ms]


def test_w2_a_renewal_whose_answer_got_lost_is_found(table):
    lease = acquire(table, ttl_ms=30_000)
    for effect in (Effect.LOSE_ANSWER, Effect.TRY_TWICE):
        table.clock.advance(1000)
        table.store.script = [Fault("put_if_match", effect, "/holds/lease.")]
        lease = renew(table, lease, 30_000)
        assert lease.expires_ms == table.clock.now_ms() + 30_000
    table.store.script = [Fault("put_if_match", Effect.DROP, "/holds/lease.")]
    with pytest.raises(CommitOutcomeUnknown):
        renew(table, lease)


def test_j4_a_renewal_never_shortens_a_lease_whether_or_not_its_answer_gets_lost(table):
    """Simulated, seed 1676 of lessees: without an answer the holder relies on the end that it knows."""
    lease = acquire(table, ttl_ms=60_000)
    table.merge(full=True)
    table.clock.advance(1000)
    assert renew(table, lease, 5000).expires_ms == lease.expires_ms
    silence = Fault("get", Effect.UNAVAILABLE, "/holds/lease.")
    write = Fault(
        "put_if_match", Effect.LOSE_ANSWER, "/holds/lease.", before=lambda: table.store.script.append(silence)
    )
    table.store.script = [write]
    with pytest.raises(CommitOutcomeUnknown):
        renew(table, lease, 5000)
    table.clock.advance(55_500)
    clean(table)
    assert [each.expires_ms for each in read_leases(table)] == [lease.expires_ms]
    assert ids_at(table, lease.at_ms) == [1, 2]
    assert renew(table, lease, 5000).expires_ms == table.clock.now_ms() + 5000  # longer than before, now


def test_the_wire_of_a_lease(table):
    lease = acquire(table, ttl_ms=5000, holder="jane")
    key = table.paths.hold_key("lease", lease.lease_id)
    first = orjson.loads(table.store.get(key).body)
    renew(table, lease, 6000)
    second = orjson.loads(table.store.get(key).body)
    renew(table, lease, 6000)
    tokens = {first.pop("token"), second.pop("token"), orjson.loads(table.store.get(key).body)["token"]}
    assert first == {"format": 1, "state": "active", "at": lease.at_ms, "ttl_ms": 5000, "by": "jane"}
    assert second == {**first, "ttl_ms": 6000, "until": lease.expires_ms}
    assert len(tokens) == 3


def test_j4_a_data_file_that_died_alone_is_in_doubt_as_well(table):
    """Other writers of the format kill data files and leave their log files alive."""
    dead = FileMarker("wh/t/_data/a.parquet", 1, 10, tombstoned_ms=1000, landed_ms=1000)
    log = ListedLogFile(table.paths.log_key(time_ms=1000, commit_id="aa", is_merged=True), "e", 1000, 1, LogFile(1000))
    view = LogView("t", (replace(log, log=LogFile(1000, markers=(dead,))),), 0)
    certain_ms = 1000 + table.config.data_grace_ms - MAX_STORE_GAP_MS

    def oldest(at_ms, written_ms):
        return find_oldest_certain_ms(view, leased(at_ms), config=table.config, written_ms=written_ms)

    oldest_ms = 1000 + STORE_RESOLUTION_MS + MAX_STORE_GAP_MS
    assert oldest(999, certain_ms) is None
    assert oldest(999, certain_ms + 1) == oldest(oldest_ms - 1, certain_ms + 1) == oldest_ms
    assert oldest(oldest_ms, certain_ms + 1) is None


@pytest.mark.parametrize("kind", ["data", "log"])
def test_j4_the_times_of_which_no_file_needs_a_look_are_certain(table, kind):
    """What may be about to be deleted died up to a second later than the store says, to those who saw it alive."""
    config = table.config.model_copy(update={f"{'log' if kind == 'data' else 'data'}_grace_ms": 10**12})
    grace_ms = table.config.data_grace_ms if kind == "data" else table.config.log_grace_ms
    config = config.model_copy(update={f"{kind}_grace_ms": grace_ms})
    died_ms = 10 * grace_ms
    marker = FileMarker("wh/t/_data/a.parquet", 1, 10, tombstoned_ms=died_ms, landed_ms=died_ms)
    dead = LogTombstone(table.paths.log_key(time_ms=1, commit_id="bb", is_merged=False), died_ms, landed_ms=died_ms)
    log = LogFile(died_ms, markers=(marker,) if kind == "data" else (), log_tombstones=(dead,) if kind == "log" else ())
    file = ListedLogFile(table.paths.log_key(time_ms=died_ms, commit_id="aa", is_merged=True), "e", died_ms, 1, log)
    written_ms = died_ms + 1 - MAX_STORE_GAP_MS + grace_ms  # the first at which it may be going
    certain_ms = died_ms + STORE_RESOLUTION_MS + MAX_STORE_GAP_MS
    for at_ms in (died_ms, certain_ms - STORE_RESOLUTION_MS, certain_ms - STORE_RESOLUTION_MS + 1, certain_ms - 1):
        view = LogView("t", (file,), 0)
        assert find_oldest_certain_ms(view, leased(at_ms), config=config, written_ms=written_ms) == certain_ms
        assert find_oldest_certain_ms(view, leased(at_ms), config=config, written_ms=written_ms - 1) is None
    assert find_oldest_certain_ms(view, leased(certain_ms), config=config, written_ms=written_ms) is None


def test_j4_a_file_whose_death_was_dated_back_is_in_doubt_for_those_who_saw_it_alive(table):
    """A committer with a slow clock: its tombstone says a time before the leased one, and landed after it."""
    dead = FileMarker("wh/t/_data/a.parquet", 1, 10, tombstoned_ms=1000, landed_ms=50_000)
    log = LogFile(1000, markers=(dead,))
    file = ListedLogFile(table.paths.log_key(time_ms=1000, commit_id="aa", is_merged=True), "e", 50_000, 1, log)
    view = LogView("t", (file,), 0)
    written_ms = 50_000 + table.config.data_grace_ms
    found_ms = find_oldest_certain_ms(view, leased(40_000), config=table.config, written_ms=written_ms)
    assert found_ms == 50_000 + STORE_RESOLUTION_MS + MAX_STORE_GAP_MS
