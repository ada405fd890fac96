"""The check book and the ledger: what holds, what does not, and in which words."""

from icedb_local.checks import CheckBook
from icedb_local.generator import EventBatch
from icedb_local.producers import Ledger


def test_counts_that_differ_are_broken_and_say_by_how_much():
    book = CheckBook()
    book.add_equal("rows", found=10, expected=10)
    book.add_equal("rows", found=1_009, expected=1_010)
    assert [check.holds for check in book.checks] == [True, False]
    assert book.checks[1].detail == "1,009 rows found, 1,010 expected (-1)"


def test_counts_by_key_name_the_keys():
    book = CheckBook()
    same = book.add_equal_counts("days", found={"a": 1, "z": 0}, expected={"a": 1}, what="days")
    assert same.holds
    found = dict.fromkeys("abcde", 1)
    broken = book.add_equal_counts("days", found=found, expected={"a": 1, "x": 3}, what="days")
    assert not broken.holds
    assert broken.detail == "b: 1 found, 0 expected; c: 1 found, 0 expected; d: 1 found, 0 expected; and 2 more"


def test_a_ledger_knows_what_was_sent_and_what_was_acknowledged():
    ledger = Ledger()
    first = EventBatch(0, b"", 3, {"2025-01-01": 3})
    second = EventBatch(1, b"", 2, {"2025-01-01": 1, "2025-01-02": 1})
    ledger.record_sent(first)
    ledger.record_sent(second)
    ledger.record_acknowledged(second)
    assert ledger.read_sent() == {0: 3, 1: 2}
    state = ledger.read_acknowledged()
    assert (state.batch_count, state.row_count, dict(state.rows_per_batch)) == (1, 2, {1: 2})
    ledger.record_acknowledged(first)
    assert ledger.read_acknowledged().rows_per_day == {"2025-01-01": 4, "2025-01-02": 1}
    assert state.row_count == 2, "a state that was read does not change"
