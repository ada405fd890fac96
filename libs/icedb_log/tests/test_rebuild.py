"""A new log from what is left of a table: B1 to B5, with faults at every store call and two rebuilds at once."""

import pytest
from icedb_log.errors import CorruptLog, Fenced, InvalidRequest, UnsupportedFormat
from icedb_log.log.fold import fold
from icedb_sim.fakes.scripted_store import Effect, Fault, ScriptedStore
from icedb_sim.tables.fsck_tables import check, codes
from icedb_sim.tables.row_files import RowFileWriter
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import damage, lose_log, make_merged_table

ALL = ("*",)


def test_a_lost_log_is_made_anew_and_rows_are_the_same():
    table = make_merged_table(SmallTable)
    before = table.snapshot()
    lose_log(table)
    assert table.ids() == []
    result = table.rebuild(take=ALL)
    after = table.snapshot()
    assert result.has_committed
    assert {m.path: (m.size_bytes, m.row_count) for m in after.live} == {
        m.path: (m.size_bytes, m.row_count) for m in before.live
    }
    assert (after.schema, table.ids()) == (before.schema, [1, 2, 3, 4, 5, 6, 7])
    # What a merge replaced is named as dead, so that the vacuum deletes it by its own rules, and not the orphan sweep.
    assert set(before.tombstoned_ms) == set(after.tombstoned_ms)
    assert (result.plan.live_rows, result.plan.rows_of("taken"), result.plan.dead_rows) == (0, 7, 4)


def test_a_log_that_is_whole_is_left_alone_unless_it_is_asked_for():
    table = make_merged_table(SmallTable)
    log = table.log_objects()
    assert not table.rebuild(take=ALL).has_committed
    assert table.log_objects() == log
    assert table.rebuild(is_forced=True, take=ALL).has_committed
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_second_rebuild_finds_nothing_to_do():
    table = make_merged_table(SmallTable)
    lose_log(table)
    table.rebuild(take=ALL)
    log = table.log_objects()
    second = table.rebuild(take=ALL)
    assert (second.has_committed, second.plan.damage) == (False, ())
    assert [body for _, body in log] == [body for key, body in table.log_objects() if (key, body) in log]
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_dry_run_writes_nothing_and_says_the_same():
    table = make_merged_table(SmallTable)
    lose_log(table)
    before = table.keys()
    table.store.calls.clear()
    plan = table.rebuild(is_dry_run=True, take=ALL).plan
    assert table.keys() == before
    assert not table.store.keys_of("put", "put_if_absent", "put_if_match", "delete")
    assert table.rebuild(take=ALL).plan.digest == plan.digest


def test_the_table_lives_on_after_a_rebuild():
    table = make_merged_table(SmallTable)
    lose_log(table)
    table.rebuild(take=ALL)
    table.append(8, p="b")
    table.merge(full=True)
    table.delete("id = 1")
    table.clock.advance(200_000)
    assert table.vacuum().deleted_data
    table.vacuum()
    assert table.ids() == [2, 3, 4, 5, 6, 7, 8]
    named = {marker.path for marker in table.snapshot().live}
    assert set(table.keys(table.paths.data_prefix)) == named  # what was dead went by the vacuum


def test_time_travel_ends_at_the_rebuild():
    table = make_merged_table(SmallTable)
    then_ms = table.clock.now_ms()
    table.clock.advance(1000)
    lose_log(table)
    rebuilt_ms = int(table.rebuild(take=ALL).log_key.rpartition("/")[2][:13])
    with pytest.raises(InvalidRequest, match=str(rebuilt_ms)):
        table.ids(as_of_ms=then_ms)
    assert table.ids(as_of_ms=rebuilt_ms) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("body", [b"", b"{", b"\x00" * 300, b'{"v":1,"t":1,"sch":1,"f":9}\n{}'])
def test_a_damaged_log_file_is_kept_aside_and_leaves_the_log(body):
    table = make_merged_table(SmallTable)
    key = damage(table, 3, body)
    with pytest.raises(CorruptLog):
        table.ids()
    result = table.rebuild(take=ALL)
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]
    assert key not in table.keys(table.paths.log_prefix)
    (entry,) = result.plan.damaged
    assert entry.key == key
    assert table.store.get(entry.copy_key).body == body


def test_something_else_below_log_is_taken_away():
    table = make_merged_table(SmallTable)
    key = f"{table.paths.log_prefix}notes.txt"
    table.store.put(key, b"hello")
    result = table.rebuild(take=ALL)
    assert [entry.key for entry in result.plan.damaged] == [key]
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_log_file_of_a_later_release_is_not_damaged():
    table = make_merged_table(SmallTable)
    damage(table, 0, b'{"v":2,"t":1,"sch":1,"f":2}\n{}')
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        table.rebuild(is_forced=True, take=ALL)


@pytest.mark.parametrize(
    ("effect", "is_lost"),
    [
        (Effect.CRASH_BEFORE, False),
        (Effect.CRASH_AFTER, False),
        (Effect.LOSE_ANSWER, False),
        (Effect.DROP, False),
        (Effect.CRASH_AFTER, True),
    ],
)
def test_whatever_call_fails_the_next_rebuild_ends_it(effect, is_lost):
    def make():
        table = make_merged_table(SmallTable)
        if is_lost:
            lose_log(table)
        else:
            damage(table, 0)
            damage(table, 3, b"")
        return table

    for table in try_each_call(make, lambda table: table.rebuild(take=ALL), effect):
        table.store.land_delayed()
        table.rebuild(take=ALL)
        assert table.ids() == [1, 2, 3, 4, 5, 6, 7]
        assert not table.rebuild(take=ALL).has_committed
        assert codes(check(table), "error") == set()


def test_of_two_rebuilds_one_commits():
    """At every call of the first, another one runs from its beginning to its end."""
    table = make_merged_table(SmallTable)
    lose_log(table)
    table.store.calls.clear()
    table.rebuild(take=ALL)
    count = len(table.store.calls)
    for number in range(0, count, 2):
        table = make_merged_table(SmallTable)
        damage(table, 3)
        table.store.calls.clear()
        rival = SmallTable(store=table.store.inner, name="rival")
        rival.paths, rival.clock = table.paths, table.clock
        call = CallBefore(table, number, lambda rival=rival: rival.rebuild(take=ALL))
        call.run(lambda table=table: table.rebuild(take=ALL))
        table.rebuild(take=ALL)
        assert table.ids() == [1, 2, 3, 4, 5, 6, 7]
        assert sum(file.log.rebuilt is not None for file in table.view().files if not is_dead(table, file)) == 1


class CallBefore:
    """Another actor, just before one call on the store."""

    def __init__(self, table, number, act):
        self.table, self.number, self.act = table, number, act

    def run(self, what):
        inner, counted = self.table.store._run, [0]

        def run(method, key, action):
            counted[0] += 1
            if counted[0] == self.number + 1:
                self.act()
            return inner(method, key, action)

        self.table.store._run = run
        try:
            what()
        except (CorruptLog, InvalidRequest):
            raise
        except Exception:
            pass
        finally:
            self.table.store._run = inner


def is_dead(table, file):
    return file.key in fold(table.view()).log_tombstoned_ms


def test_a_flush_that_is_under_way_is_fenced_off_or_counted_once():
    """A flush commits at the last moment: behind what the rebuild has read, or not at all."""
    for moment in ("put_if_absent", "put_if_match"):
        table = make_merged_table(SmallTable)
        lose_log(table)
        table.stage([{"id": 8, "p": "b"}])
        rival = SmallTable(store=table.store.inner, name="rival", has_footers=True)
        rival.paths, rival.clock = table.paths, table.clock
        key = "_log/" if moment == "put_if_absent" else "fence/ingest"
        table.store.script = [Fault(moment, None, key, before=rival.flush)]
        run_twice(table)
        rival.flush()
        assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 8]


def run_twice(table):
    try:
        table.rebuild(take=ALL)
    except Exception:
        table.rebuild(is_forced=True, take=ALL)


class SlowWriter:
    """Writes the files of a flush a second after it began, and stalls before it commits them."""

    def __init__(self, table, act):
        self.table, self.act = table, act

    def write_batches(self, job):
        self.table.clock.advance(1000)
        output = RowFileWriter(self.table.store, self.table.clock, has_footers=True).write_batches(job)
        self.table.clock.advance(1000)
        self.act()
        return output


def test_a_flush_after_the_loss_stays():
    table = make_merged_table(SmallTable)
    lose_log(table)
    table.append(8, p="b")
    assert table.ids() == [8]
    table.rebuild(take=ALL)
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_new_log_sorts_behind_everything_also_what_is_damaged():
    table = make_merged_table(SmallTable)
    late_ms = table.clock.now_ms() + 50_000
    table.store.put(table.paths.log_key(time_ms=late_ms, commit_id="ab", is_merged=True), b"{")
    name = table.rebuild(take=ALL).log_key.rpartition("/")[2]
    assert int(name[:13]) == late_ms + 1


def test_what_somebody_restored_meanwhile_stays():
    """The damaged log file is brought back from a backup just before it would be deleted."""
    table = make_merged_table(SmallTable)
    key = table.keys(table.paths.log_prefix)[3]
    body = table.store.get(key).body
    damage(table, 3)
    table.store.script = [Fault("head", None, key, before=lambda: table.store.inner.put(key, body))]
    table.rebuild(take=ALL)
    assert table.store.get(key).body == body
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("looked", [False, True])
def test_a_flush_that_is_cut_off_by_the_rebuild_is_not_taken(looked):
    """Its files are there, and the fence says that it was writing them: the next flush commits its batches."""
    table = make_merged_table(SmallTable)
    lose_log(table)
    options = {"take": ALL}
    if looked:
        options["digest"] = table.rebuild(is_dry_run=True, take=ALL).plan.digest
    table.stage([{"id": 8, "p": "b"}])
    rival = SmallTable(store=ScriptedStore(table.store.inner), name="rival", has_footers=True)
    rival.paths, rival.clock = table.paths, table.clock
    results = []
    with pytest.raises(Fenced):
        rival.flush(writer=SlowWriter(rival, lambda: results.append(table.rebuild(**options))))
    (left,) = results[0].plan.of("left")
    assert (left.kind, left.row_count) == ("flush", 1)
    assert "fenced off" in left.problem
    rival.flush()
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_flush_that_announced_its_commit_since_a_person_looked_is_not_taken():
    """The rebuild seals its commit. Its batches are staged, and the next flush commits them again."""
    table = make_merged_table(SmallTable)
    lose_log(table)
    digest = table.rebuild(is_dry_run=True, take=ALL).plan.digest
    table.stage([{"id": 8, "p": "b"}])
    rival = SmallTable(store=ScriptedStore(table.store.inner), name="rival", has_footers=True)
    rival.paths, rival.clock = table.paths, table.clock

    def rebuild():
        with pytest.raises(InvalidRequest, match="has changed"):
            table.rebuild(take=ALL, digest=digest)

    rival.store.script = [Fault("put_if_absent", None, "_log/", before=rebuild)]
    with pytest.raises(Fenced):
        rival.flush()
    announced = table.rebuild(is_dry_run=True).plan.candidates[-1]
    assert (announced.kind, announced.row_count) == ("flush", 1)
    rival.flush()
    table.rebuild(take=ALL, leave=(announced.commit_id,))
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 8]
