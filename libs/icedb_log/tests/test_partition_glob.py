"""Globs over partition paths: level by level, encoded or decoded, and never understood half."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from icedb_log.errors import InvalidRequest
from icedb_log.table.partitions import (
    HIVE_NULL,
    MAX_GLOBS,
    PartitionGlob,
    decode_partition,
    encode_partition_value,
    select_partitions,
)

VALUES = st.text(alphabet=st.sampled_from("ab0_-/ *?[]!é"), max_size=6)
PATTERNS = st.text(alphabet=st.sampled_from("ab0_-*?[]!é"), max_size=5)

DAYS = ["d=2023-06-01/u=a", "d=2023-06-01/u=b", "d=2023-06-02/u=a", "d=2023-07-01/u=a"]


def matches(glob, path):
    return PartitionGlob.parse(glob).matches(path)


@pytest.mark.parametrize(
    ("glob", "path", "expected"),
    [
        ("d=2023-06-*", "d=2023-06-07", True),
        ("d=2023-06-*", "d=2023-07-07", False),
        ("d=2023-06-0[1-3]", "d=2023-06-02", True),
        ("d=2023-06-0[!1-3]", "d=2023-06-02", False),
        ("d=2023-06-0?", "d=2023-06-02", True),
        ("d=2023-06-01/u=*", "d=2023-06-01/u=a", True),
        ("d=2023-06-01/u=*", "d=2023-06-01", False),
        ("d=2023-06-01", "d=2023-06-01/u=a", True),
        ("d=2023-*a", "d=2023-06-01/u=a", False),
        ("*/u=a", "d=2023-06-01/u=a", True),
        ("*", "d=1/u=2", True),
        ("c=São", "c=S_c3_a3o", True),
        ("c=S_c3*", "c=S_c3_a3o", True),
        ("c=", "c=_", True),
        ("c=* x", "c=a_20x", True),
        (f"d={HIVE_NULL}", f"d={HIVE_NULL}", True),
        ("d=2023.06.01", "d=2023-06-01", False),
        ("d=2023-06-01\n", "d=2023-06-01", False),
        ("D=2023-06-01", "d=2023-06-01", False),
    ],
)
def test_matches(glob, path, expected):
    assert matches(glob, path) is expected


@given(st.lists(VALUES, min_size=1, max_size=3), st.lists(PATTERNS, min_size=1, max_size=3))
@example(["a/b"], ["a?b"])
@example([""], [""])
@example(["*"], ["[*]"])
def test_each_level_fits_by_itself_in_one_of_its_two_forms(values, patterns):
    path = "/".join(f"k{n}={encode_partition_value(value)}" for n, value in enumerate(values))
    glob = "/".join(f"k{n}={pattern}" for n, pattern in enumerate(patterns))
    expected = len(patterns) <= len(values) and all(
        fnmatchcase(value, pattern) or fnmatchcase(encode_partition_value(value), pattern)
        for pattern, value in zip(patterns, values, strict=False)
    )
    assert matches(glob, path) == expected


@given(st.lists(VALUES, min_size=1, max_size=3))
def test_an_encoded_path_means_itself_and_no_other(values):
    path = "/".join(f"k{n}={encode_partition_value(value)}" for n, value in enumerate(values))
    assert matches(path, path)
    assert not matches(path, path + "x")


@pytest.mark.parametrize("glob", ["", "2023-06-*", "d=1/", "=x", "/d=1", "d", "**"])
def test_a_level_that_is_no_name_and_value_is_refused(glob):
    with pytest.raises(InvalidRequest, match="is not name=value; write for example"):
        PartitionGlob.parse(glob)


def test_a_glob_has_a_limit():
    with pytest.raises(InvalidRequest, match="at most 4096 bytes"):
        PartitionGlob.parse("d=" + "é" * 2048)
    with pytest.raises(InvalidRequest, match="give 1 to 1000 partition globs, not 1001"):
        select_partitions("t", ["d=*"] * (MAX_GLOBS + 1), DAYS)
    with pytest.raises(InvalidRequest, match="not 0"):
        select_partitions("t", [], DAYS)


def test_globs_add_up():
    assert select_partitions("t", ["d=2023-06-01", "d=*/u=b", "d=2023-07-*"], DAYS) == {DAYS[0], DAYS[1], DAYS[3]}


def test_a_glob_that_finds_nothing_names_the_nearest():
    with pytest.raises(
        InvalidRequest, match=r"no partition fits 'd=2023-08-\*'; the nearest are d=2023-06-01/u=a, d=2"
    ):
        select_partitions("t", ["d=2023-06-*", "d=2023-08-*"], DAYS)
    with pytest.raises(InvalidRequest, match="the nearest are d=2023-07-01/u=a, d=2023-06"):
        select_partitions("t", ["d=2023-07-05"], DAYS)
    with pytest.raises(InvalidRequest, match="nearest are c=São"):
        select_partitions("t", ["c=Sao"], ["c=S_c3_a3o"], may_match_all=True)
    with pytest.raises(InvalidRequest, match="the table has no live data files"):
        select_partitions("t", ["d=2023-06-*"], [])


def test_everything_has_to_be_asked_for():
    for globs in (["*"], ["d=2023-*"], ["d=*/u=a", "d=*/u=b"]):
        with pytest.raises(InvalidRequest, match="means all 4 partitions of the table; say so with --force"):
            select_partitions("t", globs, DAYS)
        assert select_partitions("t", globs, DAYS, may_match_all=True) == set(DAYS)


def test_a_table_without_partitions_has_none_to_remove():
    with pytest.raises(InvalidRequest, match="table t is not partitioned; delete rows with"):
        select_partitions("t", ["*"], [""], may_match_all=True)


def test_a_path_for_people():
    assert decode_partition("c=S_c3_a3o/u=_") == "c=São/u="
    assert decode_partition("") == ""
