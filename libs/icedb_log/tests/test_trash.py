"""Dropping a table and taking that back (T1, T2): nothing is lost, whatever else goes on."""

import pytest
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.commit.table import Table
from icedb_log.errors import HaltError, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from icedb_log.feed.views import detach_view, read_registration, register_view
from icedb_log.holds.erasures import create_erasure
from icedb_log.serving.status import read_status
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table, load_any_config, read_table_config
from icedb_log.table.table_config import Dropped
from icedb_log.trash.drop import MAX_KEEP_MS, DropRequest, drop_table, undrop_table
from icedb_log.trash.purge import purge_table, read_trash
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.small_table import SmallTable, at_each_call, try_each_call
from icedb_sim.tables.small_view import SmallView
from icedb_sim.tables.table_steps import mark_of

KEEP_MS = 600_000
INTO_TRASH = DropRequest(keep_ms=KEEP_MS, dropped_by="ann", note="old")
FORCED = DropRequest(is_forced=True)


def drop(table, request=INTO_TRASH, *, paths=None):
    result = drop_table(TableStore(table.store, paths or table.paths), clock=table.clock, request=request)
    table.clock.advance(1)
    return result


def undrop(table, *, paths=None):
    result = undrop_table(TableStore(table.store, paths or table.paths), clock=table.clock)
    table.clock.advance(1)
    return result


@pytest.fixture
def table():
    table = SmallTable()
    for number in range(4):
        table.append(number)
    return table


def history(table):
    """What every time travel that is answered gives."""
    times = [int(key.rpartition("/")[2][:13]) for key in table.keys(table.paths.log_prefix)]
    horizon = table.snapshot().horizon_ms or 0
    return {at: table.ids(as_of_ms=at) for at in times if at >= horizon}


def test_a_table_is_dropped_and_taken_back_with_every_earlier_time(table):
    table.merge()
    table.append(4)
    table.delete("id = 2")
    before = history(table)
    assert len(before) >= 6
    config = read_table_config(table)
    result = drop(table)
    assert (result.is_new, result.mark.state, result.staged_count, result.detached_from) == (True, "trash", 0, None)
    table.clock.advance(KEEP_MS // 2)
    assert undrop(table).is_new
    assert history(table) == before
    after = read_table_config(table)
    assert after == config.model_copy(update={"undropped": result.mark.drop_id})
    table.append(5)
    table.merge(full=True)
    assert table.ids() == [0, 1, 3, 4, 5]


def test_a_dropped_table_is_not_there_for_anybody_and_says_how_to_get_it_back(table):
    drop(table)
    workers = [
        table.flush,
        table.merge,
        table.vacuum,
        table.sweep,
        table.status,
        lambda: table.drop("*"),
        lambda: table.delete("id = 1"),
        lambda: alter_table_config(table, {"merge_fan_in": 3}, clock=table.clock),
        lambda: create_erasure(table, condition="id = 1", clock=table.clock),
    ]
    table.stage([{"id": 9, "p": "a"}])
    before = table.keys()
    for work in workers:
        with pytest.raises(NotFound, match=r"dropped at 2023-.* by ann and is in the trash; `icedb table undrop t`"):
            work()
    assert table.keys() == before
    with pytest.raises(InvalidRequest, match="until it is purged no other table can have its name"):
        create_table(table, table.config)


def test_drop_and_undrop_may_be_repeated(table):
    first = drop(table)
    again = drop(table, DropRequest(keep_ms=2 * KEEP_MS))
    assert (again.is_new, again.mark) == (False, first.mark)
    assert undrop(table).is_new
    assert not undrop(table).is_new
    with pytest.raises(NotFound, match="does not exist"):
        drop_table(TableStore(table.store, table.paths.sibling("nobody")), clock=table.clock)
    with pytest.raises(NotFound, match="does not exist"):
        undrop_table(TableStore(table.store, table.paths.sibling("nobody")), clock=table.clock)


def test_t1_a_second_drop_is_another_one_whose_time_begins_anew(table):
    first = drop(table).mark
    undrop(table)
    second = drop(table).mark
    assert first.drop_id != second.drop_id


def test_t1_no_state_of_the_table_comes_back(table):
    etags = [table.store.head(table.paths.config_key).etag]
    for _ in range(2):
        drop(table)
        etags.append(table.store.head(table.paths.config_key).etag)
        undrop(table)
        etags.append(table.store.head(table.paths.config_key).etag)
    assert len(set(etags)) == len(etags)


def test_t1_a_drop_that_lands_after_it_was_taken_back_is_refused(table):
    config, info = load_any_config(table)
    drop(table)
    undrop(table)
    late = config.model_copy(update={"dropped": Dropped(state="purging", drop_id="x", keep_ms=0)})
    with pytest.raises(PreconditionFailed):
        table.store.put_if_match(table.paths.config_key, late.model_dump_json().encode(), etag=info.etag)


@pytest.mark.parametrize("effect", list(Effect))
def test_whatever_happens_at_whichever_call_a_drop_is_done_or_not_done(effect):
    for table in try_each_call(_filled, drop, effect):
        table.store.land_delayed()
        assert (mark_of(table) is None) or mark_of(table).state == "trash"
        assert drop(table).mark.state == "trash"
        undrop(table)
        assert table.ids() == [1]


@pytest.mark.parametrize("effect", list(Effect))
def test_whatever_happens_at_whichever_call_an_undrop_is_done_or_not_done(effect):
    for table in try_each_call(_dropped, undrop, effect):
        table.store.land_delayed()
        undrop(table)
        assert mark_of(table) is None
        assert table.ids() == [1]


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.TRY_TWICE])
def test_a_drop_whose_answer_was_lost_knows_that_it_was_its_own(table, effect):
    table.store.script = [Fault("put_if_match", effect, table.paths.config_key)]
    assert drop(table).is_new
    table.store.script = [Fault("put_if_match", effect, table.paths.config_key)]
    assert undrop(table).is_new


def _filled():
    table = SmallTable()
    table.append(1)
    return table


def _dropped():
    table = _filled()
    drop(table)
    return table


def test_a_table_that_others_keep_changing_is_unavailable(table):
    table.store.script = [Fault("put_if_match", Effect.REFUSE, table.paths.config_key) for _ in range(10)]
    with pytest.raises(Unavailable, match="others changed"):
        drop(table)


@pytest.mark.parametrize("work", ["flush", "merge", "vacuum"])
def test_t2_whoever_is_at_work_when_it_is_dropped_loses_nothing(work):
    """The drop comes at each call of a run in turn; the run goes on or stops, and undrop shows a whole table."""
    seen = set()

    def drop_now(table):
        drop_table(TableStore(table.store.inner, table.paths), clock=table.clock, request=INTO_TRASH)

    for table, error, _ in at_each_call(lambda: _ready(work), lambda table: getattr(table, work)(), drop_now):
        assert error is None or isinstance(error, NotFound)
        seen.add("went on" if error is None else "stopped")
        assert mark_of(table).state == "trash"
        undrop(table)
        before = [0, 1, 2, 3]
        with_staged = [*before, 7] if work == "flush" else before
        assert table.ids() in (before, with_staged)
        table.flush()
        table.merge()
        table.vacuum()
        assert table.ids() == with_staged
    assert seen == {"went on", "stopped"}


def _ready(work):
    table = SmallTable()
    for number in range(4):
        table.append(number)
    if work == "flush":
        table.stage([{"id": 7, "p": "a"}])
    if work == "vacuum":
        table.merge(full=True)
        table.clock.advance(70_000)
    return table


def test_what_is_staged_waits_and_comes_with_the_table(table):
    table.stage([{"id": 9, "p": "a"}])
    assert drop(table).staged_count == 1
    table.clock.advance(KEEP_MS)
    undrop(table)
    table.flush()
    assert table.ids() == [0, 1, 2, 3, 9]


def test_t2_a_table_that_feeds_views_is_not_dropped(table):
    SmallView(table, name="v")
    with pytest.raises(InvalidRequest, match=r"feeds view v: .*`icedb views \w+ --detach v`"):
        drop(table)
    drop(table, paths=table.paths.sibling("v"))
    assert drop(table).is_new


def test_t2_a_view_that_is_dropped_holds_nothing_up_and_comes_back_detached(table):
    view = SmallView(table, name="v")
    table.append(10)
    view.feed_all()
    result = drop(table, paths=view.paths)
    assert result.detached_from == "t"
    assert read_registration(table, "v").state == "detached"
    table.append(11)
    table.merge(full=True)
    table.clock.advance(70_000)
    assert not [each for each in table.vacuum().waiting if each.guard == "view"]
    result = undrop(table, paths=view.paths)
    assert (result.is_new, result.detached_from) == (True, "t")
    assert view.ids() == [10]
    assert not view.feed().is_attached


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER])
def test_t2_a_drop_of_a_view_that_is_cut_off_never_leaves_it_dropped_and_attached(effect):
    def make():
        table = SmallTable()
        SmallView(table, name="v")
        return table

    for table in try_each_call(make, lambda table: drop(table, paths=table.paths.sibling("v")), effect):
        is_dropped = load_any_config(TableStore(table.store, table.paths.sibling("v")))[0].dropped is not None
        assert not is_dropped or read_registration(table, "v").state == "detached"


def test_t2_a_view_that_was_attached_while_it_was_dropped_comes_back_detached(table):
    view = SmallView(table, name="v")
    drop(table, paths=view.paths)
    key = table.paths.view_key("v")
    body = table.store.get(key).body.replace(b"detached", b"active")
    table.store.put(key, body)
    undrop(table, paths=view.paths)
    assert read_registration(table, "v").state == "detached"


def test_a_detached_view_outlives_its_source_and_can_be_attached_to_the_next_one(table):
    view = SmallView(table, name="v")
    table.append(10)
    view.feed_all()
    detach_view(table, "v", clock=table.clock)
    drop(table, FORCED)
    for _ in range(2):
        status = read_status(Table.open(TableStore(table.store, view.paths), clock=table.clock))
        assert (status.view.state, status.view.waiting_commits, view.ids()) == ("detached", 0, [10])
        purge_table(table, clock=table.clock, owner="janitor")
    table.paths = create_table(table, table.config).paths
    view.source = table.paths
    assert view.feed().commit_count == 0, "it stays detached"
    register_view(table, "v", clock=table.clock, is_new=True)
    table.append(11)
    view.feed_all()
    assert view.ids() == [10, 11]


def test_t2_an_erasure_that_has_not_ended_keeps_a_table(table):
    erasure = create_erasure(table, condition="id = 1", clock=table.clock)
    with pytest.raises(InvalidRequest, match=f"erasure {erasure.erasure_id} has not ended, and its proof"):
        drop(table)
    assert mark_of(table) is None


def test_it_stays_in_the_trash_for_as_long_as_queries_may_run(table):
    with pytest.raises(InvalidRequest, match=r"59999 ms in the trash are less than .* 60000 ms"):
        drop(table, DropRequest(keep_ms=59_999))
    assert drop(table, DropRequest(keep_ms=60_000)).is_new


@pytest.mark.parametrize("words", [{"note": "\udcff"}, {"dropped_by": "\ud800"}])
def test_words_that_cannot_be_written_down_are_refused(table, words):
    with pytest.raises(InvalidRequest, match="no UTF-8"):
        drop(table, DropRequest(**words))
    assert mark_of(table) is None


def test_the_time_in_the_trash_is_one_that_every_calendar_has(table):
    with pytest.raises(InvalidRequest, match="36600 days at most"):
        drop(table, DropRequest(keep_ms=2**60))
    assert drop(table, DropRequest(keep_ms=MAX_KEEP_MS)).is_new


@pytest.mark.parametrize("field", ["dropped_by", "note"])
def test_words_have_a_length(table, field):
    with pytest.raises(InvalidRequest, match="2000 characters"):
        drop(table, DropRequest(**{field: "x" * 2001}))


def test_what_is_dropped_is_in_the_trash_and_not_among_the_tables(table):
    warehouse = Warehouse(table.store, "wh")
    SmallTable(store=table.store.inner, name="other")
    assert read_trash(warehouse) == ()
    drop(table)
    put_lease(table, at_ms=table.clock.now_ms(), ttl_ms=5000, clock=table.clock, lease_id="l1")
    assert warehouse.list_tables() == ("other",)
    (entry,) = read_trash(warehouse)
    dropped_ms = table.clock.now_ms() - 1
    mark = entry.table.mark
    assert (entry.table.name, mark.state, mark.dropped_by, mark.note) == ("t", "trash", "ann", "old")
    assert (entry.table.dropped_ms, entry.table.due_ms, entry.is_due) == (dropped_ms, dropped_ms + KEEP_MS, False)
    assert [(claim.kind, claim.name) for claim in entry.waits_for] == [("lease", "l1")]
    table.clock.advance(KEEP_MS)
    assert read_trash(warehouse)[0].is_due


def test_a_registration_that_cannot_be_read_is_told_in_the_trash(table):
    drop(table)
    table.store.put(table.paths.view_key("v"), b"damaged")
    (entry,) = read_trash(Warehouse(table.store, "wh"))
    assert "not a registration of a view" in entry.problem


def test_many_tables_are_looked_at_side_by_side(table):
    warehouse = Warehouse(table.store.inner, "wh")
    for number in range(20):
        create_table(TableStore(table.store.inner, warehouse.table(f"n{number:02}").paths), table.config.model_copy())
    drop(table)
    drop(table, paths=warehouse.table("n07").paths)
    assert warehouse.list_tables() == tuple(f"n{number:02}" for number in range(20) if number != 7)
    assert [each.name for each in warehouse.list_dropped()] == ["n07", "t"]


def test_a_configuration_that_cannot_be_read_stays_among_the_tables(table):
    table.store.put(table.paths.config_key, b"{}")
    assert Warehouse(table.store, "wh").list_tables() == ("t",)
    with pytest.raises(HaltError):
        vacuum_table(Table.open(table, clock=table.clock))
