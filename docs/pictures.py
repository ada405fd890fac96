"""Draws the pictures of README and docs from the running thing: ``make pictures``, about five minutes.

``first-use.svg`` is what README's first code prints, run in an empty folder, and the command on its table. ``top.svg`` is ``icedb top`` on
some tables. ``trace.svg`` is the trace of one batch. ``console-*.png`` are the console's pages, in Debian's Chromium. ``merge-lag.svg`` has panels of the Grafana dashboard: a table is filled, is not merged for a while, then is;
a real snapshot service says what waits, a real Prometheus scrapes it, and each panel's own query is asked.
"""  # noqa: INP001 - a script

import io
import itertools
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import matplotlib.pyplot as plt
from icedb import LakeTable, connect
from icedb.cli.top_reads import open_source
from icedb.cli.top_screen import Screen, Size, draw_all
from icedb_client import Client
from icedb_ingest.frontend.staging_gate import Offer, StagingGate
from icedb_local.ports import find_free_ports
from icedb_log.clock import SystemClock
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import Acceptance
from icedb_log.log.fence import acquire_fence
from icedb_log.names import INGEST_FLUSH
from icedb_service.metrics import WorkerMetrics
from icedb_service.runs import TaskRunner, Work
from icedb_service.tracing import Tracing, current_run, derive, traced_by
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
PHONE_PX: Final = 600
CONSOLE_PAGES: Final = (
    ("tables", "/", 1280, 540),
    ("table", "/tables/events", 1280, 1200),
    ("columns", "/tables/events/columns", 1280, 480),
    ("phone", "/tables/events", 390, 1000),
)
LAZY_S, BUSY_S = 100, 80
"""How long the table is not merged, and is then."""


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


def draw_top() -> None:
    """Fill some tables, leave one of them unmerged and one with bad rows, and draw what ``icedb top`` shows."""
    with tempfile.TemporaryDirectory() as folder:
        lake = connect(Path(folder) / "lake")
        for name, batches in (("clicks", 40), ("orders", 6), ("sensors", 12), ("visits", 20)):
            table = lake.create_table(name, partition=["d=day(ts)"], sort=["ts"])
            rows = [{"ts": f"2026-01-0{1 + n % 3}T03:04:05Z", "n": n} for n in range(2000)]
            for _ in range(batches):
                table.append(rows)
        lake.table("visits").merge()
        lake.client.enqueue("orders", b'{"ts": "the day before yesterday", "n": 1}')
        flush_table(lake.table("orders").open(), lake.engine.writer)
        fence = acquire_fence(replace(lake.table("clicks").open(), owner="merger@w-3:41"), "merge")
        overview = open_source(lake.client).read_all(limit=None)
        fence.release()
    size = Size(100, 14)
    picture = draw_all(overview, Screen(chosen="orders"), size, title="icedb top  s3://warehouse/events")
    console = Console(record=True, width=size.columns, file=io.StringIO())
    console.print(Text.from_ansi(picture))
    drawn = FONTS.sub("", console.export_svg(title="icedb top", theme=SVG_EXPORT_THEME, unique_id="top"))
    (OUT / "top.svg").write_text(drawn, encoding="utf-8")


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
        service = SnapshotService(lake.client.warehouse, settings=settings, clock=clock).start()
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
    """Fill a lake, serve a console on it, and take pictures of its pages; one of them on a phone in the dark."""
    sys.path.insert(0, str(ROOT / "tests" / "rigs"))
    from chromium_rig import open_chromium  # noqa: PLC0415 - what the browser test uses
    from console_lake import fill_lake, running_console  # noqa: PLC0415

    query = "select d, event, count(*) as count, round(sum(amount)) as amount from events group by all order by all"
    with tempfile.TemporaryDirectory() as lake, tempfile.TemporaryDirectory() as profile:
        fill_lake(Path(lake))
        with running_console(Path(lake)) as (_, address), open_chromium(Path(profile)) as browser:
            browser.open(address)
            browser.wait("document.querySelectorAll('main table tbody tr').length > 5")
            for name, path, width, height in CONSOLE_PAGES:
                browser.shape(width, height, is_dark=width < PHONE_PX)
                browser.open(address + path)
                browser.wait("!document.body.innerText.includes('being read')")
                (OUT / f"console-{name}.png").write_bytes(browser.picture(width, height))
            browser.shape(1280, 820)
            browser.open(f"{address}/query?table=events")
            browser.type("textarea", query)
            browser.click("main form button")
            browser.wait("document.querySelector('main table, main .warn')")
            (OUT / "console-query.png").write_bytes(browser.picture(1280, 820))


def _run(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "ICEDB_STORE": f"file://{folder}/lake", "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    done = subprocess.run(
        shlex.split(command), cwd=folder, env=os.environ | own, check=True, capture_output=True, text=True
    )
    return done.stdout


def draw_merge_lag() -> None:
    """Fill a table, merge it late, and draw what Prometheus says of it."""
    sys.path.append(str(ROOT / "tests" / "rigs"))
    from prometheus_rig import read_panels, running_prometheus  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        lake = connect(Path(folder) / "lake")
        events = lake.create_table("events", partition=["d=day(ts)"], sort=["event", "ts"])
        port, metrics_port = find_free_ports(2)
        own = {
            "ICEDB_STORE": f"file://{folder}/lake",
            "ICEDB_SNAPSHOT_ADDRESS": f"127.0.0.1:{port}",
            "ICEDB_METRICS_PORT": str(metrics_port),
            "ICEDB_SNAPSHOT_LAG_INTERVAL_MS": "1000",
        }
        (Path(folder) / "prometheus").mkdir()
        service = subprocess.Popen([sys.executable, "-m", "icedb_snapshot"], env=os.environ | own)
        ended = threading.Event()
        sender = threading.Thread(target=_send, args=(events, ended))
        try:
            with running_prometheus(Path(folder) / "prometheus", {"snapshot": metrics_port}) as prometheus:
                began_s = time.time()  # noqa: TID251 - Prometheus goes by it
                sender.start()
                ended.wait(LAZY_S)
                while time.time() < began_s + LAZY_S + BUSY_S:  # noqa: TID251
                    events.merge()
                    ended.wait(1)
                span = {"start": began_s, "end": began_s + LAZY_S + BUSY_S, "step": "2s"}
                queries = {title: read_panels()[title][0] for title in PANELS}
                found = {
                    title: prometheus.get("query_range", query=query, **span)["result"]
                    for title, query in queries.items()
                }
        finally:
            ended.set()
            service.terminate()
            service.wait()
            sender.join()
    _plot(found, began_s)


def _send(events: LakeTable, ended: threading.Event) -> None:
    """Stage and flush a batch four times a second, as an ingest worker does."""
    for number in itertools.count():
        if ended.wait(0.25):
            return
        at = f"2026-01-02T03:{number // 60:02}:{number % 60:02}Z"
        rows = [{"ts": at, "event": ("view", "click", "buy")[row % 3], "user_id": f"u{row}"} for row in range(500)]
        events.lake.client.enqueue(events.name, rows)
        flush_table(events.open(), events.lake.engine.writer)


def _plot(found: dict[str, Any], began_s: float) -> None:
    colors = {"axes.edgecolor": "#8a8f98", "text.color": "#7a808a", "axes.labelcolor": "#7a808a"}
    ticks = {
        "xtick.color": "#7a808a",
        "ytick.color": "#7a808a",
        "font.size": 9,
        "svg.fonttype": "none",
        "svg.hashsalt": "icedb",
    }
    with mpl.rc_context({**colors, **ticks, "font.family": "sans-serif"}):
        figure, axes = plt.subplots(1, len(PANELS), figsize=(12, 2.8), layout="constrained")
        for axis, (title, series) in zip(axes.flat, found.items(), strict=True):
            for each in series:
                times, values = zip(*[(float(at) - began_s, float(value)) for at, value in each["values"]], strict=True)
                axis.plot(times, values, color="#3f7fe8", linewidth=1.6)
                axis.fill_between(times, values, color="#3f7fe8", alpha=0.12)
            axis.axvline(LAZY_S, color="#e8833f", linewidth=1, linestyle="--")
            axis.set_title(title + (" (s)" if "lag" in title else ""), loc="left", fontsize=10)
            axis.set_ylim(bottom=0)
            axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(axis="y", alpha=0.25)
            axis.set_xlabel("seconds; merges begin at the line")
        figure.savefig(OUT / "merge-lag.svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for draw in (draw_first_use, draw_top, draw_trace, draw_console, draw_merge_lag):
        if len(sys.argv) == 1 or sys.argv[1] in draw.__name__:
            draw()
