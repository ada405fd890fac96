"""Tables of the original wire's own writer: made here by hand from the rules, then worked on by everything of ours.

That writer knows none of our fields, puts the name of its host where we have a commit id, writes JSON with spaces, merges
files together with the columns of their path, drops markers when it removes a partition, and cleans up without a trace.
"""

import json

import duckdb
import pytest
from icedb_client import Client
from icedb_log.changes.partition_removal import remove_chosen_partitions
from icedb_log.changes.row_changes import delete_rows
from icedb_log.cleaning.orphans import sweep_orphans
from icedb_log.cleaning.vacuum import vacuum_table
from icedb_log.clock import new_batch_id
from icedb_log.errors import BelowHorizon, CorruptLog, InvalidRequest, SchemaConflict, UnsupportedFormat
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogHeadReader, LogReader
from icedb_log.merging.merge import merge_table
from icedb_log.repair.fsck import fsck_table
from icedb_log.tables.stored_config import create_table
from icedb_log.tables.table_config import PartitionField, TableConfig
from icedb_log.testing.fake_clock import FakeClock
from icedb_log.testing.mirrored_store import MirroredStore
from icedb_log.warehouse import Warehouse
from icedb_parts.testing.native_jobs import NativeChanger, NativeMerger, NativeWriter

HOST = "ip-10-0-3-7.eu-west-1"
SCHEMA = {"u": "VARCHAR", "ts": "TIMESTAMP", "n": "BIGINT"}
GRACE_MS = 60_000
START_MS = 1_686_176_939_445


class V3Table:
    """A table as the original wire's writer leaves it, and our services on it. A row is a number."""

    def __init__(self, root):
        self.clock = FakeClock(START_MS)
        self.store = MirroredStore(root, self.clock.now_ms)
        self.paths = Warehouse(self.store).table("events")
        self.engine = duckdb.connect()
        self.scratch = root / "rows.parquet"
        self.files = 0

    def put(self, partition, *numbers, extra=""):
        """Upload a data file and return its marker."""
        self.files += 1
        key = f"events/_data/{partition}/00000000-0000-4000-8000-{self.files:012d}.parquet"
        values = ", ".join(map(str, numbers))
        self.engine.execute(
            f"COPY (SELECT 'a' AS u, TIMESTAMP '2023-06-07 08:00:00' + INTERVAL (n) SECOND AS ts, n{extra} FROM "
            f"(SELECT unnest([{values}])::BIGINT AS n)) TO '{self.scratch}' (FORMAT parquet, CODEC 'SNAPPY')"
        )
        body = self.scratch.read_bytes()
        self.store.put(key, body)
        return {"p": key, "b": len(body), "t": self.clock.now_ms()}

    def write(self, markers, tombstones=(), *, host=HOST, is_merged=False, schema=SCHEMA, **layout):
        """Write a log file, field by field as the wire has it, and return its key."""
        time_ms = self.clock.now_ms()
        metadata = {"v": 1, "sch": 1, "f": 2 + len(tombstones), "t": time_ms}
        if tombstones:
            metadata["tmb"] = 2
        key = f"events/_log/{time_ms}{'_m' if is_merged else ''}_{host}.jsonl"
        lines = [metadata, schema, *tombstones, *markers]
        self.store.put(key, "\n".join(json.dumps(line, **layout) for line in lines).encode())
        self.clock.advance(5)
        return key

    def append(self, partition, *numbers, **options):
        """Insert rows; return the marker and the log file's key."""
        marker = self.put(partition, *numbers)
        return marker, self.write([marker], **options)

    def merge_as_v3(self, inputs, others=(), *, extra=""):
        """Merge appended files as the original does: with the others that their log files name."""
        partition = inputs[0][0]["p"].removeprefix("events/_data/").rpartition("/")[0]
        now_ms = self.clock.now_ms()
        numbers = [n for marker, _ in inputs for n in self.numbers_in(marker["p"])]
        output = self.put(partition, *numbers, extra=extra)
        self.clock.advance(3)
        dead = [{**marker, "tmb": now_ms} for marker, _ in inputs]
        logs = [{"p": key, "t": now_ms} for _, key in inputs]
        return output, self.write([*dead, *others, output], logs, is_merged=True)

    def numbers_in(self, *keys):
        """Return the rows of data files."""
        files = [self.store.uri(key) for key in keys]
        rows = self.engine.execute("SELECT n FROM read_parquet(?, union_by_name = true)", [files]).fetchall()
        return sorted(row[0] for row in rows)

    def adopt(self, **fields):
        """Give it a configuration, as ``icedb table create`` does."""
        options = {"sort": ("ts",), "merge_fan_in": 2, "data_grace_ms": GRACE_MS, "log_grace_ms": 20_000}
        fields = {"partition": (PartitionField.parse("u"), PartitionField.parse("d=day(ts)")), **options, **fields}
        config = TableConfig.create(name="events", orphan_age_ms=4 * GRACE_MS, **fields)
        create_table(self.store, self.paths, config)

    def reader(self, **options):
        return LogReader(self.store, self.paths, clock=self.clock, **options)

    def numbers(self, as_of_ms=None):
        """Return all rows, read as every reader of ours does."""
        snapshot = fold(self.reader().read(), as_of_ms=as_of_ms)
        compact = fold(self.reader(is_compact=True).read(), as_of_ms=as_of_ms)
        assert compact.snapshot_id == snapshot.snapshot_id
        return self.numbers_in(*(marker.path for marker in snapshot.live)) if snapshot.live else []

    def run(self, function, **options):
        result = function(self.store, self.paths, clock=self.clock, **options)
        self.clock.advance(5)
        return result

    def flush(self, *numbers):
        rows = [{"u": "a", "ts": f"2023-06-07T09:00:{n % 60:02d}Z", "n": n} for n in numbers]
        body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        stage_batch(self.store, self.paths, body=body, staging_format="ndjson", batch_id=new_batch_id(self.clock))
        return self.run(flush_table, writer=NativeWriter(self.store, self.clock), owner="flush")

    def merge(self, **options):
        return self.run(merge_table, merger=NativeMerger(self.store, self.clock), owner="merge", **options)

    def delete(self, condition):
        changer = NativeChanger(self.store, self.clock)
        return self.run(delete_rows, changer=changer, owner="delete", condition=condition)

    def vacuum(self):
        return self.run(vacuum_table)

    def problems(self):
        """Return what fsck finds, but for what it says of a configuration that does not say how files are laid out."""
        found = self.run(fsck_table).findings
        return [each for each in found if each.code != "config-mismatch"]


@pytest.fixture
def table(tmp_path):
    return V3Table(tmp_path)


@pytest.fixture
def require_alike(strict_reader, table):
    """Return a function that reads the table strictly, and holds it against our own reader."""

    def check(numbers):
        objects = [(key, each.body) for key, each in table.store.dump("events/_log").items()]
        strict = strict_reader.read_strict("events", objects)
        assert strict.live == {marker.path for marker in fold(table.reader().read()).live}
        assert table.numbers_in(*strict.live) == sorted(numbers)
        assert table.numbers() == sorted(numbers)

    return check


DAY = "u=a/d=2023-06-07"
OTHER = "u=b/d=2023-06-08"


@pytest.mark.parametrize("layout", [{}, {"separators": (",", ":")}, {"sort_keys": True}, {"ensure_ascii": False}])
@pytest.mark.parametrize("host", [HOST, "web_1", "m"])
def test_appends_of_any_host_are_read_and_travelled_through(table, require_alike, host, layout):
    times = []
    for number in range(3):
        table.append(DAY, number, host=host, schema={**SCHEMA, "größe": "DOUBLE"}, **layout)
        times.append(table.clock.now_ms() - 5)
    require_alike([0, 1, 2])
    assert [table.numbers(as_of_ms) for as_of_ms in times] == [[0], [0, 1], [0, 1, 2]]
    assert table.numbers(times[0] - 1) == []


def test_a_whole_life(table, require_alike, strict_reader):
    a = table.append(DAY, 1, 2)
    second = table.put(OTHER, 7)
    third = table.put(DAY, 3)
    b = third, table.write([third, second])
    table.append(DAY, 4)
    _, merged_key = table.merge_as_v3([a, b], [second], extra=", DATE '2023-06-07' AS d")
    require_alike([1, 2, 3, 4, 7])
    table.adopt()
    assert table.problems() == []

    table.flush(20, 21)
    require_alike([1, 2, 3, 4, 7, 20, 21])
    before_ms = table.clock.now_ms()
    assert table.merge().input_count == 3
    require_alike([1, 2, 3, 4, 7, 20, 21])
    removed = table.delete("n = 3 OR n = 20")
    assert (removed.rows_removed, removed.rows_read) == (2, 6)
    require_alike([1, 2, 4, 7, 21])
    assert table.numbers(before_ms) == [1, 2, 3, 4, 7, 20, 21]

    table.clock.advance(20_000)
    assert merged_key in table.vacuum().deleted_logs
    require_alike([1, 2, 4, 7, 21])
    with pytest.raises(BelowHorizon):
        table.numbers(before_ms)
    table.clock.advance(GRACE_MS)
    assert {a[0]["p"], third["p"]} <= set(table.vacuum().deleted_data)
    for _ in range(3):
        table.clock.advance(5 * GRACE_MS)
        assert table.run(sweep_orphans).deleted == ()
        table.vacuum()
        require_alike([1, 2, 4, 7, 21])
    assert len(table.store.dump("events/_data/")) == 2
    assert len(table.store.dump("events/_log/")) == 1
    assert table.problems() == []
    with Client(store=f"file://{table.store.root}") as client:
        rows = client.query("SELECT n, d FROM events WHERE u = 'a' AND d = '2023-06-07' ORDER BY n")
        assert [row[0] for row in rows.relation.fetchall()] == [1, 2, 4, 21]


def test_r3_states_before_a_merge_of_theirs_are_refused_whose_cleaner_leaves_no_trace(table, require_alike):
    a, b = table.append(DAY, 1), table.append(DAY, 2)
    before_ms = table.clock.now_ms()
    output, merged_key = table.merge_as_v3([a, b])
    table.append(DAY, 3)
    with pytest.raises(BelowHorizon, match=str(merged_key.split("/")[-1].split("_")[0])):
        table.numbers(before_ms)
    # Their cleaner: what it keeps of all merges in a new log file, everything else is gone.
    table.clock.advance(1000)
    table.store.delete([a[0]["p"], a[1], b[0]["p"], b[1], merged_key])
    table.write([output], is_merged=True)
    require_alike([1, 2, 3])
    with pytest.raises(BelowHorizon):
        table.numbers(table.clock.now_ms() - 500)
    assert table.numbers(table.clock.now_ms()) == [1, 2, 3]
    table.adopt()
    horizon_ms = fold(table.reader().read()).horizon_ms
    table.merge(full=True)
    assert fold(table.reader().read()).horizon_ms == horizon_ms  # our merge remembers it


def test_j2_a_log_file_stays_that_their_removal_put_to_death_with_all_it_names(table, require_alike):
    kept, gone = table.put(OTHER, 1), table.put(DAY, 2)
    key = table.write([kept, gone])
    now_ms = table.clock.now_ms()
    table.write([{**gone, "tmb": now_ms}], [{"p": key, "t": now_ms}], is_merged=True)  # names nothing but what goes
    require_alike([1])
    table.adopt()
    for _ in range(3):
        table.clock.advance(5 * GRACE_MS)
        result = table.vacuum()
        assert (result.deleted_logs, result.deleted_data) == ((), ())
        assert ("live", key) in {(waiting.guard, waiting.path) for waiting in result.waiting}
        require_alike([1])
    # A merge of the partition names its rows anew; then both the log file and the removed file can go.
    table.append(OTHER, 3)
    table.merge(full=True)
    table.clock.advance(5 * GRACE_MS)
    table.vacuum()
    table.clock.advance(5 * GRACE_MS)
    table.vacuum()
    require_alike([1, 3])
    assert not {key, gone["p"], kept["p"]} & table.store.dump("events/").keys()


def test_a_partition_that_no_key_of_ours_may_have_keeps_no_other_from_being_merged(table):
    for number in range(4):
        table.append("u=x@example.org", number, 20 + number)
        table.append(DAY, 10 + number)
    table.adopt()
    assert table.merge(full=True).input_count == 4
    assert table.numbers() == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    with pytest.raises(InvalidRequest, match=r"u=x@example\.org"):
        table.delete("n = 1")
    assert {each.code for each in table.problems()} == {"foreign-path"}
    table.run(remove_chosen_partitions, owner="drop", choose=lambda _, infos: {i.path for i in infos if "@" in i.path})
    assert table.numbers() == [10, 11, 12, 13]


def test_what_is_said_twice_or_of_nothing_counts_once(table, require_alike):
    a, b = table.append(DAY, 1), table.append(DAY, 2)
    now_ms = table.clock.now_ms()
    tombstones = [{"p": key, "t": now_ms} for key in (a[1], b[1], a[1], "events/_log/1600000000000_gone.jsonl")]
    dead = [{**a[0], "tmb": now_ms}, {**b[0], "tmb": now_ms}, {**a[0], "tmb": now_ms + 7}]
    output = table.put(DAY, 1, 2)
    table.write([*dead, output, output], tombstones, is_merged=True)
    table.write([], schema={})
    require_alike([1, 2])
    table.adopt()
    table.append(DAY, 3)
    assert table.merge(full=True).row_count == 3
    require_alike([1, 2, 3])
    for _ in range(2):
        table.clock.advance(2 * GRACE_MS)
        table.vacuum()
        require_alike([1, 2, 3])
    assert len(table.store.dump("events/_data/")) == 1


def test_their_unknown_fields_are_carried_by_merges_and_strips(table, strict_reader):
    a, b = table.put(DAY, 1), table.put(OTHER, 2)
    table.write([a, {**b, "codec": {"name": "snappy"}}])
    table.append(DAY, 3)
    table.adopt()
    table.merge(full=True)
    for _ in range(3):
        (marker,) = (m for m in fold(table.reader().read()).live if m.path == b["p"])
        assert dict(marker.extra) == {"codec": {"name": "snappy"}}
        table.clock.advance(2 * GRACE_MS)
        table.vacuum()


def test_two_types_of_a_column_halt_the_table_and_name_both_log_files(table):
    first = table.append(DAY, 1)[1]
    second = table.append(DAY, 2, schema={**SCHEMA, "n": "HUGEINT"})[1]
    with pytest.raises(SchemaConflict) as caught:
        table.numbers()
    assert first in str(caught.value)
    assert second in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "sql_type"),
    [
        ("{'a': n, 'b': ['x', NULL]}", "STRUCT(a BIGINT, b VARCHAR[])"),
        ("n::DECIMAL(10, 2)", "DECIMAL(10,2)"),
        ("TIMESTAMPTZ '2023-06-07 08:00:00+00' + INTERVAL (n) HOUR", "TIMESTAMP WITH TIME ZONE"),
    ],
)
def test_columns_of_types_that_we_never_write_are_kept_by_flushes_and_merges(table, expression, sql_type):
    for number in range(3):
        marker = table.put(DAY, number, 10 + number, extra=f", {expression} AS x")
        table.write([marker], schema={**SCHEMA, "x": sql_type})

    def read():
        files = [table.store.uri(marker.path) for marker in fold(table.reader().read()).live]
        query = "SELECT n, x, typeof(x) FROM read_parquet(?, union_by_name = true) WHERE n < 20 ORDER BY n"
        return table.engine.execute(query, [files]).fetchall()

    before = read()
    table.adopt(row_group_rows=2048)
    table.flush(20)
    assert table.merge(full=True).input_count == 4
    assert read() == before
    assert table.numbers() == [0, 1, 2, 10, 11, 12, 20]


GOOD = [
    {"v": 1, "sch": 1, "f": 3, "t": START_MS, "tmb": 2},
    {"n": "BIGINT"},
    {"p": "events/_log/1600000000000_web-1.jsonl", "t": 5},
    {"p": "events/_data/d=1/a.parquet", "b": 1, "t": 1},
    {"p": "events/_data/d=1/b.parquet", "b": 1, "t": 1, "tmb": 5},
]


def changed(number, **fields):
    lines = [dict(line) for line in GOOD]
    lines[number].update(fields)
    lines[number] = {name: value for name, value in lines[number].items() if value is not ...}
    return "\n".join(map(json.dumps, lines)).encode()


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"", 0),
        (b"[]", 0),
        (changed(0) + b"\n", 5),
        (changed(0).replace(b"\n", b"\n\n", 1), 1),
        (changed(0)[:-1], 4),
        (changed(0, v=...), 0),
        (changed(0, v=0), 0),
        (changed(0, t=...), 0),
        (changed(0, t="1686176939445"), 0),
        (changed(0, t=1.5), 0),
        (changed(0, sch=0), 0),
        (changed(0, f=...), 0),
        (changed(0, f=9), 0),
        (changed(0, f=4, tmb=3), 0),
        (changed(0, tmb=0), 0),
        (changed(0, tmb=None), 0),
        (changed(0, tmb=...), 0),
        (changed(0, Tmb=2), 0),
        (changed(1, n=5), 1),
        (changed(1, n=""), 1),
        (changed(2, p=...), 2),
        (changed(2, t=None), 2),
        (changed(2, T=5), 2),
        (changed(3, p=7), 3),
        (changed(3, b="1"), 3),
        (changed(3, t=True), 3),
        (changed(4, tmb=0), 4),
        (changed(4, tmb=None), 4),
        (changed(4, tmb="5"), 4),
        (changed(4, TMB=5), 4),
    ],
)
def test_s3_a_malformed_log_file_is_named_with_its_line(table, body, line):
    table.append(DAY, 1)
    key = f"events/_log/{START_MS}_web-1.jsonl"
    table.store.put(key, body)
    for is_compact in (False, True):
        with pytest.raises(CorruptLog) as caught:
            table.reader(is_compact=is_compact).read()
        assert str(caught.value).startswith(f"{key}: line {line}")
    table.adopt()
    for act in (lambda: table.merge(full=True), lambda: table.delete("n = 1"), table.vacuum):
        with pytest.raises(CorruptLog):
            act()


def test_a_later_version_of_the_wire_is_refused_by_name(table):
    key = f"events/_log/{START_MS}_web-1.jsonl"
    table.store.put(key, changed(0, v=2))
    with pytest.raises(UnsupportedFormat, match=r"web-1\.jsonl: line 0: log format version 2"):
        table.reader().read()


@pytest.mark.parametrize(
    "name", ["lock", "1686176939445_.jsonl", "1686176939445_a b.jsonl", "5_web.jsonl", "x/y.jsonl"]
)
def test_s3_what_is_no_log_file_halts_the_table(table, name):
    table.append(DAY, 1)
    table.store.put(f"events/_log/{name}", changed(0))
    for read in (table.reader().read, LogHeadReader(table.store, table.paths, clock=table.clock).read):
        with pytest.raises(CorruptLog, match="not the name of a log file"):
            read()
