"""The task ``icedb.ingest.import``: existing Parquet files become data files of a table. How, is ``docs/import.md``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from icedb_log.commit.invariants import MAX_LOG_FILES
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.imports.import_sources import list_sources, parse_pattern
from icedb_log.imports.imports import data_url, import_files, make_options
from icedb_log.names import MERGE_MERGE
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.s3_options import S3Options
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_service.redis_clients import LockBusy
from icedb_service.runs import Work
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
        options = make_options(opened.config, mode, partition, dry_run=dry_run, changed=changed, assume=assume)
        log_files = len(opened.read_log().files)
        if log_files >= MAX_LOG_FILES and not dry_run:
            raise Unavailable(
                f"table {table}: the log has {log_files} files and takes no more than {MAX_LOG_FILES}: merges and "
                "vacuum have to bring it down first"
            )
        if not isinstance(sources, list | tuple) or not all(isinstance(text, str) for text in sources):
            raise InvalidRequest("import sources are a list of URLs")
        own_files = [data_url(opened)] if options.mode == "in_place" else []
        found = list_sources(
            [parse_pattern(text) for text in sources or own_files],
            open_store=self._open_source,
            allowed=[*self._allowed(), *own_files],
        )
        hold = partial(self._hold, table)
        result = import_files(opened.renewed(), self._context.engine.importer, found, options=options, hold=hold)
        if not dry_run:
            self._metrics.record_import(result)
            if result.committed_keys:
                self._context.wakeups.try_wake(MERGE_MERGE, table)
                self._wake_views(opened)
        is_idle = not (result.file_count or result.refused or dry_run)
        return Work(is_idle=is_idle, details={"mode": mode, "sources": len(found), **result.details()})

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
