"""Decimals are exact from the text of a batch to the rows of a merge, the log and the files that a condition keeps."""

import io
import json
from datetime import datetime
from decimal import Context, Decimal

import duckdb
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from icedb_engine.reading.types import Form, cast_sql
from icedb_log.model import FileMarker
from icedb_log.parquet.footer import parse_footer
from icedb_log.store.object_store import ObjectInfo
from icedb_log.table.decimals import find_decimal, show_decimal, spell_decimal
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.table.transforms import canonical_sql, canonical_text, transform_value

EXACT = Context(prec=200)
TYPES = ["DECIMAL(18,2)", "DECIMAL(9,0)", "DECIMAL(2,2)", "DECIMAL(38,10)", "DECIMAL(38,38)", "DECIMAL(19,4)"]


def fitting(sql_type):
    """Values of a type, edges among them."""
    digits = find_decimal(sql_type)
    most = 10**digits.precision - 1
    return st.one_of(st.integers(-most, most), st.integers(-200, 200), st.sampled_from([0, most, -most])).map(
        lambda number: digits.scale_down(max(-most, min(most, number)))
    )


def texts(value):
    """Texts of JSON for one value."""
    plain = show_decimal(value)
    sign, digits, exponent = value.as_tuple()
    scientific = f"{'-' if sign else ''}{''.join(map(str, digits))}E{exponent:+d}"
    more = f"{plain}000" if "." in plain else f"{plain}.00"
    return [plain, scientific, more, scientific.lower().replace("+", "")]


def arrow_type(sql_type):
    digits = find_decimal(sql_type)
    return pa.decimal128(digits.precision, digits.scale)


def bodies(sql_type, values):
    """Batches with these values in each format."""
    rows = pa.table({"n": list(range(len(values))), "d": pa.array(values, arrow_type(sql_type))})
    text = [None if value is None else texts(value)[place % 4] for place, value in enumerate(values)]
    lines = [f'{{"n":{place}' + ("" if each is None else f',"d":{each}') + "}" for place, each in enumerate(text)]
    cells = [f"{place},{each or ''}" for place, each in enumerate(text)]
    quoted = [f'{{"n":{place},"d":{json.dumps(each)}}}' for place, each in enumerate(text)]
    parquet, arrow, integers = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pq.write_table(rows, parquet)
    pq.write_table(rows, integers, store_decimal_as_integer=True)
    with pa.ipc.new_stream(arrow, rows.schema) as writer:
        writer.write_table(rows)
    return {
        "ndjson": ("\n".join(lines).encode(), "ndjson"),
        "json": (f"[{','.join(lines)}]".encode(), "json"),
        "text": ("\n".join(quoted).encode(), "ndjson"),
        "csv": ("\n".join(["n,d", *cells]).encode(), "csv"),
        "parquet": (parquet.getvalue(), "parquet"),
        "integers": (integers.getvalue(), "parquet"),
        "arrow": (arrow.getvalue(), "arrow"),
    }


SLOW = settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("form", ["ndjson", "json", "text", "csv", "parquet", "integers", "arrow"])
@pytest.mark.parametrize("sql_type", TYPES)
@SLOW
@given(data=st.data())
def test_a_decimal_of_each_format_is_the_same_number_through_flush_merge_and_statistics(
    make_table, sql_type, form, data
):
    values = data.draw(st.lists(st.none() | fitting(sql_type), min_size=2, max_size=30).filter(any))
    is_sorted = data.draw(st.booleans())
    table = make_table(declared={"d": sql_type}, sort=("d",) if is_sorted else ())
    body, staging_format = bodies(sql_type, values)[form]
    half = [table.flush(table.stage(body=body, staging_format=staging_format)) for _ in range(2)]
    assert not any(result.rejected or result.bad_rows for result in half), half[0]
    files = [file for result in half for file in result.files]
    for file in files:
        assert sorted((row["n"], row["d"]) for row in table.rows(file)) == list(enumerate(values)), form
        _check_statistics(table, file, values, sql_type, is_sorted=is_sorted)
    merged = table.merge(*files, schema={"n": "BIGINT", "d": sql_type}).outputs
    rows = table.rows(*merged)
    assert sorted((row["n"], row["d"]) for row in rows) == sorted([*enumerate(values)] * 2, key=lambda pair: pair[0])
    if is_sorted:
        found = [row["d"] for row in rows]
        assert found == sorted(found, key=lambda value: (value is None, value or 0))
    _check_statistics(table, merged[0], values, sql_type, is_sorted=is_sorted)


def _check_statistics(table, file, values, sql_type, *, is_sorted):
    known = [value for value in values if value is not None]
    nulls = (len(values) - len(known)) * (file.row_count // len(values))
    expected = (show_decimal(min(known)), show_decimal(max(known)), nulls)
    assert file.stats.get("d") == (expected if is_sorted else None)
    body = table.store.get(file.path).body
    length = int.from_bytes(body[-8:-4], "little")
    footer = parse_footer(body[-8 - length : -8], ObjectInfo(file.path, "", len(body), 0), bounds_of=["d"])
    assert footer.columns["d"] == sql_type
    assert (footer.bounds["d"].low, footer.bounds["d"].high, footer.bounds["d"].null_count) == expected


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(TYPES),
    st.lists(
        st.tuples(
            st.integers(-(10**40), 10**40) | st.integers(-3000, 3000) | st.just(0),
            st.integers(0, 42),
            st.integers(-45, 45) | st.sampled_from([-(10**10), 10**10]),
            st.sampled_from(["", "0", "00", "0" * 45]),
        ),
        min_size=10,
        max_size=10,
    ),
)
def test_text_is_a_decimal_exactly_or_not_at_all(sql_type, numbers):
    """DuckDB rounds what does not fit; Python says what fits."""
    texts, expected = zip(*(_spell(sql_type, *number) for number in numbers), strict=True)
    sql = ", ".join(cast_sql("t", form, sql_type, unit="epoch_ms") for form in (Form.JSON, Form.CELL, Form.VARCHAR))
    found = ENGINE.execute(f"SELECT {sql} FROM (SELECT unnest(CAST(? AS VARCHAR[])) AS t)", [texts]).fetchall()
    for text, value, each in zip(texts, expected, found, strict=True):
        assert set(each) == {value}, text


def _spell(sql_type, number, places, exponent, zeros):
    """Return a text and the value of the type that it says; ``None``: none."""
    digits = find_decimal(sql_type)
    plain = f"{Decimal(number).scaleb(-places, EXACT):f}"
    plain = f"{plain}{zeros}" if "." in plain else f"{plain}.{zeros}" if zeros else plain
    is_far = abs(exponent) > 100
    value = Decimal(0) if is_far else EXACT.scaleb(Decimal(plain), exponent)
    fits = not value or (
        not is_far and abs(value) < 10 ** (digits.precision - digits.scale)
        and value == value.quantize(Decimal(1).scaleb(-digits.scale), context=EXACT)
    )  # fmt: skip
    text = plain if exponent == 0 else f"{plain}e{exponent}"
    return text, value if fits and not (is_far and number) else None


ENGINE = duckdb.connect(config={"threads": 1})


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(TYPES).flatmap(lambda sql_type: st.tuples(st.just(sql_type), fitting(sql_type))))
def test_the_canonical_text_of_a_decimal_has_all_digits(pair):
    sql_type, value = pair
    ((text,),) = ENGINE.execute(f"SELECT {canonical_sql('d', sql_type)} FROM (SELECT CAST(? AS {sql_type}) AS d)", [show_decimal(value)]).fetchall()  # fmt: skip
    assert text == canonical_text(value) == show_decimal(value)
    assert find_decimal(sql_type).read(text) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("19.999", "(line 2: 19.999): send numbers, or text of numbers, of at most 16 digits before the point and 2 behind"),
        ("12345678901234567", "DECIMAL(18,2), and a value of this batch is none"),
        ('"19,99"', "DECIMAL(18,2), and a value of this batch is none"),
        ('""', "DECIMAL(18,2), and a value of this batch is none"),
        ("NaN", "DECIMAL(18,2), and a value of this batch is none"),
        ("1e-400", "DECIMAL(18,2), and a value of this batch is none"),
        ("true", "this batch has boolean values"),
        ("[1]", "this batch has object or array values"),
    ],
)  # fmt: skip
def test_what_is_no_decimal_of_the_column_is_a_bad_row(make_table, value, expected):
    table = make_table(declared={"d": "DECIMAL(18,2)"}, on_bad_rows="quarantine_rows")
    result = table.flush(table.stage(body=f'{{"d":1}}\n{{"d":{value}}}\n'.encode()))
    assert table.rows(*result.files) == [{"d": Decimal("1.00")}]
    assert expected in result.bad_rows[0].reason


@pytest.mark.parametrize(
    ("arrow", "sql_type"),
    [
        (pa.decimal128(9, 2), "DECIMAL(18,2)"),
        (pa.decimal128(18, 0), "DECIMAL(18,0)"),
        (pa.decimal128(38, 18), "DECIMAL(38,18)"),
        (pa.decimal256(50, 2), "DECIMAL(38,2)"),
        (pa.decimal32(5, 1), "DECIMAL(18,1)"),
        (pa.decimal128(5, -2), "DECIMAL(18,0)"),
        (pa.decimal128(19, 19), "DECIMAL(38,19)"),
    ],
)  # fmt: skip
def test_a_new_column_of_typed_decimals_is_exact(make_table, arrow, sql_type):
    sink = io.BytesIO()
    values = pa.array([Decimal(0), None, Decimal(700) if arrow.scale < arrow.precision else Decimal("0.7")], arrow)
    with pa.ipc.new_stream(sink, pa.schema([("d", arrow)])) as writer:
        writer.write_table(pa.table({"d": values}))
    table = make_table()
    result = table.flush(table.stage(body=sink.getvalue(), staging_format="arrow"))
    assert result.columns == {"d": sql_type}
    assert [row["d"] for row in table.rows(*result.files)] == values.to_pylist()


def decimals(*values, sql_type="DECIMAL(9,2)"):
    sink = io.BytesIO()
    pq.write_table(pa.table({"d": pa.array(map(Decimal, values), arrow_type(sql_type))}), sink)
    return sink.getvalue()


def test_batches_of_different_digits_make_one_column_whichever_comes_first(make_table):
    table = make_table()
    few, many = decimals("1.5", sql_type="DECIMAL(4,1)"), decimals("12345678901.25", sql_type="DECIMAL(20,2)")
    for order in ((few, many), (many, few)):
        result = table.flush(*(table.stage(body=body, staging_format="parquet") for body in order))
        assert result.columns == {"d": "DECIMAL(38,2)"}
    result = table.flush(table.stage({"d": 7}), table.stage(body=few, staging_format="parquet"))
    assert result.columns == {"d": "DECIMAL(18,1)"}, "integers go into it"
    result = table.flush(table.stage({"d": 0.5}), table.stage(body=few, staging_format="parquet"))
    assert result.columns == {"d": "DOUBLE"}, "a double cannot be told to be a decimal"


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(-(10**18) + 1, 10**18 - 1), min_size=1, max_size=50))
def test_a_decimal_in_a_double_column_is_the_nearest_double(make_table, numbers):
    values = [Decimal(number).scaleb(-2) for number in numbers]
    table = make_table(declared={"d": "DOUBLE"})
    body = decimals(*values, sql_type="DECIMAL(18,2)")
    result = table.flush(table.stage(body=body, staging_format="parquet"))
    assert [row["d"] for row in table.rows(*result.files)] == [float(str(value)) for value in values]


def test_prices_keep_their_digits_in_a_double_column(make_table):
    """19.99 was 19.990000000000002, and the second was refused."""
    table = make_table(declared={"d": "DOUBLE"})
    for sql_type in ("DECIMAL(9,2)", "DECIMAL(38,18)"):
        body = decimals("19.99", "0.07", sql_type=sql_type)
        result = table.flush(table.stage(body=body, staging_format="parquet"))
        assert [row["d"] for row in table.rows(*result.files)] == [19.99, 0.07]
    body = decimals("9007199254740993", sql_type="DECIMAL(20,0)")
    assert "a DOUBLE would lose digits" in table.reason(table.stage(body=body, staging_format="parquet"))


def test_whole_decimals_go_where_integers_go(make_table):
    table = make_table(declared={"n": "BIGINT", "t": "TIMESTAMP"})
    sink = io.BytesIO()
    whole = pa.array([Decimal(1_700_000_000_000)], pa.decimal128(38, 0))
    pq.write_table(pa.table({"n": whole, "t": whole}), sink)
    result = table.flush(table.stage(body=sink.getvalue(), staging_format="parquet"))
    assert table.rows(*result.files) == [{"n": 1_700_000_000_000, "t": datetime(2023, 11, 14, 22, 13, 20)}]
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array([Decimal(2**63)], pa.decimal128(38, 0))}), sink)
    assert "BIGINT ends at 2^63 - 1" in table.reason(table.stage(body=sink.getvalue(), staging_format="parquet"))


def test_row_groups_of_decimals_are_copied_unless_they_are_stored_otherwise(make_table, tmp_path):
    """DuckDB stores each decimal of more than 18 digits in 16 bytes, we in as few as hold them."""
    table = make_table(declared={"d": "DECIMAL(20,2)"}, row_group_rows=2048)
    rows = pa.table({"d": pa.array([Decimal(n) for n in range(3000)], pa.decimal128(20, 2))})
    own = table.flush(
        table.stage(body=decimals(*range(3000), sql_type="DECIMAL(20,2)"), staging_format="parquet")
    ).files
    ENGINE.register("given", rows)
    ENGINE.execute(f"COPY given TO '{tmp_path}/theirs.parquet' (FORMAT parquet)")
    body = (tmp_path / "theirs.parquet").read_bytes()
    foreign = table.put_file(pq.read_table(io.BytesIO(body)), "f" * 32)
    key = table.paths.data_key(partition="", file_id="e" * 32)
    table.store.put(key, body)
    theirs = FileMarker(key, len(body), 0, row_count=3000)
    assert pq.ParquetFile(io.BytesIO(body)).schema.column(0).length == 16
    merged = table.merge(*own, theirs, foreign, schema={"d": "DECIMAL(20,2)"}).outputs
    assert sorted(row["d"] for row in table.rows(*merged)) == sorted([*rows["d"].to_pylist()] * 3)


CONDITIONS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="]).flatmap(
    lambda operator: st.sampled_from(
        ["5", "0.05", "-1.25", "1.234", "1e0", "1.5e0", "123456789012345678", "-3", "0", "'1.25'", "1.250"]
    ).map(lambda literal: f"d {operator} {literal}")
)
LISTS = st.lists(st.sampled_from(["5", "0.05", "-1.25", "1e0", "NULL"]), min_size=1, max_size=3).map(
    lambda literals: f"d IN ({', '.join(literals)})"
)
BETWEEN = st.sampled_from(["d BETWEEN -1 AND 1.5", "d BETWEEN 0 AND 1e0", "d IS NULL", "d IS NOT DISTINCT FROM 1.25"])


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["DECIMAL(18,2)", "DECIMAL(38,30)", "DECIMAL(9,0)"]),
    CONDITIONS | LISTS | BETWEEN,
    st.booleans(),
    st.data(),
)
def test_a_file_with_a_decimal_for_which_a_condition_is_true_is_kept(sql_type, condition, is_negated, data):
    near = st.sampled_from(["5", "0.05", "-1.25", "1.25", "0.99999999999999999999999999999", "1", "0", "-3"])
    digits = find_decimal(sql_type)
    quantum = Decimal(1).scaleb(-digits.scale)
    values = data.draw(
        st.lists(near.map(lambda text: Decimal(text).quantize(quantum, context=EXACT)), min_size=1, max_size=3)
    )
    condition = f"NOT ({condition})" if is_negated else condition
    config = TableConfig.create(
        name="t", declared={"d": sql_type}, sort=("d",), partition=(PartitionField.parse("b=bucket[4](d)"),)
    )
    bucket = config.partition[0]
    values = [value for value in values if transform_value(bucket, value) == transform_value(bucket, values[0])]
    stats = {"d": (show_decimal(min(values)), show_decimal(max(values)), 0)}
    path = f"p/_data/b={transform_value(bucket, values[0])}/{'a' * 32}.parquet"
    marker = FileMarker(path, 1, 0, row_count=len(values), stats=stats)
    ENGINE.register("given", pa.table({"d": pa.array(values, arrow_type(sql_type))}))
    try:
        ((is_there,),) = ENGINE.execute(f"SELECT coalesce(bool_or({condition}), false) FROM given").fetchall()
    except duckdb.ConversionException:
        return  # the literal has more digits than go into the column's type
    for schema in (None, {"d": sql_type}):
        is_kept = FilePruner(condition, config, schema=schema).may_be_true(marker)
        assert is_kept or not is_there
    if condition == "d > 123456789012345678":
        assert not is_kept


def test_beside_a_double_a_decimal_is_one():
    """DuckDB makes a double of each: 0.99…9 is 1.0 then, and lies between 1 and 1e1."""
    value, sql_type = "0.99999999999999999999999999999", "DECIMAL(38,30)"
    condition = "d BETWEEN 1 AND 1e1"
    assert ENGINE.execute(f"SELECT {condition} FROM (SELECT {value}::{sql_type} AS d)").fetchall() == [(True,)]
    config = TableConfig.create(name="t", declared={"d": sql_type}, sort=("d",))
    marker = FileMarker("p/_data/a.parquet", 1, 0, row_count=1, stats={"d": (f"{value}0", f"{value}0", 0)})
    assert FilePruner(condition, config).may_be_true(marker)
    assert not FilePruner("d BETWEEN 1 AND 10", config).may_be_true(marker)


@pytest.mark.parametrize("odd", ["", "19.999", "true"])
def test_lines_that_are_read_fast_give_the_same_decimals(make_table, odd):
    """More lines than are sampled; one that is no decimal sends its batch to the exact reader."""
    values = [Decimal(f"{n}12345678901234567.{n % 100:02d}") for n in range(2500)]
    lines = [f'{{"n":{n},"d":{value if n % 2 else json.dumps(str(value))}}}' for n, value in enumerate(values)]
    table = make_table(declared={"d": "DECIMAL(25,2)"}, on_bad_rows="quarantine_rows")
    more = [f'{{"n":-1,"d":{odd}}}'] if odd else []
    batches = [table.stage(body="\n".join(each).encode()) for each in (lines, [*lines, *more])]
    result = table.flush(*batches)
    assert result.accepted and sum(bad.row_count for bad in result.bad_rows) == len(more)
    rows = sorted((row["n"], row["d"]) for row in table.rows(*result.files))
    assert rows == sorted([*enumerate(values)] * 2)


def test_types_have_one_spelling():
    assert spell_decimal(" numeric( 18, 2 )") == "DECIMAL(18,2)"
    assert spell_decimal("DECIMAL(5)") == "DECIMAL(5,0)"
    assert [spell_decimal(f"DECIMAL({text})") for text in ("39,2", "2,3", "0,0", "")] == [None] * 4
    assert [find_decimal(text) for text in ("DECIMAL(18, 2)", "DECIMAL", "DECIMAL(39,0)", "DECIMAL(2,3)", None)] == [
        None
    ] * 5


def test_csv_of_arrow_is_exact_too(make_table):
    sink = io.BytesIO()
    rows = pa.table({"d": pa.array([Decimal("12345678901234567890.1234")], pa.decimal128(38, 4))})
    pcsv.write_csv(rows, sink)
    table = make_table(declared={"d": "DECIMAL(38,4)"})
    result = table.flush(table.stage(body=sink.getvalue(), staging_format="csv"))
    assert table.rows(*result.files) == rows.to_pylist()
