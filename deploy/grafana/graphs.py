"""What graphs of a dashboard are made of: queries, and the PromQL that many of them share."""

from dataclasses import dataclass, field

SELECT = 'table=~"$table"'
"""The label matcher of every series that has a table."""


@dataclass(frozen=True)
class Query:
    """One line, or one line for each table: the PromQL and the name that the legend gives it."""

    expr: str
    legend: str = "{{table}}"


@dataclass(frozen=True)
class Graph:
    """One panel.

    Attributes:
        title: What it shows, with the unit left to the axis.
        unit: Grafana's name of the unit.
        queries: Its lines.
        description: What a reader may conclude from it.
        alerts: Alerts whose thresholds are drawn, lowest first; the panel links to their runbook entries.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str
    alerts: tuple[str, ...] = field(default=())


def by_table(function: str, metric: str) -> str:
    """Return an aggregation by table of one gauge, for the tables that are chosen."""
    return f"{function} by (table) ({metric}{{{SELECT}}})"


def rate(metric: str, *, by: str = "", select: str = "") -> str:
    """Return a counter's increase per second, summed over everything or by one label."""
    series = f"{metric}{{{select}}}" if select else metric
    return f"sum{f' by ({by})' if by else ''} (rate({series}[$__rate_interval]))"


def quantiles(metric: str, *, select: str = "") -> tuple[Query, ...]:
    """Return the median and the 99th percentile of a histogram."""
    buckets = f"sum by (le) (rate({metric}_bucket{{{select}}}[$__rate_interval]))"
    return tuple(
        Query(f"histogram_quantile({share}, {buckets})", name) for share, name in ((0.5, "p50"), (0.99, "p99"))
    )


def troubled_runs(component: str) -> Query:
    """Return the runs of a component's tasks that neither did their work nor found none, by outcome."""
    metric = f"icedb_{component}_runs_total"
    return Query(rate(metric, by="task, outcome", select='outcome!~"done|idle|busy"'), "{{task}} {{outcome}}")
