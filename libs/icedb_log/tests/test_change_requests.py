"""Changes that were asked for under an id are made once, however often they are asked for (M7)."""

import contextlib
from dataclasses import replace
from unittest.mock import patch

import pytest
from icedb_log.clock import new_batch_id
from icedb_log.commit.invariants import require_merge
from icedb_log.commit.merge_log import build_merge_log
from icedb_log.errors import CorruptLog, IceDBError, InvalidRequest, InvariantViolated
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.log.requests import MAX_AHEAD_MS, REQUEST_AGE_MS, REQUEST_MEMORY_MS, ChangeRequestId
from icedb_log.log.state import LogState
from icedb_log.model import FeedState, LogFile
from icedb_sim.fakes.scripted_store import DISTURBANCES, Crash, Fault
from icedb_sim.tables.row_files import RowFileChanger
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.small_view import grow_old

QUERY = "select * from _rows"


class AddOne(RowFileChanger):
    """Adds one to each id: a rewrite that may not run on its own result."""

    def merge_groups(self, job):
        def change_rows(rows, _change):
            return [{**row, "id": row["id"] + 1} for row in rows], None

        with patch("icedb_sim.tables.row_files._change_rows", change_rows):
            return super().merge_groups(job)


def request_of(table, *, age_ms=0, asked=QUERY):
    table.clock.advance(-age_ms)
    request_id = new_batch_id(table.clock)
    table.clock.advance(age_ms)
    return ChangeRequestId.of(request_id, asked)


def add_one(table, request):
    return table.rewrite(QUERY, changer=AddOne(table.store, table.clock), request=request)


@pytest.fixture
def table(table):
    table.append(1, 2)
    table.append(11, p="b")
    return table


def test_a_rewrite_that_is_asked_for_again_says_what_it_did(table):
    request = request_of(table)
    first = add_one(table, request)
    commits = len(table.view().files)
    second = add_one(table, request)
    assert table.ids() == [2, 3, 12]
    assert len(table.view().files) == commits
    assert second == replace(first, partitions=(), removed_paths=(), is_repeated=True)
    assert (second.rows_read, second.rows_removed, second.file_count, second.partition_count) == (3, 0, 2, 2)
    assert {**first.details(), "paths": [], "repeated": True} == second.details()


def test_without_an_id_and_with_another_one_the_query_runs_on_its_own_result(table):
    add_one(table, None)
    add_one(table, request_of(table))
    add_one(table, request_of(table))
    assert table.ids() == [4, 5, 14]


def test_a_deletion_that_is_asked_for_again_says_how_many_rows_went(table):
    request = request_of(table)
    table.delete("id = 2", request=request)
    again = table.delete("id = 2", request=request)
    assert (again.rows_removed, again.scanned_count, again.is_repeated) == (1, 2, True)
    assert table.delete("id = 2").rows_removed == 0


@pytest.mark.parametrize("effect", DISTURBANCES)
def test_a_run_that_is_disturbed_at_any_call_can_be_repeated(effect):
    number = 0
    while True:
        table = SmallTable()
        table.append(1, 2)
        request = request_of(table)
        table.store.calls.clear()
        table.store.fault_at = {number: effect}
        with contextlib.suppress(IceDBError, Crash):
            add_one(table, request)
        is_over = len(table.store.calls) <= number
        table.store.fault_at = {}
        add_one(table, request)
        assert table.ids() == [2, 3], number
        table.store.land_delayed()
        table.merge(full=True)
        grow_old(table)
        table.vacuum()
        assert add_one(table, request).is_repeated
        assert table.ids() == [2, 3], number
        if is_over:
            assert number > 8
            return
        number += 1


def test_a_request_that_another_run_carries_out_meanwhile_is_not_carried_out_again(table):
    """The log counts as it is read under the fence."""
    request = request_of(table)
    table.store.script.append(Fault("get", None, key="t/_icedb/fence/merge", before=lambda: add_one(table, request)))
    assert add_one(table, request).is_repeated
    assert table.ids() == [2, 3, 12]


def test_merges_and_vacuums_carry_it_on(table):
    request = request_of(table)
    first = add_one(table, request)
    for number in range(20, 24):
        table.append(number)
        table.merge(full=True)
        grow_old(table)
        table.vacuum()
    assert first.committed_key not in table.keys(table.paths.log_prefix)
    again = add_one(table, request)
    assert (again.committed_key, again.commit_ms, again.is_repeated) == (first.committed_key, first.commit_ms, True)
    assert table.ids() == [2, 3, 12, 20, 21, 22, 23]


def test_a_rebuild_carries_it_on(table):
    request = request_of(table)
    add_one(table, request)
    table.rebuild(is_forced=True)
    assert add_one(table, request).is_repeated


def test_it_is_forgotten_when_nobody_may_repeat_it_any_more(table):
    request = request_of(table)
    add_one(table, request)
    for passed_ms, is_known in ((REQUEST_AGE_MS, True), (REQUEST_MEMORY_MS - REQUEST_AGE_MS, False)):
        table.clock.advance(passed_ms)
        table.append(30)
        table.merge(full=True)
        grow_old(table)
        table.vacuum()
        assert any(request.request_id in file.log.requests for file in table.view().files) is is_known
    with pytest.raises(InvalidRequest, match="ids are taken for a day"):
        add_one(table, request)


@pytest.mark.parametrize("age_ms", [REQUEST_AGE_MS, -MAX_AHEAD_MS - 1])
def test_an_id_of_another_day_is_refused(table, age_ms):
    with pytest.raises(InvalidRequest, match="icedb changes t"):
        add_one(table, request_of(table, age_ms=age_ms))
    assert table.ids() == [1, 2, 11]


def test_an_id_that_grows_too_old_while_its_run_waits_for_the_fence_is_refused(table):
    request = request_of(table)
    late = Fault("get", None, key="t/_icedb/fence/merge", before=lambda: table.clock.advance(REQUEST_AGE_MS))
    table.store.script.append(late)
    with pytest.raises(InvalidRequest, match="ids are taken for a day"):
        add_one(table, request)
    assert table.ids() == [1, 2, 11]


def test_an_id_means_one_change(table):
    request = request_of(table)
    add_one(table, request)
    with pytest.raises(InvalidRequest, match="given to another change"):
        table.delete("id = 2", request=replace(request, digest="ab"))
    with pytest.raises(InvalidRequest, match="of a change is no UUIDv7"):
        ChangeRequestId.of("twice", QUERY)


def test_a_merge_that_forgets_a_request_is_not_committed(table):
    add_one(table, request_of(table))
    seen = table.view()
    state = LogState.of(seen)
    keys = [file.key for file in seen.files]
    log = build_merge_log(state, merged=(), folded_log_keys=keys, commit_id="ab", now_ms=table.clock.now_ms())
    key = table.paths.log_key(time_ms=log.time_ms, commit_id="ab", is_merged=True)
    require_merge(table.paths, state, log, merged=(), commit_key=key)
    with pytest.raises(InvariantViolated, match="forgets that request"):
        require_merge(table.paths, state, replace(log, requests={}), merged=(), commit_key=key)


@pytest.mark.parametrize(
    "said",
    [b"[]", b"3", b'{"a":{"of":"ab","log":"1_m_cd"}}', b'{"ID":1}', b'{"ID":{"of":"ab"}}', b'{"ID":{"of":"ab","log":1}}',
     b'{"ID":{"of":"ab","log":"1_m_cd","rows_read":[1]}}', b'{"ID":{"of":"ab","log":"1_m_cd","rows_read":1.5}}'],
)  # fmt: skip
def test_what_is_no_outcome_is_damage(said):
    request_id, outcome = "0190b0f5-0000-7000-8000-000000000000", {"of": "ab", "log": "1_m_cd", "rows_read": 7}
    body = encode_log_file(LogFile(time_ms=1, requests={request_id: outcome}))
    key = "wh/t/_log/0000000000001_ab.jsonl"
    assert decode_log_file(key, body).requests == {request_id: outcome}
    whole = f'{{"{request_id}":{{"of":"ab","log":"1_m_cd","rows_read":7}}}}'.encode()
    assert whole in body
    with pytest.raises(CorruptLog, match="req is"):
        decode_log_file(key, body.replace(whole, said.replace(b"ID", request_id.encode())))


@pytest.mark.parametrize("said", [b"3", b"[-1]", b"[true]", b'["1"]', b"null"])
def test_what_are_no_places_of_a_backfill_is_damage(said):
    body = encode_log_file(LogFile(time_ms=1, feed=FeedState(2, ("1_ab",), backfilled=(3, 5))))
    key = "wh/t/_log/0000000000001_ab.jsonl"
    assert decode_log_file(key, body).feed.backfilled == (3, 5)
    with pytest.raises(CorruptLog, match="bf of fed"):
        decode_log_file(key, body.replace(b'"bf":[3,5]', b'"bf":' + said))
