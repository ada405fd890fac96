"""F6: who is at work asks others to keep away for a while, and everybody heeds it, within bounds; nothing is built on it."""

import os
import socket
import subprocess
import sys
from dataclasses import replace

import orjson
import pytest
from icedb_log.commit.fence import (
    CLAIM_MS,
    FENCE_LOOK_MS,
    MAX_INTERRUPTED,
    WORKER_SEEN_MS,
    FenceWatch,
    acquire_fence,
    look_at_fence,
    read_fence,
    settle_fence,
)
from icedb_log.commit.table import PATIENCE_MS, name_owner
from icedb_log.errors import Fenced, Unavailable
from icedb_log.ingest.flush import flush_table
from icedb_log.keys import ROLES
from icedb_log.store.table_store import TableStore
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.row_files import RowFileWriter
from icedb_sim.tables.table_steps import FENCE, LOG, acquire, make_log, staged_ids, state_of

HOUR_MS = 3_600_000


def take(table, owner="other", **changes):
    """Acquire the fence of ingest; return how that came about, the fence, and how long it took."""
    told = []
    before_ms = table.clock.monotonic_ms()
    fence = acquire_fence(replace(table.known(owner), on_fence=told.append, **changes), "ingest")
    (acquired,) = told
    passed_ms = table.clock.monotonic_ms() - before_ms
    assert acquired.waited_ms == passed_ms
    assert acquired.role == "ingest"
    return acquired, fence, passed_ms


def written(table):
    return orjson.loads(table.store.inner.get(table.paths.fence_key("ingest")).body)


def forge(table, **fields):
    key = table.paths.fence_key("ingest")
    table.store.inner.put(key, orjson.dumps(written(table) | fields))


def test_f6_who_is_at_work_is_waited_for_until_the_claim_ends(table):
    acquire(table)
    acquired, _, passed_ms = take(table)
    assert CLAIM_MS <= passed_ms < CLAIM_MS + 200
    assert (acquired.owner, acquired.previous_holder) == ("me", "abandoned")


@pytest.mark.parametrize("role", ROLES)
def test_f6_who_has_let_the_fence_go_is_not_waited_for(table, role):
    fence = acquire(table, role)
    fence.commit(make_log(table))
    assert state_of(table, role).claim_ms
    fence.release()
    before_ms = table.clock.monotonic_ms()
    acquire(table, role, owner="other")
    assert table.clock.monotonic_ms() == before_ms


def test_f6_a_claim_is_waited_for_no_longer_than_until_it_is_given_up(table):
    fence = acquire(table)
    looks = []

    def check_alive():
        looks.append(table.clock.monotonic_ms())
        if len(looks) == 3:
            fence.release()

    acquired, _, passed_ms = take(table, check_alive=check_alive)
    assert (acquired.owner, acquired.previous_holder, len(looks)) == ("me", "free", 3)
    assert passed_ms < 1000


def test_f6_nobody_waits_for_himself(table):
    acquire(table)
    acquired, _, passed_ms = take(table, "me")
    assert (passed_ms, acquired.previous_holder) == (0, "abandoned")


def test_f6_nobody_waits_longer_than_his_patience_for_one_who_goes_on(table):
    fence = acquire(table)
    watch = FenceWatch(fence, check_alive=lambda: None, clock=table.clock)

    def check_alive():
        watch()
        assert table.clock.monotonic_ms() < 2 * PATIENCE_MS, "waits for ever"

    acquired, _, passed_ms = take(table, check_alive=check_alive)
    assert PATIENCE_MS <= passed_ms < 1.25 * PATIENCE_MS + 200
    assert acquired.previous_holder == "working"
    table.clock.advance(FENCE_LOOK_MS)
    with pytest.raises(Fenced):
        watch()


@pytest.mark.parametrize("claim_ms", [CLAIM_MS + 1, HOUR_MS])
def test_f6_a_claim_counts_for_a_few_seconds_whatever_it_says(table, claim_ms):
    acquire(table)
    forge(table, claim_ms=claim_ms)
    acquired, _, passed_ms = take(table, patience_ms=HOUR_MS)
    assert CLAIM_MS <= passed_ms < CLAIM_MS + 200
    assert acquired.previous_holder == "abandoned"


def test_f6_a_claim_that_lies_in_the_stores_future_ends_with_the_patience(table, monkeypatch):
    acquire(table)
    set_back_ms = table.clock.now_ms() - HOUR_MS
    monkeypatch.setattr(TableStore, "read_store_clock", lambda _: set_back_ms)
    _, _, passed_ms = take(table)
    assert PATIENCE_MS <= passed_ms < 1.25 * PATIENCE_MS + 200


def test_f6_an_old_claim_is_not_waited_for(table):
    acquire(table)
    table.clock.advance(CLAIM_MS)
    acquired, _, passed_ms = take(table)
    assert (passed_ms, acquired.previous_holder) == (0, "abandoned")


def test_f6_without_patience_the_fence_is_taken_at_once(table):
    acquire(table)
    acquired, _, passed_ms = take(table, patience_ms=0)
    assert (passed_ms, acquired.previous_holder) == (0, "working")


def test_f6_who_waits_is_asked_whether_to_go_on(table):
    acquire(table)

    def check_alive():
        raise Unavailable("the lock is lost")

    with pytest.raises(Unavailable, match="lock is lost"):
        take(table, check_alive=check_alive)
    assert state_of(table).owner.startswith("me/")


def test_f6_a_sweep_settles_at_once(table):
    old = acquire(table)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, LOG)]
    with pytest.raises(Crash):
        old.commit(make_log(table))
    before_ms = table.clock.monotonic_ms()
    settle_fence(table, "ingest")
    assert table.clock.monotonic_ms() == before_ms


def test_f6_many_who_wait_give_up_for_no_lost_race(table):
    """Twenty owners in a row win the race before this one does."""
    acquire(table)
    rivals = []

    def steal():
        rivals.append(acquire_fence(replace(table.known(f"rival {len(rivals)}"), patience_ms=0), "ingest"))

    def let_go():
        if rivals:
            rivals[-1].release()

    table.store.script = [Fault("put_if_match", None, FENCE, before=steal) for _ in range(25)]
    take(table, check_alive=let_go)
    assert len(rivals) == 25


def test_f6_a_claim_is_advice_who_has_one_and_lost_the_fence_commits_nothing(table):
    mine = acquire(table)
    other = acquire_fence(replace(table.known("other"), patience_ms=0), "ingest")
    with pytest.raises(Fenced):
        mine.commit(make_log(table))
    other.commit(make_log(table, "y"))


def test_f6_a_fence_that_is_let_go_says_nothing_of_claims(table):
    fence = acquire(table)
    fence.commit(make_log(table))
    fence.release()
    assert written(table).keys() == {"epoch", "owner", "commit", "sequence", "landed"}


def test_f6_a_fence_without_a_claim_is_not_waited_for(table):
    acquire(table)
    forge(table, claim_ms=0, commit=f"{table.paths.log_prefix}0000000000001_00.jsonl")
    acquired, _, passed_ms = take(table)
    assert (passed_ms, acquired.previous_holder) == (0, "abandoned")


# -- runs that are interrupted


class SlowWriter(RowFileWriter):
    """Takes a second for each batch; if a job takes longer than others wait for it, one of them takes the fence.

    Attributes:
        jobs: How many batches each job had.
    """

    def __init__(self, table):
        super().__init__(table.store, table.clock)
        self.__dict__.update(table=table, jobs=[])

    def write_batches(self, job):
        self.jobs.append(len(job.batches))
        for number in range(1, len(job.batches) + 1):
            self.clock.advance(1000)
            job.check_alive()
            if number * 1000 == PATIENCE_MS:
                _, fence, _ = take(self.table, "appender", patience_ms=1)
                fence.release()
        return super().write_batches(job)


def test_f6_a_flush_that_is_interrupted_takes_fewer_batches_until_it_gets_through(table):
    """Otherwise one that takes longer than others wait for it works in vain for ever, as long as they come."""
    for number in range(100):
        table.stage([{"id": number, "p": "a"}])
    writer = SlowWriter(table)
    for _ in range(20):
        try:
            if not flush_table(table.opened("flush"), writer).has_more:
                break
        except Fenced:
            continue
    assert staged_ids(table) == []
    assert table.ids() == list(range(100))
    assert writer.jobs == [100, 50, 25, 37, 18, 28, 29]
    assert state_of(table).interrupted == 0


def test_f6_an_interrupted_flush_reads_a_part_of_what_was_not_read_by_one_that_was_lost(table):
    """Both at once: none of the parts is too large."""
    for number in range(64):
        table.stage([{"id": number, "p": "a"}])
    acquire(table)  # and is lost
    table.clock.advance(CLAIM_MS)
    acquire(table, owner="late").release()
    forge(table, interrupted=2)
    writer = RowFileWriter(table.store, table.clock)
    counts = [flush_table(table.opened("flush"), writer).batch_count for _ in range(4)]
    assert counts == [4, 7, 13, 10]  # a quarter of what is left, halved twice, halved once, and whole


def test_f6_only_who_waited_interrupts(table):
    acquire(table)
    take(table, patience_ms=0)
    assert state_of(table).interrupted == 0
    take(table, "third")  # its claim has ended
    assert state_of(table).interrupted == 0
    _, fence, _ = take(table, "fourth", patience_ms=1)
    fence.release()
    assert state_of(table).interrupted == 1
    acquire(table).release()
    assert state_of(table).interrupted == 1


def test_f6_interruptions_are_counted_up_to_a_bound(table):
    for number in range(MAX_INTERRUPTED + 3):
        take(table, f"{number}", patience_ms=1)
    assert state_of(table).interrupted == MAX_INTERRUPTED


# -- who is at work


def test_a_table_without_a_fence_has_nobody_at_work(table):
    look = look_at_fence(table)
    assert (look.owner, look.claimed_ms, look.worker_age_ms, look.is_worker_alive) == ("", 0, None, False)


def test_a_worker_of_the_stack_that_was_at_work_counts_as_alive_for_a_while(table):
    acquire(table, owner="ingest@host:1").release()
    table.clock.advance(WORKER_SEEN_MS)
    assert look_at_fence(table).is_worker_alive
    assert look_at_fence(table).claimed_ms == 0
    table.clock.advance(1)
    assert not look_at_fence(table).is_worker_alive


def test_an_embedded_owner_is_no_worker_and_hides_none(table):
    acquire(table, owner="embedded@host:2").release()
    assert not look_at_fence(table).is_worker_alive
    acquire(table, owner="ingest@host:1").release()
    table.clock.advance(5000)
    for number in range(3):
        fence = acquire(table, owner=f"embedded@host:{number}")
        look = look_at_fence(table)
        assert (look.owner, look.claimed_ms, look.worker_age_ms) == (f"embedded@host:{number}", CLAIM_MS, 5000)
        fence.release()
    table.clock.advance(WORKER_SEEN_MS)
    assert not look_at_fence(table).is_worker_alive


def test_a_process_says_who_works():
    assert name_owner("embedded").startswith(f"embedded@{socket.gethostname()}:{os.getpid()}-")
    assert name_owner("embedded") == name_owner("embedded")


def test_two_containers_of_one_host_name_and_pid_are_two_owners(table, monkeypatch):
    """They are waited for: as one owner, each would take the fence from the other at once (F6)."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    monkeypatch.setattr(socket, "gethostname", lambda: "worker")
    program = "import os, socket; os.getpid, socket.gethostname = lambda: 7, lambda: 'worker'; "
    program += "from icedb_log.commit.table import name_owner; print(name_owner('embedded'))"
    other = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()
    acquire(table, owner=other)
    state, _ = read_fence(table.store, table.paths.fence_key("ingest"))
    assert (state.holder, state.previous_holder(name_owner("embedded"))) == (other, "working")
    assert state.previous_holder(other) == "abandoned"


def test_what_is_claimed_is_read_as_it_was_written(table):
    fence = acquire(table, owner="a/b")
    state, _ = read_fence(table.store, table.paths.fence_key("ingest"))
    assert (state.holder, state.claim_ms, state.epoch) == ("a/b", CLAIM_MS, fence.epoch)
