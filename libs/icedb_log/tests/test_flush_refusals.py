"""What a flush refuses, whole or by rows: I5, at every crash and under a takeover."""

import contextlib
from dataclasses import replace

import pytest
from icedb_log.clock import new_batch_id
from icedb_log.errors import CommitOutcomeUnknown, Fenced, InvariantViolated, Unavailable
from icedb_log.ingest.quarantine import find_reason, list_quarantined, mark_rows_landed, quarantine_rows
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import TamperingWriter, bad_rows_of, rival_of, staged_ids


def test_i5_a_batch_that_cannot_be_committed_does_not_hold_up_the_others(table):
    table.append(0)
    good = [table.stage([{"id": number, "p": "a"}]) for number in (1, 2)]
    broken = table.stage_bytes(b'{"id": 3, "p": "a"}\n{"id": 4, ')
    conflict = table.stage([{"id": "five", "p": "a"}])
    homeless = table.stage([{"id": 6}])
    result = table.flush()
    assert table.view().files[-1].log.batch_ids == tuple(good)
    assert table.ids() == [0, 1, 2]
    reasons = {r.batch.batch_id: r.reason for r in result.rejected}
    assert set(reasons) == {broken, conflict, homeless}
    assert "line 2" in reasons[broken]
    assert "BIGINT" in reasons[conflict]
    assert "p is missing" in reasons[homeless]
    assert staged_ids(table) == []
    quarantined = {q.batch_id: q for q in list_quarantined(table)}
    assert {batch_id: q.reason for batch_id, q in quarantined.items()} == reasons
    assert table.store.get(quarantined[broken].payload_key).body == b'{"id": 3, "p": "a"}\n{"id": 4, '


def test_i5_a_flush_that_only_refuses_commits_that_it_does(table):
    batch_id = table.stage_bytes(b"{")
    result = table.flush()
    (file,) = table.view().files
    assert (file.key, file.log.refused_ids, file.log.batch_ids) == (result.committed_key, (batch_id,), ())
    assert file.log.markers == ()
    assert (result.batch_count, len(result.rejected)) == (0, 1)
    assert staged_ids(table) == []


def test_i5_nothing_is_in_quarantine_before_the_commit_that_refuses_it(table):
    batch_id = table.stage_bytes(b"{")
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    assert table.keys(table.paths.quarantine_prefix) == []
    assert staged_ids(table) == [batch_id]


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.LOSE_ANSWER])
def test_i5_a_refused_batch_is_never_committed_even_if_it_could_be_by_now(table, effect):
    """The flush that refused it dies before it moves it; then the table takes what it did not take before."""
    table.append(1)
    batch_id = table.stage([{"id": 1.5, "p": "a"}])
    table.store.script = [Fault("put", effect, "/quarantine/")]
    with contextlib.suppress(Crash, CommitOutcomeUnknown, Unavailable):
        table.flush()
    assert staged_ids(table) == [batch_id]
    result = table.flush(writer=TamperingWriter(table, lambda _: pytest.fail("it is not asked about")))
    assert (result.duplicate_count, result.committed_key) == (1, None)
    (found,) = list_quarantined(table)
    assert (found.batch_id, found.kind) == (batch_id, "batch")
    assert "refused before" in found.reason
    assert staged_ids(table) == []


def test_i5_a_refused_batch_that_is_staged_again_stays_refused_and_keeps_its_reason(table):
    batch_id = table.stage_bytes(b"{")
    table.flush()
    before = list_quarantined(table)
    table.stage_bytes(b"{", batch_id=batch_id)
    assert table.flush().duplicate_count == 1
    assert list_quarantined(table) == before
    assert staged_ids(table) == []


def test_i8_other_content_under_a_refused_id_is_an_entry_of_its_own(table):
    batch_id = new_batch_id(table.clock)
    for staging_format in ("json", "ndjson"):
        stage_batch(table, body=staging_format.encode(), staging_format=staging_format, batch_id=batch_id)
    assert table.flush().has_more
    table.flush()
    assert staged_ids(table) == []
    found = {entry.kind: entry for entry in list_quarantined(table)}
    assert table.store.get(found["batch"].payload_key).body == b"json"
    assert table.store.get(found["conflict"].payload_key).body == b"ndjson"
    assert (found["batch"].batch_id, found["conflict"].batch_id[:45]) == (batch_id, f"{batch_id}.conflict")


def make_rows_table():
    table = SmallTable(on_bad_rows="quarantine_rows")
    table.append(1)
    table.stage_bytes(b'{"id": 2, "p": "a"}\n{"id": "x", "p": "a"}\n{"id": 3, "p": "a"}\n{"id": 4}')
    table.stage([{"id": 5, "p": "a"}])
    return table


def test_i5_bad_rows_go_to_quarantine_and_the_others_are_committed():
    table = make_rows_table()
    ids = staged_ids(table)
    result = table.flush()
    assert (result.batch_count, result.row_count, result.bad_row_count, result.rejected) == (2, 3, 2, ())
    assert table.ids() == [1, 2, 3, 5]
    assert table.view().files[-1].log.batch_ids == tuple(ids)
    (found,) = list_quarantined(table)
    assert (found.batch_id, found.kind, found.row_count) == (ids[0], "rows", 2)
    assert found.reason.startswith("line 2: column id")
    body = table.store.get(found.payload_key).body
    assert body == b'{"id": "x", "p": "a"}\n{"id": 4}'
    assert found.size_bytes == len(body)
    assert staged_ids(table) == []


def test_i5_a_flush_that_slept_until_somebody_retried_its_bad_rows_is_fenced_and_halts_no_table(monkeypatch):
    """Simulated, seed 612 of sweepers: another flush refuses the batch whole; its retry deletes what is in quarantine."""
    table = make_rows_table()

    def sleep(table_, *, bad, **rest):
        monkeypatch.undo()
        rival_of(table).flush()
        table.store.inner.delete([bad.payload_key])
        quarantine_rows(table_, bad=bad, **rest)

    monkeypatch.setattr("icedb_log.ingest.flush.quarantine_rows", sleep)
    with pytest.raises(Fenced):
        table.flush()


@pytest.mark.parametrize(
    "effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.UNAVAILABLE, Effect.DELAY]
)
def test_i5_whatever_fails_a_committed_batch_has_not_lost_its_bad_rows(effect):
    for table in try_each_call(make_rows_table, SmallTable.flush, effect):
        if table.ids() != [1]:
            assert len(list_quarantined(table)) == 1
        while table.flush().has_more:
            pass
        table.store.land_delayed()
        assert table.ids() == [1, 2, 3, 5]
        (found,) = list_quarantined(table)
        assert (found.kind, found.row_count) == ("rows", 2)
        assert len(table.store.get(found.payload_key).body.splitlines()) == 2


def test_i5_a_flush_that_lost_its_fence_says_nothing_of_bad_rows():
    """It sleeps; the table learns to take whole batches or none; another flush refuses the batch."""
    table = make_rows_table()
    rival = SmallTable(store=table.store.inner, name="rival")
    rival.paths, rival.clock = table.paths, table.clock

    def take_over():
        config = table.config.model_copy(update={"on_bad_rows": "quarantine_batch"})
        table.store.inner.put(table.paths.config_key, config.model_dump_json().encode())
        while rival.flush().has_more:  # of one who seems to be lost, the next takes fewer
            pass

    table.store.script = [Fault("put", None, "/_data/", before=take_over)]
    with pytest.raises(Fenced):
        table.flush()
    (found,) = list_quarantined(table)
    assert found.kind == "batch"
    assert table.ids() == [1, 5]


@pytest.mark.parametrize(
    "tamper",
    [
        lambda out: replace(out, bad_rows=out.bad_rows * 2),
        lambda out: replace(out, bad_rows=(replace(out.bad_rows[0], row_count=0),)),
        lambda out: replace(out, bad_rows=(replace(out.bad_rows[0], payload_key="wh/u/_icedb/quarantine/x"),)),
        lambda out: replace(out, bad_rows=(bad_rows_of(out.accepted[0]),)),
        lambda out: replace(out, accepted=out.accepted[1:], missing=out.accepted[:1]),
    ],
    ids=["twice", "none", "elsewhere", "not uploaded", "of a batch that is missing"],
)
def test_i5_bad_rows_that_cannot_be_are_a_bug_of_the_data_path(tamper):
    table = make_rows_table()
    with pytest.raises(InvariantViolated, match=r"\(I5\)"):
        table.flush(writer=TamperingWriter(table, tamper))
    assert table.ids() == [1]
    assert len(staged_ids(table)) == 2


def test_i5_junk_in_staging_holds_up_nothing_and_is_counted(table):
    table.store.put(f"{table.paths.staging_prefix}.DS_Store", b"")
    table.store.put(f"{table.paths.staging_prefix}0.csv", b"")
    table.stage([{"id": 1, "p": "a"}])
    result = table.flush()
    assert (result.batch_count, result.unknown_count) == (1, 2)
    assert len(table.keys(table.paths.staging_prefix)) == 2


def test_i5_only_the_commit_that_left_rows_out_says_that_it_landed():
    """One flush sets rows aside and is cut off; another leaves out the same rows: the first one's late word is void."""
    table = make_rows_table()
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    (found,) = list_quarantined(table)
    reason = find_reason(table, found.batch_id)
    for commit_id in ("", "0" * 32, reason.fields["commit"][:-1], reason.fields["commit"] + "0"):
        mark_rows_landed(table, batch_id=found.batch_id, commit_id=commit_id)
        assert list_quarantined(table) == (found,)
    mark_rows_landed(table, batch_id=found.batch_id, commit_id=reason.fields["commit"])
    assert list_quarantined(table) == (found.model_copy(update={"has_landed": True}),)


def test_i5_the_reason_of_another_commits_bad_rows_is_not_taken_for_ones_own(table):
    batch_id = table.stage([{"id": 1, "p": "a"}])
    (batch,) = list_staged(table).batches
    table.store.put(table.paths.quarantine_key(f"{batch_id}.rows-{'0' * 32}.ndjson.zst"), b"rows")
    bad = replace(bad_rows_of(batch), payload_key=table.paths.quarantine_key(f"{batch_id}.rows-{'0' * 32}.ndjson.zst"))

    def write(commit_id, **changes):
        quarantine_rows(
            table,
            bad=replace(bad, **changes),
            replaces=None,
            commit_id=commit_id,
            clock=table.clock,
        )

    write("c1")
    write("c1")  # W2: refused by its own first try
    for commit_id, changes in (("c2", {}), ("c1", {"row_count": bad.row_count + 1}), ("c1", {"reason": "another"})):
        with pytest.raises(Fenced):
            write(commit_id, **changes)
