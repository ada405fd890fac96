"""What the services' metrics said, and when: scraped as Prometheus would, kept as they came.

A :class:`Trace` is what a fault must leave behind: a counter that rises, a service that does not answer, a process that
is another one, or observations that are slow. Pure, but for :class:`Scraper`, which asks.
"""

import bisect
import http.client
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from typing import Final, Literal

from icedb_log.clock import Clock

from icedb_local.background import BackgroundThread
from icedb_local.ports import LOOPBACK

SCRAPE_TIMEOUT_S: Final = 1.0
START_TIME: Final = "process_start_time_seconds"
KEPT: Final = (
    START_TIME,
    "icedb_store_request_failures_total",
    "icedb_redis_request_failures_total",
    "icedb_ingest_runs_total",
    "icedb_ingest_batches_total",
    "icedb_ingest_run_duration_seconds",
    "icedb_ingest_lock_attempts_total",
    "icedb_ingest_engine_failures_total",
    "icedb_merge_runs_total",
    "icedb_merge_lock_attempts_total",
    "icedb_merge_engine_failures_total",
    "icedb_merge_commits_total",
    "icedb_janitor_runs_total",
    "icedb_janitor_run_duration_seconds",
    "icedb_janitor_lock_attempts_total",
    "icedb_janitor_deleted_objects_total",
    "icedb_frontend_batches_total",
    "icedb_frontend_ack_seconds",
    "icedb_frontend_staged_object_batches",
    "icedb_frontend_wakes_total",
    "icedb_snapshot_refresh_duration_seconds",
    "icedb_gateway_refresh_seconds",
    "icedb_beat_wakes_total",
)

TraceKind = Literal["rises", "silent", "restarted", "slow"]


@dataclass(frozen=True, slots=True)
class Trace:
    """What has to be seen of a fault.

    Attributes:
        kind: ``rises``: a counter; ``silent``: the metrics port does not answer; ``restarted``: the process has
            another start time; ``slow``: a histogram has observations above ``above``.
        metric: Of ``rises`` and ``slow``.
        labels: Parts of a series' labels, e.g. ``use="locks"``.
        service: Whose metrics; empty: any service's.
        above: Of ``slow``: the bound of the highest bucket that counts as fast, as it is written.
    """

    kind: TraceKind
    metric: str = ""
    labels: tuple[str, ...] = ()
    service: str = ""
    above: str = ""

    def __str__(self) -> str:
        """Return it in words."""
        who = self.service or "any service"
        labels = f"{{{', '.join(self.labels)}}}" if self.labels else ""
        return {
            "rises": f"`{self.metric}{labels}` of {who} rises",
            "silent": f"`up` of {who} is 0",
            "restarted": f"`{START_TIME}` of {who} changes",
            "slow": f"`{self.metric}` of {who} has observations above {self.above} s",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer of a metrics port, or none.

    Attributes:
        time_ms: When it was asked, monotonic.
        values: Value of each series; ``None``: no answer.
        answered_ms: When the answer was there; ``None``: at once. It tells of what happened before this time, on a
            busy machine also of what happened a good while after it was asked.
    """

    time_ms: int
    values: Mapping[str, float] | None
    answered_ms: int | None = None

    @property
    def end_ms(self) -> int:
        """When it was over, monotonic."""
        return self.time_ms if self.answered_ms is None else self.answered_ms


@dataclass(slots=True)
class MetricHistory:
    """All scrapes of a run, by service."""

    scrapes: dict[str, list[Scrape]] = field(default_factory=dict)

    def add(self, service: str, scrape: Scrape) -> None:
        """Add the newest scrape of a service."""
        self.scrapes.setdefault(service, []).append(scrape)

    def shows(self, trace: Trace, *, begin_ms: int, end_ms: int) -> bool:
        """Whether a trace is there between two times.

        That is, between the last answer that was complete before the one and the first that was asked for after the
        other.
        """
        services = (trace.service,) if trace.service else tuple(self.scrapes)
        return any(self._shows(trace, self.scrapes.get(name, []), begin_ms, end_ms) for name in services)

    def is_lost(self, service: str, time_ms: int, *, slack_ms: int) -> bool:
        """Whether what a service counted at a time may never have been seen: it died before it was asked again.

        The same goes for what its next process counted before it answered for the first time. Only that is lost: what
        a process that stands still has counted shows when it goes on.

        Args:
            service: Whose.
            time_ms: When, monotonic.
            slack_ms: How much later than something happens it may be counted.
        """
        gaps = _find_gaps(self.scrapes.get(service, []))
        return any(asked_ms - slack_ms <= time_ms <= answered_ms for asked_ms, answered_ms in gaps)

    def tells_at_ms(self, service: str, metric: str, *, after_ms: int) -> int | None:
        """Return when a service, asked after a time, first told that a counter had risen since; ``None``: never.

        Not either if its process ended before: what that had in hand is lost with it.
        """
        answered = [one for one in self.scrapes.get(service, []) if one.values is not None]
        for before, after in pairwise(answered):
            if after.time_ms >= after_ms and _start(before) != _start(after):
                return None
            if before.time_ms >= after_ms and _rise(before, after, metric, ()) > 0:
                return after.time_ms
        return None

    def find_rises(self, service: str, *, begin_ms: int, end_ms: int) -> list[str]:
        """Return the series of a service that rose between two times, for people."""
        within = [one for one in self.scrapes.get(service, []) if begin_ms <= one.time_ms <= end_ms and one.values]
        if not within:
            return []
        first, last = within[0].values or {}, within[-1].values or {}
        return [name for name, value in last.items() if "_bucket{" not in name and value > first.get(name, 0.0)]

    def is_up(self, service: str) -> bool:
        """Whether a service answered the last scrape; what serves no metrics counts as up."""
        scrapes = self.scrapes.get(service)
        return not scrapes or scrapes[-1].values is not None

    def total(self, service: str, metric: str, *labels: str) -> float:
        """Return how much a counter rose over the whole run, over all restarts."""
        answered = [one for one in self.scrapes.get(service, []) if one.values is not None]
        first = sum(_select(answered[0].values, metric, labels).values()) if answered else 0.0
        return first + sum(_rise(a, b, metric, labels) for a, b in pairwise(answered))

    def _shows(self, trace: Trace, scrapes: Sequence[Scrape], begin_ms: int, end_ms: int) -> bool:
        first = bisect.bisect_left(scrapes, begin_ms, key=lambda scrape: scrape.end_ms)
        last = bisect.bisect_right(scrapes, end_ms, key=lambda scrape: scrape.time_ms)
        within = scrapes[first:last]
        if trace.kind == "silent":
            return any(scrape.values is None for scrape in within)
        before = next((one for one in reversed(scrapes[:first]) if one.values is not None), None)
        # Who was not asked again, or did not answer, tells later what it has counted.
        after = next((one for one in scrapes[last:] if one.values is not None), None)
        answered = [one for one in (before, *within, after) if one is not None and one.values is not None]
        pairs = list(pairwise(answered))
        if trace.kind == "restarted":
            return any(_start(a) != _start(b) for a, b in pairs)
        if trace.kind == "rises":
            return any(_rise(a, b, trace.metric, trace.labels) > 0 for a, b in pairs)
        fast = (f'le="{trace.above}"',)
        return any(
            _rise(a, b, f"{trace.metric}_count", ()) > _rise(a, b, f"{trace.metric}_bucket", fast) for a, b in pairs
        )


class Scraper(BackgroundThread):
    """A thread that asks every metrics port again and again; use as a context manager.

    Args:
        ports: Of each service.
        interval_s: Between rounds.
        clock: For times.
    """

    def __init__(self, ports: Mapping[str, int], *, interval_s: float, clock: Clock) -> None:
        super().__init__("scraper")
        self.history = MetricHistory()
        self._ports = ports
        self._interval_s = interval_s
        self._clock = clock
        self.rounds = 0

    def _run(self) -> None:
        while not self._stop.is_set():
            for service, port in self._ports.items():
                time_ms = self._clock.monotonic_ms()
                values = read_metrics(port)
                self.history.add(service, Scrape(time_ms, values, self._clock.monotonic_ms()))
            self.rounds += 1
            self._stop.wait(self._interval_s)


def read_metrics(port: int, *, kept: tuple[str, ...] = KEPT) -> dict[str, float] | None:
    """Ask a metrics port for the series that are kept; ``None``: it does not answer, or has none yet."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=SCRAPE_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return parse_metrics(text, kept=kept) if answer.status == HTTPStatus.OK else None


def parse_metrics(text: str, *, kept: tuple[str, ...] = KEPT) -> dict[str, float]:
    """Return the kept series of Prometheus' text format."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith(kept):
            series, _, value = line.rpartition(" ")
            values[series] = float(value)
    return values


def _select(values: Mapping[str, float] | None, metric: str, labels: Sequence[str]) -> dict[str, float]:
    return {
        series: value
        for series, value in (values or {}).items()
        if series.partition("{")[0] == metric and all(label in series for label in labels)
    }


def _find_gaps(scrapes: Sequence[Scrape]) -> Iterator[tuple[float, float]]:
    """Yield when each process was asked last, and when the next one answered first; the first has none before it."""
    asked: Scrape | None = None
    for scrape in scrapes:
        if scrape.values is None:
            continue
        if asked is None or _start(asked) != _start(scrape):
            yield (-math.inf if asked is None else asked.time_ms), scrape.time_ms
        asked = scrape
    if scrapes and scrapes[-1].values is None:
        yield (-math.inf if asked is None else asked.time_ms), math.inf


def _start(scrape: Scrape) -> float | None:
    return (scrape.values or {}).get(START_TIME)


def _rise(before: Scrape, after: Scrape, metric: str, labels: Sequence[str]) -> float:
    now = _select(after.values, metric, labels)
    if _start(before) != _start(after):  # another process: it began at 0
        return sum(now.values())
    then = _select(before.values, metric, labels)
    return sum(max(0.0, value - then.get(series, 0.0)) for series, value in now.items())


MERGES: Final = "commits of merges"
DELETED: Final = ("deleted data files", "deleted log files")
STAGED_GROUPS: Final = "staged groups"
FLUSHED_GROUPS: Final = "flushed groups"
KILLS_WITH_GROUP: Final = "front ends killed with a group"
LEAST: Final[Mapping[tuple[str, ...], int]] = {
    (MERGES,): 20,
    DELETED: 100,
    (STAGED_GROUPS,): 20,
    (FLUSHED_GROUPS,): 20,
    (KILLS_WITH_GROUP,): 1,
}
ENOUGH_FROM_S: Final = 200
"""A run whose faults may go on for so long (`--short` ends sooner, whatever its bound) has to do so much: else there
was nothing to break."""


def lack_of_work(figures: Mapping[str, float]) -> str:
    """Return what a long run has done too little of, in words; empty: it has done enough."""
    done = {names: sum(figures[name] for name in names) for names in LEAST}
    return ", ".join(
        f"{done[names]:.0f} of {least} {' and '.join(names)}" for names, least in LEAST.items() if done[names] < least
    )


def sum_figures(history: MetricHistory) -> dict[str, float]:
    """Return what the services counted over the whole run."""
    total, group_size = history.total, "icedb_frontend_staged_object_batches"
    return {
        MERGES: total("merger", "icedb_merge_commits_total"),
        DELETED[0]: total("janitor", "icedb_janitor_deleted_objects_total", 'kind="data_file"'),
        DELETED[1]: total("janitor", "icedb_janitor_deleted_objects_total", 'kind="log_file"'),
        STAGED_GROUPS: total("frontend", f"{group_size}_count") - total("frontend", f"{group_size}_bucket", 'le="1.0"'),
        "deleted orphans": total("janitor", "icedb_janitor_deleted_objects_total", 'kind="orphan"'),
        "failed store requests": sum(total(name, "icedb_store_request_failures_total") for name in history.scrapes),
        "lost locks": sum(
            total(service, f"icedb_{name}_lock_attempts_total", 'outcome="lost"')
            for service, name in (("ingest", "ingest"), ("merger", "merge"), ("janitor", "janitor"))
        ),
        "fenced runs": sum(
            total(service, f"icedb_{name}_runs_total", 'outcome="fenced"')
            for service, name in (("ingest", "ingest"), ("merger", "merge"))
        ),
        "commits without an answer": sum(
            total(service, f"icedb_{name}_runs_total", 'outcome="outcome_unknown"')
            for service, name in (("ingest", "ingest"), ("merger", "merge"))
        ),
    }
