"""Data files that engines would read wrongly are in no state that is published; what is published is read rightly."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_engines import Engines
from icedb import connect
from icedb_iceberg import UnfitFiles, find_held_back
from icedb_log.holds.tags import create_tag
from icedb_log.imports.import_sources import list_sources, parse_pattern
from icedb_log.imports.imports import ImportOptions, import_files
from icedb_log.log.codec import encode_log_file
from icedb_log.log.fold import fold
from icedb_log.model import FileMarker, LogFile
from icedb_log.serving.status import read_status
from icedb_log.store_settings import StoreSettings
from pyiceberg.table import StaticTable

REWRITE = "select * from _rows"


@pytest.fixture
def lake(tmp_path):
    with connect(tmp_path / "lake") as lake:
        yield lake


@pytest.fixture(scope="module")
def engines():
    return Engines()


def require_rows(engines, uri, *rows):
    wanted = sorted(map(sorted, (row.items() for row in rows)))
    for name, found in engines.newest(uri):
        assert sorted(map(sorted, found.elements())) == wanted, name
    table = StaticTable.from_metadata(uri)
    for snapshot in table.snapshots():
        for _ in engines.of_snapshot(uri, table, snapshot):
            pass  # each state that is left can be read


def make_live(table, body, *, schema=None):
    """Make a file live as another writer has done it."""
    key = table.paths.data_key(partition="", file_id="old")
    table.store.put(key, body)
    now_ms = table.clock.now_ms()
    schema = schema or dict(table.config.declared)
    log = LogFile(now_ms, schema, commit_id="ab", markers=(FileMarker(key, len(body), now_ms),))
    table.store.put(table.paths.log_key(time_ms=now_ms, commit_id="ab", is_merged=False), encode_log_file(log))


def numbered(**ids):
    """Return a file whose columns have these field ids."""
    kinds = {"a": pa.int64(), "b": pa.int64(), "c": pa.string()}
    schema = pa.schema([pa.field(name, kinds[name], metadata={"PARQUET:field_id": str(n)}) for name, n in ids.items()])
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1], "b": [20], "c": ["x"]}, schema=schema), sink)
    return sink.getvalue()


def import_file(lake, table, path, *, mode="copy"):
    sources = list_sources(
        [parse_pattern(f"file://{path}")], open_store=lambda url: StoreSettings(url).open().store, allowed=["file:///"]
    )
    return import_files(table.open(), lake.engine.importer, sources, options=ImportOptions(mode=mode))


def test_an_imported_file_with_permuted_ids_is_read_rightly(lake, engines, tmp_path):
    events = lake.create_table("events", declared={"a": "BIGINT", "b": "BIGINT", "c": "VARCHAR"})
    (tmp_path / "x.parquet").write_bytes(numbered(a=2, b=1, c=3))
    assert import_file(lake, events, tmp_path / "x.parquet").file_count == 1
    require_rows(engines, events.publish(), {"a": 1, "b": 20, "c": "x"})


def test_a_file_with_ids_that_is_live_already_keeps_the_table_from_being_published(lake, engines):
    events = lake.create_table("events", declared={"a": "BIGINT", "b": "BIGINT", "c": "VARCHAR"})
    make_live(events.open(), numbered(a=2, b=1, c=3))
    with pytest.raises(
        UnfitFiles, match=r"1 live data files .*old\.parquet: its columns have field ids.*icedb rewrite events --all"
    ):
        events.publish()
    events.rewrite(REWRITE)
    require_rows(engines, events.publish(), {"a": 1, "b": 20, "c": "x"})


def test_a_file_with_a_column_in_other_case_keeps_the_table_from_being_published(lake):
    """Our readers and DuckDB find the column, Polars read nulls."""
    events = lake.create_table("events", declared={"Foo": "BIGINT"})
    sink = io.BytesIO()
    pq.write_table(pa.table({"foo": [1]}), sink)
    make_live(events.open(), sink.getvalue())
    with pytest.raises(UnfitFiles, match="column 'Foo' is 'foo' in it, and only its writer"):
        events.publish()


@pytest.mark.parametrize("was_published", [False, True])
def test_narrow_files_of_a_widened_column_hold_publications_back(lake, engines, was_published):
    events = lake.create_table("events")
    events.append([{"n": 1}])
    before = events.publish() if was_published else ""
    events.append([{"n": 2.5}])
    if was_published:
        assert events.publish() == before
        assert "column 'n' is BIGINT in it and DOUBLE in the table" in find_held_back(events.open())
        require_rows(engines, before, {"n": 1})
    else:
        with pytest.raises(UnfitFiles, match="column 'n' is BIGINT in it and DOUBLE in the table"):
            events.publish()
    events.rewrite(REWRITE)
    events.append([{"n": 4}])
    require_rows(engines, events.publish(), {"n": 1.0}, {"n": 2.5}, {"n": 4.0})
    assert not find_held_back(events.open())


def test_a_merge_that_takes_the_narrow_files_mends_the_table_as_well(lake, engines):
    events = lake.create_table("events")
    for n in (1, 2, 2.5):
        events.append([{"n": n}])
    events.merge(full=True)
    assert len(fold(events.open().read_log()).live) == 1
    require_rows(engines, events.publish(), {"n": 1.0}, {"n": 2.0}, {"n": 2.5})


@pytest.mark.parametrize("was_published", [False, True])
def test_merges_write_narrow_files_anew_first_alone_and_whatever_their_size(lake, engines, was_published):
    events = lake.create_table("events", partition=["p"], target_file_bytes=1024, merge_fan_in=100)
    rows = [{"p": p, "n": n, "x": "x" * 2000} for n, p in enumerate("aab")]
    events.append(rows[:1])
    events.append(rows[1:])
    if was_published:
        events.publish()
    events.append([{"p": "c", "n": 2.5, "x": ""}])
    if was_published:
        events.publish()
    else:
        assert not events.merge().commit_count  # nobody asks for it as an Iceberg table
        with pytest.raises(UnfitFiles, match="Merges rewrite those that are older than the wider type"):
            events.publish()
    held_back = read_status(events.open()).held_back
    assert "4 live data files are older than the wider type of a column, 'n' (DOUBLE)" in held_back
    done = events.merge()
    assert (done.input_count, done.row_count) == (4, 4)  # that of the widening was begun before it, too
    assert not read_status(events.open()).held_back
    assert not events.merge().commit_count
    uri = events.publish()
    require_rows(engines, uri, *({**row, "n": float(row["n"])} for row in rows), {"p": "c", "n": 2.5, "x": ""})
    assert not read_status(events.open()).held_back


@pytest.mark.parametrize("mode", ["copy", "in_place"])
def test_merges_write_narrow_imports_anew_first_alone_and_whatever_their_size(lake, engines, tmp_path, mode):
    events = lake.create_table("events", target_file_bytes=1024, merge_fan_in=100)
    place = events.open()
    path = tmp_path / "x.parquet"
    if mode == "in_place":
        path = Path(place.store.uri(place.paths.data_key(partition="", file_id="of_others")))
        path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": pa.array([7], pa.int64()), "x": ["x" * 2000]}), path)
    assert import_file(lake, events, path, mode=mode).file_count == 1
    events.append([{"n": 2.5, "x": ""}])
    with pytest.raises(UnfitFiles, match="Merges rewrite those that are older than the wider type"):
        events.publish()
    assert events.merge().input_count == 2
    require_rows(engines, events.publish(), {"n": 7.0, "x": "x" * 2000}, {"n": 2.5, "x": ""})
    pq.write_table(pa.table({"n": pa.array([8], pa.int64()), "x": ["y"]}), path.with_name("later.parquet"))
    (refused,) = import_file(lake, events, path.with_name("later.parquet"), mode=mode).refused
    assert "column 'n' is DOUBLE in the table" in refused.reason


def test_a_narrow_file_that_another_writer_made_live_after_the_widening_waits_for_a_person(lake, engines):
    """By its time it is as new as the files beside it: merges take it when its size is due."""
    events = lake.create_table("events")
    for n in (1, 2.5):
        events.append([{"n": n}])
    events.rewrite(REWRITE)
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array([3], pa.int64())}), sink)
    make_live(events.open(), sink.getvalue(), schema={"n": "BIGINT"})
    with pytest.raises(UnfitFiles, match=r"older than the wider type, .* To rewrite all of them now: `icedb rewrite"):
        events.publish()
    assert not events.merge().commit_count
    events.rewrite(REWRITE)
    require_rows(engines, events.publish(), {"n": 1.0}, {"n": 2.5}, {"n": 3.0})


def test_a_tag_of_a_state_with_narrow_files_is_no_tag(lake, engines):
    events = lake.create_table("events")
    events.append([{"n": 1}])
    create_tag(events.open(), "narrow")
    events.append([{"n": 2.5}])
    create_tag(events.open(), "mixed")
    events.rewrite(REWRITE)
    uri = events.publish()
    table = StaticTable.from_metadata(uri)
    assert set(table.refs()) == {"main", "narrow"}
    number = table.snapshot_by_name("narrow").snapshot_id
    assert table.scan(snapshot_id=number).to_arrow().to_pylist() == [{"n": 1}]
    require_rows(engines, uri, {"n": 1.0}, {"n": 2.5})


def test_a_footer_is_read_once_and_none_of_appends(lake, monkeypatch):
    events = lake.create_table("events")
    asked = []
    store = lake.warehouse.store
    get_range = type(store).get_range

    def look(self, key, **at):
        asked.extend([key] if "/_data/" in key else [])
        return get_range(self, key, **at)

    monkeypatch.setattr(type(store), "get_range", look)
    monkeypatch.setattr("icedb_log.publish.steps.MAX_STEPS", 2)  # so that the first ones are told as one
    for n in range(4):
        events.append([{"n": n}])
    events.publish()
    assert asked == []
    events.merge(full=True)
    events.publish()
    (merged,) = fold(events.open().read_log()).live.paths()
    assert asked == [merged]
    events.append([{"n": 9}])
    events.publish()
    assert asked == [merged]
