"""The janitor's process on a real Redis: several tables at once, one of which hangs in the store, another crashes."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.names import JANITOR_VACUUM
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import open_warehouse
from icedb_service.celery_app import make_app
from icedb_service.settings import ServiceSettings
from icedb_sim.rigs.redis_server import RedisServer
from icedb_sim.tables.small_table import SmallTable
from processes import service_env
from waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.redis

CLOCK = SystemClock()

# The janitor as it is, on a store that hangs on one table until somebody opens a pipe, and breaks on another.
JANITOR = """
from pathlib import Path

from icedb_janitor.__main__ import serve
from icedb_janitor.settings import JanitorSettings
from icedb_log.store.local_store import LocalObjectStore
from icedb_service.main import run_main

get = LocalObjectStore.get

def hang_or_break(self, key, **options):
    table = key.partition("/")[0]
    if table.startswith("stuck") and not Path(table).exists():
        Path(table).touch()
        Path("gate").read_bytes()
    if key.startswith("broken/"):
        raise RuntimeError("a bug")
    return get(self, key, **options)

LocalObjectStore.get = hang_or_break
run_main(JanitorSettings, "janitor", serve)
"""


class Janitor:
    """The process, and tables with something to delete."""

    def __init__(self, folder, redis_url, tables):
        self.folder = folder
        self.store_url = f"file://{folder / 'warehouse'}"
        self.warehouse = open_warehouse(self.store_url)
        self.app = make_app(ServiceSettings(store=self.store_url, redis_url=redis_url))
        self.popen = None
        self.env = service_env(
            ICEDB_STORE=self.store_url,
            ICEDB_REDIS_URL=redis_url,
            ICEDB_JANITOR_TABLES_AT_ONCE=2,
            ICEDB_SHUTDOWN_GRACE_MS=1000,
        )
        os.mkfifo(folder / "gate")
        for name in tables:
            with_something_to_delete(self.warehouse.store, name)
        # A directory's clock cannot be set: what is dead has to get old (J1), however fast the janitor starts.
        wait_until(lambda: not any(self.waiting(name) for name in tables), "grace periods end")

    def start(self):
        with (self.folder / "log").open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", JANITOR], env=self.env, cwd=self.folder, stderr=log, stdout=log
            )

    def send(self, table):
        return self.app.send_task(JANITOR_VACUUM, args=[table])

    def vacuum(self, table):
        return self.send(table).get(timeout=LIMIT_S)

    def waiting(self, table):
        store, paths = self.warehouse.store, self.warehouse.table(table).paths
        return vacuum_table(Table.open(TableStore(store, paths), clock=CLOCK), dry_run=True).waiting

    def terminate(self):
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(LIMIT_S)

    def log(self):
        return (self.folder / "log").read_text()

    def close(self):
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait(LIMIT_S)
        self.app.close()


def with_something_to_delete(store, name):
    """A table of two appends that were merged, with the shortest grace periods: made in memory, and copied."""
    table = SmallTable(name=name, root="", start_ms=CLOCK.now_ms(), data_grace_ms=1000, log_grace_ms=1000)
    table.append(1)
    table.append(2)
    table.merge(full=True)
    for key in table.keys(f"{name}/"):
        store.put(key, table.store.get(key).body)


@pytest.fixture
def start(tmp_path):
    with RedisServer() as redis, contextlib.ExitStack() as stack:

        def start(*tables):
            janitor = Janitor(tmp_path, redis.url, tables)
            stack.callback(janitor.close)
            janitor.start()
            return janitor

        yield start


def test_a_table_that_hangs_or_crashes_holds_up_no_other(start, tmp_path):
    janitor = start("stuck", "broken", "one", "two", "three", "stuck_again")
    stuck = janitor.send("stuck")
    wait_until((tmp_path / "stuck").exists, "a thread hangs in the store")
    assert janitor.vacuum("broken")["outcome"] == "failed"
    for name in ("one", "two", "three"):
        result = janitor.vacuum(name)
        assert (result["outcome"], result["deleted_data_files"], result["deleted_log_files"]) == ("done", 2, 2), result
    assert not stuck.ready()
    (tmp_path / "gate").write_bytes(b"")
    assert stuck.get(timeout=LIMIT_S)["deleted_data_files"] == 2
    janitor.send("stuck_again")
    wait_until((tmp_path / "stuck_again").exists, "another one hangs")
    assert janitor.terminate() == 1, "it ends, whatever hangs"
    assert "shutdown_forced" in janitor.log()
