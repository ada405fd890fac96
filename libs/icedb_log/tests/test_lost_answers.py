"""W2 at every conditional write: the answer is lost, and some calls later the store is gone.

Whoever cannot tell whether his write landed says so: "refused" and "not answered" are promises that it never will.
"""

from contextlib import suppress
from functools import partial

import pytest
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.commit.fence import HeldFence
from icedb_log.errors import CommitOutcomeUnknown, IceDBError, NotFound, Unavailable
from icedb_log.holds.erasures import create_erasure
from icedb_log.holds.leases import renew_lease
from icedb_log.ingest.staging import stage_batch
from icedb_log.store.records import CasObject, create_claim, create_record, replace_claim
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.table_steps import acquire, make_log

KEY = "wh/t/_icedb/record"


def commit(table):
    fence, log = acquire(table), make_log(table)
    return "/_log/", partial(fence.commit, log)


def confirm(table):
    return "/fence/", acquire(table).confirm


def note_difference(table):
    fence: HeldFence = acquire(table, "merge")
    return "/fence/", partial(fence.note_difference, "a")


def create(table):
    return KEY, partial(create_record, table.store, KEY, b"new", otherwise="nothing was written")


def claim(table):
    return KEY, partial(create_claim, table.store, KEY, b"new", ended="somebody ended it")


def replace_it(table):
    etag = table.store.put(KEY, b"old")
    return KEY, partial(replace_claim, table.store, KEY, b"new", etag=etag)


def change(table):
    table.store.put(KEY, b"old")
    return KEY, partial(thing(table).update, lambda _: b"new")


def change_in_steps(table):
    table.store.put(KEY, b"old")
    steps = {b"old": b"new", b"new": b"newer"}
    return KEY, partial(thing(table).update, lambda now: steps.get(now, now), in_steps=True)


def make_new(table):
    return KEY, partial(thing(table).update, lambda now: now or b"new", is_likely_new=True)


def thing(table):
    return CasObject(table.store, KEY, decode=lambda stored: stored.body, encode=bytes)


def renew(table):
    lease_id = put_lease(table, at_ms=table.clock.now_ms(), ttl_ms=10_000, clock=table.clock)
    return lease_id, partial(renew_lease, table, lease_id, clock=table.clock, ttl_ms=20_000)


def alter(table):
    return table.paths.config_key, partial(alter_table_config, table, {"merge_fan_in": 7}, clock=table.clock)


def erase(table):
    return "/erasures/", partial(create_erasure, table, condition="id = 1", clock=table.clock)


VERBS = (
    commit, confirm, note_difference, create, claim, replace_it, change, change_in_steps, make_new, renew, alter, erase,
)  # fmt: skip


def content(store, prefix):
    """Return what stands below a prefix, by key."""
    found = {}
    for info in store.inner.list_page(prefix).objects:
        try:
            found[info.key] = store.inner.get(info.key).body
        except NotFound:
            continue
    return found


@pytest.mark.parametrize("calls_left", range(6))
@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.DELAY, Effect.TRY_TWICE, Effect.DROP])
@pytest.mark.parametrize("verb", VERBS)
def test_w2_a_write_whose_outcome_nobody_could_find_out_is_not_called_refused(verb, effect, calls_left):
    table = SmallTable()
    key, act = verb(table)
    store, plain, left = table.store, table.store._run, None
    store.script = [
        Fault("put_if_absent", effect, key)
        if verb in (commit, create, claim, make_new, erase)
        else Fault("put_if_match", effect, key)
    ]

    def run(method, where, action):
        nonlocal left
        if left == 0:
            raise Unavailable(f"{method} {where}: the store is gone")
        left = left - 1 if left is not None else None
        try:
            return plain(method, where, action)
        finally:
            if left is None and not store.script:
                left = calls_left

    store._run = run
    before = content(store, "wh/t/")
    try:
        act()
        outcome = None
    except IceDBError as error:
        outcome = error
    assert left is not None, "the write was never made"
    store._run = plain
    store.land_delayed()
    changed = {where: body for where, body in content(store, "wh/t/").items() if before.get(where) != body}
    has_landed = any(key in where and not _is_seal(where, body) for where, body in changed.items())
    if outcome is None:
        assert has_landed
    elif not isinstance(outcome, CommitOutcomeUnknown):
        assert not has_landed, f"it says {type(outcome).__name__}: {outcome}, and the write is there"


def _is_seal(where, body):
    return "/_log/" in where and b'"seal":true' in body


@pytest.mark.parametrize("calls_left", range(4))
def test_i1_a_batch_that_nobody_confirmed_may_be_sent_again(calls_left):
    """Staging promises nothing else: the same id and the same rows, again."""
    table = SmallTable()
    store, plain, calls = table.store, table.store._run, 0

    def run(method, where, action):
        nonlocal calls
        calls += 1
        if calls > 1 + calls_left:
            raise Unavailable("the store is gone")
        return plain(method, where, action)

    batch_id = "018bcfe5-6801-7054-a1e3-a5a3123d05c8"
    stage = partial(stage_batch, table, body=b'{"id":1,"p":"a"}\n', staging_format="ndjson", batch_id=batch_id)
    store.script = [Fault("put_if_absent", Effect.LOSE_ANSWER, "/staging/")]
    store._run = run
    with suppress(Unavailable):
        stage()
    store._run = plain
    stage()
    assert len([where for where in content(store, "wh/t/") if "/staging/" in where]) == 1
