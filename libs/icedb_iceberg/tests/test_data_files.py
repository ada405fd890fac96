"""What manifests say of data files: PyIceberg plans from it what our own readers plan from the log."""

import random
from datetime import date, datetime, timedelta

import pytest
from icedb_iceberg import IcebergWriter, set_location
from icedb_iceberg.field_ids import FieldIds
from icedb_iceberg.manifests import EntryMaker
from icedb_iceberg.table_form import describe_table, make_form
from icedb_log.log.live_files import LiveFiles
from icedb_log.model import FileMarker
from icedb_log.publish.model import Draft, Step
from icedb_log.table.column_bounds import encode_bounds
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.partitions import HIVE_NULL, encode_partition_value
from icedb_log.table.table_config import PartitionField
from icedb_log.table.transforms import transform_value
from icedb_sim.tables.small_table import SmallTable
from pyiceberg.expressions import EqualTo, GreaterThan, LessThanOrEqual
from pyiceberg.table import StaticTable

SPEC = ("d=day(ts)", "h=hour(ts)", "c", "t=truncate[2](c)", "b=bucket[4](n)", "n10=truncate[10](n)", "o=day(count)")
DECLARED = {"ts": "TIMESTAMP", "day": "DATE", "c": "VARCHAR", "n": "BIGINT", "x": "DOUBLE", "ok": "BOOLEAN"}
CONFIG = {
    "partition": tuple(PartitionField.parse(text) for text in SPEC),
    "sort": ("n", "x", "day", "ok"),
    "declared": {**DECLARED, "count": "BIGINT"},
    "times": {"count": {"unit": "epoch_s"}},
}
TEXTS = ["", "a", "ab", "ü/%=+", "ÿ", "\U0010ffff" * 70, "b" * 80, HIVE_NULL, "_", "z_5f", "日本"]


THEIR = {"=": EqualTo, ">": GreaterThan, "<=": LessThanOrEqual}


class Scene:
    """Publishes markers of files that nobody wrote."""

    def __init__(self, folder, **config):
        self.table = SmallTable(**{**CONFIG, **config})
        self.folder = folder
        set_location(self.table.store, "wh", f"file://{folder}/wh")
        self.opened = self.table.opened("test")

    @property
    def config(self):
        return self.opened.config

    def put(self, name, body):
        key = f"{self.table.paths.published_prefix}{name}"
        place = self.folder / key
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(body)
        return key

    def publish(self, markers, schema=None):
        schema = dict(schema or self.config.declared)
        step = Step("append", 1, "log", tuple(markers), (), 0, has_own_files=True)
        draft = Draft(
            self.opened,
            "c" * 32,
            "a" * 32,
            1,
            None,
            0,
            (step,),
            LiveFiles(),
            schema,
            schema,
            0,
            1,
            (),
            frozenset(),
            self.put,
        )
        written = IcebergWriter().write(draft)
        return StaticTable.from_metadata(f"file://{self.folder}/{written.metadata_key}")

    def marker(
        self, name, rows, *, partition=None, columns=("n", "x", "day", "ok", "ts", "c", "count"), row_count=None
    ):
        """Return the marker of a file of rows that lie in one partition."""
        if partition is None:
            partition = "/".join(
                f"{field.name}={encode_partition_value(transform_value(field, rows[0][field.column]))}"
                for field in self.config.partition
            )
        stats = {}
        for column in columns:
            values = [row[column] for row in rows if row[column] is not None]
            finite = [value for value in values if not isinstance(value, float) or value == value]
            bounds = encode_bounds(min(finite), max(finite)) if values and len(finite) == len(values) else (None, None)
            stats[column] = (*bounds, len(rows) - len(values))
        key = f"{self.table.paths.data_prefix}{partition}{'/' if partition else ''}{name}.parquet"
        return FileMarker(key, 1000, 0, row_count=len(rows) if row_count is None else row_count, stats=stats)


def make_row(chance, base):
    ts = base["ts"] + timedelta(microseconds=chance.randrange(3_600_000_000))
    return {
        **base,
        "ts": ts,
        "count": base["count"] + chance.randrange(80_000),
        "n": base["n"],
        "x": chance.choice([None, -0.0, 0.0, 1.5, -1e300, float("nan"), float("inf")]),
        "day": chance.choice([None, date(1969, 12, 31), date(2024, 2, 29)]),
        "ok": chance.choice([None, True, False]),
    }


def make_rows(chance):
    hour = datetime(1969, 12, 30) + timedelta(hours=chance.choice([0, 30, 48, 500_000]))
    base = {
        "ts": hour, "c": chance.choice(TEXTS), "n": chance.choice([-(2**63) + 8, -11, -1, 0, 7, 19, 2**63 - 1]),
        "count": chance.choice([-86400, 0, 86400 * 400]),
    }  # fmt: skip
    return [make_row(chance, base) for _ in range(chance.randint(1, 4))]


def matches(value, operator, wanted):
    if value is None:
        return False
    return {"=": value == wanted, ">": value > wanted, "<=": value <= wanted}[operator]


def as_text(value):
    if isinstance(value, datetime):
        return f"'{value.isoformat(timespec='microseconds')}'"
    return (
        f"'{value}'" if isinstance(value, str | date) else str(value).lower() if isinstance(value, bool) else str(value)
    )


@pytest.mark.parametrize("seed", range(4))
def test_pyiceberg_prunes_as_we_do_and_never_a_row(tmp_path, seed):
    chance = random.Random(seed)
    scene = Scene(tmp_path)
    rows = {f"f{at}": make_rows(chance) for at in range(25)}
    markers = {name: scene.marker(name, found) for name, found in rows.items()}
    table = scene.publish(markers.values())
    assert len(list(table.scan().plan_files())) == len(markers)
    ours_total = theirs_total = 0
    for column, sql_type in DECLARED.items():
        wanted = {row[column] for found in rows.values() for row in found if row[column] is not None}
        finite = sorted((value for value in wanted if value == value and value != float("inf")), key=str)
        for value in chance.sample(finite, min(4, len(finite))):
            for operator in ("=", ">", "<="):
                if sql_type == "BOOLEAN" and operator != "=":
                    continue
                text = f"{column} {operator} {as_text(value)}"
                theirs = {
                    task.file.file_path.rpartition("/")[2].removesuffix(".parquet")
                    for task in table.scan(row_filter=THEIR[operator](column, value)).plan_files()
                }
                pruner = FilePruner(text.replace("T", " ") if column == "ts" else text, scene.config, schema=DECLARED)
                ours = {name for name, marker in markers.items() if pruner.may_be_true(marker)}
                holding = {
                    name for name, found in rows.items() if any(matches(row[column], operator, value) for row in found)
                }
                assert holding <= theirs, (text, holding - theirs)
                ours_total += len(ours)
                theirs_total += len(theirs)
    assert theirs_total <= ours_total * 1.1  # our buckets prune, too, and Iceberg has none of ours


def test_what_is_said_of_a_file(tmp_path):
    scene = Scene(tmp_path)
    row = {"ts": datetime(2023, 6, 7, 13, 5), "c": "é" * 70, "n": 15, "x": None, "day": None, "ok": True, "count": 60}
    table = scene.publish([scene.marker("f", [row, {**row, "x": 2.0}])])
    (task,) = table.scan().plan_files()
    ids = {field.name: field.field_id for field in table.schema().fields}
    said = task.file
    assert (said.record_count, said.file_size_in_bytes) == (2, 1000)
    assert [field.name for field in table.spec().fields] == ["d", "h", "c"]
    assert list(said.partition) == [19515, 19515 * 24 + 13, "é" * 70]
    assert said.lower_bounds[ids["c"]] == said.upper_bounds[ids["c"]] == ("é" * 70).encode()  # by the partition
    assert said.null_value_counts[ids["x"]] == 1
    assert said.value_counts[ids["x"]] == 2
    assert said.null_value_counts[ids["day"]] == said.value_counts[ids["day"]] == 2
    assert ids["day"] not in said.lower_bounds
    assert said.sort_order_id is None


def test_long_texts_are_cut_so_that_bounds_stay_bounds(tmp_path):
    scene = Scene(tmp_path, partition=(), sort=("c",), times={})
    table = scene.publish([scene.marker("f", [{"c": "é" * 70}], columns=("c",))])
    (task,) = table.scan().plan_files()
    (number,) = task.file.lower_bounds
    assert task.file.lower_bounds[number] == ("é" * 64).encode()
    assert task.file.upper_bounds[number] == ("é" * 63 + "ê").encode()


@pytest.mark.parametrize(
    ("partition", "wanted"),
    [
        (f"d=2023-06-07/h=2023-06-07-13/c={HIVE_NULL}/t={HIVE_NULL}/b=1/n10=10/o=1970-01-01", "spec"),
        ("d=2023-06-07/h=2023-06-07/c=x/t=x/b=1/n10=10/o=1970-01-01", "none"),
        ("d=20230607/h=2023-06-07-13/c=x/t=x/b=1/n10=10/o=1970-01-01", "none"),
        ("h=2023-06-07-13/c=x/t=x/n10=10", "spec"),
        ("c=x/t=x", "spec"),
        ("d=2023-06-07", "none"),
        ("", "none"),
        ("odd/d=2023-06-07", "none"),
    ],
)
def test_a_file_whose_partition_is_not_certain_is_in_none(tmp_path, partition, wanted):
    scene = Scene(tmp_path)
    row = {"ts": datetime(2023, 6, 7, 13, 5), "c": "x", "n": 15, "x": None, "day": None, "ok": True, "count": 60}
    table = scene.publish([scene.marker("f", [row], partition=partition)])
    (task,) = table.scan().plan_files()
    assert task.file.spec_id == (1 if wanted == "spec" else 0)
    assert len(list(table.scan(row_filter="ts >= '2023-06-07T13:00:00' and n = 15").plan_files())) == 1


def test_a_file_with_nulls_beside_one_value_is_in_no_partition(tmp_path):
    scene = Scene(tmp_path, partition=(PartitionField.parse("y=year(day)"),), sort=("day",), times={})
    same, later = date(2023, 6, 7), date(2024, 1, 1)
    rows = {"same": [same, date(2023, 8, 9)], "null": [same, None], "nulls": [None, None], "wide": [same, later]}
    markers = [
        scene.marker(name, [{"day": each} for each in values], partition="", columns=("day",))
        for name, values in rows.items()
    ]
    files = {task.file.file_path.rpartition("/")[2]: task.file for task in scene.publish(markers).scan().plan_files()}
    found = {name: (files[f"{name}.parquet"].spec_id, list(files[f"{name}.parquet"].partition)) for name in rows}
    assert found == {"same": (1, [53]), "null": (0, []), "nulls": (1, [None]), "wide": (0, [])}


def test_a_column_that_became_wider_has_no_bounds(tmp_path):
    """A file that still has the narrow type, or a marker of it, says them in another form."""
    scene = Scene(tmp_path, partition=(), sort=(), declared={}, times={})
    marker = scene.marker("f", [{"n": 1, "x": 1.5}], columns=("n", "x"))
    types, _ = describe_table(scene.config, {"n": "DOUBLE", "x": "DOUBLE"})
    ids = FieldIds().grow(types)
    logged = {"n": "BIGINT", "x": "DOUBLE"}
    form = make_form(scene.config, {"n": "DOUBLE", "x": "DOUBLE"}, logged, ids, with_bounds=True)
    maker = EntryMaker(form, prefix="wh/t", location="s3://b/t", spec_id=1, row_counts={})
    _, entry = maker.make(marker, snapshot_id=1, sequence_number=1)
    assert [bound["key"] for bound in entry["data_file"]["lower_bounds"]] == [ids.columns["x"].number]


def test_columns_that_iceberg_cannot_say_are_left_out_and_named(tmp_path):
    scene = Scene(tmp_path, partition=(), sort=(), declared={}, times={})
    schema = {"a": "BIGINT", "u": "UBIGINT", "s": 'STRUCT(x INTEGER, "y z" VARCHAR[])', "m": "MAP(VARCHAR, DOUBLE)"}
    marker = FileMarker(f"{scene.table.paths.data_prefix}f.parquet", 1000, 0, row_count=3)
    table = scene.publish([marker], schema)
    assert table.properties["icedb.left-out-columns"] == "u UBIGINT"
    assert str(table.schema()) == (
        "table {\n  1: a: optional long\n  2: s: optional struct<3: x: optional int, 4: y z: optional list<string>>\n"
        "  6: m: optional map<string, double>\n}"
    )
    names = {tuple(field.names): field.field_id for field in table.name_mapping()}
    assert names == {("a",): 1, ("s",): 2, ("m",): 6, ("u",): 9}  # engines want a number for each column of a file
    assert table.metadata.last_column_id == 9
