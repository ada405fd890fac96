"""What the services themselves counted over a run, in a handful of figures: was there anything to break? Pure."""

from collections.abc import Mapping
from typing import Final

from icedb_local.chaos.metric_history import MetricHistory

MERGES: Final = "commits of merges"
DELETED: Final = ("deleted data files", "deleted log files")
MIN_MERGES: Final = 20
MIN_DELETED: Final = 100
ENOUGH_FROM_S: Final = 200
"""A run whose faults went on for so long (`--short` ends sooner, whatever its bound) has to have merged and deleted so
much: else there was nothing to break."""


def lack_of_work(figures: Mapping[str, float]) -> str:
    """Return what a long run has done too little of, in words; empty: it has done enough."""
    merges, deleted = figures[MERGES], sum(figures[name] for name in DELETED)
    if merges >= MIN_MERGES and deleted >= MIN_DELETED:
        return ""
    return f"{merges:.0f} of {MIN_MERGES} merges and {deleted:.0f} of {MIN_DELETED} deleted data and log files"


def sum_figures(history: MetricHistory) -> dict[str, float]:
    """Return what the services counted over the whole run."""
    total = history.total
    return {
        MERGES: total("merger", "icedb_merge_commits_total"),
        DELETED[0]: total("janitor", "icedb_janitor_deleted_objects_total", 'kind="data_file"'),
        DELETED[1]: total("janitor", "icedb_janitor_deleted_objects_total", 'kind="log_file"'),
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
