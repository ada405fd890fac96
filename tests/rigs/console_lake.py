"""A warehouse that is worth looking at, with a console on it: for tests in a browser, and for pictures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icedb import Lake, connect
from icedb_console.server import Console
from icedb_console.settings import ConsoleSettings
from icedb_log.clock import SystemClock
from icedb_log.holds.leases import acquire_lease
from icedb_log.holds.tags import create_tag
from icedb_log.units import HOUR_MS

EVENTS = ("view", "click", "buy", "signup")


def fill_lake(folder: Path, *, days: int = 20, commits: int = 24) -> Lake:
    """Make a table with a history (merges, a deletion, bad rows, a tag, a lease), a view of it, and smaller tables."""
    lake = connect(folder)
    events = lake.create_table("events", partition=["d=day(ts)"], sort=["event", "ts"])
    for number in range(commits):
        day = 1 + min(number * days // commits + number % 2, days - 1)
        events.append([_row(day, each, number) for each in range(300 + 40 * (number % 7))])
        if number in (commits // 3, 2 * commits // 3):
            events.merge(full=True)
    for number in range(9):  # many small ones in the newest partition
        events.append([_row(days, each, number) for each in range(20)])
    create_tag(events.open(), "q3", note="figures of the third quarter")
    acquire_lease(events.open(), ttl_ms=HOUR_MS, holder="analyst")
    events.append([{**_row(days, 1, 1), "amount": 1.5}, {"ts": "never", "event": "buy", "user_id": "u1"}])
    for at, name in enumerate(("clicks", "orders", "page_views", "payments", "sessions")):
        table = lake.create_table(name, partition=["d=day(ts)"], sort=["ts"])
        for number in range(1 + at):
            table.append([_row(1 + number, each, number) for each in range(100 * (at + 1))])
    lake.client.enqueue("clicks", [_row(1, 1, 1)])
    return lake


def _row(day: int, number: int, salt: int) -> dict[str, Any]:
    event = EVENTS[(number * 7 + salt) % (2 + salt % 3)]
    at = f"2026-01-{day:02}T{number % 24:02}:{number % 60:02}:05Z"
    return {"ts": at, "event": event, "user_id": f"u{(number * 31 + salt) % 997}", "amount": round(number * 0.37, 2)}


@contextmanager
def running_console(folder: Path, **settings: Any) -> Iterator[tuple[Console, str]]:
    """Serve a console on a folder on a free loopback port; yields it and its address."""
    given = ConsoleSettings(store=f"file://{folder}", **{"console_port": 0, "console_refresh_ms": 500, **settings})
    console = Console(given.store_settings.open(), settings=given, clock=SystemClock())
    console.start()
    try:
        yield console, f"http://127.0.0.1:{console.port}"
    finally:
        console.stop()
