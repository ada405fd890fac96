"""Real servers for the tests of this folder. Each starts once for the whole run, on a free loopback port."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from icedb_engine.spark.spark_session import SparkSettings, close_spark, open_spark
from icedb_log.store.s3_options import S3Options
from icedb_sim.rigs.redis_server import RedisServer
from waiting import LIMIT_S

POLL_S = 0.02


@dataclass(frozen=True)
class S3Server:
    """A development S3 server that is running."""

    endpoint_url: str
    bucket: str
    options: S3Options


@contextmanager
def running_s3_server(folder: Path, *flags: str) -> Iterator[S3Server]:
    port_file, bucket = folder / "port", "integration"
    command = [sys.executable, "-m", "icedb_local.dev_s3", "--port", "0", "--port-file", str(port_file)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--bucket", bucket, *flags], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not port_file.exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "the S3 server did not start"
            time.sleep(POLL_S)
        endpoint_url = f"http://127.0.0.1:{port_file.read_text().strip()}"
        yield S3Server(endpoint_url, bucket, S3Options(endpoint_url, access_key_id="dev", secret_access_key="dev"))
        process.terminate()
        assert process.wait(LIMIT_S) == 0, (folder / "log").read_text()
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory) -> Iterator[S3Server]:
    """S3 over HTTP with an empty bucket. Tests share it: use a prefix of your own."""
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server_without_conditions(tmp_path_factory) -> Iterator[S3Server]:
    """S3 that accepts conditions on writes and ignores them, as some servers do."""
    with running_s3_server(tmp_path_factory.mktemp("s3-ignores"), "--ignore-conditions") as server:
        yield server


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """A Redis for all tests of a file."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A Redis for one test."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def quiet_services() -> Iterator[None]:
    """Services in this process log nothing: for tests that read what a command prints."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def spark(request) -> Iterator[Any]:
    """The one Spark session of the whole run, two tasks at once; `make soak` tries one that fails once more."""
    master = "local[2,2]" if request.config.option.markexpr == "soak" else "local[2]"
    session = open_spark(
        SparkSettings(master=master, app_name="icedb-tests", options={"spark.sql.session.timeZone": "UTC"})
    )
    yield session
    close_spark(session)
