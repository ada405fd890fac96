"""Erasures: nothing of the rows is left when the certificate says so (E1 to E5), whatever fails on the way."""

from dataclasses import replace

import pytest
from icedb_log.holds.erasures import certificate, list_open_ids
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.erasure_steps import (
    StatsWriter,
    advance,
    ask,
    clean,
    commit_marker,
    find_traces,
    finish,
    live_users,
    make_users_table,
    put_orphan,
)
from icedb_sim.tables.lease_steps import put_lease

DAY = 24 * 3600 * 1000


@pytest.fixture
def table():
    return make_users_table()


# ── what is gone ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_live_rows_are_deleted_and_all_that_is_dead_is_waited_for(table):
    held = [m.path for m in table.snapshot().live if b"victim" in table.store.get(m.path).body]
    erasure_id = ask(table)
    progress = advance(table, erasure_id)
    assert live_users(table) == ["ann", "bob", "cid"]
    assert (progress.waits_for, progress.waiting_count, progress.erasure.state) == ("janitor", 2, "deleted")
    assert (progress.erasure.dead, progress.erasure.unnamed) == (tuple(sorted(held)), ())
    table.store.calls.clear()
    assert not advance(table, erasure_id).has_changed  # nothing is due yet
    assert table.paths.data_prefix not in table.store.keys_of("list_page")
    table.clock.advance(59_000)
    clean(table)
    assert not advance(table, erasure_id).erasure.has_ended
    table.clock.advance(2_000)
    clean(table)
    done = finish(table, erasure_id)
    assert (done.state, done.row_count, done.is_row_count_exact) == ("complete", 3, True)
    assert find_traces(table, b"victim") == []
    assert done.requested_ms <= done.deleted_ms <= done.checked_ms <= done.completed_ms
    assert [run.log_key for run in done.runs] == [key for key in [done.runs[0].log_key] if "_m_" in key]
    said = certificate(done)
    assert said["objects"] == sorted(held)
    assert [(commit["rows_removed"], commit["data_files"]) for commit in said["commits"]] == [(3, 2)]
    assert live_users(table) == ["ann", "bob", "cid"]


def test_every_dead_file_is_waited_for_whatever_it_held(table):
    before = {marker.path for marker in table.snapshot().live}
    table.merge(full=True)
    inputs = before - {marker.path for marker in table.snapshot().live}
    assert any(b"victim" not in table.store.get(path).body for path in inputs)
    live = {marker.path for marker in table.snapshot().live}
    erasure_id = ask(table)
    erasure = advance(table, erasure_id).erasure
    rewritten = live - {marker.path for marker in table.snapshot().live}
    assert set(erasure.dead) == inputs | rewritten
    assert rewritten
    assert erasure.row_count == 3
    finish(table, erasure_id)
    assert find_traces(table, b"victim") == []


def test_no_live_row_and_a_dead_file_is_enough_to_wait(table):
    table.delete("u = 'victim'")
    erasure_id = ask(table)
    erasure = advance(table, erasure_id).erasure
    assert (erasure.row_count, erasure.runs, len(erasure.dead)) == (0, (), 2)
    finish(table, erasure_id)
    assert find_traces(table, b"victim") == []


def test_no_data_file_is_opened_once_the_rows_are_deleted(table):
    """Neither dead ones nor orphans: what is in them does not matter."""
    table.merge(full=True)
    put_orphan(table, "victim")
    erasure_id = ask(table, "u = 'nobody'")
    live = {marker.path for marker in table.snapshot().live}
    table.store.calls.clear()
    erasure = advance(table, erasure_id).erasure
    assert set(table.store.keys_of("get")).isdisjoint(erasure.objects)
    assert len(erasure.objects) == 3  # two that the merge took, and the orphan
    assert live.isdisjoint(erasure.objects)


def test_every_orphan_is_waited_for(table):
    orphans = {put_orphan(table, user).path for user in ("victim", "dan")}
    erasure_id = ask(table)
    erasure = advance(table, erasure_id).erasure
    assert set(erasure.unnamed) == orphans
    done = finish(table, erasure_id)
    assert set(done.unnamed) == orphans
    assert orphans.isdisjoint(table.keys(table.paths.data_prefix))
    assert find_traces(table, b"victim") == []


def test_an_orphan_that_appears_after_the_deletion_is_found_by_the_last_look(table):
    erasure_id = ask(table)
    advance(table, erasure_id)
    table.clock.advance(61_000)
    clean(table)
    table.clock.advance(25_000)
    orphan = put_orphan(table, "victim")  # a merge that lost the fence and only now gets to its upload
    clean(table)
    progress = advance(table, erasure_id)
    assert (progress.waits_for, progress.waiting_count, progress.erasure.unnamed) == ("janitor", 1, (orphan.path,))
    checked_ms = progress.erasure.checked_ms
    table.clock.advance(200_000)
    later = put_orphan(table, "dan")
    clean(table)
    done = finish(table, erasure_id)
    # As of the first listing in which all else was gone: what comes after it is not waited for.
    assert (done.unnamed, done.checked_ms) == ((orphan.path,), checked_ms)
    assert checked_ms < done.completed_ms
    assert find_traces(table, b"victim") == []
    assert later.path in table.keys(table.paths.data_prefix)


def test_rows_that_are_just_being_committed_do_not_keep_it_open_for_ever(table):
    erasure_id = ask(table)
    advance(table, erasure_id)
    table.clock.advance(61_000)
    clean(table)
    table.clock.advance(25_000)
    clean(table)
    late = []
    for _ in range(4):
        late.append(put_orphan(table, "victim"))  # each look meets another flush between its upload and its commit
        progress = advance(table, erasure_id)
        if progress.erasure.has_ended:
            break
        commit_marker(table, late[-1])
    done = progress.erasure
    assert done.state == "complete"
    assert len(late) == 2
    assert (done.not_covered.late.count, done.not_covered.late.names) == (1, (late[0].path,))
    assert done.checked_ms < done.completed_ms
    assert done.unnamed == ()


def test_an_unnamed_file_at_the_deletion_that_is_committed_later_is_not_covered(table):
    early = put_orphan(table, "victim")
    erasure_id = ask(table)
    assert advance(table, erasure_id).erasure.unnamed == (early.path,)
    commit_marker(table, early)
    done = finish(table, erasure_id)
    assert (done.not_covered.late.names, done.unnamed) == ((early.path,), ())
    assert live_users(table) == ["ann", "bob", "cid", "victim"]


def test_a_dead_file_that_is_live_again_keeps_it_open(table):
    """Only a log that somebody put together by hand says so: nobody may sign then that its rows are gone."""
    erasure_id = ask(table)
    erasure = advance(table, erasure_id).erasure
    (marker, *_) = [m for f in table.opened().read_log().files for m in f.log.markers if m.path in erasure.dead]
    table.clock.advance(61_000)
    clean(table)
    commit_marker(table, replace(marker, tombstoned_ms=None, landed_ms=None))
    with pytest.raises(AssertionError, match="does not end"):
        finish(table, erasure_id, max_rounds=20)


def test_a_batch_that_was_accepted_before_the_request_is_committed_first(table):
    table.stage([{"id": 7, "p": "a", "u": "victim"}])
    erasure_id = ask(table)
    progress = advance(table, erasure_id)
    assert (progress.waits_for, progress.waiting_count, progress.erasure.state) == ("flush", 1, "requested")
    assert live_users(table).count("victim") == 3
    table.flush(writer=StatsWriter(table.store, table.clock))
    assert advance(table, erasure_id).erasure.row_count == 4
    finish(table, erasure_id)
    assert find_traces(table, b"victim") == []


def test_a_batch_that_is_accepted_later_is_not_waited_for(table):
    erasure_id = ask(table)
    table.clock.advance(2_000)
    table.stage([{"id": 7, "p": "a", "u": "victim"}])
    assert advance(table, erasure_id).erasure.state == "deleted"
    finish(table, erasure_id)
    table.flush()
    assert live_users(table) == ["ann", "bob", "cid", "victim"]


def test_a_store_that_tells_whole_seconds_does_not_hide_a_batch(table):
    erasure_id = ask(table)
    table.clock.advance(900)
    table.stage([{"id": 7, "p": "a", "u": "victim"}])
    assert advance(table, erasure_id).waits_for == "flush"


def test_a_lease_holds_it_open(table):
    lease = put_lease(table, at_ms=table.clock.now_ms(), ttl_ms=DAY, clock=table.clock)
    table.clock.advance(1)
    erasure_id = ask(table)
    with pytest.raises(AssertionError, match="does not end"):
        finish(table, erasure_id, max_rounds=20)
    table.store.delete([table.paths.hold_key("lease", lease)])
    assert finish(table, erasure_id).state == "complete"


def test_statistics_in_the_log_are_waited_for(table):
    erasure_id = ask(table)
    advance(table, erasure_id)
    assert find_traces(table, b'"victim"')
    table.clock.advance(61_000)
    table.store.script = [Fault("put_if_match", Effect.REFUSE, "_log/")]
    clean(table)  # the files are gone, the strip was refused
    progress = advance(table, erasure_id)
    assert (progress.waits_for, progress.waiting_count) == ("janitor", 2)
    assert not set(progress.erasure.dead) & set(table.keys(table.paths.data_prefix))
    assert find_traces(table, b'"victim"')
    clean(table)
    assert finish(table, erasure_id).state == "complete"
    assert find_traces(table, b"victim") == []


def test_a_dead_file_that_is_gone_but_still_named_is_waited_for(table):
    table.delete("u = 'victim'")
    table.clock.advance(61_000)
    table.store.script = [Fault("put_if_match", Effect.REFUSE, "_log/")]
    clean(table)
    erasure_id = ask(table)
    progress = advance(table, erasure_id)
    assert not set(progress.erasure.dead) & set(table.keys(table.paths.data_prefix))
    assert (progress.waits_for, progress.waiting_count) == ("janitor", 2)
    finish(table, erasure_id)
    assert find_traces(table, b"victim") == []


def test_a_log_that_forgot_a_file_which_is_there_is_not_enough(table):
    """A delete that was answered and did nothing (J6): the object is waited for."""
    erasure_id = ask(table)
    key = advance(table, erasure_id).erasure.dead[0]
    body = table.store.get(key).body
    table.clock.advance(61_000)
    clean(table)
    table.store.put(key, body)
    progress = advance(table, erasure_id)
    assert (progress.waits_for, progress.waiting_count) == ("janitor", 1)
    assert finish(table, erasure_id, max_rounds=40).state == "complete"
    assert find_traces(table, b"victim") == []


def test_a_deletion_in_several_jobs_is_one_run(table, monkeypatch):
    monkeypatch.setattr("icedb_log.changes.row_changes.MAX_GROUPS_PER_JOB", 1)
    erasure = advance(table, ask(table)).erasure
    assert (len(erasure.runs), erasure.row_count, erasure.runs[0].file_count) == (1, 3, 2)


def test_no_such_rows_anywhere_ends_at_once(table):
    erasure_id = ask(table, "u = 'nobody'")
    done = advance(table, erasure_id).erasure
    assert (done.state, done.objects, done.runs, done.row_count) == ("complete", (), (), 0)
    assert list_open_ids(table) == ()
    assert advance(table, erasure_id).erasure == done


# ── what is not covered ────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_not_covered_is_named(table):
    refused = table.stage_bytes(b"no json")
    table.flush()
    table.store.put(f"{table.paths.staging_prefix}readme.txt", b"x")
    table.store.put(f"{table.paths.data_prefix}notes.txt", b"x")
    table.store.put(f"{table.paths.imports_prefix}x.json", b"damaged")
    table.store.put(f"{table.paths.views_prefix}hourly.json", b"{}")
    erasure_id = ask(table)
    erasure = advance(table, erasure_id).erasure
    assert erasure.not_covered.model_dump(exclude_defaults=True) == {
        "quarantine": {"count": 1, "names": (refused,)},
        "unknown_staged": {"count": 1, "names": (f"{table.paths.staging_prefix}readme.txt",)},
        "unknown_data": {"count": 1, "names": (f"{table.paths.data_prefix}notes.txt",)},
        "import_sources": {"count": 1, "names": (f"{table.paths.imports_prefix}x.json",)},
        "views": {"count": 1, "names": ("hourly",)},
    }
