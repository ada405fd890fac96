"""Which batches a unit takes when its query cannot be run on all of them at once."""

from types import SimpleNamespace

from icedb_engine.sql.process import QueryProblem, QueryTooLarge, QueryTooSlow
from icedb_engine.units.query_unit import _QueryRun


class Run(_QueryRun):
    """Runs no query: says of each part what a query might do."""

    def __init__(self, answer):
        target = SimpleNamespace(config=SimpleNamespace(insert_query="select 1"), known={})
        super().__init__(target, None, None, what="insert_query", process=None, scratch=None)
        self.answer, self.parts = answer, []

    def _run(self, schema, rows, *, is_single):
        self.parts.append(tuple(rows))
        self.answer(tuple(rows))


def take(answer, count=8):
    run = Run(answer)
    return run.parts, run.take(range(count), {}, list)


def test_a_query_that_takes_too_long_is_tried_once_more_on_the_oldest_batch_alone():
    def slow(part):
        raise QueryTooSlow("it takes longer than 180 s")

    parts, result = take(slow)
    assert parts == [tuple(range(8)), (0,)], "each try keeps a worker for the whole time limit"
    assert (result.taken, list(result.refused), result.deferred) == ((), [0], tuple(range(1, 8)))
    assert "takes longer" in result.refused[0]


def test_a_query_that_is_quick_on_the_oldest_alone_takes_it_and_leaves_the_others_waiting():
    def slow(part):
        if len(part) > 1:
            raise QueryTooSlow("it takes longer than 180 s")

    _, result = take(slow)
    assert (result.taken, result.refused, result.deferred) == ((0,), {}, tuple(range(1, 8)))


def test_what_is_too_large_or_wrong_is_found_by_halves():
    def answer(part):
        if 5 in part:
            raise QueryTooLarge("too large") if len(part) > 1 else QueryProblem("wrong")

    parts, result = take(answer)
    assert (result.taken, list(result.refused), result.deferred) == ((0, 1, 2, 3, 4, 6, 7), [5], ())
    assert len(parts) == 7
