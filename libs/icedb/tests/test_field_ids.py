"""Files with field ids of another writer (N6): taken out of copies, refused in place, written by nothing of ours."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb import connect
from icedb_engine.writing.parquet_join import remove_field_ids
from icedb_log.imports.import_sources import list_sources, parse_pattern
from icedb_log.imports.imports import ImportOptions, import_files
from icedb_log.log.fold import fold
from icedb_log.parquet.field_ids import ARROW_KEY, keeps_field_ids
from icedb_log.parquet.footer import parse_footer
from icedb_log.store.object_store import ObjectInfo
from icedb_log.store_settings import StoreSettings

IDS = {"id": 2, "user": 1, "amount": 7}


def numbered(ids, rows=3, first=0):
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), metadata={"PARQUET:field_id": str(ids["id"])}),
            pa.field("user", pa.string(), metadata={"PARQUET:field_id": str(ids["user"])}),
            pa.field("amount", pa.float64(), metadata={"PARQUET:field_id": str(ids["amount"])}),
        ]
    )
    columns = {
        "id": list(range(first, first + rows)),
        "user": [f"u{n}" for n in range(rows)],
        "amount": [n / 2 for n in range(rows)],
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), sink, row_group_size=2, write_page_index=True)
    return sink.getvalue()


def footer_of(body):
    length = int.from_bytes(body[-8:-4], "little")
    return body[-8 - length : -8]


def has_field_ids(body):
    return parse_footer(footer_of(body), ObjectInfo("f", "", len(body), 0)).has_field_ids


@pytest.fixture
def lake(tmp_path, cli_env):
    with connect(tmp_path / "lake") as lake:
        yield lake


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def run_import(lake, table, pattern, **options):
    found = list_sources(
        [parse_pattern(f"file://{pattern}")],
        open_store=lambda url: StoreSettings(url).open().store,
        allowed=["file:///"],
    )
    return import_files(table.open(), lake.engine.importer, found, options=ImportOptions(**options))


def bodies(table):
    opened = table.open()
    return [opened.store.get(marker.path).body for marker in fold(opened.read_log()).live]


def require_none(table):
    found = bodies(table)
    assert found
    for body in found:
        assert not has_field_ids(body)
        assert all(not field.metadata for field in pq.read_schema(io.BytesIO(body)))
    return found


def rows_of(lake):
    return sorted(lake.query("select id, user, amount from events").fetchall())


@pytest.mark.parametrize("sort", [(), ("id",)])
def test_n6_a_copy_has_no_field_ids_and_all_rows_and_neither_has_what_comes_of_it(lake, sources, sort):
    table = lake.create_table("events", sort=sort)
    for number in range(3):
        (sources / f"{number}.parquet").write_bytes(numbered(IDS, first=10 * number))
    result = run_import(lake, table, f"{sources}/*.parquet")
    assert (result.file_count, result.refused) == (3, [])
    rows = rows_of(lake)
    assert len(rows) == 9 and rows[4] == (11, "u1", 0.5)
    for body in require_none(table):
        found = pq.ParquetFile(io.BytesIO(body))
        assert (found.num_row_groups, found.metadata.row_group(1).column(0).statistics.max) in [
            (2, n) for n in (2, 12, 22)
        ]
        assert found.read().num_rows == 3
    assert all(has_field_ids(path.read_bytes()) for path in sources.iterdir())
    table.merge(full=True)
    assert rows_of(lake) == rows
    assert len(require_none(table)) == 1
    table.rewrite("select * from _rows")
    require_none(table)
    table.delete("id = 11")
    require_none(table)
    assert rows_of(lake) == [row for row in rows if row[0] != 11]


def test_n6_ids_that_only_arrow_keeps_are_taken_out_as_well(lake, sources):
    """Readers that are made on Arrow restore them from there."""
    body = numbered(IDS)
    stripped = sources / "x.parquet"
    stripped.write_bytes(body)
    schema = pq.read_metadata(io.BytesIO(body)).metadata[b"ARROW:schema"]
    remove_field_ids(stripped)
    assert not has_field_ids(stripped.read_bytes())
    plain = io.BytesIO()
    table = pq.read_table(stripped).replace_schema_metadata(None)
    with pq.ParquetWriter(plain, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"ARROW:schema": schema.decode()})
    assert all(field.metadata for field in pq.read_schema(io.BytesIO(plain.getvalue())))
    assert has_field_ids(plain.getvalue())
    stripped.write_bytes(plain.getvalue())
    table = lake.create_table("events")
    run_import(lake, table, str(stripped))
    require_none(table)
    assert len(rows_of(lake)) == 3


def test_n6_taking_ids_out_changes_nothing_else(sources):
    path = sources / "x.parquet"
    path.write_bytes(numbered(IDS))
    before = pq.read_metadata(path).to_dict()
    body = path.read_bytes()
    remove_field_ids(path)
    after = pq.read_metadata(path).to_dict()
    assert {**after, "serialized_size": 0} == {**before, "serialized_size": 0}
    assert body.startswith(path.read_bytes()[: -len(footer_of(path.read_bytes())) - 8])
    again = path.read_bytes()
    remove_field_ids(path)
    assert path.read_bytes() == again


def test_n6_a_file_in_place_that_has_ids_is_refused(lake):
    table = lake.create_table("events")
    opened = table.open()
    for name, ids in (("numbered", IDS), ("plain", None)):
        body = numbered(IDS) if ids else without(numbered(IDS))
        opened.store.put(opened.paths.data_key(partition="", file_id=name), body)
    folder = lake.warehouse.store.uri(opened.paths.data_prefix.rstrip("/"))
    result = run_import(lake, table, f"{folder}/*.parquet", mode="in_place")
    assert result.file_count == 1
    (refused,) = result.refused
    assert refused.url.endswith("/numbered.parquet")
    assert "field ids" in refused.reason and "without --in-place" in refused.reason
    require_none(table)


def without(body):
    sink = io.BytesIO()
    table = pq.read_table(io.BytesIO(body))
    pq.write_table(table.cast(pa.schema([field.remove_metadata() for field in table.schema])), sink)
    return sink.getvalue()


def test_n6_batches_with_ids_become_files_without(lake):
    table = lake.create_table("events")
    table.append(numbered(IDS), data_format="parquet")
    table.append(pq.read_table(io.BytesIO(numbered(IDS, first=5))))
    require_none(table)
    assert len(rows_of(lake)) == 6


@pytest.mark.parametrize("text", ["no base64", "x", "\ufffd"])
def test_a_schema_of_arrow_that_is_damaged_says_nothing_of_field_ids(text):
    assert not keeps_field_ids({ARROW_KEY: text})
