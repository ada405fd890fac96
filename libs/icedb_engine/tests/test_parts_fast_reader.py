"""The fast reader of lines gives what the exact one gives, or declines; nobody can tell which one read a batch."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_engine.arrow_types import REPEATED_TEXT
from icedb_engine.reading import frame
from icedb_engine.reading.frame import UnitSections
from icedb_engine.reading.read_fast import read_counts, read_days, read_moments
from icedb_engine.unit_engine import UnitEngine
from icedb_engine.writing import part_files
from icedb_sim.tables.profiles import SHARED_FIXTURES

SCHEMA = {"v": "VARCHAR", "i": "BIGINT", "f": "DOUBLE", "b": "BOOLEAN", "t": "TIMESTAMP", "d": "DATE"}
MOMENTS = (
    "2023-06-07", "2023-06-07T10:11", "2023-06-07 10:11:12", "2023-06-07T10:11:12.5Z", "2023-06-07T10:11:12.123456Z",
    "2023-06-07T10:11:12.1234567Z", "2023-06-07T10:11:12+02:00", "2023-06-07T10:11:12-0230", "2023-06-07T10:11:12+02",
    "2023-06-07T10:11Z", "2023-06-07T10Z", "2023-06-07T24:00:00Z", "2023-06-07T23:59:60Z", "2023-02-29T00:00:00Z",
    "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-01:00", "0000-01-01", "infinity",
    "2023-06-07T10:11:12 +02:00", "2023-06-07t10:11:12z", "2023-6-7", " 2023-06-07", "２023-06-07", "2023-13-01",
)  # fmt: skip
NUMBERS = (
    "0", "-0", "1", "-7", "1.0", "1e3", "-0.0", "0.1", "1.7976931348623157e308", "1e999", "-1e999", "1e-400", "NaN",
    "Infinity", "-Infinity", "9007199254740992", "9007199254740993", "-9007199254740993", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "123456789012345678901234567890", "1686132000000",
    "253402300799999", "253402300800000", "01", "+1", ".5", "1.", "0x10", "1_0", "2.2250738585072011e-308",
)  # fmt: skip
TEXTS = (
    '""', '"x"', '"quo\\"te\\\\ \\u00e9 \\n"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\udc00x"', '"\\u0000"', '"\\/"',
    '"\\x"', '"tab\t"', '"true"', '"1"', '"é😀"', '"a',
)  # fmt: skip
NESTED = (
    "{}", "[]", '{"a": 1, "b": [1.0, 1e3, "\\u00e9", null]}', '{"a":{"a":1,"a":2}}', "[1, 2", '{"a":NaN}', "[[[[]]]]",
    "[1,]", '{"x": "a\\"}"}', "[9223372036854775808, 1.10]",
)  # fmt: skip
OTHERS = ("true", "false", "null", "True", "nul")
GOOD = {
    "v": ('"x"', '"é\\n"', "null"), "i": ("1", "-7", "9007199254740993"), "f": ("0.5", "1", "-2.5e3"), "b": ("true", "false"),
    "t": ('"2023-06-07T10:11:12.123Z"', '"2023-06-07T10:11:12.124Z"'), "d": ('"2023-06-07"', '"2024-02-29"'),
    "n": ("1", "2"), "m": ("1.5", "2.5"), "s": ('"a"', '"b"'), "o": ('{"a":1}', '{"b": "x"}'), "z": ("null",),
}  # fmt: skip
VALUES = st.sampled_from(
    [*(json.dumps(text, ensure_ascii=False) for text in MOMENTS), *NUMBERS, *TEXTS, *NESTED, *OTHERS]
)
SHAPES = (
    "{%s}\n", "{%s}\n", "{%s}\n", "{%s}\n", " {%s}\n", "{%s} \r\n", "{%s}\r\n", "{%s}\n\n", "{%s}{}\n", "{%s}\n\ufeff", "{%s},\n",
    "[{%s}]\n", "{%s}\n}\n", "{%s\n", '{%s,\n"q":1}\n',
)  # fmt: skip
KEYS = st.sampled_from(["v", "i", "f", "b", "t", "d", "n", "m", "s", "o", "z", "V", "rare", "day", "\\u0076", ""])


@st.composite
def bodies(draw):
    """Return a batch of mostly good lines, with a few odd values, keys and line endings."""
    columns = draw(st.lists(st.sampled_from(sorted(GOOD)), unique=True))
    fields = [
        [f'"{name}":{draw(st.sampled_from(GOOD[name]))}' for name in columns] for _ in range(draw(st.integers(1, 5)))
    ]
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        line = draw(st.sampled_from(fields))
        key = draw(KEYS)
        if draw(st.booleans()):
            line[:] = [field for field in line if not field.startswith(f'"{key}":')]
        line.append(f'"{key}":{draw(VALUES)}')
    shapes = [draw(st.sampled_from(SHAPES)) if draw(st.integers(0, 9)) == 0 else "{%s}\n" for _ in fields]
    text = "".join(shape.replace("%s", ",".join(line)) for shape, line in zip(shapes, fields, strict=True))
    return text.encode() if draw(st.integers(0, 30)) else text.encode().replace(b"x", b"\xff")


@pytest.fixture
def fast_batches(monkeypatch):
    """Let units of any size try the fast reader; return the list of how many batches it took, each time."""
    monkeypatch.setattr(frame, "SAMPLE_LINES", 0)
    taken = []
    read_fast = UnitSections.read_fast

    def spy(self):
        read_fast(self)
        taken.append(len(self.fast))

    monkeypatch.setattr(UnitSections, "read_fast", spy)
    return taken


def outcome(table, batches, schema):
    """Return all that a flush made, but for what is new each time."""
    result = table.flush(*batches, schema=schema)
    rows = sorted(repr(sorted(row.items())) for row in table.rows(*result.files))
    types = (
        [str(field) for field in sorted(map(str, table.parquet(result.files[0]).schema_arrow))] if result.files else []
    )
    return rows, types, dict(result.new_kinds), result.accepted, result.rejected, result.row_count


@pytest.mark.parametrize("policies", [{}, {"evolution": "strict"}, {"on_bad_rows": "quarantine_rows"}], ids=str)
@given(texts=st.lists(bodies(), min_size=1, max_size=4), knows=st.booleans())
@settings(max_examples=15, deadline=None, suppress_health_check=SHARED_FIXTURES)
def test_both_readers_end_the_same_way(make_table, fast_batches, monkeypatch, policies, texts, knows):
    table = make_table(sort=("i",), declared={"t": "TIMESTAMP", "d": "DATE"}, **policies)
    schema = SCHEMA if knows else {}
    batches = [table.stage(body=text) for text in texts]
    found = outcome(table, batches, schema)
    with monkeypatch.context() as patch:
        patch.setattr(UnitSections, "read_fast", lambda _: None)
        assert found == outcome(table, batches, schema)


LAX = {
    "digits are lost in a DOUBLE": [b'{"f":0.5}\n{"f":9007199254740993}\n'],
    "digits are lost below zero": [b'{"f":0.5}\n{"f":-9007199254740993}\n'],
    "NaN": [b'{"f":0.5}\n{"f":NaN}\n{"f":-Infinity}\n'],
    "a line of two events, an event of two lines": [b'{"i":1}{"i":2}\n{"i":\n3}\n'],
    "an event of two lines alone": [b'{"i":\n3}\n'],
    "only integers where the sample has a fraction": [b'{"x":0.5}\n{"x":1}\n{\n', b'{"x":1}\n{"x":2}\n'],
    "1.0 where the sample has a fraction": [b'{"x":0.5}\n{"x":1}\n{\n', b'{"x":1.0}\n{"x":2}\n'],
    "a key twice beside an object": [b'{"o":{"a":1},"i":1,"i":2}\n', b'{"o":{"a":1},"i":1}\n'],
    "an object's key twice": [b'{"o":{"a":1},"o":{}}\n'],
    "a new key beside an object": [b'{"o":{"a":1}}\n{"o":[]}\n{"o":{"a":1},"rare":1}\n'],
    "a new key after the sample": [b'{"i":1}\n{"i":2}\n{"i":3,"rare":1}\n'],
    "another type after the sample": [b'{"x":1}\n{"x":2}\n{"x":0.5}\n', b'{"x":1}\n{"x":2}\n{"x":"a"}\n'],
    "an object after the sample": [b'{"v":"a"}\n{"v":"b"}\n{"v":{"a": 1.10}}\n', b'{"o":{}}\n{"o":"b"}\n{"o":1}\n'],
    "another case after the sample": [b'{"v":"a"}\n{"v":"b"}\n{"V":"c"}\n', b'{"z":null}\n', b'{"Z":1}\n{"Z":1}\n{"y":1}\n'],
    "a moment after a day": [b'{"t":"2023-06-07"}\n{"t":"2023-06-07T10:00:00Z"}\n{"t":"2023-06-07T10:00:00z"}\n'],
    "a moment of the year 0": [b'{"t":"0001-01-01T00:00:00Z"}\n{"t":"0001-01-01T00:00:00+01:00"}\n'],
    "a fraction after integers of which it would take digits": [b'{"i":9007199254740993}\n{"i":1}\n', b'{"i":0.5}\n'],
    "milliseconds after text": [b'{"t":"2023-06-07"}\n{"t":"2023-06-07"}\n{"t":1}\n', b'{"t":1}\n{"t":2}\n'],
    "milliseconds beyond the years": [b'{"t":1}\n', b'{"t":253402300800000}\n'],
    "text that is escaped": [b'{"v":"\\u0000\\ud83d\\ude00\\/"}\n{"v":"\\ud800"}\n'],
    "blank lines and a byte order mark": [b'\xef\xbb\xbf{"i":1}\r\n\n \n{"i":2}'],
}  # fmt: skip


@pytest.mark.parametrize("policies", [{}, {"on_bad_rows": "quarantine_rows"}], ids=["batch", "rows"])
@pytest.mark.parametrize("texts", LAX.values(), ids=LAX)
@pytest.mark.usefixtures("fast_batches")
def test_where_arrow_reads_otherwise_the_fast_reader_declines(make_table, monkeypatch, policies, texts):
    table = make_table(declared={"t": "TIMESTAMP", "d": "DATE"}, **policies)
    batches = [table.stage(body=text) for text in [*texts, b'{"i":1}\n']]
    found = outcome(table, batches, SCHEMA)
    monkeypatch.setattr(UnitSections, "read_fast", lambda _: None)
    assert found == outcome(table, batches, SCHEMA)


def test_good_batches_are_read_fast_and_a_bad_one_does_not_slow_the_others(make_table, fast_batches):
    table = make_table("day=day(t)", declared={"d": "DATE"})
    row = {
        "t": "2023-06-07T10:00:00.000Z",
        "d": "2023-06-07",
        "n": 1,
        "m": 0.5,
        "o": {"a": [1, "é"]},
        "z": None,
        "b": True,
    }
    good = [table.stage(row, {**row, "n": None, "o": "text"}) for _ in range(3)]
    bad = table.stage(row, {**row, "t": "never"})
    result = table.flush(*good, bad)
    assert fast_batches == [3]
    assert result.accepted == tuple(batch.batch_id for batch in good)
    assert [row["o"] for row in table.rows(*result.files)] == ['{"a":[1,"é"]}', "text"] * 3


@pytest.mark.parametrize("value", MOMENTS)
def test_a_moment_is_what_the_exact_reader_makes_of_it(make_table, value):
    table = make_table(declared={"t": "TIMESTAMP", "d": "DATE"})
    for read, column in ((read_moments, "t"), (read_days, "d")):
        fast = read(pa.array([None, value, value]))
        result = table.flush(table.stage({column: value}))
        exact = [row[column] for row in table.rows(*result.files)]
        assert fast is None or fast.to_pylist() == [None, *exact, *exact]


def test_common_shapes_of_moments_are_read_fast():
    mixed = pa.array(["2023-06-07T10:00:00Z", None, "2023-06-07T10:00:00.123456Z", "2023-06-07 10:00:00"])
    assert [str(value) for value in read_moments(mixed).to_pylist()] == [
        "2023-06-07 10:00:00", "None", "2023-06-07 10:00:00.123456", "2023-06-07 10:00:00",
    ]  # fmt: skip
    assert read_moments(pa.array([None, None], pa.string())).null_count == 2
    assert read_moments(pa.array(["2023-06-07T10:00:00Z", "2023-06-07T10:00:0xZ"])) is None
    assert read_days(pa.array([None], pa.string())).to_pylist() == [None]
    assert read_counts(pa.array([10**17]), "epoch_ms") is None


OWN_NAMES = ("batch", "no", "line", "c0", "p0", "fast", "typed", "partitions", "row_count", "event", "f0", "filename")


def test_columns_are_called_as_users_like_also_as_the_engine_calls_its_own(make_table, fast_batches):
    """A column called batch took the place of the numbers that say which batch a row is of: rows went lost or came twice."""
    table = make_table("batch", sort=("no",))
    sent = [[dict.fromkeys(OWN_NAMES, f"{at}") | {"no": 10 * at + row} for row in range(3)] for at in range(4)]
    batches = [table.stage(body="".join(json.dumps(row) + "\n" for row in rows).encode()) for rows in sent]
    result = table.flush(*batches)
    assert fast_batches == [4]
    assert result.row_count == 12
    found = sorted(table.rows(*result.files), key=lambda row: row["no"])
    assert [{name: row[name] for name in OWN_NAMES} for row in found] == [row for rows in sent for row in rows]


def test_rows_of_an_arrow_table_are_sorted_outside_of_the_engine(make_table, fast_batches, monkeypatch):
    """Copied into the engine and out of it they took twice the time, and disk where they are more than its memory."""
    streamed = []

    def spying(stream):
        def spy(self, query, *, rows_per_chunk):
            reader = stream(self, query, rows_per_chunk=rows_per_chunk)
            streamed.append(reader.schema.names)
            return reader

        return spy

    for kind in (UnitEngine, *UnitEngine.__subclasses__()):
        monkeypatch.setattr(kind, "stream", spying(kind.stream))
    monkeypatch.setattr(frame, "CHUNK_BYTES", 1)  # each row is taken alone
    table = make_table("day=day(t)", sort=("v", "n"))
    batches = []
    for at in range(4):
        rows = [
            {"t": f"2023-06-0{1 + (at + place) % 3}T10:00:00Z", "v": value, "n": 4 * place + at, "o": {"a": at}}
            for place, value in enumerate(["b", None, "a", "é", "a"])
        ]
        batches.append(table.stage(*(rows if at != 2 else [*rows, {**rows[0], "t": "never"}])))
    found = table.flush(*batches)
    assert (fast_batches, streamed) == ([3], [["__ordinal", "place"]])
    assert found.accepted == tuple(batch.batch_id for batch in batches if batch is not batches[2])
    monkeypatch.setattr(UnitSections, "read_fast", lambda _: None)
    exact = table.flush(*batches)
    assert len(streamed[1]) == 5
    assert [table.rows(file) for file in found.files] == [table.rows(file) for file in exact.files]
    texts = [[row["v"] for row in table.rows(file)] for file in found.files]
    assert texts == [sorted(each, key=lambda text: (text is None, text)) for each in texts]
    assert sorted(map(len, texts)) == [4, 5, 6]


def spy_on_row_groups(monkeypatch):
    """Return the types of each row group that is encoded from now on, by column."""
    encoded = []
    encode = part_files.encode_rows

    def spy(rows):
        encoded.append(dict(zip(rows.schema.names, rows.schema.types, strict=True)))
        return encode(rows)

    monkeypatch.setattr(part_files, "encode_rows", spy)
    return encoded


def test_text_of_few_values_is_taken_and_encoded_as_a_dictionary(make_table, fast_batches, monkeypatch):
    """To sort a million rows of 30 columns took 0.8 s as text, 0.4 s as dictionaries; to encode them 0.75, 0.6 s."""
    monkeypatch.setattr(frame, "SAMPLED_VALUES", 50)
    monkeypatch.setattr(frame, "FEW_VALUES", 4)
    monkeypatch.setattr(frame, "MAX_DICTIONARY_VALUES", 5)
    encoded = spy_on_row_groups(monkeypatch)
    table = make_table("day=day(t)", sort=("few", "own"))
    rows = [
        {
            "t": f"2023-06-0{1 + n % 2}T10:00:00Z",
            "few": ["é", None, "a"][n % 3],
            "own": f"u{n:03}",
            "late": "x" if n < 60 else f"x{n % 9}",
            "n": n % 2,
        }
        for n in range(120)
    ]
    batch = table.stage(*rows)
    found = table.flush(batch)
    assert fast_batches == [1]
    kinds = {name: {each[name] for each in encoded} for name in rows[0]}
    assert kinds["few"] == {REPEATED_TEXT}
    assert kinds["own"] == kinds["late"] == {pa.string()}, "the sample has many values; all values are many"
    assert kinds["n"] == {pa.int64()}
    plain = [{**row, "t": row["t"].replace("Z", "")} for row in rows]
    ordered = sorted(plain, key=lambda row: (row["t"], row["few"] is None, row["few"] or "", row["own"]))
    stored = [row for file in found.files for row in table.rows(file)]
    shown = [{**row, "t": row["t"].isoformat()} for row in stored]
    assert [{name: row[name] for name in rows[0]} for row in shown] == ordered


@pytest.mark.parametrize(
    ("memory_bytes", "columns"), [(2**20, ["__ordinal", "place"]), (4000, ["__ordinal", "n", "t"])]
)
def test_rows_that_do_not_fit_are_sorted_by_the_engine(make_table, fast_batches, monkeypatch, memory_bytes, columns):
    """It spills; in memory they would be there twice."""
    table = make_table("day=day(t)", sort=("n",))
    batch = table.stage(*({"t": "2023-06-01T10:00:00Z", "n": -n} for n in range(200)))
    streamed = []
    stream = UnitEngine.stream

    def spy(self, query, *, rows_per_chunk):
        reader = stream(self, query, rows_per_chunk=rows_per_chunk)
        streamed.append(sorted(reader.schema.names))
        return reader

    init = frame.EventFrame.__init__
    monkeypatch.setattr(UnitEngine, "stream", spy)
    monkeypatch.setattr(
        frame.EventFrame,
        "__init__",
        lambda self, *args, **options: init(self, *args, **{**options, "sorted_bytes": memory_bytes // 2}),
    )
    monkeypatch.setattr("icedb_engine.reading.unit.SMALL_UNIT_BYTES", 0)
    found = table.flush(batch)
    assert (fast_batches, streamed) == ([1], [columns])
    assert [row["n"] for file in found.files for row in table.rows(file)] == list(range(-199, 1))
