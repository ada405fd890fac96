"""Every kind of fault, whom it meets and what must be seen of it; and which happen when, drawn from a seed. Pure.

The metrics that a kind must move stand here and nowhere else; ``docs/internals/chaos.md`` is checked against them.

A plan has first every kind once, in an order that is drawn, too; then by weight, without end. The same seed gives the
same faults; when each of them meets which request is up to the machine.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from icedb_local.chaos.chaos_layout import BROKER, LOCK_MASTERS, SCRATCH_USERS
from icedb_local.chaos.fault_proxy import WRITES, ProxyFault
from icedb_local.chaos.metric_history import Trace

Group = Literal["process", "redis", "store", "disk", "batch"]
PROCESSES: Final = ("ingest", "merger", "janitor", "snapshot", "frontend", "gateway", "enqueue", "beat")
TREES: Final = ("ingest", "merger")
"""Programs with children of their own, of which one may be killed alone."""
STATE_KEYS: Final = r"/_log/|/_icedb/(?!staging)"
"""Of log files and fences: what commits are made of."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind.

    Attributes:
        name: What it is called.
        group: What it meets.
        weight: How often it is drawn, against the others.
        min_ms: How long it lasts at least.
        max_ms: How long it lasts at most.
        targets: Of what it may happen to, one is drawn.
        traces: At least one of them has to be seen; none: nothing fails, so there is nothing to see (``why_untraced``).
        proxy: What the proxy does; ``None``: it is no matter of the proxy.
        why_untraced: The reason, in words.
        settle_ms: How much later than others it may show: a run that has lost its lock finds out when it commits, a
            worker without a JVM within a second, and the process that follows it tells of it once more; a batch that
            ends processes costs each time the eight seconds of a claim (F6).
    """

    name: str
    group: Group
    weight: int
    min_ms: int
    max_ms: int
    targets: tuple[str, ...] = ("",)
    traces: tuple[Trace, ...] = ()
    proxy: ProxyFault | None = None
    why_untraced: str = ""
    settle_ms: int = 0

    @property
    def only_metrics_tell(self) -> bool:
        """Whether nobody knows but by metrics that it was met; the proxy knows each request that it made to fail."""
        return self.proxy is None or self.proxy.action == "slow"

    def traces_of(self, target: str) -> tuple[Trace, ...]:
        """Return the traces that count for a target."""
        return tuple(trace for trace in self.traces if trace.service in ("", target))


def _failures(*reasons: str) -> tuple[Trace, ...]:
    """Return what counts requests that failed so, or whose client had lost patience before."""
    reasons = tuple(dict.fromkeys((*reasons, "timeout")))
    return tuple(Trace("rises", "icedb_store_request_failures_total", (f'reason="{reason}"',)) for reason in reasons)


def _redis(use: str) -> Trace:
    return Trace("rises", "icedb_redis_request_failures_total", (f'use="{use}"',))


def _locks(*outcomes: str) -> tuple[Trace, ...]:
    return tuple(
        Trace("rises", f"icedb_{component}_lock_attempts_total", (f'outcome="{outcome}"',))
        for component in ("ingest", "merge", "janitor")
        for outcome in outcomes
    )


_SLOW: Final = (
    Trace("slow", "icedb_snapshot_refresh_duration_seconds", above="0.25"),
    Trace("slow", "icedb_gateway_refresh_seconds", above="0.25"),
    Trace("slow", "icedb_frontend_ack_seconds", above="0.25"),
    Trace("slow", "icedb_janitor_run_duration_seconds", above="0.5"),
    Trace("slow", "icedb_ingest_run_duration_seconds", above="0.5"),
)
_RESTARTED: Final = tuple(Trace("restarted", service=name) for name in PROCESSES)
_SILENT: Final = tuple(Trace("silent", service=name) for name in PROCESSES)
_NO_ENGINE: Final = (
    Trace("rises", "icedb_ingest_engine_failures_total", service="ingest"),
    Trace("rises", "icedb_merge_engine_failures_total", service="merger"),
)
_FULL: Final = (
    Trace("rises", "icedb_ingest_runs_total", ('outcome="unavailable"',), service="ingest"),
    Trace("rises", "icedb_merge_runs_total", ('outcome="unavailable"',), service="merger"),
    *_NO_ENGINE,
)
_ISOLATED: Final = (
    Trace("rises", "icedb_ingest_batches_total", ('outcome="rejected"',), service="ingest"),
    # Its commit landed, and the move to quarantine failed by another fault: the next run finds it refused.
    Trace("rises", "icedb_ingest_batches_total", ('outcome="duplicate"',), service="ingest"),
    Trace("restarted", service="ingest"),
)
_QUORUM: Final = "two of three masters still know the lock: nothing fails"
_EMPTY_QUEUE: Final = "sweeps find the work within a second: nothing fails"

KINDS: Final = (
    FaultKind("kill", "process", 8, 0, 0, PROCESSES, (*_RESTARTED, *_SILENT)),
    FaultKind("kill_child", "process", 4, 0, 0, TREES, (*_RESTARTED, *_SILENT, *_NO_ENGINE), settle_ms=20_000),
    FaultKind("kill_with_group", "process", 4, 0, 0, ("frontend",), (*_RESTARTED, *_SILENT)),
    FaultKind("stop", "process", 8, 2_000, 8_000, PROCESSES, _SILENT),
    FaultKind("lock_down", "redis", 3, 1_000, 4_000, LOCK_MASTERS, (_redis("locks"),)),
    FaultKind("lock_stop", "redis", 3, 1_000, 4_000, LOCK_MASTERS, (_redis("locks"),)),
    FaultKind("lock_empty", "redis", 3, 0, 0, LOCK_MASTERS, why_untraced=_QUORUM),
    FaultKind("locks_down", "redis", 3, 1_500, 5_000, traces=(_redis("locks"), *_locks("unavailable", "lost"))),
    FaultKind("locks_stop", "redis", 3, 1_500, 5_000, traces=(_redis("locks"), *_locks("unavailable", "lost"))),
    FaultKind("locks_empty", "redis", 5, 0, 0, traces=_locks("lost"), settle_ms=20_000),
    FaultKind("broker_down", "redis", 3, 1_000, 5_000, (BROKER,), (_redis("queue"),)),
    FaultKind("broker_stop", "redis", 3, 1_500, 5_000, (BROKER,), (_redis("queue"),)),
    FaultKind("broker_empty", "redis", 3, 0, 0, (BROKER,), why_untraced=_EMPTY_QUEUE),
    FaultKind(
        "s3_500", "store", 6, 500, 3_000,
        traces=_failures("server_error"), proxy=ProxyFault("status", status=500),
    ),
    FaultKind("s3_503", "store", 6, 500, 3_000, traces=_failures("throttled"), proxy=ProxyFault("status", status=503)),
    FaultKind(
        "s3_full", "store", 6, 500, 3_000,
        traces=_failures("server_error"), proxy=ProxyFault("status", frozenset({"PUT"}), status=507),
    ),
    FaultKind(
        "s3_500_after_write", "store", 10, 500, 3_000,
        traces=_failures("server_error"), proxy=ProxyFault("status_after", WRITES, status=500, limit=4),
    ),
    FaultKind(
        "s3_drop", "store", 14, 500, 3_000,
        traces=_failures("broken"), proxy=ProxyFault("drop", WRITES, limit=4),
    ),
    FaultKind(
        "s3_drop_commit", "store", 14, 1_000, 4_000,
        traces=_failures("broken"), proxy=ProxyFault("drop", frozenset({"PUT"}), STATE_KEYS, limit=2),
    ),
    FaultKind(
        "s3_late", "store", 14, 1_000, 4_000,
        traces=_failures("broken"), proxy=ProxyFault("late", frozenset({"PUT"}), delay_ms=5_000, limit=3),
    ),
    FaultKind(
        "s3_late_commit", "store", 14, 1_000, 4_000,
        traces=_failures("broken"), proxy=ProxyFault("late", frozenset({"PUT"}), STATE_KEYS, delay_ms=4_000, limit=2),
    ),
    FaultKind(
        "s3_truncate", "store", 10, 500, 3_000,
        traces=_failures("broken", "server_error"), proxy=ProxyFault("truncate", frozenset({"GET"}), limit=12),
    ),
    FaultKind("s3_reset", "store", 8, 300, 2_000, traces=_failures("broken"), proxy=ProxyFault("reset")),
    FaultKind(
        "s3_timeout", "store", 5, 1_000, 4_000,
        traces=_failures("broken"), proxy=ProxyFault("hold", delay_ms=6_000, limit=8),
    ),
    FaultKind("s3_slow", "store", 5, 1_500, 5_000, traces=_SLOW, proxy=ProxyFault("slow", delay_ms=400)),
    FaultKind("s3_cut", "store", 6, 500, 3_000, traces=_failures("unreachable", "broken")),
    FaultKind("s3_stop", "store", 4, 2_000, 6_000, ("s3",), (*_failures(), *_SLOW)),
    FaultKind("disk_full", "disk", 5, 2_000, 5_000, SCRATCH_USERS, _FULL),
    FaultKind("deadly_raises", "batch", 4, 2_000, 2_000, ("ingest",), _ISOLATED, settle_ms=120_000),
    FaultKind("deadly_exits", "batch", 3, 2_000, 2_000, ("ingest",), _ISOLATED, settle_ms=120_000),
)  # fmt: skip
KIND_BY_NAME: Final[Mapping[str, FaultKind]] = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault to come.

    Attributes:
        number: From 1.
        kind: What.
        target: To whom; empty where there is no choice.
        duration_ms: How long.
        gap_ms: From the beginning of the fault before to that of this one.
    """

    number: int
    kind: FaultKind
    target: str
    duration_ms: int
    gap_ms: int

    @property
    def resources(self) -> frozenset[str]:
        """What it takes: two faults with one in common do not overlap."""
        if self.kind.name.startswith("locks_"):
            return frozenset(LOCK_MASTERS)
        if self.kind.group == "batch":
            return frozenset({self.kind.name})  # its reader may meet any other fault meanwhile
        if self.kind.group == "disk":
            return frozenset({self.target})
        return frozenset({self.target or self.kind.name})


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What a plan is made of.

    Attributes:
        gap_ms: Mean time from one fault to the next.
        longest_ms: No fault lasts longer.
        left_out: Programs that are not there.
    """

    gap_ms: int = 450
    longest_ms: int = 10_000
    left_out: Collection[str] = ()


def draw_faults(seed: int, shape: PlanShape) -> Iterator[PlannedFault]:
    """Yield faults for ever."""
    rng = np.random.default_rng(seed)
    weights = np.array([kind.weight for kind in KINDS], dtype=np.float64)
    first = [KINDS[place] for place in rng.permutation(len(KINDS))]
    number = 0
    while True:
        number += 1
        kind = first.pop() if first else KINDS[int(rng.choice(len(KINDS), p=weights / weights.sum()))]
        targets = [target for target in kind.targets if target not in shape.left_out]
        duration_ms = int(rng.integers(kind.min_ms, kind.max_ms + 1))
        yield PlannedFault(
            number=number,
            kind=kind,
            target=targets[int(rng.integers(len(targets)))],
            duration_ms=min(duration_ms, shape.longest_ms),
            gap_ms=int(rng.integers(shape.gap_ms // 4, 2 * shape.gap_ms)),
        )
