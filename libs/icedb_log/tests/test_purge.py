"""A purge (T3 to T5): when it begins, what goes, what stays, in which order, and that it goes on wherever it was cut."""

import pytest
from icedb_log.clean.deletion import AuditLog, read_audit
from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog, Fenced, InvalidRequest, NotFound, Unavailable
from icedb_log.holds.erasures import Erasure, encode_erasure
from icedb_log.holds.tags import create_tag, delete_tag, read_tagged
from icedb_log.store.object_store import list_all
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore
from icedb_log.trash.drop import read_kept_config, undrop_table
from icedb_log.trash.purge import PurgeLimits, purge_table, read_trash
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.small_view import SmallView
from icedb_sim.tables.table_steps import KEEP_MS, KEPT, drop, make_full, mark_of, purge, rest_of


@pytest.fixture
def table():
    return make_full()


# ── when ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_t3_it_begins_when_the_time_in_the_trash_is_over_by_the_stores_clock(table):
    assert purge(table).state == "kept"
    drop(table)
    dropped_ms = table.clock.now_ms() - 1
    table.clock.advance(KEEP_MS - 2)
    table.store.calls.clear()
    assert purge(table).state == "kept"
    assert not table.store.keys_of("put", "put_if_match", "put_if_absent", "delete")
    result = purge(table)
    assert result.state == "purged"
    assert (mark_of(table).state, mark_of(table).dropped_ms) == ("purged", dropped_ms)
    assert purge(table).state == "purged"


@pytest.mark.parametrize("hold", ["lease", "view", "erasure"])
def test_t3_it_waits_for_whoever_needs_the_table(hold):
    table = SmallTable()
    table.append(1)
    SmallView(table, name="v")
    key = table.paths.view_key("v")
    active = table.store.get(key).body
    table.store.put(key, active.replace(b"active", b"detached"))
    drop(table)
    table.clock.advance(KEEP_MS)
    if hold == "lease":
        put_lease(table, at_ms=0, ttl_ms=5000, clock=table.clock, lease_id="h")
    elif hold == "view":
        table.store.put(key, active)
    else:
        table.store.put(table.paths.erasure_key("h"), b"x")
    result = purge(table)
    assert (result.state, [claim.kind for claim in result.waits_for]) == ("waiting", [hold])
    assert mark_of(table).state == "trash"
    if hold == "lease":
        table.clock.advance(5000 + MAX_STORE_GAP_MS)
        assert purge(table).state == "purged"


def test_t3_tags_keep_a_table_from_being_purged_and_can_be_ended_in_the_trash(table):
    create_tag(Table.open(table, clock=table.clock), "q3")
    with pytest.raises(InvalidRequest, match=r"is tagged .q3.: `icedb tag delete t q3` first"):
        drop(table, force=True)
    drop(table)
    with pytest.raises(InvalidRequest, match="is tagged"):
        drop(table, force=True)
    table.clock.advance(KEEP_MS)
    assert [claim.name for claim in purge(table).waits_for] == ["q3"]
    assert read_kept_config(table).name == "t"
    delete_tag(table, "q3")
    assert [claim.kind for claim in purge(table).waits_for] == ["tag"], "somebody may be reading at it"
    table.clock.advance(table.config.data_grace_ms + MAX_STORE_GAP_MS)
    assert purge(table).state == "purged"
    with pytest.raises(NotFound):
        read_kept_config(table)


def test_t3_it_does_not_begin_where_the_stores_clock_tells_no_ages(table):
    drop(table)
    table.clock.advance(KEEP_MS)
    table.clock.advance(900_000)
    host = SmallTable().clock  # more than a quarter of an hour behind
    with pytest.raises(Unavailable, match="nothing is deleted by age"):
        purge_table(table, clock=host, owner="x")
    assert mark_of(table).state == "trash"


def test_t3_a_tag_that_is_made_while_a_table_is_dropped_by_force_holds_or_is_refused(table):
    def make_tag():
        create_tag(Table.open(table, clock=table.clock), "q3")

    table.store.script = [Fault("put_if_match", None, "table.json", before=make_tag)]
    with pytest.raises(InvalidRequest, match="It is in the trash by now"):
        drop(table, force=True)
    assert purge(table).state == "kept"
    undrop_table(table, clock=table.clock)
    assert read_tagged(table, "q3")[0].name == "q3"


def test_force_goes_past_the_trash_and_past_leases(table):
    put_lease(table, at_ms=0, ttl_ms=50_000, clock=table.clock)
    drop(table, force=True)
    assert mark_of(table).state == "purging"
    with pytest.raises(InvalidRequest, match="is being purged: nothing brings it back"):
        undrop_table(table, clock=table.clock)
    assert purge(table).state == "purged"


def test_what_is_in_the_trash_can_be_purged_at_once(table):
    drop(table)
    dropped_ms = table.clock.now_ms() - 1
    drop(table, force=True)
    assert (mark_of(table).state, mark_of(table).dropped_ms) == ("purging", dropped_ms)
    assert purge(table).state == "purged"


def test_a_table_that_never_was_has_no_purge():
    table = SmallTable()
    with pytest.raises(NotFound):
        purge_table(TableStore(table.store, table.paths.sibling("nobody")), clock=table.clock, owner="x")


# ── what ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_everything_goes_but_the_mark_and_certificates(table):
    ended = Erasure(erasure_id="c1", table="t", condition="id = 1", state="complete", requested_ms=1)
    table.store.put(table.paths.erasure_key("c1"), encode_erasure(ended))
    table.store.put(f"{table.paths.log_prefix}no-log-file", b"a log that is damaged")
    before = {info.key: info.size_bytes for info in list_all(table.store, f"{table.paths.prefix}/").objects}
    drop(table, force=True)
    result = purge(table)
    assert rest_of(table) == ["erasures/c1.json", *KEPT]
    gone = set(before) - set(table.keys())
    assert (result.deleted_count, result.deleted_bytes) == (len(gone), sum(before[key] for key in gone))
    assert table.store.get("wh/t2/_icedb/table.json").body == b"a neighbour"


def test_data_files_go_before_log_files_and_log_files_before_the_rest(table):
    drop(table, force=True)
    table.store.calls.clear()
    purge(table)
    kinds = [
        0 if "/_data/" in key else 1 if "/_log/" in key else 2
        for call in table.store.calls
        if call.method == "delete"
        for key in call.key.split()
    ]
    assert kinds == sorted(kinds)
    assert set(kinds) == {0, 1, 2}


def test_a_reader_of_v3_in_the_middle_fails_or_sees_nothing_but_never_half_of_it(table):
    """It does not know ``table.json``: it reads the log, and then the files that the log names."""
    ids = table.ids()
    seen = set()

    def read():
        try:
            seen.add(tuple(table.ids()))
        except (NotFound, CorruptLog, Crash):
            seen.add("fails")

    drop(table, force=True)
    deletes = 40
    table.store.script = [Fault("delete", None, before=read) for _ in range(deletes)]
    purge(table, limits=PurgeLimits(chunk_keys=1))
    assert 5 < deletes - len(table.store.script) < deletes
    assert seen == {tuple(ids), "fails", ()}


def test_it_is_written_down_what_went(table):
    drop(table, force=True)
    audit = AuditLog(table, clock=table.clock, owner="janitor")
    result = purge(table, audit=audit)
    parts = list(read_audit(table))
    assert {part.kind for part in parts} == {"purge"}
    entries = [entry for part in parts for entry in part.entries]
    assert len(entries) == result.deleted_count
    assert {(entry.kind, entry.outcome) for entry in entries} == {("dropped_table", "deleted")}


def test_requests_grow_with_pages_not_with_objects():
    table = SmallTable()
    keys = [table.paths.data_key(partition="p=a", file_id=table.clock.new_id()) for _ in range(2500)]
    for key in keys:
        table.store.inner.put(key, b"x")
    drop(table, force=True)
    table.store.calls.clear()
    assert purge(table, limits=PurgeLimits()).deleted_count == 2500
    methods = [call.method for call in table.store.calls]
    assert methods.count("delete") <= 3
    assert methods.count("list_page") <= 3 + 12
    assert methods.count("get") <= 20


# ── cut off ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_dropped():
    table = make_full()
    drop(table, force=True)
    return table


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER])
def test_it_goes_on_wherever_it_was_cut_off(effect):
    tables = try_each_call(make_dropped, lambda table: purge(table, limits=PurgeLimits(chunk_keys=4)), effect)
    assert len(tables) > 15
    for table in tables:
        result = purge(table)
        assert (result.state, result.failed) == ("purged", ())
        assert rest_of(table) == KEPT
        assert mark_of(table).state == "purged"


def test_what_will_not_go_is_told_and_tried_again(table):
    drop(table, force=True)
    stubborn = table.keys(table.paths.data_prefix)[0]
    table.store.script = [Fault("delete", Effect.REFUSE, stubborn)]
    result = purge(table)
    assert (result.state, [each.key for each in result.failed]) == ("purging", [stubborn])
    assert table.store.head(stubborn)
    assert table.keys(table.paths.log_prefix), "the log names what could not be deleted"
    assert read_trash(Warehouse(table.store, "wh"))[0].table.mark.state == "purging"
    assert purge(table).state == "purged"


def test_a_run_has_an_end(table):
    drop(table, force=True)
    states = []
    while not states or states[-1] != "purged":
        states.append(purge(table, limits=PurgeLimits(run_ms=0, chunk_keys=2)).state)
        assert len(states) < 30
    assert len(states) > 5


def test_a_run_that_is_to_stop_stops_before_its_next_chunk(table):
    drop(table, force=True)
    table.store.calls.clear()
    calls = []

    def check_alive():
        calls.append(1)
        if len(calls) == 3:
            raise Fenced("the lock is lost")

    with pytest.raises(Fenced):
        purge(table, check_alive=check_alive)
    assert len(table.store.keys_of("delete")) == 2
    assert purge(table).state == "purged"
