"""The health check of the images, against the services' own HTTP server."""

import os
import subprocess
import sys

import processes
import pytest
from icedb_log.errors import Unavailable
from icedb_service.http_server import HealthChecks, start_metrics_server
from prometheus_client import CollectorRegistry


def check(deploy, port: int | None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "ICEDB_METRICS_PORT"}
    if port is not None:
        environment["ICEDB_METRICS_PORT"] = str(port)
    return subprocess.run(
        [sys.executable, str(deploy / "check_health.py")], env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def free_port() -> int:
    return processes.free_port()


@pytest.fixture
def serve(free_port):
    servers = []

    def start(checks: HealthChecks) -> int:
        servers.append(start_metrics_server(CollectorRegistry(), host="127.0.0.1", port=free_port, health=checks))
        return free_port

    yield start
    for server in servers:
        server.stop()


def dead() -> None:
    raise Unavailable("the engine is dead")


def test_a_process_that_is_well(deploy, serve):
    done = check(deploy, serve(HealthChecks(ready={"redis": dead})))
    assert done.returncode == 0, done.stderr


def test_a_process_that_should_be_replaced(deploy, serve):
    done = check(deploy, serve(HealthChecks(alive={"engine": dead})))
    assert done.returncode == 1
    assert "the engine is dead" in done.stderr


def test_nobody_listens(deploy, free_port):
    done = check(deploy, free_port)
    assert done.returncode == 1
    assert str(free_port) in done.stderr


def test_no_port_is_set(deploy):
    done = check(deploy, None)
    assert done.returncode == 1
    assert "ICEDB_METRICS_PORT" in done.stderr
