"""Values in Iceberg's forms, compared with PyIceberg's own."""

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_iceberg.column_types import (
    SpecField,
    count_micros,
    pack_bounds,
    pack_value,
    read_partition_value,
    transform_value,
)
from icedb_iceberg.table_form import find_result
from icedb_log.table.file_domains import Domain
from icedb_log.table.table_config import PartitionField
from icedb_log.table.transforms import transform_value as our_value
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    TimestampType,
)  # fmt: skip

PYICEBERG = {
    "boolean": BooleanType(), "date": DateType(), "double": DoubleType(), "long": LongType(), "string": StringType(),
    "timestamp": TimestampType(),
}  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
VALUES = {
    "boolean": st.booleans(),
    "date": st.dates(),
    "double": st.floats(allow_nan=False),
    "long": st.integers(-(2**63), 2**63 - 1),
    "string": TEXT,
    "timestamp": st.datetimes(),
}
TRANSFORMS = [
    ("identity", None, "string"), ("identity", None, "long"), ("identity", None, "boolean"), ("identity", None, "date"),
    ("identity", None, "timestamp"),
    *((name, None, kind) for name in ("year", "month", "day") for kind in ("date", "timestamp")),
    ("hour", None, "timestamp"),
]  # fmt: skip


def make_spec(transform, width, kind):
    field = PartitionField(name="p", transform=transform, column="c", width=width)
    return SpecField(
        field, "p", f"{transform}[{width}]" if width else transform, 1, 1000, kind, find_result(field, kind)
    )


@given(data=st.data(), kind=st.sampled_from(sorted(VALUES)))
def test_the_binary_form_is_that_of_pyiceberg(data, kind):
    value = data.draw(VALUES[kind])
    number = {"date": lambda: (value - date(1970, 1, 1)).days, "timestamp": lambda: count_micros(value)}
    plain = number[kind]() if kind in number else value
    assert pack_value(kind, value) == to_bytes(PYICEBERG[kind], plain)


@given(data=st.data(), how=st.sampled_from(TRANSFORMS))
def test_what_a_path_says_is_what_iceberg_computes(data, how):
    spec = make_spec(*how)
    value = data.draw(VALUES[how[2]])
    text = our_value(spec.field, value)
    plain = value
    if how[2] == "date":
        plain = (value - date(1970, 1, 1)).days
    elif how[2] == "timestamp":
        plain = count_micros(value)
    theirs = parse_transform(spec.transform).transform(PYICEBERG[how[2]])(plain)
    assert read_partition_value(spec, text) == transform_value(spec, value) == theirs


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (("identity", None, "long"), "007"),
        (("identity", None, "long"), "x"),
        (("identity", None, "long"), str(2**63)),
        (("identity", None, "boolean"), "TRUE"),
        (("identity", None, "date"), "20230607"),
        (("identity", None, "timestamp"), "2023-06-07T10:00:00+02:00"),
        (("day", None, "timestamp"), "2023-02-30"),
        (("month", None, "timestamp"), "2023-06-07"),
        (("hour", None, "timestamp"), "2023-06-07-24"),
    ],
)
def test_a_text_that_no_row_of_ours_has_is_no_value(how, text):
    with pytest.raises(ValueError):
        read_partition_value(make_spec(*how), text)


@pytest.mark.parametrize(
    ("transform", "width", "kind"),
    [("bucket", 4, "string"), ("bucket", 4, "long"), ("day", None, "long"), ("hour", None, "date"),
     ("identity", None, "double"), ("truncate", 2, "string"), ("truncate", 10, "long"), ("truncate", 2, "decimal(9,2)"), ("identity", None, "uuid")],
)  # fmt: skip
def test_transforms_that_mean_something_else_in_iceberg_are_not_said(transform, width, kind):
    assert find_result(PartitionField(name="p", transform=transform, column="c", width=width), kind) is None


def test_bounds_of_zero_take_both_zeros():
    low, high = pack_bounds("double", Domain("DOUBLE", 0.0, -0.0))
    assert math.copysign(1, from_bytes(DoubleType(), low)) == -1
    assert math.copysign(1, from_bytes(DoubleType(), high)) == 1


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("long", 1, 2**63), ("string", "a", "\ud800"), ("string", 1, 2), ("double", None, 1.0), ("decimal(9,2)", 1, 2),
     ("long", 1.5, 2)],
)  # fmt: skip
def test_what_is_no_value_of_the_column_bounds_nothing(kind, low, high):
    assert pack_bounds(kind, Domain("X", low, high)) is None


def test_times_before_1970():
    spec = make_spec("hour", None, "timestamp")
    moment = datetime(1969, 12, 31, 23, 30)
    assert transform_value(spec, moment) == -1
    assert count_micros(moment) == -1_800_000_000
    assert timedelta(microseconds=count_micros(moment)) == moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)


@given(st.integers(-(10**22) + 1, 10**22 - 1) | st.sampled_from([0, -1, 127, 128, -128, -129, 255, 256]))
def test_bounds_of_decimals_are_those_of_the_specification(number):
    value = Decimal(number).scaleb(-2)
    domain = Domain("DECIMAL(22,2)", value, value)
    assert pack_bounds("decimal(22,2)", domain) == (to_bytes(DecimalType(22, 2), value),) * 2
