"""``icedb audit``: which run deleted what, on a folder, without any worker."""

import json

import pytest
from icedb_log.clean.deletion import AuditLog, DeleteCandidate, RunFacts
from icedb_log.clock import SystemClock
from icedb_log.store.object_store import FailedDelete
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_sim.fakes.fake_clock import FakeClock

WEEK_MS = 7 * 86_400_000


class Runs:
    def __init__(self, warehouse):
        self.place = warehouse.table("events")
        self.store, self.paths = self.place.store, self.place.paths
        self.now_ms = SystemClock().now_ms()

    def run(self, *names, age_ms=0, failed=(), is_cut_off=False):
        """Write down one run; return the keys that it deleted."""
        now_ms = self.now_ms - age_ms
        log = AuditLog(self.place, clock=FakeClock(now_ms, seed=names[0]), owner="janitor@h:1")
        audit = log.begin(RunFacts("vacuum", now_ms, {"data_grace_ms": 5}, {"tags": ("monthly",)}))
        keys = [self.key(name) for name in names]
        audit.announce(
            [DeleteCandidate(key, "data_file", "dead", ("grace", "lease"), now_ms - 5, 1024) for key in keys]
        )
        if not is_cut_off:
            audit.conclude([FailedDelete(self.key(name), "AccessDenied") for name in failed])
        return keys

    def key(self, name):
        return f"{self.paths.data_prefix}{name}.parquet"


@pytest.fixture
def runs(folder):
    return Runs(folder)


@pytest.fixture
def icedb(runs, run_icedb):
    return run_icedb


def test_runs_of_the_last_days_with_what_became_of_their_objects(runs, icedb):
    runs.run("old", age_ms=2 * WEEK_MS)
    runs.run("a", "b", "c", failed=("b",), age_ms=1000)
    runs.run("d", is_cut_off=True)
    value = json.loads(icedb("audit", "events", "-o", "json"))
    assert [run["objects"] for run in value["runs"]] == [
        {"deleted": 2, "failed": 1, "announced": 0},
        {"deleted": 0, "failed": 0, "announced": 1},
    ]
    first = value["runs"][0]
    assert (first["deleted_bytes"], first["by_kind"], first["policy"]) == (2048, {"data_file": 2}, {"data_grace_ms": 5})
    assert len(json.loads(icedb("audit", "events", "--since", "30d", "-o", "json"))["runs"]) == 3
    shown = icedb("audit", "events").splitlines()
    assert [line.split() for line in shown] == [
        ["time", "kind", "deleted", "failed", "unknown", "size"],
        [first["time"], "vacuum", "2", "1", "0", "2.0", "KiB"],
        [value["runs"][1]["time"], "vacuum", "0", "0", "1", "0", "B"],
    ]


def test_a_table_without_deletions(runs, icedb):
    create_table(runs.place, TableConfig.create(name="events"))
    assert "no run deleted anything" in icedb("audit", "events")
    assert json.loads(icedb("audit", "events", "-o", "json"))["runs"] == []


def test_one_object_when_why_and_by_which_run(runs, icedb):
    runs.run("b", failed=("b",), age_ms=2 * WEEK_MS)
    (key,) = runs.run("b")
    shown = _in_one_line(icedb("audit", "events", "--key", key))
    for words in ("AccessDenied", "could not be deleted", "grace, lease", "1 tags", "janitor@h:1"):
        assert words in shown
    value = json.loads(icedb("audit", "events", "--key", "_data/b.parquet", "-o", "json"))
    assert value["key"] == key
    assert [each["outcome"] for each in value["deletions"]] == ["failed", "deleted"]
    assert [each["outcome"] for each in _deletions(icedb, key, "--since", "1d")] == ["deleted"]


def _in_one_line(shown):
    return " ".join(shown.split())


def _deletions(icedb, key, *options):
    return json.loads(icedb("audit", "events", "--key", key, *options, "-o", "json"))["deletions"]


def test_an_object_whose_run_was_cut_off_may_have_gone_or_not(runs, icedb):
    (key,) = runs.run("a", is_cut_off=True)
    assert "may have gone or not" in _in_one_line(icedb("audit", "events", "--key", key))


def test_an_object_that_the_audit_does_not_know_is_not_found(runs, icedb):
    runs.run("a")
    assert "does not know" in icedb("audit", "events", "--key", "_data/other.parquet", code=3)
    assert "does not exist" in icedb("audit", "event", code=3)


def test_what_cannot_be_understood_is_told_beside_the_rest(runs, icedb):
    runs.run("a")
    damaged = runs.paths.audit_key(time_ms=runs.now_ms + 1, run_id="0" * 32)
    runs.store.put(damaged, b"[]\n")
    value = json.loads(icedb("audit", "events", "-o", "json"))
    assert (len(value["runs"]), [each["key"] for each in value["damaged"]]) == (1, [damaged])
