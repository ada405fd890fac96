"""``icedb tag``, and reading at a tag, on a folder, without any worker."""

import json

import pytest
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse

SCHEMA = {"n": "BIGINT"}


@pytest.fixture
def parquet(folder):
    parquet = ParquetWarehouse(folder)
    for name in ("events", "users"):
        parquet.create(name)
        parquet.commit(name, "select 1 as n", schema=SCHEMA)
    return parquet


@pytest.fixture
def icedb(parquet, run_icedb):
    return run_icedb


def commit(parquet, name="events"):
    return parquet.commit(name, "select 2 as n", schema=SCHEMA).time_ms


def count(icedb, *options, sql="select count(*) as n from events"):
    return json.loads(icedb("query", sql, "-o", "json", *options))["rows"][0]["n"]


def test_a_tag_is_made_listed_read_and_ended(icedb, parquet):
    made = json.loads(icedb("tag", "create", "events", "q3", "--ttl", "30d", "--note", "why [not]", "-o", "json"))
    assert (made["status"], made["file_count"], made["row_count"], made["ttl_ms"]) == ("active", 1, 1, 30 * 86_400_000)
    assert made["held_until_ms"] == made["ends_ms"] + 6 * 3_600_000 + 10_000
    commit(parquet)
    assert (count(icedb), count(icedb, "--tag", "q3")) == (2, 1)
    found = json.loads(icedb("snapshot", "events", "--tag", "q3", "-o", "json"))
    assert (found["row_count"], found["as_of_ms"]) == (1, made["at_ms"])
    assert len(icedb("snapshot", "events", "--tag", "q3", "-o", "paths").split()) == 1
    lines = icedb("tag", "list", "events").splitlines()
    assert lines[0].split() == ["name", "state", "time", "files", "rows", "size", "lasts", "until", "note"]
    assert lines[1].split()[:2] == ["q3", "active"]
    assert "why [not]" in lines[1]
    assert json.loads(icedb("tag", "list", "events", "-o", "json"))["tags"][0] == {
        k: v for k, v in made.items() if k != "table"
    }
    assert "has ended; what only it held may be deleted in 6 h" in icedb("tag", "delete", "events", "q3")
    assert not json.loads(icedb("tag", "delete", "events", "q3", "-o", "json"))["ended"]
    assert "tag q3 has ended (ended)" in icedb("snapshot", "events", "--tag", "q3", code=2)


def test_a_tag_of_a_past_time_is_for_people(icedb, parquet):
    first = parquet.warehouse.store.list_page("events/_log/").objects[0].key.rpartition("/")[2][:13]
    commit(parquet)
    shown = icedb("tag", "create", "events", "old", "--as-of", first)
    assert "lasts until deleted" in " ".join(shown.split())
    assert count(icedb, "--tag", "old") == 1


def test_a_query_over_several_tables_needs_the_tag_in_each(icedb, parquet):
    both = "select (select count(*) from events) + (select count(*) from users) as n"
    icedb("tag", "create", "events", "q3")
    assert "table users has no tag 'q3'" in icedb("query", both, "--tag", "q3", code=3)
    icedb("tag", "create", "users", "q3")
    commit(parquet)
    assert (count(icedb, sql=both), count(icedb, "--tag", "q3", sql=both)) == (3, 2)


def test_what_cannot_be_tagged_or_read_is_said(icedb, parquet):
    icedb("tag", "create", "events", "q3")
    assert "exists already" in icedb("tag", "create", "events", "q3", code=2)
    assert "tag name 'Q 3' is not allowed" in icedb("tag", "create", "events", "Q 3", code=2)
    assert "in the future" in icedb("tag", "create", "events", "q4", "--as-of", "2999-01-01", code=2)
    assert "not a duration" in icedb("tag", "create", "events", "q4", "--ttl", "long", code=2)
    assert "did you mean events?" in icedb("tag", "create", "event", "q4", code=3)
    assert "has no tag 'q4'" in icedb("tag", "delete", "events", "q4", code=3)
    assert "either a tag or a time" in icedb("snapshot", "events", "--tag", "q3", "--as-of", "2026-01-01", code=2)


def test_tags_that_are_not_well_are_explained(icedb, parquet):
    paths = parquet.warehouse.table("events").paths
    parquet.warehouse.store.put(paths.hold_key("tag", "0" * 32, name="q3"), b"{}")
    lines = icedb("tag", "list", "events").splitlines()
    assert lines[1].split()[:3] == ["q3", "unreadable", "-"]
    assert "q3" in icedb("snapshot", "events", "--tag", "q3", code=5)
