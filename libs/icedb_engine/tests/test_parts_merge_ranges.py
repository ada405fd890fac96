"""One merge cut by ranges of the sort order: the same rows as uncut, in outputs that do not overlap."""

import math
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_engine.jobs import merge_driver, merge_ranges
from icedb_engine.jobs.merge_driver import MergeDriver
from icedb_engine.jobs.merge_ranges import RangedMerge, are_worth_a_cut
from icedb_engine.limits import JobLimits
from icedb_engine.local_engine import LocalRunner
from icedb_engine.reading import data_files
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.work import MergeRange, MergeUnit, encode
from icedb_engine.writing import row_groups
from icedb_engine.writing.key_ranges import KeyRange, cut_order, decode_key, encode_key
from icedb_engine.writing.sort_keys import ABOVE, BELOW, NAN, NULL, Span, make_key, make_place
from icedb_log.jobs import MergeGroup, MergeJob
from icedb_sim.tables.profiles import SHARED_FIXTURES
from pydantic import TypeAdapter
from sorted_files import COLUMNS, GROUP_ROWS, Files, check_file, keys, make_rows, row, some_files, sorts


@pytest.fixture(autouse=True, scope="module")
def small_row_groups():
    """Cut what is small, too, and read it as often as ranges want it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_groups, "SMALL_SHARE", 2)
        patch.setattr(merge_ranges, "READ_FACTOR", 1000)
        yield


def stored(name, value):
    """Return a value as files have it."""
    if value is None or name in ("s", "f", "i", "b"):
        return value
    kind = make_rows([], 0).schema.field(name).type
    return pa.scalar(value, kind).cast(pa.int32() if name == "d" else pa.int64()).as_py()


def key_of(each, by):
    return make_key([stored(name, each[name]) for name in by])


@given(
    rows=st.lists(row, min_size=1, max_size=30),
    cuts=st.lists(row, max_size=3),
    by=sorts.filter(bool),
    width=st.integers(0, 6),
    is_repeated=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=SHARED_FIXTURES)
def test_each_row_is_of_one_range_and_ranges_are_in_the_order_of_the_engine(
    make_table, rows, cuts, by, width, is_repeated
):
    table = make_rows(rows, 0)
    if is_repeated:
        table = table.set_column(0, "s", table["s"].dictionary_encode())
    places = sorted({(*key_of(cut, by[:width]), *(BELOW for _ in by[width:])) for cut in cuts})
    assert [decode_key(encode_key(place)) for place in places] == places
    ranges = [KeyRange(by, low, high) for low, high in pairwise([None, *places, None])]
    (batch,) = table.combine_chunks().to_batches()
    parts = [pa.Table.from_batches([each.select(batch)]) for each in ranges]
    assert sorted(n for part in parts for n in part["id"].to_pylist()) == list(range(len(rows)))
    sort = make_table().sort
    in_parts = pa.concat_tables([sort(part.select(by), by) for part in parts])
    assert keys(in_parts) == keys(sort(table.select(by), by))
    for each, part in zip(ranges, parts, strict=True):
        spans = [Span(key, key) for key in (key_of(found, by) for found in part.to_pylist())]
        assert all(each.touches(span) and each.holds(span) for span in spans)
        assert [other.touches(span) for span in spans for other in ranges].count(True) == len(spans)


def test_a_decimal_is_compared_as_the_number_it_is():
    kind = pa.decimal128(38, 2)
    numbers = [10**37, -1, 0, 150, None, 149]
    values = pa.array([None if n is None else Decimal(n).scaleb(-2) for n in numbers], kind)
    rows = pa.record_batch({"n": values, "at": range(6)})
    place = decode_key(encode_key((make_place(150),)))
    assert KeyRange(("n",), high=place).select(rows)["at"].to_pylist() == [1, 2, 5]
    assert KeyRange(("n",), low=place).select(rows)["at"].to_pylist() == [0, 3, 4]
    assert decode_key(encode_key((make_place(10**37),))) == ((0, 10**37),)


def test_zeros_are_one_place_and_nan_and_null_are_the_last_ones():
    rows = pa.record_batch({"f": [-math.inf, -0.0, 0.0, math.inf, math.nan, None], "at": range(6)})
    for place, below in (
        ((0, 0.0), 1),
        ((0, -0.0), 1),
        ((0, math.inf), 3),
        (NAN, 4),
        (NULL, 5),
        (BELOW, 0),
        (ABOVE, 6),
    ):
        assert KeyRange(("f",), high=(place,)).select(rows)["at"].to_pylist() == list(range(below))
        assert KeyRange(("f",), low=(place,)).select(rows)["at"].to_pylist() == list(range(below, 6))


def spans(*pairs):
    return [(Span((make_place(low),), (make_place(high),)), 10) for low, high in pairs]


@pytest.mark.parametrize(
    ("sized", "count", "lows"),
    [
        (spans(*((n, n + 1) for n in range(0, 80, 2))), 4, [20, 40, 60]),
        (spans(*((n, n + 100) for n in range(0, 80, 2))), 2, [78]),
        (spans((1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (2, 2)), 4, [2]),
        (spans((1, 1), (1, 1)), 4, []),
        (spans((1, 2), (1, 2), (1, 2)), 4, []),
        ([], 4, []),
    ],
    ids=["one after the other", "overlapping", "one key with most", "one key", "one place to begin", "nothing"],
)
def test_ranges_begin_where_row_groups_do_and_are_of_about_one_size(sized, count, lows):
    ranges = cut_order(["n"], sized, count=count)
    assert [each.low[0][1] for each in ranges[1:]] == lows
    assert [each.high for each in ranges] == [each.low for each in ranges[1:]] + [None]
    assert ranges[0].low is None


class Cut:
    """A merge of data files that the planner has put into two groups."""

    def __init__(self, made, markers, *, schema=COLUMNS, count=3):
        self.made = made
        self.markers = markers
        size_bytes = sum(marker.size_bytes for marker in markers)
        config = made.table.config.model_copy(update={"target_file_bytes": -(-size_bytes // count)})
        middle = max(1, len(markers) // 2)
        groups = [MergeGroup("", tuple(part)) for part in (markers[:middle], markers[middle:])]
        self.job = made.table.job(MergeJob, config=config, schema=schema, groups=tuple(groups))
        self.plan = None
        if are_worth_a_cut(self.job, groups):
            self.plan = RangedMerge.plan(self.job, groups, made.table.store, made.table.engine)

    def run(self, unit):
        """Run a unit, and see that what is told of its range travels."""
        assert TypeAdapter(MergeRange).validate_json(encode(unit.range)) == unit.range
        return merge_unit(unit, self.made.table.store, clock=self.made.table.clock)

    def merge(self):
        """Run all units; see that outputs are sorted, and follow each other."""
        done = [self.run(unit) for unit in self.plan.units]
        sort = self.made.table.config.sort
        ends = []
        for each in done:
            found = [self.made.read([marker]) for marker in each.outputs]
            names = [{name: found_row.get(name) for name in sort} for rows in found for found_row in rows.to_pylist()]
            keys_of_range = [key_of(each, sort) for each in names]
            ends += [min(keys_of_range), max(keys_of_range)] if keys_of_range else []
        assert all(high < low for high, low in list(pairwise(ends))[1::2]), "ranges overlap"
        assert ends == sorted(ends)
        merged = self.plan.unite(done, self.made.table.store)
        for marker in merged.outputs:
            check_file(self.made.table, marker)
        assert merged.contents.differences == ()
        assert merged.rows_read == sum(marker.row_count for marker in self.markers)
        assert [marker.path for marker in merged.group.inputs] == sorted(marker.path for marker in self.markers)
        return merged


def total_stats(outputs):
    """Return how many nulls some files have in each column, as the log says, and rows."""
    nulls = {}
    for marker in outputs:
        for name, (_, _, null_count) in marker.stats.items():
            nulls[name] = nulls.get(name, 0) + null_count
    return nulls, sum(marker.row_count for marker in outputs)


@given(files=some_files, sort=sorts.filter(bool), count=st.integers(2, 6))
@settings(max_examples=25, deadline=None, suppress_health_check=SHARED_FIXTURES)
def test_a_merge_that_is_cut_has_the_rows_of_one_that_is_not(make_table, tmp_path_factory, files, sort, count):
    made = Files(make_table, sort=sort)
    scratch = tmp_path_factory.mktemp("files")
    markers, schema = made.put_all(files, scratch)
    cut = Cut(made, markers, schema=schema, count=count)
    if cut.plan is None:
        return
    merged = cut.merge()
    uncut = made.merge(*markers, schema=schema)
    found, wanted = (made.read(each.outputs).sort_by("id") for each in (merged, uncut))
    assert keys(found) == keys(wanted.select(found.column_names))
    assert set(found.column_names) == set(wanted.column_names)
    assert total_stats(merged.outputs) == total_stats(uncut.outputs)
    assert {name for marker in merged.outputs for name in marker.inexact} == {
        name for marker in uncut.outputs for name in marker.inexact
    }
    origins = {cut.made.table.parquet(marker).metadata.metadata[b"icedb.inputs"] for marker in merged.outputs}
    assert len(origins) == 1, "a rebuild adds up what was written of one set of inputs"


def overlapping(made, tmp_path, *, count=4, size=5 * GROUP_ROWS, partition=""):
    rng = np.random.default_rng(count)
    files = []
    for number in range(count):
        places = rng.integers(0, 200, size)
        rows = [{"i": int(place), "s": f"v{place % 3}"} for place in places]
        files.append(made.put(make_rows(rows, number * size), tmp_path, partition=partition))
    return files


def test_a_driver_cuts_the_partitions_that_are_worth_it(make_table, tmp_path, monkeypatch):
    monkeypatch.setattr(merge_driver, "DIRECT_BYTES", 0)
    made = Files(make_table, sort=("i",))
    files = {name: overlapping(made, tmp_path, partition=f"p={name}") for name in ("few", "large", "other")}
    groups = [
        MergeGroup("p=few", tuple(files["few"][:2])),
        *(MergeGroup("p=large", tuple(files["large"][first : first + 2])) for first in (0, 2)),
        MergeGroup("p=other", tuple(files["other"])),
    ]
    size_bytes = groups[1].size_bytes
    config = made.table.config.model_copy(update={"target_file_bytes": size_bytes})
    job = made.table.job(MergeJob, config=config, schema=COLUMNS, groups=tuple(groups))
    store, clock = made.table.store, made.table.clock
    driver = MergeDriver(LocalRunner(store, clock=clock), clock=clock, limits=JobLimits(engine=made.table.engine))
    merged = {group.group.partition: group for group in driver.merge_groups(job)}
    assert len(merged) == 3
    for group in merged.values():
        assert group.contents.differences == ()
        assert group.rows_read == sum(marker.row_count for marker in group.group.inputs)
        assert group.rows_read == sum(marker.row_count for marker in group.outputs)
        assert {made.table.paths.partition_of(marker.path) for marker in group.outputs} == {group.group.partition}
    assert merged["p=large"].group.inputs == tuple(files["large"])
    (low, high), *others = [marker.stats["i"][:2] for marker in merged["p=large"].outputs]
    assert others
    assert high < others[0][0]
    assert low <= high


def test_a_range_reads_the_row_groups_that_it_touches(make_table, tmp_path, monkeypatch):
    made = Files(make_table, sort=("i",))
    cut = Cut(made, overlapping(made, tmp_path), count=3)
    assert len(cut.plan.units) == 3
    merged = cut.merge()
    assert 160 < merged.rows_decoded < 2 * 160, "edges are decoded twice"
    monkeypatch.setattr(data_files, "DECODED_SHARE", 1 << 40)  # as if memory were short: the native engine sorts
    spilled = cut.merge()
    assert keys(made.read(spilled.outputs).sort_by("id")) == keys(made.read(merged.outputs).sort_by("id"))


def test_what_a_range_leaves_out_does_not_make_it_spill(make_table, tmp_path, monkeypatch):
    made = Files(make_table, sort=("i",))
    cut = Cut(made, overlapping(made, tmp_path), count=3)
    whole = data_files.InputFile.decoded_bytes.fget
    too_much = property(lambda each: whole(each) if each.kept is None else 1 << 40)
    monkeypatch.setattr(data_files.InputFile, "decoded_bytes", too_much)
    monkeypatch.setattr(data_files.DataFiles, "_sort_outside", lambda *_: pytest.fail("it fits into memory"))
    assert 160 < cut.merge().rows_decoded < 2 * 160


def test_row_groups_that_nobody_overlaps_are_copied_in_each_range(make_table, tmp_path):
    made = Files(make_table, sort=("i",))
    in_order = [[{"i": 40 * number + n} for n in range(40)] for number in range(6)]
    files = [made.put(make_rows(rows, 40 * number), tmp_path) for number, rows in enumerate(in_order)]
    cut = Cut(made, files[::2] + files[1::2], count=3)
    merged = cut.merge()
    assert merged.rows_decoded == 0
    assert [marker.row_count for marker in merged.outputs] == [80, 80, 80]
    assert merged.copied_bytes == made.merge(*files).copied_bytes
    assert [len(unit.range.places) for unit in cut.plan.units] == [2, 2, 2], "and no other file is opened"


def test_an_empty_range_writes_nothing(make_table, tmp_path):
    made = Files(make_table, sort=("i",))
    files = [made.put(make_rows([{"i": place}] * 16, 16 * place), tmp_path) for place in (0, 10)]
    for low, high in ((3, 7), (11, None), (None, 0)):
        told = MergeRange(
            by=("i",),
            low=None if low is None else encode_key((make_place(low),)),
            high=None if high is None else encode_key((make_place(high),)),
            places=(0, 1),
            columns=tuple(COLUMNS),
        )
        unit = made.table.unit(MergeUnit, schema=COLUMNS, group=MergeGroup("", tuple(files)), range=told)
        done = merge_unit(unit, made.table.store, clock=made.table.clock)
        assert (done.outputs, done.rows_decoded) == ((), 0)


def test_rows_of_one_key_are_one_range(make_table, tmp_path):
    made = Files(make_table, sort=("i",))
    same = [made.put(make_rows([{"i": 5}] * 40, 40 * n), tmp_path) for n in range(3)]
    assert Cut(made, same).plan is None
    others = made.put(make_rows([{"i": n} for n in range(16)], 200), tmp_path)
    cut = Cut(made, [*same, others], count=6)
    merged = cut.merge()
    ranges = [KeyRange(("i",), decode_key(unit.range.low), decode_key(unit.range.high)) for unit in cut.plan.units]
    assert [each.touches(Span((make_place(5),), (make_place(5),))) for each in ranges].count(True) == 1
    assert sum(marker.row_count for marker in merged.outputs) == 136


def test_what_is_not_proven_stays_in_its_groups(make_table, tmp_path, monkeypatch):
    made = Files(make_table, sort=("i",))
    files = overlapping(made, tmp_path)
    assert Cut(made, files).plan is not None
    foreign = made.table.put_file(made.read(files[:1]).replace_schema_metadata(None), "foreign")
    assert Cut(made, [*files, foreign]).plan is None, "who knows whether its footer is right"
    gone = replace(files[0], path=f"{files[0].path}-gone")
    assert Cut(made, [*files, gone]).plan is None, "its task tells"
    odd = replace(files[0], size_bytes=files[0].size_bytes - 1)
    assert Cut(made, [odd, *files[1:]]).plan is None
    assert Cut(made, files, count=1).plan is not None, "two groups are two ranges"
    with monkeypatch.context() as patch:
        patch.setattr(made.table, "engine", replace(made.table.engine, scratch_bytes=files[0].size_bytes))
        assert Cut(made, files).plan is None, "a range would not fit where a group does"
    monkeypatch.setattr(merge_ranges, "READ_FACTOR", 1)
    assert Cut(made, files).plan is None, "too much would be read twice"
    unsorted = Files(make_table, sort=())
    assert Cut(unsorted, overlapping(unsorted, tmp_path)).plan is None


def test_a_row_that_a_range_loses_is_noticed(make_table, tmp_path, monkeypatch):
    made = Files(make_table, sort=("i",))
    cut = Cut(made, overlapping(made, tmp_path))
    select = KeyRange.select
    monkeypatch.setattr(KeyRange, "select", lambda each, rows: select(each, rows).slice(1))
    done = [cut.run(unit) for unit in cut.plan.units]
    merged = cut.plan.unite(done, made.table.store)
    assert sum(marker.row_count for marker in merged.outputs) < merged.rows_read
    assert merged.contents.differences
