"""The dashboards' queries and the alert rules on a real Prometheus that scrapes real services.

First the snapshot service alone: merge lag is there when every worker is dead. Then the whole local stack: every
panel of every dashboard shows something, and no rule fails.
"""

import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from icedb_client import Client, ClientSettings
from icedb_local.stack import LocalStack
from icedb_local.stack_layout import StackLayout, StackPorts
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.feed.views import create_view
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.pressure import LOG_FILES
from icedb_log.ingest.staging import stage_batch
from icedb_log.serving.status import read_status
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_sim.tables.log_steps import lengthen_log
from icedb_sim.tables.row_files import RowFileWriter, encode_rows
from processes import free_port, service_env
from prometheus_rig import (
    FRONTENDS,
    JOBS,
    POLL_S,
    TABLE,
    WORKERS,
    Prometheus,
    read_panels,
    running_prometheus,
    wait_for,
)
from waiting import LIMIT_S

EMPTY_PANELS = {"What fires"}
"""Nothing to show while all is well."""
VIEW = f"{TABLE}_by_p"


def check_rules(prometheus: Prometheus) -> None:
    """Every rule was evaluated without an error, and no text of an alert has a hole."""
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 10
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    for alert in prometheus.get("alerts")["alerts"]:
        for text in alert["annotations"].values():
            assert not re.search(r"error expanding|<no value>|\{\{|  ", text), text


# ---- without any worker -----------------------------------------------------------------------------------------


@pytest.fixture
def warehouse(tmp_path) -> StoreSettings:
    """A table whose log is so long that batches are refused, and a second one whose log is corrupt."""
    settings = StoreSettings(f"file://{tmp_path / 'warehouse'}", None)
    (tmp_path / "warehouse").mkdir()
    opened, clock = settings.open(), SystemClock()
    for name in (TABLE, "broken"):
        table = opened.table(name)
        config = TableConfig.create(
            name=name,
            partition=(PartitionField(name="p", column="p"),),
            sort=("id",),
            merge_fan_in=2,
        )
        create_table(table, config)
        for number in range(10):
            body = encode_rows([{"id": number, "p": "a"}, {"id": -number, "p": "a"}])
            stage_batch(table, body=body, staging_format="ndjson", batch_id=new_batch_id(clock))
            writer = RowFileWriter(opened.store, clock)
            flush_table(Table.open(table, clock=clock, owner="test"), writer)
    lengthen_log(opened.table(TABLE), LOG_FILES.stop - 10, clock=clock)
    paths = opened.table("broken").paths
    opened.store.put(f"{paths.log_prefix}1700000000000_{'a' * 32}.jsonl", b"not a log file")
    return settings


@pytest.fixture
def snapshot_metrics_port(warehouse, tmp_path) -> Iterator[int]:
    port, grpc_port = free_port(), free_port()
    environment = {
        **service_env(),
        "ICEDB_STORE": warehouse.url,
        "ICEDB_SNAPSHOT_ADDRESS": f"127.0.0.1:{grpc_port}",
        "ICEDB_METRICS_PORT": str(port),
        "ICEDB_SNAPSHOT_LAG_INTERVAL_MS": "500",
    }
    with (tmp_path / "snapshot.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "icedb_snapshot"], env=environment, stdout=log, stderr=log)
    yield port
    process.terminate()
    assert process.wait(LIMIT_S) == 0, (tmp_path / "snapshot.log").read_text()


def test_merge_lag_is_there_when_every_worker_is_dead(warehouse, snapshot_metrics_port, tmp_path):
    opened = warehouse.open()
    truth = read_status(Table.open(opened.table(TABLE), clock=SystemClock()))
    assert truth.merge_lag_files > 0
    dead = {job: free_port() for job in JOBS}
    (tmp_path / "prometheus").mkdir()
    with running_prometheus(tmp_path / "prometheus", {**dead, "snapshot": snapshot_metrics_port}) as prometheus:
        key = (("table", TABLE),)
        lag = "max by (table) (icedb_table_merge_lag_seconds)"
        first = wait_for("merge lag", lambda: prometheus.query(lag).get(key))
        wait_for("merge lag rises", lambda: prometheus.query(lag).get(key, 0) > first + 1)
        panels = read_panels()
        expected = {
            "Data files that wait for a merge": [truth.merge_lag_files],
            "Bytes that wait for a merge": [truth.merge_lag_bytes],
            "Log files": [truth.log_files],
            "Live rows": [20],
            "Back-pressure": [2],
            "Stretch of flush intervals": [60],
            "Log files against the slow bound": [2],
            "Lag and its bound": [0, 120],
        }
        for title, values in expected.items():
            wait_for_answers(prometheus, panels[title], [{key: value} for value in values])
        lines = [{key: LOG_FILES.stop}, {(): LOG_FILES.slow}, {(): LOG_FILES.stop}]
        wait_for_answers(prometheus, panels["Log files and their bounds"], lines)

        # The service has heard what time it is at its store, and the rule about that compares what belongs together.
        (skew,) = panels["Clock skew"]
        wait_for("the clock skew", lambda: [value < 2 for value in prometheus.query(skew).values()] == [True])
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        (skewed,) = [rule["query"] for rule in rules if rule["name"] == "IceDBClockSkewed"]
        assert prometheus.query(skewed) == {}
        tighter = skewed.replace("> 30", "> -10")
        wait_for("a skew beyond the bound", lambda: len(prometheus.query(tighter)) == 1)

        # The rules see the table that is halted, the one that pushes back and the workers that are dead; `for` has
        # not passed yet.
        def pending() -> set[tuple[str, str]]:
            names = "IceDBTableHalted|IceDBPressureStop|IceDBWorkerDown|IceDBFrontendDown"
            found = prometheus.query(f'ALERTS{{alertname=~"{names}"}}')
            return {(dict(key)["alertname"], dict(key).get("table") or dict(key)["job"]) for key in found}

        expected = {("IceDBTableHalted", "broken"), ("IceDBPressureStop", TABLE)}
        expected |= {("IceDBWorkerDown", job) for job in WORKERS} | {("IceDBFrontendDown", job) for job in FRONTENDS}
        wait_for("the alerts", lambda: pending() == expected)
        check_rules(prometheus)


def wait_for_answers(prometheus: Prometheus, queries: list[str], expected: list[dict[Any, float]]) -> None:
    """A service that is late once has no figures until it is asked again: on a busy machine that happens."""
    found: list[dict[Any, float]] = []

    def is_there() -> bool:
        found[:] = [prometheus.query(expr) for expr in queries]
        return found == expected

    wait_for(f"{queries}: {expected}", is_there)


# ---- the whole stack --------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.timeout(600)
def test_every_panel_shows_the_running_stack(tmp_path):
    overrides = {
        "ICEDB_SNAPSHOT_LAG_INTERVAL_MS": "500",
        "ICEDB_MERGE_SWEEP_INTERVAL_MS": "1000",
        "ICEDB_JANITOR_SWEEP_INTERVAL_MS": "1000",
        "ICEDB_FLUSH_INTERVAL_MS": "500",
    }
    layout = StackLayout(tmp_path / "stack", "local", StackPorts(), overrides, has_frontend=True, has_console=True)
    (tmp_path / "prometheus").mkdir()
    with ExitStack() as exits:
        layout = exits.enter_context(LocalStack(layout, choose_ports=lambda _: StackPorts.find_free())).layout
        targets = {job: layout.ports.metrics_of(job) for job in JOBS}
        prometheus = exits.enter_context(running_prometheus(tmp_path / "prometheus", targets))
        acknowledged = send_until_merged(layout, prometheus)
        panels = read_panels()
        views = read_panels(f"{TABLE}|{VIEW}")
        key = (("table", TABLE),)
        (rows,) = panels["Live rows"]
        wait_for("all rows are live", lambda: prometheus.query(rows) == {key: acknowledged})

        def silent() -> dict[str, list[str]]:
            """Queries without an answer, by panel."""
            found = {
                title: [expr for expr in queries if not prometheus.query(expr)] for title, queries in views.items()
            }
            return {title: queries for title, queries in found.items() if queries}

        wait_for("every panel has data", lambda: silent().keys() == EMPTY_PANELS)
        for title in ("Merge lag", "Data files that wait for a merge", "Bytes that wait for a merge"):
            for expr in panels[title]:
                wait_for(title, lambda expr=expr: set(prometheus.query(expr)) == {key})
        assert prometheus.get("label/table/values", **{"match[]": "icedb_table_data_files"}) == [TABLE, VIEW]
        wait_for("all are up", lambda: prometheus.query("sum by (job) (up)") == {(("job", job),): 1 for job in JOBS})
        check_rules(prometheus)
        assert [alert["labels"] for alert in prometheus.get("alerts")["alerts"] if alert["state"] == "firing"] == []


def post(layout: StackLayout, body: bytes) -> None:
    """Send a batch through the front end, as producers without the Python client do."""
    request = urllib.request.Request(
        f"{layout.http_url}/v1/tables/{TABLE}/batches", data=body, headers={"Content-Type": "application/x-ndjson"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        assert answer.status < 300


def send_until_merged(layout: StackLayout, prometheus: Prometheus) -> int:
    """Enqueue batches until a merge and a vacuum were counted; return how many rows were acknowledged."""
    settings = ClientSettings(
        store=layout.store_settings.url, snapshot_address=layout.snapshot_address, redis_url=layout.redis_url
    )
    acknowledged = 0
    with Client(settings=settings) as client:
        config = TableConfig.create(
            name=TABLE,
            partition=(PartitionField.parse("p"),),
            sort=("id",),
            merge_fan_in=2,
            data_grace_ms=2000,
            log_grace_ms=2000,
        )
        create_table(client.warehouse.table(TABLE), config)
        view = TableConfig.create(name=VIEW, view_of=TABLE, view_query="select id, p from _rows")
        create_view(client.warehouse.table(VIEW), view, clock=SystemClock())
        deadline = time.monotonic() + LIMIT_S
        while not (
            prometheus.value("icedb_merge_commits_total") > 0
            and prometheus.value('icedb_janitor_deleted_objects_total{kind="log_file"}') > 0
            and prometheus.value("sum(rate(icedb_ingest_rows_total[20s]))") > 0
        ):
            assert time.monotonic() < deadline, "no merge and no vacuum"
            body = encode_rows([{"id": acknowledged + n, "p": "a"} for n in range(100)])
            if acknowledged % 200:
                client.enqueue(TABLE, body)
            else:
                post(layout, body)
            acknowledged += 100
            client.snapshot(TABLE)
            urllib.request.urlopen(f"{layout.s3_url}/icedb?list-type=2&prefix={TABLE}/", timeout=LIMIT_S).close()
            time.sleep(POLL_S)
    return acknowledged
