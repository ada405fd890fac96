"""``icedb fsck`` of what engines are shown: P1, P5."""

import pytest
from icedb_log.publish.publications import publish
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_sim.tables.json_publications import JsonPublications
from icedb_sim.tables.table_steps import make_table


@pytest.fixture
def table():
    made = make_table()
    publish(made.opened(), JsonPublications())
    return made


def findings(table):
    report = fsck_table(table, clock=table.clock, options=FsckOptions(fetch_threads=1))
    return [(each.code, each.severity, each.key) for each in report.findings]


def test_a_table_that_is_published_is_sound(table):
    assert findings(table) == []


def test_objects_that_are_gone_are_told(table):
    table.store.delete(table.keys(table.paths.published_prefix))
    assert findings(table) == [("publication", "error", table.paths.publication_head_key)]


def test_a_head_that_cannot_be_read_is_told(table):
    table.store.put(table.paths.publication_head_key, b"{")
    assert findings(table) == [("publication", "error", table.paths.publication_head_key)]


def test_a_record_that_is_none_is_told(table):
    key = f"{table.paths.holds_of('publication')}x.jsonl"
    table.store.put(key, b"{}")
    assert findings(table) == [("publication", "warning", key)]
