"""Retention: which time partitions have outlived their time (a TTL for each table; M5), and their removal.

A partition expires when the end of its time range lies longer ago than the table's ``retention_ms``: with 90 days and
partitions by day, 2023-06-07 goes when 2023-06-08T00:00Z is 90 days past. Values of time partitions are UTC.

Nothing brings a removed row back, so everything that could be a mistake keeps the partition, and is reported:

* the store's clock decides, and this host's has to agree with it within an hour;
* partitions of the future, null partitions and values that are no time never expire;
* a partition that got a data file within the last ``data_grace_ms`` (or ``retention_ms``, if that is shorter) waits.
  Rows that come so late are often the mistake of a producer (seconds taken for milliseconds lie in January 1970), and
  would vanish within the hour that they came in. Who goes on writing into an expired partition keeps it; the
  reports say so. A merge of the partition makes a new data file, too, and defers its end by the same time, once;
* a run that would remove several time ranges at once, and with them more than half of the table's bytes, is refused: in
  regular operation one range ends at a time, so that this is a new or a mistaken setting, or a wrong clock. A person
  allows it once.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from icedb_log.changes.partition_removal import PartitionInfo, RemovalResult, remove_partitions
from icedb_log.commit.table import Table
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.model import LogView
from icedb_log.table.partitions import read_partition_values
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.table.time_columns import count_ticks
from icedb_log.table.transforms import read_time_span
from icedb_log.units import HOUR_MS, SECOND_MS

MAX_CLOCK_DIFFERENCE_MS: Final = HOUR_MS
MAX_SHARE: Final = 0.5
"""Share of a table's live bytes that a run may remove unasked when it removes more than one time range."""

KeptReason = Literal["young", "late", "future", "null", "unparsable"]
"""``young``: its time has not come; ``late``: it has, but a data file came within ``data_grace_ms``; ``future``: its
range has not begun; ``null``: its rows have no time; ``unparsable``: its value is no time of the partition's form."""

KEPT_REASONS: Final[tuple[KeptReason, ...]] = ("young", "late", "future", "null", "unparsable")


@dataclass(frozen=True, slots=True)
class JudgedPartition:
    """Whether a partition's time has come.

    Attributes:
        info: The partition.
        reason: Why it stays; ``None``: it has expired.
        until_ms: When it expired, or will go if nothing changes; ``None``: never.
    """

    info: PartitionInfo
    reason: KeptReason | None
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What retention would remove now.

    Attributes:
        field: The partition field that it goes by; ``None``: the table has no retention, and everything stays.
        expired: Ascending by the time at which they expired, then by path.
        kept: Ascending by path.
        refusal: Why a run has to be asked for by a person; empty if it need not.
    """

    field: str | None
    expired: tuple[JudgedPartition, ...]
    kept: tuple[JudgedPartition, ...]
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """What a retention run did, or would do.

    Attributes:
        plan: What was to be removed, and why the rest stays; the plan that counted, made under the fence.
        removal: What was removed, or would be.
    """

    plan: RetentionPlan
    removal: RemovalResult

    @property
    def is_idle(self) -> bool:
        """Whether nothing has expired."""
        return self.removal.is_idle

    def details(self) -> dict[str, Any]:
        """Return it as the result of a task."""
        kept = {f"kept_{reason}": count for reason, count in count_kept(self.plan).items()}
        return {**self.removal.details(), **kept}


def retain_table(table: Table, *, force: bool = False, dry_run: bool = False) -> RetentionResult:
    """Remove the partitions of a table whose retention has passed (M5). Idempotent in effect.

    Args:
        table: The table. The store's clock decides, and this host's has to agree with it.
        force: Remove also what only a person may allow (``RetentionPlan.refusal``).
        dry_run: Say what would be removed: no fence, nothing written, no refusal raised.

    Raises:
        InvalidRequest: The plan has to be allowed by a person; nothing was removed.
        Unavailable: The clocks disagree, or the store did not answer.
        IceDBError: As :func:`~icedb_log.changes.partition_removal.remove_partitions`.
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


def plan_retention(
    infos: Sequence[PartitionInfo], config: TableConfig, *, store_now_ms: int, host_now_ms: int
) -> RetentionPlan:
    """Decide for each partition of a table whether its time has come.

    Args:
        infos: All partitions with live data files.
        config: The table's configuration.
        store_now_ms: The store's clock, which decides.
        host_now_ms: This host's clock, which has to agree.

    Raises:
        Unavailable: The clocks disagree by more than an hour; nobody knows which is right.
    """
    field = config.age_field
    if config.retention_ms is None or field is None:
        return RetentionPlan(None, (), tuple(JudgedPartition(info, "young", None) for info in infos))
    difference_ms = abs(store_now_ms - host_now_ms)
    if difference_ms > MAX_CLOCK_DIFFERENCE_MS:
        raise Unavailable(
            f"table {config.name}: this host's clock says {_format(host_now_ms)}, the store's {_format(store_now_ms)}; "
            "retention removes nothing while they disagree by more than an hour. Set the one that is wrong"
        )
    ordered = sorted(infos, key=lambda info: info.path)
    judged = [_judge(info, field, config, retention_ms=config.retention_ms, now_ms=store_now_ms) for info in ordered]
    kept = tuple(one for one in judged if one.reason is not None)
    expired = sorted((one for one in judged if one.reason is None), key=lambda one: one.until_ms or 0)
    return RetentionPlan(field.name, tuple(expired), kept, _refuse(config, infos, expired))


def count_kept(plan: RetentionPlan) -> dict[KeptReason, int]:
    """Return how many partitions stay for each reason; every reason is there."""
    counts = Counter(one.reason for one in plan.kept)
    return {reason: counts[reason] for reason in KEPT_REASONS}


def require_allowed(plan: RetentionPlan) -> None:
    """Raise InvalidRequest if a plan has to be asked for by a person."""
    if plan.refusal:
        raise InvalidRequest(plan.refusal)


def parse_time_range(value: str, field: PartitionField) -> tuple[int, int] | None:
    """Return when the time that a decoded value of a time partition stands for begins, and when it has ended, unix ms.

    ``None`` if it is no such value.
    """
    span = read_time_span(field.transform, value)
    if span is None:
        return None
    start_ms = count_ticks(span[0], "epoch_ms")
    return start_ms, start_ms + span[1] // timedelta(milliseconds=1)


def _judge(
    info: PartitionInfo, field: PartitionField, config: TableConfig, *, retention_ms: int, now_ms: int
) -> JudgedPartition:
    value = read_partition_values(info.path).get(field.name, "")
    if value is None:
        return JudgedPartition(info, "null", None)
    time_range = parse_time_range(value, field)
    if time_range is None:
        return JudgedPartition(info, "unparsable", None)
    start_ms, end_ms = time_range
    expires_ms = end_ms + retention_ms
    if now_ms <= expires_ms:
        return JudgedPartition(info, "future" if start_ms > now_ms else "young", expires_ms)
    settled_ms = info.newest_ms + min(config.data_grace_ms, retention_ms)
    # A data file from far in the future was made by a host with a wrong clock: it says nothing about when it came.
    if settled_ms > now_ms and info.newest_ms <= now_ms + MAX_CLOCK_DIFFERENCE_MS:
        return JudgedPartition(info, "late", settled_ms)
    return JudgedPartition(info, None, expires_ms)


def _refuse(config: TableConfig, infos: Sequence[PartitionInfo], expired: Sequence[JudgedPartition]) -> str:
    total_bytes = sum(info.size_bytes for info in infos)
    expired_bytes = sum(one.info.size_bytes for one in expired)
    range_count = len({one.until_ms for one in expired})
    if range_count <= 1 or expired_bytes <= MAX_SHARE * total_bytes:
        return ""
    return (
        f"table {config.name}: retention would remove {len(expired)} partitions of {range_count} time ranges at once, "
        f"{expired_bytes} of {total_bytes} bytes, more than half of the table: nothing was removed. Look at "
        f"`icedb partitions {config.name} --expired`; if the setting and the clocks are right, allow it once: "
        f"`icedb partitions {config.name} --expired --drop --force`"
    )


def _format(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / SECOND_MS, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
