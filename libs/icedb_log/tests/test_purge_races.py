"""Whoever sleeps through a drop, a purge and a creation of the same name does no harm to the new table (T4 to T6).

Each test lets somebody begin, lets the whole life pass just before one of its store calls, for each of them in turn, and
lets it go on then.
"""

import copy

import orjson
import pytest
from icedb_log.clean.drop import DropRequest, drop_table, undrop_table
from icedb_log.clean.purge import PurgeLimits, purge_table, read_trash
from icedb_log.errors import HaltError, IceDBError, InvalidRequest, NotFound
from icedb_log.log.fence import acquire_fence
from icedb_log.table.stored_config import create_table, load_any_config
from icedb_log.table.table import Table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.scripted_store import Effect, Fault, ScriptedStore
from icedb_sim.tables import small_table
from icedb_sim.tables.small_table import DEFAULTS, SmallTable
from icedb_sim.tables.small_view import SmallView

KEEP_MS = 600_000
SEAL_MS = DEFAULTS["seal_age_ms"]
OTHER_LAYOUT = {**DEFAULTS, "partition": (PartitionField(name="q", column="p"),)}


def someone_else(table):
    """Another actor on the same table, whose calls are its own."""
    other = copy.copy(table)
    other.store = ScriptedStore(table.store.inner)
    return other


def drop(table, *, force=True):
    drop_table(table, clock=table.clock, request=DropRequest(keep_ms=KEEP_MS, is_forced=force))


def purge(table):
    return purge_table(table, clock=table.clock, owner="x", limits=PurgeLimits(chunk_keys=3))


def create(table):
    table.clock.advance(table.config.log_grace_ms)
    create_table(table, TableConfig.create(name="t", **OTHER_LAYOUT))


def live_again(table):
    """Drop the table, purge it, create another one of its name, and put something into it."""
    drop(table)
    assert purge(table).state == "purged"
    create(table)
    table.append(100)
    table.append(101)
    table.stage([{"id": 102, "p": "a"}])


def at_each_call(make, act, meanwhile):
    """Run ``act`` with ``meanwhile`` before each of its store calls in turn; yield table and error."""
    for table, error, _ in small_table.at_each_call(make, act, lambda table: meanwhile(someone_else(table))):
        yield table, error


def require_whole(table):
    """The new table has its rows, once each, and is kept clean as any other."""
    table.flush()
    assert table.ids() == [100, 101, 102]
    table.merge(full=True)
    for _ in range(2):
        table.clock.advance(300_000)
        table.vacuum()
        table.sweep()
    assert table.ids() == [100, 101, 102]
    live = {marker.path for marker in table.snapshot().live}
    assert set(table.keys(table.paths.data_prefix)) == live
    assert {table.paths.partition_of(path) for path in live} == {"q=a"}


def make_old():
    table = SmallTable()
    for number in range(4):
        table.append(number)
    table.stage([{"id": 7, "p": "a"}])
    return table


def make_dead():
    table = make_old()
    table.merge(full=True)
    table.store.put(table.paths.data_key(partition="p=a", file_id=table.clock.new_id()), b"an orphan")
    table.clock.advance(250_000)
    return table


@pytest.mark.parametrize(
    "work",
    [
        SmallTable.flush,
        SmallTable.merge,
        lambda table: table.delete("id = 1"),
        lambda table: table.drop("p=*"),
    ],
    ids=["flush", "merge", "delete", "drop partitions"],
)
def test_t4_whoever_commits_sleeps_through_it_all(work):
    errors = set()
    for table, error in at_each_call(make_old, work, live_again):
        assert not isinstance(error, HaltError), error
        errors.add(type(error).__name__)
        require_whole(table)
    assert "Fenced" in errors


@pytest.mark.parametrize("work", [SmallTable.vacuum, SmallTable.sweep], ids=["vacuum", "sweep"])
def test_t4_the_janitor_sleeps_through_it_all(work):
    for table, _ in at_each_call(make_dead, work, live_again):
        require_whole(table)


@pytest.mark.parametrize("work", [SmallTable.vacuum, SmallTable.sweep], ids=["vacuum", "sweep"])
def test_t4_the_janitor_never_goes_by_the_grace_periods_of_the_old_table(work):
    """Those of the new one are longer: what is dead in it, and what nobody names yet, stays."""
    orphan = SmallTable().paths.data_key(partition="q=a", file_id="0" * 32)

    def live_longer(other):
        drop(other)
        purge(other)
        other.clock.advance(other.config.log_grace_ms)
        graces = {"data_grace_ms": 10**7, "log_grace_ms": 10**7, "orphan_age_ms": 10**7}
        create_table(other, TableConfig.create(name="t", **{**OTHER_LAYOUT, **graces}))
        other.append(100)
        other.append(101)
        other.merge(full=True)
        other.store.put(orphan, b"about to be committed")
        other.clock.advance(300_000)

    for table, _ in at_each_call(make_dead, work, live_longer):
        assert len(table.keys(table.paths.data_prefix)) == 4, "two inputs, an output, an upload"
        assert len(table.view().files) == 3


def test_t4_a_feed_sleeps_through_it_all():
    """The view is dropped, purged and created anew as an ordinary table."""

    def make():
        table = SmallTable(name="s")
        view = SmallView(table, name="t")
        table.append(1)
        of_view = copy.copy(table)
        of_view.paths, of_view.view = view.paths, view
        return of_view

    for table, error in at_each_call(make, lambda table: table.view.feed(), live_again):
        assert not isinstance(error, HaltError), error
        del table.view
        require_whole(table)


def test_t4_a_commit_that_is_sealed_by_the_purge_never_lands_below_the_new_table():
    table = make_old()
    table.store.script = [
        Fault("put_if_absent", Effect.DELAY, "/_log/", before=lambda: live_again(someone_else(table)))
    ]
    with pytest.raises(IceDBError):
        table.flush()
    assert not table.store.script
    table.store.land_delayed()
    require_whole(table)


def test_t5_a_purge_sleeps_while_another_one_ends_and_the_name_is_taken():
    """Also before it lists: what it would find then is the new table."""
    taken = []

    def finish(other):
        assert purge(other).state == "purged"
        try:
            create(other)
        except InvalidRequest as error:
            assert "the name is free in 2 minutes" in str(error)
            taken.append(False)
            return
        taken.append(True)
        other.append(100)
        other.append(101)
        other.stage([{"id": 102, "p": "a"}])

    def make():
        table = make_dead()
        drop(table)
        return table

    for table, _ in at_each_call(make, purge, finish):
        if taken[-1]:
            require_whole(table)
        else:
            other = someone_else(table)
            other.clock.advance(SEAL_MS)
            create(other)
            assert other.ids() == []
    assert set(taken) == {True, False}


def test_t5_a_batch_that_is_sent_again_into_the_new_table_is_not_deleted_by_a_purge_of_the_old_one():
    table = SmallTable()
    batch_id = table.stage([{"id": 102, "p": "a"}])
    drop(table)
    other = someone_else(table)

    def finish():
        purge(other)
        with pytest.raises(InvalidRequest, match="whose last deletes may still be under way"):
            create(other)

    table.store.script = [Fault("delete", None, batch_id, before=finish)]
    with pytest.raises(IceDBError):
        purge(table)
    assert not table.store.script
    table.clock.advance(SEAL_MS)
    create(other)


def test_t5_a_run_that_got_no_answer_keeps_the_name_for_as_long_as_its_deletes_may_be_under_way():
    table = make_old()
    drop(table)
    table.store.script = [Fault("delete", Effect.DELAY, "/staging/")]
    assert purge(table).state == "purging"
    assert purge(table).state == "purged"
    with pytest.raises(InvalidRequest, match="whose last deletes may still be under way"):
        create(table)
    table.clock.advance(SEAL_MS)
    create(table)


def test_t1_an_undrop_and_a_purge_at_once_have_one_winner():
    """An undrop comes just before each call of a purge; who is first wins, and the table is whole or gone."""
    outcomes = set()

    def take_back(other):
        try:
            undrop_table(other, clock=other.clock)
            outcomes.add("undropped")
        except (InvalidRequest, NotFound):
            outcomes.add("purged")

    def make():
        table = make_old()
        drop(table, force=False)
        table.clock.advance(KEEP_MS)
        return table

    for table, error in at_each_call(make, purge, take_back):
        assert error is None
        is_dropped = load_any_config(table)[0].dropped is not None
        assert is_dropped or (table.flush() and table.ids() == [0, 1, 2, 3, 7])
        assert not is_dropped or table.keys(table.paths.data_prefix) == []
    assert outcomes == {"undropped", "purged"}


def test_t6_a_creation_and_the_last_sweep_at_once():
    """The name is taken just before each call of the last sweep, which must not touch what is created."""
    taken = set()

    def take(other):
        try:
            create(other)
        except InvalidRequest as error:
            assert "is being purged" in str(error)
            taken.add(False)
            return
        taken.add(True)
        other.append(100)
        other.append(101)
        other.stage([{"id": 102, "p": "a"}])

    def make():
        table = make_old()
        drop(table)
        purge(table)
        table.store.put(table.paths.data_key(partition="p=a", file_id=table.clock.new_id()), b"late")
        table.store.put(table.paths.quarantine_key("late.json"), b"late")
        table.clock.advance(SEAL_MS)
        return table

    for table, error in at_each_call(make, purge, take):
        assert not isinstance(error, HaltError)
        if load_any_config(table)[0].dropped is None and table.ids():
            require_whole(table)
    assert taken == {True, False}


def test_t4_the_fences_of_two_lives_are_one():
    table = make_old()
    before = acquire_fence(table.known("asleep"), "merge")
    live_again(someone_else(table))
    with pytest.raises(IceDBError, match="took the fence"):
        before.confirm()
    with pytest.raises(IceDBError, match="dropped and purged since this run began"):
        acquire_fence(table.known("old"), "merge")


def test_t4_a_purge_of_an_earlier_life_cannot_take_the_fences_of_a_later_one():
    table = make_old()
    drop(table)
    first = load_any_config(table)[0]
    purge(table)
    for _ in range(2):
        create(table)
        drop(table)
        purge(table)
    create(table)
    with pytest.raises(IceDBError, match="dropped and purged since this run began"):
        acquire_fence(Table.of(first, table, clock=table.clock), "ingest", becomes=first.dropped.drop_id)
    table.append(1)
    assert table.ids() == [1]


def test_what_lands_late_below_a_new_table_is_an_orphan_or_counts_for_nothing():
    """Writes without a condition, by who worked on the old table and did not notice."""
    table = make_old()
    table.store.put(table.paths.quarantine_key("0198.json"), b"{}")
    drop(table)
    drop_id = load_any_config(table)[0].dropped.drop_id
    purge(table)
    create(table)
    late = {
        table.paths.data_key(partition="p=a", file_id=table.clock.new_id()): b"an upload of a flush or a merge",
        table.paths.pressure_key: orjson.dumps({"level": "stop", "reason": "old", "retry_after_ms": 1, "ttl_ms": 1000}),
        table.paths.purge_key: orjson.dumps({"drop_id": drop_id, "started_ms": 1, "deleted_count": 9}),
        table.paths.quarantine_key("0199.json"): b"{}",
        table.paths.clock_key: b"",
        table.paths.lease_key("late"): orjson.dumps({"at": 0, "ttl_ms": 1000}),
        table.paths.audit_key(time_ms=1, run_id="0" * 32): b"{}",
    }
    for key, body in late.items():
        table.store.put(key, body)
    table.append(100)
    table.append(101)
    table.stage([{"id": 102, "p": "a"}])
    require_whole(table)
    assert read_trash(Warehouse(table.store, "wh")) == ()
    drop(table)
    assert read_trash(Warehouse(table.store, "wh"))[0].progress is None
    assert purge(table).state == "purged"
