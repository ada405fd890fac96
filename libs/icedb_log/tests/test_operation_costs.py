"""What each operation asks of the store, and how often it looks through the log: a guard that needs no quiet machine.

A table of eight log files. A number that grows is a regression; one that gets smaller is to be written down here.
"""

from collections import Counter
from dataclasses import replace

import pytest
from icedb_log.clean.deletion import AuditLog
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.ingest.flush import flush_table
from icedb_log.log import reader as log_reader
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.serving.status import read_status
from icedb_log.serving.table_cache import TableCache
from icedb_log.warehouse import Warehouse
from icedb_sim.tables.row_files import RowFileMerger, RowFileWriter
from icedb_sim.tables.small_table import SmallTable

LOG_FILES = 8


class Costs:
    """A table with a history, and who works on it."""

    def __init__(self):
        self.table = SmallTable(merge_fan_in=100)
        self.clock, self.store = self.table.clock, self.table.store
        for number in range(LOG_FILES):
            self.table.append(number)
        self.reader = LogReader(self.table, clock=self.clock)
        self.cache = TableCache(
            Warehouse(self.store, "wh"), clock=self.clock, max_tables=4, wait_ms=60_000, on_refresh=lambda _: None
        )

    def opened(self):
        return self.table.opened(reader=self.reader)

    def stage(self):
        self.table.stage([{"id": 100, "p": "a"}])

    def look(self):
        """Become warm."""
        self.clock.advance(60_000)
        self.opened().read_log()
        self.opened().read_heads()
        self.snapshot()

    def flush(self):
        assert flush_table(self.opened(), RowFileWriter(self.store, self.clock)).batch_count == 1

    def merge(self):
        merger = RowFileMerger(self.store, self.clock)
        assert merge_table(self.opened(), merger, options=MergeOptions(full=True)).commit_count == 1

    def die(self):
        self.merge()
        self.clock.advance(120_000)

    def vacuum(self):
        audit = AuditLog(self.table, clock=self.clock, owner="janitor")
        assert vacuum_table(self.opened(), audit=audit).deleted_data

    def snapshot(self):
        assert len(self.cache.table("t").read(max_staleness_ms=0).at(None).live)

    def status(self):
        assert read_status(self.opened()).live_files


WRITES = ("put", "put_if_absent", "put_if_match")
REQUESTS = {
    # Listings, reads, writes and deletes, and what is asked of data files: a merge reads eight and writes one.
    ("flush", "cold"): (3, 11, 4, 1, 1),
    ("flush", "warm"): (3, 3, 4, 1, 1),
    ("merge", "cold"): (2, 10, 4, 0, 9),
    ("merge", "warm"): (2, 2, 4, 0, 9),
    ("vacuum", "warm"): (6, 3, 6, 1, 1),
    ("snapshot", "cold"): (1, 10, 0, 0, 0),
    ("snapshot", "warm"): (1, 0, 0, 0, 0),
    ("status", "cold"): (2, 12, 0, 0, 0),
    ("status", "warm"): (2, 4, 0, 0, 0),
}


@pytest.mark.parametrize(("what", "how"), REQUESTS)
def test_requests(what, how):
    costs = Costs()
    if what == "flush":
        costs.stage()
    if what == "vacuum":
        costs.die()
    if how == "warm":
        costs.look()
    costs.store.calls.clear()
    getattr(costs, what)()
    counts = Counter("data" if "/_data/" in call.key else call.method for call in costs.store.calls)
    others = {*counts} - {*WRITES, "list_page", "list_folders", "get", "get_range", "delete", "data"}
    assert not others
    found = (
        counts["list_page"] + counts["list_folders"],
        counts["get"] + counts["get_range"],
        sum(counts[method] for method in WRITES),
        counts["delete"],
        counts["data"],
    )
    assert found == REQUESTS[what, how]


class Passed(tuple):
    """Markers of a log file that count how often somebody goes through all of them."""

    __slots__ = ()
    passes = Counter()

    def __iter__(self):
        Passed.passes[id(self)] += 1
        return super().__iter__()


def read_markers_as_passed(monkeypatch):
    decode = log_reader.decode_log_file

    def read(key, body, *, is_compact=False):
        log = decode(key, body)
        return replace(log, markers=Passed(log.markers))

    monkeypatch.setattr(log_reader, "decode_log_file", read)
    Passed.passes.clear()


@pytest.mark.parametrize(("what", "most"), [("flush", 0), ("merge", 4), ("snapshot", 0), ("status", 2)])
def test_a_warm_operation_goes_through_the_log_so_often(monkeypatch, what, most):
    read_markers_as_passed(monkeypatch)
    costs = Costs()
    if what == "flush":
        costs.stage()
    costs.look()
    Passed.passes.clear()
    getattr(costs, what)()
    assert max(Passed.passes.values(), default=0) == most
