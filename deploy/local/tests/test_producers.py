"""Producers: every batch once, to the tables that take it; the gate holds them still; errors reach the owner."""

import threading

import pytest
from icedb_local.demo_plan import DemoTable
from icedb_local.generator import EventBatch
from icedb_local.ledger import Ledger
from icedb_local.producers import Producers
from waiting import wait_until

TABLES = (DemoTable("all", (), ()), DemoTable("some", (), (), takes_every=3))
DEADLINE_S = 20


def make_batches(count):
    return iter([EventBatch(number, b"%d" % number, 2, {"2025-01-01": 2}) for number in range(count)])


def make_producers(enqueue, *, count=20, pauses=()):
    ledgers = {table.name: Ledger() for table in TABLES}
    producers = Producers(
        make_batches(count), tables=TABLES, ledgers=ledgers, enqueue=enqueue, thread_count=3, pauses_after=pauses
    )
    return producers, ledgers


def test_every_batch_goes_once_to_every_table_that_takes_it():
    sent = []
    producers, ledgers = make_producers(lambda table, body: sent.append((table, int(body))))
    with producers:
        wait_until(lambda: producers.is_finished)
    assert sorted(sent) == sorted(
        [("all", number) for number in range(20)] + [("some", number) for number in range(0, 20, 3)]
    )
    assert ledgers["all"].read_acknowledged().row_count == 40
    assert ledgers["some"].read_acknowledged().rows_per_batch == dict.fromkeys(range(0, 20, 3), 2)


def test_the_gate_holds_all_threads_still_until_it_is_opened():
    sent = []
    producers, ledgers = make_producers(lambda table, body: sent.append(table), pauses=(5, 12))
    with producers:
        for at in (5, 12):
            wait_until(lambda: producers.is_paused)
            assert ledgers["all"].read_acknowledged().batch_count == at
            assert not producers.is_finished
            producers.go_on()
        wait_until(lambda: producers.is_finished)
    assert sent.count("all") == 20


def test_a_batch_is_sent_before_it_is_acknowledged():
    entered, leave = threading.Event(), threading.Event()

    def enqueue(table, body):
        entered.set()
        leave.wait(DEADLINE_S)

    producers, ledgers = make_producers(enqueue, count=1)
    with producers:
        assert entered.wait(DEADLINE_S)
        assert ledgers["all"].read_sent() == {0: 2}
        assert ledgers["all"].read_acknowledged().batch_count == 0
        leave.set()
        wait_until(lambda: producers.is_finished)


def test_what_a_thread_raises_reaches_the_owner():
    def enqueue(table, body):
        raise OSError("no store")

    producers, _ = make_producers(enqueue)
    with producers, pytest.raises(OSError, match="no store"):
        wait_until(lambda: producers.is_finished)


def test_leaving_early_ends_the_threads_at_the_gate():
    producers, ledgers = make_producers(lambda table, body: None, pauses=(2,))
    with producers:
        wait_until(lambda: producers.is_paused)
    assert ledgers["all"].read_acknowledged().batch_count == 2
