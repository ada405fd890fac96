"""Tables as each format has written them: read, worked on to their end, and cleaned by this release.

How they were made: ``golden/README.md``. What is promised: ``docs/upgrades.md``.
"""

import importlib.util
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from icedb_client import Client
from icedb_engine.local_engine import LocalEngine
from icedb_log.changes.row_changes import delete_rows
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.clean.orphans import OrphanPolicy, sweep_orphans
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import new_batch_id
from icedb_log.commit.fence import read_fence
from icedb_log.commit.table import Table
from icedb_log.erasure.erasure_run import advance_erasure
from icedb_log.feed.feeds import feed_view
from icedb_log.feed.follower import Follower
from icedb_log.feed.position import read_position
from icedb_log.feed.views import open_source
from icedb_log.holds.tags import delete_tag, read_tagged
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.quarantine_ops import drop_quarantined, read_quarantined, retry_quarantined
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.repair.fsck import fsck_table
from icedb_log.serving.status import read_status
from icedb_log.store.table_store import TableStore
from icedb_log.trash.drop import undrop_table
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.mirrored_store import MirroredStore
from icedb_sim.rigs.snapshot_rig import start_snapshot

GOLDEN = Path(__file__).with_name("golden")
FORMATS = sorted((path.name for path in GOLDEN.iterdir() if path.is_dir()), key=lambda name: int(name[6:]))
NEWEST = FORMATS[-1]
ENGINE = duckdb.connect(config={"threads": 1})
"""One for all: to open one takes longer than what it is asked."""
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def feed_once(view, feeder):
    return feed_view(view, open_source(view), feeder)


class Golden(TableStore):
    """A golden table in a directory of its own, at the time at which it was left."""

    def __init__(self, name, root):
        folder = GOLDEN / name
        self.expected = json.loads((folder / "expected.json").read_text())
        self.clock = FakeClock(self.expected["now_ms"], seed="now")
        self.store = MirroredStore(root, self.clock.now_ms)
        for key, modified_ms in json.loads((folder / "times.json").read_text()).items():
            self.store.restore(key, (folder / "objects" / key).read_bytes(), modified_ms=modified_ms)
        self.warehouse = Warehouse(self.store)
        self.paths = self.warehouse.table(f"{name}_events").paths
        self.copy = self.warehouse.table(f"{name}_copy").paths
        self.gone = self.warehouse.table(f"{name}_gone").paths
        self.ids = set(self.expected["ids"])
        self.copied = set(self.expected["copied"])
        self.engine = ENGINE

    def reader(self, paths=None, **options):
        return LogReader(TableStore(self.store, paths or self.paths), clock=self.clock, fetch=1, **options)

    def ids_of(self, snapshot):
        files = [self.store.uri(marker.path) for marker in snapshot.live]
        if not files:
            return set()
        rows = self.engine.execute("SELECT id FROM read_parquet(?, union_by_name = true)", [files]).fetchall()
        assert len({row[0] for row in rows}) == len(rows), "a row is there twice"
        return {row[0] for row in rows}

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

    def stage(self, *rows, batch_id=None):
        body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        batch_id = batch_id or new_batch_id(self.clock)
        stage_batch(self, body=body, staging_format="ndjson", batch_id=batch_id)
        self.clock.advance(1)
        return batch_id

    def flush(self):
        return self.work(flush_table, LocalEngine(self.store, clock=self.clock).writer, owner="flush@now")

    def merge(self, paths=None, **options):
        return self.work(
            merge_table,
            LocalEngine(self.store, clock=self.clock).merger,
            paths=paths,
            owner="merge@now",
            options=MergeOptions(**options),
        )

    def clean(self):
        """Vacuum and sweep every table, as the janitor does."""
        for paths in (self.paths, self.copy):
            self.work(vacuum_table, paths=paths, owner="")
            self.work(sweep_orphans, paths=paths, owner="", policy=OrphanPolicy(max_share=1.0))

    def carry_on(self):
        """Carry the erasure on; return whether it has ended."""
        changer = LocalEngine(self.store, clock=self.clock).merger
        progress = self.work(advance_erasure, changer, self.expected["erasure"], owner="erase@now")
        return progress.erasure.has_ended

    def feed(self):
        """Feed the view."""
        self.work(feed_once, LocalEngine(self.store, clock=self.clock).feeder, paths=self.copy, owner="feed@now")


@pytest.fixture(params=FORMATS)
def golden(request, tmp_path):
    return Golden(request.param, tmp_path)


@pytest.fixture
def require_rows(golden, strict_reader):
    """Return a function that reads the tables in every way that needs no server, and compares."""

    def check():
        for paths, ids in ((golden.paths, golden.ids), (golden.copy, golden.copied)):
            snapshot = fold(golden.reader(paths).read())
            assert golden.ids_of(snapshot) == ids
            assert snapshot.row_count == len(ids)
            compact = fold(golden.reader(paths, is_compact=True).read())
            assert compact.snapshot_id == snapshot.snapshot_id
            objects = [(key, stored.body) for key, stored in golden.store.dump(f"{paths.prefix}/_log").items()]
            strict = strict_reader.read_strict(paths.prefix, objects)
            assert strict.live == {marker.path for marker in snapshot.live}
            assert strict.schema == dict(snapshot.logged_schema)

    return check


def test_every_reader_finds_what_was_there(golden, require_rows):
    require_rows()
    view = golden.reader().read()
    for past in golden.expected["past"]:
        assert golden.ids_of(fold(view, as_of_ms=past["as_of_ms"])) == set(past["ids"])
    findings = [*golden.run(fsck_table).findings, *golden.run(fsck_table, golden.copy).findings]
    assert [each for each in findings if each.severity == "error" or each.code.startswith("unknown")] == []
    heads = golden.reader().heads.read()
    assert {f.log.commit_id for f in heads.files} == {f.log.commit_id for f in view.files}
    tag = golden.expected["tag"]
    assert golden.ids_of(read_tagged(golden, tag["name"])[1]) == set(tag["ids"])
    follower = Follower(Table.open(golden, clock=golden.clock), lease_ms=HOUR_MS)
    start = read_position(golden.expected["position"])
    files = [golden.store.uri(marker.path) for marker in follower.files_between(start, follower.look(start))]
    rows = golden.engine.execute("SELECT id FROM read_parquet(?)", [files]).fetchall()
    assert [row[0] for row in rows] == golden.expected["follows"]


@pytest.fixture(params=["directory", "snapshot service"])
def client(request, golden):
    if request.param == "directory":
        with Client(store=f"file://{golden.store.root}") as client:
            yield client
        return
    rig = start_snapshot(golden.warehouse)
    try:
        with Client(snapshot_address=rig.address) as client:
            yield client
    finally:
        rig.stop()


def test_clients_read_it(golden, client, request):
    for kind, name in golden.expected["tables"].items():
        ids = golden.ids if kind == "events" else golden.copied
        found = client.query(f"SELECT id FROM {name} ORDER BY id").fetchall()
        assert [row[0] for row in found] == sorted(ids)
    past = golden.expected["past"][-1]
    as_of = datetime.fromtimestamp(past["as_of_ms"] / 1000, UTC)
    snapshot = client.snapshot(golden.paths.name, as_of=as_of)
    assert sorted(snapshot.to_arrow(columns=["id"])["id"].to_pylist()) == past["ids"]
    one = client.snapshot(golden.paths.name, where="user = 'bob' AND id > 10")
    assert sorted(one.to_arrow()["id"].to_pylist()) == sorted({11, 12} & golden.ids)
    if "service" in request.node.name:  # the directory has the times of today
        tagged = client.snapshot(golden.paths.name, tag=golden.expected["tag"]["name"])
        assert sorted(tagged.to_arrow()["id"].to_pylist()) == golden.expected["tag"]["ids"]


def test_log_files_are_written_as_they_are(golden):
    for key, stored in golden.store.dump(f"{golden.paths.prefix}/_log").items():
        assert encode_log_file(decode_log_file(key, stored.body)) == stored.body


def test_a_whole_life(golden, require_rows):
    expected = golden.expected
    intents = [read_fence(golden.store, golden.paths.fence_key(role))[0].commit for role in ("ingest", "merge")]
    assert intents[0] not in golden.store.dump(intents[0])
    assert intents[1] in golden.store.dump(intents[1])

    # A retry of what the log has is a duplicate; what waited in staging is committed; the commit that never landed is sealed.
    retried = next(reversed(expected["retries"]))
    golden.stage(*expected["retries"][retried], batch_id=retried)
    golden.stage({"id": 50, "ts": "2026-09-02T08:00:50Z", "user": "new"}, batch_id=expected["refused_late"])
    new_id = golden.stage({"id": 40, "ts": "2026-09-02T08:00:40Z", "user": "new", "amount": 4})
    result = golden.flush()
    golden.ids |= {40, *(number for ids in expected["staged"].values() for number in ids)}
    assert decode_log_file(intents[0], golden.store.get(intents[0]).body).is_seal
    assert result.duplicate_count >= 1
    heads = golden.reader().heads.read().files
    assert {*expected["staged"], new_id} <= {batch_id for head in heads for batch_id in head.log.batch_ids}
    assert not list_staged(golden).batches
    require_rows()
    before = golden.copied
    golden.feed()
    golden.copied = golden.ids_of(fold(golden.reader(golden.copy).read()))
    assert golden.copied >= before | {40}
    golden.merge(full=True)
    require_rows()
    changer = LocalEngine(golden.store, clock=golden.clock).merger
    removed = golden.work(delete_rows, changer, "id = 16 OR id = 30", owner="delete@now")
    assert removed.rows_removed == 2
    golden.ids -= {16, 30}
    require_rows()

    # What is quarantined is as it was, and can be retried.
    refused, late = expected["refused"], expected["refused_late"]
    entries = {each.batch_id: each for each in list_quarantined(golden)}
    plain = {name for name in entries if ".conflict-" not in name}
    assert plain == {refused, late, expected["bad_rows_of"]}
    # I8: what was staged under a refused id is another content.
    assert {name.partition(".")[0] for name in entries.keys() - plain} == {late, expected["conflict_of"]}
    assert read_quarantined(golden, refused).body == b'{"id": 7,\n'
    retry_quarantined(golden, refused, clock=golden.clock)
    golden.flush()
    (again,) = {each.batch_id for each in list_quarantined(golden)} - entries.keys()
    for batch_id in (again, *(entries.keys() - {refused})):
        drop_quarantined(golden, batch_id)
    assert not golden.store.dump(golden.paths.quarantine_prefix)

    # The configuration can be altered, and is still read.
    config = golden.run(alter_table_config, change={"merge_fan_in": 3})
    assert config.merge_fan_in == 3

    # Grace periods pass, and leases, and tags.
    assert delete_tag(golden, expected["tag"]["name"])
    for _ in range(3):
        golden.clock.advance(HOUR_MS)
        golden.clean()
        golden.carry_on()
        golden.ids -= {4, 14}
        require_rows()
    for _ in range(3):
        golden.clock.advance(12 * HOUR_MS)
        golden.merge(full=True)
        golden.clean()
        is_over = golden.carry_on()
        require_rows()
    assert is_over
    for paths in (golden.paths, golden.copy):
        snapshot = fold(golden.reader(paths).read())
        assert golden.store.dump(paths.data_prefix).keys() == {marker.path for marker in snapshot.live}
        assert len(golden.store.dump(paths.log_prefix)) <= 2
        status = read_status(
            Table.open(TableStore(golden.store, paths), clock=golden.clock, reader=golden.reader(paths))
        )
        assert status is not None
        assert [each for each in golden.run(fsck_table, paths).findings if each.severity == "error"] == []
    undrop_table(TableStore(golden.store, golden.gone), clock=golden.clock)
    assert golden.ids_of(fold(golden.reader(golden.gone).read())) == {1, 2}


def test_fields_that_nobody_knows_are_carried_forward(golden, require_rows):
    """A later release's log file among those of this golden table."""
    view = golden.reader().read()
    file = max((f for f in view.files if f.log.markers and not f.log.is_seal), key=lambda f: f.key)
    body = golden.store.get(file.key).body.split(b"\n")
    lines = [json.loads(line) for line in body]
    lines[0]["zone"] = {"name": "later"}
    live = next(n for n, line in enumerate(lines) if n >= lines[0]["f"] and "tmb" not in line)
    lines[live]["codec"] = "later"
    golden.store.put(file.key, "\n".join(json.dumps(line) for line in lines).encode())
    require_rows()
    golden.stage({"id": 41, "ts": "2026-09-01T08:00:41Z", "user": "new"})
    golden.flush()
    golden.merge(full=True)
    newest_key, newest = max(golden.store.dump(golden.paths.log_prefix).items())
    assert "_m_" in newest_key
    assert json.loads(newest.body.split(b"\n")[0])["zone"] == {"name": "later"}
    assert b'"codec":"later"' in newest.body


@pytest.fixture(scope="module")
def make_golden():
    spec = importlib.util.spec_from_file_location("icedb_make_golden", Path(__file__).with_name("make_golden.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def shape_of(objects):
    """Return which fields stand in which kind of object, with the types of their values."""
    shapes = {}
    for key, body in objects.items():
        kind = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32,}|[0-9]{13}|d=[0-9-]+", "*", key.partition("/")[2])
        found = shapes.setdefault(kind, set())
        if key.endswith((".json", ".jsonl")):
            for number, line in enumerate([body] if key.endswith(".json") else body.strip().split(b"\n")):
                found.update(fields_of(json.loads(line), f"line {min(number, 2)}"))
    return shapes


def fields_of(value, path):
    if isinstance(value, dict) and not path.endswith((".s", ".declared", "line 1", ".source", ".policy", ".found")):
        for name, item in value.items():
            name = re.sub(r"format[0-9]+_.*|.*\.parquet", "*", name)
            yield from fields_of(item, f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from fields_of(item, f"{path}[]")
        yield f"{path}[]"
    else:
        yield path if value is None else f"{path}: {type(value).__name__}"


def test_the_newest_golden_table_is_what_this_release_writes(make_golden):
    story = make_golden.make_story(NEWEST)
    now = shape_of({key: stored.body for key, stored in story.objects().items()})
    folder = GOLDEN / NEWEST / "objects"
    stored = shape_of(
        {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    )
    remedy = (
        f"is written by this release and not in golden/{NEWEST}: a change of the format, see docs/internals/releases.md"
    )
    assert now.keys() == stored.keys(), remedy
    for kind, fields in stored.items():
        assert now[kind] - fields == set(), f"{kind}: {remedy}"
        assert fields - now[kind] == set(), f"{kind}: is not written any more; {remedy}"
    expected = json.loads((GOLDEN / NEWEST / "expected.json").read_text())
    told = json.loads(json.dumps(story.tell()))
    assert [told[name] for name in ("ids", "copied")] == [expected[name] for name in ("ids", "copied")]
    assert [past["ids"] for past in told["past"]] == [past["ids"] for past in expected["past"]]
