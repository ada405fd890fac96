"""A CSV file gives the same rows and the same bad rows wherever it is cut into batches."""

import io

from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_client.files import NO_BOUND, split_file
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.batches import decompress
from icedb_engine.reading.read_typed import read_csv_cells
from icedb_log.csv_text import cut_records, read_lines

LIMITS = FlushUnitLimits(line_bytes=64)
CELLS = st.one_of(
    st.sampled_from(
        [
            "",
            "1",
            '5" pipe',
            '"a""b"',
            '"x,y"',
            '"two\nlines"',
            '"a"b',
            '"a"b"c',
            '"open',
            '"x\r\ny"',
            "x" * 40,
            'a,"',
            " ",
        ]
    ),
    st.text('a",\n\r ', max_size=6),
)
ENDS = st.sampled_from(["\n", "\n", "\r\n", "\r", "\n\n"])
FILES = st.lists(st.tuples(st.lists(CELLS, min_size=1, max_size=3).map(",".join), ENDS), max_size=12)


def read(text: bytes, batch_rows: int):
    rows, bad = [], []
    for body in split_file(io.BytesIO(text), data_format="csv", batch_rows=batch_rows):
        plain = decompress(body.body, body.format.partition(".")[2], LIMITS)
        batch = read_csv_cells(plain, LIMITS)
        found = batch.rows.to_pylist()
        assert body.row_count == len(found) + batch.bad.row_count
        first = body.first_row - 2
        rows += [(first + number, row) for number, row in zip(batch.numbers.to_pylist(), found, strict=True)]
        bad += [(first + number, text, fault.what) for number, (text, fault) in sorted(batch.bad.rows.items())]
    return rows, bad


@given(records=FILES, header_end=ENDS, batch_rows=st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_what_becomes_of_a_row_does_not_depend_on_the_cut(records, header_end, batch_rows):
    text = f"\n\na,b{header_end}{''.join(record + end for record, end in records)}".encode()
    assert read(text, batch_rows) == read(text, NO_BOUND)


def test_a_line_without_an_end_comes_in_pieces_of_a_bounded_size():
    """A file of one endless line must not be held in memory before it is refused."""
    pieces = list(read_lines(io.BytesIO(b"x" * 1000 + b"\r" + b"y" * 300), max_bytes=64))
    assert b"".join(pieces) == b"x" * 1000 + b"\r" + b"y" * 300
    assert max(map(len, pieces)) <= 2 * 64
    (record,) = cut_records(read_lines(io.BytesIO(b"x" * 1000), max_bytes=65), max_bytes=64)
    assert (record.is_closed, record.text) == (False, b"x" * 65)


def test_a_quote_that_is_never_closed_is_read_no_further_than_the_longest_record():
    lines = iter([b"name\n", *[b'"open\n'], *[b"more\n"] * 1000])
    _, record = cut_records(lines, max_bytes=64)
    assert (record.is_closed, record.line_number) == (False, 2)
    assert 64 < len(record.text) <= 64 + 6
    assert len([*lines]) > 900


def test_a_line_of_spaces_is_a_record_and_an_empty_one_is_none():
    lines = [b"\r\n", b"name\n", b"  \n", b"\n", b'"a\n', b"\n", b'b"\n', b"\r"]
    assert [(each.text, each.line_number) for each in cut_records(lines, max_bytes=64)] == [
        (b"name\n", 2), (b"  \n", 3), (b'"a\n\nb"\n', 5),
    ]  # fmt: skip
