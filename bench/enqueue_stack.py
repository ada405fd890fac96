"""The servers of the benchmarks of front ends: a store that counts, Redis, the front end, the worker of the queue
``enqueue``, and, where batches are to become visible, the workers that make them so.

These run their units of work in their own processes, without Spark (``icedb_local.chaos.light_worker``): what they ask
of the store is the same, and a JVM would take the processor from what is measured.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from icedb_local.ports import find_free_ports
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings
from icedb_sim.rigs.redis_server import RedisServer

from bench.counting_s3 import BUCKET, running_counting_s3
from bench.servers import KEY, find_word, running, store_environment

_LIGHT: Final = "icedb_local.chaos.light_worker"
_WORKERS: Final = (
    ([_LIGHT, "ingest"], "worker_started"),
    ([_LIGHT, "merger"], "worker_started"),
    (["icedb_janitor"], "worker_started"),
    (["icedb_service.beat"], "beat_started"),
)
"""What makes batches visible and keeps a table small, and the word by which each says that it serves."""


@dataclass(frozen=True, slots=True)
class Doors:
    """Where producers find everything.

    Attributes:
        store: The store.
        redis_url: Redis.
        http_port: The front end's HTTP.
        grpc_port: The front end's gRPC.
        frontend_id: The front end's process.
        endpoint: The S3 server, which counts; empty: a directory.
    """

    store: StoreSettings
    redis_url: str
    http_port: int
    grpc_port: int
    frontend_id: int
    endpoint: str = ""


@contextmanager
def open_doors(
    folder: Path,
    store: str,
    *,
    latency_ms: int = 0,
    settings: Mapping[str, str] | None = None,
    has_workers: bool = False,
) -> Iterator[Doors]:
    """Start everything.

    Args:
        folder: For stores and logs; it is made.
        store: ``directory``, or ``s3``: the development S3 server, which counts.
        latency_ms: How long each request to that waits.
        settings: ``ICEDB_...`` of all services, beside the defaults.
        has_workers: Whether flushes, merges and vacuums run, too.
    """
    folder.mkdir(parents=True)
    http_port, grpc_port = find_free_ports(2)
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        endpoint = ""
        if store == "s3":
            endpoint = stack.enter_context(running_counting_s3(folder / "s3", latency_ms=latency_ms))
            options = S3Options(endpoint, access_key_id=KEY, secret_access_key=KEY)
            opened = StoreSettings(f"s3://{BUCKET}/warehouse", options)
        else:
            opened = StoreSettings(f"file://{folder / 'warehouse'}")
        env = store_environment(opened) | {
            "ICEDB_REDIS_URL": redis.url,
            "ICEDB_FRONTEND_HTTP_PORT": str(http_port),
            "ICEDB_FRONTEND_GRPC_PORT": str(grpc_port),
            "ICEDB_ACCESS_LOG": "errors",
            "ICEDB_METRICS_PORT": "0",
            "ICEDB_ENQUEUE_THREADS": "16",
            **(settings or {}),
        }
        process_ids = []
        modules = [(["icedb_ingest.frontend"], "frontend_served")]
        modules += _WORKERS if has_workers else [(["icedb_ingest.frontend.celery_worker"], "worker_started")]
        for command, said in modules:
            log = folder / f"{'-'.join(command)}.log"
            found = running(command, log, find=partial(find_word, log, said), env=env)
            process_ids.append(stack.enter_context(found).process_id)
        yield Doors(opened, redis.url, http_port, grpc_port, process_ids[0], endpoint)
