"""The snapshot service as a process of its own: how it starts, what it logs and exports, how it stops."""

import json
import os
import signal
import subprocess
import sys

import grpc
import pytest
from icedb_log.clock import SystemClock
from icedb_log.store_settings import open_warehouse
from icedb_proto import snapshot_pb2 as pb
from icedb_proto import snapshot_pb2_grpc
from icedb_service.main import run_main
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from icedb_snapshot.__main__ import serve
from icedb_snapshot.settings import SnapshotSettings
from processes import fetch, free_port, service_env
from prometheus_client.parser import text_string_to_metric_families
from waiting import LIMIT_S, wait_until


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/warehouse"


@pytest.fixture
def parquet(url):
    parquet = ParquetWarehouse(open_warehouse(url))
    parquet.create("events", "d=day(ts)", merge_fan_in=2)
    return parquet


class Service:
    """A started process; its address comes from its log."""

    def __init__(self, log, **environment):
        self.log = log
        self.metrics_port = free_port()
        env = service_env(
            ICEDB_SNAPSHOT_ADDRESS="127.0.0.1:0",
            ICEDB_METRICS_PORT=self.metrics_port,
            ICEDB_SNAPSHOT_LAG_INTERVAL_MS=200,
            **environment,
        )
        with log.open("wb") as stream:
            self.process = subprocess.Popen([sys.executable, "-m", "icedb_snapshot"], env=env, stderr=stream)

    def events(self):
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def await_event(self, name):
        def find():
            assert self.process.poll() is None, self.log.read_text()
            return next((event for event in self.events() if event["event"] == name), None)

        return wait_until(find, name)

    def channel(self):
        return grpc.insecure_channel(self.await_event("snapshot_served")["address"])

    def http(self, path):
        return fetch(self.metrics_port, path)

    def samples(self):
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(self.http("/metrics")[1])
            for sample in family.samples
        }

    def await_sample(self, key, wanted):
        wait_until(lambda: self.samples().get(key) == wanted, f"{key} is {wanted}")


@pytest.fixture
def start(tmp_path):
    started = []

    def start(**environment):
        service = Service(tmp_path / f"log{len(started)}", **environment)
        started.append(service)
        return service

    yield start
    for service in started:
        service.process.kill()
        service.process.wait()


def test_it_serves_exports_and_stops_in_order(start, url, parquet):
    for _ in range(3):
        parquet.commit("events", "select 1 as amount from range(5)", partition="d=2026-01-02")
    service = start(ICEDB_STORE=url)
    with service.channel() as channel:
        stub = snapshot_pb2_grpc.SnapshotServiceStub(channel)
        answer = stub.GetSnapshot(pb.GetSnapshotRequest(table="events"), timeout=LIMIT_S)
        assert answer.row_count == 15
        with pytest.raises(grpc.RpcError):
            stub.GetSnapshot(pb.GetSnapshotRequest(table="nope"), timeout=LIMIT_S)
        service.await_sample(("icedb_table_live_rows", "events"), 15)
        samples = service.samples()
        assert samples["icedb_table_merge_lag_files", "events"] == 3
        assert samples["icedb_table_merge_lag_seconds", "events"] >= 0
        assert samples["icedb_table_data_grace_seconds", "events"] == 6 * 3600
        assert samples["icedb_snapshot_requests_total", "GetSnapshot", "OK"] == 1
        assert samples["icedb_snapshot_requests_total", "GetSnapshot", "NOT_FOUND"] == 1
        assert samples["icedb_snapshot_requests_total", "GetSnapshot", "UNAVAILABLE"] == 0
        assert service.http("/readyz")[0] == 200
        parquet.create("broken")
        parquet.damage("broken")
        service.await_sample(("icedb_table_halted", "broken"), 1)
        assert service.samples()["icedb_table_halted", "events"] == 0
        parquet.warehouse.store.delete([parquet.warehouse.table("broken").paths.config_key])
        service.await_sample(("icedb_table_halted", "broken"), None)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(LIMIT_S) == 0
    names = [event["event"] for event in service.events()]
    assert names.index("snapshot_stopping") < names.index("snapshot_stopped")
    assert "Traceback" not in service.log.read_text()


@pytest.mark.s3
def test_a_service_that_has_read_logs_from_s3_does_not_wait_for_its_readers(start, s3_server):
    url = f"s3://{s3_server.bucket}/stopped/{SystemClock().new_id()}"
    parquet = ParquetWarehouse(open_warehouse(url, s3_server.options))
    parquet.create("events", "d=day(ts)")
    for _ in range(4):  # several are read at once
        parquet.commit("events", "select 1 as amount", partition="d=2026-01-02")
    keys = {"AWS_ACCESS_KEY_ID": "dev", "AWS_SECRET_ACCESS_KEY": "dev"}
    service = start(ICEDB_STORE=url, ICEDB_S3_ENDPOINT=s3_server.endpoint_url, **keys)
    with service.channel() as channel:
        stub = snapshot_pb2_grpc.SnapshotServiceStub(channel)
        assert stub.GetSnapshot(pb.GetSnapshotRequest(table="events"), timeout=LIMIT_S).row_count == 4
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(LIMIT_S) == 0
    assert [event["event"] for event in service.events()][-2:] == ["snapshot_stopping", "snapshot_stopped"]


def test_the_parser_of_conditions_is_loaded_once_it_serves_and_before_anybody_asks(start, url):
    service = start(ICEDB_STORE=url, PYTHONPROFILEIMPORTTIME="1")
    wait_until(lambda: "| sqlglot.parsers.duckdb" in service.log.read_text(), "the parser is loaded")
    log = service.log.read_text()
    assert 0 < log.index('"snapshot_served"') < log.index("| sqlglot")


DIRECTORY = "a directory of the test"


@pytest.mark.parametrize(
    ("environment", "words", "code"),
    [
        ({}, "ICEDB_STORE is not set", 2),
        ({"ICEDB_STORE": "ftp://x"}, "file:///absolute/directory or s3://", 2),
        ({"ICEDB_STORE": DIRECTORY, "ICEDB_SNAPSHOT_ADDRESS": "nonsense"}, "ICEDB_SNAPSHOT_ADDRESS", 2),
        ({"ICEDB_STORE": DIRECTORY, "ICEDB_READ_THREADS": "0"}, "ICEDB_READ_THREADS", 2),
        ({"ICEDB_STORE": DIRECTORY, "ICEDB_SNAPSHOT_ADDRESS": "192.0.2.1:1"}, "ICEDB_OPEN_ACCESS=true", 2),
        (
            {"ICEDB_STORE": DIRECTORY, "ICEDB_SNAPSHOT_ADDRESS": "192.0.2.1:1", "ICEDB_OPEN_ACCESS": "true"},
            "cannot listen on 192.0.2.1:1",
            1,
        ),
    ],
)
def test_wrong_settings_end_it_with_one_line(tmp_path, monkeypatch, capfd, environment, words, code):
    """In this process: what comes before the service would come before anything of it runs."""
    monkeypatch.setattr("icedb_service.main.configure_logging", lambda *_arguments, **_names: None)
    stores = {"ICEDB_STORE": (tmp_path / "store").as_uri()} if environment.get("ICEDB_STORE") == DIRECTORY else {}
    for name in [name for name in os.environ if name.startswith("ICEDB_")]:
        monkeypatch.delenv(name)
    for name, value in {"ICEDB_SNAPSHOT_ADDRESS": "127.0.0.1:0", **environment, **stores}.items():
        monkeypatch.setenv(name, value)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with pytest.raises(SystemExit) as left:
            run_main(SnapshotSettings, "snapshot", serve)
        assert left.value.code == code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    lines = capfd.readouterr().err.splitlines()
    assert [words in line for line in lines if line.startswith("icedb snapshot: ")] == [True]
    assert "Traceback" not in lines


def test_an_unreachable_s3_keeps_it_up_and_unready(start):
    service = start(
        ICEDB_STORE="s3://nobody/here",
        ICEDB_S3_ENDPOINT="http://127.0.0.1:1",
        AWS_ACCESS_KEY_ID="x",
        AWS_SECRET_ACCESS_KEY="y",
    )
    with service.channel() as channel:
        stub = snapshot_pb2_grpc.SnapshotServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetSnapshot(pb.GetSnapshotRequest(table="events"), timeout=LIMIT_S)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "http://127.0.0.1:1" in caught.value.details()
    assert service.http("/healthz")[0] == 200
    wait_until(lambda: "http://127.0.0.1:1" in service.http("/readyz")[1], "it says what is wrong")
    assert service.http("/readyz")[0] == 503
