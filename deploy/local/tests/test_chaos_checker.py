"""The judge of a chaos run goes red for everything that must not be, and for nothing else."""

from dataclasses import replace

import duckdb
import pytest
from icedb_local.chaos.aftermath import came_too_late, was_isolated
from icedb_local.chaos.batches import BatchLedger, encode_batch, expected_content
from icedb_local.chaos.chaos_readers import ChaosReader, Found, PastReader
from icedb_local.chaos.content_checker import CLOCK_SLACK_MS, ContentChecker, Read
from icedb_log.content import zstd
from icedb_log.errors import BelowHorizon, Unavailable
from icedb_log.ingest.quarantine import QuarantinedBatch
from icedb_log.ingest.quarantine_ops import QuarantinedPayload
from icedb_sim.fakes.fake_clock import FakeClock

SEED = 5
TABLE = "events"


@pytest.fixture
def ledger():
    made = BatchLedger()
    for number in range(4):
        made.record_sent(table=TABLE, door="http", batch_id=f"id-{number}", now_ms=number)
    return made


@pytest.fixture
def checker(ledger):
    return ContentChecker(ledger, seed=SEED)


def whole(*numbers):
    return {number: expected_content(SEED, number) for number in numbers}


def read(found, *, began_ms=100, ended_ms=110, as_of_ms=None, state_ms=None):
    return Read("service", TABLE, began_ms, ended_ms, found, "snapshot-1", as_of_ms, state_ms)


def words(checker):
    return [violation.what for violation in checker.violations]


def test_a_batch_is_what_its_lines_say():
    lines = encode_batch(SEED, 3).splitlines()
    assert len(lines) == expected_content(SEED, 3).rows
    assert encode_batch(SEED, 3) == encode_batch(SEED, 3) != encode_batch(SEED, 4)


def test_nothing_wrong_is_nothing_found(checker):
    checker.check(read(whole(0)))
    checker.check(read(whole(0, 1), began_ms=120, ended_ms=130))
    checker.check_end(read(whole(0, 1), began_ms=140, ended_ms=150))
    assert words(checker) == []
    assert checker.checked_count == 3
    assert checker.first_seen_ms == {0: 110, 1: 130}


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda batch: replace(batch, rows=batch.rows + 1), "rows twice"),
        (lambda batch: replace(batch, rows=batch.rows * 2, checksum=batch.checksum * 2), "rows twice"),
        (lambda batch: replace(batch, rows=batch.rows - 1, distinct_rows=batch.rows - 1), "in part"),
        (lambda batch: replace(batch, checksum=batch.checksum + 1), "other rows"),
        (lambda batch: replace(batch, last_row=batch.last_row + 1), "other rows"),
    ],
)
def test_a_batch_that_is_not_whole_once_and_unchanged(checker, spoil, expected):
    checker.check(read({0: expected_content(SEED, 0), 1: spoil(expected_content(SEED, 1))}))
    (violation,) = checker.violations
    assert expected in violation.what
    assert violation.batches == (1,)
    assert violation.entries[0].batch_id == "id-1", "who reads of it finds the batch in the logs"
    assert violation.snapshot == "snapshot-1"


def test_rows_that_nobody_sent(checker):
    checker.check(read(whole(7)))
    assert "never sent" in words(checker)[0]


def test_rows_of_another_table(checker, ledger):
    other = ledger.record_sent(table="clicks", door="http", batch_id="id-4", now_ms=4)
    checker.check(read(whole(other.number)))
    assert "never sent" in words(checker)[0]


def test_what_was_there_is_gone(checker):
    checker.check(read(whole(0, 1), ended_ms=110))
    checker.check(read(whole(1), began_ms=105, ended_ms=112))
    assert words(checker) == [], "that read began before the other one had ended"
    checker.check(read(whole(1), began_ms=111, ended_ms=120))
    assert "is gone" in words(checker)[0]


def test_the_past_may_lack_what_is_newer_and_may_not_change(checker):
    checker.check(read(whole(0, 1)))
    earlier = read(whole(0), began_ms=120, ended_ms=130, as_of_ms=7, state_ms=90)
    checker.check(earlier)
    checker.check_same(read(whole(0), began_ms=140, as_of_ms=7), earlier, was_stable=True)
    checker.check_same(read(whole(0, 1), began_ms=145, as_of_ms=7), earlier, was_stable=False)
    assert words(checker) == []
    checker.check_same(read(whole(0, 1), began_ms=150, as_of_ms=7), earlier, was_stable=True)
    checker.check_same(read({}, began_ms=160, as_of_ms=7), earlier, was_stable=False)
    assert [violation.batches for violation in checker.violations] == [(1,), (0,)]
    assert checker.compared_count == 4


def test_the_past_has_what_was_seen_before_it(checker):
    checker.check(read(whole(0), ended_ms=110))
    late_ms = 110 + CLOCK_SLACK_MS
    checker.check(read({}, began_ms=5000, as_of_ms=7, state_ms=late_ms))
    assert words(checker) == []
    checker.check(read({}, began_ms=5000, as_of_ms=8, state_ms=late_ms + 1))
    assert "is gone" in words(checker)[0]


class PastTable:
    """What a table is at each time; reads of it are never stable, as with commits that may take an hour."""

    def __init__(self, clock):
        self.clock = clock
        self.asked = []
        self.horizon_ms = 0
        self.found = whole(0)

    def __call__(self, table, as_of_ms):
        self.asked.append(self.clock.now_ms() - as_of_ms)
        if as_of_ms < self.horizon_ms:
            raise BelowHorizon("too old")
        return Found(self.found)


def test_a_past_is_read_again_though_it_is_not_stable(checker):
    clock = FakeClock()
    table = PastTable(clock)
    reader = PastReader("past", table, tables=[TABLE], checker=checker, data_grace_ms=1, clock=clock, log_grace_ms=8000)
    for _ in range(4):
        reader.look(TABLE)
        clock.advance(2000)
    assert table.asked == [2000, 4000, 2000, 4000]
    assert checker.compared_count == 2
    table.found = {}
    reader.look(TABLE)
    table.found = whole(0)
    reader.look(TABLE)
    assert words(checker) == []
    table.found = {}
    reader.look(TABLE)
    assert "other rows than before" in words(checker)[0]
    table.horizon_ms = clock.now_ms()
    with pytest.raises(Unavailable, match="too old"):
        reader.look(TABLE)


@pytest.mark.parametrize(
    ("kind", "took_ms", "is_excused"),
    [(ChaosReader, 7_900, False), (ChaosReader, 8_000, True), (PastReader, 5_900, False), (PastReader, 6_000, True)],
)
def test_a_file_may_be_gone_once_the_state_that_is_read_is_older_than_the_grace_period(
    checker, kind, took_ms, is_excused
):
    clock = FakeClock()

    def read_slowly(table, as_of_ms):
        clock.advance(took_ms)
        raise duckdb.HTTPException("HTTP Error: HTTP GET error on 'x.parquet' (HTTP 404)")

    options = {"log_grace_ms": 8000} if kind is PastReader else {}
    reader = kind("any", read_slowly, tables=[TABLE], checker=checker, data_grace_ms=8000, clock=clock, **options)
    reader.try_to_look(TABLE)
    assert any("a live file is not there" in each for each in words(checker)) is not is_excused
    assert sum(reader.outages.failures.values()) == 1


@pytest.mark.parametrize(
    ("error", "is_gone"),
    [
        (duckdb.HTTPException("HTTP GET error on 'http://127.0.0.1/b/x.parquet' (HTTP 404)"), True),
        (duckdb.HTTPException("Unable to connect to URL x.parquet: 404 (Not Found)."), True),
        (duckdb.IOException("NoSuchKey: the specified key does not exist"), True),
        (duckdb.HTTPException("Request returned HTTP 404 for HTTP HEAD to 'x.parquet'"), True),
        (
            duckdb.HTTPException(
                "Request returned HTTP 500 for HTTP HEAD to 'http://127.0.0.1:40404/b/d640486-404.parquet'"
            ),
            False,
        ),
        (Unavailable("table.json: answered 404 without an error of S3's: something else answers there"), False),
    ],
)
def test_only_an_answer_that_says_so_means_that_a_file_is_gone(checker, error, is_gone):
    def read_in_vain(table, as_of_ms):
        raise error

    reader = ChaosReader("any", read_in_vain, tables=[TABLE], checker=checker, data_grace_ms=8000, clock=FakeClock())
    reader.try_to_look(TABLE)
    assert len(words(checker)) == is_gone


@pytest.mark.parametrize(
    ("change", "is_excused"),
    [
        ({}, True),
        ({"batch_id": "another"}, False),
        ({"is_doubtful": False}, False),
        ({"kind": "rows"}, False),
    ],
)
def test_in_quarantine_may_be_what_came_too_late_and_nothing_else(ledger, change, is_excused):
    reason = "was staged 7964 ms after its id was made"
    batch = QuarantinedBatch(
        batch_id="id-2", reason=reason, payload_key="key", size_bytes=1, quarantined_ms=0, is_doubtful=True
    )
    known = {entry.batch_id for entry in ledger.entries(TABLE).values()}
    assert came_too_late(batch.model_copy(update=change), known) is is_excused


ISOLATED = "reading it failed twice, alone, in a way that nobody foresaw (ArithmeticError)"
ENDED = "3 processes ended without a word while they read this batch, and nothing else: it may need more memory"


@pytest.mark.parametrize(
    ("crash", "change", "spoil", "is_right"),
    [
        ("raises", {}, bytes, True),
        ("exits", {"reason": ENDED}, bytes, True),
        ("raises", {"reason": ENDED}, bytes, True),
        (None, {}, bytes, False),
        ("raises", {"reason": "line 3 is not JSON"}, bytes, False),
        ("raises", {"kind": "rows"}, bytes, False),
        ("raises", {}, lambda sent: sent[:-9], False),
    ],
)
def test_a_deadly_batch_is_in_quarantine_whole_with_its_reason(ledger, checker, crash, change, spoil, is_right):
    entry = replace(ledger.entry(2), crash=crash)
    batch = QuarantinedBatch(batch_id="id-2", reason=ISOLATED, payload_key="key", size_bytes=1, quarantined_ms=0)
    body = zstd.compress(spoil(checker.encode(entry)))
    found = QuarantinedPayload(batch.model_copy(update=change), body, "ndjson.zst")
    assert was_isolated(found, entry, checker.encode(entry)) is is_right


def test_a_deadly_batch_may_not_be_read_and_not_be_lost(checker, ledger):
    ledger.ask_for_deadly("exits")
    deadly = ledger.record_sent(table=TABLE, door="http", batch_id="id-4", now_ms=4)
    ledger.record_settled(deadly.number, "acknowledged")
    assert encode_batch(SEED, 4) != checker.encode(deadly)
    checker.check_end(read(whole(0)), set_aside={"id-4"})
    assert words(checker) == []
    checker.check_end(read(whole(0)))
    assert "acknowledged and is not there" in words(checker)[0]
    checker.check(read(whole(deadly.number)))
    assert "crashes whoever reads it" in words(checker)[1]


def test_what_was_accepted_too_late_waits_in_quarantine_and_is_not_lost(checker, ledger):
    ledger.record_settled(2, "acknowledged")
    checker.check_end(read(whole(0)), set_aside={"id-2"})
    assert words(checker) == []
    checker.check_end(read(whole(0), began_ms=200), set_aside={"id-1"})
    assert "acknowledged and is not there" in words(checker)[0]


@pytest.mark.parametrize(("state", "is_lost"), [("acknowledged", True), ("unknown", False), ("sent", False)])
def test_at_the_end_what_was_acknowledged_is_there(checker, ledger, state, is_lost):
    ledger.record_settled(2, state)
    checker.check_end(read(whole(0)))
    assert [violation.batches for violation in checker.violations] == ([(2,)] if is_lost else [])
