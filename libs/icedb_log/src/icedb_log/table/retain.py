"""A retention run: removes the partitions whose time has come (see ``retention``), in one commit."""

from collections.abc import Collection
from dataclasses import dataclass

from icedb_log.clock import Clock
from icedb_log.jobs import CheckAlive
from icedb_log.keys import TablePaths
from icedb_log.log.reader import LogReader
from icedb_log.model import LogView
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.partition_removal import PartitionInfo, RemovalResult, remove_chosen_partitions
from icedb_log.table.retention import RetentionPlan, plan_retention, require_allowed
from icedb_log.table.stored_config import read_table_config


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """What a retention run did, or would do.

    Attributes:
        plan: What was to be removed, and why the rest stays; the plan that counted, made under the fence.
        removal: What was removed, or would be.
    """

    plan: RetentionPlan
    removal: RemovalResult


def retain_table(
    store: ObjectStore,
    paths: TablePaths,
    *,
    clock: Clock,
    owner: str,
    force: bool = False,
    dry_run: bool = False,
    check_alive: CheckAlive | None = None,
    reader: LogReader | None = None,
) -> RetentionResult:
    """Remove the partitions of a table whose retention has passed (M5). Idempotent in effect.

    Args:
        store: The object store; its clock decides.
        paths: Keys of the table.
        clock: This host's clock, which has to agree with the store's.
        owner: Who runs this, for the fence object.
        force: Remove also what only a person may allow (``RetentionPlan.refusal``).
        dry_run: Say what would be removed: no fence, nothing written, no refusal raised.
        check_alive: Called before each step; raises if the run should stop (a lost lock). Saves work only.
        reader: A reader to reuse, with its cache.

    Raises:
        InvalidRequest: The plan has to be allowed by a person; nothing was removed.
        Unavailable: The clocks disagree, or the store did not answer.
        NotFound: No such table.
        IceDBError: As :func:`~icedb_log.table.partition_removal.remove_chosen_partitions`.
    """
    plans: list[RetentionPlan] = []

    def choose(view: LogView, infos: tuple[PartitionInfo, ...]) -> Collection[str]:
        # Read each time: a retention that was made longer while this run waited for the fence counts.
        config = read_table_config(store, paths)
        plan = plan_retention(infos, config, store_now_ms=view.store_now_ms, host_now_ms=clock.now_ms())
        if not (force or dry_run):
            require_allowed(plan)
        plans.append(plan)
        return [one.info.path for one in plan.expired]

    removal = remove_chosen_partitions(
        store,
        paths,
        clock=clock,
        owner=owner,
        choose=choose,
        dry_run=dry_run,
        check_alive=check_alive,
        reader=reader,
    )
    return RetentionResult(plans[-1], removal)
