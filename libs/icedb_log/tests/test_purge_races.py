"""Whoever sleeps through a drop, a purge and a creation of the same name touches nothing of the new table (T4).

Each test lets somebody begin, lets the whole life pass just before one of its store calls, for each of them in turn, and
lets it go on then.
"""

import copy

import pytest
from icedb_log.errors import HaltError, InvalidRequest, NotFound
from icedb_log.table.stored_config import create_table, load_any_config
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.trash.drop import DropRequest, drop_table, undrop_table
from icedb_log.trash.purge import PurgeLimits, purge_table
from icedb_sim.fakes.scripted_store import ScriptedStore
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


def fill(other):
    """Create the next table of the name, and put something into it."""
    other.config = TableConfig.create(name=other.name, **OTHER_LAYOUT)
    other.paths = create_table(other, other.config).paths
    other.append(100)
    other.append(101)
    other.stage([{"id": 102, "p": "a"}])


def live_again(other):
    drop(other)
    assert purge(other).state == "purged"
    fill(other)


def sleep_through(make, act, life):
    """Let a life pass before each store call of ``act`` in turn; yield the table, the new one, and the error."""
    lives = []

    def live(table):
        other = someone_else(table)
        life(other)
        lives.append((other, {key: other.store.get(key).body for key in other.keys("wh/t.2/")}))

    for table, error, _ in small_table.at_each_call(make, act, live):
        new, before = lives[-1]
        assert {key: new.store.get(key).body for key in new.keys("wh/t.2/")} == before, "the new table was touched"
        yield table, new, error


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


WORK = {
    "flush": (make_old, SmallTable.flush),
    "merge": (make_old, SmallTable.merge),
    "delete": (make_old, lambda table: table.delete("id = 1")),
    "drop partitions": (make_old, lambda table: table.drop("p=*")),
    "vacuum": (make_dead, SmallTable.vacuum),
    "sweep": (make_dead, SmallTable.sweep),
}


@pytest.mark.parametrize("work", WORK)
def test_t4_who_worked_on_the_old_table_writes_nothing_below_the_new_one(work):
    make, act = WORK[work]
    for table, new, error in sleep_through(make, act, live_again):
        assert not isinstance(error, HaltError), error
        require_whole(new)
        new.clock.advance(SEAL_MS)
        purge(new)
        left = {key.removeprefix(table.paths.prefix) for key in table.keys(f"{table.paths.prefix}/")}
        assert left == {"/_icedb/table.json"}, "what it has left is purged"


def test_t4_a_feed_sleeps_through_it_all():
    """The view is dropped, purged and created anew as an ordinary table."""

    def make():
        table = SmallTable(name="s")
        view = SmallView(table, name="t")
        table.append(1)
        of_view = copy.copy(table)
        of_view.paths, of_view.of = view.paths, view
        return of_view

    for _, new, error in sleep_through(make, lambda table: table.of.feed(), live_again):
        assert not isinstance(error, HaltError), error
        require_whole(new)


def test_t4_a_purge_sleeps_while_another_one_ends_and_the_name_is_taken():
    def finish(other):
        assert purge(other).state == "purged"
        fill(other)

    def make():
        table = make_dead()
        drop(table)
        return table

    for _, new, error in sleep_through(make, purge, finish):
        assert error is None
        require_whole(new)


def test_t5_the_last_look_and_a_creation_at_once():
    def make():
        table = make_old()
        drop(table)
        purge(table)
        table.store.put(table.paths.data_key(partition="p=a", file_id=table.clock.new_id()), b"late")
        table.store.put(table.paths.quarantine_key("late.json"), b"late")
        table.clock.advance(SEAL_MS)
        return table

    for table, new, error in sleep_through(make, purge, fill):
        assert error is None
        require_whole(new)
        assert load_any_config(table)[0].dropped.newest == 2


def test_t1_an_undrop_and_a_purge_at_once_have_one_winner():
    """An undrop comes just before each call of a purge; who is first wins, and the table is whole or gone."""
    outcomes = set()

    def take_back(table):
        try:
            undrop_table(someone_else(table), clock=table.clock)
            outcomes.add("undropped")
        except (InvalidRequest, NotFound):
            outcomes.add("purged")

    def make():
        table = make_old()
        drop(table, force=False)
        table.clock.advance(KEEP_MS)
        return table

    for table, error, _ in small_table.at_each_call(make, purge, take_back):
        assert error is None
        is_dropped = load_any_config(table)[0].dropped is not None
        assert is_dropped or (table.flush() and table.ids() == [0, 1, 2, 3, 7])
        assert not is_dropped or table.keys(table.paths.data_prefix) == []
    assert outcomes == {"undropped", "purged"}
