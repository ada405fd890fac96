"""What the services themselves counted over a run, in a handful of figures: was there anything to break? Pure."""

from icedb_local.chaos.metric_history import MetricHistory


def sum_figures(history: MetricHistory) -> dict[str, float]:
    """Return what the services counted over the whole run."""
    total = history.total
    return {
        "commits of merges": total("merger", "icedb_merge_commits_total"),
        "deleted data files": total("janitor", "icedb_janitor_deleted_objects_total", 'kind="data_file"'),
        "deleted log files": total("janitor", "icedb_janitor_deleted_objects_total", 'kind="log_file"'),
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
