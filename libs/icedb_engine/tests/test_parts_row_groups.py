"""Which row groups of a merge are copied, and which are sorted together: the plan alone."""

import io
import struct
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_engine.writing import row_groups
from icedb_engine.writing.parquet_join import ChunkBounds, parse_file
from icedb_engine.writing.row_groups import LARGE_BYTES, RUN_BYTES, CopyFacts, Piece, PieceMaker, min_rows, plan_runs
from icedb_engine.writing.sort_keys import (
    ABOVE,
    BELOW,
    NAN,
    NULL,
    Span,
    decode_order,
    encode_order,
    make_key,
    span_of_bounds,
    span_of_stats,
)
from icedb_log.model import FileMarker

ROWS = 100
FACTS = CopyFacts({}, (), None)


@pytest.fixture(autouse=True, scope="module")
def half_is_small():
    """Call half a row group small: with the product's share the examples would have to be four times as large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_groups, "SMALL_SHARE", 2)
        yield


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


COLUMNS = {"i": "BIGINT", "s": "VARCHAR"}
OURS = {"icedb.format": "1", "icedb.kind": "flush"}
SAID = '{"by":["i","s"],"groups":[[[0,"a"],[%s,"b"]]]}'


def pieces_of(values, *, stats=(0, 7, 0), created_by="", **key_values):
    """Return the pieces of a file of one row group, given what its footer and the log say."""
    rows = pa.table({"i": pa.array(values, pa.int64()), "s": ["a"] * 7 + ["b"]})
    sink = io.BytesIO()
    by = [pq.SortingColumn(place, nulls_first=False) for place in range(2)]
    pq.write_table(rows, sink, sorting_columns=by, store_schema=False)
    source = parse_file(sink.getvalue())
    source.key_values = key_values
    source.created_by = created_by or source.created_by
    marker = FileMarker("f", 1, 0, row_count=8, stats={"i": stats})
    return PieceMaker(COLUMNS, ("i", "s"), ("i",)).make_pieces(0, marker, source)


def test_a_row_group_is_copied_if_all_that_is_said_of_it_is_the_same():
    told = {**OURS, "icedb.order": SAID % 7}
    (proven,) = pieces_of(range(8), **told)
    assert proven.span == Span(((0, 0), (0, b"a")), ((0, 7), (0, b"b")))
    assert proven.facts.stats["i"] == (0, 7, 0)
    nothing = Span.anywhere(2)
    for doubtful in (
        pieces_of(range(8), stats=(0, 7, 1), **told),  # nulls that the footer does not know
        pieces_of(range(8), stats=(0, 8, 0), **told),
        pieces_of([*range(7), None], stats=(0, 6, 1), **told),  # the last row is NULL by the statistics
        pieces_of(range(8), **OURS, **{"icedb.order": SAID % 6}),
    ):
        assert [(piece.span, piece.facts) for piece in doubtful] == [(nothing, None)]


def test_of_other_writers_statistics_count_and_no_order():
    (piece,) = pieces_of(range(8), **{"icedb.order": SAID % 7})
    assert (piece.span, piece.facts) == (Span.of_first((0, 0), (0, 7), 2), None)


@pytest.mark.parametrize(
    ("created_by", "is_old"),
    [
        ("parquet-mr version 1.9.1 (build a1)", True),
        ("parquet-mr version 1.10.0 (build a1)", False),
        ("parquet-cpp version 1.5.1-SNAPSHOT", True),
        ("parquet-cpp-arrow version 4.0.1", True),
        ("parquet-cpp-arrow version 20.0.0", False),
        ("somebody else", False),
    ],
)
def test_files_of_writers_whose_statistics_were_wrong_are_decoded_whole(created_by, is_old):
    (piece,) = pieces_of(range(8), created_by=created_by, **OURS)
    assert (piece.group is None) == is_old


def test_what_statistics_do_not_say_lies_above_their_highest_value():
    def spans(*values, kind, nulls=0):
        low, high = (struct.pack("<d" if kind == "DOUBLE" else "<q", value) for value in values)
        bounds = span_of_bounds(ChunkBounds(low, high, nulls, is_exact=False), kind, 8, 1)
        return bounds.high, span_of_stats((*values, nulls), kind, 8, 1).high

    assert spans(0, 7, kind="BIGINT") == (((0, 7),), ((0, 7),))
    assert spans(0, 7, kind="BIGINT", nulls=1) == ((NULL,), (NULL,))
    assert spans(0, 7, kind="BIGINT", nulls=8) == ((NULL,), (NULL,))
    assert spans(0.0, 7.0, kind="DOUBLE") == ((NAN,), ((0, 7.0),)), "the log has no bounds where a NaN is"
    assert spans(0.0, 7.0, kind="DOUBLE", nulls=1) == ((NULL,), (NULL,))
