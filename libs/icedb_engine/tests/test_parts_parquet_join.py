"""Row groups that are encoded apart make one Parquet file that is like one written in one go."""

import json

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.writing.parquet_join import MAGIC, FooterJoiner

OPTIONS = {"compression": "zstd", "store_schema": False}


def join(groups: list[pa.Table], key_values: dict[str, str], **options) -> bytes:
    joiner, out = FooterJoiner(["n0"] if "sorting_columns" in options else []), bytearray(MAGIC)
    for rows in groups:
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, row_group_size=rows.num_rows, **OPTIONS, **options)
        out += joiner.add(sink.getvalue(), place=len(out))
    return bytes(out + joiner.make_footer(key_values))


def write(groups: list[pa.Table], key_values: dict[str, str], **options) -> bytes:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, groups[0].schema, **OPTIONS, **options) as writer:
        for rows in groups:
            writer.write_table(rows, row_group_size=rows.num_rows)
        writer.add_key_value_metadata(key_values)
    return sink.getvalue().to_pybytes()


def make_groups(count: int, columns: int = 1) -> list[pa.Table]:
    random = np.random.default_rng(count)
    return [
        pa.table(
            {
                **{f"n{column}": random.integers(-(2**62), 2**62, number + 1) for column in range(columns)},
                "words": pa.array(random.choice(["a", "bb", ""], number + 1)).dictionary_encode(),
                "some": pa.array([None if n % 3 else n / 7 for n in range(number + 1)], pa.float64()),
                "flag": pa.array([n % 2 == 0 for n in range(number + 1)]),
                "nothing": pa.nulls(number + 1, pa.timestamp("us")),
            }
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 20), (14, 1), (15, 1), (200, 3)])
def test_a_joined_file_is_the_file_that_is_written_in_one_go(count, columns):
    groups = make_groups(count, columns)
    options = {"sorting_columns": [pq.SortingColumn(0, nulls_first=False)], "use_dictionary": ["words"]}
    key_values = {"icedb.table": "té", "icedb.inputs": json.dumps(["x" * 300] * 2)}
    assert join(groups, key_values, **options) == write(groups, key_values, **options)


def test_a_joined_file_is_read_by_others():
    groups = make_groups(30, 2)
    body = join(groups, {})
    table = pa.concat_tables(groups)
    found = pq.read_table(pa.BufferReader(body))
    assert found.cast(table.schema).equals(table.unify_dictionaries()) or found.to_pylist() == table.to_pylist()
    with duckdb.connect() as connection:
        connection.register("written", found)
        assert connection.execute("SELECT count(*), sum(n0::HUGEINT) FROM written").fetchone() == (
            table.num_rows,
            sum(table["n0"].to_pylist()),
        )


def test_what_cannot_be_joined_is_refused():
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1, 2]}), sink, row_group_size=1, **OPTIONS)
    with pytest.raises(ValueError, match="2 row groups"):
        FooterJoiner().add(sink.getvalue(), place=4)
    with pytest.raises(ValueError, match="without row groups"):
        FooterJoiner().make_footer({})
