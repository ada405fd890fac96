"""Publications of small tables in Iceberg's form, read by PyIceberg; no data file is read here."""

import orjson
import pytest
from icedb_iceberg import (
    IcebergWriter,
    UnfitFiles,
    find_held_back,
    metadata_uri,
    publish_table,
    read_location,
    read_metadata,
    set_location,
)
from icedb_iceberg.field_ids import FieldId, give_field_ids
from icedb_iceberg.location import fix_location, location_key
from icedb_iceberg.metadata import MAX_SNAPSHOTS
from icedb_iceberg.unfit_files import Fitness
from icedb_iceberg.writer import LOOK_INTERVAL_MS
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.errors import CorruptLog, InvalidRequest
from icedb_log.holds.tags import create_tag, delete_tag
from icedb_log.keys import publication_id_of
from icedb_log.publish.head import read_publication
from icedb_log.store.local_store import LocalObjectStore
from icedb_sim.tables.small_table import SmallTable
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable

HOUR_MS = 3_600_000
GRACES = {"data_grace_ms": 6 * HOUR_MS, "log_grace_ms": 2 * HOUR_MS, "orphan_age_ms": 24 * HOUR_MS}


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(Fitness, "leave_out_unfit", lambda self, draft, **_: draft)  # no data file is Parquet here
    monkeypatch.setattr(Fitness, "is_fit", lambda *_: True)
    made = SmallTable(**GRACES, declared={"id": "BIGINT", "p": "VARCHAR"})
    made.tmp_path = tmp_path  # where PyIceberg finds what is published
    set_location(made.store, "wh", f"file://{tmp_path}/wh")
    return made


@pytest.fixture
def writer():
    return IcebergWriter()


def publish(table, writer=None):
    made = publish_table(table.opened("test"), writer=writer or IcebergWriter())
    table.clock.advance(1)
    return made


def load(table, publication):
    for key in table.keys(table.paths.published_prefix):
        place = table.tmp_path / key
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(table.store.get(key).body)
    return StaticTable.from_metadata(metadata_uri(table, publication))


def files_of(table, found, **scan):
    prefix = f"file://{table.tmp_path}/"
    return {task.file.file_path.removeprefix(prefix) for task in found.scan(**scan).plan_files()}


def live_paths(table):
    return set(table.snapshot().live.paths())


def operations(found):
    return [snapshot.summary.operation.value for snapshot in found.snapshots()]


# -- histories


def test_pyiceberg_plans_the_live_files_of_each_state(table, writer):
    table.append(1, 2)
    states = [live_paths(table)]
    publish(table, writer)
    table.append(3, p="ü/%=+")
    states.append(live_paths(table))
    table.append(4)
    states.append(live_paths(table))
    publish(table, writer)
    table.merge(full=True)
    states.append(live_paths(table))
    table.delete("id = 1")
    states.append(live_paths(table))
    table.drop("p=ü*")
    states.append(live_paths(table))
    found = load(table, publish(table, writer))
    assert [files_of(table, found, snapshot_id=each.snapshot_id) for each in found.snapshots()] == states
    assert files_of(table, found) == states[-1]
    assert operations(found) == ["append", "append", "append", "replace", "overwrite", "delete"]
    assert [each.parent_snapshot_id for each in found.snapshots()][1:] == [
        each.snapshot_id for each in found.snapshots()
    ][:-1]
    summary = found.current_snapshot().summary
    assert summary["total-data-files"] == str(len(states[-1]))
    assert summary["total-records"] == str(table.snapshot().row_count)
    assert summary["total-files-size"] == str(table.snapshot().size_bytes)


def test_a_writer_that_knows_nothing_goes_on_as_one_that_remembers(table, writer):
    table.append(1)
    publish(table, writer)
    for at in range(12):
        table.append(at, p=f"p{at % 3}")
        publish(table, IcebergWriter() if at % 2 else writer)
    table.merge(full=True)
    found = load(table, publish(table))
    assert files_of(table, found) == live_paths(table)
    assert len(found.snapshots()) == 14
    read = read_publication(table)
    assert IcebergWriter().live_paths(table, read) == live_paths(table)


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("lost", [".metadata.json", "snap-", "-m0.avro"])
def test_a_publication_of_which_a_part_is_lost_is_not_gone_on_from(table, writer, lost, remembers):
    table.append(1)
    first = publish(table, writer)
    table.append(2)
    (key,) = (each for each in first.objects if lost in each)
    table.store.delete([key])
    table.clock.advance(LOOK_INTERVAL_MS)
    writer = writer if remembers else IcebergWriter()
    second = publish(table, writer)
    assert files_of(table, load(table, second)) == live_paths(table)
    assert key not in second.objects
    table.append(3)
    assert files_of(table, load(table, publish(table, writer))) == live_paths(table)


def test_what_is_lost_is_missed_within_a_minute_though_nothing_is_committed(table, writer):
    table.append(1)
    first = publish(table, writer)
    assert publish(table, writer) == first  # it has looked
    (key,) = (each for each in first.objects if "-m0.avro" in each)
    table.store.delete([key])
    assert publish(table, writer) == first
    table.clock.advance(LOOK_INTERVAL_MS)
    second = publish(table, writer)
    assert files_of(table, load(table, second)) == live_paths(table)
    assert publish(table, writer) == second


class Unfit:
    """Stands for :class:`Fitness`: finds all live files unfit, and counts how often it is asked."""

    def __init__(self, monkeypatch):
        self.asked = 0
        monkeypatch.setattr(Fitness, "leave_out_unfit", self.refuse)

    def refuse(self, draft, **_):
        self.asked += 1
        raise UnfitFiles("unfit")


def changes(table):
    return len(table.store.keys_of("put", "put_if_absent", "put_if_match", "upload", "delete"))


def test_a_state_that_is_held_back_is_tried_once_until_something_changes(table, writer, monkeypatch):
    table.append(1)
    first = publish(table, writer)
    unfit = Unfit(monkeypatch)
    table.append(2)
    assert publish(table, writer) == first
    assert find_held_back(table, writer=writer) == "unfit"
    before = changes(table)
    for _ in range(5):
        assert publish(table, writer) == first
    assert (unfit.asked, changes(table)) == (1, before)
    table.append(3)
    publish(table, writer)
    assert unfit.asked == 2
    alter_table_config(table, {"target_file_bytes": 1 << 20}, clock=table.clock)
    publish(table, writer)
    assert unfit.asked == 3
    monkeypatch.setattr(Fitness, "leave_out_unfit", lambda self, draft, **_: draft)
    table.append(4)
    assert files_of(table, load(table, publish(table, writer))) == live_paths(table)
    assert find_held_back(table, writer=writer) == ""


def test_while_a_state_is_held_back_nothing_is_shown_that_is_of_another_place(table, writer, monkeypatch):
    table.append(1)
    first = publish(table, writer)
    Unfit(monkeypatch)
    table.append(2)
    assert publish(table, writer) == first
    set_location(table.store, "wh", f"file://{table.tmp_path}/moved/wh")
    with pytest.raises(UnfitFiles):
        publish(table, writer)


def test_j4_a_state_that_is_held_back_for_long_is_tried_often_enough_to_be_told_from_one_that_nobody_asks_for(
    table, writer, monkeypatch
):
    table.append(1)
    first = publish(table, writer)
    unfit = Unfit(monkeypatch)
    table.merge(full=True)
    for _ in range(60):
        assert publish(table, writer) == first
        table.clock.advance(GRACES["data_grace_ms"] // 20)
        table.vacuum()
    assert read_publication(table) == first
    assert 10 <= unfit.asked <= 14


def test_a_table_that_was_never_published_is_refused_without_a_write(table, writer, monkeypatch):
    unfit = Unfit(monkeypatch)
    table.append(1)
    with pytest.raises(UnfitFiles, match="unfit"):
        publish(table, writer)
    before = changes(table)
    with pytest.raises(UnfitFiles, match="unfit"):
        publish(table, writer)
    assert (unfit.asked, changes(table)) == (1, before)


def test_a_writer_that_knows_nothing_reads_the_metadata_once_while_nothing_changes(table, writer):
    table.append(1)
    made = publish(table, writer)
    fresh = IcebergWriter()
    publish(table, fresh)
    table.store.calls.clear()
    for _ in range(3):
        assert publish(table, fresh) == made
    assert table.paths.publication_head_key in table.store.keys_of("get")
    assert made.metadata_key not in table.store.keys_of("get")


def test_every_object_that_is_referred_to_is_said_and_there(table, writer):
    for at in range(20):
        table.append(at)
        made = publish(table, writer)
    found = load(table, made)
    root = f"file://{table.tmp_path}/"
    wanted = {made.metadata_key}
    for snapshot in found.snapshots():
        wanted.add(snapshot.manifest_list.removeprefix(root))
        wanted |= {each.manifest_path.removeprefix(root) for each in snapshot.manifests(found.io)}
    assert set(made.objects) == wanted
    assert wanted <= set(table.keys(table.paths.published_prefix))
    assert {publication_id_of(key) is not None for key in wanted} == {True}


def test_no_more_than_a_hundred_snapshots_stay(table, writer):
    for at in range(MAX_SNAPSHOTS + 5):
        table.append(at)
        if at % 10 == 0:
            publish(table, writer)
    found = load(table, publish(table, writer))
    assert len(found.snapshots()) == MAX_SNAPSHOTS
    assert files_of(table, found) == live_paths(table)
    assert all(files_of(table, found, snapshot_id=each.snapshot_id) for each in found.snapshots())


def test_a_snapshot_whose_files_may_be_gone_leaves_the_history(table, writer):
    table.append(1)
    table.append(2)
    publish(table, writer)
    table.merge(full=True)
    table.clock.advance(3 * HOUR_MS)
    table.append(3)
    found = load(table, publish(table, writer))
    assert operations(found) == ["replace", "append"]
    assert found.current_snapshot().summary["total-records"] == "3"


def test_snapshot_ids_and_times_ascend_and_never_repeat(table, writer):
    seen = {}
    for at in range(5):
        table.append(at)
        found = load(table, publish(table, writer))
        for each in found.snapshots():
            assert seen.setdefault(each.snapshot_id, each.sequence_number) == each.sequence_number
        times = [each.timestamp_ms for each in found.snapshots()]
        numbers = [each.sequence_number for each in found.snapshots()]
        assert times == sorted(set(times))
        assert numbers == sorted(set(numbers))
        assert found.metadata.last_sequence_number == numbers[-1]
    assert len(seen) == 5


def test_an_empty_table_is_published(table, writer):
    made = publish(table, writer)
    found = load(table, made)
    assert found.current_snapshot() is None
    assert [field.name for field in found.schema().fields] == ["id", "p"]
    assert list(found.scan().plan_files()) == []
    assert publish(table, writer) == made
    table.append(1)
    assert files_of(table, load(table, publish(table, writer))) == live_paths(table)


def test_the_hint_names_the_newest_publication(table, writer):
    table.append(1)
    publish(table, writer)
    table.append(2)
    made = publish(table, writer)
    hint = table.store.get(f"{table.paths.published_prefix}version-hint.text").body.decode()
    assert made.metadata_key.endswith(f"/{hint}.metadata.json")
    table.store.put(f"{table.paths.published_prefix}version-hint.text", b"old")  # as a publisher that died leaves it
    publish(table)
    assert table.store.get(f"{table.paths.published_prefix}version-hint.text").body.decode() == hint


# -- partitions, bounds, types


def test_files_are_planned_by_partition(table, writer):
    table.append(1, 2, p="ü/%=+")
    table.append(10, 20, p="b")
    found = load(table, publish(table, writer))
    assert len(files_of(table, found)) == 2
    assert len(files_of(table, found, row_filter=EqualTo("p", "ü/%=+"))) == 1
    assert files_of(table, found, row_filter=EqualTo("p", "c")) == set()


def test_the_form_of_the_table(table, writer):
    table.append(1)
    metadata = read_metadata(table, publish(table, writer))
    assert metadata["format-version"] == 2
    assert metadata["partition-specs"][-1]["fields"] == [
        {"source-id": 2, "field-id": 1000, "transform": "identity", "name": "p"}
    ]
    assert metadata["sort-orders"][-1]["fields"] == [
        {"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-last"}
    ]
    mapping = orjson.loads(metadata["properties"]["schema.name-mapping.default"])
    assert mapping == [{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["p"]}]
    assert metadata["properties"]["gc.enabled"] == "false"


def test_a_column_that_came_later_has_the_next_number(table, writer):
    table.append(1)
    publish(table, writer)
    table.stage([{"id": 2, "p": "a", "new": "x"}])
    table.flush()
    found = load(table, publish(table, writer))
    first, second = found.snapshots()
    names = {number: [field.name for field in schema.fields] for number, schema in found.schemas().items()}
    assert names[first.schema_id] == ["id", "p"]
    assert names[second.schema_id] == ["id", "p", "new"]
    assert [field.field_id for field in found.schema().fields] == [1, 2, 3]


def test_a_table_may_keep_its_bounds_to_itself(table, writer):
    table.append(1, p="secret")
    old = publish(table, writer)
    alter_table_config(table, {"iceberg_bounds": "off"}, clock=table.clock)
    found = load(table, publish(table, writer))
    (task,) = found.scan().plan_files()
    assert not task.file.lower_bounds
    assert not task.file.upper_bounds
    assert found.properties["icedb.bounds"] == "false"
    made = publish(table, writer)
    assert not set(made.objects) & set(old.objects)
    alter_table_config(table, {"iceberg_bounds": "on"}, clock=table.clock)
    (task,) = load(table, publish(table)).scan().plan_files()
    assert task.file.lower_bounds


# -- field ids


def test_field_ids_stay_and_are_never_given_twice(table):
    opened = table.opened("test")
    first = give_field_ids(opened, {"a": "long", "b": "string"})
    assert first.columns == {"a": FieldId(1), "b": FieldId(2)}
    writes = len(table.store.keys_of("put_if_absent", "put_if_match", "put"))
    assert give_field_ids(opened, {"b": "string"}) == first
    assert len(table.store.keys_of("put_if_absent", "put_if_match", "put")) == writes
    assert give_field_ids(opened, {"c": "long"}).columns["c"] == FieldId(3)
    assert give_field_ids(opened, {"a": "long"}).columns["a"] == FieldId(1)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"format": 2, "last_id": 1, "columns": {}}',
        b'{"format": 1, "last_id": 1, "columns": {"a": {"id": 1}, "b": {"id": 1}}}',
        b'{"format": 1, "last_id": 1, "columns": {"a": {"id": 2}}}',
    ],
)
def test_field_ids_that_cannot_be_right_stop_the_table(table, body):
    table.store.put(table.paths.fields_key, body)
    with pytest.raises(CorruptLog, match=r"fields\.json"):
        give_field_ids(table.opened("test"), {"a": "long"})


# -- the public location


def test_a_directory_that_was_moved_says_so_until_it_is_published_anew(tmp_path):
    old, new = LocalObjectStore(tmp_path / "old"), LocalObjectStore(tmp_path / "new")
    here = fix_location(old, "wh")
    assert here == read_location(old, "wh") == f"file://{tmp_path}/old/wh"
    new.put(location_key("wh"), old.get(location_key("wh")).body)
    for ask in (read_location, fix_location):
        with pytest.raises(InvalidRequest, match=r"moved or copied.*icedb iceberg publish --location store"):
            ask(new, "wh")
    assert set_location(new, "wh", None) == read_location(new, "wh") == f"file://{tmp_path}/new/wh"


def test_another_location_makes_a_publication_of_its_own(table, writer):
    table.append(1)
    table.append(2)
    old = publish(table, writer)
    assert publish(table, writer) == old
    table.tmp_path /= "moved"
    set_location(table.store, "wh", f"file://{table.tmp_path}/wh")
    made = publish(table, writer)
    assert not set(made.objects) & set(old.objects)
    found = load(table, made)
    assert files_of(table, found) == live_paths(table)
    assert found.metadata.table_uuid.hex == orjson.loads(table.store.get(old.metadata_key).body)["table-uuid"].replace(
        "-", ""
    )
    assert publish(table, writer) == made


def test_the_location_is_fixed_by_the_first_publication(writer):
    table = SmallTable()
    own = read_location(table.store, "wh")
    assert table.keys("_icedb") == table.keys("wh/_icedb") == []
    publish(table, writer)
    assert orjson.loads(table.store.get(location_key("wh")).body) == {"format": 1, "location": own}


@pytest.mark.parametrize("location", ["", "http://x/y", "s3:///y", "file://host", "s3://b/p/", "s3://b/p?x=1"])
def test_what_is_no_location_is_refused(table, location):
    with pytest.raises(InvalidRequest, match="public location"):
        set_location(table.store, "wh", location)


# -- tags


def tags_of(found):
    return {name: ref.snapshot_id for name, ref in found.refs().items() if ref.snapshot_ref_type == "tag"}


def test_a_tag_is_a_tag_for_as_long_as_it_lasts(table, writer):
    table.append(1)
    tagged = live_paths(table)
    create_tag(table.opened("test"), "early")
    table.append(2)
    found = load(table, publish(table, writer))
    assert tags_of(found) == {"early": found.snapshots()[0].snapshot_id}
    table.merge(full=True)
    table.clock.advance(3 * HOUR_MS)
    table.append(3)
    found = load(table, publish(table, writer))  # the tagged state has left the history, the tag has not
    assert found.snapshots()[0].snapshot_id == tags_of(found)["early"]
    assert files_of(table, found, snapshot_id=tags_of(found)["early"]) == tagged
    assert files_of(table, found) == live_paths(table)
    table.append(4)
    found = load(table, publish(table))  # also by a process that remembers nothing
    assert files_of(table, found, snapshot_id=tags_of(found)["early"]) == tagged
    assert operations(found)[1:] == ["replace", "append", "append"]
    delete_tag(table, "early")
    found = load(table, publish(table, writer))
    assert tags_of(found) == {}
    assert len(found.snapshots()) == 3


def test_a_tag_of_a_state_that_nobody_published_is_a_tag_too(table, writer):
    table.append(1, p="ü/%=+")
    table.append(2)
    tagged = live_paths(table)
    create_tag(table.opened("test"), "old")
    table.merge(full=True)
    table.delete("id = 1")
    table.clock.advance(5 * HOUR_MS)
    table.stage([{"id": 3, "p": "a", "late": 1}])
    table.flush()
    found = load(table, publish(table, writer))
    assert files_of(table, found, snapshot_id=tags_of(found)["old"]) == tagged
    schema = found.snapshot_by_id(tags_of(found)["old"]).schema_id
    assert [field.name for field in found.schemas()[schema].fields] == ["id", "p"]
    assert files_of(table, found) == live_paths(table)
    assert found.current_snapshot().snapshot_id != tags_of(found)["old"]
    made = publish(table, writer)
    assert made.objects == read_publication(table).objects
    table.append(4)
    after = load(table, publish(table))
    assert tags_of(after) == tags_of(found)
    assert files_of(table, after, snapshot_id=tags_of(after)["old"]) == tagged
