"""What a table gets that is made today, and what one keeps that was made before."""

import json

import pytest
from icedb_client.client import Client
from icedb_client.transport import CommitReport
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.ingest.quarantine import QuarantinedBatch, payload_key, quarantine_rows
from icedb_log.jobs import BadRows, RowFault, StagedBatch
from icedb_log.table.stored_config import read_table_config
from icedb_sim.fakes.fake_clock import FakeClock


@pytest.fixture
def warehouse(folder):
    return folder


def read_policies(warehouse, name="events"):
    config = read_table_config(warehouse.table(name))
    return config.evolution, config.on_bad_rows


def test_a_new_table_widens_and_sets_bad_rows_alone_aside(warehouse, run_icedb):
    run_icedb("table", "create", "events")
    assert read_policies(warehouse) == ("widen", "quarantine_rows")
    written = json.loads(warehouse.store.get(warehouse.table("events").paths.config_key).body)
    assert (written["evolution"], written["on_bad_rows"]) == ("widen", "quarantine_rows"), "written down, not assumed"


def test_what_somebody_asks_for_counts(warehouse, run_icedb):
    run_icedb("table", "create", "events", "--set", "evolution=add_columns", "--set", "on_bad_rows=quarantine_batch")
    assert read_policies(warehouse) == ("add_columns", "quarantine_batch")


def test_a_table_whose_policies_were_changed_counts_as_there(warehouse, run_icedb):
    """A deployment that creates its tables each time it starts goes on to start."""
    run_icedb("table", "create", "events", "--sort", "ts")
    changed = {"evolution": "add_columns", "on_bad_rows": "quarantine_batch"}
    alter_table_config(warehouse.table("events"), changed, clock=FakeClock())
    assert "is there already" in run_icedb("table", "create", "events", "--sort", "ts", "--if-not-exists")
    asked = ("table", "create", "events", "--sort", "ts", "--if-not-exists", "--set", "evolution=widen")
    assert "another configuration" in run_icedb(*asked, code=2)
    assert read_policies(warehouse) == ("add_columns", "quarantine_batch")


def test_quarantine_shows_each_bad_row_with_its_reason(warehouse, run_icedb):
    run_icedb("table", "create", "events")
    place = warehouse.table("events")
    batch = StagedBatch("", "019b7d3c-0000-7000-8000-000000000001", "ndjson", 1, 1)
    rows = b'{"n":"one"}\n{"n":1\n{"n":"two"}\n'
    key = payload_key(place.paths, batch.batch_id, rows, "ndjson.zst", what="rows")
    place.store.put(key, rows)
    faults = (RowFault("column 'n' is BIGINT", (3, 9)), RowFault("a line is not a JSON object", (7,)))
    reason = "column 'n' is BIGINT (line 3: one)\nline 7 is not a JSON object\ncolumn 'n' is BIGINT (line 9: two)"
    quarantine_rows(
        place,
        bad=BadRows(batch, key, 3, reason, faults),
        replaces=None,
        commit_id="ab",
        clock=FakeClock(),
    )
    shown = run_icedb("quarantine", "list", "events", batch.batch_id)
    _, _, lines = shown.partition("\n\n")
    assert lines.splitlines() == [
        '{"n":"one"}',
        "  row 3: column 'n' is BIGINT (line 3: one)",
        '{"n":1',
        "  row 7: line 7 is not a JSON object",
        '{"n":"two"}',
        "  row 9: column 'n' is BIGINT (line 9: two)",
    ]
    found = json.loads(run_icedb("quarantine", "list", "events", batch.batch_id, "--limit", "2", "-o", "json"))
    assert found["row_reasons"] == [
        {"row": 3, "reason": "column 'n' is BIGINT (line 3: one)"},
        {"row": 7, "reason": "line 7 is not a JSON object"},
    ]
    assert [line.strip() for line in run_icedb("quarantine", "list", "events").splitlines()[1:]] == reason.splitlines()


def test_faults_of_several_rows_are_told_apart_in_the_one_line_of_an_error(run_icedb, warehouse, tmp_path, monkeypatch):
    run_icedb("table", "create", "events")
    events = tmp_path / "events.ndjson"
    events.write_text('{"n":1}\n')

    def wait_committed(self, table, ids, **_):
        reason = "column 'n' is BIGINT (line 3)\nline 7 is not a JSON object"
        bad = QuarantinedBatch(
            batch_id=ids[0], reason=reason, payload_key="", size_bytes=1, quarantined_ms=1, kind="rows", row_count=2
        )
        return CommitReport(committed=tuple(ids), quarantined=(), waiting=(), bad_rows=(bad,))

    monkeypatch.setattr(Client, "wait_committed", wait_committed)
    shown = run_icedb("ingest", "events", str(events), "--wait", code=1)
    assert "column 'n' is BIGINT (line 3) | line 7 is not a JSON object" in shown
