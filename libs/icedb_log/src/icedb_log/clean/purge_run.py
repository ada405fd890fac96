"""One run of a purge: what is deleted, in which order, and how it is kept from deleting anything of a new table.

WARN: data files before log files. Readers of v3 do not know ``table.json``: of half a log they would read rows twice (a
tombstone is gone, what it killed is not) or not at all, and not notice. Of a log without its data files they read
nothing and fail; the log itself goes when all that it names is gone.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final, Literal

from icedb_log.clean.audit import AuditLog, RunFacts
from icedb_log.clean.claims import Claim
from icedb_log.clean.deletion import CHUNK_KEYS, Deleter, Doomed
from icedb_log.clean.drop import replace_config
from icedb_log.clean.purge_progress import PurgeProgress, read_progress, write_progress
from icedb_log.clock import Clock
from icedb_log.errors import CorruptLog, Fenced, IceDBError, NotFound, Unavailable, UnsupportedFormat
from icedb_log.keys import ROLES, TablePaths, file_time_ms
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fence import acquire_fence
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE, DeleteFailure, FailedDelete, ObjectInfo
from icedb_log.store.table_store import TableStore
from icedb_log.table.drop_mark import Dropped
from icedb_log.table.stored_config import load_any_config
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MINUTE_MS

PurgeState = Literal["kept", "waiting", "purging", "purged"]
"""``kept``: not dropped, or its time is not over; ``waiting``: it is over, and somebody needs the table; ``purging``:
the run ended before the purge did; ``purged``: all is gone."""

MAX_SEAL_BYTES: Final = 128
"""No seal is larger, and hardly another log file as small: only these are looked at for being one."""
_NO_ANSWER: Final[tuple[DeleteFailure, ...]] = ("unanswered", "other")
_MAX_ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class PurgeLimits:
    """Bounds of one run.

    Attributes:
        run_ms: After this no new chunk is begun; the next run goes on.
        chunk_keys: Objects deleted between two looks at the lock, and held in memory.
        page_keys: Keys of one page of a listing.
    """

    run_ms: int = 5 * MINUTE_MS
    chunk_keys: int = CHUNK_KEYS
    page_keys: int = MAX_KEYS_PER_PAGE


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """What one run did.

    Attributes:
        state: How the table stands now.
        deleted_count: Objects deleted by this run.
        deleted_bytes: Of them.
        failed: What could not be deleted; the next run tries again.
        waits_for: Who needs the table.
    """

    state: PurgeState
    deleted_count: int = 0
    deleted_bytes: int = 0
    failed: tuple[FailedDelete, ...] = ()
    waits_for: tuple[Claim, ...] = ()


@dataclass(slots=True)
class _Tally:
    count: int = 0
    size_bytes: int = 0
    failed: list[FailedDelete] = field(default_factory=list)


class PurgeRun:
    """One run of one purge. For one thread, once.

    Args:
        store: The object store.
        paths: Keys of the table.
        config: Its configuration, as it was.
        drop_id: Of the drop.
        clock: Makes ids, and bounds the run.
        owner: Who does this, for people.
        limits: Bounds of the run.
    """

    def __init__(
        self,
        table: TableStore,
        config: TableConfig,
        drop_id: str,
        *,
        clock: Clock,
        owner: str,
        limits: PurgeLimits,
    ) -> None:
        self._store = table.store
        self._paths = table.paths
        self._config = config
        self._drop_id = drop_id
        self._clock = clock
        self._owner = owner
        self._me = f"{owner}/{clock.new_id()}"
        self._limits = limits
        self._ends_ms = clock.monotonic_ms() + limits.run_ms
        self._tally = _Tally()
        self._seals: set[str] = set()
        self._has_joined = False
        self._is_unanswered = False
        self._before = PurgeProgress(drop_id, 0)

    def purge(self, *, audit: AuditLog | None, check_alive: Callable[[], None] | None) -> PurgeResult:
        """Take the fences, delete what goes, and say so in the mark. Raises as ``purge_table``."""
        table = Table.of(
            self._config, TableStore(self._store, self._paths), clock=self._clock, owner=f"purge {self._owner}"
        )
        for role in ROLES:
            # T4: from here on nobody commits who knew the table: what was under way has landed or is sealed, and who
            # comes later has another incarnation in mind.
            acquire_fence(table, role, becomes=self._drop_id)
        now_ms = self._store.list_page(self._paths.config_key, limit=1).store_now_ms
        self._before = read_progress(TableStore(self._store, self._paths), drop_id=self._drop_id) or PurgeProgress(
            self._drop_id, now_ms
        )
        facts = RunFacts("purge", now_ms, {"keep_ms": self._config.dropped.keep_ms if self._config.dropped else None})
        deleter = Deleter(
            self._store,
            audit=None if audit is None else audit.begin(facts),
            check_alive=None if check_alive is None else partial(self._check_alive, check_alive),
            chunk_keys=self._limits.chunk_keys,
        )
        is_empty = self._delete_all(deleter)
        self._write_progress()
        self._leave(is_empty=is_empty)
        return PurgeResult(
            "purged" if is_empty else "purging", self._tally.count, self._tally.size_bytes, tuple(self._tally.failed)
        )

    def _delete_all(self, deleter: Deleter) -> bool:
        """Delete everything that goes; return whether a listing has found nothing any more."""
        everything = f"{self._paths.prefix}/"
        for prefix in (self._paths.data_prefix, f"{self._paths.prefix}/_log", everything):
            while self._delete_below(deleter, prefix):
                if self._tally.failed or self._is_over():
                    return False
        return True

    def _delete_below(self, deleter: Deleter, prefix: str) -> bool:
        """Go once through what lies below a prefix; return whether there was anything to delete.

        What may be deleted late goes first: only for the rest the run has to be registered (T5).
        """
        has_found = False
        for may_be_late in (True, False):
            found = (
                info
                for info in self._list(prefix)
                if not self._stays(info) and _may_be_late(self._paths, info.key) is may_be_late
            )
            while chunk := list(islice(found, self._limits.chunk_keys)):
                has_found = True
                self._delete(deleter, chunk, may_be_late=may_be_late)
                if self._is_over():
                    return True
        return has_found

    def _delete(self, deleter: Deleter, chunk: list[ObjectInfo], *, may_be_late: bool) -> None:
        # WARN: T5: after the listing. A run sleeps before it lists, another one ends the purge, the table is created
        # anew: what this run lists is the new table. While the mark is there, there was none when it was listed.
        self._require_purging()
        if not may_be_late:
            self._join()
        sizes = {info.key: info.size_bytes for info in chunk}
        done = deleter.delete(
            Doomed(info.key, "dropped_table", "its table was dropped", ("trash",), size_bytes=info.size_bytes)
            for info in chunk
        )
        self._tally.count += len(done.keys)
        self._tally.size_bytes += sum(sizes[key] for key in done.keys)
        self._tally.failed += done.failed
        if not may_be_late:
            self._is_unanswered |= any(each.kind in _NO_ANSWER for each in done.failed)
        self._write_progress()

    def _check_alive(self, check_alive: Callable[[], None]) -> None:
        """Ask whether the run goes on; one that is stopped here has nothing under way, and takes itself out (T5)."""
        try:
            check_alive()
        except IceDBError:
            with contextlib.suppress(IceDBError):
                self._leave(is_empty=False)
            raise

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield what lies below a prefix, page by page: a table may have millions of objects."""
        token: str | None = None
        while True:
            page = self._store.list_page(prefix, token=token, limit=self._limits.page_keys)
            for info in page.objects:
                if not self._is_young_seal(info, now_ms=page.store_now_ms):
                    yield info
            token = page.next_token
            if token is None:
                return

    def _stays(self, info: ObjectInfo) -> bool:
        paths = self._paths
        kept = (paths.fences_prefix, paths.closed_erasures_prefix, paths.audit_prefix, paths.views_prefix)
        return info.key in (paths.config_key, paths.purge_key) or info.key.startswith(kept)

    def _is_young_seal(self, info: ObjectInfo, *, now_ms: int) -> bool:
        """Whether a log file is a seal whose time is not over (F4)."""
        if not info.key.startswith(self._paths.log_prefix) or info.size_bytes > MAX_SEAL_BYTES:
            return False
        if info.modified_ms + self._config.seal_age_ms <= now_ms:
            return False
        if info.key not in self._seals and self._is_seal(info.key):
            self._seals.add(info.key)
        return info.key in self._seals

    def _is_seal(self, key: str) -> bool:
        try:
            return decode_log_file(key, self._store.get(key).body).is_seal
        except (NotFound, CorruptLog, UnsupportedFormat):
            return False  # nobody writes a seal that cannot be read

    def _is_over(self) -> bool:
        return self._clock.monotonic_ms() >= self._ends_ms

    # ── the mark ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _require_purging(self) -> None:
        """Look whether the purge still goes on: no table has been created in the place of this one, then."""
        self._require_mine(load_any_config(TableStore(self._store, self._paths))[0].dropped)

    def _require_mine(self, mark: Dropped | None) -> Dropped:
        if mark is None or mark.drop_id != self._drop_id or mark.state != "purging":
            raise Fenced(f"table {self._paths.name}: another run has ended this purge; this one stops")
        return mark

    def _join(self) -> None:
        """Say in ``table.json`` that this run deletes names that can come again (T5).

        WARN: before the first such delete, and by compare-and-set: a run lists a staged batch and sleeps; another one
        deletes it and ends the purge, the table is created anew, the producer sends the batch again, with the same id,
        and the first run wakes up and deletes what was accepted. A new table waits for runs that did not end (T6).
        """
        if not self._has_joined:
            self._change_mark(lambda mark: _with_purgers(mark, {*mark.purgers, self._me}))
            self._has_joined = True

    def _leave(self, *, is_empty: bool) -> None:
        """Say that this run has ended, and, if all is gone, that the table is purged.

        A run that the store did not answer stays registered: its deletes may still be under way.
        """
        if self._is_unanswered or not (self._has_joined or is_empty):
            return
        change = {"state": "purged"} if is_empty else {}
        self._change_mark(lambda mark: _with_purgers(mark, {*mark.purgers} - {self._me}).model_copy(update=change))

    def _change_mark(self, change: Callable[[Dropped], Dropped]) -> None:
        wanted: Dropped | None = None
        for _ in range(_MAX_ATTEMPTS):
            config, info = load_any_config(TableStore(self._store, self._paths))
            mark = config.dropped
            if mark is not None and mark == wanted:
                return  # W2: what was written landed
            wanted = change(self._require_mine(mark))
            if wanted == mark:
                return
            replace_config(
                TableStore(self._store, self._paths), config.model_copy(update={"dropped": wanted}), etag=info.etag
            )
        raise Unavailable(
            f"table {self._paths.name}: others changed {self._paths.config_key} {_MAX_ATTEMPTS} times; the next run "
            "goes on"
        )

    def _write_progress(self) -> None:
        before, failed = self._before, self._tally.failed
        write_progress(
            TableStore(self._store, self._paths),
            replace(
                before,
                deleted_count=before.deleted_count + self._tally.count,
                deleted_bytes=before.deleted_bytes + self._tally.size_bytes,
                failed_count=len(failed),
                problem=failed[0].reason if failed else "",
            ),
        )


def _with_purgers(mark: Dropped, purgers: set[str]) -> Dropped:
    return mark.model_copy(update={"purgers": tuple(sorted(purgers))})


def _may_be_late(paths: TablePaths, key: str) -> bool:
    """Whether it does no harm to delete this name at any time, also below a new table.

    Names of ids that are made afresh never come again. Not so those that a producer or an operator chooses: batches
    (staged, in quarantine), producers' keys, files that are imported in place; nor those that we do not know.
    """
    if key.startswith(paths.data_prefix):
        return file_time_ms(key) is not None
    never_again = (
        paths.log_prefix,
        paths.leases_prefix,
        paths.pins_prefix,
        paths.imports_prefix,
        paths.erasures_prefix,
    )
    return key.startswith(never_again) or key in (paths.clock_key, paths.pressure_key, paths.orphan_record_key)
