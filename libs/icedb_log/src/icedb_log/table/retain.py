"""A retention run: removes the partitions whose time has come (see ``retention``), in one commit."""

from collections.abc import Collection
from dataclasses import dataclass

from icedb_log.model import LogView
from icedb_log.table.partition_removal import PartitionInfo, RemovalResult, remove_partitions
from icedb_log.table.retention import RetentionPlan, plan_retention, require_allowed
from icedb_log.table.table import Table


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """What a retention run did, or would do.

    Attributes:
        plan: What was to be removed, and why the rest stays; the plan that counted, made under the fence.
        removal: What was removed, or would be.
    """

    plan: RetentionPlan
    removal: RemovalResult


def retain_table(table: Table, *, force: bool = False, dry_run: bool = False) -> RetentionResult:
    """Remove the partitions of a table whose retention has passed (M5). Idempotent in effect.

    Args:
        table: The table. The store's clock decides, and this host's has to agree with it.
        force: Remove also what only a person may allow (``RetentionPlan.refusal``).
        dry_run: Say what would be removed: no fence, nothing written, no refusal raised.

    Raises:
        InvalidRequest: The plan has to be allowed by a person; nothing was removed.
        Unavailable: The clocks disagree, or the store did not answer.
        IceDBError: As :func:`~icedb_log.table.partition_removal.remove_partitions`.
    """
    plans: list[RetentionPlan] = []

    def choose(view: LogView, infos: tuple[PartitionInfo, ...]) -> Collection[str]:
        # Read each time: a retention that was made longer while this run waited for the fence counts.
        config = table.renewed().config
        plan = plan_retention(infos, config, store_now_ms=view.store_now_ms, host_now_ms=table.clock.now_ms())
        if not (force or dry_run):
            require_allowed(plan)
        plans.append(plan)
        return [one.info.path for one in plan.expired]

    removal = remove_partitions(table, choose, dry_run=dry_run)
    return RetentionResult(plans[-1], removal)
