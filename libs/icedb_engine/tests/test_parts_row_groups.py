"""Which row groups of a merge are copied, and which are sorted together: the plan alone."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from icedb_engine.writing.row_groups import LARGE_BYTES, RUN_BYTES, CopyFacts, Piece, min_rows, plan_runs
from icedb_engine.writing.sort_keys import ABOVE, BELOW, NULL, Span, decode_order, encode_order, make_key

ROWS = 100
FACTS = CopyFacts({}, (), None)

places = st.one_of(st.integers(0, 12).map(lambda n: (0, n)), st.sampled_from([BELOW, NULL, ABOVE]))
keys = st.tuples(places, places)
spans = st.lists(keys, min_size=2, max_size=2).map(sorted).map(lambda pair: Span(*pair))


@st.composite
def some_pieces(draw):
    drawn = draw(
        st.lists(
            st.tuples(
                spans,
                st.sampled_from([0, 1, 49, 50, 100]),
                st.sampled_from([1, LARGE_BYTES - 1, LARGE_BYTES, RUN_BYTES]),
                st.booleans(),
            ),
            max_size=12,
        )
    )
    return [
        Piece(number, 0, rows, size, span, FACTS if is_proven else None)
        for number, (span, rows, size, is_proven) in enumerate(drawn)
    ]


def is_small(piece):
    return piece.row_count < min_rows(ROWS) and piece.size_bytes < LARGE_BYTES


@given(some_pieces())
def test_a_plan_has_every_row_once_in_order_and_copies_only_what_is_proven(pieces):
    runs = plan_runs(pieces, row_group_rows=ROWS)
    assert sorted(piece.file for run in runs for piece in run.pieces) == [
        piece.file for piece in pieces if piece.row_count
    ]
    for run in runs:
        if run.is_copied:
            (piece,) = run.pieces
            assert piece.facts is not None
            assert not is_small(piece)
    late = [run for run in runs if run.is_late]
    assert late == list(runs[len(runs) - len(late) :])
    assert all(not run.is_copied and all(map(is_small, run.pieces)) for run in late)
    runs = runs[: len(runs) - len(late)]
    for number, run in enumerate(runs):
        highest = max(piece.span.high for piece in run.pieces)
        for later in runs[number + 1 :]:
            assert all(piece.span.low >= highest for piece in later.pieces), "a row would come after a later one"


@given(some_pieces())
def test_what_overlaps_nobody_and_is_large_is_copied_unless_a_small_neighbour_needs_it(pieces):
    pieces = [piece for piece in pieces if piece.row_count]
    if any(is_small(piece) or piece.facts is None for piece in pieces):
        return
    copied = {piece.file for run in plan_runs(pieces, row_group_rows=ROWS) if run.is_copied for piece in run.pieces}
    for piece in pieces:
        alone = all(
            piece is other or piece.span.high <= other.span.low or other.span.high <= piece.span.low for other in pieces
        )
        if alone and piece.span.low < piece.span.high:
            assert piece.file in copied


@given(some_pieces())
def test_no_small_run_stands_between_row_groups_that_are_copied(pieces):
    runs = [run for run in plan_runs(pieces, row_group_rows=ROWS) if not run.is_late]
    for before, run, after in zip((None, *runs), runs, (*runs[1:], None), strict=False):
        if run.is_copied or run.row_count >= min_rows(ROWS) or run.size_bytes >= LARGE_BYTES:
            continue
        neighbours = [each for each in (before, after) if each is not None]
        assert not neighbours or not all(each.is_copied for each in neighbours)


def follow_each_other(count, *, late_rows=4):
    """Return row groups that follow each other, each with late rows of its own that reach back over the one before."""
    found = []
    for n in range(count):
        found.append(Piece(n, 1, ROWS, 1000, Span(((0, 10 * n),), ((0, 10 * n + 9),)), FACTS))
        found.append(Piece(n, 0, late_rows, 40, Span(((0, 10 * n - 8),), ((0, 10 * n),)), FACTS))
    return found


def test_a_few_late_rows_are_sorted_apart_so_that_the_others_are_copied():
    pieces = follow_each_other(5)
    *runs, late = plan_runs(pieces[::-1], row_group_rows=ROWS)
    assert [run.pieces for run in runs] == [(piece,) for piece in pieces[::2]]
    assert all(run.is_copied for run in runs)
    assert (list(late.pieces), late.is_late) == (pieces[1::2], True)


def test_what_is_late_alone_or_too_much_or_of_few_files_is_sorted_with_the_others():
    assert not any(run.is_late for run in plan_runs(follow_each_other(3), row_group_rows=ROWS)), "two files of three"
    assert not any(run.is_late for run in plan_runs(follow_each_other(5, late_rows=20), row_group_rows=ROWS))
    apart = [*follow_each_other(5)[::2], Piece(9, 0, 4, 40, Span(((0, 100),), ((0, 101),)), FACTS)]
    assert not any(run.is_late for run in plan_runs(apart, row_group_rows=ROWS))
    wide = [replace(each, facts=None, row_count=5 * ROWS) if each.row_count == ROWS and each.file < 3 else each
            for each in follow_each_other(5)]  # fmt: skip
    assert not any(run.is_late for run in plan_runs(wide, row_group_rows=ROWS)), "most rows are decoded all the same"
    mostly = [replace(piece, facts=None) for piece in follow_each_other(5)]
    assert not any(run.is_late for run in plan_runs(mostly, row_group_rows=ROWS)), "nothing could be copied"


def test_runs_that_do_not_overlap_are_sorted_together_up_to_a_size():
    spans = [Span(((0, n),), ((0, n),)) for n in range(4)]
    pieces = [Piece(n, 0, 50, RUN_BYTES // 2, span) for n, span in enumerate(spans)]
    assert [len(run.pieces) for run in plan_runs(pieces, row_group_rows=ROWS)] == [2, 2]


values = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(),
    st.none() | st.booleans(),
    st.none() | st.text(max_size=5),
).map(list)


@given(st.lists(st.none() | st.tuples(values, values), max_size=4))
def test_tuples_of_a_footer_are_read_back_as_they_were(groups):
    types = {"i": "BIGINT", "f": "DOUBLE", "b": "BOOLEAN", "s": "VARCHAR"}
    found = decode_order(encode_order(tuple(types), groups), tuple(types), types, group_count=len(groups))
    assert [each and tuple(map(make_key, each)) for each in found] == [
        each and tuple(map(make_key, each)) for each in groups
    ]


def test_what_is_said_of_an_order_is_taken_only_if_it_is_understood():
    types = {"i": "BIGINT"}
    for told in (
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"by":["j"],"groups":[null]}',
        '{"by":["i"],"groups":[]}',
        '{"by":["i"],"groups":[[[1],["2"]]]}',
        '{"by":["i"],"groups":[[[1],[true]]]}',
        '{"by":["i"],"groups":[[[1],[2],[3]]]}',
        '{"by":["i"],"groups":[[[1,2],[2,3]]]}',
        '{"by":["i"],"groups":7}',
        '{"by":7,"groups":[null]}',
    ):
        assert decode_order({"icedb.order": told}, ("i",), types, group_count=1) == [None]
    assert decode_order({"icedb.order": '{"by":["i"],"groups":[[[1],[2]]]}'}, ("i",), types, group_count=1) == [
        ([1], [2])
    ]
