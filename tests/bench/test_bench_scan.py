"""What W=scan asks, of what rows, and the slow S3 that counts what engines ask it for."""

import json

import duckdb
import pytest

from bench.scan_events import make_events
from bench.scan_work import COLUMNS, FEW, SQL, Engine, Files, spell
from bench.slow_s3 import Objects, Tally
from bench.workloads.scan import Size


class Counts(Engine):
    """Finds nothing but the number of rows."""

    opened = 0

    def open(self):
        self.opened += 1

    def read(self, paths, query):
        return (len(paths), 1 / 3)


def test_every_query_finds_rows_of_its_day_and_reads_no_other_columns():
    rows = make_events(50_000)
    assert tuple(rows.column_names) == COLUMNS
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        for query in SQL:
            assert connection.execute(spell(query, files="rows", time="TIMESTAMP '{}'")).fetchone()[0] not in (None, 0)
    assert set(FEW) <= SQL.keys()


def test_wide_rows_are_thirty_columns_with_nulls_and_the_same_each_time():
    rows = make_events(1_000, is_wide=True)
    assert rows.num_columns == 30
    assert sum(values.null_count for values in rows.columns) > 0
    assert rows.equals(make_events(1_000, is_wide=True))


def test_an_engine_is_opened_for_each_run_and_an_answer_that_is_wrong_fails():
    engine = Counts()
    took = engine.measure(["a", "b"], "q", (2, 1 / 3 + 1e-12), 3)
    assert engine.opened == 3
    assert took.wall_ms >= 0
    with pytest.raises(AssertionError, match="q of a"):
        engine.measure(["a"], "q", (2, 1 / 3), 1)


def test_a_file_is_measured_by_what_it_is_made_of(tmp_path):
    path = tmp_path / "a.parquet"
    duckdb.sql(f"COPY (SELECT n % 3 AS n, n AS m FROM range(5000) t(n)) TO '{path}' (ROW_GROUP_SIZE 2048)")
    found = {figure.metric: figure.value for figure in Size(Files("a", (path,))).check()}
    assert found["size"] == path.stat().st_size / 1e6
    assert (found["files"], found["row_groups"]) == (1, 3)
    assert found["pages"] > 6
    assert found["chunks_with_a_dictionary"] == 50


def test_slow_s3_reads_ranges_and_tells_what_it_was_asked_for(tmp_path):
    (tmp_path / "key").write_bytes(b"0123456789")
    objects = Objects(tmp_path)
    for span, body in {"0-3": b"0123", "8-": b"89", "-4": b"6789", "8-99": b"89"}.items():
        answer = objects.answer("GET", "key", "", {"range": f"bytes={span}"})
        assert (answer.status, answer.body) == (206, body)
        assert answer.headers[-1].endswith("/10")
    tally = Tally()
    for method, key, size in (("GET", "key", 4), ("HEAD", "key", 0), ("GET", "", 100)):
        tally.note(method, key, size)
    assert json.loads(tally.take()) == {
        "operations": {"get": 1, "head": 1, "list": 1}, "bytes": {"sent": 104},
    }  # fmt: skip
    assert json.loads(tally.take())["operations"] == {}
