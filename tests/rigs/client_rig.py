"""Fixtures of tests of the client and of the command: a client over a warehouse in memory, workers that only count."""

import logging
import os
import sys
import threading

import pytest
from icedb.cli.app import run
from icedb_client.client import Client
from icedb_client.settings import ClientSettings
from icedb_client.wakeups import WakeupSender
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.store_settings import open_warehouse
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.tables.row_files import RowFileWriter, encode_rows


class HandClock:
    """Time by hand: sleeping moves it."""

    def __init__(self):
        self.ms = 1_767_312_000_000
        self.ids = 0
        self.lock = threading.Lock()
        self.on_sleep = lambda: None

    def now_ms(self):
        return self.ms

    def monotonic_ms(self):
        return self.ms

    def sleep_ms(self, duration_ms):
        self.ms += duration_ms
        self.on_sleep()

    def new_id(self):
        with self.lock:
            self.ids += 1
            return f"{self.ms:012x}7000{0x8000_0000_0000_0000 + self.ids:016x}"


class CountingSender:
    """Takes the place of Redis: remembers who was woken."""

    def __init__(self):
        self.woken = []
        self.answers = True

    def close(self):
        pass

    def wake(self, task, table):
        self.woken.append((task, table))
        return self.answers


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def warehouse(clock):
    return Warehouse(MemoryObjectStore(clock.now_ms), "wh")


@pytest.fixture
def client(warehouse, clock):
    client = Client(settings=ClientSettings(store="file:///unused"), clock=clock, warehouse=warehouse)
    client._sender = CountingSender()
    return client


@pytest.fixture
def create(warehouse):
    def create(name="events", partition=("d=day(ts)",), **fields):
        spec = tuple(PartitionField.parse(text) for text in partition)
        config = TableConfig.create(name=name, partition=spec, **fields)
        create_table(warehouse.table(name), config)
        return config

    return create


@pytest.fixture(scope="session")
def flush_rows():
    """Makes rows live in a table, as a worker does."""

    def flush_rows(place, rows):
        clock = SystemClock()
        stage_batch(place, body=encode_rows(rows), staging_format="ndjson", batch_id=new_batch_id(clock))
        flush_table(Table.open(place, clock=clock, owner="test"), RowFileWriter(place.store, clock))

    return flush_rows


@pytest.fixture
def cli_env(monkeypatch):
    """Settings of the command line: none but a Redis that nobody serves, and wide lines; the store is the test's."""
    for name in list(os.environ):
        if name.startswith("ICEDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ICEDB_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("COLUMNS", "200")
    return monkeypatch


@pytest.fixture
def folder(tmp_path, cli_env):
    """A warehouse in a folder, which the command line works on."""
    cli_env.setenv("ICEDB_STORE", f"file://{tmp_path}/warehouse")
    return open_warehouse(f"file://{tmp_path}/warehouse")


@pytest.fixture
def lend(cli_env):
    """Makes the command line work on a table in memory, by its clock; returns it."""

    def lend(table):
        cli_env.setenv("ICEDB_STORE", "file:///unused")
        cli_env.setattr(Client, "warehouse", Warehouse(table.store, "wh"))
        cli_env.setattr("icedb_client.client.SystemClock", lambda: table.clock)
        return table

    return lend


@pytest.fixture
def workers(monkeypatch):
    """What workers were asked for; the first entry is their answer, or the error that comes instead of one."""
    asked = [{}]

    def answer(_self, task, table, *, arguments, timeout_ms):
        asked.append((task, table, arguments, timeout_ms))
        if isinstance(asked[0], Exception):
            raise asked[0]
        return {"task": task, "table": table, **asked[0]}

    monkeypatch.setattr(WakeupSender, "run", answer)
    monkeypatch.setattr(WakeupSender, "wake", lambda _self, task, table: asked.append((task, table)) or True)
    return asked


@pytest.fixture
def run_icedb(capfdbinary):
    """Run a command; return what it printed, or for another exit code than 0 the words of its error."""

    def icedb(*arguments, code=0):
        handlers = list(logging.getLogger().handlers)
        capfdbinary.readouterr()
        try:
            found = run(arguments)
        finally:
            logging.getLogger().handlers = handlers
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        assert found == code, err
        return out.decode() if not code else " ".join(err.decode().split())

    return icedb


@pytest.fixture
def said_by_icedb(capsys):
    """Runs a command that ends with a code, and returns what it said: ``out`` and ``err``."""

    def icedb(*arguments, code=0):
        root = logging.getLogger()
        handlers = list(root.handlers)
        try:
            assert run(arguments) == code
        finally:
            root.handlers = handlers
        return capsys.readouterr()

    return icedb
