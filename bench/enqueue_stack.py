"""The servers of the enqueue benchmark: a store, Redis, the front end, the worker of the queue ``enqueue``."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from icedb_local.ports import find_free_ports
from icedb_log.store.stores import S3Options, StoreSettings
from icedb_sim.rigs.redis_server import RedisServer

from bench.servers import KEY, find_word, running, running_server, store_environment

BUCKET: Final = "bench"


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
    http_port, grpc_port = find_free_ports(2)
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        if store == "s3":
            command = ["icedb_local.dev_s3", "--port", "0", "--bucket", BUCKET]
            endpoint = stack.enter_context(running_server(command, folder / "s3"))
            options = S3Options(endpoint, access_key_id=KEY, secret_access_key=KEY)
            settings = StoreSettings(f"s3://{BUCKET}/warehouse", options)
        else:
            settings = StoreSettings(f"file://{folder / 'warehouse'}")
        env = store_environment(settings) | {
            "ICEDB_REDIS_URL": redis.url,
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
            log = folder / f"{module}.log"
            stack.enter_context(running([module], log, find=partial(find_word, log, said), env=env))
        yield Doors(settings, redis.url, http_port, grpc_port)
