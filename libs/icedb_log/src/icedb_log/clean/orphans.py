"""The orphan sweep: data files that no log file names (rule J5).

Order: a listing of the whole table; if something may go, the commits under way are settled; the log; the deletion. A
file that a commit made live after the listing is named by the log that is read after it; a worker that wakes up cannot
name what was deleted, its commit was settled before.

| guard | keeps | until |
| --- | --- | --- |
| ``age`` | what is younger than the orphan age, by LastModified or by its name | it is old enough |
| ``share`` | everything, while too much of the table is unnamed | a person looks |

One look decides. Who moves log files away for a while, be it for a minute, stops the janitor first. Only data files
below ``_data/`` that end in ``.parquet`` are ever deleted here. What is of no known kind is reported and kept, wherever
it lies.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

from icedb_log.clean.deletion import AuditLog, DeleteCandidate, Deleted, RunFacts, open_deleter
from icedb_log.clean.leftovers import find_leftover_ages
from icedb_log.clean.table_walk import TableWalk, Tally, born_ms, walk_table
from icedb_log.commit.fence import settle_fence
from icedb_log.commit.table import Table
from icedb_log.errors import InvalidRequest
from icedb_log.holds.stored_holds import HoldReader
from icedb_log.keys import ROLES
from icedb_log.log.markers import markers_of
from icedb_log.model import LogView
from icedb_log.store.object_store import FailedDelete, ObjectInfo
from icedb_log.store.store_clock import check_store_clock
from icedb_log.table.table_config import TableConfig

OrphanGuard = Literal["age", "share"]

DEFAULT_MAX_SHARE: Final = 0.25
"""So much of the bytes of a table may be orphans before a person has to look: its log may be what is missing."""


@dataclass(frozen=True, slots=True)
class OrphanPolicy:
    """What one sweep is told.

    Attributes:
        older_than_ms: The age from which on an unnamed data file is an orphan; ``None``: the table's ``orphan_age_ms``.
            Never lower than that: W3 is built on it.
        max_share: Part of the bytes of all data files that may be orphans, 0 to 1. 1: the share is not looked at.
        is_forced: Delete whatever the share is. Nothing else is overruled.
    """

    older_than_ms: int | None = None
    max_share: float = DEFAULT_MAX_SHARE
    is_forced: bool = False

    def age_ms(self, config: TableConfig) -> int:
        """Return the age that counts.

        Raises:
            InvalidRequest: An age below the table's, or a share that is none.
        """
        if not 0 <= self.max_share <= 1:
            raise InvalidRequest(f"table {config.name}: a share lies between 0 and 1, {self.max_share:g} does not")
        if self.older_than_ms is None:
            return config.orphan_age_ms
        if self.older_than_ms < config.orphan_age_ms:
            raise InvalidRequest(
                f"table {config.name}: data files that are {self.older_than_ms} ms old may still be committed, its "
                f"orphan age is {config.orphan_age_ms} ms: give that or more (`icedb table show {config.name}`)"
            )
        return self.older_than_ms

    @property
    def is_without_share(self) -> bool:
        """Whether the share is not looked at."""
        return self.is_forced or self.max_share >= 1


@dataclass(frozen=True, slots=True)
class WaitingOrphan:
    """An unnamed data file that is kept for now.

    Its guard ends at ``until_ms`` by the store's clock; ``None``: when a person acts, or the share gets smaller.
    """

    key: str
    guard: OrphanGuard
    until_ms: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OrphanPlan:
    """What may go.

    Attributes:
        candidates: Orphans that may go now.
        waiting: The others, and young ones as far as the walk holds them.
        held: Of what is old, what the share guard keeps until somebody forces it.
        share: Part of the bytes of all data files that are old and unnamed, 0 to 1.
    """

    candidates: tuple[ObjectInfo, ...]
    waiting: tuple[WaitingOrphan, ...]
    held: Tally
    share: float


@dataclass(frozen=True, slots=True)
class OrphanResult:
    """What an orphan sweep did, or would do (``dry_run``).

    Attributes:
        is_dry_run: Whether nothing was touched.
        walk: What lies below the table's prefix; of data files, those that nothing names.
        deleted: Orphans deleted.
        failed: Orphans that could not be deleted; the next sweep tries again.
        waiting: Unnamed data files that are kept for now, and why; at most 210,000 of them, the oldest first.
        share: Part of the bytes of all data files that orphans are, 0 to 1.
        max_share: More than this is not deleted.
        held: Orphans that the share guard keeps: somebody has to look whether the log is whole (``icedb fsck``), and to
            force the deletion if it is.
    """

    is_dry_run: bool
    walk: TableWalk
    deleted: tuple[str, ...]
    failed: tuple[FailedDelete, ...]
    waiting: tuple[WaitingOrphan, ...]
    share: float
    max_share: float
    held: Tally


def sweep_orphans(
    table: Table, *, dry_run: bool = False, policy: OrphanPolicy | None = None, audit: AuditLog | None = None
) -> OrphanResult:
    """Delete the data files that no log file names and that are old. Idempotent.

    Args:
        table: The table. This host's clock decides nothing about ages. Its ``check_alive`` is called before each chunk
            is deleted; raises to stop the run.
        dry_run: Touch nothing; the result says what would be deleted, and what waits for which guard.
        policy: Age and share; by default the table's age and a quarter.
        audit: Where it is written down what is deleted, and why.

    Raises:
        InvalidRequest: The policy asks for an age below the table's, or for a share that is none.
        NotFound: The table is dropped meanwhile.
        HaltError: The log cannot be read, or no age can be told by this store; nothing was deleted.
        Unavailable: The store did not answer, or its clock jumped.
        CommitOutcomeUnknown: The same, about a commit under way; nothing was deleted.
    """
    config = table.config
    policy = policy or OrphanPolicy()
    age_ms = policy.age_ms(config)
    walk = walk_table(
        table,
        named=_named(table.read_log()),  # decides nothing: J5 asks the log again after the listing
        age_ms=age_ms,
        leftover_ages_ms=find_leftover_ages(config),
    )
    is_settled = bool(plan_orphans(walk, config=config, policy=policy).candidates) and not dry_run
    if is_settled:
        # WARN: a worker that stalls between its last look at the time (W3) and its PUT would name what is deleted
        # here. Its intent is in the fence by then: its commit is settled, and only a log read after that counts.
        for role in ROLES:
            settle_fence(table, role)
    walk.keep_unnamed(_named(table.read_log()) | _tagged(table))  # J5: after the listing; J4
    plan = plan_orphans(walk, config=config, policy=policy)
    deleted = Deleted()
    if dry_run:
        deleted = Deleted(frozenset(info.key for info in plan.candidates))
    elif plan.candidates and is_settled:
        check_store_clock(table.store, table.paths.clock_key, clock=table.clock)  # before anything goes by its age
        deleted = _delete(table, plan, policy, audit, store_now_ms=walk.store_now_ms)
    return OrphanResult(
        is_dry_run=dry_run,
        walk=walk,
        deleted=tuple(sorted(deleted.keys)),
        failed=deleted.failed,
        waiting=plan.waiting,
        share=plan.share,
        max_share=policy.max_share,
        held=plan.held,
    )


def _delete(
    table: Table, plan: OrphanPlan, policy: OrphanPolicy, audit: AuditLog | None, *, store_now_ms: int
) -> Deleted:
    bounds = {"orphan_age_ms": policy.age_ms(table.config)}
    passed = ("age",) if policy.is_without_share else ("age", "share")
    why = "no log file names it, and it is older than any commit may take"
    return open_deleter(table, audit, RunFacts("orphans", store_now_ms, bounds)).delete(
        DeleteCandidate(info.key, "orphan", why, passed, info.modified_ms, info.size_bytes) for info in plan.candidates
    )


def _named(view: LogView) -> set[str]:
    return {path for file in view.files for path in markers_of(file.key, file.log.markers).paths()}


def _tagged(table: Table) -> set[str]:
    """Return what tags name: a log that was rebuilt may not name it any more."""
    tags = HoldReader().read(table, owner="tag").lasting(data_grace_ms=table.config.data_grace_ms)
    return {path for tag in tags for path in tag.paths or ()}


# The plan: pure.


def plan_orphans(walk: TableWalk, *, config: TableConfig, policy: OrphanPolicy) -> OrphanPlan:
    """Plan one sweep. The walk is left with what is unnamed, by a log that was read after it."""
    share = _share(walk.old_tally.size_bytes, walk)
    is_large = share > policy.max_share
    # WARN: young ones count, too. The log is lost when most files are young: a few are old, and few bytes. They would
    # be deleted, part by part, as they get old. A large merge looks the same; it is committed soon.
    is_unclear = _share(walk.old_tally.size_bytes + walk.young_tally.size_bytes, walk) > policy.max_share
    is_kept = (is_large or is_unclear) and not policy.is_without_share
    waiting = [WaitingOrphan(info.key, "share", None, info.size_bytes) for info in walk.old] if is_kept else []
    age_ms = policy.age_ms(config)
    waiting += (WaitingOrphan(info.key, "age", born_ms(info) + age_ms, info.size_bytes) for info in walk.young)
    return OrphanPlan(
        candidates=() if is_kept else tuple(walk.old),
        waiting=tuple(waiting),
        held=replace(walk.old_tally) if is_kept and is_large else Tally(),
        share=share,
    )


def _share(size_bytes: int, walk: TableWalk) -> float:
    if walk.data.size_bytes <= 0:
        return 1.0 if walk.old_tally.count else 0.0
    return size_bytes / walk.data.size_bytes
