"""What the day came to: JSON, hour by hour, and a picture of it."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from icedb_local.day.day_plan import BURST_HOURS, DEPLOY_HOUR, ERASE_HOUR, HOURS, SCHEMA_HOUR, TABLES
from icedb_local.day.day_run import DayRun
from icedb_local.screen import Screen, make_table

SHARES: Final = (50, 95, 99)
EVENTS: Final[Mapping[float, str]] = {
    SCHEMA_HOUR: "schema",
    DEPLOY_HOUR: "deploy",
    BURST_HOURS[0]: "burst",
    ERASE_HOUR: "erasure",
}
STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "icedb",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
}
COLOURS: Final = ("#1b6ca8", "#e08e0b", "#2a9d5c", "#8e5aa8", "#c0392b", "#555555", "#9aa3ab")


def describe_day(run: DayRun) -> dict[str, Any]:
    """Return everything, hour by hour."""
    rows: dict[int, Counter[str]] = defaultdict(Counter)
    for batch in run.ledger.batches("acknowledged", "refused", "unknown"):
        rows[int(batch.hour)][batch.producer.table] += batch.producer.rows
    seconds: dict[int, list[float]] = defaultdict(list)
    for each in run.probe.found:
        seconds[each.hour].append(each.seconds)
    hours = [
        {
            **metered,
            "rows": dict(rows[metered["hour"]]),
            "freshness_seconds": {f"p{share}": percentile(seconds[metered["hour"]], share) for share in SHARES},
            "freshness_count": len(seconds[metered["hour"]]),
        }
        for metered in run.meter.to_json()
    ]
    every = [one for found in seconds.values() for one in found]
    document = run.to_json()
    dollars = sum(hour["dollars"] for hour in hours)
    return {
        **document,
        "freshness_seconds": {f"p{share}": percentile(every, share) for share in SHARES},
        "freshness_count": len(every),
        "requests": sum(hour["requests"] for hour in hours),
        "dollars": round(dollars, 4),
        "dollars_per_million_rows": round(1e6 * dollars / max(1, document["rows_sent"]), 3),
        "hours": hours,
    }


def percentile(values: Sequence[float], share: int) -> float | None:
    """Return the value below which a share of them lies; ``None``: there are none."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)], 3) if ordered else None


def write_day(document: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write ``day.json`` and ``day.svg``; return both."""
    folder.mkdir(parents=True, exist_ok=True)
    data, picture = folder / "day.json", folder / "day.svg"
    data.write_text(json.dumps(document, indent=1) + "\n")
    draw_day(document, picture)
    return data, picture


def draw_day(document: Mapping[str, Any], path: Path) -> None:
    """Draw rows, freshness, requests and dollars by the hour. Needs matplotlib."""
    import matplotlib as mpl  # noqa: PLC0415 - of those who develop
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import LogLocator  # noqa: PLC0415

    hours = [hour for hour in document["hours"] if hour["hour"] < HOURS]
    at = [hour["hour"] + 0.5 for hour in hours]
    causes = sorted({cause for hour in hours for cause in hour["requests_by_cause"]})
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.6, 9.0), layout="constrained")
        rows, fresh, requests, files = figure.subplots(4, 1, sharex=True)
        _stack(rows, at, {table: [hour["rows"].get(table, 0) for hour in hours] for table in TABLES}, "rows sent")
        for share, colour in zip(SHARES, COLOURS, strict=False):
            points = [(x, hour["freshness_seconds"][f"p{share}"]) for x, hour in zip(at, hours, strict=True)]
            known = [(x, y) for x, y in points if y is not None]
            if known:
                fresh.plot(*zip(*known, strict=True), marker="o", markersize=3, color=colour, label=f"p{share}")
        fresh.set_yscale("log")
        fresh.yaxis.set_major_formatter("{x:g}")
        fresh.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        fresh.minorticks_off()
        fresh.set_title("seconds from sending a batch until a reader has its rows")
        counts = {cause: [hour["requests_by_cause"].get(cause, 0) for hour in hours] for cause in causes}
        _stack(requests, at, counts, f"requests to the store; {document['dollars']:.2f} $ in all")
        for table, colour in zip(TABLES, COLOURS, strict=False):
            figures = [hour["tables"].get("data_files", {}).get(table, math.nan) for hour in hours]
            files.plot(at, figures, color=colour, label=table)
        files.set_title("live data files, most in the hour")
        files.set_xlabel("hour of the day")
        files.set_xticks(range(0, HOURS + 1, 3))
        for panel in (rows, fresh, requests, files):
            panel.grid(axis="y", color="#eeeeee")
            panel.set_axisbelow(True)
            panel.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
            for hour, what in EVENTS.items():
                panel.axvline(hour, color="#888888", linewidth=0.8, linestyle=":")
                if panel is rows:
                    panel.annotate(what, (hour, 1), (2, -2), xycoords=("data", "axes fraction"), fontsize=8,
                                   textcoords="offset points", va="top")  # fmt: skip
        figure.savefig(path, metadata={"Date": None, "Title": "a day"})


def _stack(panel: Any, at: Sequence[float], series: Mapping[str, Sequence[float]], title: str) -> None:
    below = [0.0] * len(at)
    for (name, values), colour in zip(series.items(), COLOURS, strict=False):
        panel.bar(at, values, bottom=below, width=0.85, color=colour, label=name)
        below = [low + value for low, value in zip(below, values, strict=True)]
    panel.set_title(title)


def show_day(document: Mapping[str, Any], screen: Screen) -> None:
    """Print the accounts, and the figures of the day."""
    fates = sorted({fate for account in document["accounts"].values() for fate in account})
    table = make_table("table", *fates)
    for name, account in document["accounts"].items():
        table.add_row(name, *(f"{account.get(fate, 0):,}" for fate in fates))
    screen.show_table(table)
    fresh = ", ".join(f"{name} {value} s" for name, value in document["freshness_seconds"].items())
    screen.say(f"{document['rows_sent']:,} rows sent; read after {fresh} ({document['freshness_count']:,} batches)")
    screen.say(
        f"{document['requests']:,} requests to the store, {document['dollars']:.2f} $, "
        f"{document['dollars_per_million_rows']:.2f} $ a million rows"
    )
