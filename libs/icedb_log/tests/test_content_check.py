"""What footers prove of a merge's values (M6): nothing that is wrong, and nothing that is not said."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.jobs import ContentCheck
from icedb_log.merge.content_check import compare_contents
from icedb_log.parquet.footer import ColumnBounds, Footer
from icedb_log.store.object_store import ObjectInfo

INFO = ObjectInfo("f", "", 100, 0)


def footer(*values, kind="BIGINT", **changes):
    """What the footer of a file with these values in column x says."""
    known = [value for value in values if value is not None]
    bounds = ColumnBounds(
        min(known, default=None), max(known, default=None), len(values) - len(known), is_exact=bool(known)
    )
    return Footer(INFO, len(values), {"x": kind}, bounds={"x": replace(bounds, **changes)})


def without_column(row_count):
    return Footer(INFO, row_count, {})


def compare(inputs, outputs, kind="BIGINT"):
    found = compare_contents(inputs, outputs, {"x": kind})
    assert found.equal_count + found.unproven_count + len(found.differences) == 2
    return found.equal_count, found.unproven_count, len(found.differences)


@pytest.mark.parametrize("odd", [{}, {"d": "nested"}])
def test_m1_a_column_of_an_output_that_the_table_has_not_is_a_difference(odd):
    columns = {"x": "BIGINT"} if odd else {"x": "BIGINT", "d": "DATE"}
    file = replace(footer(1, 2), columns=columns, odd_columns=odd)
    assert not compare_contents([file], [footer(1, 2)], {"x": "BIGINT"}).differences, "inputs may have others"
    found = compare_contents([footer(1, 2)], [footer(1, 2), file], {"x": "BIGINT"}).differences
    assert found[-1] == "column 'd' is in the outputs, and the table has no such column"


@given(st.lists(st.lists(st.none() | st.integers(), max_size=5), min_size=1, max_size=5), st.data())
def test_the_same_values_in_other_files_are_equal_and_a_changed_one_is_seen_at_a_bound(files, data):
    values = sorted((value for file in files for value in file), key=lambda value: (value is None, value))
    cut = data.draw(st.integers(0, len(values)))
    inputs = [footer(*file) for file in files]
    assert compare(inputs, [footer(*values[:cut]), footer(*values[cut:])]) == (2, 0, 0)
    assert compare([*inputs, without_column(2)], [footer(*values, None, None)]) == (2, 0, 0)
    if values:
        lost = [*values[1:], None]
        assert compare(inputs, [footer(*lost)])[2] >= (lost != values)
    known = [value for value in values if value is not None]
    if known:
        for place, change in ((0, -1), (0, 1), (len(known) - 1, 1), (len(known) - 1, -1)):
            other = [*known]
            other[place] += change
            is_seen = (min(other), max(other)) != (known[0], known[-1])
            assert compare(inputs, [footer(*other, *[None] * (len(values) - len(known)))])[2] == is_seen


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("silent", "expected"),
    [
        (None, (0, 2, 0)),
        (footer(1, 2, null_count=None), (1, 1, 0)),
        (footer(1, 2, low=None, high=None, is_exact=False), (1, 1, 0)),
        (footer(0, 3, is_exact=False), (1, 1, 0)),  # cut: bounds, and no values
        (Footer(INFO, 2, {}, {"x": "a list"}), (0, 2, 0)),
        (Footer(INFO, 2, {"x": "BIGINT"}), (0, 2, 0)),
        (footer("1", "2", kind="VARCHAR"), (1, 1, 0)),  # of a type that is not written as another one
    ],
)
def test_what_is_not_said_proves_nothing(silent, expected, side):
    sides = [[footer(1, 2), footer(5)], [footer(1, 2), footer(5)]]
    sides[side][0] = silent
    assert compare(*sides) == expected


def test_only_nulls_have_no_bounds_and_prove_that_none_may_come():
    nulls = footer(None, None)
    assert compare([nulls, without_column(1)], [footer(None, None, None)]) == (2, 0, 0)
    assert compare([nulls], [without_column(2)]) == (2, 0, 0)
    assert compare([nulls], [footer(None, 3)]) == (0, 0, 2)
    assert compare([footer(1)], [without_column(1)]) == (0, 0, 2)
    assert compare([], []) == (2, 0, 0)
    assert compare([footer()], []) == (2, 0, 0)


@pytest.mark.parametrize(
    ("narrow", "low", "high", "wide", "expected_low", "expected_high"),
    [
        ("BIGINT", -(1 << 53), 7, "DOUBLE", -9007199254740992.0, 7.0),
        ("BIGINT", -(1 << 53) - 1, 7, "DOUBLE", -9007199254740992.0, 7.0),
        ("DATE", "0001-01-01", "2024-02-29", "TIMESTAMP", "0001-01-01T00:00:00.000000Z", "2024-02-29T00:00:00.000000Z"),
        ("DOUBLE", -0.0, 0.0, "DOUBLE", 0.0, -0.0),
    ],
)
def test_bounds_are_compared_in_the_type_that_is_written(narrow, low, high, wide, expected_low, expected_high):
    before = footer(low, high, kind=narrow)
    assert compare([before], [footer(expected_low, expected_high, kind=wide)], wide) == (2, 0, 0)
    assert compare([before], [footer(expected_low, expected_low, kind=wide)], wide)[2] == (
        expected_low != expected_high
    )


def test_a_difference_says_which_column_and_no_value():
    found = compare_contents([footer("secret-1", kind="VARCHAR")], [footer(None, kind="VARCHAR")], {"x": "VARCHAR"})
    assert found == ContentCheck(
        0,
        0,
        (
            "column 'x' has 0 nulls in the inputs and 1 in the outputs",
            "column 'x' has another lowest or highest value in the outputs than in the inputs",
        ),
    )
