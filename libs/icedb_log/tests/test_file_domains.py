"""What the statistics of a file say of a column whose type is not at hand."""

import pytest
from icedb_log.model import FileMarker
from icedb_log.table.file_domains import DomainReader
from icedb_log.table.table_config import TableConfig


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, 2, "BIGINT"), (-(2**53), 2**53, "BIGINT"), (1, 2**53 + 1, None), (-(2**53) - 1, 1, None), (1.5, 2.5, "DOUBLE"),
        (False, True, "BOOLEAN"), ("a", "b", "VARCHAR"), ("1.50", "2.50", None), ("-3", "4", None), (None, None, None),
        ("2023-06-07", "x", None), ("2023-06-07T00:00:00.000000Z", "x", None), ("2023-06-07T00:00:00Z", "x", "VARCHAR"),
    ],
)  # fmt: skip
def test_a_type_is_guessed_only_where_bounds_can_be_of_no_other(low, high, expected):
    """Text that is a decimal compares as a number, an integer beyond 2^53 as another one than as a DOUBLE."""
    marker = FileMarker("t/_data/x.parquet", 1, 1, row_count=3, stats={"c": (low, high, 0)})
    assert DomainReader(TableConfig.create(name="t")).read(marker, "C").sql_type == expected
