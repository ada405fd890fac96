"""CSV: what stands before the header, how lines end, and that one odd row is set aside alone."""

import math

import pytest
from icedb_engine.errors import BatchRejected
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.read_typed import read_csv_cells


def read(body: bytes, **limits):
    batch = read_csv_cells(body, FlushUnitLimits(**limits))
    rows = [tuple(row.values()) for row in batch.rows.to_pylist()]
    return dict(zip(batch.numbers.to_pylist(), rows, strict=True)), {n: text for n, (text, _) in batch.bad.rows.items()}


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_blank_lines_before_the_header_and_any_line_end(make_table, before, end):
    table = make_table()
    body = end * before + end.join([b"n,s", b"1,a", b"", b"2,b"])
    result = table.flush(table.stage(body=body, staging_format="csv"))
    assert (dict(result.columns), result.row_count) == ({"n": "BIGINT", "s": "VARCHAR"}, 2)
    assert table.rows(*result.files) == [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]


@pytest.mark.parametrize("pipes", [1, 2, 3])
def test_a_quote_within_a_cell_is_text(pipes):
    rows, bad = read(b"n,s\n" + b"".join(b'%d,5" pipe\n' % n for n in range(pipes)) + b'9,"a ""b"""\n')
    assert rows == {**{n + 2: (str(n), '5" pipe') for n in range(pipes)}, pipes + 2: ("9", 'a "b"')}
    assert not bad


def test_a_quote_that_stays_open_sets_aside_what_it_takes_with_it(make_table):
    rows, bad = read(b'n,s\n1,a\n2\n3,"b\n4,c\n')
    assert (rows, bad) == ({2: ("1", "a")}, {3: b"2", 4: b'3,"b\n4,c'})
    table = make_table(on_bad_rows="quarantine_rows")
    batch = table.stage(body=b'n,s\n1,a\n3,"b\n4,c\n', staging_format="csv")
    result = table.flush(batch)
    assert (result.accepted, result.row_count) == ((batch.batch_id,), 1)
    assert result.bad_rows[0].reason == (
        'row 3 has a double quote that is not closed: 3,"b\n4,c: quote cells with double quotes, and double them there'
    )


def test_a_row_that_is_too_long_is_set_aside_wherever_it_stands():
    for long in (b"x" * 1021, b"x" * 200_000, b'"' + b'""' * 1021 + b'"'):
        rows, bad = read(b"n,s\n1,a\n777," + long + b"\n2,b\n", line_bytes=1023)
        assert rows == {2: ("1", "a"), 4: ("2", "b")}
        assert [*bad] == [3]
    quotes = b'"' + b'""' * 500 + b'"'
    assert read(b"n,s\n1," + quotes + b"\n" * 3, line_bytes=1023) == ({2: ("1", '"' * 500)}, {})


def test_doubles_come_back_as_csv_programs_write_them(make_table):
    table = make_table()
    body = b"f,s\n1.5,nan\nnan,x\nNaN,x\ninf,x\n-inf,inf\n-Infinity,x\n"
    result = table.flush(table.stage(body=body, staging_format="csv"))
    assert dict(result.columns) == {"f": "DOUBLE", "s": "VARCHAR"}
    found = [row["f"] for row in table.rows(*result.files)]
    assert sorted(value for value in found if not math.isnan(value)) == [-math.inf, -math.inf, 1.5, math.inf]
    assert "1e999" in table.reason(table.stage(body=b"f\n1e999\n", staging_format="csv"), schema={"f": "DOUBLE"})


@pytest.mark.parametrize("body", [b'"a,b\n1,2\n', b"a,a\n1,2\n"])
def test_a_header_that_is_none_rejects_the_batch(body):
    with pytest.raises(BatchRejected, match="header"):
        read(body)
