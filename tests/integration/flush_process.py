"""What the tests of "exactly once" run as processes: flushes that are killed, and flushes that never ask for a lock.

``python flush_process.py kill FOLDER steps`` makes ``FOLDER/<n>`` from ``FOLDER/template`` for n = 1, 2, … and kills a
process that flushes there right before its n-th call on the store, until one comes to its end. ``… moments`` kills by
the clock instead, so that calls die half way. ``loop URL TABLE FOLDER`` flushes until standard input ends, and leaves
a file in the folder when it has met another one.
The data path is the one of the simulation: what is looked at here is the order of the calls on the store.
"""

import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.errors import CommitConflict, Fenced, Unavailable
from icedb_log.ingest.flush import FlushLimits, flush_table
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings
from icedb_log.warehouse import Warehouse
from icedb_sim.tables.row_files import RowFileWriter

TABLE = "events"
MAX_BATCHES = 3
MOMENTS = 40
MAX_STEPS = 1000
STALL_S = 0.08
STALL_EVERY = 3
COUNTED = {
    "get", "get_range", "head", "put_if_absent", "put_if_match", "put", "list_page", "list_folders", "delete",
    "download", "upload",
}  # fmt: skip


class KillingStore:
    """Ends its own process right before one of the calls on the inner store."""

    def __init__(self, inner, *, at):
        self.inner, self.at = inner, at
        self.count = 0
        self.lock = threading.Lock()

    def __getattr__(self, name):
        method = getattr(self.inner, name)
        if name not in COUNTED:
            return method

        def call(*args, **kwargs):
            with self.lock:
                self.count += 1
                if self.count == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return method(*args, **kwargs)

        return call


class StallingStore:
    """Stalls now and then between the intent of a commit and its log file, as a paused process does (F1, F3)."""

    def __init__(self, inner):
        self.inner = inner
        self.count = os.getpid()  # each process stalls at other times

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def put_if_absent(self, key, body):
        if "/_log/" in key:
            self.count += 1
            time.sleep(STALL_S if self.count % STALL_EVERY == 0 else 0)
        return self.inner.put_if_absent(key, body)


def flush_once(warehouse, table=TABLE, *, max_batches=MAX_BATCHES):
    opened = Table.open(warehouse.table(table), clock=SystemClock(), owner=str(os.getpid()))
    return flush_table(
        replace(opened, patience_ms=0),  # F6: who waited for the others would never meet them
        RowFileWriter(warehouse.store, SystemClock()),
        limits=FlushLimits(max_batches=max_batches),
    )


def flush_to_the_end(warehouse, table=TABLE):
    """Flush until nothing waits, as the ingest worker does; return the results."""
    results = [flush_once(warehouse, table)]
    while results[-1].has_more:
        results.append(flush_once(warehouse, table))
    return results


def kill_at_each_step(folder):
    """Return how many flushes were killed."""
    for number in range(1, MAX_STEPS):
        child = start_flush(folder / "template", folder / str(number), at=number)
        status = os.waitpid(child, 0)[1]
        if status == 0:
            return number - 1
        assert status == signal.SIGKILL, f"flush {number} ended with {status}: see its error above"
    raise AssertionError(f"no flush came to its end within {MAX_STEPS} calls")


def kill_at_moments(folder):
    started = time.perf_counter()
    assert os.waitpid(start_flush(folder / "template", folder / "whole"), 0)[1] == 0
    duration_s = time.perf_counter() - started
    for number in range(1, MOMENTS + 1):
        child = start_flush(folder / "template", folder / str(number))
        time.sleep(duration_s * number / MOMENTS)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return MOMENTS


def start_flush(template, copy, *, at=0):
    shutil.copytree(template, copy)
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        inner = StoreSettings(f"file://{copy}").open()
        flush_to_the_end(Warehouse(KillingStore(inner.store, at=at), inner.root))
        status = 0
    except BaseException as error:
        print(f"{copy}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def loop(url, table, folder):
    """Flush again and again, without any lock, until standard input ends; say when another one was met."""
    s3 = S3Options(os.environ.get("ICEDB_S3_ENDPOINT"), access_key_id="dev", secret_access_key="dev")
    opened = StoreSettings(url, s3).open()
    warehouse = Warehouse(StallingStore(opened.store), opened.root)
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    print("ready", flush=True)
    while not is_over.wait(0.002):
        try:
            flush_to_the_end(warehouse, table)
        except (Fenced, CommitConflict):
            (Path(folder) / str(os.getpid())).touch()
        except Unavailable:
            continue


if __name__ == "__main__":
    if sys.argv[1] == "loop":
        loop(*sys.argv[2:])
    else:
        print({"steps": kill_at_each_step, "moments": kill_at_moments}[sys.argv[3]](Path(sys.argv[2])))
