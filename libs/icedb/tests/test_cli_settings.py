"""Options made from the fields of a table's configuration."""

import json

import pytest
from icedb.cli import table_settings
from icedb.cli.table_settings import (
    ALTER_FIELDS,
    CREATE_FIELDS,
    HIDDEN_FIELDS,
    NAMED_FIELDS,
    read_settings,
)
from icedb_log.changes.table_changes import FREE_FIELDS, RISING_FIELDS
from icedb_log.errors import InvalidRequest
from icedb_log.table.table_config import TableConfig
from icedb_log.units import DAY_MS, HOUR_MS, MIB

GIVEN = [
    ("declared", ("--column", "n:DOUBLE"), {"n": "DOUBLE", "ts": "TIMESTAMP"}),
    ("promoted", ("--promote", 'p."a.b":DOUBLE as x'), {"x": ["p", "a.b"]}),
    ("evolution", ("--set", "evolution=add_columns"), "add_columns"),
    ("on_bad_rows", ("--set", "on_bad_rows=quarantine_batch"), "quarantine_batch"),
    ("retention_ms", ("--retention", "2d"), 2 * DAY_MS),
    ("target_file_bytes", ("--set", "target_file_mb=0.5"), MIB // 2),
    ("merge_fan_in", ("--set", "merge_fan_in=3"), 3),
    ("max_partitions_per_flush", ("--set", "max_partitions_per_flush=7"), 7),
    ("data_grace_ms", ("--set", "data_grace=7h"), 7 * HOUR_MS),
    ("log_grace_ms", ("--set", "log_grace=30s"), 30_000),
    ("orphan_age_ms", ("--set", "orphan_age=2d"), 2 * DAY_MS),
    ("key_memory", ("--set", "key_memory=retry"), "retry"),
    ("iceberg", ("--set", "iceberg=on-commit"), "on-commit"),
    ("iceberg_bounds", ("--set", "iceberg_bounds=off"), "off"),
    ("audit_retention_ms", ("--set", "audit_retention=30d"), 30 * DAY_MS),
    ("quarantine_retention_ms", ("--set", "quarantine_retention=1h"), HOUR_MS),
]
BY_A_WORKER = {"insert_query", "source", "merge_query", "view_of", "view_query", "view_backfill"}
"""Options of queries; what a worker says of them is in the tests of views and of insert queries."""


@pytest.fixture
def icedb(folder, run_icedb):
    return run_icedb


@pytest.mark.parametrize(("field", "options", "expected"), GIVEN, ids=[field for field, _, _ in GIVEN])
def test_each_option_sets_its_field(icedb, field, options, expected):
    made = json.loads(icedb("table", "create", "t", "--partition", "d=day(ts)", *options, "-o", "json"))
    assert made["config"][field] == expected
    if field in ALTER_FIELDS:
        icedb("table", "create", "u", "--partition", "d=day(ts)")
        assert json.loads(icedb("table", "alter", "u", *options, "-o", "json"))["config"][field] == expected


def test_every_field_is_an_option_or_said_to_be_none(icedb):
    assert set(CREATE_FIELDS) | HIDDEN_FIELDS == TableConfig.model_fields.keys()
    assert {field for field, _, _ in GIVEN} | BY_A_WORKER | {"times"} == set(CREATE_FIELDS)
    assert set(ALTER_FIELDS) == (FREE_FIELDS | RISING_FIELDS | {"declared", "promoted", "times"}) - HIDDEN_FIELDS
    create, alter = icedb("table", "create", "--help"), icedb("table", "alter", "--help")
    flags = {
        field: f"{table_settings._flag_of(field)[0]} " if field in NAMED_FIELDS else f"{table_settings._key_of(field)}="
        for field in CREATE_FIELDS
    }
    assert len(NAMED_FIELDS) == 9
    assert not [field for field, flag in flags.items() if f" {flag}" not in create]
    assert [field for field, flag in flags.items() if f" {flag}" in alter] == list(ALTER_FIELDS)


def test_the_help_is_what_stands_below_the_field_without_marks_for_programmers(icedb):
    words = " ".join(icedb("table", "create", "--help").split())
    assert (
        "data_grace=TIME How long a dead data file stays: longer than the longest query. At least 1 min; alter makes it longer only. [default: 6 h]"
        in words
    )
    assert "bounds time travel and the retry window of a batch." in words
    assert "at least 1h; off: for ever." in words
    assert "SQL over _rows that every flush runs" in words
    assert "``" not in words
    assert "6 h]" not in icedb("table", "alter", "--help"), "what is not given stays as it is"


def test_off_takes_back_and_floors_are_named_with_their_option():
    typed = {"retention_ms": "off", "merge_query": " OFF ", "quarantine_retention_ms": "off"}
    assert read_settings(typed) == dict.fromkeys(typed)
    with pytest.raises(InvalidRequest, match="--set data_grace 59s is 59000 ms, below the floor of 60000 ms"):
        read_settings({"data_grace_ms": "59s"})
    with pytest.raises(InvalidRequest, match="--set data_grace 'off' is not a duration"):
        read_settings({"data_grace_ms": "off"})


def test_a_word_that_is_none_of_the_choices_is_told_with_them(icedb):
    said = icedb("table", "create", "t", "--set", "evolution=bogus", code=2)
    assert "--set evolution: 'bogus' is not one of strict, add_columns, widen" in said


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("nothing=1",), "--set 'nothing=1': write KEY=VALUE with one of audit_retention, "),
        (("merge_fan_in",), "--set 'merge_fan_in': write KEY=VALUE"),
        (("merge_fan_in=many",), "--set merge_fan_in: 'many' is not a whole number"),
        (("target_file_mb=big",), "--set target_file_mb: 'big' is not a number"),
        (("iceberg=never",), "--set iceberg: 'never' is not one of on-demand, on-commit"),
        (("merge_fan_in=3", "merge_fan_in=4"), "--set merge_fan_in is given twice"),
    ],
)
def test_a_tuning_option_that_is_not_understood_is_named(icedb, typed, said):
    given = [word for each in typed for word in ("--set", each)]
    assert said in icedb("table", "create", "t", *given, code=2)


def test_the_help_lists_the_keys_of_set(icedb):
    assert "log_grace=TIME " in icedb("table", "create", "--help")
    assert "log_grace=" not in icedb("table", "alter", "--help"), "fixed when a table is made"
