"""Failed requests to the store and to Redis are counted, whoever hides them afterwards."""

import pytest
from icedb_log.store import request_failures
from icedb_log.store.request_failures import report_failure
from icedb_service.metrics import DependencyMetrics
from icedb_service.redis_clients import open_redis
from prometheus_client import CollectorRegistry
from redis.exceptions import ConnectionError as RedisConnectionError

STORE = "icedb_store_request_failures_total"
REDIS = "icedb_redis_request_failures_total"


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(request_failures, "_listeners", [])
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
