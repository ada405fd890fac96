"""Failed requests to the store and to Redis are counted, whoever hides them afterwards."""

from typing import get_args

import pytest
from icedb_log.names import Component
from icedb_log.store import request_costs, request_failures
from icedb_log.store.request_costs import report_answer
from icedb_log.store.request_failures import report_failure
from icedb_service.metrics import CAUSES, DependencyMetrics, WorkerMetrics
from icedb_service.redis_clients import open_redis
from prometheus_client import CollectorRegistry
from redis.exceptions import ConnectionError as RedisConnectionError

STORE = "icedb_store_request_failures_total"
REDIS = "icedb_redis_request_failures_total"


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(request_failures, "_listeners", [])
    monkeypatch.setattr(request_costs, "_listeners", [])
    monkeypatch.setattr(request_costs, "_tables", set())
    return CollectorRegistry()


def test_every_failure_is_a_series_from_the_start_and_counts_once_the_process_watches(registry):
    metrics = DependencyMetrics(registry)
    labels = {"operation": "write", "reason": "timeout"}
    report_failure("write", "timeout")
    assert registry.get_sample_value(STORE, labels) == 0
    metrics.watch_store()
    report_failure("write", "timeout")
    report_failure("list", "throttled")
    assert registry.get_sample_value(STORE, labels) == 1
    assert registry.get_sample_value(STORE, {"operation": "list", "reason": "throttled"}) == 1


def test_a_redis_that_is_not_there_counts_for_what_it_was_asked_for(registry):
    metrics = DependencyMetrics(registry)
    client = open_redis("redis://127.0.0.1:1/0", timeout_ms=50, on_failure=metrics.counter_of("locks"))
    for _ in range(2):
        with pytest.raises(RedisConnectionError):
            client.set("key", "value", nx=True)
    client.close()
    assert registry.get_sample_value(REDIS, {"use": "locks"}) == 2
    assert registry.get_sample_value(REDIS, {"use": "queue"}) == 0


def ask(price, key, status=200, **how):
    report_answer(price, key, status=status, sent_bytes=7, received_bytes=5, **how)


def test_requests_are_counted_by_cause_table_and_price_once_their_table_is_known(registry):
    metrics = DependencyMetrics(registry, "flush")
    metrics.watch_store()

    def count(table, price):
        return registry.get_sample_value(
            "icedb_store_requests_total", {"cause": "flush", "table": table, "price": price}
        )

    ask("get", "wh/guess/_icedb/table.json", status=404)
    ask("put", "wh/guess/_icedb/staging/", is_listing=True)
    ask("delete", "wh/guess/_icedb/staging/x")
    ask("put", "wh/events/_log/", status=503)
    assert (count("", "get"), count("", "put"), count("", "delete"), count("guess", "put")) == (1, 1, 1, None)
    ask("get", "/bucket/wh/events/_icedb/table.json")
    ask("put", "wh/events.2/_log", is_listing=True)
    ask("put", "wh/events/_data/d=1/x.parquet")
    assert (count("events", "get"), count("events", "put")) == (1, 2)
    labels = {"cause": "flush", "table": "events", "direction": "sent"}
    assert registry.get_sample_value("icedb_store_request_bytes_total", labels) == 21
    assert registry.get_sample_value("icedb_store_request_bytes_total", {**labels, "direction": "received"}) == 15


def test_every_service_has_a_cause():
    assert set(CAUSES) == set(get_args(Component))


def test_counts_of_a_table_end_with_it(registry):
    metrics = WorkerMetrics("janitor", package="icedb-janitor", tasks=("a",))
    metrics.dependencies.watch_store()
    ask("put", "gone/_icedb/x")
    ask("put", "kept/_icedb/x")
    ask("put", "elsewhere")
    metrics.forget_tables({"kept"})
    of = {"cause": "janitor", "price": "put"}
    found = {
        table: metrics.registry.get_sample_value("icedb_store_requests_total", {**of, "table": table})
        for table in ("gone", "kept", "")
    }
    assert found == {"gone": None, "kept": 1, "": 1}
