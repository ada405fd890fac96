"""What a rebuild calls live, dead and undecided: B1, B2, B5, one rule at a time."""

import re

import pytest
from icedb_log.commit.fence import FENCE_LOOK_MS
from icedb_log.commit.table import Table
from icedb_log.errors import InvalidRequest, SchemaConflict, Unavailable
from icedb_log.feed.feeds import FeedLimits
from icedb_log.holds.tags import create_tag
from icedb_log.keys import ROLES
from icedb_log.table.table_config import PartitionField
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.erasure_steps import advance, ask, live_users
from icedb_sim.tables.row_feeds import RowFileFeeder
from icedb_sim.tables.row_files import RowFileChanger, RowFileWriter
from icedb_sim.tables.small_import import ImportTable
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.small_view import SmallView
from icedb_sim.tables.table_steps import candidates, damage, lose_log, make_merged_table

ALL = ("*",)


def look(table, **options):
    """Return the plan of a rebuild."""
    return table.rebuild(is_dry_run=True, **options).plan


def crash_merge(table):
    """A merge that writes its data files and dies; return their keys."""
    before = set(table.keys(table.paths.data_prefix))
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "_m_")]
    with pytest.raises(Crash):
        table.merge(full=True)
    table.store.script = []
    table.clock.advance(1)
    return sorted(set(table.keys(table.paths.data_prefix)) - before)


def put_again(table, key, body):
    """Write other bytes over a data file. Without fences nobody takes it for one that was never announced."""
    table.store.put(key, body)
    table.store.delete([table.paths.fence_key(role) for role in ROLES])


# -- candidates


def test_nothing_is_guessed_and_nothing_is_written_before_each_file_is_taken_or_left():
    table = make_merged_table(SmallTable)
    lose_log(table)
    plan = look(table)
    assert {(each.kind, each.partition, each.row_count, each.fate) for each in plan.candidates} == {
        ("merge", "p=a", 4, "waiting"),
        ("flush", "p=b", 2, "waiting"),
        ("flush", "p=a", 1, "waiting"),
    }
    assert (plan.live_rows, plan.rows_of("waiting"), plan.dead_rows) == (0, 7, 4)
    with pytest.raises(InvalidRequest, match="3 data files with 7 rows; say --take GLOB or --leave GLOB"):
        table.rebuild()
    with pytest.raises(InvalidRequest, match="1 data files with 2 rows"):
        table.rebuild(take=("p=a/*",))
    assert table.keys(table.paths.log_prefix) == []
    result = table.rebuild(take=ALL, leave=("p=b/*",))
    assert (result.plan.rows_of("taken"), result.plan.rows_of("left")) == (5, 2)
    assert table.ids() == [1, 2, 3, 4, 7]


def test_a_commit_is_taken_by_its_id():
    table = SmallTable(has_footers=True)
    for number in range(3):
        table.append(number)
    lose_log(table)
    first, second, third = (each.commit_id for each in look(table).candidates)
    table.rebuild(take=(first, third), leave=(second,))
    assert table.ids() == [0, 2]


def test_an_orphan_of_a_whole_log_is_listed_and_is_no_damage():
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    table.append(3, p="a")
    (orphan,) = crash_merge(table)
    plan = look(table)
    assert (plan.damage, plan.live_rows, plan.candidates[0].key) == ((), 3, orphan)
    assert not table.rebuild().has_committed
    # Who knows that its commit was lost takes it: what it replaced is dead then, though the log lists it as live.
    assert table.rebuild(take=ALL).has_committed
    assert table.ids() == [1, 2, 3]
    assert [marker.path for marker in table.snapshot().live] == [orphan]


def test_who_leaves_an_output_gets_its_inputs_back():
    table = SmallTable(has_footers=True)
    table.append(1, 2, 3, p="a")
    table.delete("id = 2")
    lose_log(table)
    (output,) = look(table).candidates
    assert (output.kind, output.row_count, output.read_rows, output.written_rows) == ("delete", 2, 3, 2)
    plan = look(table, take=ALL, leave=(output.commit_id,))
    assert (plan.rows_of("taken"), plan.rows_of("left")) == (3, 2)
    table.rebuild(take=ALL, leave=(output.commit_id,))
    assert table.ids() == [1, 2, 3]


def test_a_merge_that_was_cut_off_says_how_many_rows_it_had_written():
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    table.append(3, p="a")
    (output,) = crash_merge(table)
    body = table.store.get(output).body.split(b"\n")
    put_again(table, output, b"\n".join(body[1:]))  # the first of two files that the writer had begun
    lose_log(table)
    (found,) = look(table).candidates
    assert (found.row_count, found.read_rows, found.written_rows) == (2, 3, 2)
    table.rebuild(take=ALL, leave=(found.commit_id,))
    assert table.ids() == [1, 2, 3]


def test_of_two_that_replaced_one_file_only_one_can_be_taken():
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    table.append(3, p="a")
    (orphan,) = crash_merge(table)
    table.delete("id = 2")
    lose_log(table)
    plan = look(table, take=ALL)
    assert len(plan.conflicts) == 1
    with pytest.raises(InvalidRequest, match=r"both replaced .* only one of them can have landed; --leave"):
        table.rebuild(take=ALL)
    table.rebuild(take=ALL, leave=(orphan.removeprefix(table.paths.data_prefix),))
    assert table.ids() == [1, 3]


def test_of_two_that_replaced_one_file_only_one_can_be_taken_though_the_output_of_one_is_replaced_itself():
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    table.append(3, 4, p="a")
    (orphan,) = crash_merge(table)
    table.delete("id = 2")
    table.delete("id = 3")
    table.merge(full=True)
    lose_log(table)
    with pytest.raises(InvalidRequest, match=r"both replaced .* only one of them can have landed; --leave"):
        table.rebuild(take=ALL)
    table.rebuild(take=ALL, leave=(orphan.removeprefix(table.paths.data_prefix),))
    assert table.ids() == [1, 4]


def test_what_a_whole_log_says_was_replaced_by_another_is_not_taken_for_a_second_time():
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    table.append(3, p="a")
    crash_merge(table)
    table.merge(full=True)
    with pytest.raises(InvalidRequest, match="both replaced"):
        table.rebuild(take=ALL)
    assert table.ids() == [1, 2, 3]


def test_an_input_that_cannot_be_read_does_not_take_its_output_away():
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    table.append(3, p="a")
    inputs = [marker.path for marker in table.snapshot().live]
    table.merge(full=True)
    table.store.put(inputs[0], b"PAR1")
    lose_log(table)
    plan = look(table)
    (output,) = plan.candidates
    assert (output.kind, output.row_count, output.read_rows, output.written_rows) == ("merge", 3, None, 3)
    table.rebuild(take=ALL)
    assert table.ids() == [1, 2, 3]


def test_a_file_that_nobody_can_read_can_only_be_left():
    table = make_merged_table(SmallTable)
    key = f"{table.paths.data_prefix}p=a/0004.parquet"
    table.store.put(key, b"PAR1")
    lose_log(table)
    assert candidates(table.rebuild(is_dry_run=True))[key].kind == "unreadable"
    with pytest.raises(InvalidRequest, match="1 data files with 0 rows"):
        table.rebuild(take=ALL)
    table.rebuild(take=ALL, leave=("*/0004.parquet",))
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_files_of_others_are_listed_as_such_and_their_inputs_count_for_nothing():
    table = make_merged_table(SmallTable)
    live = [marker.path for marker in table.snapshot().live]
    merged = next(path for path in live if b'"icedb.inputs"' in table.store.get(path).body)
    body = table.store.get(merged).body
    strange = {
        f"{table.paths.data_prefix}p=a/0001.parquet": (b'{"id": 90, "p": "a"}', "IceDB did not write it"),
        f"{table.paths.data_prefix}p=b/0002.parquet": (body, "partition 'p=a'"),
        f"{table.paths.data_prefix}p=a/0003.parquet": (body.replace(b'"icedb.table":"t"', b'"icedb.table":"u"'), "'u'"),
    }
    for key, (content, _) in strange.items():
        table.store.put(key, content)
    lose_log(table)
    found = candidates(table.rebuild(is_dry_run=True))
    for key, (_, problem) in strange.items():
        assert (found[key].kind, problem in found[key].problem) == ("foreign", True)
    table.rebuild(take=("p=*/*",), leave=("*/0002*", "*/0003*"))
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 90]


# -- what else is known of a candidate


def test_fences_tags_and_imports_are_said_of_a_candidate():
    table = make_merged_table(ImportTable)
    create_tag(Table.open(table, clock=table.clock, reader=table.reader()), "keep")
    table.put_source("one", 10, 11)
    table.run_import()
    table.append(12)
    lose_log(table)
    found = {each.row_count: (each.kind, each.mark) for each in look(table).candidates}
    assert found[2] in {("flush", "tagged"), ("foreign", "imported")}
    assert {mark for _, mark in found.values()} == {"tagged", "landed"}
    assert table.rebuild(take=ALL).has_committed
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 10, 11, 12]
    assert table.run_import().imported_before_count == 1


def test_a_tagged_file_that_was_replaced_long_ago_is_marked():
    """What replaced it was replaced itself and vacuumed: no footer names it any more, and its rows are elsewhere."""
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    create_tag(Table.open(table, clock=table.clock, reader=table.reader()), "keep")
    table.append(3, p="a")
    table.merge(full=True)
    for number in (4, 5):
        table.append(number, p="a")
        table.merge(full=True)
        table.clock.advance(70_000)
        table.vacuum()
    table.clock.advance(70_000)
    table.vacuum()
    lose_log(table)
    table.store.delete([table.paths.fence_key(role) for role in ROLES])
    found = {(each.row_count, each.mark) for each in look(table).candidates}
    assert found == {(2, "tagged"), (5, "")}
    tagged = next(each for each in look(table).candidates if each.mark)
    table.rebuild(take=ALL, leave=(tagged.commit_id,))
    assert table.ids() == [1, 2, 3, 4, 5]


def test_files_of_a_damaged_log_file_are_said_to_have_landed():
    table = make_merged_table(SmallTable)
    table.store.delete([table.paths.fence_key(role) for role in ROLES])
    damage(table, -1, b"\x00" * 300)
    (found,) = look(table).candidates
    assert (found.row_count, found.mark) == (1, "landed")


# -- what the log says


def test_what_whole_log_files_say_counts_beside_a_damaged_one():
    table = make_merged_table(SmallTable)
    damage(table, -1)
    plan = look(table)
    assert (plan.live_rows, plan.rows_of("waiting"), len(plan.damaged)) == (6, 1, 1)
    table.rebuild(leave=ALL)
    assert table.ids() == [1, 2, 3, 4, 5, 6]


def test_a_file_that_the_log_names_and_that_is_gone_is_dropped():
    table = make_merged_table(SmallTable)
    gone = table.snapshot().live[-1]
    table.store.delete([gone.path])
    result = table.rebuild()
    assert result.plan.missing == (gone.path,)
    assert result.has_committed
    assert table.ids() == [1, 2, 3, 4, 7]


def test_a_live_file_that_cannot_be_read_is_counted_as_such_and_keeps_what_the_log_says():
    table = make_merged_table(SmallTable)
    damaged = table.snapshot().live[-1]
    table.store.put(damaged.path, b"{")
    plan = table.rebuild(is_forced=True).plan
    assert plan.live_rows == 7
    (after,) = (marker for marker in table.snapshot().live if marker.path == damaged.path)
    assert (after.size_bytes, after.row_count) == (damaged.size_bytes, damaged.row_count)


def test_rows_that_nobody_can_count_are_said():
    table = make_merged_table(SmallTable)
    path = table.snapshot().live[-1].path
    for key, body in table.log_objects():
        table.store.put(key, re.sub(rb'"n":\d+,?', b"", body).replace(b",}", b"}"))
    table.store.put(path, b"{")
    assert (look(table).uncounted_files, look(table).live_rows) == (1, 5)


def test_what_an_erasure_deleted_and_a_rebuild_took_again_is_deleted_once_more():
    """Its commit has landed and its record says so; the log is lost before it is written down what has to be gone."""
    for lost in ("", "_m_"):
        table = SmallTable(has_footers=True)
        for p, ids in (("a", (1, 2)), ("b", (1,)), ("c", (3,))):  # no row of b is left, so no output names its file
            table.stage([{"id": number, "p": p, "u": "victim" if number == 1 else "ann"} for number in ids])
            table.flush()
        erasure_id = ask(table)
        changer = RowFileChanger(table.store, table.clock, has_footers=True)
        table.store.script = [Fault("list_page", Effect.CRASH_BEFORE, "_data/")]
        with pytest.raises(Crash):
            advance(table, erasure_id, changer=changer)
        table.store.delete([key for key in table.keys(table.paths.log_prefix) if lost in key])
        table.rebuild(take=ALL)
        advance(table, erasure_id, changer=changer)
        assert live_users(table) == ["ann", "ann"]


# -- the new log


def test_columns_come_from_data_files_and_from_the_configuration():
    table = SmallTable(has_footers=True, evolution="widen", declared={"note": "VARCHAR"})
    table.stage([{"id": 1, "p": "a", "x": 1}])
    table.flush()
    table.stage([{"id": 2, "p": "a", "x": 1.5}])
    table.flush()
    before = table.snapshot()
    lose_log(table)
    table.rebuild(take=ALL)
    after = table.snapshot()
    assert (dict(after.schema), dict(after.logged_schema)) == (dict(before.schema), dict(before.logged_schema))


def test_what_repeats_the_path_is_no_column():
    table = SmallTable(has_footers=True, partition=(PartitionField.parse("bucket=p"),))
    table.stage([{"id": 1, "p": "a"}])
    table.flush()
    (path,) = table.keys(table.paths.data_prefix)
    put_again(table, path, table.store.get(path).body.replace(b'"id":1', b'"bucket":"a","id":1'))
    lose_log(table)
    table.rebuild(take=ALL)
    assert set(table.snapshot().schema) == {"id", "p"}


def test_types_that_contradict_each_other_stop_the_rebuild():
    table = make_merged_table(SmallTable)
    lose_log(table)
    key = next(key for key in table.keys(table.paths.data_prefix) if table.store.get(key).body.startswith(b'{"id":7'))
    put_again(table, key, table.store.get(key).body.replace(b'"id":7', b'"id":"7"'))
    with pytest.raises(SchemaConflict, match=r"column 'id' is BIGINT in .* and VARCHAR in .*parquet"):
        table.rebuild(take=ALL)
    assert table.keys(table.paths.log_prefix) == []


# -- what a person agreed to


def test_a_plan_other_than_the_one_agreed_to_is_refused():
    table = make_merged_table(SmallTable)
    lose_log(table)
    digest = look(table, take=ALL).digest
    table.store.delete(table.keys(table.paths.data_prefix)[-1:])
    with pytest.raises(InvalidRequest, match="has changed"):
        table.rebuild(digest=digest, take=ALL)
    assert table.keys(table.paths.log_prefix) == []


def test_a_log_file_that_is_damaged_after_a_person_has_looked_is_another_plan():
    table = make_merged_table(SmallTable)
    damage(table, -1)
    digest = look(table, leave=ALL).digest
    damage(table, -2)
    with pytest.raises(InvalidRequest, match="has changed"):
        table.rebuild(digest=digest, leave=ALL)
    assert len(look(table).damaged) == 2


def test_what_is_committed_after_a_person_has_looked_changes_nothing_of_the_plan():
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    lose_log(table)
    digest = look(table, take=ALL).digest
    table.append(3, p="b")
    assert table.rebuild(digest=digest, take=ALL).has_committed
    assert table.ids() == [1, 2, 3]


# -- views


def fed_view(table):
    view = SmallView(table)
    feeder = RowFileFeeder(view.store, view.clock, has_footers=True)
    table.append(1, p="a")
    view.feed(feeder=feeder)
    table.append(2, p="a")
    view.feed(feeder=feeder)
    return view


def as_table(view):
    table = SmallTable(store=view.store, name="rival", has_footers=True)
    table.paths, table.clock = view.paths, view.clock
    return table


@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_b5_a_view_of_which_nobody_knows_what_it_has_taken_asks(how):
    view = fed_view(SmallTable(has_footers=True))
    table = as_table(view)
    if how == "lost":
        lose_log(table)
    else:
        damage(table, 0)
    with pytest.raises(InvalidRequest, match="--assume-fed"):
        table.rebuild(take=ALL)
    table.rebuild(take=ALL, assumes_fed=True)
    assert view.feed_all() == 0
    view.table.append(3, p="a")
    assert view.feed_all() == 1
    assert view.ids() == [1, 2, 3]


def test_b5_the_backfill_of_a_view_counts_as_taken_with_the_commits():
    table = SmallTable(has_footers=True)
    table.append(1, 2)
    table.append(3)
    view = SmallView(table, view_backfill="on")
    feeder = RowFileFeeder(table.store, table.clock, has_footers=True)
    view.feed(feeder=feeder, limits=FeedLimits(max_commits=1))
    have = view.ids()
    rival = as_table(view)
    lose_log(rival)
    rival.rebuild(take=ALL, assumes_fed=True)
    assert view.feed_all() == 0
    assert view.ids() == have


@pytest.mark.parametrize("is_lost", [True, False])
def test_b5_a_view_that_lost_a_commit_asks_though_no_file_is_taken(is_lost):
    """What the lost commit had taken is in none of the log files that are left, and its data file is left by a person."""
    view = fed_view(SmallTable(has_footers=True))
    table = as_table(view)
    if is_lost:
        table.store.delete(table.keys(table.paths.log_prefix)[-1:])
    else:
        damage(table, -1)
    with pytest.raises(InvalidRequest, match="--assume-fed"):
        table.rebuild(leave=ALL)
    table.rebuild(leave=ALL, assumes_fed=True)
    assert (view.feed_all(), view.ids()) == (0, [1])


def test_b5_a_view_whose_log_is_whole_needs_no_answer():
    view = fed_view(SmallTable(has_footers=True))
    table = as_table(view)
    table.rebuild(is_forced=True)
    assert view.feed_all() == 0
    assert view.ids() == [1, 2]


# -- jobs that failed


class SlowFailure:
    """What is written is written; the owner looks at its fence, which says so; then the store goes away."""

    def fail(self, job):
        self.clock.advance(FENCE_LOOK_MS + 2000)
        job.check_alive()  # writes the fence, behind the data files (F6)
        self.clock.advance(1)
        raise Unavailable("gone")


class FailingWriter(SlowFailure, RowFileWriter):
    def write_batches(self, job):
        super().write_batches(job)
        self.fail(job)


class FailingChanger(SlowFailure, RowFileChanger):
    def merge_groups(self, job):
        super().merge_groups(job)
        self.fail(job)


@pytest.mark.parametrize("kind", ["flush", "delete"])
def test_files_of_a_job_that_failed_are_not_taken(kind):
    """Its fence names them as being written until somebody else takes it: they were certainly not committed."""
    table = SmallTable(has_footers=True)
    table.append(9, p="b")
    table.append(10, p="b")
    table.merge(full=True)
    table.append(1, 2, 3)
    with pytest.raises(Unavailable):
        if kind == "flush":
            table.stage([{"id": 5, "p": "a"}])
            table.flush(writer=FailingWriter(table.store, table.clock, True))
        else:
            table.delete("id = 2", changer=FailingChanger(table.store, table.clock, True))
    table.clock.advance(1)
    lose_log(table)
    (left,) = look(table, take=ALL).of("left")
    assert (left.kind, "fenced off" in left.problem) == (kind, True)
    table.rebuild(take=ALL)
    table.flush()
    assert table.ids() == [1, 2, 3, *([5] if kind == "flush" else []), 9, 10]
