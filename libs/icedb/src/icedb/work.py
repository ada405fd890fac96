"""What workers of the stack do, in this process: one task now (``--local``), or all that is due (``icedb work``).

A task takes the arguments, and gives the details, of the services' task of the same name (:mod:`icedb_log.names`). What
is due is found in the store alone. Any number of these may run, beside each other and beside workers of the stack.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from icedb_log.changes.partition_removal import remove_partitions
from icedb_log.changes.retention import retain_table
from icedb_log.clean.orphans import DEFAULT_MAX_SHARE, OrphanPolicy
from icedb_log.erasure.erasure_run import advance_erasure, describe_preview, describe_progress
from icedb_log.errors import IceDBError, NotFound, Unavailable, crashes_told
from icedb_log.feed.feeds import describe_feeds
from icedb_log.feed.views import is_feed_needed, open_source
from icedb_log.holds.erasures import list_open_ids
from icedb_log.imports.import_sources import list_sources, parse_pattern
from icedb_log.imports.imports import data_url, import_files, make_options
from icedb_log.ingest.staging import list_staged
from icedb_log.intervals import Backoff, Intervals
from icedb_log.merge.merge import MergeWatch
from icedb_log.names import (
    INGEST_CHECK_QUERY,
    INGEST_FEED,
    INGEST_FLUSH,
    INGEST_IMPORT,
    JANITOR_ORPHANS,
    JANITOR_PURGE,
    JANITOR_VACUUM,
    MERGE_CHANGE,
    MERGE_COLD,
    MERGE_DROP_PARTITIONS,
    MERGE_ERASE,
    MERGE_MERGE,
    MERGE_RETAIN,
)
from icedb_log.publish.head import read_publication
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings
from icedb_log.table.partitions import select_partitions
from icedb_log.table.table_config import TableConfig
from icedb_log.trash.purge import has_work, purge_table, read_now_ms
from icedb_log.units import HOUR_MS, MINUTE_MS, SECOND_MS

from icedb.lake import check_queries

if TYPE_CHECKING:
    from icedb.lake import Lake
    from icedb.lake_table import LakeTable

DUE_EVERY_MS: Final[Mapping[str, int]] = {
    INGEST_FLUSH: SECOND_MS,
    INGEST_FEED: SECOND_MS,
    MERGE_MERGE: 10 * SECOND_MS,
    MERGE_COLD: 10 * MINUTE_MS,
    MERGE_RETAIN: HOUR_MS,
    MERGE_ERASE: MINUTE_MS,
    JANITOR_VACUUM: 30 * SECOND_MS,
    JANITOR_ORPHANS: HOUR_MS,
}
"""How often a worker looks at each table for each task, in the order in which it does them; as the services do."""
PUBLISH_EVERY_MS: Final = 5 * SECOND_MS
PUBLISH: Final = "icedb.iceberg.publish"
"""What the gateway does besides of its own accord: publishing tables of ``iceberg = on-commit``."""
COMMITTING: Final = frozenset({INGEST_FLUSH, INGEST_FEED, PUBLISH})
"""What has a thread of its own in a worker that does not end by itself."""
PURGE_EVERY_MS: Final = 30 * SECOND_MS
MAX_ROUNDS: Final = 100
_NOTHING: Final[Mapping[str, Any]] = {}

Details = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """What a worker has done, or could not do.

    Attributes:
        task: The task.
        table: Its table.
        details: What it did.
        problem: Why it did not; it is tried again, later each time.
    """

    task: str
    table: str
    details: Details
    problem: IceDBError | None = None


class Worker:
    """Does tasks on the tables of a lake: commits in one thread, everything else in another. Called by one thread.

    What goes wrong at one table is told, whatever it is, and tried again later; the others have their turn.

    Args:
        lake: The lake.
        stops: Asked between units of work; once it says yes, nothing new is begun.
    """

    def __init__(self, lake: "Lake", *, stops: Callable[[], bool] = lambda: False) -> None:
        self._lake = lake
        self._ends = threading.Event()
        self._stops_asked = stops
        self._due = {task: Intervals(lake.clock, every_ms) for task, every_ms in DUE_EVERY_MS.items()}
        self._due[PUBLISH] = Intervals(lake.clock, PUBLISH_EVERY_MS)
        self._purges = Intervals(lake.clock, PURGE_EVERY_MS)
        self._backoff = Backoff(lake.clock)
        self._tasks: Mapping[str, Callable[..., tuple[bool, Details]]] = {
            INGEST_FLUSH: self._flush,
            INGEST_FEED: self._feed,
            INGEST_IMPORT: self._import,
            INGEST_CHECK_QUERY: self._check_query,
            MERGE_MERGE: self._merge,
            MERGE_COLD: partial(self._merge, cold=True),
            MERGE_CHANGE: self._change,
            MERGE_DROP_PARTITIONS: self._drop_partitions,
            MERGE_RETAIN: self._retain,
            MERGE_ERASE: self._erase,
            JANITOR_VACUUM: self._vacuum,
            JANITOR_ORPHANS: self._sweep_orphans,
            JANITOR_PURGE: self._purge,
            PUBLISH: self._publish,
        }

    def _stops(self) -> bool:
        return self._ends.is_set() or self._stops_asked()

    def run(self, task: str, table: str, arguments: Mapping[str, Any] = _NOTHING) -> Details:
        """Do one task now, and return what the services' task of that name returns.

        Raises:
            IceDBError: As the operation; what was committed by then stays.
        """
        did, details = self._tasks[task](table, **arguments)
        return {"task": task, "task_id": "", "table": table, "outcome": "done" if did else "idle", **details}

    def work(self, tell: Callable[[Done], None], *, until_idle: bool = False, pause_ms: int = 200) -> None:
        """Do what is due on all tables, again and again.

        Unless it ends by itself, commits have a thread of their own: no merge holds them up, however long it is.

        Args:
            tell: Told of each task that did something, and of each that could not; one thread at a time.
            until_idle: Return once a look at everything finds nothing to do, instead of waiting for more.
            pause_ms: How long to rest between two looks.

        Raises:
            Unavailable: ``until_idle``, and the tables cannot be listed.
        """
        if until_idle:
            self._repeat(tell, self._due.keys(), until_idle=True)
            return
        telling = threading.Lock()
        problems: list[BaseException] = []

        def tell_alone(done: Done) -> None:
            with telling:
                tell(done)

        def commit() -> None:
            try:
                self._repeat(tell_alone, COMMITTING, pause_ms=pause_ms)
            except BaseException as error:  # noqa: BLE001 - raised again where the worker was called
                problems.append(error)
                self._ends.set()

        committer = threading.Thread(target=commit, name="icedb-work-commits", daemon=True)
        committer.start()
        try:
            self._repeat(tell_alone, self._due.keys() - COMMITTING, pause_ms=pause_ms)
        finally:
            self._ends.set()
            committer.join()
        if problems:
            raise problems[0]

    def _repeat(
        self, tell: Callable[[Done], None], tasks: Collection[str], *, until_idle: bool = False, pause_ms: int = 0
    ) -> None:
        """Do what is due of some tasks until the worker stops, or until a look finds nothing to do."""
        for count, _ in enumerate(iter(self._stops, True)):
            try:
                did = self._work_once(tell, tasks, is_all_due=until_idle)
            except Unavailable as error:
                if until_idle:
                    raise
                tell(Done("icedb.work", "", {}, error))
                did = False
            if until_idle and (not did or count == MAX_ROUNDS):
                return
            if not until_idle:
                self._lake.clock.sleep_ms(pause_ms)

    def _work_once(self, tell: Callable[[Done], None], tasks: Collection[str], *, is_all_due: bool) -> bool:
        """Do once what is due; return whether anything was done."""
        did = False
        for table in self._lake.tables():
            for task, due in self._due.items():
                if task in tasks and (is_all_due or due.is_due(table)):
                    due.note(table)
                    did |= self._try(task, table, tell, is_asked=is_all_due)
        if JANITOR_VACUUM in tasks and (is_all_due or self._purges.is_due("")):
            self._purges.note("")
            did |= self._purge_due(tell, is_asked=is_all_due)
        return did

    def _purge_due(self, tell: Callable[[Done], None], *, is_asked: bool) -> bool:
        did = False

        def tell_one(name: str, error: Unavailable) -> None:
            tell(Done(JANITOR_PURGE, name, {}, error))

        try:
            now_ms = read_now_ms(self._lake.warehouse)
            dropped = self._lake.warehouse.list_dropped(on_problem=tell_one)
            due = [each.name for each in dropped if has_work(each, now_ms=now_ms)]
        except IceDBError as error:  # the tables that are not dropped have had their turn
            tell(Done(JANITOR_PURGE, "", {}, error))
            return False
        for name in due:
            did |= self._try(JANITOR_PURGE, name, tell, is_asked=is_asked)
        return did

    def _try(self, task: str, table: str, tell: Callable[[Done], None], *, is_asked: bool) -> bool:
        key = f"{task}:{table}"
        if self._stops() or not (is_asked or self._backoff.is_due(key)):
            return False
        try:
            with crashes_told(f"table {table}: {task}"):
                did, details = self._tasks[task](table)
        except NotFound:
            return False  # dropped meanwhile
        except IceDBError as error:  # of this table alone: the others have their turn
            self._backoff.record_failure(key)
            tell(Done(task, table, {}, error))
            return False
        self._backoff.record_success(key)
        if did:
            tell(Done(task, table, details))
        return did

    def _flush(self, table: str) -> tuple[bool, Details]:
        place = self._lake.table(table)
        if not list_staged(place.place, limit=1).batches:
            return False, {}
        results = [place.flush(is_staged=True)]
        while results[-1].has_more and results[-1].committed_key and not self._stops():
            results.append(place.flush(is_staged=True))
        details = {
            "commits": sum(1 for each in results if each.committed_key),
            "batches": sum(each.batch_count for each in results),
            "rows": sum(each.row_count for each in results),
            "files": sum(each.file_count for each in results),
            "bad_rows": sum(each.bad_row_count for each in results),
            "misfits": sum(each.misfit_count for each in results),
            "rejected": sum(len(each.rejected) for each in results),
        }
        return any(details.values()), details

    def _feed(self, table: str) -> tuple[bool, Details]:
        place = self._lake.table(table)
        view = place.open()
        if view.config.view_of is None or not is_feed_needed(view, open_source(view)):
            return False, {}
        result = place.feed()
        return result.committed_key is not None, describe_feeds([result])

    def _merge(self, table: str, *, full: bool = False, cold: bool = False) -> tuple[bool, Details]:
        result = self._lake.table(table).merge(
            full=full, cold=cold, watch=MergeWatch(has_time=lambda: not self._stops())
        )
        return result.commit_count > 0, {**result.details(), "has_more": False}

    def _change(
        self, table: str, *, kind: str, sql: str, partitions: Sequence[str] = (), dry_run: bool = False
    ) -> tuple[bool, Details]:
        place = self._lake.table(table)
        if kind == "delete":
            result = place.delete(sql, dry_run=dry_run)
        else:
            result = place.rewrite(sql, partitions=partitions, dry_run=dry_run)
        details = result.details("delete" if kind == "delete" else "rewrite")
        return result.file_count > 0, {"kind": kind, "dry_run": dry_run, **details}

    def _drop_partitions(self, table: str, *, globs: Sequence[str], may_match_all: bool) -> tuple[bool, Details]:
        place = self._lake.table(table)
        with place.merging:
            removal = remove_partitions(
                place.open(),
                lambda _, infos: select_partitions(table, globs, [i.path for i in infos], may_match_all=may_match_all),
            )
        return bool(removal.partitions), removal.details()

    def _retain(self, table: str, *, force: bool = False) -> tuple[bool, Details]:
        place = self._lake.table(table)
        if place.open().config.retention_ms is None:
            return False, {}
        with place.merging:
            result = retain_table(place.open(), force=force)
        return bool(result.removal.partitions), result.details()

    def _erase(self, table: str, *, preview: str | None = None) -> tuple[bool, Details]:
        place = self._lake.table(table)
        if preview is not None:
            found = place.delete(preview, dry_run=True)
            return found.rows_removed > 0, describe_preview(found)
        changer = self._lake.engine.changer
        with place.merging:
            progress = [advance_erasure(place.open(), changer, each) for each in list_open_ids(place.place)]
        return any(each.has_changed for each in progress), describe_progress(progress)

    def _vacuum(self, table: str) -> tuple[bool, Details]:
        result = self._lake.table(table).vacuum()
        return bool(result.deleted_logs or result.deleted_data or result.stripped_count), result.details()

    def _sweep_orphans(
        self, table: str, *, older_than_ms: int | None = None, max_share: float | None = None, force: bool = False
    ) -> tuple[bool, Details]:
        policy = OrphanPolicy(older_than_ms, DEFAULT_MAX_SHARE if max_share is None else max_share, force)
        details = self._lake.table(table).sweep_orphans(policy)
        return bool(details["deleted_orphans"] or details["deleted_leftovers"]), details

    def _purge(self, table: str) -> tuple[bool, Details]:
        place, lake = self._lake.warehouse.table(table), self._lake
        result = purge_table(place, clock=lake.clock, owner=lake.owner)
        details = {"state": result.state, "deleted": result.deleted_count, "failed": len(result.failed)}
        return result.deleted_count > 0, details

    def _publish(self, table: str) -> tuple[bool, Details]:
        place = self._lake.table(table)
        if place.open().config.iceberg != "on-commit":
            return False, {}
        before = read_publication(place.place)
        uri = place.publish()
        return before is None or not uri.endswith(before.metadata_key), {"metadata": uri}

    def _check_query(
        self, table: str, *, config: Mapping[str, Any], schema: Mapping[str, str] | None = None
    ) -> tuple[bool, Details]:
        del table  # it need not exist
        return True, {"schema": dict(check_queries(self._lake, TableConfig.model_validate(config), schema))}

    def _import(
        self,
        table: str,
        *,
        sources: Sequence[str] = (),
        mode: str = "copy",
        partition: Mapping[str, str] | None = None,
        dry_run: bool = False,
        changed: bool = False,
        assume: str | None = None,
    ) -> tuple[bool, Details]:
        place: LakeTable = self._lake.table(table)
        opened = place.open()
        options = make_options(opened.config, mode, partition, dry_run=dry_run, changed=changed, assume=assume)
        own = [data_url(opened)] if options.mode == "in_place" else []
        s3 = self._lake.client.settings.s3 or S3Options()
        found = list_sources(
            [parse_pattern(text) for text in sources or own],
            open_store=lambda url: StoreSettings(url, s3).open().store,
            allowed=["s3://", "file:///", *own],  # whoever runs this may read what it may read
        )
        with place.flushing:
            result = import_files(opened, self._lake.engine.importer, found, options=options)
        did = bool(result.file_count or result.refused or dry_run)
        return did, {"mode": mode, "sources": len(found), **result.details()}
