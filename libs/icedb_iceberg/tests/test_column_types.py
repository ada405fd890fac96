"""Types of columns: what the log says, and what Iceberg says of it."""

import pytest
from icedb_iceberg.column_types import NestedType, find_type
from icedb_log.table.table_config import SQL_TYPES


def test_every_type_of_our_own_tables_is_said():
    found = {sql_type: find_type(sql_type) for sql_type in SQL_TYPES}
    assert found == {
        "BIGINT": "long",
        "BOOLEAN": "boolean",
        "DATE": "date",
        "DOUBLE": "double",
        "TIMESTAMP": "timestamp",
        "VARCHAR": "string",
    }


@pytest.mark.parametrize(
    ("sql_type", "wanted"),
    [
        ("INTEGER", "int"),
        ("UINTEGER", "long"),
        ("HUGEINT", "double"),
        ("FLOAT", "float"),
        ("DECIMAL(18,3)", "decimal(18,3)"),
        ("decimal(38, 0)", "decimal(38,0)"),
        ("TIMESTAMP WITH TIME ZONE", "timestamptz"),
        ("JSON", "string"),
        ("ENUM('a', 'b,c')", "string"),
        ("BLOB", "binary"),
        ("UUID", "uuid"),
        ("VARCHAR[]", NestedType("list", (("element", "string"),))),
        ("INTEGER[3]", NestedType("list", (("element", "int"),))),
        ("MAP(VARCHAR, DECIMAL(4,1))", NestedType("map", (("key", "string"), ("value", "decimal(4,1)")))),
        (
            'STRUCT(a BIGINT, "b, ""c" STRUCT(d VARCHAR[]))[]',
            NestedType(
                "list",
                (
                    (
                        "element",
                        NestedType(
                            "struct",
                            (
                                ("a", "long"),
                                ('b, "c', NestedType("struct", (("d", NestedType("list", (("element", "string"),))),))),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ],
)
def test_types_of_other_writers(sql_type, wanted):
    assert find_type(sql_type) == wanted


@pytest.mark.parametrize(
    "sql_type",
    ["UBIGINT", "TIMESTAMP_NS", "INTERVAL", "BIT", "DECIMAL(39,0)", "DECIMAL(2,3)", "UNION(a INTEGER)", "",
     "STRUCT(a UBIGINT)", "STRUCT()", "STRUCT(a)", "MAP(VARCHAR)", "MAP(VARCHAR, INTERVAL)", "INTERVAL[]", "nonsense(1)"],
)  # fmt: skip
def test_what_iceberg_cannot_say_is_left_out_whole(sql_type):
    assert find_type(sql_type) is None


def test_what_comes_after_a_nested_field_is_a_field_of_its_own():
    nested = find_type("STRUCT(a INTEGER[], b DECIMAL(9,2), c VARCHAR)")
    assert [name for name, _ in nested.parts] == ["a", "b", "c"]
