"""The task ``icedb.ingest.import``: existing Parquet files become data files of a table. How, is ``docs/import.md``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from icedb_log.names import MERGE_MERGE
from icedb_log.operations import ImportRequest
from icedb_log.results import Work
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.s3_options import S3Options
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_service.redis_clients import LockBusy
from icedb_service.worker import WorkerContext

from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings

if TYPE_CHECKING:
    from icedb_engine.jobs.engine import JobEngine

LOCK_WAIT_MS: Final = 60_000
"""How long a commit waits for a flush of the same table: its copies are worth more than this."""
LOCK_PAUSE_MS: Final = 200


class ImportTasks:
    """The work of the task, in the process that runs it."""

    def __init__(
        self,
        context: "WorkerContext[JobEngine]",
        *,
        settings: IngestSettings,
        metrics: IngestMetrics,
        wake_views: Callable[[TableStore], None],
    ) -> None:
        self._context = context
        self._settings = settings
        self._metrics = metrics
        self._wake_views = wake_views

    def import_files(
        self,
        table: str,
        sources: Sequence[str] = (),
        *,
        mode: str = "copy",
        partition: Mapping[str, str] | None = None,
        dry_run: bool = False,
        changed: bool = False,
        assume: str | None = None,
    ) -> Work:
        """Import files into a table.

        Delivery: sent by the CLI, at most once. A run that is lost may have imported everything, or some commits, or
        nothing; the same request again imports what is missing, and nothing twice.
        """
        opened = self._context.open(table)
        result, work = ImportRequest(sources, mode, partition, dry_run, changed, assume).run(
            opened,
            self._context.engine.importer,
            open_store=self._open_source,
            allowed=self._allowed(),
            hold=partial(self._hold, table),
        )
        if not dry_run:
            self._metrics.record_import(result)
            if result.committed_keys:
                self._context.wakeups.try_wake(MERGE_MERGE, table)
                self._wake_views(opened)
        return work

    def _allowed(self) -> list[str]:
        """Return what may be read on request: not every file of the worker's machine."""
        allowed = list(self._settings.import_sources)
        # Where tenants are told apart, "everything that the worker can read" would be the others' tables, too.
        if not allowed and not self._context.access.guard.is_enforced:
            allowed = ["s3://"]
            if self._settings.store.startswith("file:"):
                allowed.append(self._settings.store)
        return allowed

    def _open_source(self, url: str) -> ObjectStore:
        return StoreSettings(url, source_s3(self._settings)).open().store

    @contextmanager
    def _hold(self, table: str) -> Iterator[None]:
        """Hold the table's lock, waiting for a flush that has it."""
        clock = self._context.clock
        deadline_ms = clock.monotonic_ms() + LOCK_WAIT_MS
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(self._context.lock(table))
                    break
                except LockBusy:
                    if clock.monotonic_ms() >= deadline_ms:
                        raise
                    clock.sleep_ms(LOCK_PAUSE_MS)
            yield


def source_s3(settings: IngestSettings) -> S3Options:
    """Return how to reach S3 sources: the worker's endpoint and credentials, also if the warehouse is a directory."""
    return settings.store_settings.s3 or S3Options(endpoint_url=settings.s3_endpoint, region=settings.s3_region)
