"""Writes the pages of docs that follow from the code or from results: run ``python docs/reference.py``."""  # noqa: INP001 - a script

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from icedb_console import query_api
from icedb_console.metrics import ConsoleMetrics
from icedb_console.settings import ConsoleSettings
from icedb_gateway.metrics import GatewayMetrics
from icedb_gateway.settings import GatewaySettings
from icedb_ingest.frontend.enqueue_task import message_schema
from icedb_ingest.frontend.http_endpoint import HttpEndpoint, make_app
from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.frontend.openapi import describe
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.metrics import INGEST_TASKS, LARGE_TASKS, IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.settings import JanitorSettings
from icedb_log.texts import read_field_docs
from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_service.beat import BeatMetrics
from icedb_service.settings import (
    EndpointSettings,
    HttpServiceSettings,
    ReaderSettings,
    ServiceSettings,
    SparkServiceSettings,
    env_name,
)
from icedb_snapshot.metrics import SnapshotMetrics, TableMetrics
from icedb_snapshot.settings import SnapshotSettings
from prometheus_client import CollectorRegistry
from pydantic_core import PydanticUndefined
from starlette.routing import Route

HERE = Path(__file__).parent
FIGURES = HERE.parent / "bench" / "results" / "reliability.json"
FIGURES_BEGIN, FIGURES_END = "<!-- figures -->", "<!-- end of figures -->"
NOTE = "<!-- Written by docs/reference.py from the code. Edit the code, then run it. -->\n"

METRICS = """# Metrics

Every service answers on `http://<ICEDB_METRICS_HOST>:<ICEDB_METRICS_PORT>`: `/metrics` (Prometheus),
`/healthz` (this process is worth keeping) and `/readyz` (what it needs answers; a worker: its Spark session is open). Names are
`icedb_<component>_<what>_<unit>[_total]`. Label values come from the closed sets below and exist from the
start, except `table`. Besides these, each service serves the usual `process_…` and `python_info`.
A worker's counters begin anew when its child process is replaced, as Prometheus expects of counters.

What a run's `outcome` means is explained in `icedb_service.runs`; alerts and what to do about them in
`docs/runbook.md`.
"""
TABLES = """Computed from each table's log by the snapshot service, so that they are there when every worker is
dead. A table that is gone loses its series."""
SHARED = "Served by each service; by beat those of Redis and of the store."
SETTINGS = """# Settings

All services are configured by environment variables. An empty variable counts as not set. A setting that is
wrong ends the service with exit code 2 and one line that names it; a variable whose name is almost that of
a setting is logged as a warning (`setting_unknown`). Settings of a *table* (grace periods, target size, partitions) are stored with the table: `icedb table show`.
"""


DECISIONS = """# Decisions

Why IceDB is built this way. Each says the question, the decision, what it beats, and what it costs.

"""


DASHBOARDS = """# Dashboards and objectives

Grafana's dashboards, as [compose.yaml](../deploy/README.md#watching) provisions them, begin with the questions that an operator asks. They lead to each other, from each table to *One table* and to its page
in the [console](console.md), and from each panel with an alert to its entry in the [runbook](runbook.md). Dashed lines are where alerts fire, or bounds of a table's own policy.
Pictures are drawn from the panels' own queries over a local stack of a few minutes, one table without a merger for a while (`make pictures`).

## Objectives

| what | objective | its alerts |
| --- | --- | --- |
| freshness, of each table | 99 % of the time no accepted batch has waited longer than a fifth of the table's log grace period, two minutes by default; of a view: no commit that it has to take | [fast](runbook.md#icedbfreshnessburnsfast), [slowly](runbook.md#icedbfreshnessburnsslowly) |
| latency of snapshots | 99 % of the calls of GetSnapshot are answered, within a second | [fast](runbook.md#icedbsnapshotlatencyburnsfast), [slowly](runbook.md#icedbsnapshotlatencyburnsslowly) |
| loss | none; there is no budget | [a commit](runbook.md#icedbcommitlost), [a file](runbook.md#icedbgatewayfilemissing) |

A budget is for 30 days. *Fast*: at the rate of the last hour (and of the last five minutes) 2 % of it goes in an hour, or 5 % in six hours. *Slowly*: 10 % in a day, or all of it by the end. `deploy/prometheus/rules/slo.yml` has the rules.
"""


def render_metrics_page() -> str:
    """Return docs/metrics.md."""
    tables = CollectorRegistry()
    TableMetrics(tables)
    sections = {
        "Tables": (TABLES, tables),
        "Front end": (
            "Served by the front end of ingest, and (door `celery`) by the worker of the queue `enqueue`.",
            FrontendMetrics().registry,
        ),
        "Ingest": (
            "Served by the ingest worker, and by that of the queue `ingest-large`, each with its own tasks.",
            IngestMetrics(tasks=(*INGEST_TASKS, *LARGE_TASKS)).registry,
        ),
        "Merge": ("Served by the merger.", MergeMetrics().registry),
        "Janitor": ("Served by the janitor.", JanitorMetrics().registry),
        "Snapshot": ("Served by the snapshot service.", SnapshotMetrics().registry),
        "S3 gateway": ("Served by the S3 gateway.", GatewayMetrics().registry),
        "Console": ("Served by the console.", ConsoleMetrics().registry),
        "Beat": ("Served by beat where `ICEDB_METRICS_PORT` is set for it.", BeatMetrics().registry),
    }
    shared = set.intersection(*(set(_metric_rows(registry)) for _, registry in list(sections.values())[1:-1]))
    parts = [NOTE, METRICS, "## All services\n", f"{SHARED}\n", _metric_table(shared) + "\n"]
    for title, (text, registry) in sections.items():
        parts += [f"## {title}\n", f"{text}\n", _metric_table(set(_metric_rows(registry)) - shared) + "\n"]
    return "\n".join(parts)


def render_settings_page() -> str:
    """Return docs/settings.md."""
    shared = set(ServiceSettings.model_fields)
    spark = set(SparkServiceSettings.model_fields)
    http = set(HttpServiceSettings.model_fields)
    endpoint, reader = set(EndpointSettings.model_fields), set(ReaderSettings.model_fields)
    parts = [
        NOTE,
        SETTINGS,
        "## All services, and beat\n",
        render_settings(ServiceSettings) + "\n",
        "## Ingest and merger: Spark\n",
        render_settings(SparkServiceSettings, besides=shared) + "\n",
        "## Front end, snapshot, S3 gateway and console\n",
        render_settings(EndpointSettings, besides=shared) + "\n",
        "## Snapshot, S3 gateway and console: reading tables\n",
        render_settings(ReaderSettings, besides=endpoint) + "\n",
        "## Front end, S3 gateway and console: HTTP\n",
        render_settings(HttpServiceSettings, besides=endpoint) + "\n",
        "## Ingest\n",
        render_settings(IngestSettings, besides=spark) + "\n",
        "## Front end, and the worker of the queue `enqueue`\n",
        render_settings(FrontendSettings, besides=http) + "\n",
        "## Merger\n",
        render_settings(MergerSettings, besides=spark) + "\n",
        "## Snapshot\n",
        render_settings(SnapshotSettings, besides=reader) + "\n",
        "## S3 gateway\n",
        render_settings(GatewaySettings, besides=http | reader) + "\n",
        "## Console\n",
        render_settings(ConsoleSettings, besides=http | reader) + "\n",
    ]
    if set(JanitorSettings.model_fields) != shared:
        parts += ["## Janitor\n", render_settings(JanitorSettings, besides=shared) + "\n"]
    return "\n".join(parts)


def render_protocol_page() -> str:
    """Return docs/protocol.md with the table of rules between its marks."""
    return _render_rules("protocol.md")


def render_promises_page() -> str:
    """Return docs/internals/promises.md with the table of rules between its marks."""
    return _render_rules("internals/promises.md")


def _render_rules(page: str) -> str:
    sys.path.append(str(HERE))
    return str(import_module("rules").render_page(HERE / page))


def render_dashboards_page() -> str:
    """Return docs/dashboards.md: what each dashboard is asked, and its picture."""
    sys.path.append(str(HERE.parent / "deploy" / "grafana"))
    boards, lead = import_module("boards").BOARDS, import_module("graphs").lead
    anchors = {board.name: f"#{board.title.lower().replace(' ', '-')}" for board in boards}
    parts = [NOTE, DASHBOARDS]
    for board in boards:
        parts.append(f"## {board.title}\n\n{board.description}\n\n| question | answer |\n| --- | --- |")
        parts += [f"| {question} | {answer} |" for question, answer in board.questions.items()]
        shown = "; ".join(f"{heading}: {', '.join(each.title for each in row)}" for heading, row in board.rows.items())
        parts.append(f"\n![{board.title}. {shown}](pictures/dashboard-{board.name}.svg)\n")
    return str(lead("\n".join(parts), board=anchors.__getitem__, runbook="runbook.md"))


def render_enqueue_schema() -> str:
    """Return docs/schemas/icedb.ingest.enqueue.schema.json."""
    return json.dumps(message_schema(), indent=2) + "\n"


def render_decisions_page() -> str:
    """Return docs/decisions/README.md: the title of each decision."""
    titles = {
        path.name: path.read_text(encoding="utf-8").partition("\n")[0] for path in (HERE / "decisions").glob("0*.md")
    }
    return DECISIONS + "".join(f"- [{title.removeprefix('# ')}]({name})\n" for name, title in sorted(titles.items()))


def render_http_contract() -> str:
    """Return docs/schemas/openapi.json: what the front end serves, and the console's query, each with its server."""
    endpoint = HttpEndpoint.__new__(HttpEndpoint)  # nobody calls its handlers
    routes = make_app(endpoint, access_log="none", cors_origins=()).routes
    document = describe(route for route in routes if isinstance(route, Route))
    document["servers"] = [_server("front_end", "http://127.0.0.1:8088", "The front end.")]
    for path, item in query_api.PATHS.items():
        document["paths"][path] = item | {"servers": [_server("console", "http://127.0.0.1:8090", "The console.")]}
    schemas = document["components"]["schemas"] | query_api.SCHEMAS
    document["components"] = document["components"] | {"schemas": schemas}
    return json.dumps(document, indent=2) + "\n"


def _server(name: str, address: str, description: str) -> dict[str, Any]:
    """Return a server of the OpenAPI document; its address is where `make up` has it unless one says otherwise."""
    return {"url": f"{{{name}}}", "description": description, "variables": {name: {"default": address}}}


def render_testing_page() -> str:
    """Return docs/internals/testing.md with the figures of bench/results/reliability.json between its marks."""
    page = (HERE / "internals" / "testing.md").read_text(encoding="utf-8")
    before, _, rest = page.partition(FIGURES_BEGIN)
    _, _, after = rest.partition(FIGURES_END)
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    parts = [_render_figures(name, figures[name]) for name in ("simulation", "chaos", "fuzzing", "mutations")]
    return f"{before}{FIGURES_BEGIN}\n\n" + "\n".join(parts) + f"\n{FIGURES_END}{after}"


def _render_figures(name: str, figures: dict[str, Any]) -> str:
    lines = [f"### {name.capitalize()}\n", f"`{figures['command']}`\n", "| figure | value |", "| --- | --- |"]
    lines += [
        f"| {key.replace('_', ' ')} | {_figure_text(value)} |" for key, value in figures.items() if key != "command"
    ]
    return "\n".join(lines) + "\n"


def _figure_text(value: Any) -> str:
    """Return a figure: nothing is made up for one that is not there."""
    if value is None:
        return "not run yet"
    if isinstance(value, dict):
        return "<br>".join(f"{key}: {_figure_text(each)}" for key, each in value.items())
    if isinstance(value, list):
        return "<br>".join(_figure_text(each) for each in value) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Write the pages and the schema."""
    (HERE / "schemas").mkdir(exist_ok=True)
    sys.path.append(str(HERE))
    import_module("commands").main()
    (HERE / "schemas" / "icedb.ingest.enqueue.schema.json").write_text(render_enqueue_schema(), encoding="utf-8")
    (HERE / "decisions" / "README.md").write_text(render_decisions_page(), encoding="utf-8")
    (HERE / "schemas" / "openapi.json").write_text(render_http_contract(), encoding="utf-8")
    (HERE / "metrics.md").write_text(render_metrics_page(), encoding="utf-8")
    (HERE / "settings.md").write_text(render_settings_page(), encoding="utf-8")
    (HERE / "dashboards.md").write_text(render_dashboards_page(), encoding="utf-8")
    (HERE / "protocol.md").write_text(render_protocol_page(), encoding="utf-8")
    (HERE / "internals" / "promises.md").write_text(render_promises_page(), encoding="utf-8")
    (HERE / "internals" / "testing.md").write_text(render_testing_page(), encoding="utf-8")


OPEN_LABELS: Final = frozenset({"table", "version", "python"})
"""Labels whose values are not listed: they are not known beforehand."""


def _metric_rows(registry: CollectorRegistry) -> Iterator[str]:
    """Yield a row for each of the registry's own metrics (``icedb_…``)."""
    for collector in registry._collector_to_names:  # noqa: SLF001 - a registry has no public list of collectors
        if getattr(collector, "_name", "").startswith("icedb_"):
            yield _metric_row(collector)


def _metric_table(rows: Iterable[str]) -> str:
    head = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *sorted(rows)])


def render_settings(kind: type[ServiceSettings], *, besides: Iterable[str] = ()) -> str:
    """Return a table of the fields of a settings class.

    Args:
        kind: The class.
        besides: Fields to leave out, because another table has them.
    """
    left_out, meanings = set(besides), read_field_docs(kind)
    rows = []
    for name, field in kind.model_fields.items():
        if name not in left_out:
            meaning = meanings[name].replace("|", "\\|")
            rows.append(f"| `{env_name(name)}` | {_default_text(field.default)} | {meaning} |")
    return "\n".join(["| variable | default | meaning |", "| --- | --- | --- |", *rows])


def _metric_row(collector: Any) -> str:
    kind = collector._type  # noqa: SLF001
    name = collector._name + ("_total" if kind == "counter" else "")  # noqa: SLF001
    labels = _label_texts(collector._labelnames, tuple(getattr(collector, "_metrics", ())))  # noqa: SLF001
    return f"| `{name}` | {kind} | {'; '.join(labels) or 'none'} | {collector._documentation} |"  # noqa: SLF001


def _label_texts(names: Sequence[str], values: Sequence[tuple[str, ...]]) -> list[str]:
    texts = []
    for position, name in enumerate(names):
        known = sorted({value[position] for value in values})
        texts.append(f"`{name}`" if name in OPEN_LABELS or not known else f"`{name}`: {', '.join(known)}")
    return texts


def _default_text(default: object) -> str:
    if default is PydanticUndefined:
        return "required"
    return "not set" if default in (None, (), {}, "") else f"`{default}`"


if __name__ == "__main__":
    main()
