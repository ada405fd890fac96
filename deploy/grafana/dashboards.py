"""The Grafana dashboards, as code: the builder.

Owns `dashboards/*.json`, which are generated, committed and provisioned by compose.yaml. What stands on them is data:
`boards.py` and the modules that it imports. Thresholds are those of the alerts, read from `../prometheus/rules`, so
that a graph and an alert never disagree; bounds of a table's own policy are lines.

    python deploy/grafana/dashboards.py            writes the files
    python deploy/grafana/dashboards.py --check    exits 1 when one is not current
"""

import functools
import json
import re
import sys
from pathlib import Path

import yaml
from boards import BOARDS
from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as builder
from grafana_foundation_sdk.builders import prometheus, stat, table, text, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode
from graphs import BOUND, Board, Graph, lead

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "dashboards"
RULES = HERE.parent / "prometheus" / "rules"

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
SIZES = {"lines": (8, 8), "stat": (4, 4), "list": (24, 6)}
"""Grid units of a panel's width, of 24, and of its height."""
EVEN = {2: 12, 4: 6}
"""Width of the lines of a row that has so many panels."""

NO_FIELDS_OF_VARIABLES = ("auto", "auto_count", "auto_min", "id")
"""What the SDK writes of every variable, and Grafana's own types do not have."""

Panel = timeseries.Panel | stat.Panel | table.Panel


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
    rules = read_rules()
    colors = {"warning": "orange", "critical": "red"}
    found = []
    for name in alerts:
        match = re.search(r"> ([0-9.]+)\s*$", rules[name]["expr"].strip())
        if match is None:
            raise ValueError(f"alert {name}: {rules[name]['expr']!r} does not end in '> number': leave it out")
        # Grafana colours from the threshold on, an alert fires above it: for a gauge of 0 and 1, from 1 on.
        found.append((colors[rules[name]["labels"]["severity"]], float(match[1]) or 1.0))
    return found


@functools.cache
def read_rules() -> dict[str, dict]:
    """Return every alert by its name."""
    return {
        rule["alert"]: rule
        for path in sorted(RULES.glob("*.yml"))
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


def draw(graph: Graph, row_panels: int) -> Panel:
    """Build one panel, of a row with so many."""
    kinds = {"lines": timeseries.Panel, "stat": stat.Panel, "list": table.Panel}
    width, height = SIZES[graph.kind]
    panel = kinds[graph.kind]().title(graph.title).description(graph.description).datasource(DATASOURCE)
    if graph.kind == "lines":
        draw_lines(panel, graph)
        width = EVEN.get(row_panels, width)
    elif graph.kind == "stat":
        panel.reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
        panel.color_mode(common.BigValueColorMode.BACKGROUND).graph_mode(common.BigValueGraphMode.NONE)
    else:
        panel.show_header(show_header=True)
    panel.unit(graph.unit).span(width).height(height)
    for ref, query in zip("ABCDEF", graph.queries, strict=False):
        target = prometheus.Dataquery().ref_id(ref).datasource(DATASOURCE).expr(query.expr)
        if graph.kind != "lines":
            target.instant()
        if graph.kind == "list":
            target.format(PromQueryFormat.TABLE)
        panel.with_target(target.legend_format(query.legend))
    limits = thresholds_of(graph.alerts) or ([("red", graph.red_from)] if graph.red_from is not None else [])
    if limits or graph.kind == "stat":
        steps = [dashboard.Threshold(value=at, color=color) for color, at in (("green", None), *limits)]
        panel.thresholds(builder.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps))
    entries = (*graph.alerts, *graph.runbook)
    panel.links([link(f"Runbook: {name}", f"${{runbook}}#{name.lower()}") for name in entries])
    if "{{table}}" in (query.legend for query in graph.queries):
        name = "${__field.labels.table}"
        panel.data_links(
            [
                link(f"All of {name}", f"/d/icedb-table?var-table={name}&${{__url_time_range}}", is_elsewhere=False),
                link(f"{name} in the console", f"${{console}}/tables/{name}"),
            ]
        )
    return panel


def draw_lines(panel: timeseries.Panel, graph: Graph) -> None:
    """Say how lines over time look: bounds are dashed, and so is where alerts fire."""
    panel.min(0).line_width(1).fill_opacity(10).show_points(common.VisibilityMode.NEVER)
    panel.tooltip(common_builder.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    panel.legend(
        common_builder.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
        .calcs(["lastNotNull", "max"])
    )
    if graph.alerts or graph.red_from is not None:
        panel.thresholds_style(common_builder.GraphThresholdsStyleConfig().mode(common.GraphTresholdsStyleMode.DASHED))
    if any(query.legend.endswith(BOUND) for query in graph.queries):
        dashes = {"custom.lineStyle": {"fill": "dash", "dash": [8, 8]}, "custom.fillOpacity": 0}
        values = [dashboard.DynamicConfigValue(id_val=name, value=value) for name, value in dashes.items()]
        panel.override_by_regexp(f"/{BOUND}$/", values)


def link(title: str, url: str, *, is_elsewhere: bool = True) -> builder.DashboardLink:
    """Build a link; one that leads out of Grafana opens beside it."""
    return builder.DashboardLink(title).url(url).target_blank(target_blank=is_elsewhere)


def describe_variables(
    board: Board,
) -> list[builder.DatasourceVariable | builder.QueryVariable | builder.TextBoxVariable]:
    """Build what a reader can choose: the Prometheus, the tables, and where runbook and console are."""
    tables = (
        builder.QueryVariable("table")
        .label("Table")
        .datasource(DATASOURCE)
        .query("label_values(icedb_table_data_files, table)")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )
    if not board.is_for_one_table:
        everything = dashboard.VariableOption(text="All", value="$__all", selected=True)
        tables.multi(multi=True).include_all(include_all=True).all_value(".*").current(everything)
    return [
        builder.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        tables,
        builder.TextBoxVariable("runbook")
        .label("Runbook")
        .description("Address under which docs/runbook.md is published; the panels' links go there.")
        .default_value("docs/runbook.md"),
        builder.TextBoxVariable("console")
        .label("Console")
        .description("Address of the console; the tables' links go there.")
        .default_value("http://127.0.0.1:8090"),
    ]


def ask(board: Board) -> text.Panel:
    """Build the panel of questions at the top."""
    asked = "\n".join(f"- **{question}** {answer}" for question, answer in board.questions.items())
    asked = lead(
        asked, board=lambda name: f"/d/icedb-{name}?${{table:queryparam}}&${{__url_time_range}}", runbook="${runbook}"
    )
    panel = text.Panel().title("").transparent(transparent=True).span(24).height(2 + len(board.questions))
    return panel.mode(TextMode.MARKDOWN).content(
        f"{asked}\n\nDashed lines are where alerts fire, or bounds of a table."
    )


def build(board: Board) -> dashboard.Dashboard:
    """Build a whole dashboard.

    Returns:
        The model that `encode` turns into the committed file.
    """
    built = (
        builder.Dashboard(f"IceDB: {board.title}")
        .uid(f"icedb-{board.name}")
        .description(board.description)
        .tags(["icedb"])
        .editable()
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
    )
    others = builder.DashboardLink("IceDB").type(dashboard.DashboardLinkType.DASHBOARDS).tags(["icedb"])
    built.link(others.include_vars(include_vars=True).keep_time(keep_time=True))
    for title, url in (("Runbook", "${runbook}"), ("Console", "${console}")):
        built.link(link(title, url).type(dashboard.DashboardLinkType.LINK))
    for variable in describe_variables(board):
        built.with_variable(variable)
    built.with_panel(ask(board))
    for title, graphs in board.rows.items():
        built.with_row(builder.Row(title))
        for graph in graphs:
            built.with_panel(draw(graph, len(graphs)))
    return built.build()


def encode(board: dashboard.Dashboard) -> str:
    """Return the dashboard as the text of its file, the same for the same code, with no field that Grafana lacks."""
    content = json.loads(JSONEncoder().encode(board))
    del content["style"]  # an older Grafana's
    for variable in content["templating"]["list"]:
        for name in NO_FIELDS_OF_VARIABLES:
            variable.pop(name, None)
    for panel in content["panels"]:
        if panel["type"] == "table":
            panel["options"].pop("footer")  # the SDK's default; Grafana 12 has none
    return json.dumps(content, sort_keys=True, indent=2) + "\n"


def main(arguments: list[str]) -> int:
    """Write the files, or with `--check` say whether they are current."""
    wanted = {f"{board.name}.json": encode(build(board)) for board in BOARDS}
    if arguments == ["--check"]:
        found = {path.name: path.read_text() for path in OUTPUT.glob("*.json")}
        stale = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        if stale:
            sys.stderr.write(f"{', '.join(stale)}: not what this code builds: run python {Path(__file__).name}\n")
        return 1 if stale else 0
    if arguments:
        sys.stderr.write("usage: dashboards.py [--check]\n")
        return 2
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name, content in wanted.items():
        (OUTPUT / name).write_text(content)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
