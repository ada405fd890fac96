"""The footers of many small files, read side by side: what they say is what they say one after the other."""

import math
from datetime import date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from icedb_engine.reading import alike_footers
from icedb_engine.reading.alike_footers import unite_footers
from icedb_log.merge.content_check import compare_contents
from icedb_log.model import FileMarker
from icedb_log.parquet.footer import parse_footer
from icedb_log.parquet.schema import DamagedFile
from icedb_log.store.object_store import ObjectInfo

COLUMNS = {"n": "BIGINT", "x": "DOUBLE", "t": "VARCHAR", "at": "TIMESTAMP", "day": "DATE", "is": "BOOLEAN"}
FIELDS = {
    "n": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int32(), st.integers(-5, 5)),
    "x": (pa.float64(), st.floats()),
    "t": (pa.string(), st.text(max_size=3) | st.just("é" * 50_000)),
    "at": (pa.timestamp("us"), st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1))),
    "day": (pa.date32(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    "is": (pa.bool_(), st.booleans()),
}
SCHEMAS = (("n", "x", "t", "at", "day", "is"), ("n", "t"), ("is", "small", "n"))


@pytest.fixture(autouse=True)
def few_files(monkeypatch):
    monkeypatch.setattr(alike_footers, "MIN_FILES", 2)


def cut_footer(body):
    length = int.from_bytes(body[-8:-4], "little")
    return body[-8 - length : -8]


@st.composite
def written_files(draw):
    """Return footer and size of a file of a few rows, by one of the ways in which files are written."""
    names = draw(st.sampled_from(SCHEMAS))
    count = draw(st.integers(0, 3))
    values = {name: draw(st.lists(st.none() | FIELDS[name][1], min_size=count, max_size=count)) for name in names}
    schema = pa.schema([(name, FIELDS[name][0]) for name in names])
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(values, schema=schema),
        sink,
        row_group_size=draw(st.sampled_from((1, 100))),
        use_dictionary=draw(st.lists(st.sampled_from(names))),
        write_statistics=draw(st.sampled_from((True, True, True, False))),
        store_schema=draw(st.booleans()),
    )
    body = sink.getvalue().to_pybytes()
    footer = bytearray(cut_footer(body))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        footer[draw(st.integers(0, len(footer) - 1))] = draw(st.integers(0, 255))
    return bytes(footer), len(body)


def read_each(footers, markers):
    found = []
    for footer, marker in zip(footers, markers, strict=True):
        try:
            found.append(parse_footer(footer, ObjectInfo("k", "", marker.size_bytes, 0), bounds_of=COLUMNS))
        except DamagedFile:
            found.append(None)
    return found


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(written_files(), min_size=2, max_size=12))
def test_many_say_together_what_they_say_one_by_one(files):
    footers, markers = [footer for footer, _ in files], [FileMarker("k", size, 0) for _, size in files]
    united, others = unite_footers(footers, markers, COLUMNS)
    alone = [each for at, each in enumerate(read_each(footers, markers)) if at not in others]
    assert None not in alone, "what is damaged is left to those who say so"
    assert sum(each.row_count for each in united) == sum(each.row_count for each in alone)
    assert compare_contents(united, alone, COLUMNS) == compare_contents(alone, alone, COLUMNS)


def write(metadata=None, **values):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(values).replace_schema_metadata(metadata), sink, store_schema=metadata is not None)
    body = sink.getvalue().to_pybytes()
    return cut_footer(body), FileMarker("k", len(body), 0)


def test_files_of_one_schema_are_one_and_those_of_another_too():
    several = [write(n=[at, None], t=[None, "b" * at]) for at in range(1, 300)]
    several[100:100] = [write(n=[at]) for at in range(1000, 1100)]
    united, others = unite_footers(*zip(*several, strict=True), COLUMNS)
    assert others == []
    assert [(each.row_count, dict(each.columns)) for each in united] == [
        (598, {"n": "BIGINT", "t": "VARCHAR"}),
        (100, {"n": "BIGINT"}),
    ]
    assert [(each.bounds["n"].low, each.bounds["n"].high, each.bounds["n"].null_count) for each in united] == [
        (1, 299, 299),
        (1000, 1099, 0),
    ]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_one_file_whose_bounds_are_no_numbers_leaves_all_unproven(odd):
    several = [write(x=[float(at)]) for at in range(10)]
    several[5] = write(x=[odd])
    united, others = unite_footers(*zip(*several, strict=True), COLUMNS)
    assert others == []
    assert (united[0].bounds["x"].low, united[0].bounds["x"].is_exact) == (None, False)


def test_few_files_damaged_ones_and_large_footers_are_left_to_others(monkeypatch):
    several = [write(n=[at], t=["x"]) for at in range(20)]
    footer, marker = several[3]
    several[3] = (footer[:-4], marker)
    several[4] = (footer, FileMarker("k", 40, 0))  # its columns lie behind its end
    several[5] = write({"long": "x" * 70_000}, n=[1], t=["x"])
    united, others = unite_footers(*zip(*several, strict=True), COLUMNS)
    assert others == [3, 4, 5]
    assert united[0].row_count == 17
    monkeypatch.setattr(alike_footers, "MIN_FILES", 30)
    assert unite_footers(*zip(*several, strict=True), COLUMNS) == ([], list(range(20)))
