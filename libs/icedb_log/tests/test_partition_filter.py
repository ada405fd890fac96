"""Partition filters: text form, checks against the spec, and what they keep."""

import pytest
from icedb_log.errors import InvalidRequest
from icedb_log.repair.fsck_data import find_partition_problem
from icedb_log.table.partitions import (
    PartitionFilter,
    PartitionMatcher,
    parse_partition_filters,
    read_partition_values,
)
from icedb_log.table.table_config import TIME_TRANSFORMS, PartitionField, TableConfig
from icedb_log.table.transforms import VALUE_SHAPES, read_time_span


@pytest.fixture
def config():
    spec = ("d=day(ts)", "u=bucket[16](user_id)", "country", "n=amount")
    return TableConfig.create(
        name="events",
        partition=tuple(PartitionField.parse(text) for text in spec),
        declared={"amount": "BIGINT"},
    )


def matches(config, texts, **values):
    return PartitionMatcher(parse_partition_filters(texts), config).matches(values)


@pytest.mark.parametrize(
    ("texts", "values", "expected"),
    [
        ([], {"d": None}, True),
        (["d=2026-01-02"], {"d": "2026-01-02"}, True),
        (["d=2026-01-02"], {"d": "2026-01-03"}, False),
        (["d=2026-01-02"], {"d": None}, False),
        (["d=2026-01-02", "d=2026-01-03"], {"d": "2026-01-03"}, True),
        (["d>=2026-01-02"], {"d": "2026-01-02"}, True),
        (["d>2026-01-02"], {"d": "2026-01-02"}, False),
        (["d<=2026-01-02"], {"d": "2026-01-02"}, True),
        (["d<2026-01-02"], {"d": "2026-01-02"}, False),
        (["d<2026-01-02"], {"d": None}, False),
        (["d>=2026-01-01", "d<2026-02-01"], {"d": "2026-01-31"}, True),
        (["d>=2026-01-01", "d<2026-02-01"], {"d": "2026-02-01"}, False),
        (["u>9"], {"u": "10"}, True),
        (["u<10"], {"u": "9"}, True),
        (["n>=-5"], {"n": "-40"}, False),
        (["n<-5"], {"n": "-40"}, True),
        (["country=a=b"], {"country": "a=b"}, True),
        (["country= DE "], {"country": "DE"}, True),
        (["country>=M"], {"country": "Ä"}, True),
        (["d=2026-01-02"], {}, True),
        (["country~*"], {"country": None}, False),
        (["country~d?"], {"country": "de"}, True),
        (["country~D?"], {"country": "de"}, False),
        (["country~[!d]*"], {"country": "de"}, False),
        (["country is null"], {"country": None}, True),
        (["country is null"], {"country": ""}, False),
        (["country is NOT null"], {"country": ""}, True),
        (["country="], {"country": ""}, True),
        (["d=2026-01-02", "u=3"], {"d": "2026-01-02", "u": "4"}, False),
    ],
)
def test_what_a_filter_keeps(config, texts, values, expected):
    assert matches(config, texts, **values) is expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("d", "field=value"),
        ("", "field=value"),
        ("../x=1", "field=value"),
        ("nope=1", "no partition field 'nope'; its partition fields are d=day(ts)"),
        ("d=yesterday", "not a day such as 2026-01-31"),
        ("d>=2026-1-1", "not a day"),
        ("u=abc", "not a bucket number"),
        ("n=1.5", "not a whole number"),
        ("country=" + "x" * 10_000, "longer than 1024 bytes"),
    ],
)
def test_bad_filters_are_refused_with_the_remedy(config, text, words):
    with pytest.raises(InvalidRequest) as caught:
        matches(config, [text])
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


def test_limits(config):
    with pytest.raises(InvalidRequest, match="at most 64"):
        PartitionMatcher([PartitionFilter.equals("country", "DE")] * 65, config)
    with pytest.raises(InvalidRequest, match="use a range"):
        PartitionMatcher([PartitionFilter.equals("country", *map(str, range(10_001)))], config)
    with pytest.raises(InvalidRequest, match="no condition"):
        PartitionMatcher([PartitionFilter("country")], config)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("", {}),
        ("d=2026-01-02/u=3", {"d": "2026-01-02", "u": "3"}),
        ("country=S_c3_a3o", {"country": "São"}),
        ("country=_", {"country": ""}),
        ("country=__HIVE_DEFAULT_PARTITION__", {"country": None}),
        ("country=_5f_HIVE_DEFAULT_PARTITION__", {"country": "__HIVE_DEFAULT_PARTITION__"}),
        ("odd/d=2026-01-02", {"d": "2026-01-02"}),
    ],
)
def test_values_are_read_from_paths(path, values):
    assert read_partition_values(path) == values


def test_a_table_without_partitions_says_so():
    with pytest.raises(InvalidRequest, match="not partitioned"):
        PartitionMatcher([PartitionFilter.equals("d", "x")], TableConfig.create(name="plain"))


@pytest.mark.parametrize("condition", [{"any_of": frozenset({"\ud800"})}, {"at_least": "\udcff"}])
def test_a_value_that_is_no_text_is_refused(config, condition):
    with pytest.raises(InvalidRequest, match="half a character"):
        PartitionMatcher([PartitionFilter("country", **condition)], config)


TIMES = {
    "year": ("2026", ["rubbish", "", "2026-01"]),
    "month": ("2024-02", ["rubbish", "2026", "2026-13", "2026-00", "2026-1", "2026-01-01"]),
    "day": ("2024-02-29", ["rubbish", "2026-02-29", "2026-01-32", "2026-01-00", "2026-1-1", "2026-01-01-00"]),
    "hour": (
        "2024-02-29-23",
        ["rubbish", "2026-02-29-00", "2026-01-01-24", "2026-01-01", "2026-01-01T00", "2026-1-1-1"],
    ),
}


@pytest.mark.parametrize("operator", ["=", ">=", "<"])
@pytest.mark.parametrize("transform", TIME_TRANSFORMS)
def test_what_no_partition_of_a_transform_is_called_is_refused(transform, operator):
    """It would match nothing, without a word."""
    config = TableConfig.create(name="events", partition=(PartitionField.parse(f"x={transform}(ts)"),))
    good, wrong = TIMES[transform]
    PartitionMatcher(parse_partition_filters([f"x{operator}{good}"]), config)
    for value in wrong:
        with pytest.raises(InvalidRequest, match=f"is not an? {transform} such as"):
            PartitionMatcher(parse_partition_filters([f"x{operator}{value}"]), config)


@pytest.mark.parametrize("transform", sorted(TIME_TRANSFORMS))
def test_checks_filters_and_spans_know_the_same_values_of_a_time(transform):
    field = PartitionField.parse(f"f={transform}(ts)")
    config = TableConfig.create(name="events", partition=(field,))
    value = VALUE_SHAPES[transform][1].rpartition(" ")[2]
    assert find_partition_problem(f"f={value}", (field,)) is None
    assert read_time_span(transform, value) is not None
    assert matches(config, [f"f={value}"], f=value)
    # Rows of a year that Python does not know lie in partitions, too; nothing is concluded from their names.
    far = f"1{value}"
    assert find_partition_problem(f"f={far}", (field,)) is None
    assert read_time_span(transform, far) is None
    assert read_time_span(transform, f"+{value}") is None
    for wrong in ["soon"] if transform == "year" else ["soon", far]:
        with pytest.raises(InvalidRequest, match=f"is not {VALUE_SHAPES[transform][1]}"):
            matches(config, [f"f={wrong}"], f=value)
