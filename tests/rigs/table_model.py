"""A table with its services in this process, and a plain model of its rows: what the state machine begins with."""

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
)
from icedb import connect
from icedb_client.client import Client
from icedb_client.settings import ClientSettings
from icedb_log.keys import parse_log_key
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.mirrored_store import MirroredStore
from icedb_sim.tables.small_table import SmallTable

DAY_MS = 24 * 3_600_000
PLACES = ["a", "b", "São Paulo/%"]
NAMES = ["q1", "q2"]


class NoWakeups:
    """Takes the place of Redis."""

    def wake(self, _task, _table):
        return False

    def close(self):
        return None


def plain(row):
    """Return what counts of a row: its values that are not NULL, numbers by what they are."""
    return tuple(
        sorted((name, float(value) if name == "v" else value) for name, value in row.items() if value is not None)
    )


present = precondition(lambda self: self.table is not None)
"""Before the table is there, nothing can be done to it."""


class TableModel(RuleBasedStateMachine):
    """One table, what is known of it, and its client. Steps are added by those who derive from this."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="icedb-fuzz-"))
        self.table = None

    sequences = 0

    def teardown(self):
        type(self).sequences += 1
        shutil.rmtree(self.folder)

    @initialize(
        policy=st.sampled_from(["quarantine_batch", "quarantine_rows"]),
        commits=st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["a", "a", "b"])), min_size=2, max_size=4),
    )
    def create(self, policy, commits):
        holder = []
        store = MirroredStore(self.folder, lambda: holder[0].clock.now_ms() if holder else 0)
        options = {"declared": {"id": "BIGINT", "p": "VARCHAR"}, "evolution": "widen"}
        self.table = SmallTable.__new__(SmallTable)
        holder.append(self.table)
        self.table.__init__(store=store, name="events", on_bad_rows=policy, **options)
        self.policy = policy
        self.store, self.paths, self.clock = self.table.store, self.table.paths, self.table.clock
        self.client = self.open_client()
        self.lake = connect("/unused", clock=self.clock, warehouse=Warehouse(self.store, "wh"))
        self.ids = 0
        self.live = []
        self.staged = {}
        self.ended = {}
        self.sources = []
        self.history = [(0, [])]
        self.tags = {}
        self.leases = {}
        self.known_files = {}
        for count, place in commits:  # most of what users and operators do needs rows
            self.enqueue_and_flush(count, place, None)

    def open_client(self):
        settings = ClientSettings(store="file:///unused")
        client = Client(settings=settings, clock=self.clock, warehouse=Warehouse(self.store, "wh"))
        client._sender = NoWakeups()
        return client

    # ---- what the model remembers ------------------------------------------------------------------------------

    def rows(self, count, place, value):
        made = []
        for _ in range(count):
            self.ids += 1
            made.append({"id": self.ids, "p": place, **({} if value is None else {"v": value})})
        return made

    def committed(self, key):
        """Remember the state after a commit."""
        if key is not None:
            self.history.append((parse_log_key(key).time_ms, list(self.live)))

    def state_at(self, at_ms):
        return max((entry for entry in enumerate(self.history) if entry[1][0] <= at_ms), key=lambda e: (e[1][0], e[0]))[
            1
        ][1]

    def must_hold(self, at_ms):
        """Whether nobody may have deleted what was live at a time."""
        now = self.clock.now_ms()
        if any(until > now and at <= at_ms for at, until in self.leases.values()):
            return True
        return at_ms > now - self.table.config.log_grace_ms

    def read(self, **options):
        """Return the rows of a snapshot: the files that the client names, each read once, since files never change."""
        found = Counter()
        for file in self.client.snapshot("events", **options).files:
            assert Path(file.uri).exists(), f"{file.path} is named and not there"
            found += self.rows_of(file)
        return found

    def rows_of(self, file):
        """Return the rows of a data file; ``None`` if it has gone before anybody read it."""
        if file.path not in self.known_files and Path(file.uri).exists():
            self.known_files[file.path] = Counter(map(plain, pq.ParquetFile(file.uri).read().to_pylist()))
        return self.known_files.get(file.path)

    def query(self, **options):
        """Return the rows of a snapshot as users get them: by DuckDB, with conditions."""
        return Counter(
            map(plain, self.client.snapshot("events", **options).to_arrow().select(self.columns()).to_pylist())
        )

    def columns(self):
        return ["id", "p", *(["v"] if "v" in self.table.snapshot().schema else [])]
