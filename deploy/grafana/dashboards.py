"""The Grafana dashboard of merge lag, as code.

Owns `dashboards/merge-lag.json`, which is generated, committed and provisioned by compose.yaml. The thresholds drawn
here are those of the alerts: they are read from `../prometheus/rules`, so a graph and an alert never disagree.

    python deploy/grafana/dashboards.py            writes the file
    python deploy/grafana/dashboards.py --check    exits 1 when the file is not current
"""

import re
import sys
from pathlib import Path

import yaml
from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as builder
from grafana_foundation_sdk.builders import prometheus, text, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.text import TextMode
from graphs import Graph
from panels import ROWS

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "dashboards" / "merge-lag.json"
RULES = HERE.parent / "prometheus" / "rules"

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 8
"""Grid units of a graph; a row has 24."""
HEIGHT = 8


def thresholds_of(alerts: tuple[str, ...]) -> list[tuple[str, float]]:
    """Read where alerts fire from the rules themselves.

    Args:
        alerts: alert names, lowest threshold first.

    Returns:
        Colour and value of each; an alert whose expression compares with `> number`.

    Raises:
        KeyError: no rule has such a name.
        ValueError: an alert's expression has no `> number`.
    """
    rules = {
        rule["alert"]: rule
        for path in sorted(RULES.glob("*.yml"))
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    colors = {"warning": "orange", "critical": "red"}
    found = []
    for name in alerts:
        match = re.search(r"> ([0-9.]+)\s*$", rules[name]["expr"].strip())
        if match is None:
            raise ValueError(f"alert {name}: {rules[name]['expr']!r} does not end in '> number': leave it out")
        # Grafana colours from the threshold on, an alert fires above it: for a gauge of 0 and 1, from 1 on.
        found.append((colors[rules[name]["labels"]["severity"]], float(match[1]) or 1.0))
    return found


def draw_graph(graph: Graph) -> timeseries.Panel:
    """Build one panel."""
    panel = (
        timeseries.Panel()
        .title(graph.title)
        .description(graph.description)
        .datasource(DATASOURCE)
        .unit(graph.unit)
        .min(0)
        .span(WIDTH)
        .height(HEIGHT)
        .line_width(1)
        .fill_opacity(10)
        .show_points(common.VisibilityMode.NEVER)
        .tooltip(common_builder.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
        .legend(
            common_builder.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
            .calcs(["lastNotNull", "max"])
        )
    )
    for ref, query in zip("ABCDEF", graph.queries, strict=False):
        panel.with_target(
            prometheus.Dataquery().ref_id(ref).datasource(DATASOURCE).expr(query.expr).legend_format(query.legend)
        )
    if graph.alerts:
        steps = [dashboard.Threshold(value=None, color="green")]
        steps += [dashboard.Threshold(value=at, color=color) for color, at in thresholds_of(graph.alerts)]
        panel.thresholds(builder.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps))
        panel.thresholds_style(common_builder.GraphThresholdsStyleConfig().mode(common.GraphTresholdsStyleMode.DASHED))
        panel.links(
            [
                builder.DashboardLink(f"Runbook: {name}")
                .url(f"${{runbook}}#{name.lower()}")
                .target_blank(target_blank=True)
                for name in graph.alerts
            ]
        )
    return panel


def describe_variables() -> list[builder.DatasourceVariable | builder.QueryVariable | builder.TextBoxVariable]:
    """Build what a reader can choose: the Prometheus, the tables, and where the runbook is published."""
    everything = dashboard.VariableOption(text="All", value="$__all", selected=True)
    return [
        builder.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        builder.QueryVariable("table")
        .label("Table")
        .datasource(DATASOURCE)
        .query("label_values(icedb_table_data_files, table)")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
        .current(everything),
        builder.TextBoxVariable("runbook")
        .label("Runbook")
        .description("Address under which docs/runbook.md is published; the panels' links go there.")
        .default_value("docs/runbook.md"),
    ]


def build_dashboard() -> dashboard.Dashboard:
    """Build the whole dashboard.

    Returns:
        The model that `encode` turns into the committed file.
    """
    board = (
        builder.Dashboard("IceDB: merge lag")
        .uid("icedb-merge-lag")
        .description("Is the warehouse keeping up: merges, log, vacuum, ingest and snapshots, for each table.")
        .tags(["icedb"])
        .editable()
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
    )
    for variable in describe_variables():
        board.with_variable(variable)
    board.with_panel(
        text.Panel()
        .title("")
        .transparent(transparent=True)
        .span(24)
        .height(2)
        .mode(TextMode.MARKDOWN)
        .content(
            "Dashed lines are where alerts fire. Every alert and every panel with one links to its entry in the "
            "[runbook](${runbook}) (`docs/runbook.md`)."
        )
    )
    for title, graphs in ROWS.items():
        board.with_row(builder.Row(title))
        for graph in graphs:
            board.with_panel(draw_graph(graph))
    return board.build()


def encode(board: dashboard.Dashboard) -> str:
    """Return the dashboard as the text of its file, the same for the same code."""
    return JSONEncoder(sort_keys=True, indent=2).encode(board) + "\n"


def main(arguments: list[str]) -> int:
    """Write the file, or with `--check` say whether it is current."""
    wanted = encode(build_dashboard())
    if arguments == ["--check"]:
        if OUTPUT.exists() and OUTPUT.read_text() == wanted:
            return 0
        sys.stderr.write(f"{OUTPUT} is not what this code builds: run python {Path(__file__).name}\n")
        return 1
    if arguments:
        sys.stderr.write("usage: dashboards.py [--check]\n")
        return 2
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
