"""Cutting jobs into units, settling types between units, and the wire between driver and task."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_engine.limits import FlushUnitLimits, JobLimits
from icedb_engine.reading.types import Kind, infer_type
from icedb_engine.reading.widening import settle_types
from icedb_engine.spark.spark_tasks import run_body
from icedb_engine.work import MergeUnit, decode_result, decode_unit, encode, pack, split_batches
from icedb_log import errors
from icedb_log.jobs import MergeGroup, StagedBatch
from icedb_log.model import FileMarker
from icedb_log.store_settings import StoreSettings


def batch(number, size_bytes, staging_format="ndjson"):
    return StagedBatch(f"k{number}", f"{number}", staging_format, size_bytes, 0)


@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.sampled_from(["ndjson", "ndjson.gz", "arrow", "parquet"])),
        min_size=1,
        max_size=40,
    )
)
def test_units_hold_every_batch_once_in_order_and_are_about_equal(sizes):
    limits = JobLimits(FlushUnitLimits(unit_target_bytes=1000), direct_bytes=2500)
    batches = [batch(number, size, kind) for number, (size, kind) in enumerate(sizes)]
    units = split_batches(batches, limits)
    assert [item for unit in units for item in unit] == batches
    estimates = [
        sum(b.size_bytes * (8 if b.format in ("ndjson.gz", "parquet") else 1) + 1 for b in unit) for unit in units
    ]
    if sum(estimates) <= 2500:
        assert len(units) == 1
    else:
        assert max(estimates) <= 1000 + 4001, "a unit is at most one batch above its target"


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 20), st.integers(1, 5))
def test_parts_are_as_large_as_they_may_be_and_have_one_at_least(sizes, max_bytes, max_count):
    parts = pack(sizes, lambda size: size, max_bytes=max_bytes, max_count=max_count)
    assert [size for part in parts for size in part] == sizes
    assert all(len(part) == 1 or (sum(part) <= max_bytes and len(part) <= max_count) for part in parts)
    for part, after in itertools.pairwise(parts):
        assert sum(part) + after[0] > max_bytes or len(part) == max_count, "the next would have fitted in"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([{"x": Kind.INTEGER}, {"x": Kind.FRACTION}], {"x": "DOUBLE"}),
        ([{"x": Kind.FRACTION}, {"x": Kind.LONG_INTEGER}], {"x": "DOUBLE"}),
        ([{"x": Kind.LONG_INTEGER}, {"x": Kind.FRACTION}], {"x": "BIGINT"}),
        ([{"x": Kind.STRING}, {"x": Kind.INTEGER}, {"y": Kind.BOOLEAN}], {"x": "VARCHAR", "y": "BOOLEAN"}),
        ([{"Ab": Kind.STRING}, {"ab": Kind.STRING}], {"Ab": "VARCHAR"}),
        ([{"KNOWN": Kind.STRING}], {}),
    ],
)
def test_the_first_unit_wins_and_numbers_unite(found, expected):
    assert settle_types({"known": "BIGINT"}, found) == {"known": "BIGINT", **expected}


@pytest.mark.parametrize(
    ("kinds", "sql_type"),
    [
        (Kind(0), None),
        (Kind.STRING | Kind.NESTED, "VARCHAR"),
        (Kind.INTEGER | Kind.LONG_INTEGER, "BIGINT"),
        (Kind.INTEGER | Kind.FRACTION, "DOUBLE"),
        (Kind.LONG_INTEGER | Kind.FRACTION, None),
        (Kind.HUGE_INTEGER, None),
        (Kind.BOOLEAN, "BOOLEAN"),
        (Kind.BOOLEAN | Kind.STRING, None),
    ],
)
def test_types_are_inferred_from_kinds(kinds, sql_type):
    assert infer_type(kinds) == sql_type


def test_results_survive_the_wire(make_table):
    table = make_table("d=day(ts)", sort=("s", "f"))
    files = []
    for event in ({"s": "é\u0001", "f": 0.1}, {"s": "x" * 100, "f": -0.0}):
        result = table.flush(table.stage({"ts": "2023-06-07", **event}), table.stage({"ts": 1.5}))
        assert decode_result("flush", encode(result)) == result
        files += result.files
    merged = table.merge(*files)
    assert decode_result("merge", encode(merged)) == merged


def test_a_unit_is_refused_when_it_is_not_understood():
    with pytest.raises(ValueError, match="paths"):
        decode_unit("flush", '{"config": {}}')


def test_a_task_answers_with_the_error_by_name(tmp_path, make_table):
    table = make_table()
    group = MergeGroup("", (FileMarker(table.paths.data_key(partition="", file_id="a"), 1, 0),))
    store = StoreSettings(f"file://{tmp_path}/store")
    outcome, message = run_body("merge", encode(table.unit(MergeUnit, group=group)), store)
    assert getattr(errors, outcome) is errors.NotFound
    assert "a.parquet is live but gone" in message


def test_a_process_of_tasks_opens_its_store_once(tmp_path, make_table, monkeypatch):
    opened, open_store = [], StoreSettings.open

    def count(settings):
        opened.append(settings)
        return open_store(settings)

    monkeypatch.setattr(StoreSettings, "open", count)
    table = make_table()
    group = MergeGroup("", (FileMarker(table.paths.data_key(partition="", file_id="a"), 1, 0),))
    for _ in range(2):
        run_body("merge", encode(table.unit(MergeUnit, group=group)), StoreSettings(f"file://{tmp_path}/kept"))
    assert len(opened) == 1
