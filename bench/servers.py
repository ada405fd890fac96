"""Servers that a benchmark starts as processes of their own, and ends."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from icedb_log.store_settings import StoreSettings

START_LIMIT_S: Final = 90
KEY: Final = "dev"
"""Key and secret of the servers of development."""
POLL_S: Final = 0.005

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Running(Generic[T]):
    """A server that is up: what it said of itself, and its process."""

    said: T
    process_id: int


@contextmanager
def running(
    command: Sequence[str], log: Path, *, find: Callable[[], T | None], env: Mapping[str, str] | None = None
) -> Iterator[Running[T]]:
    """Run ``python -m command`` until the block ends; yield as soon as ``find`` finds what it waits for.

    No setting of this process reaches it, only those of ``env``.

    Raises:
        RuntimeError: It ended, or did not start in time; with the end of its log.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ICEDB_", "AWS_"))}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=inherited | dict(env or {}), stdout=stream, stderr=stream
        )
    try:
        deadline_s = monotonic() + START_LIMIT_S
        while (said := find()) is None:
            if process.poll() is not None or monotonic() > deadline_s:
                raise RuntimeError(f"{command[0]} did not start: {log.read_text()[-2000:]}")
            sleep(POLL_S)
        yield Running(said, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(START_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def running_server(command: Sequence[str], folder: Path) -> Iterator[str]:
    """Run a server that writes its port to ``--port-file``; yield its address."""
    folder.mkdir(parents=True)
    port_file = folder / "port"

    def find() -> str | None:
        return port_file.read_text().strip() if port_file.exists() else None

    with running([*command, "--port-file", str(port_file)], folder / "log", find=find) as server:
        yield f"http://127.0.0.1:{server.said}"


def find_word(log: Path, word: str) -> bool | None:
    """Return whether a log has a word: what :func:`running` waits for."""
    return word in log.read_text() or None


def tell_port(port: int, port_file: Path) -> None:
    """Write a server's port where whoever started it looks; it is there whole or not at all."""
    draft = port_file.with_name("port.new")
    draft.write_text(str(port))
    draft.replace(port_file)


def store_environment(store: StoreSettings) -> dict[str, str]:
    """Return the settings with which a service opens a store."""
    env = {"ICEDB_STORE": store.url}
    if store.s3 is not None:
        env |= {"ICEDB_S3_ENDPOINT": store.s3.endpoint_url or "", "AWS_ACCESS_KEY_ID": store.s3.access_key_id or ""}
        env |= {"AWS_SECRET_ACCESS_KEY": store.s3.secret_access_key or ""}
    return env


def delta_options(endpoint: str) -> dict[str, str]:
    """Return how delta-rs is told where S3 is."""
    options = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    return options | {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}


def iceberg_options(endpoint: str) -> dict[str, str]:
    """Return how PyIceberg is told the same."""
    options = {"s3.endpoint": endpoint, "s3.region": "us-east-1"}
    return options | {"s3.access-key-id": KEY, "s3.secret-access-key": KEY}


def duckdb_options(endpoint: str) -> dict[str, str]:
    """Return how DuckDB is told the same."""
    return {"KEY_ID": KEY, "SECRET": KEY, "REGION": "us-east-1", "ENDPOINT": urlsplit(endpoint).netloc}


def boto3_client(endpoint: str) -> Any:
    """Return a client of boto3, for those who go past our stores."""
    import boto3  # noqa: PLC0415 - in the process that needs it
    from botocore.config import Config  # noqa: PLC0415 - as above

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=KEY,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
