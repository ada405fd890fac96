"""Which batches a unit takes when its query cannot be run on all of them at once."""

from icedb_engine.sql.process import QueryProblem, QueryTooLarge, QueryTooSlow
from icedb_engine.units.query_unit import MAX_QUERY_RUNS, NoRoom, find_parts


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
