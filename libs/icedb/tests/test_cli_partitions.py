"""``icedb partitions`` and the options of retention, on a folder, without any worker."""

import json
import re
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import typer
from icedb.cli import partitions
from icedb.cli.runner import Task
from icedb_log.store.object_store import list_all
from icedb_log.table.stored_config import read_table_config
from icedb_log.units import DAY_MS


@pytest.fixture
def warehouse(folder):
    return folder


@pytest.fixture
def icedb(warehouse, run_icedb):
    return run_icedb


@pytest.fixture
def events(icedb, warehouse, flush_rows):
    icedb("table", "create", "events", "--partition", "d=day(ts)", "--partition", "user")
    rows = [("2023-06-01", "a"), ("2023-06-01", "São"), ("2023-06-02", "a"), ("2023-07-01", "a"), ("2999-01-01", "a")]
    place = warehouse.table("events")
    flush_rows(place, [{"ts": ts, "user": user} for ts, user in rows])
    return place


@contextmanager
def sent(monkeypatch):
    tasks = []

    def run(task):
        tasks.append((task.name, task.table, task.arguments))

    with monkeypatch.context() as patch:
        patch.setattr(Task, "carry_out", run)
        yield tasks


def test_the_partitions_are_listed(icedb, events):
    lines = icedb("partitions", "events").splitlines()
    assert lines[0].split() == ["partition", "files", "rows", "size", "newest"]
    assert lines[1].split()[:3] == ["d=2023-06-01/user=São", "1", "1"]
    found = json.loads(icedb("partitions", "events", "-o", "json"))
    assert found["partitions"][0]["path"] == "d=2023-06-01/user=S_c3_a3o"
    assert set(found["partitions"][0]) == {"path", "files", "rows", "bytes", "newest_ms", "oldest_ms"}


def test_what_is_not_there(icedb):
    assert "table 'ghost' does not exist" in icedb("partitions", "ghost", code=3)
    icedb("table", "create", "empty")
    assert icedb("partitions", "empty") == ""
    assert "Usage" in icedb("partitions", "--help")


def test_a_glob_chooses_what_is_listed_and_touches_nothing(icedb, events, warehouse):
    before = [info.etag for info in list_all(warehouse.store, f"{events.paths.prefix}/").objects]
    assert len(icedb("partitions", "events", "d=2023-06-*/user=a").splitlines()) == 3
    found = json.loads(icedb("partitions", "events", "d=2023-06-*/user=a", "-o", "json"))
    assert [one["path"] for one in found["partitions"]] == ["d=2023-06-01/user=a", "d=2023-06-02/user=a"]
    head, *lines = icedb("partitions", "events", "d=*", "-o", "csv").splitlines()
    assert (head.split(",")[0], len(lines)) == ("path", 5), "all of them may be listed"
    assert [info.etag for info in list_all(warehouse.store, f"{events.paths.prefix}/").objects] == before


def test_a_wrong_glob_is_told_before_any_worker_is_asked(icedb, events, monkeypatch):
    with sent(monkeypatch) as tasks:
        assert "the nearest are d=2023-07-01/user=a" in icedb("partitions", "events", "d=2023-07-2*", "--drop", code=2)
        assert "say so with --force" in icedb("partitions", "events", "d=*", "--drop", "--yes", code=2)
        assert "is not name=value" in icedb("partitions", "events", "2023", "--drop", "--yes", code=2)
        assert "give --yes" in icedb("partitions", "events", "d=2023-06-*", "--drop", code=2)
        assert "say which partitions" in icedb("partitions", "events", "--drop", code=2)
        assert "not both" in icedb("partitions", "events", "d=2023-06-*", "--expired", code=2)
    assert tasks == []


def test_a_removal_is_sent_with_its_globs(icedb, events, monkeypatch):
    with sent(monkeypatch) as tasks:
        icedb("partitions", "events", "d=2023-06-*", "d=2023-07-*", "--drop", "--yes")
        icedb("partitions", "events", "*", "--drop", "--force", "--yes")
    assert tasks == [
        ("icedb.merge.drop_partitions", "events", {"globs": ["d=2023-06-*", "d=2023-07-*"], "may_match_all": False}),
        ("icedb.merge.drop_partitions", "events", {"globs": ["*"], "may_match_all": True}),
    ]


def test_what_was_removed_has_units_and_names(icedb, events):
    told = " ".join(icedb("partitions", "events", "d=2023-06-*", "--drop", "--yes", "--local").split())
    assert "paths d=2023-06-" in told and "[" not in told
    assert re.search(r"bytes [0-9.]+ (B|KiB) ", told)


@pytest.mark.parametrize("answer", [True, False])
def test_somebody_at_a_terminal_is_asked(icedb, events, monkeypatch, answer):
    asked = []
    monkeypatch.setattr(partitions, "SHOWN_PARTITIONS", 1)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(typer, "confirm", lambda question, **_: asked.append(question) or answer)
    with sent(monkeypatch) as tasks:
        told = icedb("partitions", "events", "d=2023-06-*", "--drop", code=0 if answer else 1)
    assert asked == ["Remove 3 partitions with 3 rows of table events for good?"]
    assert len(tasks) == answer
    assert ("d=2023-06-01/user=São" in told) if answer else ("and 2 more nothing was removed" in told)


def test_nobody_is_asked_in_the_middle_of_json(icedb, events, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    with sent(monkeypatch) as tasks:
        assert "give --yes" in icedb("partitions", "events", "d=2023-06-*", "--drop", "-o", "json", code=2)
    assert tasks == []


def test_retention_is_set_shown_and_taken_back(icedb, events, warehouse):
    icedb("table", "alter", "events", "--retention", "90d")
    config = read_table_config(events)
    assert config.retention_ms == 90 * DAY_MS
    assert "90 d after the end of a partition, by d" in icedb("table", "show", "events")
    icedb("table", "alter", "events", "--retention", "off")
    assert read_table_config(events).retention_ms is None
    assert "for ever" in icedb("table", "show", "events")
    assert "needs a time partition" in icedb("table", "create", "plain", "--retention", "1d", code=2)
    assert "--retention 'soon' is not a duration" in icedb("table", "alter", "events", "--retention", "soon", code=2)


def test_what_has_expired_is_listed_and_says_why_the_rest_stays(icedb, events, warehouse, monkeypatch):
    assert "has no retention; set one with" in icedb("partitions", "events", "--expired", code=2)
    icedb("table", "alter", "events", "--retention", "90d")
    found = json.loads(icedb("partitions", "events", "--expired", "-o", "json"))
    reasons = {one["path"]: one["reason"] for one in found["kept"]}
    assert reasons == {
        "d=2023-06-01/user=a": "late",
        "d=2023-06-01/user=S_c3_a3o": "late",
        "d=2023-06-02/user=a": "late",
        "d=2023-07-01/user=a": "late",
        "d=2999-01-01/user=a": "future",
    }
    assert (found["field"], found["partitions"], found["refusal"]) == ("d", [], "")
    text = icedb("partitions", "events", "--expired")
    assert "4 stay, late: their time has come" in text
    assert "1 stay, future: their time has not begun; the first goes at 2999-04-02T00:00:00.000Z" in text
    with sent(monkeypatch) as tasks:
        icedb("partitions", "events", "--expired", "--drop")
        icedb("partitions", "events", "--expired", "--drop", "--force")
    assert tasks == [("icedb.merge.retain", "events", {}), ("icedb.merge.retain", "events", {"force": True})]
