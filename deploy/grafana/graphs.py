"""What dashboards are made of: boards, panels and queries, and the PromQL that many of them share."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

SELECT = 'table=~"$table"'
"""The label matcher of every series that has a table."""


BOUND = " bound"
"""How the names of lines end that are not measured but set: by the policy of a table."""


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
        runbook: Further entries of the runbook that it links to.
        red_from: Where it is red, if no alert says so.
        kind: Lines over time; or the newest value, large; or a list of the newest samples with their labels.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str
    alerts: tuple[str, ...] = field(default=())
    runbook: tuple[str, ...] = ()
    red_from: float | None = None
    kind: Literal["lines", "stat", "list"] = "lines"


@dataclass(frozen=True)
class Board:
    """One dashboard.

    Attributes:
        name: Of its file; its address is `icedb-<name>`.
        title: What it is about.
        description: In a sentence.
        questions: What an operator asks, and where the answer is. In this Markdown `[words](board:name)` leads to
            another dashboard, `[words](runbook:name)` to an entry of the runbook.
        rows: Panels by heading.
        is_for_one_table: Whether one table is chosen, not all of them or some.
    """

    name: str
    title: str
    description: str
    questions: dict[str, str]
    rows: dict[str, tuple[Graph, ...]]
    is_for_one_table: bool = False


def lead(text: str, *, board: Callable[[str], str], runbook: str) -> str:
    """Return questions or answers with their links.

    Args:
        text: As `Board.questions` has them.
        board: The address of another dashboard, by its name.
        runbook: The address of the runbook.
    """
    text = re.sub(r"\(board:([\w-]+)\)", lambda found: f"({board(found[1])})", text)
    text = text.replace("(runbook:)", f"({runbook})")
    return re.sub(r"\(runbook:([\w-]+)\)", lambda found: f"({runbook}#{found[1].lower()})", text)


def by_table(function: str, metric: str, *, by: str = "table") -> str:
    """Return an aggregation by table, or by more, of one gauge, for the tables that are chosen."""
    return f"{function} by ({by}) ({metric}{{{SELECT}}})"


def bound(metric: str, name: str) -> Query:
    """Return the line of a bound that the policy of a table sets."""
    return Query(by_table("max", metric), f"{{{{table}}}} {name}{BOUND}")


def level(value: int, name: str) -> Query:
    """Return the line of a bound that is the same for all tables."""
    return Query(f"vector({value})", f"{name}{BOUND}")


def share(part: str, whole: str | int) -> Query:
    """Return one gauge of each table as a share of another, or of a number."""
    return Query(f"{by_table('max', part)} / {by_table('max', whole) if isinstance(whole, str) else whole}")


def rate(metric: str, *, by: str = "", select: str = "") -> str:
    """Return a counter's increase per second, summed over everything or by one label."""
    series = f"{metric}{{{select}}}" if select else metric
    return f"sum{f' by ({by})' if by else ''} (rate({series}[$__rate_interval]))"


def quantiles(metric: str, *, select: str = "") -> tuple[Query, ...]:
    """Return the median and the 99th percentile of a histogram."""
    buckets = f"sum by (le) (rate({metric}_bucket{{{select}}}[$__rate_interval]))"
    return tuple(Query(f"histogram_quantile({rank}, {buckets})", name) for rank, name in ((0.5, "p50"), (0.99, "p99")))


def troubled_runs(component: str) -> Query:
    """Return the runs of a component's tasks that neither did their work nor found none, by outcome."""
    metric = f"icedb_{component}_runs_total"
    return Query(rate(metric, by="task, outcome", select='outcome!~"done|idle|busy"'), "{{task}} {{outcome}}")
