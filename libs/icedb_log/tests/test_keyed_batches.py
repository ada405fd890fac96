"""Ids that are made from a producer's key: each retry has another one, and all of one key are one batch (I7)."""

import pytest
from icedb_log.batch_ids import BatchIds, is_keyed, make_keyed_id, name_of, parse_batch_id_ms
from icedb_log.clock import new_batch_id, parse_uuid7_ms
from icedb_log.content import hash_content
from icedb_log.errors import InvalidRequest
from icedb_log.ingest.groups import OfferedBatch, forget_groups
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.staging import find_staged, stage_batch, stage_group
from icedb_log.repair.fsck import fsck_table
from icedb_sim.fakes.scripted_store import Effect
from icedb_sim.tables.row_files import encode_rows
from icedb_sim.tables.small_table import SmallTable, try_each_call

KEY = "order 7"


@pytest.fixture(autouse=True)
def _fresh_process():
    forget_groups()


def send(table, number=1, *, key=KEY, grouped=False, body=None, made_ms=None):
    """Stage a batch under a key, as some front end does; return its id."""
    table.clock.advance(10)
    body = encode_rows([{"id": number, "p": "a"}]) if body is None else body
    batch_id = make_keyed_id(key, table.clock.now_ms() if made_ms is None else made_ms)
    if grouped:
        other = encode_rows([{"id": 100 + number, "p": "a"}])
        batches = [(batch_id, body), (new_batch_id(table.clock), other)]
        stage_group(table, [OfferedBatch(each, "ndjson", rows, hash_content(rows, "ndjson")) for each, rows in batches])
    else:
        stage_batch(table, body=body, staging_format="ndjson", batch_id=batch_id)
    return batch_id


def own_ids(table):
    return [number for number in table.ids() if number < 100]


def staged(table):
    return table.keys(table.paths.staging_prefix)


# The ids.


def test_ids_of_one_key_differ_in_their_time_alone():
    first, second, other = make_keyed_id(KEY, 1_000), make_keyed_id(KEY, 2_000), make_keyed_id("order 8", 1_000)
    assert (parse_batch_id_ms(first), parse_batch_id_ms(second)) == (1_000, 2_000)
    assert first != second
    assert name_of(first) == name_of(second) != name_of(other)
    assert first < second  # by time, as others
    with pytest.raises(InvalidRequest, match="not a UUIDv7"):
        parse_uuid7_ms(first)  # no producer chooses one


def test_other_ids_are_what_they_were(table):
    batch_id = new_batch_id(table.clock)
    assert name_of(batch_id) == batch_id
    assert not is_keyed(batch_id)
    assert parse_batch_id_ms(batch_id) == parse_uuid7_ms(batch_id)
    for bad in ("", "x", make_keyed_id(KEY, 1)[:-1], make_keyed_id(KEY, 1).upper()):
        with pytest.raises(InvalidRequest):
            parse_batch_id_ms(bad)


def test_ids_name_batches(table):
    plain, first, second = new_batch_id(table.clock), make_keyed_id(KEY, 1_000), make_keyed_id(KEY, 2_000)
    ids = BatchIds([plain, first])
    assert [each in ids for each in (plain, first, second, make_keyed_id("k", 1))] == [True, True, True, False]
    assert ids.find(second) == [first]
    assert ids.find_in([second, new_batch_id(table.clock)]) == {first: second}
    assert ids.find_in([plain]) == {plain: plain}
    assert (bool(ids), bool(BatchIds([])), ids.last, BatchIds([plain]).last) == (True, False, None, plain)


# What a flush makes of them.


@pytest.mark.parametrize("grouped", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("flushed_between", [False, True])
def test_i7_a_retry_of_a_key_counts_once(table, grouped, flushed_between):
    """The answer to the first one was lost, and another front end takes it again."""
    first = send(table, grouped=grouped[0])
    if flushed_between:
        table.flush()
    second = send(table, grouped=grouped[1])
    assert first != second
    for _ in range(2):
        table.flush()
    assert (own_ids(table), list_quarantined(table), staged(table)) == ([1], (), [])
    assert not [each for each in fsck_table(table, clock=table.clock).findings if each.severity == "error"]


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.DROP, Effect.CRASH_AFTER])
def test_i7_a_flush_that_is_disturbed_anywhere_commits_a_key_once(effect):
    def make():
        forget_groups()
        table = SmallTable()
        send(table, grouped=True)
        send(table)
        return table

    for table in try_each_call(make, lambda table: table.flush(), effect):
        send(table, grouped=True)
        table.clock.advance(30_000)
        for _ in range(4):
            table.flush()
        assert (own_ids(table), list_quarantined(table), staged(table)) == ([1], (), [])


@pytest.mark.parametrize("grouped", [False, True])
def test_i8_other_content_under_a_key_is_kept_in_quarantine(table, grouped):
    first = send(table)
    table.flush()
    send(table, 2, grouped=grouped)
    assert table.flush().conflict_count == 1
    (entry,) = list_quarantined(table)
    assert entry.kind == "conflict"
    assert entry.batch_id.startswith(first)
    assert (own_ids(table), staged(table)) == ([1], [])


@pytest.mark.parametrize("grouped", [False, True])
def test_i5_a_refused_batch_that_is_sent_again_under_its_key_is_one_entry(table, grouped):
    first = send(table, body=b"{no")
    table.flush()
    send(table, body=b"{no", grouped=grouped)
    table.flush()
    assert [entry.batch_id for entry in list_quarantined(table)] == [first]
    assert staged(table) == []


def test_i7_the_copy_of_a_key_that_was_staged_first_decides(table):
    """A PUT of the first try lands when nobody waits for it any more: too late, under the lower id."""
    first_ms = table.clock.now_ms()
    table.clock.advance(60_000)
    send(table)
    table.clock.advance(table.config.id_skew_ms)
    send(table, made_ms=first_ms)
    for _ in range(2):
        table.flush()
    assert (own_ids(table), list_quarantined(table), staged(table)) == ([1], (), [])


def test_i7_an_id_of_a_key_that_comes_late_is_refused(table):
    """It is the retry that comes late, not its PUT: the log file of the first one may be gone by then."""
    made_ms = table.clock.now_ms()
    table.clock.advance(table.config.id_skew_ms)
    late = send(table, made_ms=made_ms)
    assert [each.batch.batch_id for each in table.flush().rejected] == [late]
    assert own_ids(table) == []


# The janitor, and the others who ask.


@pytest.mark.parametrize("grouped", [False, True])
def test_j2_a_log_file_goes_only_with_the_copies_of_its_keys(grouped):
    """A retry is staged in time; no flush comes until the log file of the first try is old enough to go."""
    table = SmallTable(log_grace_ms=20_000, data_grace_ms=20_000)
    first = send(table)
    table.flush()
    table.append(200)
    table.merge(full=True)
    send(table, grouped=grouped)
    table.clock.advance(table.config.log_grace_ms + 1)
    table.vacuum()
    assert bool(staged(table)) == grouped  # a group is looked at by the next flush: it waits, and so does the log file
    table.flush()
    assert (own_ids(table), list_quarantined(table), staged(table)) == ([1], (), [])
    assert table.vacuum().deleted_logs or not grouped
    assert not find_staged(table, {first})


def test_j2_other_content_under_a_key_is_kept_before_its_copy_goes():
    table = SmallTable(log_grace_ms=20_000, data_grace_ms=20_000)
    send(table)
    table.flush()
    table.append(200)
    table.merge(full=True)
    send(table, 2)
    table.clock.advance(table.config.log_grace_ms + 1)
    assert table.vacuum().conflict_count == 1
    table.flush()
    assert ([entry.kind for entry in list_quarantined(table)], own_ids(table)) == (["conflict"], [1])


def test_i7_a_key_is_new_when_the_log_has_forgotten_it():
    table = SmallTable(log_grace_ms=20_000, data_grace_ms=20_000)
    send(table)
    table.flush()
    table.append(200)
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    assert table.vacuum().deleted_logs
    send(table)
    table.flush()
    assert own_ids(table) == [1, 1]
