"""The competitors of the snapshot benchmark that are not callers: cold opens, refreshes, and the memory of a service.

Those that open cold run in processes of their own (:mod:`bench.processes`), with everything imported and every client
made: what is timed is the table, from nothing known of it to the address of each live data file.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import grpc
from icedb_log.clock import SystemClock
from icedb_log.keys import TablePaths
from icedb_log.serving.table_cache import TableCache
from icedb_log.store.stores import StoreSettings, open_warehouse
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2 as pb

from bench.callers import latency_figures
from bench.harness import OURS, Figure
from bench.sequential_reader import fold_lines, read_live_paths
from bench.snapshot_callers import DeltaCaller, StubCaller
from bench.snapshot_service import Service, running_service
from bench.snapshot_tables import (
    FIRST_COMMIT_MS,
    STEP_MS,
    TABLE,
    delta_adds,
    log_file_of,
    marker,
    write_delta_commit,
)

KEY: Final = "dev"
REFRESHES: Final = 5
FILES_OF_A_COMMIT: Final = 5
WAIT_MS: Final = 60_000
TIMEOUT_S: Final = 120


@dataclass(slots=True)
class _Cold(ABC):
    """What all have in common: nothing is known of the table before a turn.

    Attributes:
        name: What it is called.
        file_count: What must be found.
    """

    name: str
    file_count: int
    _found: int = field(default=-1, init=False)

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Forget."""

    def run(self) -> None:
        """Find the address of each live data file."""
        self._found = len(self._find())

    def check(self) -> Sequence[Figure]:
        """Look that all were found."""
        if self._found != self.file_count:
            raise AssertionError(f"{self.name}: found {self._found} of {self.file_count} data files")
        return ()

    def close(self) -> None:  # noqa: B027 - most keep nothing open
        """Nothing stays open."""

    @abstractmethod
    def _find(self) -> Sequence[str]:
        """Return the address of each live data file."""


@dataclass(slots=True)
class ColdIceDB(_Cold):
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
        return [uri(each.path) for each in state.snapshot.live]


@dataclass(slots=True)
class RestartedService(_Cold):
    """Ours: a process of the snapshot service is started and asked; Python and its imports are a part of it."""

    store: StoreSettings
    folder: Path

    def _find(self) -> Sequence[str]:
        with running_service(self.store, self.folder) as service:
            return _ask_once(service)


@dataclass(slots=True)
class ColdSequential(_Cold):
    """A plain reader of our log, one request after another (:mod:`bench.sequential_reader`)."""

    store: StoreSettings
    paths: TablePaths
    _client: Any = field(default=None, init=False)

    def prepare(self) -> None:
        """Make a client."""
        options = self.store.s3
        if options is not None and self._client is None:
            import boto3  # noqa: PLC0415 - in the process that needs it
            from botocore.config import Config  # noqa: PLC0415

            self._client = boto3.client(
                "s3",
                endpoint_url=options.endpoint_url,
                aws_access_key_id=KEY,
                aws_secret_access_key=KEY,
                region_name="us-east-1",
                config=Config(s3={"addressing_style": "path"}),
            )
            self._client.list_objects_v2(Bucket=self._bucket, MaxKeys=1)

    def _find(self) -> Sequence[str]:
        if self._client is None:
            folder = Path(self.store.url.removeprefix("file://")) / self.paths.log_prefix
            return fold_lines(path.read_bytes() for path in sorted(folder.iterdir()))
        return read_live_paths(self._client, self._bucket, self.paths.log_prefix)

    @property
    def _bucket(self) -> str:
        return self.store.url.removeprefix("s3://")


@dataclass(slots=True)
class ColdDelta(_Cold):
    """delta-rs: ``DeltaTable(...)`` and ``file_uris``."""

    uri: str
    options: dict[str, str]

    def prepare(self) -> None:
        """Import."""
        import deltalake  # noqa: F401, PLC0415 - in the process that needs it

    def _find(self) -> Sequence[str]:
        from deltalake import DeltaTable  # noqa: PLC0415

        return DeltaTable(self.uri, storage_options=self.options).file_uris()


@dataclass(slots=True)
class ColdIceberg(_Cold):
    """PyIceberg: ``load_table`` of an open catalog, and ``plan_files``."""

    catalog: Any
    _open: Any = field(default=None, init=False)

    def prepare(self) -> None:
        """Open the catalog; what it knows of manifests is forgotten."""
        from pyiceberg import manifest  # noqa: PLC0415 - in the process that needs it

        self._open = self._open or self.catalog.open()
        manifest.clear_manifest_cache()

    def _find(self) -> Sequence[str]:
        return [task.file.file_path for task in self.catalog.load(self._open).scan().plan_files()]


class Refresh(ABC):
    """What all refreshes have in common: commits, and after each a call that must show it. Only calls are timed."""

    name = ""

    def __init__(self, *, file_count: int, commit_count: int) -> None:
        self._file_count = file_count
        self._commit = commit_count
        self._latencies_s: list[float] = []
        self.row_count = REFRESHES

    def prepare(self) -> None:
        """Forget the turn before."""
        self._latencies_s = []

    def run(self) -> None:
        """Commit and ask, some times."""
        for _ in range(REFRESHES):
            self._commit += 1
            self._append(self._commit, range(self._file_count, self._file_count + FILES_OF_A_COMMIT))
            self._file_count += FILES_OF_A_COMMIT
            began = perf_counter()
            found = self._ask()
            self._latencies_s.append(perf_counter() - began)
            if found != self._file_count:
                raise AssertionError(f"{self.name}: {found} of {self._file_count} data files after a commit")

    def check(self) -> Sequence[Figure]:
        """Say how long the calls took."""
        return latency_figures(self._latencies_s)

    @abstractmethod
    def _append(self, commit: int, numbers: range) -> None:
        """Commit data files of these numbers."""

    @abstractmethod
    def _ask(self) -> int:
        """Ask for the table as it is now, and return how many data files it has."""


class IceDBRefresh(Refresh):
    """Ours: ``max_staleness_ms=0`` right after a commit."""

    def __init__(
        self, address: str, root: Path, *, day: str | None, name: str, file_count: int, commit_count: int
    ) -> None:
        super().__init__(file_count=file_count, commit_count=commit_count)
        self.name = name
        self._store = open_warehouse(f"file://{root}").store
        self._paths = TablePaths(TABLE, TABLE)
        self._stub = StubCaller(address, max_staleness_ms=0, day=day)
        self._stub.open()

    def _append(self, commit: int, numbers: range) -> None:
        time_ms = FIRST_COMMIT_MS + commit * STEP_MS
        markers = [marker(self._paths, number, time_ms) for number in numbers]
        self._store.put_if_absent(*log_file_of(self._paths, commit, time_ms, markers))

    def _ask(self) -> int:
        return self._stub.call()


class DeltaRefresh(Refresh):
    """delta-rs: ``update_incremental`` of a table that is kept open, and ``file_uris``."""

    name = "delta-rs, kept open"

    def __init__(self, root: Path, *, file_count: int, commit_count: int) -> None:
        super().__init__(file_count=file_count, commit_count=commit_count)
        self._root = root
        self._table = DeltaCaller(str(root), is_kept_open=True)
        self._table.open()

    def _append(self, commit: int, numbers: range) -> None:
        write_delta_commit(self._root, commit, delta_adds(numbers, FIRST_COMMIT_MS + commit * STEP_MS))

    def _ask(self) -> int:
        return self._table.call()


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
