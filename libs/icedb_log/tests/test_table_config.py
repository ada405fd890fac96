"""A table's configuration: what is accepted, what is refused and why, and where it is kept."""

import pytest
from icedb_log.errors import InvalidRequest, NotFound, UnsupportedFormat
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table, decode_table_config, read_table_config
from icedb_log.table.table_config import PartitionField, TableConfig, check_column_name
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.tables.log_views import PATHS


@pytest.fixture
def store():
    return MemoryObjectStore(FakeClock().now_ms)


@pytest.mark.parametrize(
    ("text", "name", "transform", "column", "width"),
    [
        ("event", "event", "identity", "event", None),
        ("e=event", "e", "identity", "event", None),
        ("d=day(ts)", "d", "day", "ts", None),
        ("day(ts)", "ts_day", "day", "ts", None),
        ("u=bucket[16](user_id)", "u", "bucket", "user_id", 16),
        ("bucket[16](user_id)", "user_id_bucket", "bucket", "user_id", 16),
        ("p=truncate[2](country)", "p", "truncate", "country", 2),
        (" h = hour( my ts ) ", "h", "hour", "my ts", None),
        ("d=identity(a)b)", "d", "identity", "a)b", None),
        ("d=identity(a=b[1])", "d", "identity", "a=b[1]", None),
    ],
)
def test_a_partition_is_parsed_from_its_text(text, name, transform, column, width):
    field = PartitionField.parse(text)
    assert (field.name, field.transform, field.column, field.width) == (name, transform, column, width)
    assert PartitionField.parse(str(field)) == field


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "d=",
        "d=day",
        "d=day()",
        "d=fortnight(ts)",
        "d=day[2](ts)",
        "u=bucket(x)",
        "u=bucket[0](x)",
        "u=bucket[-1](x)",
        "u=bucket[x](x)",
        f"u=bucket[{'9' * 5000}](x)",
        "a/b=event",
        "ä=event",
        "d=day(ts",
        "x" * 65 + "=event",
        "e=\x00",
    ],
)
def test_a_partition_that_is_not_understood_names_the_forms(text):
    with pytest.raises(InvalidRequest, match=r"write name=column") as caught:
        PartitionField.parse(text)
    assert len(str(caught.value)) < 500


def test_a_column_called_like_a_transform_is_told_from_one_without_its_column():
    for text in ("day", "year=year", "d=identity(day)"):
        assert PartitionField.parse(str(PartitionField.parse(text))).column in ("day", "year")
    with pytest.raises(InvalidRequest, match=r"say of which column, day\(ts\); identity\(day\) is the column"):
        PartitionField.parse("d=day")


def test_sources_of_time_partitions_are_declared():
    config = TableConfig.create(name="t", partition=(PartitionField.parse("d=day(ts)"),))
    assert config.declared == {"ts": "TIMESTAMP"}
    config = TableConfig.create(
        name="t", partition=(PartitionField.parse("d=day(ts)"),), declared={"ts": "DATE", "x": "DOUBLE"}
    )
    assert config.declared == {"ts": "DATE", "x": "DOUBLE"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "../t"}, "table name"),
        ({"declared": {"a": "TEXT"}}, "use one of BIGINT"),
        ({"declared": {"a": "varchar"}}, "use one of BIGINT"),
        ({"declared": {"": "BIGINT"}}, "column name"),
        ({"declared": {"a\n": "BIGINT"}}, "column name"),
        ({"declared": {"x" * 256: "BIGINT"}}, "column name"),
        ({"declared": {"a": "BIGINT", "A": "BIGINT"}}, "differ only in case"),
        ({"sort": ("a", "a")}, "named twice"),
        ({"sort": ("",)}, "column name"),
        ({"partition": (PartitionField(name="p", column="a"), PartitionField(name="P", column="b"))}, "same name"),
        (
            {"partition": (PartitionField(name="d", transform="day", column="a"),), "declared": {"a": "BIGINT"}},
            "declared",
        ),
        ({"partition": (PartitionField(name="d", column="a"),), "declared": {"a": "DOUBLE"}}, "DOUBLE"),
        ({"log_grace_ms": 10_000, "data_grace_ms": 9_999}, "log_grace_ms 10000 > data_grace_ms 9999"),
        ({"log_grace_ms": 999}, "log_grace_ms: 999 ms is below the floor of 1000 ms"),
        ({"data_grace_ms": 0}, "data_grace_ms: 0 ms is below the floor of 1000 ms"),
        ({"orphan_age_ms": 1999}, "orphan_age_ms: 1999 ms is below the floor of 2000 ms"),
        ({"seal_age_ms": -1}, "seal_age_ms: -1 ms is below the floor"),
        ({"audit_retention_ms": 999}, "audit_retention_ms: 999 ms is below the floor of 1000 ms"),
        ({"target_file_bytes": 0}, "target_file_bytes"),
        ({"merge_fan_in": 1}, "merge_fan_in"),
        ({"format_version": 2}, "format_version"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_configuration_that_cannot_work_names_what_is_wrong(fields, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        TableConfig.create(**{"name": "t", **fields})
    assert str(caught.value).startswith("table configuration: ")
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("column", ["", "a\tb", "x" * 256])
def test_a_partition_needs_a_column(column):
    with pytest.raises(ValueError, match="column name"):
        PartitionField(name="p", column=column)


def test_i3_window_and_skew_add_up_to_the_grace_period_of_log_files():
    config = TableConfig.create(name="t", log_grace_ms=10_001)
    assert config.retry_window_ms + config.id_skew_ms == config.log_grace_ms
    assert config.retry_window_ms > config.id_skew_ms > 0


def test_a_configuration_survives_the_store(store):
    config = TableConfig.create(
        name="t",
        partition=(PartitionField.parse("d=day(ts)"), PartitionField.parse("u=bucket[4](größe)")),
        sort=("event", "ts"),
        declared={"ts": "TIMESTAMP"},
        merge_fan_in=3,
    )
    create_table(TableStore(store, PATHS), config)
    assert read_table_config(TableStore(store, PATHS)) == config


def test_a_table_is_created_once(store):
    config = TableConfig.create(name="t")
    create_table(TableStore(store, PATHS), config)
    with pytest.raises(InvalidRequest, match="'t' exists already"):
        create_table(TableStore(store, PATHS), TableConfig.create(name="t", merge_fan_in=3))
    assert read_table_config(TableStore(store, PATHS)) == config


def test_a_table_that_does_not_exist_says_how_to_make_one(store):
    with pytest.raises(NotFound, match=r"'t' does not exist; .*icedb table create"):
        read_table_config(TableStore(store, PATHS))
    assert list_all(store, "").objects == ()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"{}", b"\xff", b'{"name":"t","format_version":2}', b'{"name":"t","later":1}'],
)
def test_a_configuration_of_another_release_is_not_guessed_at(store, body):
    store.put(PATHS.config_key, body)
    with pytest.raises(UnsupportedFormat, match=PATHS.config_key):
        read_table_config(TableStore(store, PATHS))


def test_column_names():
    for column in ("a", "größe", "user id", "x" * 255, "😀"):
        assert check_column_name(column) == column


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"insert_query": ""}, "insert_query of 0 bytes"),
        ({"insert_query": " \n"}, "insert_query of 2 bytes"),
        ({"insert_query": "x" * 100_001}, "at most 100000"),
        ({"evolution": "strict"}, "none is declared"),
        ({"source": {"a": "BIGINT"}}, "insert_query"),
        ({"insert_query": "q", "source": {"a": "BIGINT", "A": "DATE"}}, "differ only in case"),
        ({"insert_query": "q", "source": {"a": "INT"}}, "'INT' is unknown"),
    ],
)
def test_what_is_wrong_with_ingest_is_said(fields, words):
    with pytest.raises(InvalidRequest, match=words):
        TableConfig.create(name="t", **fields)


def test_ingest_policies_that_belong_together_are_taken():
    TableConfig.create(name="t", evolution="strict", declared={"a": "DATE"})
    TableConfig.create(name="t", insert_query="SELECT * FROM _rows", source={"a": "BIGINT"})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"partition": ["d=day(ts)"]}, "partition.0"),
        ({"partition": 5}, "partition"),
        ({"declared": ["ts"]}, "declared"),
        ({"view_of": "../x", "view_query": "SELECT * FROM _rows"}, "view_of"),
    ],
)
def test_what_is_of_another_kind_is_refused_by_its_name(fields, named):
    with pytest.raises(InvalidRequest, match=rf"table configuration: {named}: "):
        TableConfig.create(name="events", **fields)


def test_a_source_that_is_no_table_name_is_not_understood():
    body = b'{"name": "events", "view_of": "../x", "view_query": "SELECT * FROM _rows"}'
    with pytest.raises(UnsupportedFormat, match="view_of"):
        decode_table_config(PATHS, body)
