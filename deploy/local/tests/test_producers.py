"""Producers: every batch once, to the tables that take it; the gate holds them still; errors reach the owner."""

import itertools
import threading

import pytest
from icedb_local.demo_plan import DemoTable
from icedb_local.generator import EventBatch
from icedb_local.producers import Ledger, Producers
from waiting import LIMIT_S, wait_until

TABLES = (DemoTable("all", (), ()), DemoTable("some", (), (), takes_every=3))


def make_batches(numbers):
    return (EventBatch(number, b"%d" % number, 2, {"2025-01-01": 2}) for number in numbers)


def make_producers(enqueue, *, batches=None):
    ledgers = {table.name: Ledger() for table in TABLES}
    batches = batches or make_batches(range(20))
    return Producers(batches, tables=TABLES, ledgers=ledgers, enqueue=enqueue, thread_count=3), ledgers


def test_every_batch_goes_once_to_every_table_that_takes_it():
    sent = []
    producers, ledgers = make_producers(lambda table, body: sent.append((table, int(body))))
    with producers:
        producers.send()
        wait_until(lambda: producers.is_done)
    assert sorted(sent) == sorted(
        [("all", number) for number in range(20)] + [("some", number) for number in range(0, 20, 3)]
    )
    assert ledgers["all"].read_acknowledged().row_count == 40
    assert ledgers["some"].read_acknowledged().rows_per_batch == dict.fromkeys(range(0, 20, 3), 2)


def test_so_many_are_sent_as_are_asked_for():
    sent = []
    producers, ledgers = make_producers(lambda table, body: sent.append(table))
    with producers:
        for count, at in ((5, 5), (7, 12), (None, 20)):
            producers.send(count)
            wait_until(lambda: producers.is_done)
            assert ledgers["all"].read_acknowledged().batch_count == at
    assert sent.count("all") == 20


def test_a_batch_is_sent_before_it_is_acknowledged():
    entered, leave = threading.Event(), threading.Event()

    def enqueue(table, body):
        entered.set()
        leave.wait(LIMIT_S)

    producers, ledgers = make_producers(enqueue, batches=make_batches(range(1)))
    with producers:
        producers.send()
        assert entered.wait(LIMIT_S)
        assert ledgers["all"].read_sent() == {0: 2}
        assert ledgers["all"].read_acknowledged().batch_count == 0
        leave.set()
        wait_until(lambda: producers.is_done)


def test_what_a_thread_raises_reaches_the_owner():
    def enqueue(table, body):
        raise OSError("no store")

    producers, _ = make_producers(enqueue)
    with producers, pytest.raises(OSError, match="no store"):
        producers.send()
        wait_until(lambda: producers.is_done)


def test_leaving_early_ends_the_threads_though_there_are_more_batches():
    sent, never = [], threading.Event()

    def enqueue(table, body):
        sent.append(table)
        never.wait(0.001)  # as a request does: threads that never wait keep the lock from the one that ends them

    producers, ledgers = make_producers(enqueue, batches=make_batches(itertools.count()))
    with producers:
        producers.send()
        wait_until(lambda: sent)
    assert ledgers["all"].read_acknowledged().batch_count == sent.count("all")
