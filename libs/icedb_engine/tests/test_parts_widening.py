"""``evolution``: strict takes declared columns only; widen makes a column wider where no live value loses anything."""

from datetime import date, datetime

import pyarrow as pa
import pytest
from icedb_engine.reading.widening import WideningProof, find_inexact, find_widenable, unite_known
from icedb_log.errors import SchemaConflict
from icedb_log.jobs import FlushJob
from icedb_log.parquet.file_reads import ParquetFooterReader
from icedb_log.table.table_config import PartitionField, TableConfig

KNOWN = {"n": "BIGINT", "s": "VARCHAR"}


def find_problem(table, *live, column="n", narrow="BIGINT", known=None):
    """Ask what the log says of a column, and where it says nothing the files."""
    job = table.job(FlushJob, batches=(), inexact=known, read_live=lambda: live)
    return WideningProof(job, lambda: table.store).find_problem(column, narrow)


def put(table, values, *, column="n", arrow_type=pa.int64(), file_id="f"):
    return table.put_file(pa.table({column: pa.array(values, arrow_type)}), file_id)


def test_strict_takes_declared_columns_only(make_table):
    table = make_table(evolution="strict", declared={"n": "BIGINT"})
    reason = table.reason(table.stage({"n": 1}), table.stage({"n": 1}, {"m": None}))
    assert "line 2: column 'm' is not in the schema of table events, and the table takes no other" in reason
    assert "column 'm' is not in the schema" in table.reason(table.stage(body=b"m\n1\n", staging_format="csv"))
    only_unknown = table.stage({"a": 1, "b": 2})
    assert "column 'a' is not in the schema" in table.reason(only_unknown)


def test_a_fraction_in_a_bigint_column_is_a_request_and_nothing_is_done(make_table):
    table = make_table(evolution="widen")
    batches = table.stage({"n": 1}), table.stage({"n": 0.5}), table.stage(body=b"{")
    result = table.flush(*batches, schema=KNOWN)
    assert result.widening_requests == {"n": "DOUBLE"}
    assert result.left == tuple(batch.batch_id for batch in batches)
    assert (result.accepted, result.rejected, result.files, result.row_count) == ((), {}, (), 0)
    granted = table.flush(*batches, schema={**KNOWN, "n": "DOUBLE"})
    assert sorted(row["n"] for row in table.rows(*granted.files)) == [0.5, 1.0]


def test_a_refused_request_rejects_the_batch_with_what_stands_in_the_way(make_table):
    table = make_table(evolution="widen")
    result = table.flush(table.stage({"n": 1}), table.stage({"n": 0.5}), schema=KNOWN, refused={"n": "file x is large"})
    assert len(result.accepted) == 1
    assert "number with a fraction values" in next(iter(result.rejected.values()))
    assert "the column cannot become wider: file x is large (line 1: 0.5)" in next(iter(result.rejected.values()))


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        ({"evolution": "add_columns"}, [{"n": 0.5}]),
        ({"declared": {"n": "BIGINT"}}, [{"n": 0.5}]),
        ({"sort": ("n",)}, [{"n": 0.5}]),
        ({"partition": ("n",)}, [{"n": 0.5}]),
        ({}, [{"n": 0.5}, {"n": "text"}]),
        ({}, [{"n": 0.5, "s": 1}]),
        ({}, [{"n": 0.5}, {"n": 2**53 + 1}]),
        ({}, [{"n": 2**63}]),
        ({"on_bad_rows": "quarantine_rows"}, [{"n": True}, {"n": 1}]),
    ],
)
def test_what_is_no_request(make_table, config, rows):
    config = {"evolution": "widen", **config}
    table = make_table(*config.pop("partition", ()), **config)
    result = table.flush(table.stage(*rows), schema=KNOWN)
    assert not result.widening_requests
    assert len(result.rejected) + len(result.bad_rows) == 1


def test_an_older_batch_with_long_integers_stands_in_the_way_of_a_request(make_table):
    table = make_table(evolution="widen")
    long, fraction = table.stage({"n": 2**53 + 1}), table.stage({"n": 0.5})
    result = table.flush(long, fraction, schema=KNOWN)
    assert (result.accepted, result.long_columns) == ((long.batch_id,), ("n",))
    assert table.flush(fraction, long, schema=KNOWN).widening_requests == {"n": "DOUBLE"}


def test_bad_rows_are_not_set_aside_while_a_request_is_open(make_table):
    table = make_table(evolution="widen", on_bad_rows="quarantine_rows")
    result = table.flush(table.stage({"n": 1}, {"n": 0.5}), schema=KNOWN)
    assert (result.widening_requests, result.bad_rows) == ({"n": "DOUBLE"}, ())


def test_a_timestamp_in_a_date_column_is_a_request(make_table):
    table = make_table(evolution="widen")
    days = table.stage(body=_arrow({"d": [date(2023, 6, 7)]}), staging_format="arrow")
    moments = table.stage(body=_arrow({"d": [datetime(2023, 6, 7, 1)]}), staging_format="arrow")
    assert table.flush(days, moments, schema={"d": "DATE"}).widening_requests == {"d": "TIMESTAMP"}
    granted = table.flush(days, moments, schema={"d": "TIMESTAMP"})
    assert sorted(row["d"] for row in table.rows(*granted.files)) == [datetime(2023, 6, 7), datetime(2023, 6, 7, 1)]


def _arrow(columns) -> bytes:
    rows = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, -(2**53), 2**53, None], None),
        ([None, None], None),
        ([], None),
        ([1, 2**53 + 1], f"values from 1 to {2**53 + 1}, which DOUBLE cannot hold exactly"),
        ([-(2**53) - 1], "which DOUBLE cannot hold exactly"),
    ],
)
def test_the_footers_of_live_files_decide(make_table, values, expected):
    table = make_table()
    good = put(table, [1], file_id="a")
    file = put(table, values)
    wide, other = (
        put(table, [1e300], arrow_type=pa.float64(), file_id="w"),
        put(table, [2**60], column="m", file_id="o"),
    )
    found = find_problem(table, good, wide, other, file, known={"n": False})
    if expected is None:
        assert found is None
    else:
        assert found.startswith(file.path)
        assert expected in found


def test_a_file_without_statistics_or_that_is_gone_proves_nothing(make_table):
    table = make_table()
    silent = table.put_file(pa.table({"n": [1]}), "s", write_statistics=False)
    assert "does not say between which bounds" in find_problem(table, silent)
    table.store.delete([silent.path])
    assert "gone" in find_problem(table, silent)


def test_dates_of_files_become_timestamps(make_table):
    table = make_table()
    file = put(table, [date(1, 1, 1), date(9999, 12, 31)], column="d", arrow_type=pa.date32())
    assert find_problem(table, file, column="d", narrow="DATE") is None


def test_which_columns_may_become_wider():
    config = TableConfig.create(
        name="t", evolution="widen", sort=("s",), partition=(PartitionField.parse("p"),), declared={"x": "BIGINT"}
    )
    schema = {"s": "BIGINT", "p": "BIGINT", "x": "BIGINT", "n": "BIGINT", "d": "DATE", "v": "VARCHAR", "f": "DOUBLE"}
    assert find_widenable(config, schema) == {"n": "DOUBLE", "d": "TIMESTAMP"}


def test_a_declared_wider_type_needs_no_proof_but_the_policy(make_table):
    table = make_table(evolution="widen", declared={"n": "DOUBLE", "d": "TIMESTAMP"})
    assert unite_known(table.job(FlushJob, schema={"n": "BIGINT", "d": "DATE"}, batches=())) == {
        "n": "DOUBLE",
        "d": "TIMESTAMP",
    }
    for config in ({"evolution": "add_columns"}, {"evolution": "widen", "sort": ("n",)}):
        table = make_table(declared={"n": "DOUBLE"}, **config)
        with pytest.raises(SchemaConflict, match="declares 'n' as DOUBLE, but the log has 'n' as BIGINT"):
            unite_known(table.job(FlushJob, schema={"n": "BIGINT"}, batches=()))


@pytest.mark.parametrize(
    ("rows", "inexact"),
    [
        ([{"n": 2**53}, {"n": -(2**53)}, {"n": None}], ()),
        ([{"n": 1}, {"n": 2**53 + 1}], ("n",)),
        ([{"n": -(2**53) - 1, "m": 2**60}], ("m", "n")),
        ([{"n": 0.5}, {"s": "9007199254740993"}], ()),
    ],
)
def test_who_writes_a_file_says_which_columns_could_not_become_wider(make_table, rows, inexact):
    table = make_table(evolution="widen")
    batch = table.stage(*rows)
    (marker,) = table.flush(batch).files
    assert marker.inexact == inexact
    schema = {"n": "BIGINT", "m": "BIGINT", "s": "VARCHAR"} if inexact else {"n": "DOUBLE", "s": "VARCHAR"}
    (merged,) = table.merge(marker, schema=schema).outputs
    assert merged.inexact == inexact
    if rows[0]["n"] != 0.5:
        footer = ParquetFooterReader(table.store).require_footer(table.store.head(marker.path), bounds_of=None)
        assert find_inexact(footer) == inexact


def test_no_data_file_is_needed_where_the_log_says_it(make_table):
    def never():
        raise AssertionError("nothing is read")

    def prove(known):
        return WideningProof(make_table().job(FlushJob, batches=(), inexact=known, read_live=never), never)

    assert prove({}).find_problem("n", "BIGINT") is None
    proof = prove({"n": True})
    assert "which DOUBLE cannot hold exactly, by its log" in proof.find_problem("n", "BIGINT")
    assert proof.inexact == set()
