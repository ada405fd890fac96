"""Write a small warehouse with something of everything that this format has, and messages of each kind, as golden files.

``python tests/compat/make_golden.py format1`` writes ``tests/compat/golden/format1`` and ``messages.json``;
``docs/internals/releases.md`` says when. Same code, same bytes: the clock stands still.

The objects of the store lie below ``objects/``, each under its key; ``times.json`` has LastModified of each, by the store's
clock; ``expected.json`` says what a reader has to find. Rows are known by their ``id``.
"""

import contextlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from icedb_engine.local_engine import LocalEngine
from icedb_log.changes.partition_removal import remove_partitions
from icedb_log.changes.row_changes import delete_rows
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.clean.deletion import AuditLog
from icedb_log.clean.orphans import sweep_orphans
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import new_batch_id
from icedb_log.commit.table import Table
from icedb_log.erasure.erasure_run import advance_erasure
from icedb_log.errors import BelowHorizon, Unavailable
from icedb_log.feed.feeds import feed_view
from icedb_log.feed.follower import Follower
from icedb_log.feed.views import create_view, open_source
from icedb_log.holds.erasures import create_erasure
from icedb_log.holds.leases import acquire_lease
from icedb_log.holds.tags import create_tag
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.idempotency import bind_key, mark_staged
from icedb_log.ingest.pressure import HALTED, measure_pressure, publish_pressure, publish_trouble
from icedb_log.ingest.staging import stage_batch
from icedb_log.jobs import ContentCheck
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.log.requests import ChangeRequestId
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.table.time_columns import PLAUSIBLE_FROM_MS, PLAUSIBLE_TO_MS
from icedb_log.trash.drop import drop_table
from icedb_log.warehouse import Warehouse
from icedb_proto import ingest_pb2, snapshot_pb2
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault, ScriptedStore

GOLDEN = Path(__file__).with_name("golden")
START_MS = 1_790_000_000_000
MINUTE_MS = 60_000
LOG_GRACE_MS = 10 * MINUTE_MS
DATA_GRACE_MS = 60 * MINUTE_MS
CONFIG = {
    "sort": ("user", "id"),
    "declared": {"id": "BIGINT", "user": "VARCHAR"},
    "times": {"ts": {"unit": "epoch_s", "from_ms": PLAUSIBLE_FROM_MS, "to_ms": PLAUSIBLE_TO_MS}},
    "evolution": "widen",
    "on_bad_rows": "quarantine_rows",
    "merge_fan_in": 2,
    "log_grace_ms": LOG_GRACE_MS,
    "data_grace_ms": DATA_GRACE_MS,
    "orphan_age_ms": 3 * DATA_GRACE_MS,
    "seal_age_ms": 24 * DATA_GRACE_MS,
}


def feed_once(view, feeder):
    return feed_view(view, open_source(view), feeder)


class WrongMerger:
    """Says of what it writes that it is not what it read."""

    def __init__(self, merger):
        self.merger = merger

    def merge_groups(self, job):
        wrong = ContentCheck(differences=("column 'user' has 0 nulls in the inputs and 1 in the outputs",))
        return tuple(replace(group, contents=wrong) for group in self.merger.merge_groups(job))


class Story:
    """Tables ``<name>_events``, ``<name>_copy`` (a view of it) and ``<name>_gone`` (dropped), step by step."""

    def __init__(self, name):
        self.name = name
        self.clock = FakeClock(START_MS, seed=name)
        self.inner = MemoryObjectStore(self.clock.now_ms)
        self.store = ScriptedStore(self.inner)
        self.warehouse = Warehouse(self.store)
        self.paths = self.warehouse.table(f"{name}_events").paths
        self.copy = self.warehouse.table(f"{name}_copy").paths
        self.gone = self.warehouse.table(f"{name}_gone").paths
        self.config = self.make_config(self.paths.name)
        self.ids = set()
        self.before_view, self.copied = set(), None
        self.past = []
        self.committed = {}
        self.expected = {}

    def make_config(self, name, **fields):
        return TableConfig.create(name=name, partition=(PartitionField.parse("d=day(ts)"),), **{**CONFIG, **fields})

    def make_reader(self, paths):
        return LogReader(TableStore(self.store, paths), clock=self.clock, fetch=1)

    def run(self, function, paths=None, **options):
        result = function(TableStore(self.store, paths or self.paths), clock=self.clock, **options)
        self.clock.advance(1)
        return result

    def work(self, function, *args, owner, paths=None, **options):
        """Run an operation on a table."""
        table = Table.open(TableStore(self.store, paths or self.paths), clock=self.clock, owner=owner)
        result = function(table, *args, **options)
        self.clock.advance(1)
        return result

    def row(self, number, *, day=1, user="ann", **values):
        return {"id": number, "ts": f"2026-09-{day:02d}T08:00:{number % 60:02d}Z", "user": user, **values}

    def stage(self, *rows, body=None, staging_format="ndjson", paths=None, batch_id=None):
        if body is None:
            body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        batch_id = batch_id or new_batch_id(self.clock)
        stage_batch(
            TableStore(self.store, paths or self.paths), body=body, staging_format=staging_format, batch_id=batch_id
        )
        self.clock.advance(1)
        return batch_id

    def flush(self, paths=None, owner="flush@golden"):
        result = self.work(flush_table, LocalEngine(self.store, clock=self.clock).writer, paths=paths, owner=owner)
        self.clock.advance(1000)
        return result

    def append(self, *rows):
        batch_id = self.stage(*rows)
        self.flush()
        self.ids |= {row["id"] for row in rows}
        self.committed[batch_id] = rows
        self.remember()
        return batch_id

    def remember(self):
        """Remember what is live now, for time travel."""
        self.past.append({"as_of_ms": self.clock.now_ms(), "ids": sorted(self.ids)})
        self.clock.advance(1)

    def merge(self, paths=None, **options):
        merger = LocalEngine(self.store, clock=self.clock).merger
        return self.work(merge_table, merger, paths=paths, owner="merge@golden", options=MergeOptions(**options))

    # The steps, in their order.

    def append_days(self):
        create_table(TableStore(self.store, self.paths), self.config)
        self.clock.advance(10)
        self.append(self.row(1, amount=10), self.row(2, user="bob", amount=20))
        self.append(self.row(3, amount=30), self.row(4, day=2, user="eve"))
        self.append(self.row(5, day=2, amount=50), self.row(6, day=3))

    def begin_view(self):
        view = {"view_of": self.paths.name, "view_query": "select * from _rows", "view_backfill": "on"}
        config = self.make_config(self.copy.name, **view)
        create_view(TableStore(self.store, self.copy), config, clock=self.clock)
        self.before_view, self.copied = set(self.ids), set()
        self.clock.advance(1)

    def refuse_batches(self):
        self.expected["refused"] = self.stage(body=b'{"id": 7,\n')
        self.flush()

    def set_bad_rows_aside(self):
        batch_id = self.stage(self.row(7), {**self.row(8), "ts": "yesterday"})
        self.flush()
        self.ids.add(7)
        self.expected["bad_rows_of"] = batch_id
        self.remember()

    def widen(self):
        self.append(self.row(9, amount=1.5))

    def promote(self):
        """Below ``about`` one path is promoted now, and filled by the merge; others are when they are frequent."""
        self.append(self.row(90, about={"kind": "new", "size": 1}))
        change = {"declared": {"kind": "VARCHAR"}, "promoted": {"kind": ("about", "kind")}}
        self.run(alter_table_config, change={**change, "promoted_below": {("about",): True}})

    def merge_and_vacuum(self):
        self.merge(full=True)
        self.remember()
        self.clock.advance(2 * LOG_GRACE_MS)
        audit = AuditLog(TableStore(self.store, self.paths), clock=self.clock, owner="janitor@golden")
        vacuum_table(
            Table.open(TableStore(self.store, self.paths), clock=self.clock, reader=self.make_reader(self.paths)),
            audit=audit,
        )
        self.clock.advance(1)

    def append_more(self):
        for number in (10, 11, 12):
            self.append(self.row(number, day=1 + number % 2, user="bob"))

    def leave_a_seal(self):
        batch_id = self.stage(self.row(13))
        self.crash_before_commit()
        self.clock.advance(MINUTE_MS)
        self.flush()
        self.ids.add(13)
        self.committed[batch_id] = (self.row(13),)
        self.remember()

    def crash_before_commit(self):
        self.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
        with contextlib.suppress(Crash):
            self.flush()
        assert not self.store.script

    def delete_and_remove(self):
        changer = LocalEngine(self.store, clock=self.clock).merger
        request = ChangeRequestId.of(new_batch_id(self.clock), "delete", "id = 2")
        self.work(delete_rows, changer, "id = 2", owner="delete@golden", request=request)
        self.ids.discard(2)
        self.remember()
        choose = lambda _, infos: {"d=2026-09-03"} & {i.path for i in infos}  # noqa: E731
        self.work(remove_partitions, choose, owner="drop@golden")
        self.ids.discard(6)
        self.remember()

    def feed(self):
        self.work(feed_once, LocalEngine(self.store, clock=self.clock).feeder, paths=self.copy, owner="feed@golden")
        self.copied = self.ids | self.before_view

    def grow_old(self):
        """Let everything expire that is dead by now; nothing cleans up."""
        self.clock.advance(2 * DATA_GRACE_MS)

    def merge_again(self):
        self.append(self.row(14, user="eve"))
        self.append(self.row(15, day=2))
        self.merge(full=True)
        self.remember()
        self.append(self.row(16))

    def refuse_late(self):
        """Refuse a batch whose id the log still has at the end."""
        self.expected["refused_late"] = self.stage(body=b'{"id": 8,\n')
        self.flush()

    def use_an_id_again(self):
        """Stage other content under an id that is committed, past every door; it becomes an entry of its own."""
        batch_id = next(reversed(self.committed))
        self.stage(self.row(19), batch_id=batch_id)
        assert self.flush().conflict_count == 1
        self.expected["conflict_of"] = batch_id

    def hold(self):
        self.work(acquire_lease, owner="", ttl_ms=DATA_GRACE_MS, holder="reader@golden")

    def tag(self):
        self.work(create_tag, "q3", owner="", note="before the migration")
        self.expected["tag"] = {"name": "q3", "ids": sorted(self.ids)}

    def follow(self):
        table = Table.open(TableStore(self.store, self.paths), clock=self.clock, owner="stream@golden")
        follower = Follower(table, lease_ms=DATA_GRACE_MS)
        self.expected["position"] = follower.begin().to_json()
        self.append(self.row(17, day=2))
        self.expected["follows"] = [17]

    def press(self):
        pressure = measure_pressure(log_files=500, backlog_files=1)
        publish_pressure(TableStore(self.store, self.paths), pressure, clock=self.clock)

    def find_orphans(self):
        self.store.put(self.paths.data_key(partition="d=2026-09-01", file_id="0" * 32), b"# no Parquet\n")
        self.work(sweep_orphans, owner="")  # it is young, and stays
        self.clock.advance(4 * DATA_GRACE_MS)

    def stage_batches(self):
        """Batches that nobody has flushed: in two formats, and one by a producer's key."""
        rows = [self.row(20, user="bob")]
        self.expected["staged"] = {self.stage(*rows): [20]}
        csv = b"id,ts,user\n21,2026-09-02T08:00:21Z,ann\n"
        self.expected["staged"][self.stage(body=csv, staging_format="csv")] = [21]
        body = f"{json.dumps(self.row(22))}\n".encode()
        binding = bind_key(
            TableStore(self.store, self.paths),
            key="order 22",
            batch_id=new_batch_id(self.clock),
            content_sha256="00" * 32,
        )
        stage_batch(TableStore(self.store, self.paths), body=body, staging_format="ndjson", batch_id=binding.batch_id)
        mark_staged(self.store, binding)
        self.expected["staged"][binding.batch_id] = [22]
        self.clock.advance(1)

    def ask_for_erasure(self):
        erasure = create_erasure(TableStore(self.store, self.paths), condition="user = 'eve'", clock=self.clock)
        self.expected["erasure"] = erasure.erasure_id
        self.clock.advance(1)

    def carry_on_erasure(self):
        changer = LocalEngine(self.store, clock=self.clock).merger
        self.work(advance_erasure, changer, self.expected["erasure"], owner="erase@golden")
        self.ids -= {4, 14}
        self.remember()

    def drop(self):
        create_table(TableStore(self.store, self.gone), self.make_config(self.gone.name))
        self.stage(self.row(1), self.row(2), paths=self.gone)
        self.flush(self.gone)
        publish_trouble(TableStore(self.store, self.gone), HALTED, "column 'n' has two types", clock=self.clock)
        drop_table(TableStore(self.store, self.gone), clock=self.clock)
        self.clock.advance(1)

    def meet_worker(self):
        """A worker of the stack commits once; those who come after it remember when."""
        batch_id = self.stage(self.row(18))
        self.flush(owner="ingest@golden")
        self.ids.add(18)
        self.committed[batch_id] = (self.row(18),)
        self.remember()

    def differ(self):
        """A merge is refused by its contents; the fence remembers it, and its outputs stay."""
        with contextlib.suppress(Unavailable):
            merger = WrongMerger(LocalEngine(self.store, clock=self.clock).merger)
            self.work(merge_table, merger, owner="merge@golden", options=MergeOptions(full=True))
        assert b'"differed"' in self.inner.get(self.paths.fence_key("merge")).body

    def crash(self):
        """Both fences name a commit: the one of ingest never landed, that of the merger did."""
        self.expected.setdefault("staged", {})[self.stage(self.row(30, user="zoe"))] = [30]
        self.crash_before_commit()
        self.store.script = [Fault("put_if_absent", Effect.CRASH_AFTER, "/_log/")]
        with contextlib.suppress(Crash):
            self.merge(full=True)
        assert not self.store.script
        self.clock.advance(MINUTE_MS)

    # The end.

    def tell(self):
        """Return what a reader has to find."""
        view = self.make_reader(self.paths).read()
        readable = [each for each in self.past if self.is_readable(view, each)]
        known = {batch_id for file in view.files for batch_id in file.log.batch_ids}
        return {
            "now_ms": self.clock.now_ms(),
            "tables": {"events": self.paths.name, "copy": self.copy.name},
            "ids": sorted(self.ids),
            "copied": sorted(self.copied),
            "past": readable,
            "retries": {batch_id: rows for batch_id, rows in self.committed.items() if batch_id in known},
            **self.expected,
        }

    def is_readable(self, view, past):
        try:
            fold(view, as_of_ms=past["as_of_ms"])
        except BelowHorizon:
            return False
        return True

    def objects(self):
        """Return every object with its content and LastModified."""
        return {info.key: self.inner.get(info.key) for info in list_all(self.inner, "").objects}


STEPS = (
    "append_days",
    "begin_view",
    "refuse_batches",
    "set_bad_rows_aside",
    "widen",
    "promote",
    "feed",
    "merge_and_vacuum",
    "append_more",
    "meet_worker",
    "leave_a_seal",
    "delete_and_remove",
    "find_orphans",
    "grow_old",
    "merge_again",
    "refuse_late",
    "use_an_id_again",
    "hold",
    "tag",
    "follow",
    "press",
    "ask_for_erasure",
    "carry_on_erasure",
    "drop",
    "stage_batches",
    "differ",
    "crash",
)


def make_story(name):
    """Return the story, told to its end."""
    story = Story(name)
    for step in STEPS:
        getattr(story, step)()
    return story


def write_golden(story, folder):
    """Write a golden folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    objects = story.objects()
    for key, stored in objects.items():
        path = folder / "objects" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stored.body)
    times = {key: stored.info.modified_ms for key, stored in objects.items()}
    for name, value in (("times.json", times), ("expected.json", story.tell())):
        (folder / name).write_text(f"{json.dumps(value, indent=1)}\n")


def fill(message, *, depth=0):
    """Set each field of a message, and of those in it; of fields that exclude each other the last one stays."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue  # a map has no order of its own: its bytes are not the same each time
        if field.message_type is not None:
            if depth == MAX_DEPTH:
                continue
            child = getattr(message, field.name)
            child = child.add() if field.is_repeated else child
            child.SetInParent()
            fill(child, depth=depth + 1)
        else:
            is_bytes = field.type == FieldDescriptor.TYPE_BYTES
            value = field.name.encode() if is_bytes else SAMPLES[field.cpp_type](field.name)
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)


MAX_DEPTH = 4
SAMPLES = {
    **dict.fromkeys((FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64), lambda _: -7),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64), lambda _: 7),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT), lambda _: 0.5),
    FieldDescriptor.CPPTYPE_BOOL: lambda _: True,
    FieldDescriptor.CPPTYPE_ENUM: lambda _: 1,
    FieldDescriptor.CPPTYPE_STRING: lambda name: name,
}


def make_messages():
    """Return a message of each kind that a service takes or gives, by its name."""
    found = {}
    for file in (ingest_pb2.DESCRIPTOR, snapshot_pb2.DESCRIPTOR):
        for service in file.services_by_name.values():
            for kind in (kind for rpc in service.methods for kind in (rpc.input_type, rpc.output_type)):
                message = message_factory.GetMessageClass(kind)()
                fill(message)
                fields = json_format.MessageToDict(message, preserving_proto_field_name=True)
                found[kind.full_name] = {"hex": message.SerializeToString(deterministic=True).hex(), "fields": fields}
    return dict(sorted(found.items()))


if __name__ == "__main__":
    write_golden(make_story(sys.argv[1]), GOLDEN / sys.argv[1])
    (GOLDEN / "messages.json").write_text(f"{json.dumps(make_messages(), indent=1)}\n")
