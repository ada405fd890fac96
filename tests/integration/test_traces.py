"""Traces: what a batch's trace has, by an exporter in memory and by processes that export to a collector."""

import json
import threading
import urllib.request
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
from icedb_engine.local_engine import LocalEngine
from icedb_ingest.frontend.staging_gate import Offer, StagingGate
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import Acceptance
from icedb_log.results import Work
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_proto import snapshot_pb2, snapshot_pb2_grpc
from icedb_service.metrics import WorkerMetrics
from icedb_service.runs import TaskRunner
from icedb_service.spans import MAX_LINKS, MAX_TRACED_BATCHES, Tracing, derive, format_traceparent, parse_traceparent
from icedb_service.tracing import current_run, traced_by
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from processes import free_port, running, service_env
from waiting import LIMIT_S, wait_until

FLUSH = "icedb.ingest.flush"
CLOCK = SystemClock()
SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SENDER_TRACE = 0x0AF7651916CD43DD8448EB211C80319C


class Bench:
    """A gate, a worker's runner and the engine, in this process."""

    def __init__(self, folder, exporter, monkeypatch):
        self.exporter = exporter
        (folder / "warehouse").mkdir()
        self.warehouse = StoreSettings(f"file://{folder / 'warehouse'}").open()
        self.place = self.warehouse.table("events")
        create_table(self.place, TableConfig.create(name="events", sort=("n",)))
        acceptance = Acceptance(self.warehouse, clock=CLOCK, max_age_ms=30_000)
        self.gate = StagingGate(acceptance, clock=CLOCK, on_staged=lambda _table: None)
        self.runner = TaskRunner(metrics=WorkerMetrics("ingest", package="icedb-service", tasks=(FLUSH,)), clock=CLOCK)
        self.engine = LocalEngine(self.warehouse.store)
        self.tracing = Tracing("test", exporter=exporter)

    def accept(self, number, **fields):
        return self.gate.accept(Offer("events", b'{"n": %d}' % number, "ndjson", endpoint="http", **fields)).batch_id

    def flush(self, **given):
        def work():
            run = current_run()
            begun = run and run.begin_flush()
            result = flush_table(Table.open(self.place, clock=CLOCK, owner="ingest@h:1"), self.engine.writer)
            if run is not None:
                run.note_flush(begun, result.committed_ids, {"icedb.commit": result.committed_key})
            return Work(is_idle=not result.committed_key, details={"batches": result.batch_count})

        return self.runner.run(work, task=FLUSH, task_id="7", table="events", **given)

    def spans(self, trace_id=None):
        found = self.exporter.get_finished_spans()
        return [span for span in found if trace_id in (None, span.context.trace_id)]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    bench = Bench(tmp_path, InMemorySpanExporter(), monkeypatch)
    with traced_by(bench.tracing):
        yield bench


def tree(spans):
    """Return each span's path of names from the first one that is there, in the order in which they began."""
    known = {span.context.span_id: span for span in spans}

    def path(span):
        above = span.parent and known.get(span.parent.span_id)
        return [*(path(above) if above else []), span.name.removeprefix("icedb.")]

    return [" > ".join(path(span)) for span in sorted(spans, key=lambda each: (each.start_time, len(path(each))))]


IN_A_FLUSH = {
    "wait for the fence",
    "read the log",
    "list staged",
    "write files",
    "write files > decode",
    "write files > sort",
    "write files > write and upload",
    "commit",
    "commit > write the intent",
    "commit > put the log file",
    "clear staging",
}


def test_the_trace_of_a_batch_follows_from_its_id_and_says_where_its_time_went(bench):
    batch_id = bench.accept(1)
    result = bench.flush()
    assert result["outcome"] == "done"
    spans = bench.spans(derive(batch_id).trace_id)
    assert f"{derive(batch_id).trace_id:032x}"[:16] == batch_id.replace("-", "")[:16]
    found = set(tree(spans))
    assert {f"accept > {name}" for name in ("check the table", "check the body", "put the batch")} <= found
    assert "accept > wait" in found
    assert {f"accept > flush > {name}" for name in IN_A_FLUSH} <= found
    (root,) = [span for span in spans if span.parent is None]
    assert root.context.span_id == derive(batch_id).span_id
    assert root.attributes["icedb.batch"] == batch_id
    assert root.attributes["icedb.endpoint"] == "http"
    by_name = {span.name: span for span in spans}
    assert by_name["icedb.wait"].end_time == by_name["icedb.flush"].start_time
    assert all(span.end_time >= span.start_time for span in spans)
    assert by_name["icedb.flush"].attributes["icedb.commit"].endswith(".jsonl")


def test_a_flush_is_a_run_of_its_own_that_is_linked_with_its_batches(bench):
    batch_ids = [bench.accept(number) for number in range(3)]
    bench.flush(traceparent=SENDER)
    (run,) = [span for span in bench.spans() if span.name == FLUSH]
    assert run.parent is None
    linked = [link.context.trace_id for link in run.links]
    assert linked == [SENDER_TRACE, *(derive(each).trace_id for each in sorted(batch_ids))]  # one millisecond has many
    assert run.attributes["icedb.outcome"] == "done"
    assert run.attributes["icedb.batches"] == 3
    assert {
        each.removeprefix(f"{FLUSH.removeprefix('icedb.')} > ") for each in tree(bench.spans(run.context.trace_id))
    } >= IN_A_FLUSH
    for batch_id in batch_ids:
        (flush,) = [span for span in bench.spans(derive(batch_id).trace_id) if span.name == "icedb.flush"]
        assert [link.context.trace_id for link in flush.links] == [run.context.trace_id]


def test_the_acceptance_is_a_part_of_the_senders_trace_and_linked_with_the_batchs(bench):
    batch_id = bench.accept(1, traceparent=SENDER)
    bench.flush()
    spans = bench.spans(SENDER_TRACE)
    (accept,) = [span for span in spans if span.name == "icedb.accept"]
    assert accept.parent.span_id == 0xB7AD6B7169203331
    assert [link.context for link in accept.links] == [derive(batch_id)]
    assert "accept > put the batch" in tree(spans)
    assert {span.name for span in bench.spans(derive(batch_id).trace_id)} >= {"icedb.wait", "icedb.flush"}


def test_what_its_sender_does_not_sample_has_no_acceptance(bench):
    batch_id = bench.accept(1, traceparent=SENDER[:-2] + "00")
    bench.flush()
    assert not bench.spans(SENDER_TRACE)
    assert bench.spans(derive(batch_id).trace_id), "whether the batch's own trace is made, its id alone says"


def test_all_processes_take_the_same_sample_of_batches(tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    front, worker = Tracing("a", exporter=InMemorySpanExporter()), Tracing("b", exporter=InMemorySpanExporter())
    batch_ids = [new_batch_id(CLOCK) for _ in range(200)]
    chosen = [front.samples(each) for each in batch_ids]
    assert chosen == [worker.samples(each) for each in batch_ids]
    assert 40 < sum(chosen) < 160
    bench = Bench(tmp_path, exporter := InMemorySpanExporter(), monkeypatch)
    with traced_by(bench.tracing):
        sent = [bench.accept(number) for number in range(20)]
        bench.flush()
    for batch_id in sent:
        names = {
            span.name for span in exporter.get_finished_spans() if span.context.trace_id == derive(batch_id).trace_id
        }
        assert ("icedb.accept" in names) == ("icedb.flush" in names) == bench.tracing.samples(batch_id)


def test_a_flush_of_many_batches_makes_a_bounded_number_of_spans(bench):
    for number in range(MAX_LINKS + 20):
        bench.accept(number)
    bench.exporter.clear()
    bench.flush()
    assert sum(span.name == "icedb.flush" for span in bench.spans()) == MAX_TRACED_BATCHES
    (run,) = [span for span in bench.spans() if span.name == FLUSH]
    assert len(run.links) == MAX_LINKS
    assert len(bench.spans()) < 30 * MAX_TRACED_BATCHES


def test_a_run_that_finds_nothing_makes_no_spans_and_one_that_fails_says_so(bench):
    assert bench.flush()["outcome"] == "idle"
    assert bench.spans() == []
    bench.engine = None
    bench.accept(1)
    assert bench.flush()["outcome"] == "failed"
    (run,) = [span for span in bench.spans() if span.name == FLUSH]
    assert (run.status.is_ok, run.status.description) == (False, "failed")


def test_without_traces_nothing_is_recorded(tmp_path, monkeypatch):
    bench = Bench(tmp_path, InMemorySpanExporter(), monkeypatch)
    bench.accept(1)
    assert bench.flush()["outcome"] == "done"
    assert bench.spans() == []


@pytest.mark.parametrize(
    "text",
    [None, 7, "", "00", SENDER.upper(), SENDER + "-more", SENDER.replace("00-", "ff-", 1), "00-" + "0" * 32 + "-b7ad6b7169203331-01",
     "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "00-" + "g" * 32 + "-b7ad6b7169203331-01"],
)  # fmt: skip
def test_a_header_that_is_none_is_ignored(text):
    assert parse_traceparent(text) is None


def test_a_header_is_read_and_written_as_the_standard_has_it():
    assert format_traceparent(parse_traceparent(SENDER)) == SENDER
    assert parse_traceparent(SENDER[:-2] + "00").trace_flags.sampled is False
    assert parse_traceparent("01" + SENDER[2:] + "-later").trace_id == SENDER_TRACE


class Collector:
    """Takes what processes export by OTLP over HTTP."""

    def __init__(self):
        self.spans = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    named = {each.key: each.value.string_value for each in resource.resource.attributes}
                    collector.spans += [
                        (named["service.name"], span) for scope in resource.scope_spans for span in scope.spans
                    ]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of(self, trace_id):
        return {(service, span.name) for service, span in tuple(self.spans) if span.trace_id.hex() == trace_id}


def send(port, body, **headers):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/tables/events/batches",
        body,
        {"Content-Type": "application/x-ndjson", **headers},
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return json.loads(answer.read())["batch_id"]


@pytest.mark.redis
def test_one_trace_goes_from_the_enqueue_to_the_snapshot_through_all_processes(tmp_path, redis):
    store = f"file://{tmp_path / 'warehouse'}"
    (tmp_path / "warehouse").mkdir()
    create_table(StoreSettings(store).open().table("events"), TableConfig.create(name="events"))
    ports = {name: free_port() for name in ("http", "grpc", "snapshot", "m1", "m2", "m3")}
    collector = Collector()
    env = service_env(
        ICEDB_STORE=store,
        ICEDB_REDIS_URL=redis.url,
        ICEDB_FRONTEND_HTTP_PORT=ports["http"],
        ICEDB_FRONTEND_GRPC_PORT=ports["grpc"],
        ICEDB_SNAPSHOT_ADDRESS=f"127.0.0.1:{ports['snapshot']}",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY=200,
    )
    worker = str(Path(__file__).with_name("traced_worker_process.py"))
    with ExitStack() as stack:
        stack.callback(collector.close)
        commands = ((["-m", "icedb_ingest.frontend"], "m1"), ([worker], "m2"), (["-m", "icedb_snapshot"], "m3"))
        for command, port in commands:
            stack.enter_context(running(command, {**env, "ICEDB_METRICS_PORT": str(ports[port])}, tmp_path, port))

        def is_up():
            try:
                return send(ports["http"], b'{"a": 0}')
            except OSError:
                return None

        own = wait_until(is_up, what="the front end")
        theirs = send(ports["http"], b'{"a": 1}', traceparent=SENDER)
        with grpc.insecure_channel(f"127.0.0.1:{ports['snapshot']}") as channel:
            stub = snapshot_pb2_grpc.SnapshotServiceStub(channel)
            for batch_id, metadata in ((own, ()), (theirs, (("traceparent", SENDER),))):
                found = stub.GetSnapshot(
                    snapshot_pb2.GetSnapshotRequest(table="events", min_commit=batch_id, max_staleness_ms=0),
                    metadata=metadata,
                    timeout=LIMIT_S,
                    wait_for_ready=True,
                )
                assert found.row_count
        asked = {
            ("icedb-frontend", "icedb.accept"),
            ("icedb-frontend", "icedb.put the batch"),
            ("icedb-snapshot", "icedb.v1.SnapshotService/GetSnapshot"),
        }
        worked = {
            ("icedb-ingest", "icedb.wait"),
            ("icedb-ingest", "icedb.flush"),
            ("icedb-ingest", "icedb.decode"),
            ("icedb-ingest", "icedb.put the log file"),
        }
        traces = {derive(own).trace_id: asked | worked, SENDER_TRACE: asked, derive(theirs).trace_id: worked}
        for number, wanted in traces.items():
            wait_until(
                lambda trace_id=f"{number:032x}", wanted=wanted: wanted <= collector.of(trace_id),
                what=f"all spans: {number:x}",
            )
        log = (tmp_path / "m1").read_text() + (tmp_path / "m2").read_text()
    assert f'"trace_id": "{SENDER_TRACE:032x}"' in log
    runs = {span.trace_id.hex() for service, span in collector.spans if span.name == FLUSH}
    assert any(f'"trace_id": "{each}"' in log for each in runs)
