"""Groups of staged batches: the layout, and that each batch of one is what it would be alone (I1, I2, I3, I8, J2, R5)."""

import dataclasses
import random

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.clock import new_batch_id
from icedb_log.content import hash_content
from icedb_log.erasure.erasure_scope import count_staged_until
from icedb_log.errors import InvalidRequest, NotFound, Unavailable
from icedb_log.ingest import groups
from icedb_log.ingest.flush import GROUP_AGE_MS, FlushLimits
from icedb_log.ingest.groups import (
    MAX_GROUP_BATCHES,
    MAX_GROUPED_BYTES,
    OfferedBatch,
    UnreadableGroupError,
    encode_group,
    forget_groups,
    read_group,
)
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.quarantine_ops import retry_quarantined
from icedb_log.ingest.staging import (
    MAX_LOOKS,
    find_staged,
    list_all_staged,
    list_staged,
    read_staged,
    stage_batch,
    stage_group,
)
from icedb_log.jobs import FlushOutput
from icedb_log.repair.fsck import fsck_table
from icedb_log.serving.batch_commits import look_for_batch
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.row_files import RowFileWriter, encode_rows
from icedb_sim.tables.small_table import SmallTable, at_each_call, try_each_call


@pytest.fixture(autouse=True)
def _fresh_process():
    forget_groups()


def offer(table, *numbers, batch_id=None, body=None, staging_format="ndjson"):
    body = encode_rows([{"id": number, "p": "a"} for number in numbers]) if body is None else body
    table.clock.advance(1)
    batch_id = batch_id or new_batch_id(table.clock)
    return OfferedBatch(batch_id, staging_format, body, hash_content(body, staging_format))


def stage(table, *batches):
    key = stage_group(table, batches)
    table.clock.advance(1)
    return key


def staged_ids(table):
    return [batch.batch_id for batch in list_all_staged(table).batches]


def group_of(table, count=3):
    """Stage a group of batches with the rows 1, 2, ...; return them and its key."""
    batches = [offer(table, number + 1) for number in range(count)]
    return batches, stage(table, *batches)


# The layout.


def test_i1_a_group_is_accepted_by_one_conditional_put(table):
    batches = [offer(table, 1), offer(table, 2, body=b'[{"id":2}]', staging_format="json")]
    table.store.calls.clear()
    key = stage(table, *reversed(batches))
    assert table.store.keys_of("put_if_absent") == [key] == [call.key for call in table.store.calls]
    found = list_staged(table).batches
    assert [(each.key, each.batch_id, each.format, each.sha256) for each in found] == [
        (key, each.batch_id, each.format, each.sha256) for each in batches
    ]
    assert [read_staged(table.store, each) for each in found] == [each.body for each in batches]
    assert {each.staged_ms for each in found} == {table.clock.now_ms() - 1}


def test_the_index_of_a_group_is_read_once_and_by_its_end(table):
    bodies = [bytes([65 + number]) * 300_000 for number in range(3)]
    stage(table, *(offer(table, body=body) for body in bodies))
    table.store.calls.clear()
    assert [read_staged(table.store, each) for each in list_staged(table).batches] == bodies
    list_staged(table)
    assert [call.method for call in table.store.calls] == ["list_page", *["get_range"] * 4, "list_page"]


def test_an_index_beyond_the_tail_is_read_by_a_second_request(table, monkeypatch):
    monkeypatch.setattr(groups, "_TAIL_BYTES", 100)
    batches, _ = group_of(table)
    assert staged_ids(table) == [each.batch_id for each in batches]


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.TRY_TWICE, Effect.DROP, Effect.DELAY])
def test_i1_a_lost_answer_of_a_group_is_tried_again(table, effect):
    table.store.script = [Fault("put_if_absent", effect, "/staging/")]
    batches, _ = group_of(table)
    table.store.land_delayed()
    assert staged_ids(table) == [each.batch_id for each in batches]


def test_i1_a_group_that_nobody_confirms_is_to_be_sent_again(table):
    table.store.script = [Fault("put_if_absent", Effect.DROP, "/staging/") for _ in range(3)]
    with pytest.raises(Unavailable, match="enqueue them again with the same ids"):
        group_of(table)


def test_what_cannot_be_a_group_is_refused(table):
    one = offer(table, 1)
    many = [dataclasses.replace(one, batch_id=new_batch_id(table.clock)) for _ in range(MAX_GROUP_BATCHES + 1)]
    for batches in ([], [one, one], [offer(table, body=b"")], [offer(table, body=b"x" * MAX_GROUPED_BYTES)], many):
        with pytest.raises(InvalidRequest, match="a group holds 1 to 1000 batches"):
            encode_group(table.paths, batches)


@given(data=st.data())
def test_a_damaged_group_is_set_aside_with_one_clear_error(data):
    table = SmallTable()
    alone = table.stage([{"id": 9, "p": "a"}])
    key, body = encode_group(table.paths, [offer(table, 1), offer(table, 2)])
    cut = data.draw(st.integers(0, len(body) - 1))
    flipped = data.draw(st.integers(0, len(body) - 1))
    index_start = body.index(b"[[")
    damaged = data.draw(
        st.sampled_from(
            [
                body[:cut],
                body[cut:] if cut else b"",
                body + body[: cut + 1],
                body[:index_start] + bytes([body[index_start] ^ 1]) + body[index_start + 1 :],
                body[:flipped] + bytes([body[flipped] ^ 0x40]) + body[flipped + 1 :],
                b"",
            ]
        )
    )
    forget_groups()
    table.store.put(key, damaged)
    info = table.store.head(key)
    is_body = flipped < index_start and len(damaged) == len(body) and damaged[index_start:] == body[index_start:]
    if is_body:
        assert len(read_group(table.store, info)) == 2  # its body is not what the index says: the flush finds it
        return
    with pytest.raises(UnreadableGroupError, match=key.rpartition("/")[2][:36]):
        read_group(table.store, info)
    listing = list_staged(table)
    assert ([each.batch_id for each in listing.batches], [each.key for each in listing.unknown]) == ([alone], [key])
    assert table.flush().unknown_count == 1
    assert table.ids() == [9]
    assert table.store.get(key).body == damaged


@given(index=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=12))
def test_a_hostile_index_is_one_clear_error(index):
    table = SmallTable()
    batch_id = new_batch_id(table.clock)
    for said in (
        index,
        [[batch_id, "ndjson", 1, index]],
        [[batch_id, index, 1, "0" * 64]],
        [[batch_id, "ndjson", index]],
    ):
        try:
            text = orjson.dumps(said)
        except TypeError:
            continue
        key = table.paths.group_key(first_id=batch_id, digest=groups._hash_index(text))
        table.store.put(key, b"x" + text + len(text).to_bytes(4, "little") + b"IceDBgr1")
        with pytest.raises(UnreadableGroupError):
            read_group(table.store, table.store.head(key))


def test_fsck_names_a_damaged_group(table):
    _, key = group_of(table)
    table.store.put(key, table.store.get(key).body[:-1])
    forget_groups()
    assert [each.key for each in fsck_table(table, clock=table.clock).findings if each.code == "staging-unknown"] == [
        key
    ]


# Order.


def test_singles_and_groups_are_listed_in_the_order_of_ids(table):
    batches = [offer(table, number) for number in range(40)]
    rng = random.Random(7)
    rng.shuffle(batches)
    for start in (0, 9, 17):
        stage(table, *batches[start : start + 8])
    for each in (*batches[8:9], *batches[25:]):
        stage_batch(table, body=each.body, staging_format="ndjson", batch_id=each.batch_id)
    known = sorted(each.batch_id for each in batches)
    for limit in range(1, 45):
        listing = list_staged(table, limit=limit)
        assert [each.batch_id for each in listing.batches] == known[:limit]
        assert listing.has_more == (limit < len(known))
    assert [each.batch_id for each in list_staged(table, skip=set(known[::2])).batches] == known[1::2]
    for each in batches:
        ((found,),) = find_staged(table, {each.batch_id}).values()
        assert read_staged(table.store, found) == each.body


def test_i3_the_copy_that_was_staged_first_decides(table):
    """A retry that comes too late lies in a group that is listed before the one that was in time."""
    batch = offer(table, 1)
    others = [offer(table, number) for number in range(2, 30)]
    stage(table, others[0], batch)
    table.clock.advance(table.config.retry_window_ms)
    for each in others[1:]:  # names of groups are hashes: some come first, some later
        stage(table, batch, each)
    table.flush()
    assert not {batch.batch_id} & {entry.batch_id for entry in list_quarantined(table)}
    assert 1 in table.ids()


# What a flush makes of them.


def test_a_flush_commits_the_batches_of_a_group_and_it_goes(table):
    batches, _ = group_of(table)
    result = table.flush()
    assert result.committed_ids == tuple(each.batch_id for each in batches)
    assert (table.ids(), table.keys(table.paths.staging_prefix)) == ([1, 2, 3], [])


def test_i2_a_group_stays_until_each_of_its_batches_is_decided(table):
    batches, key = group_of(table)
    for number in range(1, 4):
        assert table.keys(table.paths.staging_prefix) == [key]
        table.flush(limits=FlushLimits(max_batches=1))
        assert table.ids() == list(range(1, number + 1))
    assert table.keys(table.paths.staging_prefix) == []
    assert all(not look_for_batch(table, each.batch_id).is_staged for each in batches)


def test_i5_a_refused_batch_of_a_group_is_moved_and_the_group_goes(table):
    bad = offer(table, body=b"{no")
    stage(table, offer(table, 1), bad, offer(table, 2))
    assert [each.batch.batch_id for each in table.flush().rejected] == [bad.batch_id]
    (entry,) = list_quarantined(table)
    assert (entry.batch_id, table.store.get(entry.payload_key).body) == (bad.batch_id, b"{no")
    assert (table.ids(), table.keys(table.paths.staging_prefix)) == ([1, 2], [])


def test_i3_a_group_that_was_accepted_twice_is_committed_once(table):
    batches, key = group_of(table)
    table.flush()
    assert stage(table, *batches) == key  # the answer to the first one was lost
    again = stage(table, batches[0], offer(table, 4), batches[2])  # or its senders went to another front end
    result = table.flush()
    assert (result.duplicate_count, result.batch_count) == (5, 1)
    assert (table.ids(), table.keys(table.paths.staging_prefix)) == ([1, 2, 3, 4], [])
    assert again != key


def test_i8_a_duplicate_in_a_group_is_settled_by_its_index(table):
    batches, key = group_of(table)
    table.flush()
    stage(table, *batches)
    list_staged(table)
    table.store.calls.clear()
    table.flush()
    assert not [call for call in table.store.calls if call.method in ("get", "get_range") and call.key == key]


def test_i8_other_content_in_a_group_is_kept_in_quarantine(table):
    batches, _ = group_of(table)
    table.flush()
    other = offer(table, 7, batch_id=batches[1].batch_id)
    stage(table, batches[0], other)
    assert table.flush().conflict_count == 1
    (entry,) = list_quarantined(table)
    assert (entry.kind, table.store.get(entry.payload_key).body) == ("conflict", other.body)
    assert (table.ids(), table.keys(table.paths.staging_prefix)) == ([1, 2, 3], [])


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.DROP, Effect.CRASH_AFTER])
def test_a_flush_that_is_disturbed_anywhere_loses_nothing_of_a_group(effect):
    def make():
        forget_groups()
        table = SmallTable()
        stage(table, offer(table, 1), offer(table, body=b"{no"), offer(table, 2))
        return table

    for table in try_each_call(make, lambda table: table.flush(), effect):
        table.clock.advance(30_000)
        for _ in range(3):
            table.flush()
        assert table.ids() == [1, 2]
        assert len(list_quarantined(table)) == 1
        assert table.keys(table.paths.staging_prefix) == []


def test_two_flushes_at_once_commit_a_group_once():
    def make():
        forget_groups()
        table = SmallTable()
        group_of(table)
        return table

    for table, _, where in at_each_call(make, lambda table: table.flush(), SmallTable.flush):
        table.clock.advance(30_000)
        for _ in range(3):  # whose fence was taken away may have died of what it read (I5)
            table.flush()
        assert table.ids() == [1, 2, 3], where
        assert table.keys(table.paths.staging_prefix) == [], where


# What keeps a group is staged alone.


def half_decided(**config):
    """Return a table whose log has the first batch of a group of three, the others of it, and its key."""
    table = SmallTable(**{"log_grace_ms": 1_200_000, "data_grace_ms": 1_200_000, **config})
    batches, key = group_of(table)
    table.flush(limits=FlushLimits(max_batches=1))
    return table, batches, key


def test_what_keeps_an_old_group_is_staged_alone():
    table, (_, second, third), key = half_decided()
    table.stage([{"id": 4, "p": "a"}], batch_id=None)
    table.clock.advance(GROUP_AGE_MS)
    table.flush(limits=FlushLimits(max_batches=1))
    assert staged_ids(table)[:1] == [third.batch_id]
    assert key not in table.keys(table.paths.staging_prefix)
    assert not find_staged(table, {second.batch_id})
    for _ in range(3):
        table.flush()
    assert table.ids() == [1, 2, 3, 4]


def test_i3_what_would_be_too_late_alone_stays_in_its_group():
    table, (_, _, third), key = half_decided()
    table.clock.advance(table.config.retry_window_ms)
    table.flush(limits=FlushLimits(max_batches=1))
    assert key in table.keys(table.paths.staging_prefix)
    table.flush()
    table.flush()  # of the copy that is too late
    assert (table.ids(), list_quarantined(table), table.keys(table.paths.staging_prefix)) == ([1, 2, 3], (), [])
    assert third.batch_id


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.DROP, Effect.CRASH_AFTER])
def test_a_flush_that_is_cut_off_while_it_stages_alone_loses_nothing(effect):
    def make():
        forget_groups()
        table, _, _ = half_decided()
        table.clock.advance(GROUP_AGE_MS)
        return table

    for table in try_each_call(make, lambda table: table.flush(limits=FlushLimits(max_batches=1)), effect):
        table.clock.advance(30_000)
        for _ in range(4):
            table.flush()
        assert (table.ids(), list_quarantined(table)) == ([1, 2, 3], ())
        assert table.keys(table.paths.staging_prefix) == []


def test_r5_a_batch_that_moves_out_of_its_group_is_never_nowhere():
    """The group is listed, then its last batch is staged alone and it goes, then its index is read."""
    table, (_, _, third), _ = half_decided()
    table.clock.advance(GROUP_AGE_MS)
    forget_groups()
    move = Fault("get_range", None, "/staging/", before=lambda: table.flush(limits=FlushLimits(max_batches=1)))
    table.store.script = [move]
    assert look_for_batch(table, third.batch_id).is_staged


def test_r5_who_looks_at_groups_that_come_and_go_is_told_to_try_again(table, monkeypatch):
    group_of(table)
    looks = []

    def vanish(*_):
        looks.append(1)
        raise NotFound("gone")

    monkeypatch.setattr("icedb_log.ingest.staging.read_group", vanish)
    with pytest.raises(Unavailable, match="came and went 10 times"):
        list_staged(table)
    assert len(looks) == MAX_LOOKS


# The janitor, and the others who ask.


def test_j2_a_log_file_stays_while_a_group_names_one_of_its_ids():
    table, (first, second, third), key = half_decided(log_grace_ms=20_000, data_grace_ms=20_000)
    table.stage([{"id": 100, "p": "a"}])
    table.flush(limits=FlushLimits(skip=frozenset({second.batch_id, third.batch_id})))
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    result = table.vacuum()
    assert {each.guard for each in result.waiting} >= {"staged"}
    assert key in table.keys(table.paths.staging_prefix)
    table.flush()
    assert table.ids() == [1, 2, 3, 100]  # the first one once
    assert not find_staged(table, {first.batch_id})
    assert table.vacuum().deleted_logs


def test_i5_a_refused_batch_is_not_retried_while_its_group_waits_for_others():
    table = SmallTable(log_grace_ms=1_200_000, data_grace_ms=1_200_000)
    bad = offer(table, body=b"{no")
    stage(table, bad, offer(table, 1))
    table.flush(limits=FlushLimits(max_batches=1))
    with pytest.raises(InvalidRequest, match="is still staged; wait for the next flush"):
        retry_quarantined(table, bad.batch_id, clock=table.clock)
    table.flush()
    assert retry_quarantined(table, bad.batch_id, clock=table.clock)
    assert (table.ids(), list_quarantined(table)) == ([1], ())


def test_i5_the_reason_of_a_refused_batch_is_not_written_anew_while_its_group_waits_for_others():
    table = SmallTable(log_grace_ms=1_200_000, data_grace_ms=1_200_000)
    bad = offer(table, body=b"{no")
    key = stage(table, bad, offer(table, 1), offer(table, 2))
    one = FlushLimits(max_batches=1)
    assert table.flush(limits=one).rejected
    (entry,) = list_quarantined(table)
    table.store.calls.clear()
    assert table.flush(limits=one).batch_count == 1
    assert not [call for call in table.store.calls if "/quarantine/" in call.key]
    assert table.keys(table.paths.staging_prefix) == [key]
    table.flush(limits=one)  # it goes with the last one
    assert (table.ids(), table.keys(table.paths.staging_prefix), list_quarantined(table)) == ([1, 2], [], (entry,))


def test_i5_a_flush_that_was_cut_off_before_it_said_why_is_made_good_when_the_group_is_old():
    table = SmallTable(log_grace_ms=1_200_000, data_grace_ms=1_200_000)
    bad = offer(table, body=b"{no")
    stage(table, bad, offer(table, 1), offer(table, 2))
    one = FlushLimits(max_batches=1)
    table.store.script = [Fault("put", Effect.CRASH_BEFORE, "/quarantine/")]
    with pytest.raises(Crash):
        table.flush(limits=one)
    table.clock.advance(GROUP_AGE_MS)
    table.flush(limits=one)
    assert [each.batch_id for each in list_quarantined(table)] == [bad.batch_id]


def test_an_old_group_whose_decided_batches_are_all_refused_goes():
    table = SmallTable(log_grace_ms=1_200_000, data_grace_ms=1_200_000)
    bad, large = offer(table, body=b"{no"), offer(table, 1)
    key = stage(table, bad, large)
    others = FlushLimits(skip=frozenset({large.batch_id}))
    assert table.flush(limits=others).rejected
    table.clock.advance(GROUP_AGE_MS)
    table.stage([{"id": 2, "p": "a"}])
    table.flush(limits=others)
    assert key not in table.keys(table.paths.staging_prefix)
    table.flush()
    assert table.ids() == [1, 2]


def test_an_erasure_waits_for_batches_in_groups(table):
    group_of(table)
    assert count_staged_until(table, table.clock.now_ms()) == 3
    assert count_staged_until(table, table.clock.now_ms() - 10) == 0


def test_status_counts_batches(table):
    group_of(table)
    found = table.status()
    assert found.staged_batches == 3
    assert 0 < found.staged_bytes < 100


class _DeferringWriter(RowFileWriter):
    def write_batches(self, job):
        output: FlushOutput = super().write_batches(dataclasses.replace(job, batches=job.batches[:1]))
        return dataclasses.replace(output, deferred=job.batches[1:])


def test_i6_deferred_batches_keep_their_group(table):
    _, key = group_of(table)
    result = table.flush(writer=_DeferringWriter(table.store, table.clock))
    assert (result.batch_count, result.deferred_count) == (1, 2)
    assert table.keys(table.paths.staging_prefix) == [key]
    table.flush()
    assert table.ids() == [1, 2, 3]
