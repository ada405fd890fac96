"""The servers of the enqueue benchmark: a store, Redis, the front end, the worker of the queue ``enqueue``."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from icedb_local.ports import find_free_ports
from icedb_log.store.stores import S3Options, StoreSettings
from icedb_sim.rigs.redis_server import RedisServer

START_LIMIT_S: Final = 90
BUCKET: Final = "bench"
KEY: Final = "dev"


@dataclass(frozen=True, slots=True)
class Doors:
    """Where producers find everything."""

    store: StoreSettings
    redis_url: str
    http_port: int
    grpc_port: int


@contextmanager
def open_doors(folder: Path, store: str) -> Iterator[Doors]:
    """Start everything on a directory (``store`` = ``directory``) or on the development S3 server (``s3``)."""
    folder.mkdir(parents=True)
    http_port, grpc_port, s3_port = find_free_ports(3)
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        if store == "s3":
            options = S3Options(f"http://127.0.0.1:{s3_port}", access_key_id=KEY, secret_access_key=KEY)
            settings = StoreSettings(f"s3://{BUCKET}/warehouse", options)
            command = [
                "icedb_local.dev_s3",
                "--port",
                str(s3_port),
                "--port-file",
                str(folder / "s3"),
                "--bucket",
                BUCKET,
            ]
            stack.enter_context(_running(command, folder, {}))
            _wait_for((folder / "s3").exists, "the S3 server")
        else:
            settings = StoreSettings(f"file://{folder / 'warehouse'}")
        env = _environment(settings, redis.url) | {
            "ICEDB_FRONTEND_HTTP_PORT": str(http_port),
            "ICEDB_FRONTEND_GRPC_PORT": str(grpc_port),
            "ICEDB_FRONTEND_ACCESS_LOG": "errors",
            "ICEDB_METRICS_PORT": "0",
            "ICEDB_ENQUEUE_THREADS": "16",
        }
        for module, said in (
            ("icedb_ingest.frontend", "frontend_served"),
            ("icedb_ingest.frontend.celery_worker", "worker_started"),
        ):
            stack.enter_context(_running([module], folder, env))
            _wait_for_word(folder / f"{module}.log", said)
        yield Doors(settings, redis.url, http_port, grpc_port)


def _environment(settings: StoreSettings, redis_url: str) -> dict[str, str]:
    env = {"ICEDB_STORE": settings.url, "ICEDB_REDIS_URL": redis_url}
    if settings.s3 is not None:
        env |= {"ICEDB_S3_ENDPOINT": settings.s3.endpoint_url or "", "AWS_ACCESS_KEY_ID": KEY}
        env |= {"AWS_SECRET_ACCESS_KEY": KEY}
    return env


@contextmanager
def _running(command: list[str], folder: Path, env: dict[str, str]) -> Iterator[None]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ICEDB_", "AWS_"))}
    with (folder / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=inherited | env, stdout=log, stderr=log, cwd=folder
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(START_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_word(log: Path, word: str) -> None:
    try:
        _wait_for(lambda: word in log.read_text(), log.stem)
    except RuntimeError as error:
        raise RuntimeError(f"{error}: {log.read_text()[-2000:]}") from error


def _wait_for(condition: Callable[[], object], what: str) -> None:
    deadline_s = monotonic() + START_LIMIT_S
    while not condition():
        if monotonic() > deadline_s:
            raise RuntimeError(f"{what} did not start within {START_LIMIT_S} s")
        sleep(0.05)
