"""``icedb fsck --deep`` on real Parquet in a directory; its reader of footers beside the writers of them."""

import json
from datetime import date, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb.cli.app import run
from icedb_engine.limits import EngineLimits
from icedb_engine.work import Unit
from icedb_engine.writing.part_files import PartEncoder, PartLayout
from icedb_log.keys import TablePaths
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.model import FileMarker, LogFile
from icedb_log.parquet.file_reads import ParquetFooterReader
from icedb_log.parquet.footer import Footer
from icedb_log.repair.fsck_findings import CODES, Counted, Finding, FsckReport
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store_settings import open_warehouse
from icedb_log.table.table_config import TableConfig
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "icedb.fsck.schema.json").read_text())


def read(path, *columns):
    """Read one file's footer."""
    store = LocalObjectStore(path.parent)
    footer = ParquetFooterReader(store).read_footer(store.head(path.name), bounds_of=frozenset(columns))
    assert isinstance(footer, Footer), footer
    return footer


def make_layout(columns, partition, **more):
    config = TableConfig(name="t", sort=columns)
    unit = Unit(
        paths=TablePaths("t", "wh/t"), config=config, schema={}, commit_id="0c", time_ms=1, engine=EngineLimits()
    )
    return PartLayout(unit, columns, (partition,), **more)


def write_types(path):
    """Every type that pyarrow writes, under names that say which."""
    types = [
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.bool_(),
        pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.binary(4),
        pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.decimal128(9, 2),
        pa.decimal256(40, 2), pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"),
        pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), pa.dictionary(pa.int32(), pa.string()), pa.null(),
    ]  # fmt: skip
    rows = pa.table({str(kind): pa.nulls(1, kind) for kind in types})
    for version in ("1.0", "2.4", "2.6"):
        try:
            pq.write_table(rows, path, version=version, coerce_timestamps=None, allow_truncated_timestamps=True)
        except (pa.ArrowException, ValueError):
            continue
        yield


TAKEN_TYPES = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), "BIGINT"),
    "bool": "BOOLEAN",
    "decimal128(9, 2)": "DECIMAL(9,2)",
    **dict.fromkeys(("float", "double"), "DOUBLE"),
    **dict.fromkeys(("string", "large_string", "dictionary<values=string, indices=int32, ordered=0>"), "VARCHAR"),
    **dict.fromkeys(("date32[day]", "date64[ms]"), "DATE"),
    **dict.fromkeys(("timestamp[s]", "timestamp[ms]", "timestamp[us]"), "TIMESTAMP"),
}


def test_types_are_those_of_imports(tmp_path):
    path = tmp_path / "f.parquet"
    versions = 0
    for _ in write_types(path):
        versions += 1
        footer = read(path)
        written = pq.read_metadata(path).schema.to_arrow_schema().names
        # Versions below 2.6 have no nanoseconds: pyarrow writes microseconds.
        taken = {**TAKEN_TYPES, **({"timestamp[ns]": "TIMESTAMP"} if versions < 3 else {})}
        assert footer.columns == {name: taken[name] for name in written if name in taken}
        assert set(footer.odd_columns) == {name for name in written if name not in taken}
    assert versions >= 2


def test_types_of_duckdb_are_those_of_imports(tmp_path):
    path = tmp_path / "f.parquet"
    values = (
        "1::tinyint a, 1::smallint b, 1::integer c, 1::bigint d, 1::hugeint e, 1::utinyint f, 1::uinteger g, 1::ubigint h,"
        "true i, 1::float j, 1::double k, 'x' l, 'x'::blob m, date '2026-01-01' n, timestamp '2026-01-01' o,"
        "timestamptz '2026-01-01' p, timestamp_ms '2026-01-01' q, timestamp_ns '2026-01-01' r, time '01:00' s,"
        "interval 1 day t, 1.5::decimal(4,1) u, uuid() v, [1] w, {'x': 1} x, 'a'::enum('a', 'b') y"
    )
    duckdb.execute(f"COPY (SELECT {values}) TO '{path}' (FORMAT parquet)")
    footer = read(path)
    assert footer.columns == {
        **dict.fromkeys("abcdfg", "BIGINT"),
        "i": "BOOLEAN",
        **dict.fromkeys("ejk", "DOUBLE"),
        **dict.fromkeys("ly", "VARCHAR"),
        "n": "DATE",
        **dict.fromkeys("oq", "TIMESTAMP"),
        "u": "DECIMAL(4,1)",
    }
    assert set(footer.odd_columns) == set("hmprstvwx")


def test_what_the_data_path_writes_is_read_back(tmp_path):
    path = tmp_path / "f.parquet"
    columns = ("n", "s", "ts", "d", "b")
    layout = make_layout(columns, "p=a", kind="merge", inputs=["wh/t/_data/p=a/1.parquet"])
    encoder = PartEncoder(path, layout)
    for first in (0, 3):
        numbers = list(range(first, first + 3))
        encoder.write_group(
            pa.table(
                {
                    "n": pa.array(numbers, pa.int64()),
                    "s": pa.array([None, "b" * 70, "a"]),
                    "ts": pa.array([datetime(2026, 1, 1 + n, 1, 2, 3, 4) for n in numbers], pa.timestamp("us")),
                    "d": pa.array([date(2026, 1, 1 + n) for n in numbers]),
                    "b": pa.array([True, None, False]),
                }
            )
        )
    encoder.close(layout.make_footer(0))
    footer = read(path, *columns)
    assert footer.row_count == encoder.row_count == 6
    assert (footer.origin.kind, footer.origin.table, footer.origin.partition) == ("merge", "t", "p=a")
    assert (footer.origin.commit_id, footer.origin.inputs) == ("0c", ("wh/t/_data/p=a/1.parquet",))
    assert {name: bounds.to_stats() for name, bounds in footer.bounds.items()} == dict(encoder.stats.finish())


@pytest.fixture
def warehouse(tmp_path, monkeypatch):
    monkeypatch.setenv("ICEDB_STORE", f"file://{tmp_path}")
    parquet = ParquetWarehouse(open_warehouse(f"file://{tmp_path}"))
    parquet.create("events", "d=day(ts)", sort=("event",))
    for day in (1, 2, 3):
        rows = f"select timestamp '2026-01-0{day}' as ts, 'e' || x as event, x::double as amount from range(50) t(x)"
        parquet.commit("events", rows, partition=f"d=2026-01-0{day}")
    return parquet


def fsck(capsys, *arguments):
    """Run the command with -o json; return its exit code, the codes found without notes, and the document."""
    code = run(["fsck", *arguments, "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    require_schema(document, SCHEMA)
    found = {each["code"] for table in document["tables"] for each in table["counts"] if each["severity"] != "note"}
    return code, found - {"fence-missing"}, document  # the warehouse of tests commits without a fence


def require_schema(value, schema):
    """As much of JSON Schema as the report's one uses."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if "const" in schema:
        assert value == schema["const"]
    if "enum" in schema:
        assert value in schema["enum"]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    if "type" in schema:
        allowed = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        assert any(type(value) is kinds[kind] for kind in allowed), (value, schema)
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= value.keys()
        for name, part in value.items():
            require_schema(part, schema.get("properties", {}).get(name) or schema["additionalProperties"])
    if isinstance(value, list):
        for item in value:
            require_schema(item, schema["items"])


def test_the_schema_knows_every_code_and_field():
    assert SCHEMA["$defs"]["finding"]["properties"]["code"]["enum"] == list(CODES)
    assert SCHEMA["$defs"]["count"]["properties"]["code"]["enum"] == list(CODES)
    report = FsckReport(
        "t", True, (Finding("seal", "note", "", "x", 1),), (Counted("seal", "note", 1),), {"objects": 1}
    )
    require_schema({"version": 1, "sound": True, "tables": [report.to_json()]}, SCHEMA)


def data_file(parquet, day):
    store, paths = parquet.warehouse.store, parquet.warehouse.table("events").paths
    (info,) = store.list_page(f"{paths.data_prefix}d=2026-01-0{day}/").objects
    return info.key


def test_a_sound_table(warehouse, capsys):
    code, found, document = fsck(capsys, "events", "--deep")
    assert (code, found) == (0, set())
    assert document["tables"][0]["figures"]["footers"] == 3
    assert fsck(capsys, "--sample", "2")[2]["tables"][0]["figures"]["footers"] == 2


def cut(parquet):
    key = data_file(parquet, 1)
    body = parquet.warehouse.store.get(key).body
    parquet.warehouse.store.put(key, body[:-100] + bytes(100))


def other_rows(parquet):
    edit_marker(parquet, b'"n":50', b'"n":49')


def edit_marker(parquet, old, new):
    store, paths = parquet.warehouse.store, parquet.warehouse.table("events").paths
    info = store.list_page(paths.log_prefix).objects[0]
    body = store.get(info.key).body
    assert old in body
    changed = body.replace(old, new)
    store.put(info.key, encode_log_file(decode_log_file(info.key, changed)))


def narrow(parquet):
    edit_marker(parquet, b'"n":50', b'"n":50,"s":{"event":["e5","e6",0]}')


def other_type(parquet):
    edit_marker(parquet, b'"amount":"DOUBLE"', b'"price":"DOUBLE"')
    store, paths = parquet.warehouse.store, parquet.warehouse.table("events").paths
    for info in store.list_page(paths.log_prefix).objects[1:]:
        body = store.get(info.key).body.replace(b'"amount":"DOUBLE"', b'"amount":"BIGINT"')
        store.put(info.key, body)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (cut, "footer-unreadable"),
        (other_rows, "row-count-mismatch"),
        (narrow, "statistics-mismatch"),
        (other_type, "type-mismatch"),
    ],
)
def test_what_only_footers_tell(warehouse, capsys, damage, code):
    damage(warehouse)
    assert fsck(capsys, "events")[:2] == (0, set())
    assert fsck(capsys, "events", "--deep")[:2] == (1, {code})


def test_sixty_flipped_bytes_are_found_before_a_query_finds_them(warehouse, capsys, tmp_path):
    assert fsck(capsys, "events", "--pages")[:2] == (0, set())
    path = tmp_path / "ours.parquet"
    rows = pa.table(
        {
            "ts": pa.array([datetime(2026, 1, 4)] * 5000, pa.timestamp("us")),
            "event": [f"e{n * 7919}" for n in range(5000)],
            "amount": pa.array(range(5000), pa.float64()),
        }
    )
    encoder = PartEncoder(path, make_layout((), "d=2026-01-04"))
    encoder.write_group(rows)
    encoder.close({})
    body = bytearray(path.read_bytes())
    for place in range(5000, 5060):
        body[place] ^= 255
    store, paths = warehouse.warehouse.store, warehouse.warehouse.table("events").paths
    key = paths.data_key(partition="d=2026-01-04", file_id="ours")
    store.put(key, bytes(body))
    log = LogFile(
        time_ms=warehouse.clock.now_ms(),
        commit_id="0a",
        schema={"ts": "TIMESTAMP", "event": "VARCHAR", "amount": "DOUBLE"},
        markers=(FileMarker(key, len(body), warehouse.clock.now_ms(), row_count=5000),),
    )
    store.put(paths.log_key(time_ms=log.time_ms, commit_id="0a", is_merged=False), encode_log_file(log))
    assert fsck(capsys, "events", "--deep")[:2] == (0, set())
    code, found, document = fsck(capsys, "events", "--deep", "--pages")
    assert (code, found) == (1, {"page-damaged"})
    assert document["tables"][0]["figures"]["pages"] > 9
    (finding,) = [each for each in document["tables"][0]["findings"] if each["code"] == "page-damaged"]
    assert finding["key"] == key


def test_what_a_person_reads(warehouse, capsys):
    key = data_file(warehouse, 2)
    warehouse.warehouse.store.delete([key])
    warehouse.damage("events")
    assert run(["fsck", "events"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("events: damaged (3 data files, 150 rows")
    assert "error log-malformed: a log file cannot be read" in shown
    assert "not-checked" in shown  # what the damaged log file says of the missing file is unknown
    assert "icedb rebuild events --dry-run" in shown


def test_no_table_and_wrong_use(warehouse, capsys):
    assert run(["fsck", "event"]) == 3
    assert "did you mean events" in capsys.readouterr().err
    assert run(["fsck", "events", "--sample", "0"]) == 2
