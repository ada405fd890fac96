"""A table's query in a unit: which batches it takes when it cannot be run on all at once, and that no row is lost."""

import os

import pytest
from icedb_engine.sql.process import CHECK_LIMITS, QueryProblem, QueryTooLarge, QueryTooSlow, SqlProcess
from icedb_engine.units import query_unit
from icedb_engine.units.query_unit import MAX_QUERY_RUNS, NoRoom, find_parts, insert_unit
from icedb_log.errors import InvariantViolated


def take(answer, count=8):
    """Let a query answer about parts; return these, and what is refused and deferred."""
    parts = []
    found = find_parts(range(count), "insert_query", lambda part: (parts.append(part), answer(part)))
    return parts, found


def test_a_query_that_takes_too_long_is_tried_once_more_on_the_oldest_batch_alone():
    def slow(part):
        raise QueryTooSlow("it takes longer than 180 s")

    parts, result = take(slow)
    assert parts == [tuple(range(8)), (0,)], "each try keeps a worker for the whole time limit"
    assert ([*result.refused], result.deferred) == ([0], [*range(1, 8)])
    assert "takes longer" in result.refused[0]


def test_a_query_that_is_quick_on_the_oldest_alone_takes_it_and_leaves_the_others_waiting():
    def slow(part):
        if len(part) > 1:
            raise QueryTooSlow("it takes longer than 180 s")

    _, result = take(slow)
    assert (result.refused, result.deferred) == ({}, [*range(1, 8)])


def test_what_is_too_large_or_wrong_is_found_by_halves():
    def answer(part):
        if 5 in part:
            raise QueryTooLarge("too large") if len(part) > 1 else QueryProblem("wrong")

    parts, result = take(answer)
    assert ([*result.refused], result.deferred) == ([5], [])
    assert len(parts) == 7


def halves_then(problem):
    """Let a query fail over all of them, and so over the older half."""

    def answer(part):
        if len(part) == 8:
            raise QueryProblem("wrong")
        if part == (0, 1, 2, 3):
            raise problem

    return answer


def test_what_was_not_tried_any_more_waits():
    parts, result = take(halves_then(QueryTooSlow("it takes longer than 180 s")))
    assert parts[2:] == [(0,)]
    assert (result.refused, sorted(result.deferred)) == ({}, [*range(1, 8)])
    parts, result = take(halves_then(NoRoom()))
    assert parts[2:] == [(0, 1)]
    assert (result.refused, sorted(result.deferred)) == ({}, [*range(2, 8)])


def test_a_query_that_fails_again_and_again_is_tried_a_bounded_number_of_times():
    def wrong(_part):
        raise QueryProblem("wrong")

    parts, result = take(wrong, count=1000)
    assert len(parts) == MAX_QUERY_RUNS
    assert sorted([*result.refused, *result.deferred]) == [*range(1000)]
    assert result.refused, "each unit comes further"


@pytest.fixture
def insert(make_table):
    """Return what stages batches of users and runs the unit of a table with a query; at most two partitions, four rows at once."""
    few = "CASE WHEN (SELECT count(*) FROM _rows) > 4 THEN error('too many') ELSE true END"
    config = {"insert_query": f"SELECT who AS user FROM _rows WHERE {few}", "source": {"who": "VARCHAR"}}
    table = make_table("user", max_partitions_per_flush=2, **config)

    def insert(*batches):
        staged = [table.stage(*({"who": who} for who in batch)) for batch in batches]
        result = insert_unit(table.flush_unit(*staged), table.store, clock=table.clock)
        return result, [batch.batch_id for batch in staged]

    return insert


def test_a_commit_of_a_query_takes_no_more_partitions_than_it_may_but_of_a_single_batch(insert):
    result, ids = insert("a", "b", "c", "a")
    assert (result.accepted, result.deferred) == (tuple(ids[:2]), tuple(ids[2:]))
    assert result.partitions == ("user=a", "user=b")
    result, ids = insert("abc", "a")
    assert (result.accepted, result.deferred, len(result.files)) == ((ids[0],), (ids[1],), 3)
    result, ids = insert("aa", "bcd")
    assert (result.accepted, result.deferred, len(result.files)) == ((ids[0],), (ids[1],), 1), (
        "alone, but not the first"
    )


def test_rows_of_a_query_that_are_in_no_file_are_missed(insert, monkeypatch):
    class OneMore(query_unit.CapturedRows):
        def __init__(self, batches):
            super().__init__(batches)
            self.row_count = 1

    monkeypatch.setattr(query_unit, "CapturedRows", OneMore)
    with pytest.raises(InvariantViolated, match="read 2 rows and wrote 1"):
        insert("a")


@pytest.mark.parametrize("kind", ["HUGEINT", "UHUGEINT", "DECIMAL(20,0)"])
def test_integers_that_a_double_may_not_hold_are_refused_though_these_ones_fit(make_table, kind):
    """A DOUBLE holds 2^60, and not the number after it: who reads it cannot tell."""
    config = {"insert_query": f"SELECT CAST(n AS {kind}) AS n FROM _rows", "source": {"n": "BIGINT"}}
    table = make_table(**config, declared={"n": "DOUBLE"})
    batches = [table.stage({"n": 2**53}), table.stage({"n": 2**60})]
    result = insert_unit(table.flush_unit(*batches), table.store, clock=table.clock)
    assert result.accepted == (batches[0].batch_id,)
    assert "beyond 2^53 lose digits" in result.rejected[batches[1].batch_id]


@pytest.mark.parametrize("text", ["n > 1 -- \0", "n > 1 -- \ud800"])
def test_a_text_that_no_process_takes_starts_none(text):
    with SqlProcess(CHECK_LIMITS) as process:
        with pytest.raises(QueryProblem, match="it has a NUL, or half a character"):
            process.check(text, {"n": "BIGINT"}, relation="_rows", kind="condition")
        assert process.pid is None


def test_a_process_of_the_process_that_this_one_was_forked_from_is_not_used(monkeypatch):
    def check(process):
        process.check("n > 1", {"n": "BIGINT"}, relation="_rows", kind="condition")
        return process._child

    with SqlProcess(CHECK_LIMITS) as process:
        kept = check(process)
    with SqlProcess(CHECK_LIMITS) as process:
        assert check(process) is kept
    forked = os.getpid() + 1
    monkeypatch.setattr("icedb_engine.sql.process.os.getpid", lambda: forked)
    with SqlProcess(CHECK_LIMITS) as process:
        assert check(process) is not kept
        process.close()
    kept.end()
