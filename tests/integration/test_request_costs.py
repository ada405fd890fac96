"""What a flush asks of S3, and what services say that they ask for, against what the server itself has counted."""

from collections import Counter
from contextlib import contextmanager

import pytest
from icedb.lake import connect
from icedb_ingest.frontend.staging_gate import MISSING_AGE_MS, Offer, StagingGate
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import IngestTasks
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.content import hash_content
from icedb_log.ingest.groups import OfferedBatch, forget_groups
from icedb_log.ingest.staging import Acceptance, stage_batch, stage_group
from icedb_log.serving.status import read_status
from icedb_log.store.request_costs import listen_to_costs, stop_listening_to_costs
from icedb_service.metrics import DependencyMetrics
from icedb_sim.rigs.task_context import MemoryContext, RowFileEngine
from prometheus_client import CollectorRegistry

from bench.counting_s3 import BUCKET, running_counting_s3, take_all
from bench.servers import KEY

pytestmark = pytest.mark.s3

CLOCK = SystemClock()
BODY = b'{"ts":"2026-01-01T00:00:00Z","n":1}\n'
PRICES = {
    "put": ("put", "post", "list"),
    "get": ("get", "head"),
    "delete": ("delete", "delete_objects"),
}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    with (
        running_counting_s3(tmp_path_factory.mktemp("counting") / "s3") as endpoint,
        pytest.MonkeyPatch.context() as env,
    ):
        env.setenv("ICEDB_S3_ENDPOINT", endpoint)
        env.setenv("AWS_ACCESS_KEY_ID", KEY)
        env.setenv("AWS_SECRET_ACCESS_KEY", KEY)
        yield endpoint


class Stack:
    """A table on S3, and who flushes it: this process, or a worker's task."""

    def __init__(self, name, *, warehouse="wh"):
        self.lake = connect(f"s3://{BUCKET}/{warehouse}")
        self.table = self.lake.create_table(name, partition=(), sort=())
        self.place = self.table.place
        self.name = name
        context = MemoryContext(IngestMetrics())
        engine = self.lake.engine
        context.clock, context.warehouse = CLOCK, self.lake.warehouse
        context.engine = RowFileEngine(engine.writer, engine.merger, engine.changer, engine.feeder)
        settings = IngestSettings(store="memory://", flush_interval_ms=0)
        self.tasks = IngestTasks(context, settings=settings, metrics=context.metrics)

    def offer(self):
        return OfferedBatch(new_batch_id(CLOCK), "ndjson", BODY, hash_content(BODY, "ndjson"))

    def stage(self, what):
        if what == "batch":
            stage_batch(self.place, body=BODY, staging_format="ndjson", batch_id=new_batch_id(CLOCK))
        if what == "group":
            stage_group(self.place, [self.offer() for _ in range(100)])

    def flush(self, door):
        """Commit what is staged; return how many batches that were."""
        if door == "worker":
            return self.tasks.flush(self.name).details["batches"]
        return self.table.flush().batch_count


FLUSH = {"list": 3, "get": 3, "put": 5, "delete_objects": 1}
"""Of one small batch. Staging is looked at before the fence is taken, and under it; the log is listed. The
configuration, the fence, the batch. The fence; the data file; the intent; the log file; the fence. Staging is cleared."""
REQUESTS = {
    ("worker", "nothing"): {"list": 1},
    ("worker", "batch"): FLUSH,
    ("worker", "group"): {**FLUSH, "get": 4},
    ("lake", "nothing"): {"list": 1, "get": 1},
    ("lake", "batch"): FLUSH,
    ("lake", "group"): {**FLUSH, "get": 4},
}


@pytest.mark.parametrize("door", ["worker", "lake"])
def test_a_warm_flush_asks_no_more_than_this(endpoint, door):
    stack = Stack(f"guard_{door}")
    for _ in range(2):
        stack.stage("batch")
        assert stack.flush(door) == 1
    found = {}
    for what, batches in (("nothing", 0), ("batch", 1), ("group", 100)):
        stack.stage(what)
        forget_groups()
        take_all(endpoint)
        assert stack.flush(door) == batches
        found[door, what] = dict(take_all(endpoint).operations)
    assert found == {key: counts for key, counts in REQUESTS.items() if key[0] == door}


def test_a_worker_asks_no_more_than_this_of_a_stream_of_batches(endpoint):
    """It neither looks for what is staged, nor for how many log files there are; a sweep asks for nothing."""
    stack = Stack("guard_stream", warehouse="stream")
    for turn in range(4):
        for _ in range(2):
            stack.stage("group")
        take_all(endpoint)
        assert stack.flush("worker") == 200
        found = dict(take_all(endpoint).operations)
        stack.tasks.sweep()
        swept = dict(take_all(endpoint).operations)
        if turn > 1:  # the first ones read the log, and list tables
            assert found == {"list": 2, "get": 6, "put": 5, "delete_objects": 1}
            assert swept == {}


def test_an_append_asks_no_more_than_this(endpoint, monkeypatch):
    began_ms = CLOCK.monotonic_ms()
    # Nothing that is kept for a while grows old: a slow machine would ask for it again.
    monkeypatch.setattr(SystemClock, "monotonic_ms", lambda _: began_ms)
    stack = Stack("appends")
    for _ in range(2):
        stack.table.append([{"n": 1}])
    stack.table._alone_until_ms = began_ms + 60_000  # whether a worker is alive, it looks once a second
    take_all(endpoint)
    stack.table.append([{"n": 1}])
    assert take_all(endpoint).operations == {"list": 2, "get": 3, "put": 6, "delete_objects": 1}


class Bill:
    """What services count of their requests, each with its cause, and what the server counted meanwhile."""

    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.served = {}
        self.registry = CollectorRegistry()
        self.metrics = DependencyMetrics(self.registry)

    @contextmanager
    def of(self, cause):
        self.metrics._cause = cause
        take_all(self.endpoint)
        listen_to_costs(self.metrics.count_cost)
        try:
            yield
        finally:
            stop_listening_to_costs(self.metrics.count_cost)
        self.served[cause] = take_all(self.endpoint)

    def told(self, name, by):
        told = Counter()
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name == name:
                    told[sample.labels["cause"], sample.labels[by]] += sample.value
        return told


def test_the_bill_is_what_the_server_counted(endpoint, tmp_path):
    stack = Stack("billed")
    bill = Bill(endpoint)
    with bill.of("staging"):
        acceptance = Acceptance(stack.lake.warehouse, clock=CLOCK, max_age_ms=30_000, missing_age_ms=MISSING_AGE_MS)
        gate = StagingGate(acceptance, clock=CLOCK, on_staged=lambda _: None)
        for _ in range(150):
            gate.accept(Offer("billed", BODY, "ndjson"))
        stack.stage("group")
    with bill.of("flush"):
        assert stack.flush("worker") == 250
        stack.stage("batch")
        assert stack.flush("worker") == 1
        large = tmp_path / "large"
        large.write_bytes(b"x" * (17 << 20))
        key = stack.place.paths.data_key(partition="", file_id=CLOCK.new_id())
        stack.place.store.upload(key, large)
    with bill.of("merge"):
        assert stack.table.merge(full=True).commit_count == 1
        stack.place.store.download(key, large)
    with bill.of("janitor"):
        stack.table.vacuum()
        stack.place.store.delete([key])
    with bill.of("readers"):
        assert read_status(stack.table.open()).live_rows == 251
        for _ in range(5):
            stack.lake.client.snapshot("billed")

    requests, sizes = (
        bill.told("icedb_store_requests_total", "price"),
        bill.told("icedb_store_request_bytes_total", "direction"),
    )
    for cause, served in bill.served.items():
        for price, operations in PRICES.items():
            counted = sum(served.operations.get(each, 0) for each in operations)
            assert requests[cause, price] == pytest.approx(counted, rel=0.02), (cause, price)
        assert sizes[cause, "sent"] == pytest.approx(served.received_bytes, rel=0.02), cause
        assert sizes[cause, "received"] == pytest.approx(served.sent_bytes, rel=0.02), cause
    of_table = bill.told("icedb_store_requests_total", "table")
    for cause in bill.served:
        assert of_table[cause, "billed"] >= 0.9 * (of_table[cause, "billed"] + of_table[cause, ""]), cause


def test_who_asks_for_names_that_do_not_exist_makes_no_labels(endpoint):
    stack = Stack("known")
    bill = Bill(endpoint)
    with bill.of("staging"):
        for number in range(5):
            place = stack.lake.warehouse.table(f"guess{number}")
            assert not place.store.list_page(place.paths.staging_prefix).objects
            with pytest.raises(Exception, match="no such"):
                place.store.get(place.paths.config_key)
    assert {table for _, table in bill.told("icedb_store_requests_total", "table")} == {""}
