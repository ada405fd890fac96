"""Random sequences of what users and operators do, against a plain model of rows: one actor after another, no faults.

Flush, merge, changes of rows and imports are those of the services with real Parquet files, in this process (Arrow,
DuckDB); reads go through the client as users' do. After every step: the newest rows are the model's, fsck finds nothing, and time travel,
tags, leases and changes give what the model remembers, or say honestly that it is gone.
"""

import json
from collections import Counter

import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    invariant,
    rule,
    run_state_machine_as_test,
)
from icedb_engine.local_engine import LocalEngine
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.clock import make_uuid7_hex
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.table.stored_config import create_table
from icedb_log.trash.drop import DropRequest, drop_table, undrop_table
from icedb_log.units import DAY_MS
from icedb_sim.tables.profiles import fuzz_examples
from table_changes import ChangesOfRows
from table_model import PLACES, plain, present
from table_readers import Readers

BAD = [b"{", b'{"id":1}', b'{"id":"x","p":"a"}', b'{"id":1,"p":null}', b"\xff", b'{"id":1,"p":"a","id":2}', b"[1]"]


class TableMachine(ChangesOfRows, Readers):
    """One table, its users and its workers."""

    # ---- producers ---------------------------------------------------------------------------------------------

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
        stage_batch(self.table, body=body, staging_format="ndjson", batch_id=batch_id)
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
        result = self.table.flush(writer=LocalEngine(self.store, clock=self.clock).writer)
        refused = {each.batch.batch_id for each in result.rejected}
        assert not result.has_more
        for batch_id, (kind, rows, sent) in self.staged.items():
            if kind == "good":
                assert batch_id not in refused, "a good batch was refused"
                self.live.extend(rows)
            if kind == "bad":
                assert batch_id in refused, "a bad batch was taken"
            self.ended[batch_id] = ("good" if kind == "again" else kind, rows, sent)
        assert not list_staged(self.table).batches
        quarantined = {entry.batch_id for entry in list_quarantined(self.table)}
        assert refused <= quarantined
        self.staged.clear()
        self.committed(result.committed_key)

    @present
    @rule(count=st.integers(1, 3), place=st.sampled_from(PLACES), value=st.sampled_from([None, 3, 0.5]))
    def append_embedded(self, count, place, value):
        """Append in the caller's own process, on the same table as the workers."""
        self.flush()
        rows = self.rows(count, place, value)
        done = self.lake.table("events").append(rows)
        assert (done.row_count, done.bad_row_count, done.is_duplicate) == (count, 0, False)
        self.live.extend(rows)
        self.committed(done.committed_key)

    @present
    @rule()
    def merge_embedded(self):
        self.committed(self.lake.table("events").merge().committed_key)

    @present
    @rule(full=st.booleans())
    def merge(self, full):
        result = self.table.merge(full=full, merger=LocalEngine(self.store, clock=self.clock).merger)
        self.committed(result.committed_key)
        event(f"merge of {result.group_count} groups")

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

    # ---- operators ---------------------------------------------------------------------------------------------

    @present
    @rule(policy=st.sampled_from(["quarantine_batch", "quarantine_rows"]), fan_in=st.integers(2, 5))
    def alter(self, policy, fan_in):
        self.flush()  # what is staged was sent under the policy before
        alter_table_config(self.table, {"on_bad_rows": policy, "merge_fan_in": fan_in}, clock=self.clock)
        self.policy = policy
        for change in (
            {"partition": ()},
            {"log_grace_ms": 5000},
            {"data_grace_ms": 1000},
            {"name": "x"},
            {"nonsense": 1},
        ):
            with pytest.raises(InvalidRequest):
                alter_table_config(self.table, change, clock=self.clock)

    @present
    @rule(seconds=st.sampled_from([0, 30, 3600]))
    def drop_and_undrop(self, seconds):
        with pytest.raises(InvalidRequest):
            create_table(self.table, self.table.config)
        drop_table(self.table, clock=self.clock, request=DropRequest(keep_ms=DAY_MS))
        with pytest.raises(NotFound):
            self.client.snapshot("events", max_staleness_ms=0)
        # Who has sent something just before knows the table for a while (docs/trash.md): somebody else asks.
        with pytest.raises(NotFound):
            self.open_client().enqueue("events", [{"id": 1, "p": "a"}])
        assert self.client.tables() == ()
        self.clock.advance(1 + seconds * 1000)
        undrop_table(self.table, clock=self.clock)
        self.clock.advance(31_000)  # until nobody knows the table as missing any more

    # ---- after every step --------------------------------------------------------------------------------------

    @invariant()
    def rows_are_those_of_the_model(self):
        if self.table is None:
            return
        self._forget()
        assert self.read() == Counter(map(plain, self.live))
        for name, (rows, _) in self.tags.items():
            assert self.read(tag=name) == Counter(map(plain, rows)), name
        for at_ms, _ in self.leases.values():
            if at_ms > self.erased_ms:
                assert self.read(as_of=at_ms) == Counter(map(plain, self.state_at(at_ms)))

    @invariant()
    def fsck_finds_nothing(self):
        if self.table is None:
            return
        report = fsck_table(self.table, clock=self.clock, options=FsckOptions(fetch_threads=1))
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
        table.create("quarantine_rows", [(2, "a"), (3, "a"), (1, "b")])
        steps = [
            lambda: table.import_file(2, "a", 1, "copy", False),
            lambda: table.import_file(1, "b", 1, "in_place", False),
            lambda: table.import_file(1, "b", 1, "in_place", True),
            lambda: table.import_file(1, "a", 2.5, "copy", False),
            lambda: table.tag("q1", None),
            lambda: table.rewrite(max(table.QUERIES), "b", False),
            lambda: table.merge(True),
            lambda: table.rewrite("SELECT * FROM _rows WHERE id % 2 = 0", "a", False),
            lambda: table.time_passes(21),
            lambda: table.clean(False),
            lambda: table.delete_tag(0),
            lambda: table.import_again(0),
            lambda: table.enqueue_and_flush(2, "São Paulo/%", 0.5),
            lambda: table.append_embedded(2, "a", 0.5),
            lambda: table.merge_embedded(),
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
