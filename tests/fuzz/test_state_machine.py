"""Random sequences of what users and operators do, against a plain model of rows: one actor after another, no faults.

Flush, merge, changes of rows and imports are those of the services with real Parquet files, in this process (Arrow,
DuckDB); reads go through the client as users' do. After every step: the newest rows are the model's, fsck finds nothing, and time travel,
pins, leases and changes give what the model remembers, or say honestly that it is gone.
"""

import json
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from icedb_client.client import Client
from icedb_client.settings import ClientSettings
from icedb_log.changes.partition_removal import remove_chosen_partitions
from icedb_log.cleaning.lease_holding import acquire_lease, release_lease, renew_lease
from icedb_log.cleaning.pin_creation import create_pin
from icedb_log.cleaning.pins import unpin
from icedb_log.clock import make_uuid7_hex
from icedb_log.erasure.erasure_run import advance_erasure
from icedb_log.erasure.erasures import create_erasure, note_deletions
from icedb_log.errors import BelowHorizon, InvalidRequest, NotFound
from icedb_log.imports.imports import ImportOptions, import_files
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.keys import parse_log_key
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.tables.partition_glob import select_partitions
from icedb_log.tables.partition_path import encode_partition_value
from icedb_log.tables.stored_config import create_table
from icedb_log.tables.table_changes import alter_table_config
from icedb_log.testing.mirrored_store import MirroredStore
from icedb_log.testing.profiles import fuzz_examples
from icedb_log.testing.row_imports import describe_source
from icedb_log.testing.small_table import SmallTable
from icedb_log.trash.drop import DropRequest, drop_table, undrop_table
from icedb_log.warehouse import Warehouse
from icedb_parts.testing.native_jobs import NativeChanger, NativeImporter, NativeMerger, NativeWriter

DAY_MS = 24 * 3_600_000
PLACES = ["a", "b", "São Paulo/%"]
NAMES = ["q1", "q2"]
BAD = [b"{", b'{"id":1}', b'{"id":"x","p":"a"}', b'{"id":1,"p":null}', b"\xff", b'{"id":1,"p":"a","id":2}', b"[1]"]


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


class TableMachine(RuleBasedStateMachine):
    """One table, its users and its workers."""

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
        versions=st.sampled_from([0, 0, 3]),
        commits=st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["a", "a", "b"])), min_size=2, max_size=4),
    )
    def create(self, policy, versions, commits):
        holder = []
        store = MirroredStore(self.folder, lambda: holder[0].clock.now_ms() if holder else 0)
        options = {"declared": {"id": "BIGINT", "p": "VARCHAR"}, "evolution": "widen", "keep_versions": versions}
        self.table = SmallTable.__new__(SmallTable)
        holder.append(self.table)
        self.table.__init__(store=store, name="events", on_bad_rows=policy, **options)
        self.policy, self.versions = policy, versions
        self.store, self.paths, self.clock = self.table.store, self.table.paths, self.table.clock
        self.client = self.open_client()
        self.ids = 0
        self.live = []
        self.staged = {}
        self.ended = {}
        self.sources = []
        self.history = [(0, [])]
        self.pins = {}
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
        commits = sorted(time for time, _ in self.history[1:])
        if self.versions and at_ms >= (commits[-self.versions] if len(commits) >= self.versions else 0):
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

    # ---- producers ---------------------------------------------------------------------------------------------

    present = precondition(lambda self: self.table is not None)

    @present
    @rule(count=st.integers(1, 4), place=st.sampled_from(PLACES), value=st.sampled_from([None, None, 1, 2, 2.5]))
    def enqueue(self, count, place, value):
        rows = self.rows(count, place, value)
        batch = self.client.enqueue("events", rows)
        self.staged[batch.batch_id] = ("good", rows, json.dumps(rows))
        self.clock.advance(1)

    @present
    @rule(number=st.integers(0, 5))
    def enqueue_again(self, number):
        known = [*self.staged.items(), *self.ended.items()][-6:]
        if not known:
            return
        batch_id, (kind, rows, sent) = known[number % len(known)]
        if kind != "good" or not sent:
            return  # other content under a known id is refused, as it has to be
        self.client.enqueue("events", rows, batch_id=batch_id)
        event("a batch twice")
        if batch_id not in self.staged:
            self.staged[batch_id] = ("again", rows, sent)
        self.clock.advance(1)

    @present
    @rule(body=st.sampled_from(BAD), place=st.sampled_from(PLACES), is_mixed=st.booleans())
    def enqueue_bad(self, body, place, is_mixed):
        rows = self.rows(1, place, None) if is_mixed else []
        lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows) + body + b"\n"
        batch = self.client.enqueue("events", lines, data_format="ndjson")
        kept = rows if self.policy == "quarantine_rows" else []
        self.staged[batch.batch_id] = ("good" if kept else "bad", kept, "")
        self.clock.advance(1)

    @present
    @rule(age_ms=st.sampled_from([1000, 14_000, 16_000, 60_000, DAY_MS]), place=st.sampled_from(PLACES))
    def enqueue_late(self, age_ms, place):
        rows = self.rows(1, place, None)
        hexed = make_uuid7_hex(self.clock.now_ms() - age_ms, self.ids)
        batch_id = "-".join((hexed[:8], hexed[8:12], hexed[12:16], hexed[16:20], hexed[20:]))
        body = json.dumps(rows[0]).encode()
        stage_batch(self.store, self.paths, body=body, staging_format="ndjson", batch_id=batch_id)
        window_ms = self.table.config.retry_window_ms
        self.staged[batch_id] = ("good" if age_ms < window_ms else "bad", rows, "")
        self.clock.advance(1)

    # ---- workers -----------------------------------------------------------------------------------------------

    @present
    @rule(count=st.integers(1, 3), place=st.sampled_from(PLACES), value=st.sampled_from([None, 3, 0.5]))
    def enqueue_and_flush(self, count, place, value):
        self.enqueue(count, place, value)
        self.flush()

    @present
    @rule()
    def flush(self):
        result = self.table.flush(writer=NativeWriter(self.store, self.clock))
        refused = {each.batch.batch_id for each in result.rejected}
        assert not result.has_more
        for batch_id, (kind, rows, sent) in self.staged.items():
            if kind == "good":
                assert batch_id not in refused, "a good batch was refused"
                self.live.extend(rows)
            if kind == "bad":
                assert batch_id in refused, "a bad batch was taken"
            self.ended[batch_id] = ("good" if kind == "again" else kind, rows, sent)
        assert not list_staged(self.store, self.paths).batches
        quarantined = {entry.batch_id for entry in list_quarantined(self.store, self.paths)}
        assert refused <= quarantined
        self.staged.clear()
        self.committed(result.committed_key)

    @present
    @rule(full=st.booleans())
    def merge(self, full):
        result = self.table.merge(full=full, merger=NativeMerger(self.store, self.clock))
        self.committed(result.committed_key)
        event(f"merge of {result.group_count} groups")

    CONDITIONS = {
        "id % 3 = 0": lambda row: row["id"] % 3 == 0,
        "p = 'a'": lambda row: row["p"] == "a",
        "id < 4 OR p = 'b'": lambda row: row["id"] < 4 or row["p"] == "b",
        "id > 1000000": lambda _row: False,
        "id >= 0": lambda _row: True,
    }

    @present
    @rule(condition=st.sampled_from(sorted(CONDITIONS)), dry_run=st.booleans())
    def delete(self, condition, dry_run):
        gone = self.CONDITIONS[condition]
        result = self.table.delete(condition, dry_run=dry_run, changer=NativeChanger(self.store, self.clock))
        assert result.rows_removed == sum(map(gone, self.live)), (condition, result)
        if not dry_run:
            self.live = [row for row in self.live if not gone(row)]
            self.committed(result.committed_key)

    QUERIES = {
        "SELECT * FROM _rows WHERE id % 2 = 0": lambda rows: [row for row in rows if row["id"] % 2 == 0],
        "SELECT * FROM _rows WHERE id < 0": lambda _rows: [],
        "SELECT id, p FROM _rows": lambda rows: [{"id": row["id"], "p": row["p"]} for row in rows],
        "SELECT * FROM _rows UNION ALL SELECT * FROM _rows WHERE id % 5 = 0": lambda rows: [
            *rows,
            *(row for row in rows if row["id"] % 5 == 0),
        ],
    }

    @present
    @rule(query=st.sampled_from(sorted(QUERIES)), place=st.sampled_from([*PLACES, "nope"]), dry_run=st.booleans())
    def rewrite(self, query, place, dry_run):
        changer = NativeChanger(self.store, self.clock)
        old = [row for row in self.live if row["p"] == place]
        new = self.QUERIES[query](old)
        result = self.table.rewrite(query, f"p={place}", dry_run=dry_run, changer=changer)
        assert result.rows_read == len(old)
        if dry_run:
            return
        assert result.rows_removed == len(old) - len(new)
        self.live = [row for row in self.live if row["p"] != place] + new
        self.committed(result.committed_key)
        if new:
            with pytest.raises(InvalidRequest, match="leave each row in its partition"):
                self.table.rewrite("SELECT id, 'elsewhere' AS p FROM _rows", f"p={place}", changer=changer)
        event("rewritten")

    @present
    @rule(
        count=st.sampled_from([2, 1, 3, 0]),
        place=st.sampled_from(PLACES),
        value=st.sampled_from([None, 1, 2.5]),
        mode=st.sampled_from(["copy", "in_place"]),
        is_split=st.sampled_from([False, False, True]),
    )
    def import_file(self, count, place, value, mode, is_split):
        rows = self.rows(count, place, value)
        written = rows + self.rows(1, "elsewhere", value) if is_split else rows
        folder = "in/" if mode == "copy" else f"{self.paths.data_prefix}p={encode_partition_value(place)}/"
        key = f"{folder}{self.ids}-{len(self.sources)}.parquet"
        sink = pa.BufferOutputStream()
        columns = {"id": pa.int64(), "p": pa.string(), **({} if value is None else {"v": pa.scalar(value).type})}
        pq.write_table(pa.Table.from_pylist(written, pa.schema(columns)), sink)
        self.store.put(key, sink.getvalue().to_pybytes())
        self.clock.advance(1)
        sql_type = "DOUBLE" if isinstance(value, float) else "BIGINT"
        fits = value is None or self.table.snapshot().schema.get("v", sql_type) == sql_type  # imports widen nothing
        result = self.run_import(key, mode)
        is_elsewhere = is_split and (count or mode == "in_place")
        if written and (is_elsewhere or not fits):
            assert len(result.refused) == 1, result
            assert not result.committed_keys
        elif not written:
            assert (result.empty_count, result.committed_keys) == (1, []), result
        else:
            assert (result.file_count, result.row_count, result.refused) == (1, len(written), []), result
            self.live += written
            self.committed(result.committed_keys[0])
            if mode == "copy":
                self.sources.append(key)
                self.import_again(-1)
            event(f"imported: {mode}")
            return
        self.store.delete([key])

    @present
    @precondition(lambda self: self.sources)
    @rule(number=st.integers(0, 5))
    def import_again(self, number):
        result = self.run_import(self.sources[number % len(self.sources)], "copy")
        assert (result.imported_before_count, result.file_count, result.refused) == (1, 0, []), result
        event("imported twice")

    def run_import(self, key, mode):
        source = describe_source(self.store, key)
        result = import_files(
            self.store,
            self.paths,
            clock=self.clock,
            importer=NativeImporter(self.store, self.clock),
            owner="import",
            sources=[replace(source, url=f"file://{source.url}")],
            options=ImportOptions(mode=mode),
            reader=self.table.reader(),
        )
        self.clock.advance(1)
        return result

    @present
    @rule(place=st.sampled_from(["a", "b", "*"]))
    def remove_partitions(self, place):
        there = any(place in ("*", row["p"]) for row in self.live)
        try:
            result = remove_chosen_partitions(
                self.store,
                self.paths,
                clock=self.clock,
                owner="drop",
                choose=lambda _, infos: select_partitions(
                    "events", [f"p={place}"], [info.path for info in infos], may_match_all=True
                ),
                reader=self.table.reader(),
            )
        except InvalidRequest:
            assert not there
            return
        self.clock.advance(1)
        self.live = [row for row in self.live if place not in ("*", row["p"])]
        self.committed(result.committed_key)

    @present
    @rule(seconds=st.sampled_from([1, 5, 21, 61, 200]))
    def time_passes(self, seconds):
        self.clock.advance(seconds * 1000)

    @present
    @rule(condition=st.sampled_from(["none", "id % 3 = 0", "id >= 0"]))
    def grow_old(self, condition):
        """Replace what is there, and let all go that nothing holds."""
        if condition in self.CONDITIONS:
            self.delete(condition, False)
        self.merge(True)
        for seconds in (21, 61):
            self.clock.advance(seconds * 1000)
            self.clean(False)

    @present
    @rule(is_orphan_sweep=st.booleans())
    def clean(self, is_orphan_sweep):
        self.table.vacuum()
        if is_orphan_sweep:
            assert not self.table.sweep().deleted, "without faults there are no orphans"

    @present
    @precondition(lambda self: not self.pins and not self.leases and not self.versions)
    @rule(condition=st.sampled_from(["p = 'a'", "id % 3 = 0"]))
    def erase(self, condition):
        self.flush()
        gone = self.CONDITIONS[condition]
        erasure = create_erasure(self.store, self.paths, condition=condition, clock=self.clock)
        for _ in range(40):
            progress = advance_erasure(
                self.store,
                self.paths,
                erasure.erasure_id,
                clock=self.clock,
                changer=NativeChanger(self.store, self.clock),
                owner="erase",
                reader=self.table.reader(),
            )
            if progress.erasure.is_closed:
                break
            self.clock.advance(22_000)
            vacuumed, swept = self.table.vacuum(), self.table.sweep()
            note_deletions(self.store, self.paths, (*vacuumed.deleted_data, *swept.deleted))
        assert progress.erasure.is_closed, progress
        self.live = [row for row in self.live if not gone(row)]
        event("erased")
        # What was before is gone for good: rows of the past may be asked for no more.
        newest = max([time for time, _ in self.history] + [0])
        self.history.append((max(newest + 1, self.clock.now_ms()), list(self.live)))
        self.clock.advance(2)
        self.erased_ms = self.clock.now_ms()

    erased_ms = 0

    # ---- readers -----------------------------------------------------------------------------------------------

    @present
    @rule(back_ms=st.sampled_from([0, 1, 3, 1000, 10_000, 30_000, 100_000]), number=st.integers(0, 30))
    def travel(self, back_ms, number):
        times = [time for time, _ in self.history[1:]] or [self.clock.now_ms()]
        at_ms = min(
            times[number % len(times)] + 1 if number % 2 else self.clock.now_ms() - back_ms, self.clock.now_ms()
        )
        if at_ms <= self.erased_ms:
            return
        try:
            found = self.read(as_of=at_ms)
        except BelowHorizon:
            assert not self.must_hold(at_ms), f"{at_ms} is refused too early"
            event("refused below the horizon")
            return
        event("time travel")
        assert found == Counter(map(plain, self.state_at(at_ms)))

    @present
    @rule(name=st.sampled_from(NAMES), ttl_s=st.sampled_from([None, 30, 3600]))
    def pin(self, name, ttl_s):
        self._forget()
        if name in self.pins:
            with pytest.raises(InvalidRequest):
                create_pin(self.store, self.paths, name, clock=self.clock, reader=self.table.reader())
            return
        ttl_ms = None if ttl_s is None else ttl_s * 1000
        create_pin(self.store, self.paths, name, clock=self.clock, ttl_ms=ttl_ms, reader=self.table.reader())
        ends_ms = self.clock.now_ms() + (ttl_ms or 10**12)
        self.pins[name] = (list(self.live), ends_ms)
        self.clock.advance(1)

    @present
    @precondition(lambda self: self.pins)
    @rule(number=st.integers(0, 1))
    def unpin(self, number):
        name = sorted(self.pins)[number % len(self.pins)]
        assert unpin(self.store, self.paths, name) or self.pins[name][1] <= self.clock.now_ms()
        del self.pins[name]

    @present
    @rule(ttl_s=st.sampled_from([10, 120, 3600]))
    def lease(self, ttl_s):
        held = acquire_lease(self.store, self.paths, clock=self.clock, ttl_ms=ttl_s * 1000, reader=self.table.reader())
        self.leases[held.lease_id] = (held.at_ms, self.clock.now_ms() + ttl_s * 1000)
        self.clock.advance(1)

    @present
    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 3), is_renewed=st.booleans())
    def end_or_renew_lease(self, number, is_renewed):
        lease_id = sorted(self.leases)[number % len(self.leases)]
        at_ms, until_ms = self.leases.pop(lease_id)
        if not is_renewed:
            release_lease(self.store, self.paths, lease_id)
            return
        try:
            renew_lease(self.store, self.paths, lease_id, clock=self.clock, ttl_ms=60_000)
        except NotFound:
            assert until_ms <= self.clock.now_ms()
            return
        self.leases[lease_id] = (at_ms, self.clock.now_ms() + 60_000)

    def _forget(self):
        now = self.clock.now_ms()
        self.pins = {name: found for name, found in self.pins.items() if found[1] > now}
        self.leases = {name: found for name, found in self.leases.items() if found[1] > now}

    @present
    @rule(number=st.integers(0, 20))
    def changes(self, number):
        times = [time for time, _ in self.history[1:]]
        if not times:
            return
        from_ms = min(times[number % len(times)] + 1, self.clock.now_ms())
        if from_ms <= self.erased_ms:
            return
        try:
            found = self.client.changes("events", from_=from_ms)
        except BelowHorizon:
            assert not self.must_hold(from_ms)
            return
        before, after = Counter(map(plain, self.state_at(from_ms))), Counter(map(plain, self.live))
        count = sum(file.row_count for file in found.added) - sum(file.row_count for file in found.removed)
        assert count == after.total() - before.total()
        removed = [self.rows_of(file) for file in found.removed]
        if None not in removed:
            added = sum(map(self.rows_of, found.added), Counter())
            assert before + added == after + sum(removed, Counter())
        event("changes")

    @present
    @rule(low=st.integers(0, 30), place=st.sampled_from([*PLACES, "nope"]))
    def read_some(self, low, place):
        quoted = place.replace("'", "''")
        found = self.query(where=f"id >= {low} AND p = '{quoted}'")
        assert found == Counter(plain(row) for row in self.live if row["id"] >= low and row["p"] == place)
        found = self.query(partitions={"p": [place]})
        assert found == Counter(plain(row) for row in self.live if row["p"] == place)
        query = "SELECT count(*) FROM events"
        total = self.client.query(query).relation.fetchall() if self.live else [(0,)]
        assert total[0][0] == len(self.live)

    # ---- operators ---------------------------------------------------------------------------------------------

    @present
    @rule(policy=st.sampled_from(["quarantine_batch", "quarantine_rows"]), fan_in=st.integers(2, 5))
    def alter(self, policy, fan_in):
        self.flush()  # what is staged was sent under the policy before
        alter_table_config(self.store, self.paths, {"on_bad_rows": policy, "merge_fan_in": fan_in}, clock=self.clock)
        self.policy = policy
        for change in (
            {"partition": ()},
            {"log_grace_ms": 5000},
            {"data_grace_ms": 1000},
            {"name": "x"},
            {"nonsense": 1},
        ):
            with pytest.raises(InvalidRequest):
                alter_table_config(self.store, self.paths, change, clock=self.clock)

    @present
    @rule(seconds=st.sampled_from([0, 30, 3600]))
    def drop_and_undrop(self, seconds):
        with pytest.raises(InvalidRequest):
            create_table(self.store, self.paths, self.table.config)
        drop_table(self.store, self.paths, clock=self.clock, request=DropRequest(keep_ms=DAY_MS))
        with pytest.raises(NotFound):
            self.client.snapshot("events", max_staleness_ms=0)
        # Who has sent something just before knows the table for a while (docs/trash.md): somebody else asks.
        with pytest.raises(NotFound):
            self.open_client().enqueue("events", [{"id": 1, "p": "a"}])
        assert self.client.tables() == ()
        self.clock.advance(1 + seconds * 1000)
        undrop_table(self.store, self.paths, clock=self.clock)
        self.clock.advance(31_000)  # until nobody knows the table as missing any more

    # ---- after every step --------------------------------------------------------------------------------------

    @invariant()
    def rows_are_those_of_the_model(self):
        if self.table is None:
            return
        self._forget()
        assert self.read() == Counter(map(plain, self.live))
        for name, (rows, _) in self.pins.items():
            assert self.read(pin=name) == Counter(map(plain, rows)), name
        for at_ms, _ in self.leases.values():
            if at_ms > self.erased_ms:
                assert self.read(as_of=at_ms) == Counter(map(plain, self.state_at(at_ms)))

    @invariant()
    def fsck_finds_nothing(self):
        if self.table is None:
            return
        report = fsck_table(self.store, self.paths, clock=self.clock, options=FsckOptions(fetch_threads=1))
        note(str(report.findings))
        honest = {"staging-old"}  # a batch that nobody flushes is one to be told of
        wrong = [each for each in report.findings if each.severity != "note" and each.code not in honest]
        assert not wrong, wrong


def test_what_users_do_is_what_the_model_says():
    TableMachine.sequences = 0
    run_state_machine_as_test(TableMachine, settings=settings(fuzz_examples(8), stateful_step_count=20))
    print(f"sequences: {TableMachine.sequences}")


@settings(max_examples=1)
@given(st.just(TableMachine))
def test_a_sequence_with_everything(machine):
    """What chance reaches rarely: it picks few of the rules for each sequence."""
    table = machine()
    try:
        table.create("quarantine_rows", 0, [(2, "a"), (3, "a"), (1, "b")])
        steps = [
            lambda: table.import_file(2, "a", 1, "copy", False),
            lambda: table.import_file(1, "b", 1, "in_place", False),
            lambda: table.import_file(1, "b", 1, "in_place", True),
            lambda: table.import_file(1, "a", 2.5, "copy", False),
            lambda: table.pin("q1", None),
            lambda: table.rewrite(max(table.QUERIES), "b", False),
            lambda: table.merge(True),
            lambda: table.rewrite("SELECT * FROM _rows WHERE id % 2 = 0", "a", False),
            lambda: table.time_passes(21),
            lambda: table.clean(False),
            lambda: table.unpin(0),
            lambda: table.import_again(0),
            lambda: table.enqueue_and_flush(2, "São Paulo/%", 0.5),
            lambda: table.delete("id % 3 = 0", False),
            lambda: table.erase("p = 'a'"),
            lambda: table.import_again(0),
            lambda: table.drop_and_undrop(30),
            lambda: table.grow_old("id >= 0"),
        ]
        for step in steps:
            step()
            table.rows_are_those_of_the_model()
            table.fsck_finds_nothing()
    finally:
        table.teardown()
