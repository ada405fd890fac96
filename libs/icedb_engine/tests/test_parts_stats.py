"""Bounds that are cut stay bounds."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_engine.writing.part_files import StatsCollector

LAST = "\U0010ffff"


def stats_of(*values):
    collector = StatsCollector(["x"])
    for value in values:
        collector.add(pa.table({"x": pa.array([value], pa.string())}))
    return collector.finish()["x"]


@pytest.mark.parametrize(
    ("text", "high"),
    [
        ("a" * 64, "a" * 64),
        ("a" * 65, "a" * 63 + "b"),
        ("a" * 63 + "\ud7ff" + "a", "a" * 63 + "\ue000"),
        ("a" * 63 + LAST + "a", "a" * 62 + "b"),
        (LAST * 70, None),
    ],
)
def test_a_long_maximum_is_rounded_up(text, high):
    low = None if high is None else text[:64]
    assert stats_of(text, None) == (low, high, 1)


@given(st.lists(st.text(st.sampled_from(["a", "é", "\ud7ff", LAST]), min_size=62, max_size=68), min_size=1, max_size=4))
def test_cut_bounds_bound_every_value(values):
    low, high, null_count = stats_of(*values)
    assert null_count == 0
    if low is not None:
        assert all(low <= value <= high for value in values)
        assert max(len(low), len(high)) <= 64


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_has_no_json_form_leaves_no_bounds(bad):
    collector = StatsCollector(["x"])
    for value in (1.0, bad, None):
        collector.add(pa.table({"x": pa.array([value], pa.float64())}))
    assert collector.finish() == {"x": (None, None, 1)}
