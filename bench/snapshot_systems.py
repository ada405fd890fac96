"""Ours in the snapshot benchmark, but for callers: cold opens, refreshes, and the memory of a service.

Those that open cold run in processes of their own (:mod:`bench.processes`), with everything imported and every client
made: what is timed is the table, from nothing known of it to the address of each live data file.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from icedb_client import Client
from icedb_log.clock import SystemClock
from icedb_log.keys import TablePaths
from icedb_log.serving.table_cache import TableCache
from icedb_log.store_settings import StoreSettings, open_warehouse
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2 as pb

from bench.figures import EMBEDDED, OURS, Figure
from bench.sequential_reader import RequestsAlone, fold_lines, read_live_paths
from bench.servers import boto3_client
from bench.snapshot_callers import EmbeddedCaller, StubCaller, uri_of
from bench.snapshot_service import Service, running_service
from bench.snapshot_tables import TABLE, log_file_of, marker
from bench.snapshot_work import FIRST_COMMIT_MS, STEP_MS, Cold, Refresh

WAIT_MS: Final = 60_000
TIMEOUT_S: Final = 120


@dataclass(slots=True)
class ColdIceDB(Cold):
    """Ours: the state of a table as every server of ours keeps it, made from nothing."""

    store: StoreSettings
    _warehouse: Warehouse | None = field(default=None, init=False)

    def prepare(self) -> None:
        """Open the store, and the client's first connection."""
        self._warehouse = self._warehouse or self.store.open()
        self._warehouse.store.list_page(f"{TABLE}/_icedb/", limit=1)

    def _find(self) -> Sequence[str]:
        assert self._warehouse is not None
        tables = TableCache(
            self._warehouse, clock=SystemClock(), max_tables=1, wait_ms=WAIT_MS, on_refresh=lambda _: None
        )
        state = tables.table(TABLE).read(max_staleness_ms=0)
        uri = self._warehouse.store.uri
        return list(map(uri, state.snapshot.live.paths()))


@dataclass(slots=True)
class RestartedService(Cold):
    """Ours: a process of the snapshot service is started and asked; Python and its imports are a part of it."""

    store: StoreSettings
    folder: Path

    def _find(self) -> Sequence[str]:
        with running_service(self.store, self.folder) as service:
            return _ask_once(service)


@dataclass(slots=True)
class ColdSequential(Cold):
    """A plain reader of our log, one request after another (:mod:`bench.sequential_reader`)."""

    store: StoreSettings
    paths: TablePaths
    _client: Any = field(default=None, init=False)

    def prepare(self) -> None:
        """Make a client."""
        options = self.store.s3
        if options is not None and self._client is None:
            self._client = boto3_client(options.endpoint_url or "")
            self._client.list_objects_v2(Bucket=self._bucket, MaxKeys=1)

    def _find(self) -> Sequence[str]:
        if self._client is None:
            folder = Path(self.store.url.removeprefix("file://")) / self.paths.log_prefix
            return fold_lines(path.read_bytes() for path in sorted(folder.iterdir()))
        return read_live_paths(self._client, self._bucket, self.paths.log_prefix)

    @property
    def _bucket(self) -> str:
        return self.store.url.removeprefix("s3://")


class ColdBound(Cold):
    """What the place takes: all log files are read, from S3 side by side, and nobody looks at them."""

    def __init__(self, name: str, log_file_count: int, store: StoreSettings, paths: TablePaths) -> None:
        super().__init__(name, log_file_count)
        self._store = store
        self._paths = paths

    def _find(self) -> Sequence[str]:
        bucket = self._store.url.removeprefix("s3://")
        if self._store.s3 is None:
            folder = Path(self._store.url.removeprefix("file://")) / self._paths.log_prefix
            return [str(len(path.read_bytes())) for path in folder.iterdir()]
        endpoint = self._store.s3.endpoint_url or ""
        return [""] * RequestsAlone(endpoint, bucket, self._paths.log_prefix).get_all()


class IceDBRefresh(Refresh):
    """Ours: ``max_staleness_ms=0`` right after a commit.

    Args:
        address: Of the service.
        root: Of the warehouse.
        is_kept: Whether a client keeps the snapshot before, and gets what came and went.
        is_known: Whether another caller has asked since the commit: then the call is all that is timed.
    """

    def __init__(self, address: str, root: Path, *, is_kept: bool = False, is_known: bool = False) -> None:
        super().__init__(file_count=0, commit_count=0)
        self.name = ("icedb-client, since" if is_kept else OURS) + (", known" if is_known else "")
        self._max_staleness_ms = None if is_known else 0
        self._is_kept = is_kept
        self._store = open_warehouse(f"file://{root}").store
        self._paths = TablePaths(TABLE, TABLE)
        self._stub = StubCaller(address, max_staleness_ms=0)
        self._stub.open()
        self._client = Client(snapshot_address=address)
        self._last = self._client.snapshot(TABLE, columnar=True)

    def prepare(self) -> None:
        """Look at the table as it is: others commit to it, too. No commit had a number above that of its files."""
        super().prepare()
        self._last = self._client.snapshot(TABLE, since=self._last, max_staleness_ms=0)
        self._file_count = self._commit = len(self._last.files)

    def _append(self, commit: int, numbers: range) -> None:
        time_ms = FIRST_COMMIT_MS + commit * STEP_MS
        markers = [marker(self._paths, number, time_ms) for number in numbers]
        self._store.put_if_absent(*log_file_of(self._paths, commit, time_ms, markers))
        if self._max_staleness_ms is None:
            self._stub.call()

    def _ask(self) -> int:
        if not self._is_kept:
            return self._stub.call()
        self._last = self._client.snapshot(TABLE, since=self._last, max_staleness_ms=self._max_staleness_ms)
        return len(self._last.files)


class EmbeddedRefresh(IceDBRefresh):
    """Our library in the caller's process, right after a commit; arguments as of :class:`IceDBRefresh`."""

    def __init__(self, address: str, root: Path) -> None:
        super().__init__(address, root)
        self.name = EMBEDDED
        self._caller = EmbeddedCaller(uri_of(root))
        self._caller.open()

    def _ask(self) -> int:
        return self._caller.call()


class ServiceMemory:
    """A service that has read a table and answered once: what it holds then, and what it held at most."""

    name = OURS

    def __init__(self, store: StoreSettings, folder: Path, *, file_count: int) -> None:
        self._store = store
        self._folder = folder
        self._file_count = file_count
        self._stack = ExitStack()
        self._figures: tuple[Figure, ...] = ()

    def prepare(self) -> None:
        """Start a service anew."""
        self._stack.close()

    def run(self) -> None:
        """Ask for all files, in pages."""
        service = self._stack.enter_context(running_service(self._store, self._folder))
        found = len(_ask_all(service))
        if found != self._file_count:
            raise AssertionError(f"{found} of {self._file_count} data files")
        held, peak = service.resident_mb(), service.peak_mb()
        self._figures = (Figure("memory_after", "MiB", held), Figure("memory_peak", "MiB", peak))

    def check(self) -> Sequence[Figure]:
        """Say what it held."""
        self._stack.close()
        return self._figures


def _ask_once(service: Service) -> list[str]:
    stub = StubCaller(service.address)
    stub.open()
    try:
        return [file.uri for file in stub.ask().files]
    finally:
        stub.close()


def _ask_all(service: Service) -> list[str]:
    """Return all files of a table, by the call that has no limit."""
    with grpc.insecure_channel(service.address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        method = channel.unary_stream(
            "/icedb.v1.SnapshotService/StreamSnapshot",
            request_serializer=pb.GetSnapshotRequest.SerializeToString,
            response_deserializer=pb.GetSnapshotResponse.FromString,
        )
        request = pb.GetSnapshotRequest(table=TABLE)
        pages = method(request, timeout=TIMEOUT_S, wait_for_ready=True)
        return [file.uri for page in pages for file in page.files]
