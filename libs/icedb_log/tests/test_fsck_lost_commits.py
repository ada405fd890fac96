"""Lost commits (F5): what fences remember, and what fsck, the vacuum and a rebuild make of it."""

import contextlib
import random
from dataclasses import replace

import orjson
import pytest
from icedb_log.commit.fence import read_fence, read_landed, seal, write_fence
from icedb_log.errors import CommitOutcomeUnknown, IceDBError
from icedb_log.keys import log_name
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import MAX_LANDED, add_landed, find_lost
from icedb_log.merge import log_folding
from icedb_log.store.table_store import TableStore
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.fsck_tables import append_log, check, codes, data_file, logs
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.table_steps import FENCE, LOG, acquire, make_log, state_of


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
    assert table.vacuum().lost == (log_name(key),)
    done = table.rebuild(take=("*",))
    assert (done.has_committed, len(table.ids())) == (True, 800)
    assert codes(check(table)) == set()
    assert table.status().lost_commits == ()
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
    assert table.rebuild(take=("*",)).has_committed
    assert len(table.ids()) == 801
    assert (lost(table), table.status().lost_commits) == ((), ())
    assert "commit-lost" not in codes(check(table))


def test_a_table_goes_on_while_a_commit_is_lost():
    table = make_table()
    lose(table, logs(table)[0])
    table.append(1000)
    table.merge(full=True)
    assert len(table.ids()) == 701
    table.clock.advance(table.config.data_grace_ms + 1)
    assert {each.guard for each in table.vacuum().waiting} == {"lost"}
    assert table.rebuild(take=("*",)).has_committed
    table.clock.advance(table.config.data_grace_ms + 1)
    table.vacuum()
    assert table.vacuum().waiting == ()


def test_j2_a_log_file_that_comes_back_from_a_version_of_the_bucket_doubles_no_row(monkeypatch):
    """Found by the simulation: a merge killed what the lost log file lists, and its tombstone went with the files."""
    monkeypatch.setattr(log_folding, "FREE_LOG_BYTES", 0)  # as if it were a large log file
    monkeypatch.setattr(log_folding, "PAYS_FOR", 1)
    monkeypatch.setattr(log_folding, "DATA_PER_LOG", 1_000_000)
    table = SmallTable(merge_fan_in=8)
    table.stage([{"id": 0, "p": "a"}, {"id": 1, "p": "b"}])
    table.flush()
    table.append(2, p="a")
    key = logs(table)[0]
    body = table.store.get(key).body
    table.merge(full=True)
    dead = {tombstone.path for file in table.view().files for tombstone in file.log.log_tombstones}
    assert key not in dead, "the merge has not folded it: it names the file of p=b, too"
    table.store.delete([key])
    table.clock.advance(table.config.data_grace_ms + 1)
    assert not table.vacuum().deleted_data
    table.store.put(key, body)
    assert table.ids() == [0, 1, 2]


def test_a_merge_that_was_lost_after_its_inputs_were_vacuumed_comes_back_with_all_it_carried():
    table = SmallTable(has_footers=True)
    for number in range(4):
        table.append(number, p="ab"[number % 2])
    table.merge(full=True)
    table.clock.advance(table.config.data_grace_ms + 1)
    assert table.vacuum().deleted_data
    table.append(9)
    (key,) = logs(table, merged=True)
    lose(table, key)
    assert table.ids() == [9]
    assert log_name(key) in lost(table)
    assert table.rebuild(take=("*",)).has_committed
    assert table.ids() == [0, 1, 2, 3, 9]
    assert codes(check(table)) == set()


def test_a_vacuum_deletes_nothing_while_a_commit_is_lost_and_so_hides_it_behind_no_horizon():
    table = make_table()
    key = logs(table)[3]
    lose(table, key)
    table.merge(full=True)
    table.clock.advance(table.config.data_grace_ms + 1)
    plan = table.vacuum(dry_run=True)
    assert (plan.deleted_logs, plan.deleted_data, plan.lost) == ((), (), (log_name(key),))
    for _ in range(2):
        done = table.vacuum()
        assert (done.deleted_logs, done.deleted_data, done.stripped_count) == ((), (), 0)
        assert (lost(table), done.lost) == ((log_name(key),), (log_name(key),))
    assert {each.guard for each in done.waiting} == {"lost"}
    for number in range(MAX_LANDED + 1):
        table.append(number)
    done = table.vacuum()
    assert (bool(done.deleted_logs), bool(done.deleted_data), done.lost) == (True, True, ()), "it waits not for ever"


def test_the_sweep_deletes_what_a_lost_commit_had_made_live_when_it_is_old():
    """Nobody waits for a person for the sake of a small part of the log: versions of the bucket bring it back."""
    table = make_table()
    key = logs(table)[0]
    path = data_file(table, key)
    lose(table, key)
    assert table.sweep().deleted == ()
    table.clock.advance(table.config.orphan_age_ms)
    assert table.sweep().deleted == (path,)


def test_a_log_file_that_is_back_ends_it():
    table = make_table()
    key = logs(table)[0]
    body = lose(table, key)
    assert "commit-lost" in codes(check(table))
    table.store.put(key, body)
    assert codes(check(table)) == set()
    assert lost(table) == ()


def test_a_log_file_under_another_name_is_not_lost():
    table = make_table()
    key = logs(table)[-1]
    log = decode_log_file(key, lose(table, key))
    assert len(lost(table)) == 1
    append_log(table, replace(log, time_ms=log.time_ms - 10_000))
    assert lost(table) == ()


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


def test_f5_what_stands_in_a_history_and_is_no_log_file_proves_nothing():
    table = SmallTable()
    table.append(1)
    key = table.paths.fence_key("ingest")
    state, etag = read_fence(table.store, key)
    strange = type(state)(state.epoch, "x", None, 99, ("", "x", "../y", "9" * 14))
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
    assert table.status().lost_commits == ()


def test_a_commit_that_lands_after_a_vacuum_has_read_the_log_is_not_called_lost():
    table = SmallTable()
    table.append(1)
    table.store.script = [Fault("get", None, FENCE, before=lambda: table.append(2))]
    assert table.vacuum().lost == ()
    table.store.script = [Fault("get", None, FENCE, before=lambda: table.append(3))]
    assert table.status().lost_commits == ()
