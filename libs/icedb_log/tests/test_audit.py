"""The janitor's audit: J10."""

import pytest
from icedb_log.clean.deletion import (
    MAX_FOUND,
    MAX_REASON_CHARS,
    SLICE_MS,
    AuditLog,
    AuditPart,
    DamagedPart,
    DeleteCandidate,
    Deleter,
    RunFacts,
    find_deletions,
    read_audit,
    sweep_audit,
)
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import make_uuid7_hex
from icedb_log.commit.table import Table
from icedb_log.errors import CommitOutcomeUnknown, Unavailable
from icedb_log.keys import parse_audit_key
from icedb_log.store.object_store import FailedDelete, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault, ScriptedStore
from icedb_sim.tables.lease_steps import delete_lease, put_lease
from icedb_sim.tables.small_table import SmallTable

DAY_MS = 86_400_000


class Place(TableStore):
    """A store with some objects, and an audit of their deletion."""

    def __init__(self, *, chunk_keys=10_000):
        self.clock = FakeClock()
        self.store = ScriptedStore(MemoryObjectStore(self.clock.now_ms))
        self.paths = Warehouse(self.store, "wh").table("t").paths
        self.problems = []
        self.chunk_keys = chunk_keys

    def put(self, *names):
        keys = [f"{self.paths.data_prefix}{name}.parquet" for name in names]
        for key in keys:
            self.store.put(key, b"x")
        self.store.calls.clear()
        return keys

    def run(self, keys, **facts):
        log = AuditLog(
            TableStore(self.store, self.paths),
            clock=self.clock,
            owner="janitor@h",
            on_problem=lambda step, _: self.problems.append(step),
        )
        audit = log.begin(RunFacts("vacuum", self.clock.now_ms(), {"data_grace_ms": 5}, **facts))
        candidates = [
            DeleteCandidate(key, "data_file", "dead", ("grace", "lease"), died_ms=7, size_bytes=1) for key in keys
        ]
        return Deleter(self.store, audit=audit, chunk_keys=self.chunk_keys).delete(candidates)

    def parts(self, **bounds):
        return list(read_audit(TableStore(self.store, self.paths), **bounds))

    def audit_keys(self):
        return [info.key for info in list_all(self.store, self.paths.audit_prefix).objects]

    def data(self):
        return [info.key for info in list_all(self.store, self.paths.data_prefix).objects]


@pytest.fixture
def place():
    return Place()


def test_j10_a_run_says_what_it_deleted_why_and_by_which_rules(place):
    keys = place.put("a", "b")
    assert place.run(keys, found={"leases": ("l1",)}).keys == set(keys)
    (part,) = place.parts()
    assert (part.kind, part.owner, part.part, part.store_now_ms) == ("vacuum", "janitor@h", 0, place.clock.now_ms())
    assert part.policy == {"data_grace_ms": 5}
    assert part.found == {"leases": {"count": 1, "names": ["l1"]}}
    assert [(each.key, each.kind, each.why, each.passed, each.died_ms, each.size_bytes) for each in part.entries] == [
        (key, "data_file", "dead", ("grace", "lease"), 7, 1) for key in keys
    ]
    assert {each.outcome for each in part.entries} == {"deleted"}
    name = parse_audit_key(part.audit_key)
    assert (name.time_ms, name.run_id, name.part) == (part.store_now_ms, part.run_id, 0)


def test_j10_what_is_deleted_stands_in_the_audit_before_the_store_is_asked(place):
    keys = place.put("a")
    place.store.script.append(Fault("delete", Effect.CRASH_AFTER))
    with pytest.raises(Crash):
        place.run(keys)
    assert place.data() == []
    (part,) = place.parts()
    assert [(each.key, each.outcome) for each in part.entries] == [(keys[0], "announced")]


@pytest.mark.parametrize(
    ("effect", "error"), [(Effect.UNAVAILABLE, Unavailable), (Effect.LOSE_ANSWER, CommitOutcomeUnknown)]
)
def test_j10_without_its_audit_nothing_is_deleted(place, effect, error):
    keys = place.put("a")
    place.store.script.append(Fault("put", effect, key="_icedb/audit/"))
    with pytest.raises(error):
        place.run(keys)
    assert place.data() == keys
    assert place.problems == ["announce"]


def test_j10_outcomes_that_cannot_be_written_stop_nothing_and_are_told(place):
    place.chunk_keys = 1
    keys = place.put("a", "b")
    place.store.fault_at = {2: Effect.UNAVAILABLE}  # the third call: announced, deleted, concluded
    assert place.run(keys).keys == set(keys)
    assert place.problems == ["conclude"]
    assert [part.entries[0].outcome for part in place.parts()] == ["announced", "deleted"]


def test_a_key_that_would_not_go_says_why_within_a_bound():
    place = Place()
    keys = place.put("a", "b")
    reason = "AccessDenied " + "x" * 1000
    log = AuditLog(place, clock=place.clock, owner="janitor@h")
    audit = log.begin(RunFacts("orphans", place.clock.now_ms(), {}))
    audit.announce([DeleteCandidate(key, "orphan", "unnamed") for key in keys])
    audit.conclude([FailedDelete(keys[1], reason)])
    (part,) = place.parts()
    assert [each.outcome for each in part.entries] == ["deleted", "failed"]
    assert part.entries[1].reason == reason[:MAX_REASON_CHARS]


def test_a_run_without_deletions_writes_nothing(place):
    place.run([])
    assert place.audit_keys() == []


def test_a_large_run_is_cut_into_parts_that_are_written_twice_each():
    place = Place(chunk_keys=2)
    keys = place.put("a", "b", "c", "d", "e")
    place.run(keys)
    parts = place.parts()
    assert [len(part.entries) for part in parts] == [2, 2, 1]
    assert [part.part for part in parts] == [0, 1, 2]
    assert len({part.run_id for part in parts}) == 1
    assert [each.key for part in parts for each in part.entries] == keys
    assert sorted(place.store.keys_of("put")) == sorted(place.audit_keys() * 2)


def test_long_lists_of_holders_are_cut_and_counted(place):
    place.run(place.put("a"), found={"leases": [str(number) for number in range(MAX_FOUND + 1)]})
    (part,) = place.parts()
    assert (part.found["leases"]["count"], len(part.found["leases"]["names"])) == (MAX_FOUND + 1, MAX_FOUND)


def test_an_object_is_found_with_every_run_that_tried(place):
    (key,) = place.put("a")
    place.run([key])
    place.clock.advance(DAY_MS)
    place.run(place.put("b"))
    place.clock.advance(DAY_MS)
    place.run([key])
    found = list(find_deletions(place, key))
    assert [part.store_now_ms for part, _ in found] == [place.clock.now_ms() - 2 * DAY_MS, place.clock.now_ms()]
    assert list(find_deletions(place, key + "x")) == []


def test_the_time_in_an_objects_name_bounds_the_search_for_it(place):
    place.run(place.put("a"))
    place.clock.advance(3 * DAY_MS)
    (key,) = place.put(place.clock.new_id())
    place.run([key])
    place.store.calls.clear()
    ((part, entry),) = find_deletions(place, key)
    assert (entry.key, part.store_now_ms) == (key, place.clock.now_ms())
    assert place.store.keys_of("get") == [part.audit_key]


@pytest.mark.parametrize("days", [1, 60])
def test_runs_are_read_between_two_times_whatever_the_listing(place, days):
    for name in ("a", "b", "c"):
        place.run(place.put(name))
        place.clock.advance(days * DAY_MS)
    times = [part.store_now_ms for part in place.parts()]
    assert len(times) == 3
    assert [part.store_now_ms for part in place.parts(since_ms=times[1])] == times[1:]
    assert [part.store_now_ms for part in place.parts(until_ms=times[1])] == times[:2]
    assert [part.store_now_ms for part in place.parts(since_ms=times[0] + 1, until_ms=times[2] - 1)] == [times[1]]


def test_what_cannot_be_understood_is_reported_and_hides_nothing(place):
    place.run(place.put("a"))
    place.store.put(f"{place.paths.audit_prefix}notes.txt", b"mine")
    place.clock.advance(1)
    damaged = place.paths.audit_key(time_ms=place.clock.now_ms(), run_id="0" * 32)
    place.store.put(damaged, b"{}\n")
    parts = place.parts()
    assert [type(part) for part in parts] == [AuditPart, DamagedPart, DamagedPart]
    assert parts[1].audit_key == damaged


def test_the_audit_is_kept_for_its_retention_by_the_stores_clock(place):
    place.run(place.put("a"))
    place.clock.advance(DAY_MS)
    place.run(place.put("b"))
    place.clock.advance(DAY_MS - 1)
    place.store.put(f"{place.paths.audit_prefix}!notes", b"mine")
    first, second = (key for key in place.audit_keys() if key.endswith(".jsonl"))
    assert sweep_audit(place, retention_ms=2 * DAY_MS, clock=place.clock).keys == set()
    place.clock.advance(1)
    assert sweep_audit(place, retention_ms=2 * DAY_MS, clock=place.clock).keys == {first}
    assert place.audit_keys() == [f"{place.paths.audit_prefix}!notes", second]


def test_what_would_not_go_is_not_said_to_be_gone(place):
    keys = place.put("a", "b")
    place.store.script = [Fault("delete", Effect.UNAVAILABLE)]
    assert {failed.key for failed in place.run(keys).failed} == {*keys}
    (part,) = place.parts()
    assert [entry.outcome for entry in part.entries] == ["failed", "failed"]
    assert all(entry.reason for entry in part.entries)


def test_what_is_no_audit_is_not_swept_however_old(place):
    others = [f"{place.paths.audit_prefix}{name}" for name in ("!notes", "0000", "readme.txt", "zz.jsonl")]
    for key in others:
        place.store.inner.put(key, b"")
    place.clock.advance(9 * DAY_MS)
    assert sweep_audit(place, retention_ms=DAY_MS, clock=place.clock).keys == set()
    assert set(others) <= set(place.audit_keys())


def test_an_object_whose_name_was_given_by_a_clock_that_is_ahead_is_found(place):
    key = f"{place.paths.data_prefix}{make_uuid7_hex(place.clock.now_ms() + SLICE_MS - 1, 7)}.parquet"
    place.store.put(key, b"x")
    place.run([key])
    assert [entry.key for _, entry in find_deletions(place, key)] == [key]


@pytest.mark.parametrize("ahead_ms", [0, 1, SLICE_MS - 1, SLICE_MS])
def test_a_search_by_time_has_the_slices_at_both_of_its_ends(place, ahead_ms):
    place.clock.advance(-place.clock.now_ms() % SLICE_MS)  # where a slice begins
    first_ms = place.clock.now_ms()
    place.run(place.put("a"))
    place.clock.advance(ahead_ms)
    place.run(place.put("b"))
    parts = read_audit(place, since_ms=first_ms, until_ms=first_ms + ahead_ms)
    assert [part.store_now_ms for part in parts] == [first_ms, first_ms + ahead_ms]


def test_an_audit_that_grew_large_is_swept_page_by_page_up_to_the_first_young_object(place):
    old = [place.paths.audit_key(time_ms=1_000 + number, run_id="0" * 32) for number in range(1500)]
    for key in old:
        place.store.inner.put(key, b"")
    place.clock.advance(DAY_MS)
    for number in range(1500):
        place.store.inner.put(place.paths.audit_key(time_ms=100_000 + number, run_id="0" * 32), b"")
    place.store.calls.clear()
    done = sweep_audit(place, retention_ms=DAY_MS, clock=place.clock)
    assert done.keys == set(old)
    assert place.store.keys_of("list_page").count(place.paths.audit_prefix) == 2


def test_j1_an_audit_is_not_swept_by_a_clock_that_jumped(place, monkeypatch):
    place.run(place.put("a"))
    now_ms = place.clock.now_ms
    monkeypatch.setattr(place.store.inner, "_now_ms", lambda: now_ms() + 400 * DAY_MS)
    with pytest.raises(Unavailable, match="minutes apart"):
        sweep_audit(place, retention_ms=DAY_MS, clock=place.clock)
    assert len(place.audit_keys()) == 1


def test_a_vacuum_writes_down_what_it_deletes_and_what_held_others():
    table = SmallTable()
    table.append(1)
    put_lease(table, at_ms=table.clock.now_ms(), ttl_ms=DAY_MS, clock=table.clock, lease_id="l1")
    table.append(2)
    table.merge(full=True)
    table.clock.advance(DAY_MS)
    delete_lease(table, lease_id="l1")
    put_lease(table, at_ms=table.clock.now_ms(), ttl_ms=DAY_MS, clock=table.clock, lease_id="l2")
    log = AuditLog(table, clock=table.clock, owner="janitor@h")
    result = vacuum_table(Table.open(table, clock=table.clock, reader=table.reader()), audit=log)
    parts = list(read_audit(table))
    entries = {each.key: each for part in parts for each in part.entries}
    assert set(entries) == {*result.deleted_logs, *result.deleted_data}
    assert {each.outcome for each in entries.values()} == {"deleted"}
    assert all({"grace", "lease"} <= set(each.passed) and each.why for each in entries.values())
    assert all("tag" in entries[key].passed for key in result.deleted_data)
    assert all(each.died_ms is not None and each.size_bytes for each in entries.values())
    assert len({part.run_id for part in parts}) == 1
    assert parts[0].found == {"leases": {"count": 1, "names": ["l2"]}}
    assert parts[0].policy["data_grace_ms"] == table.config.data_grace_ms
    assert parts[0].store_now_ms == result.store_now_ms
