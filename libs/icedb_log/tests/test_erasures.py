"""Erasures: nothing of the rows is left when the certificate says so (E1 to E6), whatever fails on the way."""

import pytest
from icedb_log.erasure.erasures import (
    list_open_ids,
    note_deletions,
    read_erasure,
)
from icedb_log.errors import (
    CorruptLog,
)
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.erasure_steps import (
    StatsChanger,
    StatsWriter,
    advance,
    ask,
    by_reason,
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


def test_live_rows_are_deleted_and_their_files_waited_for(table):
    held = [m.path for m in table.snapshot().live if b"victim" in table.store.get(m.path).body]
    erasure_id = ask(table)
    progress = advance(table, erasure_id)
    assert live_users(table) == ["ann", "bob", "cid"]
    assert (progress.waits_for, progress.waiting_count, progress.erasure.state) == ("janitor", 2, "deleted")
    assert by_reason(progress.erasure) == {"rewritten": held}
    table.store.calls.clear()
    assert not advance(table, erasure_id).has_changed  # nothing is due yet
    assert table.paths.data_prefix not in table.store.keys_of("list_page")
    table.clock.advance(59_000)
    clean(table)
    assert not advance(table, erasure_id).erasure.is_closed
    table.clock.advance(2_000)
    clean(table)
    done = finish(table, erasure_id)
    assert (done.state, done.row_count, done.is_row_count_exact) == ("complete", 3, True)
    assert [target.known_by for target in done.targets] == ["janitor", "janitor"]
    assert find_traces(table, b"victim") == []
    assert done.requested_ms <= done.deleted_ms <= min(t.gone_ms for t in done.targets)
    assert max(t.gone_ms for t in done.targets) <= done.checked_ms <= done.completed_ms
    assert [run.log_key for run in done.runs] == [key for key in [done.runs[0].log_key] if "_m_" in key]
    assert {t.key: t.row_count for t in done.targets} == dict(zip(sorted(held), (1, 2), strict=True))
    assert all(t.size_bytes and t.due_ms and t.due_ms <= t.gone_ms for t in done.targets)
    assert live_users(table) == ["ann", "bob", "cid"]


def test_a_dead_file_that_held_such_rows_is_waited_for_as_well(table):
    before = {marker.path for marker in table.snapshot().live}
    table.merge(full=True)
    inputs = before - {marker.path for marker in table.snapshot().live}
    erasure_id = ask(table)
    erasure = advance(table, erasure_id).erasure
    with_rows = sorted(path for path in inputs if b"victim" in table.store.get(path).body)
    assert by_reason(erasure)["tombstoned"] == with_rows
    assert by_reason(erasure)["rewritten"]
    assert erasure.row_count == 3
    finish(table, erasure_id)
    assert find_traces(table, b"victim") == []


def test_no_live_row_and_a_dead_file_is_enough_to_wait(table):
    table.delete("u = 'victim'")
    erasure_id = ask(table)
    erasure = advance(table, erasure_id).erasure
    assert (erasure.row_count, set(by_reason(erasure))) == (0, {"tombstoned"})
    finish(table, erasure_id)
    assert find_traces(table, b"victim") == []


def test_an_orphan_with_such_rows_is_waited_for_and_others_are_not(table):
    orphan, harmless = put_orphan(table, "victim"), put_orphan(table, "dan")
    erasure_id = ask(table)
    erasure = advance(table, erasure_id).erasure
    assert by_reason(erasure)["orphan"] == [orphan.path]
    assert next(t for t in erasure.targets if t.reason == "orphan").due_ms == orphan.created_ms + 260_000
    done = finish(table, erasure_id)
    assert done.completed_ms >= orphan.created_ms + 200_000
    assert orphan.path not in table.keys(table.paths.data_prefix)
    assert harmless.path not in {t.key for t in done.targets}


def test_an_orphan_that_appears_after_the_deletion_is_found_by_the_last_look(table):
    erasure_id = ask(table)
    advance(table, erasure_id)
    table.clock.advance(61_000)
    clean(table)
    table.clock.advance(25_000)
    orphan = put_orphan(table, "victim")  # a merge that lost the fence and only now gets to its upload
    clean(table)
    progress = advance(table, erasure_id)
    assert (progress.waits_for, by_reason(progress.erasure)["orphan"]) == ("janitor", [orphan.path])
    assert progress.erasure.suspects == (orphan.path,)
    second = []

    def upload_once_more():
        second.append(put_orphan(table, "victim").path)

    table.clock.advance(200_000)
    upload_once_more()
    clean(table)
    done = finish(table, erasure_id)
    assert by_reason(done)["orphan"] == sorted([orphan.path, *second])
    assert find_traces(table, b"victim") == []


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
        if progress.erasure.is_closed:
            break
        commit_marker(table, late[-1])
    done = progress.erasure
    assert done.state == "complete"
    assert len(late) == 2
    assert (done.not_covered.late.count, done.not_covered.late.names) == (1, (late[0].path,))
    assert done.checked_ms < done.completed_ms
    assert "orphan" not in by_reason(done)


def test_an_unnamed_file_at_the_deletion_that_is_committed_later_is_not_covered(table):
    early = put_orphan(table, "victim")
    erasure_id = ask(table)
    assert by_reason(advance(table, erasure_id).erasure)["orphan"] == [early.path]
    commit_marker(table, early)
    done = finish(table, erasure_id)
    assert done.not_covered.late.names == (early.path,)
    assert live_users(table) == ["ann", "bob", "cid", "victim"]


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
    table.store.delete([table.paths.lease_key(lease)])
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
    assert all(target.gone_ms for target in progress.erasure.targets)
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
    # Nobody can say any more which of them held such rows; their statistics are there, however.
    assert {target.row_count for target in progress.erasure.targets} == {None}
    assert {target.known_by for target in progress.erasure.targets} == {"absent"}
    assert progress.waits_for == "janitor"
    finish(table, erasure_id)
    assert find_traces(table, b"victim") == []


def test_the_janitors_word_alone_is_not_enough(table):
    erasure_id = ask(table)
    targets = advance(table, erasure_id).erasure.targets
    note_deletions(table, [target.key for target in targets])
    assert not read_erasure(table, erasure_id).open_targets
    table.clock.advance(5_000)
    progress = advance(table, erasure_id)
    assert progress.waits_for == "janitor"
    assert len(progress.erasure.open_targets) == 2
    done = finish(table, erasure_id)
    assert all(target.gone_ms >= target.due_ms for target in done.targets)


def test_the_janitors_word_on_an_orphan_is_not_enough_either(table):
    orphan = put_orphan(table, "victim")
    table.delete("u = 'victim'")
    erasure_id = ask(table)
    advance(table, erasure_id)
    table.clock.advance(61_000)
    clean(table)
    table.clock.advance(25_000)
    clean(table)
    note_deletions(table, [orphan.path])
    assert not read_erasure(table, erasure_id).open_targets
    assert advance(table, erasure_id).erasure.state == "deleted"
    assert [t.key for t in read_erasure(table, erasure_id).open_targets] == [orphan.path]


def test_the_first_time_that_is_known_stays(table):
    erasure_id = ask(table)
    key = advance(table, erasure_id).erasure.targets[0].key
    assert note_deletions(table, [key]) == 1
    noted = read_erasure(table, erasure_id)
    table.clock.advance(1000)
    assert note_deletions(table, [key, *(t.key for t in noted.targets)]) == 1
    assert read_erasure(table, erasure_id).targets[0] == noted.targets[0]


def test_a_deletion_in_several_jobs_is_one_run(table, monkeypatch):
    monkeypatch.setattr("icedb_log.table.row_changes.MAX_GROUPS_PER_JOB", 1)
    erasure = advance(table, ask(table)).erasure
    assert (len(erasure.runs), erasure.row_count) == (1, 3)
    assert len(by_reason(erasure)["rewritten"]) == 2


def test_a_deletion_that_the_janitor_did_not_note_is_seen(table):
    erasure_id = ask(table)
    advance(table, erasure_id)
    table.clock.advance(61_000)
    clean(table, is_noted=False)
    erasure = advance(table, erasure_id).erasure
    assert {target.known_by for target in erasure.targets} == {"absent"}
    assert note_deletions(table, [target.key for target in erasure.targets]) == 0
    assert finish(table, erasure_id).targets == erasure.targets


def test_a_data_object_that_cannot_be_read_has_to_go(table):
    broken = put_orphan(table, "dan")
    fine = put_orphan(table, "eve")

    class Picky(StatsChanger):
        def count_rows(self, job):
            if any(marker.path == broken.path for marker in job.files):
                raise CorruptLog(f"{broken.path} is damaged")
            return super().count_rows(job)

    erasure_id = ask(table)
    erasure = advance(table, erasure_id, changer=Picky(table.store, table.clock)).erasure
    assert {t.key: t.row_count for t in erasure.targets if t.reason == "orphan"} == {broken.path: None}
    assert fine.path not in {t.key for t in erasure.targets}


def test_no_such_rows_anywhere_ends_at_once(table):
    erasure_id = ask(table, "u = 'nobody'")
    done = advance(table, erasure_id).erasure
    assert (done.state, done.targets, done.runs, done.row_count) == ("complete", (), (), 0)
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
