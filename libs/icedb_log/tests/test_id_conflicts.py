"""An id that is used again for other content: what was accepted becomes rows, or an entry with the reason (I8)."""

import gzip
import hashlib
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.clean.leftovers import sweep_leftovers
from icedb_log.clock import new_batch_id
from icedb_log.content import DIGEST_CHARS, MAX_STREAMS, hash_content
from icedb_log.errors import CorruptLog, InvalidRequest
from icedb_log.ingest.quarantine import list_conflicts, list_quarantined, reason_key
from icedb_log.ingest.quarantine_ops import (
    begin_drop,
    drop_quarantined,
    read_quarantined,
    retry_quarantined,
)
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.codec import decode_log_file, decode_log_head, encode_log_file
from icedb_log.model import LogFile
from icedb_log.repair.fsck import fsck_table
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.row_files import RowFileWriter, encode_rows
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import rival_of, staged_ids

A, B, C = ([{"id": number, "p": "a"}] for number in (1, 2, 3))


def stage(table, rows, batch_id, staging_format="ndjson"):
    body = encode_rows(rows) if isinstance(rows, list) else rows
    stage_batch(table, body=body, staging_format=staging_format, batch_id=batch_id)
    table.clock.advance(1)


def kept(table):
    """Return the ids of the rows in quarantine, of whatever entries."""
    bodies = [table.store.get(entry.payload_key).body for entry in list_quarantined(table)]
    return sorted(orjson.loads(line)["id"] for body in bodies for line in body.split(b"\n"))


def kept_batches(table):
    """Return the batches in quarantine, as they were staged."""
    return [table.store.get(entry.payload_key).body for entry in list_quarantined(table)]


def expire_log(table):
    """Let the log file of the first commit be merged away and get old, so that a vacuum deletes it."""
    table.append(100)
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)


class SilentWriter(RowFileWriter):
    """A data path that does not tell what it has read, as an append of Spark has no body to tell of."""

    def write_batches(self, job):
        return replace(super().write_batches(job), contents={})


def test_i8_two_contents_of_one_id_in_one_flush(table):
    batch_id = new_batch_id(table.clock)
    stage(table, A, batch_id)
    stage(table, C, batch_id, "json")
    assert table.flush().has_more
    result = table.flush()
    assert (result.duplicate_count, result.conflict_count, staged_ids(table)) == (1, 1, [])
    assert sorted([*table.ids(), *kept(table)]) == [1, 3]
    (name,) = list_conflicts(table, batch_id)
    lost = {1: A, 3: C}[kept(table)[0]]
    assert name == f"{batch_id}.conflict-{hashlib.sha256(encode_rows(lost)).hexdigest()}"


@pytest.mark.parametrize("staging_format", ["ndjson", "json", "csv.gz"])
def test_i8_other_content_after_the_commit_is_an_entry(table, staging_format):
    batch_id = table.stage(A)
    table.flush()
    stage(table, B, batch_id, staging_format)
    result = table.flush()
    assert (result.conflict_count, result.duplicate_count, staged_ids(table)) == (1, 1, [])
    assert (table.ids(), kept(table)) == ([1], [2])
    (entry,) = list_quarantined(table)
    assert (entry.kind, entry.is_doubtful) == ("conflict", True)
    assert "was committed with other content" in entry.reason


def test_i8_the_same_content_packed_otherwise_is_a_duplicate(table):
    batch_id = table.stage(A)
    table.flush()
    stage(table, gzip.compress(encode_rows(A)), batch_id, "ndjson.gz")
    result = table.flush()
    assert (result.duplicate_count, result.conflict_count, staged_ids(table)) == (1, 0, [])
    assert list_quarantined(table) == ()


def test_i8_what_was_committed_without_its_content_cannot_be_compared_and_is_kept(table):
    batch_id = table.stage(A)
    table.flush(writer=SilentWriter(table.store, table.clock))
    stage(table, A, batch_id)
    assert table.flush().conflict_count == 1
    (entry,) = list_quarantined(table)
    assert "nobody can tell" in entry.reason
    assert (table.ids(), kept(table)) == ([1], [1])
    with pytest.raises(InvalidRequest, match="by force"):
        retry_quarantined(table, entry.batch_id, clock=table.clock, reader=table.reader())


def test_i8_other_content_under_a_refused_id_is_kept_beside_it(table):
    batch_id = table.stage([{"id": "x", "p": "a"}, {"id": 1, "p": "a"}])
    table.flush()
    for rows in (B, C, B):
        stage(table, rows, batch_id)
        assert (table.flush().conflict_count, staged_ids(table)) == (1, [])
    kinds = [entry.kind for entry in list_quarantined(table)]
    assert sorted(kinds) == ["batch", "conflict", "conflict"]
    names = list_conflicts(table, batch_id)
    bodies = {read_quarantined(table, name).body for name in names}
    assert bodies == {encode_rows(B), encode_rows(C)}


def test_i8_a_flush_that_slept_replaces_nothing_that_an_entry_holds():
    """It is about to move one content; that is moved by another one, and retried; then other content comes, is refused."""
    table = SmallTable()
    batch_id = table.stage_bytes(b"{")
    rival = rival_of(table)

    def everything_happens():
        rival.flush()
        retry_quarantined(rival, batch_id, clock=rival.clock, force=True)
        rival.stage_bytes(b"[", batch_id=batch_id)
        rival.flush()

    table.store.script = [Fault("put", None, "/quarantine/", before=everything_happens)]
    table.flush()
    table.flush()
    assert sorted(kept_batches(table)) == [b"[", b"{", b"{"]


def test_i8_an_entry_without_its_payload_gets_it_from_the_next_copy(table):
    """A drop was cut off between payload and reason, and its batch is accepted once more."""
    batch_id = table.stage_bytes(b"{")
    table.flush()
    table.store.script = [Fault("delete", Effect.CRASH_BEFORE, f"{batch_id}.json")]
    with pytest.raises(Crash):
        drop_quarantined(table, batch_id)
    table.stage_bytes(b"{", batch_id=batch_id)
    table.flush()
    assert (staged_ids(table), kept_batches(table)) == ([], [b"{"])


def test_i8_an_entry_of_other_content_is_looked_at_retried_and_dropped(table):
    batch_id = table.stage(A)
    table.flush()
    for rows in (B, C):
        stage(table, rows, batch_id)
        table.flush()
    retried, dropped = list_conflicts(table, batch_id)
    assert read_quarantined(table, retried).format == "ndjson"
    (row,) = orjson.loads(f"[{read_quarantined(table, retried).body.decode()}]")
    retry_quarantined(table, retried, clock=table.clock, reader=table.reader(), force=True)
    drop_quarantined(table, dropped)
    table.flush()
    assert table.ids() == [1, row["id"]]
    assert table.keys(table.paths.quarantine_prefix) == []


def test_i8_an_entry_is_not_dropped_while_its_id_is_staged(table):
    batch_id = table.stage(A)
    table.flush()
    stage(table, B, batch_id)
    table.flush()
    stage(table, B, batch_id)
    (name,) = list_conflicts(table, batch_id)
    with pytest.raises(InvalidRequest, match="staged"):
        drop_quarantined(table, name)


def test_i8_a_copy_waits_while_the_janitor_drops_the_entry_of_its_content(table):
    batch_id = table.stage(A)
    table.flush()
    stage(table, B, batch_id)
    table.flush()
    (name,) = list_conflicts(table, batch_id)
    (reason,) = [info for info in table.keys(table.paths.quarantine_prefix) if info.endswith(f"{name}.json")]
    payloads = begin_drop(table, name, etag=table.store.head(reason).etag)
    stage(table, B, batch_id)
    result = table.flush()
    assert (result.duplicate_count, result.conflict_count, staged_ids(table)) == (0, 0, [batch_id])
    table.store.delete([*payloads, reason])  # the janitor goes on
    assert (table.flush().conflict_count, staged_ids(table), kept(table)) == (1, [], [2])


def test_j11_a_drop_that_was_cut_off_ends_although_the_batch_is_staged():
    table = SmallTable(quarantine_retention_ms=24 * 3600 * 1000)
    batch_id = table.stage(A)
    table.flush()
    stage(table, B, batch_id)
    table.flush()
    table.clock.advance(25 * 3600 * 1000)
    (name,) = list_conflicts(table, batch_id)
    begin_drop(table, name, etag=table.store.head(reason_key(table.paths, name)).etag)
    stage(table, B, batch_id)
    assert table.flush().conflict_count == 0
    found = table.sweep().walk
    sweep_leftovers(table.known(), found)
    assert (table.flush().conflict_count, staged_ids(table), kept(table)) == (1, [], [2])


def test_j11_a_drop_that_was_cut_off_ends_also_when_its_mark_is_old():
    """Found by the simulation (seed 255): the batch waited for the drop to end, and the drop for the batch to go."""
    table = SmallTable(quarantine_retention_ms=24 * 3600 * 1000)
    batch_id = table.stage_bytes(b"[")
    table.flush()
    reason = reason_key(table.paths, batch_id)
    table.clock.advance(25 * 3600 * 1000)
    begin_drop(table, batch_id, etag=table.store.head(reason).etag)
    stage(table, b"[", batch_id)
    table.flush()
    assert staged_ids(table) == [batch_id]
    table.clock.advance(25 * 3600 * 1000)
    found = table.sweep().walk
    sweep_leftovers(table.known(), found)
    table.flush()
    assert staged_ids(table) == []
    (entry,) = list_quarantined(table)
    assert table.store.get(entry.payload_key).body == b"["


def test_j11_a_copy_that_was_accepted_again_makes_its_entry_young():
    """A janitor has listed the entry as old; a flush finds the same content staged; then the janitor goes on."""
    table = SmallTable(quarantine_retention_ms=24 * 3600 * 1000)
    batch_id = table.stage(A)
    table.flush()
    stage(table, B, batch_id)
    table.flush()
    (name,) = list_conflicts(table, batch_id)
    etag = table.store.head(reason_key(table.paths, name)).etag
    table.clock.advance(25 * 3600 * 1000)
    stage(table, B, batch_id)
    assert table.flush().conflict_count == 1
    assert begin_drop(table, name, etag=etag) is None


def test_j11_a_refused_batch_that_was_accepted_again_makes_its_entry_young():
    """The same, with the entry of a batch that was refused whole."""
    table = SmallTable(quarantine_retention_ms=3600 * 1000)
    batch_id = table.stage_bytes(b"{")
    table.flush()
    etag = table.store.head(reason_key(table.paths, batch_id)).etag
    table.clock.advance(2 * 3600 * 1000)
    table.stage_bytes(b"{", batch_id=batch_id)
    assert (table.flush().conflict_count, staged_ids(table)) == (0, [])
    assert begin_drop(table, batch_id, etag=etag) is None
    assert kept_batches(table) == [b"{"]


def test_j2_a_copy_of_the_same_content_goes_with_the_log_file(table):
    batch_id = table.stage(A)
    table.flush()
    expire_log(table)
    stage(table, A, batch_id)
    result = table.vacuum()
    assert (len(result.deleted_copies), result.conflict_count, list_quarantined(table)) == (1, 0, ())


def test_j2_a_copy_of_other_content_is_an_entry_before_the_janitor_deletes_it(table):
    batch_id = table.stage(A)
    table.flush()
    expire_log(table)
    stage(table, B, batch_id)
    result = table.vacuum()
    assert (len(result.deleted_copies), result.conflict_count, kept(table)) == (1, 1, [2])
    assert result.deleted_logs


def test_j2_a_copy_that_cannot_be_kept_keeps_the_log_file_that_knows_its_id(table):
    batch_id = table.stage(A)
    table.flush()
    expire_log(table)
    stage(table, B, batch_id)
    first = table.view().files[0].key
    table.store.script = [Fault("put", Effect.DROP, "/quarantine/")]
    result = table.vacuum()
    assert (result.deleted_copies, first in result.deleted_logs, len(result.failed)) == ((), False, 1)
    assert (table.vacuum().conflict_count, kept(table)) == (1, [2])


def conflicting(*, is_expired):
    table = SmallTable()
    batch_id = table.stage(A)
    table.flush()
    if is_expired:
        expire_log(table)
    stage(table, B, batch_id)
    stage(table, C, batch_id, "json")
    return table


@pytest.mark.parametrize("effect", list(Effect))
@pytest.mark.parametrize("step", ["flush", "vacuum"])
def test_i8_whatever_is_cut_off_what_was_accepted_is_staged_or_an_entry_and_then_an_entry(step, effect):
    def make():
        return conflicting(is_expired=step == "vacuum")

    def act(table):
        getattr(table, step)()

    for table in try_each_call(make, act, effect):
        staged = {{"ndjson": 2, "json": 3}[key.rpartition(".")[2]] for key in table.keys(table.paths.staging_prefix)}
        assert {*kept(table), *staged} == {2, 3}
        table.store.land_delayed()
        table.flush()
        table.flush()
        assert (staged_ids(table), sorted(set(kept(table)))) == ([], [2, 3])
        assert 1 in table.ids()


def test_i8_what_is_staged_when_the_log_has_forgotten_its_id_does_not_take_bad_rows_with_it():
    """The batch was committed without its bad rows; the same id, too late to be compared, is refused (I3)."""
    table = SmallTable(on_bad_rows="quarantine_rows")
    batch_id = table.stage_bytes(b'{"id": 1, "p": "a"}\n{"id": 7, "p": 7}')
    table.flush()
    expire_log(table)
    table.vacuum()
    stage(table, B, batch_id)
    assert [each.batch.batch_id for each in table.flush().rejected] == [batch_id]
    assert staged_ids(table) == []
    (name,) = list_conflicts(table, batch_id)
    drop_quarantined(table, name)
    assert kept(table) == [7]


CONTENTS = st.integers(1, 4)
STEP = st.one_of(
    st.tuples(st.just("stage"), CONTENTS, st.sampled_from(["ndjson", "json", "csv"]), st.booleans()),
    st.tuples(st.just("flush"), st.booleans()),
    st.tuples(st.just("merge")),
    st.tuples(st.just("vacuum"), st.sampled_from([1, 11_000])),
)


@given(history=st.lists(STEP, max_size=12), bad=st.sets(CONTENTS, max_size=2))
def test_i8_every_accepted_body_becomes_rows_or_an_entry(history, bad):
    table = SmallTable(orphan_age_ms=4_000_000)
    ids = [new_batch_id(table.clock), new_batch_id(table.clock)]
    accepted = set()
    for step, *args in history:
        if step == "stage":
            number, staging_format, which = args
            value = {"id": number, "p": 7 if number in bad else "a"}  # p is a VARCHAR: refused where the table knows it
            try:
                stage(table, [value], ids[which], staging_format)
            except InvalidRequest:
                continue  # the same key, with other content: refused before it was accepted
            accepted.add(number)
        elif step == "flush":
            table.flush(writer=SilentWriter(table.store, table.clock) if args[0] else None)
        elif step == "vacuum":
            table.clock.advance(args[0])
            table.vacuum()
        else:
            table.merge(full=True)
    for _ in range(3):
        table.flush()
    assert staged_ids(table) == []
    assert accepted <= {*table.ids(), *kept(table)}
    assert len(table.ids()) == len([*table.ids()])
    report = fsck_table(table, clock=table.clock)
    assert not [found for found in report.findings if found.severity == "error"], report.findings
    assert not [found for found in report.findings if "quarantine" in found.code or "unknown" in found.code]


def log_with(**fields):
    return LogFile(10, {"a": "BIGINT"}, commit_id="c1", batch_ids=("x", "y"), **fields)


def test_dig_stands_beside_ids():
    body = encode_log_file(log_with(contents={"y": "abc"}))
    metadata = orjson.loads(body.split(b"\n")[0])
    assert (metadata["ids"], metadata["dig"]) == (["x", "y"], ["", "abc"])
    assert decode_log_file("k", body).contents == {"y": "abc"}
    assert decode_log_head("k", body).contents == {"y": "abc"}


@pytest.mark.parametrize("dig", [3, {"of": ["a", "b"]}, ["a"], ["a", "b", "c"], [1, 2]])
def test_dig_that_is_malformed_is_damage(dig):
    body = encode_log_file(log_with(extra={"dig": dig}))
    with pytest.raises(CorruptLog, match="line 0: "):
        decode_log_file("k", body)


def test_dig_is_not_carried_by_merges_and_kept_by_strips(table):
    table.stage(A)
    table.flush()
    assert [len(file.log.contents) for file in table.view().files] == [1]
    table.append(2)
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    table.vacuum()
    assert [dict(file.log.contents) for file in table.view().files] == [{}]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_body_that_is_damaged_or_too_large_is_told_by_its_bytes(suffix):
    body = gzip.compress(b"x" * 1000) if suffix == "gz" else bytes.fromhex("28b52ffd") + b"nothing"
    assert hash_content(body[:-2], f"ndjson.{suffix}") == hashlib.sha256(body[:-2]).hexdigest()
    assert hash_content(body, f"ndjson.{suffix}", max_bytes=999) == hashlib.sha256(body).hexdigest()


def test_a_body_of_many_streams_is_told_by_its_bytes():
    body = gzip.compress(b"") * (MAX_STREAMS + 1)
    assert hash_content(body, "ndjson.gz") == hashlib.sha256(body).hexdigest()


@given(body=st.binary(max_size=200), cut=st.integers(0, 200))
def test_the_compression_is_no_part_of_a_content(body, cut):
    packed = gzip.compress(body[:cut]) + gzip.compress(body[cut:])
    assert hash_content(packed, "csv.gz") == hash_content(body, "json") == hashlib.sha256(body).hexdigest()


def test_a_flush_that_is_cut_off_after_its_commit_finds_no_conflict(table):
    table.stage(A)
    table.store.script = [Fault("delete", Effect.CRASH_BEFORE, "/staging/")]
    with pytest.raises(Crash):
        table.flush()
    result = table.flush()
    assert (result.duplicate_count, result.conflict_count, kept(table)) == (1, 0, [])


def test_the_head_of_a_commit_of_all_the_batches_that_one_takes_is_one_get(table):
    """Of 10,000 ids, each costs 35 bytes more; the figures are in docs/internals/log-growth.md."""
    sizes = []
    for number in range(10):
        ids = tuple(new_batch_id(table.clock) for _ in range(MAX_KEYS_PER_PAGE))
        contents = dict.fromkeys(ids, hashlib.sha256(b"").hexdigest()[:DIGEST_CHARS])
        plain = LogFile(number + 1, {f"c{n}": "VARCHAR" for n in range(20)}, commit_id="0" * 32, batch_ids=ids)
        body = encode_log_file(replace(plain, contents=contents))
        sizes.append(len(body) - len(encode_log_file(plain)))
        key = table.paths.log_key(time_ms=number + 1, commit_id=f"{number:032x}", is_merged=False)
        table.store.inner.put(key, body)
    table.store.calls.clear()
    heads = table.reader().heads.read().files
    assert sum(len(head.log.contents) for head in heads) == 10_000
    assert [call.method for call in table.store.calls if "_log/" in call.key and call.method != "list_page"] == [
        "get_range"
    ] * 10
    assert max(sizes) < 36 * MAX_KEYS_PER_PAGE
