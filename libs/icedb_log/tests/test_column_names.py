"""Names of columns: one spelling each, none of a partition, none that files cannot have."""

import pytest
from icedb_log.table.column_names import ColumnNames
from icedb_log.table.table_config import PartitionField, TableConfig

CONFIG = TableConfig.create(
    name="events", partition=tuple(PartitionField.parse(text) for text in ("d=day(ts)", "country"))
)


@pytest.fixture
def names():
    return ColumnNames(CONFIG, ("ts", "User", "user"))


def test_who_spells_a_name_first_is_right(names):
    assert len(names) == 2
    assert names.add("USER") == "User"
    assert names.find_case_problem("User") is None
    assert "'User' and 'uSer' differ only in case" in names.find_case_problem("uSer")
    assert "TS" in names
    assert "new" not in names


def test_more_names_leave_the_ones_before_alone(names):
    more = names.plus(["new", "New"])
    assert (len(names), len(more)) == (2, 3)
    assert "'new' and 'New'" in more.find_case_problem("New")
    assert names.find_case_problem("New") is None
    assert more.find_problem("d") is not None


@pytest.mark.parametrize("name", ["d", "D"])
def test_no_column_is_named_like_a_partition_that_comes_from_another_one(names, name):
    assert f"column {name!r} is named like the partition d=day(ts)" in names.find_problem(name)


@pytest.mark.parametrize("name", ["", "a\n", "x" * 256, "__filename"])
def test_no_column_has_a_name_that_files_cannot_have(names, name):
    assert names.find_problem(name).startswith("column name ")


@pytest.mark.parametrize("name", ["country", "ts", "anything"])
def test_other_names_are_taken(names, name):
    assert names.find_problem(name) is None
