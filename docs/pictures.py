"""Draws the pictures of README and docs from the running thing: ``make pictures``, about five minutes.

``first-use.svg`` is what README's first code prints, run in an empty folder, and the command on its table. ``trace.svg`` is the trace of one batch. ``console-*.png`` are the console's pages, in Debian's Chromium. ``dashboard-*.svg`` are the Grafana dashboards, ``merge-lag.svg`` some panels of them: a local stack is
used, its merger is down for a while, a real Prometheus scrapes all services, and each panel's own query is asked.
"""  # noqa: INP001 - a script

import contextlib
import io
import itertools
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import orjson
from icedb import connect
from icedb_client import Client, ClientSettings
from icedb_ingest.frontend.staging_gate import Offer, StagingGate
from icedb_local.chaos.chaos_layout import ChaosLayout, Pace
from icedb_local.chaos.fault_proxy import FaultProxy
from icedb_local.ports import find_free_ports
from icedb_local.stack import LocalStack
from icedb_local.stack_layout import S3_ACCESS_KEY, S3_SECRET_KEY
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.feed.views import create_view
from icedb_log.holds.tags import create_tag
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import Acceptance
from icedb_log.names import INGEST_FLUSH
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_service.metrics import WorkerMetrics
from icedb_service.runs import TaskRunner, Work
from icedb_service.spans import Tracing, derive
from icedb_service.tracing import current_run, traced_by
from icedb_snapshot.server import SnapshotService
from icedb_snapshot.settings import SnapshotSettings
from matplotlib.ticker import FuncFormatter, MaxNLocator
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parents[1]
OUT: Final = ROOT / "docs" / "pictures"
COLUMNS: Final = 108
FONTS: Final = re.compile(r"@font-face \{.*?\}", re.DOTALL)
"""Rich has its SVG fetch a font from elsewhere; a reader's own monospace font does."""
PANELS: Final = ("Merge lag", "Data files that wait for a merge", "Live data files", "Live rows")
CONSOLE_PAGES: Final = (
    ("tables", "/", 1280, 620, False),
    ("table", "/tables/events", 1280, 1300, False),
    ("workers", "/workers", 1280, 760, False),
    ("columns", "/tables/events/columns", 1280, 480, False),
    ("query", "/query", 1280, 900, True),
    ("phone", "/tables/events", 360, 1150, True),
    ("phone-query", "/query", 360, 1150, False),
)
"""Name, path, width and height in pixels, and whether it is dark."""
CONSOLE_ROWS: Final = 1_000_000
CONSOLE_BATCH_ROWS: Final = 20_000
CONSOLE_QUERY: Final = (
    "select d, event, count(*) as count, avg(amount) as mean_amount\nfrom events\ngroup by all order by all"
)
CALM_S, LAZY_S, BUSY_S = 50, 70, 110
"""How long all is well, the merger is down, and is back."""


def draw_first_use() -> None:
    """Run README's first code, and draw what it prints as a terminal."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "first.py").write_text(code, encoding="utf-8")
        for command in ("python first.py", "icedb describe events"):
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            console.print(Text.from_ansi(_run(command, Path(folder)).rstrip()))
            console.print()
    picture = FONTS.sub("", console.export_svg(title="IceDB", theme=SVG_EXPORT_THEME, unique_id="first-use"))
    (OUT / "first-use.svg").write_text(picture, encoding="utf-8")


TRACED_ROWS: Final = 300_000
"""Rows of the batch whose trace is drawn: so many that one sees what takes how long."""


def draw_trace() -> None:
    """Take one batch from the staging gate through a flush to a snapshot service, and draw its trace."""
    exporter = InMemorySpanExporter()
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder, traced_by(Tracing("docs", exporter=exporter)):
        lake = connect(Path(folder) / "lake")
        events = lake.create_table("events", partition=["d=day(ts)"], sort=["event", "ts"])
        events.append([{"ts": "2026-01-02T03:04:05Z", "event": "a", "user": 0}] * 1000)  # a worker is warm
        acceptance = Acceptance(lake.client.warehouse, clock=clock, max_age_ms=30_000)
        gate = StagingGate(acceptance, clock=clock, on_staged=lambda _table: None)
        lines = (
            f'{{"ts":"2026-01-02T03:{n % 60:02}:05Z","event":"{"abc"[n % 3]}","user":{n}}}\n'
            for n in range(TRACED_ROWS)
        )
        (port,) = find_free_ports(1)
        settings = SnapshotSettings(store=f"file://{folder}/lake", snapshot_address=f"127.0.0.1:{port}", metrics_port=0)
        service = SnapshotService(lake.client.warehouse, settings=settings, clock=clock)
        service.start()
        batch_id = gate.accept(Offer("events", "".join(lines).encode(), "ndjson", endpoint="http")).batch_id
        reader = threading.Thread(target=_read_snapshot, args=(port, batch_id))
        reader.start()
        time.sleep(0.2)  # noqa: TID251 - a flush interval

        def flush() -> Work:
            run = current_run()
            assert run is not None  # noqa: S101 - traces are on
            begun = run.begin_flush()
            done = flush_table(events.open(), lake.engine.writer)
            run.note_flush(begun, done.committed_ids, {}, {})
            return Work(is_idle=False)

        metrics = WorkerMetrics("ingest", package="icedb-service", tasks=(INGEST_FLUSH,))
        TaskRunner(metrics=metrics, clock=clock).run(flush, task=INGEST_FLUSH, task_id="1", table="events")
        reader.join()
        service.stop()
    _plot_trace([span for span in exporter.get_finished_spans() if span.context.trace_id == derive(batch_id).trace_id])


def _read_snapshot(port: int, batch_id: str) -> None:
    with Client(snapshot_address=f"127.0.0.1:{port}") as client:
        client.snapshot("events", min_commit=batch_id)


def _plot_trace(spans: list[Any]) -> None:
    known = {span.context.span_id: span for span in spans}

    def depth(span: Any) -> int:
        return 1 + depth(known[span.parent.span_id]) if span.parent and span.parent.span_id in known else 0

    ordered = sorted(spans, key=lambda span: (span.start_time, depth(span)))
    began_ns = ordered[0].start_time
    least_ms = (max(span.end_time for span in spans) - began_ns) / 4e8
    colors = ("#3f7fe8", "#e8833f", "#5aa469", "#8a8f98")
    with mpl.rc_context(
        {
            "text.color": "#7a808a",
            "xtick.color": "#7a808a",
            "font.size": 9,
            "svg.fonttype": "none",
            "svg.hashsalt": "icedb",
        }
    ):
        figure, axis = plt.subplots(figsize=(11, 0.27 * len(ordered) + 0.6), layout="constrained")
        for line, span in enumerate(ordered):
            begin_ms, took_ms = (span.start_time - began_ns) / 1e6, (span.end_time - span.start_time) / 1e6
            axis.barh(line, max(took_ms, least_ms), left=begin_ms, height=0.62, color=colors[min(depth(span), 3)])
            name = span.name.removeprefix("icedb.").removeprefix("v1.SnapshotService/")
            axis.text(begin_ms + max(took_ms, least_ms) + 2 * least_ms, line, f"{name}  {took_ms:,.0f} ms", va="center")
        axis.set_ylim(len(ordered) - 0.4, -0.6)
        axis.set_xlim(right=axis.get_xlim()[1] * 1.25)
        axis.set_yticks([])
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.set_xlabel("milliseconds", color="#7a808a")
        figure.savefig(OUT / "trace.svg", transparent=True, metadata={"Date": None})


def draw_console() -> None:
    """Work a stack until a table has a million rows, and take pictures of its console while it goes on."""
    sys.path.insert(0, str(ROOT / "tests" / "rigs"))
    from chromium_rig import open_chromium  # noqa: PLC0415 - what the browser test uses

    os.environ.update({"AWS_ACCESS_KEY_ID": S3_ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": S3_SECRET_KEY})
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as exits:
        layout = replace(ChaosLayout.make(Path(folder) / "stack", pace=Pace(), engine="light"), has_console=True)
        exits.enter_context(FaultProxy(layout.ports.s3, layout.proxy_ports, clock=SystemClock()))
        exits.enter_context(LocalStack(layout))
        ended, is_large = threading.Event(), threading.Event()
        worker = threading.Thread(target=_send, args=(layout, ended, is_large))
        worker.start()
        try:
            is_large.wait()
            browser = exits.enter_context(open_chromium(Path(folder) / "chromium"))
            for name, path, width, height, is_dark in CONSOLE_PAGES:
                browser.shape(width, height, is_dark=is_dark)
                browser.open(layout.console_url + path)
                if path == "/query":
                    browser.open(f"{layout.console_url}/query?{urlencode({'sql': CONSOLE_QUERY})}")
                    browser.click("form.query button.main")
                    browser.wait("document.querySelector('main table.rows, main .bad')")
                browser.wait("!document.body.innerText.includes('being read')")
                browser.wait("!document.body.dataset.live || document.getElementById('state').textContent === 'live'")
                (OUT / f"console-{name}.png").write_bytes(browser.picture(width, height))
        finally:
            ended.set()
            worker.join()


def _send(layout: ChaosLayout, ended: threading.Event, is_large: threading.Event) -> None:
    """Send batches to some tables, most to the first, one of them bad, hold a lease and a tag, until it ends."""
    endpoint, redis = f"http://127.0.0.1:{layout.ports.s3}", layout.redis_url
    settings = ClientSettings(store=layout.server_settings.url, s3_endpoint=endpoint, redis_url=redis)
    tables = ("events", "events", "orders", "events", "events", "sessions", "page_views")
    with Client(settings=settings) as client:
        for name in sorted(set(tables)):
            partition = (PartitionField.parse("d=day(ts)"),)
            config = TableConfig.create(name=name, partition=partition, sort=("event", "ts"), merge_fan_in=4)
            create_table(client.warehouse.table(name), config)
        row_count = 0
        for number in itertools.count():
            table = tables[number % len(tables)]
            size = CONSOLE_BATCH_ROWS if table == "events" else CONSOLE_BATCH_ROWS // 20
            body = b"no json" if number == 30 else _make_rows(number, size)  # noqa: PLR2004 - one batch for quarantine
            _ask(f"{layout.http_url}/v1/tables/{table}/batches", body)
            row_count += size
            _ask(f"{layout.console_url}/tables/events")  # what the console has seen of commits it remembers
            if row_count >= CONSOLE_ROWS and not is_large.is_set():
                client.answerer.acquire_lease("events", ttl_ms=600_000, at_ms=None)
                create_tag(
                    Table.open(client.warehouse.table("events"), clock=SystemClock()), "q1", note="first quarter"
                )
                is_large.set()
            if ended.wait(1 if is_large.is_set() else 0):
                return


def _make_rows(number: int, size: int) -> bytes:
    """Return rows of a few days, most of them of the newest."""
    chance = np.random.default_rng(number)
    kinds = chance.choice(("view", "view", "view", "click", "click", "buy"), size)
    users, amounts = chance.integers(100_000, size=size), chance.exponential(40, size).round(2)
    rows = (
        {
            "ts": f"2026-01-{1 + max(row % 13, 5) - 5:02}T{number % 24:02}:{row // 60 % 60:02}:{row % 60:02}Z",
            "event": str(kinds[row]),
            "user_id": f"u{users[row]}",
            "amount": float(amounts[row]),
        }
        for row in range(size)
    )
    return b"\n".join(orjson.dumps(row) for row in rows)


def _run(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "ICEDB_STORE": f"file://{folder}/lake", "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    done = subprocess.run(
        shlex.split(command), cwd=folder, env=os.environ | own, check=True, capture_output=True, text=True
    )
    return done.stdout


def draw_dashboards() -> None:
    """Work a local stack, take its merger away for a while, and draw what Prometheus says to each panel's query."""
    sys.path.append(str(ROOT / "tests" / "rigs"))
    from prometheus_rig import JOBS, fill_query, read_boards, running_prometheus  # noqa: PLC0415

    os.environ.update({"AWS_ACCESS_KEY_ID": S3_ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": S3_SECRET_KEY})
    boards = read_boards()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as exits:
        made = ChaosLayout.make(Path(folder) / "stack", pace=Pace(), engine="light")
        layout = replace(made, has_console=True)
        exits.enter_context(FaultProxy(layout.ports.s3, layout.proxy_ports, clock=SystemClock()))
        stack = exits.enter_context(LocalStack(layout))
        (Path(folder) / "prometheus").mkdir()
        targets = {job: layout.ports.metrics_of(job) for job in JOBS if job != "ingest-large"}
        prometheus = exits.enter_context(running_prometheus(Path(folder) / "prometheus", targets))
        ended = threading.Event()
        worker = threading.Thread(target=_use, args=(layout, ended))
        worker.start()
        began_s = time.time()  # noqa: TID251 - Prometheus goes by it
        try:
            ended.wait(CALM_S)
            stack.kill_and_hold_down("merger")
            ended.wait(LAZY_S)
            stack.start_again("merger")
            ended.wait(BUSY_S)
        finally:
            ended.set()
            worker.join()
        span = {"start": began_s, "end": began_s + CALM_S + LAZY_S + BUSY_S, "step": "5s"}

        def ask(panels: list[Any], tables: str) -> dict[str, list[tuple[str, list[tuple[float, float]]]]]:
            found: dict[str, list[tuple[str, list[tuple[float, float]]]]] = {}
            for panel in panels:
                found[panel["title"]] = lines = []
                for target in panel.get("targets", ()):
                    query = fill_query(target["expr"], tables)
                    for each in prometheus.get("query_range", query=query, **span)["result"]:
                        labels = each["metric"]
                        name = re.sub(
                            r"\{\{(\w+)\}\}", lambda label, of=labels: of.get(label[1], ""), target["legendFormat"]
                        )
                        lines.append((name, [(float(at) - began_s, float(value)) for at, value in each["values"]]))
            return found

        asked = {
            name: ask(board["panels"], "events" if name == "table" else "events|visits|daily")
            for name, board in boards.items()
        }
        panels = {panel["title"]: panel for board in boards.values() for panel in board["panels"]}
        chosen = [panels[title] for title in PANELS]
        some = ask(chosen, "events")
    for name, board in boards.items():
        _plot(_cut_rows(board["panels"]), asked[name], OUT / f"dashboard-{name}.svg")
    _plot([("", chosen)], some, OUT / "merge-lag.svg")


def _cut_rows(panels: list[Any]) -> list[tuple[str, list[Any]]]:
    """Return headings with the panels that stand side by side; a heading's further lines have none."""
    rows: list[tuple[str, list[Any]]] = []
    heading = ""
    for panel in panels:
        if panel["type"] == "row":
            heading = panel["title"]
        elif "targets" in panel and panel["type"] != "table":
            most = 6 if panel["type"] == "stat" else 3
            if heading or len(rows[-1][1]) == most:
                rows.append((heading, []))
            heading = ""
            rows[-1][1].append(panel)
    return rows


def _use(layout: ChaosLayout, ended: threading.Event) -> None:
    """Send batches to two tables, some of them bad, read a view, snapshots and files, hold a lease, until it ends."""
    settings = ClientSettings(
        store=layout.server_settings.url,
        s3_endpoint=f"http://127.0.0.1:{layout.ports.s3}",
        snapshot_address=layout.snapshot_address,
        redis_url=layout.redis_url,
    )
    with Client(settings=settings) as client:
        times = {"log_grace_ms": 60_000, "data_grace_ms": 60_000, "orphan_age_ms": 120_000, "merge_fan_in": 4}
        partition = (PartitionField.parse("d=day(ts)"),)
        for name in ("events", "visits"):
            config = TableConfig.create(name=name, partition=partition, sort=("event", "ts"), **times)
            create_table(client.warehouse.table(name), config)
        daily = TableConfig.create(name="daily", view_of="events", view_query="select ts, event from _rows", **times)
        create_view(client.warehouse.table("daily"), daily, clock=SystemClock())
        for number in itertools.count():
            if ended.wait(1):
                return
            at = f"2026-01-02T03:{number // 60 % 60:02}:{number % 60:02}Z"
            rows = [{"ts": at, "event": ("view", "click", "buy")[row % 3], "user_id": f"u{row}"} for row in range(500)]
            body = b"no json" if number % 40 == 19 else b"\n".join(orjson.dumps(row) for row in rows)  # noqa: PLR2004
            table = ("events", "events", "visits")[number % 3]
            _ask(f"{layout.http_url}/v1/tables/{table}/batches", body)
            client.snapshot(table)
            listed = _ask(f"{layout.s3_url}/icedb?list-type=2&prefix={table}/&max-keys=3")
            for key in re.findall(r"<Key>(.*?)</Key>", listed):
                _ask(f"{layout.s3_url}/icedb/{key}")
            _ask(f"{layout.console_url}/")
            if number == 30:  # noqa: PLR2004
                client.answerer.acquire_lease("events", ttl_ms=60_000, at_ms=None)


def _ask(url: str, body: bytes | None = None) -> str:
    request = urllib.request.Request(url, body, {"Content-Type": "application/x-ndjson"})  # noqa: S310 - our own stack
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return str(answer.read().decode(errors="replace"))
    return ""


GREY: Final = "#7a808a"
COLORS: Final = {"green": "#5aa469", "orange": "#e8833f", "red": "#d1495b"}
UNITS: Final = {"s": (1, " s"), "percentunit": (100, " %"), "bytes": (1 / 1024, " KiB"), "Bps": (1 / 1024, " KiB/s")}
"""Of Grafana: the factor and the words with which their values are shown."""
MOST_LINES: Final = 6


def _plot(rows: list[tuple[str, list[Any]]], found: dict[str, Any], path: Path) -> None:
    """Draw rows of panels."""
    look = {"axes.edgecolor": GREY, "text.color": GREY, "xtick.color": GREY, "ytick.color": GREY, "font.size": 8}
    with mpl.rc_context({**look, "svg.fonttype": "none", "svg.hashsalt": "icedb", "font.family": "sans-serif"}):
        heights = [0.9 if panels[0]["type"] == "stat" else 2.3 for _, panels in rows]
        figure = plt.figure(figsize=(12, sum(heights) + 0.3 * len(rows)), layout="constrained")
        for part, (heading, panels) in zip(
            np.atleast_1d(figure.subfigures(len(rows), 1, height_ratios=heights)), rows, strict=True
        ):
            if heading:
                part.suptitle(heading, x=0.01, ha="left", fontsize=11, weight="bold")
            columns = max(len(panels), 6 if panels[0]["type"] == "stat" else 3)
            for axis, panel in zip(
                part.subplots(1, columns, squeeze=False)[0], panels + [None] * columns, strict=False
            ):
                if panel is None:
                    axis.axis("off")
                elif panel["type"] == "stat":
                    _plot_value(axis, panel, found[panel["title"]])
                else:
                    _plot_lines(axis, panel, found[panel["title"]])
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def _unit_of(panel: Any) -> tuple[float, str]:
    return UNITS.get(panel["fieldConfig"]["defaults"]["unit"], (1, ""))


def _plot_value(axis: Any, panel: Any, lines: Any) -> None:
    """Draw the newest value, large, in the colour that Grafana would give it."""
    factor, unit = _unit_of(panel)
    value = max((points[-1][1] for _, points in lines), default=0)
    colors = [step["color"] for step in _steps(panel) if value >= step["value"]]
    axis.text(
        0.5,
        0.45,
        f"{value * factor:,.0f}{unit}",
        ha="center",
        va="center",
        fontsize=22,
        color=COLORS[["green", *colors][-1]],
    )
    axis.set_title(panel["title"], fontsize=9)
    axis.axis("off")


def _steps(panel: Any) -> list[Any]:
    return list(panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", ()))[1:]


def _plot_lines(axis: Any, panel: Any, lines: Any) -> None:
    """Draw lines over time: the highest, not those that are 0 all the time; bounds, and where alerts fire, if near."""
    factor, unit = _unit_of(panel)
    axis.set_title(panel["title"] + (f" ({unit.strip()})" if unit else ""), loc="left", fontsize=9)
    peaks = {name: max((v for _, v in points if not math.isnan(v)), default=0) for name, points in lines}
    shown = [line for line in sorted(lines, key=lambda line: -peaks[line[0]]) if peaks[line[0]] > 0][:MOST_LINES]
    for number, (name, points) in enumerate(sorted(shown)):
        times, values = zip(*points, strict=True)
        style = "--" if name.endswith(" bound") else "-"
        axis.plot(
            times, [round(value * factor, 4) for value in values], style, linewidth=1.2, label=name, color=f"C{number}"
        )
    if shown:
        axis.set_ylim(0, max(1.08 * factor * max(peaks[name] for name, _ in shown), 1e-9))
        axis.legend(fontsize=6.5, frameon=False, loc="best", labelcolor=GREY)
    else:
        axis.set_ylim(0, 1)
        axis.text(
            0.5,
            0.5,
            f"{len(lines)} lines, all 0" if lines else "nothing",
            transform=axis.transAxes,
            ha="center",
            color=GREY,
        )
    for step in _steps(panel):
        if step["value"] * factor <= axis.get_ylim()[1]:
            axis.axhline(step["value"] * factor, color=COLORS[step["color"]], linewidth=1, linestyle=":")
    axis.axvspan(CALM_S, CALM_S + LAZY_S, color=COLORS["orange"], alpha=0.08, linewidth=0)
    axis.set_xlim(0, CALM_S + LAZY_S + BUSY_S)
    axis.yaxis.set_major_locator(MaxNLocator(4))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.25)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for draw in (draw_first_use, draw_trace, draw_console, draw_dashboards):
        if len(sys.argv) == 1 or sys.argv[1] in draw.__name__:
            draw()
