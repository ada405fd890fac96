"""Tags under any fault, and with any rival, at any call: J4, W2."""

import contextlib

import pytest
from icedb_log.errors import (
    BelowHorizon,
    CommitConflict,
    CommitOutcomeUnknown,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from icedb_log.holds.stored_holds import find_ended_holds
from icedb_log.holds.tags import (
    PENDING_TTL_MS,
    delete_tag,
    list_tags,
    read_tagged,
)
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.trash.drop import drop_table
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.small_table import SmallTable, at_each_call, try_each_call
from icedb_sim.tables.table_steps import DAY_MS, age, data_count, make_table, status, tag, tagged_ids


@pytest.fixture
def table():
    return make_table()


def make_dying():
    """Return a table of which two data files are dead, and have not been for long."""
    table = SmallTable()
    table.append(1)
    table.append(2)
    table.at_ms = table.clock.now_ms() - 1
    table.merge(full=True)
    return table


def tag_before_merge(table):
    return tag(table, at_ms=table.at_ms)


@pytest.mark.parametrize(
    "effect",
    [
        Effect.CRASH_BEFORE,
        Effect.CRASH_AFTER,
        Effect.LOSE_ANSWER,
        Effect.TRY_TWICE,
        Effect.UNAVAILABLE,
        Effect.DELAY,
    ],
)
def test_j4_whatever_fails_at_whichever_call_a_tag_that_can_be_read_holds(effect):
    tables = try_each_call(make_dying, tag_before_merge, effect)
    assert len(tables) >= 8
    for table in tables:
        age(table, table.config.data_grace_ms)
        table.store.land_delayed()
        is_active = table.keys(table.paths.holds_of("tag")) and status(table) == "active"
        if is_active:
            assert tagged_ids(table) == [1, 2]
            delete_tag(table, "q3")
        age(table)
        assert data_count(table) == 1  # a maker that died holds nothing up for good
        tag(table)
        assert table.ids() == tagged_ids(table) == [1, 2]


@pytest.mark.parametrize("aged_ms", [0, 60_000])
@pytest.mark.parametrize("how", ["before", "after"])
def test_j4_a_tag_made_while_a_janitor_sleeps_at_any_call_holds(aged_ms, how):
    """Aged: the janitor knows that the files may go. Otherwise: they get old while it sleeps."""
    made = met = 0

    def make():
        table = make_dying()
        table.clock.advance(aged_ms)
        return table

    def sleep(table):
        nonlocal made
        with contextlib.suppress(BelowHorizon):
            tag_before_merge(table)
            made += 1
        table.clock.advance(DAY_MS)

    for table, error, where in at_each_call(make, SmallTable.vacuum, sleep, when=[how]):
        assert error is None
        met += 1
        if table.keys(table.paths.holds_of("tag")):
            table.vacuum()
            assert tagged_ids(table) == [1, 2], where
    assert met > 5
    assert (made == 0) == (aged_ms > 0)


def test_j4_a_maker_that_sleeps_before_its_tag_is_there_looks_again(table):
    def merge_and_clean():
        table.merge(full=True)
        age(table)

    table.store.script = [Fault("put_if_absent", None, "/holds/tag.", before=merge_and_clean)]
    with pytest.raises(BelowHorizon):
        tag(table, at_ms=table.clock.now_ms() - 1)
    table.append(3)
    table.store.script = [Fault("put_if_absent", None, "/holds/tag.", before=merge_and_clean)]
    tag(table)
    assert tagged_ids(table) == [1, 2, 3]


def test_j4_of_two_makers_of_one_name_at_most_one_goes_on(table):
    table.store.script = [Fault("put_if_absent", None, "/holds/tag.", before=lambda: tag(table))]
    with pytest.raises(InvalidRequest, match="exists already"):
        tag(table)
    assert [p.state for p in list_tags(table).holds] == ["active"]


def test_j4_a_maker_that_sees_another_one_gives_up(table):
    def try_other():
        with pytest.raises(InvalidRequest, match="being made"):
            tag(table)

    # The first one has looked, and is pending; the second one sees it, and the first goes on.
    table.store.script = [Fault("list_page", None, "/_log/"), Fault("list_page", None, "/_log/", before=try_other)]
    tag(table)
    assert tagged_ids(table) == [1, 2]
    # The second one is pending, too, when the first one looks.
    other = []

    def begin_other():
        table.store.script = [Fault("put_if_absent", Effect.CRASH_AFTER, "/holds/tag.")]
        with pytest.raises(Crash):
            tag(table, "q4")
        other.append(1)

    table.store.script = [Fault("put_if_absent", None, "/holds/tag.", before=begin_other)]
    with pytest.raises(InvalidRequest, match="being made"):
        tag(table, "q4")
    assert other


def test_j4_a_pending_tag_holds_everything_cannot_be_read_and_runs_out(table):
    table.store.script = [Fault("put_if_match", Effect.CRASH_BEFORE, "/holds/tag.")]
    with pytest.raises(Crash):
        tag(table, ttl_ms=5000)
    with pytest.raises(InvalidRequest, match="is being made"):
        read_tagged(table, "q3")
    with pytest.raises(InvalidRequest, match="being made by another process"):
        tag(table)
    table.append(3)
    table.merge(full=True)
    table.clock.advance(PENDING_TTL_MS // 2)
    table.vacuum()
    assert {w.guard for w in table.vacuum().waiting} == {"tag"}
    assert data_count(table) == 4
    table.clock.advance(PENDING_TTL_MS // 2)
    assert status(table) == "abandoned"
    table.clock.advance(MAX_STORE_GAP_MS)
    table.vacuum()
    assert data_count(table) == 1
    assert find_ended_holds(table, data_grace_ms=1)
    tag(table)


def test_a_pending_tag_can_be_ended_and_its_maker_is_told(table):
    def end():
        assert delete_tag(table, "q3")

    table.store.script = [Fault("put_if_match", None, "/holds/tag.", before=end)]
    with pytest.raises(CommitConflict, match="was ended while it was made"):
        tag(table)
    assert status(table) == "ended"
    table.merge(full=True)
    age(table, table.config.data_grace_ms + MAX_STORE_GAP_MS)
    assert data_count(table) == 1


def test_j4_a_tag_that_was_ended_while_it_was_made_holds_nothing(table):
    """Nobody could read it: not even for a grace period."""
    table.merge(full=True)
    table.clock.advance(table.config.data_grace_ms)
    table.store.script = [Fault("put_if_match", None, "/holds/tag.", before=lambda: delete_tag(table, "q3"))]
    with pytest.raises(CommitConflict, match="was ended while it was made"):
        tag(table)
    table.vacuum()
    table.vacuum()
    assert data_count(table) == 1


def test_j4_a_tag_that_was_ended_before_its_maker_has_looked_at_it_stays_ended(table):
    for method in ("get", "head"):  # whichever its maker looks with
        table.store.script.append(Fault(method, None, "/holds/tag.", before=lambda: delete_tag(table, "q3")))
    with pytest.raises(CommitConflict, match="was ended while it was made"):
        tag(table)
    assert status(table) == "ended"


def test_t4_a_table_that_is_dropped_while_a_tag_of_it_is_made_gets_none(table):
    table.store.script = [
        Fault("put_if_absent", None, "/holds/tag.", before=lambda: drop_table(table, clock=table.clock))
    ]
    with pytest.raises(NotFound, match="is in the trash"):
        tag(table)
    assert table.keys(table.paths.holds_of("tag")) == []


def test_j4_a_tag_that_was_made_too_slowly_cannot_be_read(table):
    table.store.script = [
        Fault("put_if_match", None, "/holds/tag.", before=lambda: table.clock.advance(PENDING_TTL_MS))
    ]
    with pytest.raises(Unavailable, match="took longer"):
        tag(table)
    assert status(table) == "ended"
    table.store.script = [
        Fault("put_if_match", None, "/holds/tag.", before=lambda: table.clock.advance(PENDING_TTL_MS)),
        Fault("put_if_match", Effect.CRASH_BEFORE, "/holds/tag."),
    ]
    with pytest.raises(Crash):
        tag(table)
    assert status(table) == "late"
    with pytest.raises(InvalidRequest, match="took too long"):
        read_tagged(table, "q3")


def test_w2_a_lost_answer_is_read_back(table):
    table.store.script = [
        Fault("put_if_absent", Effect.LOSE_ANSWER, "/holds/tag."),
        Fault("put_if_match", Effect.TRY_TWICE, "/holds/tag."),
    ]
    assert tag(table).state == "active"
    table.store.script = [Fault("put_if_match", Effect.DROP, "/holds/tag.")]
    with pytest.raises(CommitOutcomeUnknown):
        tag(table, "q4")
    assert status(table, "q4") == "pending"
