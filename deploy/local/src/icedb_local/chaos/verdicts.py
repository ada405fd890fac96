"""Whether metrics told of the faults: of each by itself, and of all requests together. Pure.

A fault of the proxy is judged for each service that it met: that service's own metrics have to tell. A hit of a service
that was down just then, or that died before it could be asked, is *masked*. Everything else lasts until it shows, and
nothing excuses it.

With Spark, work is done in tasks. What failed in one is counted when its job has answered, so that run's end is waited
for. What failed in one that was interrupted or killed is counted by nobody; the outcome of its run tells of it
(:data:`RUN_TRACES`), or its process ended before that run did.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from icedb_local.chaos.fault_records import InjectedFault, Seen
from icedb_local.chaos.metric_history import MetricHistory, Trace

STORE_FAILURES: Final = "icedb_store_request_failures_total"
CUT: Final = "s3_cut"
_BROKEN: Final = Trace("rises", STORE_FAILURES, ('reason="broken"',))
RUNS: Final[Mapping[str, str]] = {"ingest": "icedb_ingest_runs_total", "merger": "icedb_merge_runs_total"}
"""What counts the runs of the services whose work is done in Spark's tasks."""
RUN_TRACES: Final[Mapping[str, tuple[Trace, ...]]] = {
    service: tuple(
        Trace("rises", metric, (f'outcome="{outcome}"',), service=service)
        for outcome in ("unavailable", "lock_lost", "outcome_unknown", "fenced", "failed")
    )
    for service, metric in RUNS.items()
}
"""What may tell of a service's requests in Spark's tasks instead of the count of failed requests."""


@dataclasses.dataclass(frozen=True, slots=True)
class CountedFailures:
    """The requests of one service that were made to fail, and what it has counted.

    Attributes:
        service: Which.
        made: Requests that failed in the proxy while the service could be asked afterwards what it had counted.
        counted: What its metric says, of any reason, over all its processes.
    """

    service: str
    made: int
    counted: int

    @property
    def is_whole(self) -> bool:
        """Whether each is counted; more are where a stopped server or a refused connection failed without the proxy."""
        return self.counted >= self.made


def find_cuts(faults: Sequence[InjectedFault]) -> tuple[InjectedFault, ...]:
    """Return the faults that break connections on which another one's answer may be on its way."""
    return tuple(fault for fault in faults if fault.planned.kind.name == CUT and fault.end_ms is not None)


def judge_fault(
    fault: InjectedFault,
    history: MetricHistory,
    *,
    settle_ms: int,
    cuts: Sequence[InjectedFault] = (),
    has_spark: bool = False,
) -> None:
    """Write into a fault that met somebody and has ended what metrics told of it.

    Args:
        fault: Which.
        history: All scrapes.
        settle_ms: How long after its end it may still show.
        cuts: Of all faults (:func:`find_cuts`): an answer that one of them cut off shows as a broken connection.
        has_spark: Whether workers run their work as Spark tasks.
    """
    kind = fault.planned.kind
    traces = kind.traces_of(fault.planned.target)
    if not traces or fault.end_ms is None:
        return
    end_ms = fault.end_ms + settle_ms + kind.settle_ms
    hits_ms = fault.service_hits_ms
    if kind.only_metrics_tell:
        found = _find(traces, history, fault.begin_ms, end_ms)
        must_show = fault.must_show if fault.hits is None else bool(hits_ms) and fault.must_show
        must_show &= kind.group != "disk" or _has_worked(fault, history, end_ms)
        fault.seen = "seen" if found else "unseen" if must_show else "nothing_to_see"
        fault.trace = found or " or ".join(map(str, traces))
        return
    is_cut = any(cut.begin_ms <= end_ms and fault.begin_ms <= (cut.end_ms or end_ms) for cut in cuts)
    traces = (*traces, _BROKEN) if is_cut else traces
    verdicts: dict[str, Seen] = {}
    for service, times_ms in hits_ms.items():
        own = [dataclasses.replace(trace, service=service) for trace in traces]
        lost = [history.is_lost(service, time_ms, slack_ms=settle_ms) for time_ms in times_ms]
        last_ms = end_ms
        if has_spark and service in RUNS:
            own += RUN_TRACES[service]
            ends_ms = [history.tells_at_ms(service, RUNS[service], after_ms=time_ms) for time_ms in times_ms]
            lost = [one or ended_ms is None for one, ended_ms in zip(lost, ends_ms, strict=True)]
            last_ms = max(end_ms, *(ended_ms or end_ms for ended_ms in ends_ms))
        found = _find(own, history, fault.begin_ms, last_ms)
        verdicts[service] = "seen" if found else "masked" if all(lost) else "unseen"
        if verdicts[service] == "unseen":
            requests = "" if fault.hits is None else ", ".join(fault.hits.requests.get(service, ())[:5])
            rises = ", ".join(history.find_rises(service, begin_ms=fault.begin_ms, end_ms=last_ms))
            fault.trace = f"{' or '.join(map(str, own))}; it met {requests}; what rose: {rises or 'nothing'}"
        elif not fault.trace:
            fault.trace = found or " or ".join(map(str, own))
    fault.seen = next((one for one in ("unseen", "seen", "masked") if one in verdicts.values()), "nothing_to_see")


def count_failures(
    faults: Sequence[InjectedFault], history: MetricHistory, *, settle_ms: int, has_spark: bool = False
) -> tuple[CountedFailures, ...]:
    """Compare the requests that the proxy made to fail with what each service counted over the whole run.

    Args:
        faults: All.
        history: All scrapes.
        settle_ms: How much later than a request fails it may be counted.
        has_spark: Whether workers run their work as Spark tasks; then they are not compared.
    """
    services = [name for name in history.scrapes if not (has_spark and name in RUN_TRACES)]
    made: dict[str, int] = dict.fromkeys(services, 0)
    for fault in faults:
        if fault.hits is not None and not fault.planned.kind.only_metrics_tell:
            _add_visible(made, fault.service_hits_ms, history, settle_ms)
    return tuple(CountedFailures(name, count, int(history.total(name, STORE_FAILURES))) for name, count in made.items())


def _add_visible(
    made: dict[str, int], hits_ms: Mapping[str, Sequence[int]], history: MetricHistory, settle_ms: int
) -> None:
    for service, times_ms in hits_ms.items():
        if service not in made:
            continue
        visible = sum(not history.is_lost(service, time_ms, slack_ms=settle_ms) for time_ms in times_ms)
        made[service] += visible


def _has_worked(fault: InjectedFault, history: MetricHistory, end_ms: int) -> bool:
    """Whether a worker whose disk was full ended a run that may have written: else it was idle, starting or dead."""
    service = fault.planned.target
    outcomes = ("done", "conflict", "outcome_unknown", "fenced", "failed")
    traces = [Trace("rises", RUNS[service], (f'outcome="{outcome}"',), service=service) for outcome in outcomes]
    return bool(_find(traces, history, fault.begin_ms, min(end_ms, fault.end_ms or end_ms)))


def _find(traces: Sequence[Trace], history: MetricHistory, begin_ms: int, end_ms: int) -> str:
    """Return the first trace that is there, in words; empty: none is."""
    return next((str(trace) for trace in traces if history.shows(trace, begin_ms=begin_ms, end_ms=end_ms)), "")
