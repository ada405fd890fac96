"""The task ``icedb.ingest.import``: existing Parquet files become data files of a table. How, is ``docs/import.md``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.ingest.import_sources import list_sources, parse_pattern
from icedb_log.ingest.imports import ImportOptions, ImportResult, data_url, import_files
from icedb_log.ingest.pressure import MAX_LOG_FILES
from icedb_log.names import MERGE_MERGE
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.stores import S3Options, StoreSettings
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig
from icedb_service.redis_clients import LockBusy
from icedb_service.runs import Work
from icedb_service.worker import WorkerContext

from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings

if TYPE_CHECKING:
    from icedb_engine.spark.spark_engine import SparkEngine

LOCK_WAIT_MS: Final = 60_000
"""How long a commit waits for a flush of the same table: its copies are worth more than this."""
LOCK_PAUSE_MS: Final = 200
MAX_REASONS: Final = 100
MAX_PARTITIONS: Final = 1000
"""What a result names one by one; it has the numbers of all."""

_MODES: Final = ("copy", "in_place")
_ASSUMPTIONS: Final = (None, "landed", "lost")


class ImportTasks:
    """The work of the task, in the process that runs it."""

    def __init__(
        self,
        context: "WorkerContext[SparkEngine]",
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
        options = _make_options(opened.config, mode, partition, dry_run=dry_run, changed=changed, assume=assume)
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
        return Work(is_idle=is_idle, details={"mode": mode, "sources": len(found), **_describe(result)})

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


def _make_options(
    config: TableConfig,
    mode: str,
    partition: Mapping[str, str] | None,
    *,
    dry_run: bool,
    changed: bool,
    assume: str | None,
) -> ImportOptions:
    partition = partition or {}
    names = [field.name for field in config.partition]
    unknown = next((name for name in partition if name not in names), None)
    if unknown is not None:
        raise InvalidRequest(
            f"table {config.name} has no partition {str(unknown)[:80]!r}, only {', '.join(names) or 'none at all'}"
        )
    if not all(isinstance(value, str) for value in partition.values()):
        raise InvalidRequest("partition values are text")
    if mode not in _MODES or assume not in _ASSUMPTIONS:
        raise InvalidRequest(f"mode is one of {', '.join(_MODES)}, assume landed or lost; not {mode!r} and {assume!r}")
    return ImportOptions(
        mode="in_place" if mode == "in_place" else "copy",
        partition=partition,
        is_dry_run=dry_run,
        takes_changed=changed,
        assumed="landed" if assume == "landed" else "lost" if assume == "lost" else None,
    )


def _describe(result: ImportResult) -> dict[str, Any]:
    return {
        "dry_run": result.is_dry_run,
        "commits": len(result.committed_keys),
        "files": result.file_count,
        "rows": result.row_count,
        "bytes": result.size_bytes,
        "unsorted": result.unsorted_count,
        "imported_before": result.imported_before_count,
        "empty": result.empty_count,
        "refused": len(result.refused),
        "reasons": [{"file": each.url, "reason": each.reason} for each in result.refused[:MAX_REASONS]],
        "partition_count": len(result.partitions),
        "partitions": [
            {"partition": partition, "rows": rows}
            for partition, rows in sorted(result.partitions.items())[:MAX_PARTITIONS]
        ],
    }
