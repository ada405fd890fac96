"""Lost commits (F5): what fences remember, and what fsck, the orphan sweep, the vacuum and a rebuild make of it."""

import contextlib
import random
from dataclasses import replace

import orjson
import pytest
from icedb_log.clean.orphans import OrphanPolicy, read_orphan_record
from icedb_log.errors import CommitOutcomeUnknown, IceDBError, InvalidRequest, Unavailable
from icedb_log.keys import log_name
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fence import acquire_fence, read_fence, read_landed, seal, write_fence
from icedb_log.log.fold import MAX_LANDED, add_landed, find_lost
from icedb_log.repair.rebuild_record import read_reports
from icedb_log.store.table_store import TableStore
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.fsck_tables import append_log, check, codes, data_file, logs
from icedb_sim.tables.log_views import data
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import FENCE, LOG, acquire, make_log, state_of

FORCED = OrphanPolicy(is_forced=True)


def make_table(**config):
    """Seven appends of 800 rows together, as in the report of the loss."""
    table = SmallTable(has_footers=True, **config)
    for number in range(6):
        table.append(*range(100 * number, 100 * number + 100))
    table.append(*range(600, 800))
    assert len(table.ids()) == 800
    return table


def lose(table, key):
    """Delete a log file, and return its bytes."""
    body = table.store.inner.get(key).body
    table.store.inner.delete([key])
    return body


def lost(table):
    """Return what fences and log prove now."""
    return find_lost(read_landed(TableStore(table.store.inner, table.paths)), table.view())


def landed(table, role="ingest"):
    return state_of(table, role).landed


def guards(result):
    return {each.guard for each in result.waiting}


# -- what is lost


@pytest.mark.parametrize("number", range(7))
def test_one_of_seven_log_files_is_lost_and_its_rows_come_back(number):
    table = make_table()
    assert codes(check(table)) == set()
    key = logs(table)[number]
    lose(table, key)
    assert len(table.ids()) in (700, 600)
    report = check(table, deep=False)
    assert [(each.key, each.severity) for each in report.findings if each.code == "commit-lost"] == [(key, "error")]
    assert table.status().lost_commits == (log_name(key),)
    # Nothing of it is swept, however long nobody looks, and whatever the share is.
    files = table.keys(table.paths.data_prefix)
    for _ in range(4):
        table.clock.advance(table.config.orphan_age_ms)
        result = table.sweep()
        assert (result.deleted, result.lost) == ((), (log_name(key),))
    assert guards(result) == {"lost"}
    assert table.keys(table.paths.data_prefix) == files
    done = table.rebuild()
    assert (done.has_committed, len(table.ids())) == (True, 800)
    assert codes(check(table)) == set()
    assert table.status().lost_commits == ()
    assert (table.sweep().lost, table.sweep_twice().deleted) == ((), ())
    assert not table.rebuild().has_committed


@pytest.mark.parametrize("is_all_lost", [False, True])
def test_a_rebuild_lies_behind_a_lost_commit_of_a_host_whose_clock_is_fast(is_all_lost):
    table = make_table()
    now_ms = table.clock.now_ms()
    table.stage([{"id": 1000, "p": "a"}])
    table.clock.set_wall(now_ms + 3_600_000)
    table.flush()
    table.clock.set_wall(now_ms + 1000)
    for key in logs(table) if is_all_lost else logs(table)[-1:]:
        lose(table, key)
    assert lost(table)
    assert table.rebuild().has_committed
    assert len(table.ids()) == 801
    assert (lost(table), table.status().lost_commits) == ((), ())
    assert "commit-lost" not in codes(check(table))


def test_a_merge_that_was_lost_after_its_inputs_were_vacuumed_comes_back_with_all_it_carried():
    table = SmallTable(has_footers=True)
    for number in range(4):
        table.append(number, p="ab"[number % 2])
    table.merge(full=True)
    table.clock.advance(table.config.data_grace_ms + 1)
    assert table.vacuum().deleted_data
    table.append(9)
    assert codes(check(table)) == set()
    (key,) = logs(table, merged=True)
    lose(table, key)
    assert table.ids() == [9]
    assert log_name(key) in lost(table)
    table.clock.advance(table.config.orphan_age_ms)
    assert table.sweep_twice().deleted == ()
    assert table.rebuild().has_committed
    assert table.ids() == [0, 1, 2, 3, 9]
    assert codes(check(table)) == set()


def test_a_table_goes_on_while_a_commit_is_lost():
    table = make_table()
    lose(table, logs(table)[0])
    table.append(1000)
    table.merge(full=True)
    assert len(table.ids()) == 701
    table.clock.advance(table.config.data_grace_ms + 1)
    assert table.vacuum().deleted_data


def test_the_horizon_hides_no_loss_from_the_sweep():
    """A vacuum writes it down before it deletes a log file: behind the horizon nobody can tell any more."""
    table = make_table()
    key = logs(table)[3]
    path = data_file(table, key)
    lose(table, key)
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    assert table.vacuum(dry_run=True).deleted_logs
    assert read_orphan_record(table).lost == {}
    done = table.vacuum()
    assert (bool(done.deleted_logs), done.lost) == (True, (log_name(key),))
    assert lost(table) == ()  # R3
    assert {each.key for each in check(table).findings if each.code == "commit-lost"} == {key}
    table.clock.advance(table.config.orphan_age_ms)
    table.vacuum()
    result = table.sweep_twice()
    assert (result.deleted, guards(result)) == ((), {"lost"})
    assert path in table.keys(table.paths.data_prefix)
    table.rebuild()
    assert len(table.ids()) == 800
    assert codes(check(table)) == set()


def test_a_sweep_remembers_what_the_horizon_has_passed():
    table = make_table()
    key = logs(table)[3]
    lose(table, key)
    assert table.sweep().lost == (log_name(key),)
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    assert table.vacuum().deleted_logs
    assert lost(table) == ()
    table.clock.advance(table.config.orphan_age_ms)
    assert (table.sweep_twice().deleted, table.sweep().lost) == ((), (log_name(key),))


def test_a_rebuild_finds_what_was_lost_behind_the_horizon():
    """A data file that was ever live is named for as long as it exists: its footer says whose it is."""
    table = SmallTable(has_footers=True)
    for number in range(3):
        table.append(number, p="a")
    table.merge(full=True)
    (key,) = logs(table, merged=True)
    table.append(9, p="c")
    table.append(3, 4, 5, p="b")
    table.drop("p=c")
    table.clock.advance(table.config.log_grace_ms + 1)
    assert table.vacuum().deleted_logs
    lose(table, key)
    assert (lost(table), table.ids()) == ((), [3, 4, 5])
    assert any("no log file names them" in each for each in table.rebuild(is_dry_run=True).report.damage)
    table.rebuild()
    assert table.ids() == [0, 1, 2, 3, 4, 5]


def test_a_loss_that_cannot_be_written_down_stops_the_vacuum():
    table = make_table()
    lose(table, logs(table)[3])
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    before = table.keys()
    table.store.script = [Fault("put_if_absent", None, "orphans.json", before=lambda: table.sweep())]
    with pytest.raises(Unavailable, match="lost"):
        table.vacuum()
    assert set(before) <= set(table.keys())
    assert table.vacuum().deleted_logs


def test_what_came_after_the_loss_was_found_is_swept_as_ever():
    table = make_table()
    lose(table, logs(table)[0])
    table.sweep()
    table.clock.advance(20_000)
    table.store.put(data("later"), b"x")
    table.clock.advance(table.config.orphan_age_ms)
    assert table.sweep_twice().deleted == (data("later"),)


def test_a_log_file_that_is_back_ends_it():
    table = make_table()
    key = logs(table)[0]
    body = lose(table, key)
    table.clock.advance(table.config.orphan_age_ms)
    table.store.put(data("orphan"), b"x")
    table.clock.advance(table.config.orphan_age_ms)
    assert table.sweep_twice().deleted == ()
    table.store.put(key, body)
    assert (table.sweep().deleted, read_orphan_record(table).lost) == ((data("orphan"),), {})
    assert codes(check(table)) == set()


def test_a_log_file_under_another_name_is_not_lost():
    table = make_table()
    key = logs(table)[-1]
    log = decode_log_file(key, lose(table, key))
    assert len(lost(table)) == 1
    append_log(table, replace(log, time_ms=log.time_ms - 10_000))
    assert lost(table) == ()


def test_who_forces_the_sweep_has_decided():
    table = make_table()
    key = logs(table)[0]
    lose(table, key)
    table.clock.advance(table.config.orphan_age_ms)
    assert table.sweep_twice().deleted == ()
    result = table.sweep(policy=FORCED)
    assert (len(result.deleted), result.lost) == (1, ())
    assert "commit-lost" not in codes(check(table))
    assert lost(table) == (log_name(key),)
    assert table.sweep().lost == ()
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    table.vacuum()  # the horizon has passed it: nobody would find it any more
    table.sweep()
    assert read_orphan_record(table).lost == {}


def test_a_dry_run_writes_nothing_down():
    table = make_table()
    lose(table, logs(table)[0])
    assert table.sweep(dry_run=True).lost
    assert read_orphan_record(table).etag is None


def test_a_record_of_an_older_release_has_no_losses_and_one_that_is_no_record_none_either():
    table = make_table()
    lose(table, logs(table)[0])
    table.sweep()
    found = orjson.loads(table.store.get(table.paths.orphan_record_key).body)
    assert [type(each) for each in found["lost"].values()] == [list]
    del found["lost"]
    table.store.put(table.paths.orphan_record_key, orjson.dumps(found))
    assert read_orphan_record(table).lost == {}
    assert table.sweep().lost  # as long as the fence says it
    for wrong in ({"x": [1, 0]}, {log_name(logs(table)[0]): 1}, []):
        table.store.put(table.paths.orphan_record_key, orjson.dumps(found | {"lost": wrong}))
        assert "begun anew" in table.sweep().record_problem


# -- the history


def test_f5_a_commit_is_remembered_when_the_fence_is_written_next_and_no_earlier():
    table = SmallTable()
    fence = acquire(table)
    committed = fence.commit(make_log(table))
    assert (landed(table), state_of(table).commit) == ((), committed.key)
    fence.release()
    assert landed(table) == (log_name(committed.key),)
    acquire(table)
    assert landed(table) == (log_name(committed.key),)


def test_f5_no_request_is_made_for_it():
    table = SmallTable()
    table.append(1)
    table.store.calls.clear()
    fence = acquire(table)
    fence.commit(make_log(table))
    fence.release()
    assert [call.method for call in table.store.calls] == [
        "get",
        *["put_if_match"] * 2,
        "put_if_absent",
        "put_if_match",
    ]


@pytest.mark.parametrize("effect", [Effect.CRASH_AFTER, Effect.CRASH_BEFORE])
def test_f5_an_intent_is_remembered_by_who_takes_over_if_it_is_read_back_as_landed(effect):
    table = SmallTable()
    old = acquire(table)
    table.store.script = [Fault("put_if_absent", effect, LOG)]
    with pytest.raises(Crash):
        old.commit(make_log(table))
    key = state_of(table).commit
    acquire(table)
    assert landed(table) == ((log_name(key),) if effect is Effect.CRASH_AFTER else ())
    assert lost(table) == ()


def test_f5_an_intent_that_another_one_sealed_is_not_remembered():
    table = SmallTable()
    old = acquire(table)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, LOG)]
    with pytest.raises(Crash):
        old.commit(make_log(table))
    seal(table.store, state_of(table).commit)
    acquire(table)
    assert landed(table) == ()


@pytest.mark.parametrize("effect", [Effect.UNAVAILABLE, None])
def test_f5_what_cannot_be_read_back_is_a_gap_and_stops_nobody(effect):
    table = SmallTable()
    old = acquire(table)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_AFTER, LOG)]
    with pytest.raises(Crash):
        old.commit(make_log(table))
    key = state_of(table).commit
    gone = (lambda: table.store.inner.delete([key])) if effect is None else None
    table.store.script = [Fault("get", effect, LOG, before=gone)]
    acquire(table)
    assert landed(table) == ()


def test_f5_a_commit_of_which_nobody_knows_is_not_remembered_by_its_owner():
    table = SmallTable()
    fence = acquire(table)
    table.store.script = [
        Fault("put_if_absent", Effect.LOSE_ANSWER, LOG),
        *[Fault("get", Effect.UNAVAILABLE, LOG)] * 8,
    ]
    with pytest.raises(CommitOutcomeUnknown):
        fence.commit(make_log(table))
    fence.release()
    assert landed(table) == ()
    assert lost(table) == ()


def test_f5_a_lost_answer_of_a_commit_that_landed_is_remembered():
    table = SmallTable()
    fence = acquire(table)
    table.store.script = [Fault("put_if_absent", Effect.LOSE_ANSWER, LOG)]
    committed = fence.commit(make_log(table))
    fence.release()
    assert landed(table) == (log_name(committed.key),)


def test_f5_a_history_is_bounded_and_small():
    names = ()
    for number in range(MAX_LANDED + 5):
        names = add_landed(names, f"wh/t/_log/{number:013d}_{'0' * 32}.jsonl")
    assert (len(names), names[-1][:13], names[0][:13]) == (MAX_LANDED, f"{MAX_LANDED + 4:013d}", f"{5:013d}")
    assert add_landed(names, f"wh/t/_log/{names[3]}.jsonl") == (*names[:3], *names[4:], names[3])
    assert len(orjson.dumps(names)) < 8192


def test_f5_an_older_release_drops_the_history_and_that_proves_nothing():
    table = make_table()
    key = table.paths.fence_key("ingest")
    state, etag = read_fence(table.store, key)
    body = orjson.loads(table.store.get(key).body)
    del body["landed"]
    table.store.put_if_match(key, orjson.dumps(body), etag=etag)
    assert state.landed and not landed(table)
    lose(table, logs(table)[0])
    assert codes(check(table), "error") == set()
    table.append(1000)
    assert len(landed(table)) == 1
    lose(table, logs(table)[-1])
    assert "commit-lost" in codes(check(table))


def test_f5_the_next_table_of_a_name_has_a_history_of_its_own():
    table = SmallTable()
    table.append(1)
    assert landed(table)
    acquire_fence(table.known("purge"), "ingest", becomes="drop1")
    assert (landed(table), state_of(table).incarnation) == ((), "drop1")


def test_f5_what_stands_in_a_history_and_is_no_log_file_proves_nothing():
    table = SmallTable()
    table.append(1)
    key = table.paths.fence_key("ingest")
    state, etag = read_fence(table.store, key)
    strange = type(state)(state.epoch, "x", None, 99, "", ("", "x", "../y", "9" * 14))
    write_fence(table.store, key, strange, etag=etag, clock=table.clock)
    assert lost(table) == ()


# -- nothing is lost that is not


@pytest.mark.parametrize("seed", range(40))
def test_what_a_merge_replaced_a_vacuum_deleted_or_a_seal_keeps_out_is_never_called_lost(seed):
    """Random histories, with crashes and lost answers at any call: the log always explains what is not there."""
    rng = random.Random(seed)
    table = SmallTable(has_footers=True, store=None)
    steps = [
        lambda: table.append(rng.randrange(10_000), p=rng.choice("ab")),
        lambda: table.append(rng.randrange(10_000), p=rng.choice("ab")),
        lambda: table.merge(full=rng.random() < 0.5),
        lambda: table.vacuum(),
        lambda: table.sweep(),
        lambda: table.drop("p=b"),
        lambda: table.delete(f"id = {rng.randrange(10_000)}"),
        lambda: table.clock.advance(rng.choice((10, 5_000, 30_000, 120_000))),
    ]
    seen = 0
    for _ in range(60):
        if rng.random() < 0.25:
            effect = rng.choice((Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.UNAVAILABLE))
            table.store.calls.clear()
            table.store.fault_at = {rng.randrange(25): effect}
        with contextlib.suppress(IceDBError, Crash):
            rng.choice(steps)()
        table.store.fault_at = {}
        seen = max(seen, len(read_landed(table)))
        assert lost(table) == ()
    assert read_orphan_record(table).lost == {}
    assert codes(check(table), "error") == set()
    assert seen


def test_what_lands_or_is_vacuumed_between_two_reads_is_not_called_lost():
    """The fences are read first: what landed by then is in the log that is read next, or a merge replaced it."""
    table = SmallTable(has_footers=True)
    table.append(1)
    table.append(2)

    def go_on():
        table.append(3)
        table.merge(full=True)
        table.clock.advance(table.config.log_grace_ms + 1)
        table.vacuum()

    for act in (table.sweep, table.vacuum, table.status, lambda: check(table)):
        for key in (LOG, FENCE):
            table.append(4)
            table.store.script = [Fault("list_page" if key == LOG else "get", None, key, before=go_on)]
            act()
    assert read_orphan_record(table).lost == {}
    assert table.status().lost_commits == ()


def test_a_commit_that_lands_after_a_vacuum_has_read_the_log_is_not_called_lost():
    table = SmallTable()
    table.append(1)
    table.store.script = [Fault("get", None, FENCE, before=lambda: table.append(2))]
    assert table.vacuum().lost == ()
    table.store.script = [Fault("get", None, FENCE, before=lambda: table.append(3))]
    assert table.status().lost_commits == ()
    assert read_orphan_record(table).etag is None


# -- a rebuild, cut off


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER])
def test_a_rebuild_that_is_cut_off_is_ended_by_the_next_and_forgets_nothing_before(effect):
    def make():
        table = SmallTable(has_footers=True)
        for number in (1, 2, 3):
            table.append(number)
        lose(table, logs(table)[0])
        table.merge(full=True)
        table.clock.advance(table.config.orphan_age_ms)
        assert table.vacuum().deleted_logs
        assert lost(table) == ()
        table.sweep()
        return table

    for table in try_each_call(make, lambda table: table.rebuild(), effect):
        assert table.sweep_twice().deleted == ()
        table.rebuild()
        assert table.ids() == [1, 2, 3]
        table.rebuild()
        assert read_orphan_record(table).lost == {}
        assert codes(check(table), "error") == set()
        assert {report.state for report, _ in read_reports(table)} <= {"done", "abandoned"}


def test_of_a_lost_merge_whose_inputs_were_merged_again_the_later_one_counts():
    table = SmallTable(has_footers=True)
    table.append(1)
    table.append(2)
    table.merge()
    lose(table, logs(table, merged=True)[0])
    assert table.ids() == [1, 2]
    table.merge()
    table.rebuild()
    assert table.ids() == [1, 2]
    assert codes(check(table)) - {"orphan"} == set()


def test_a_lost_flush_with_a_later_twin_is_decided_by_a_person():
    """Its producer may have sent the batch again: nobody knows its id any more."""
    table = SmallTable(has_footers=True)
    table.append(1)
    table.append(2)
    lose(table, logs(table)[0])
    table.append(1)
    with pytest.raises(InvalidRequest, match="undecided"):
        table.rebuild()
    report = table.rebuild(is_dry_run=True).report
    assert [(choice.kind, choice.likely) for choice in report.choices] == [("flush", "outputs")]
    table.rebuild(decision="keep-inputs")
    assert table.ids() == [1, 2]
    assert codes(check(table)) - {"orphan"} == set()


def test_beside_a_lost_commit_a_flush_that_was_cut_off_is_not_taken_silently():
    table = SmallTable(has_footers=True)
    table.append(1)
    table.append(2)
    table.stage([{"id": 3, "p": "a"}])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, LOG)]
    with contextlib.suppress(Crash):
        table.flush()
    table.stage([{"id": 4, "p": "a"}])
    table.flush()  # both batches, in other files
    lose(table, logs(table)[0])
    with pytest.raises(InvalidRequest, match="undecided"):
        table.rebuild()
    table.rebuild(decision="keep-inputs")
    assert table.ids() == [1, 2, 3, 4]
