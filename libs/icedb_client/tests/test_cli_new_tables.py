"""What a table gets that is made today, and what one keeps that was made before."""

import json

import pytest
from icedb_log.storage.stores import open_warehouse
from icedb_log.tables.stored_config import read_table_config
from icedb_log.tables.table_changes import alter_table_config
from icedb_log.testing.fake_clock import FakeClock


@pytest.fixture
def warehouse(tmp_path, cli_env):
    cli_env.setenv("ICEDB_STORE", f"file://{tmp_path}/warehouse")
    return open_warehouse(f"file://{tmp_path}/warehouse")


def read_policies(warehouse, name="events"):
    config = read_table_config(warehouse.store, warehouse.table(name))
    return config.evolution, config.on_bad_rows


def forget_policies(warehouse, name="events"):
    """Leave the configuration as a release did that knew no policies (revision 1)."""
    key = warehouse.table(name).config_key
    old = json.loads(warehouse.store.get(key).body)
    del old["evolution"], old["on_bad_rows"]
    warehouse.store.put(key, json.dumps(old).encode())


def test_a_new_table_widens_and_sets_bad_rows_alone_aside(warehouse, run_icedb):
    run_icedb("table", "create", "events")
    assert read_policies(warehouse) == ("widen", "quarantine_rows")
    written = json.loads(warehouse.store.get(warehouse.table("events").config_key).body)
    assert (written["evolution"], written["on_bad_rows"]) == ("widen", "quarantine_rows"), "written down, not assumed"


def test_what_somebody_asks_for_counts(warehouse, run_icedb):
    run_icedb("table", "create", "events", "--evolution", "add_columns", "--on-bad-rows", "quarantine_batch")
    assert read_policies(warehouse) == ("add_columns", "quarantine_batch")


def test_a_table_that_says_nothing_keeps_what_it_had(warehouse, run_icedb):
    run_icedb("table", "create", "events")
    forget_policies(warehouse)
    assert read_policies(warehouse) == ("add_columns", "quarantine_batch")
    alter_table_config(warehouse.store, warehouse.table("events"), {"merge_fan_in": 4}, clock=FakeClock())
    assert read_policies(warehouse) == ("add_columns", "quarantine_batch")


def test_a_table_from_before_counts_as_there(warehouse, run_icedb):
    """A deployment that creates its tables each time it starts goes on to start."""
    run_icedb("table", "create", "events", "--sort", "ts")
    forget_policies(warehouse)
    assert "is there already" in run_icedb("table", "create", "events", "--sort", "ts", "--if-not-exists")
    asked = ("table", "create", "events", "--sort", "ts", "--if-not-exists", "--evolution", "widen")
    assert "another configuration" in run_icedb(*asked, code=2)
    assert read_policies(warehouse) == ("add_columns", "quarantine_batch")
