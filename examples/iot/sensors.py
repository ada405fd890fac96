"""Sixteen sensors measure every five minutes and send every four hours; one loses its network for a night.

The same readings every time: they come from a seeded generator, and from four days of March 2026.
"""

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from icedb import LakeTable, connect

START = datetime(2026, 3, 1, tzinfo=UTC)
DAYS, DEVICES, EVERY = 4, 16, timedelta(hours=4)
LATE = "dev07"
OFFLINE = (START + timedelta(hours=20), START + timedelta(hours=28))  # over midnight: its rows belong to two days
COLUMNS = {"device": "VARCHAR", "ts": "TIMESTAMP", "celsius": "DOUBLE", "battery": "BIGINT", "sent": "TIMESTAMP"}
NEWEST = """
    select * exclude (place)
    from (select *, row_number() over (partition by device, ts order by sent desc) as place from source_files)
    where place = 1
"""


def measure(number: int, ts: datetime, chance: random.Random) -> dict:
    """Return what a device measured at a time."""
    warmth = 18 + number / 4 + 4 * math.sin((ts.hour * 60 + ts.minute) / 1440 * 2 * math.pi)
    return {
        "device": f"dev{number:02}",
        "ts": ts,
        "celsius": round(warmth + chance.gauss(0, 0.3), 2),
        "battery": 100 - (ts - START).days * 3 - number % 5,
    }


def deliveries() -> Iterator[list[dict]]:
    """Yield what arrives every four hours: new readings, and what a device kept until its network was back."""
    chance = random.Random(16)
    kept: list[dict] = []
    start = START
    while start < START + timedelta(days=DAYS):
        minutes = [start + timedelta(minutes=minute) for minute in range(0, EVERY.seconds // 60, 5)]
        rows = [measure(number, ts, chance) for ts in minutes for number in range(DEVICES)]
        if OFFLINE[0] <= start < OFFLINE[1]:
            kept += [row for row in rows if row["device"] == LATE]
            rows = [row for row in rows if row["device"] != LATE]
        elif kept:
            rows += kept
            kept = []
        start += EVERY
        yield [row | {"sent": start} for row in rows]
        if start == OFFLINE[1] + EVERY:  # its connection broke before the answer came: it sends its last hour again
            yield [row | {"sent": start + timedelta(minutes=1)} for row in rows if row["device"] == LATE][-12:]


def main() -> None:
    """Commit each delivery as it arrives, then look at late rows, merge, and look again."""
    readings = connect().create_table(
        "readings",
        partition=["d=day(ts)"],
        sort=["device", "ts"],
        columns=COLUMNS,
        merge_query=NEWEST,
        retention="30d",
    )
    for rows in deliveries():
        readings.append(rows)
    show(readings, "as they arrived")
    readings.merge(full=True)
    show(readings, "after the merge")


def show(readings: LakeTable, when: str) -> None:
    """Print each day's files and rows: late ones, and those that are there twice."""
    snapshot = readings.snapshot()
    files = [file.partition["d"] for file in snapshot.files]
    print(f"{when}: {snapshot.row_count} rows in {len(files)} files")
    days = snapshot.sql("""
        select d, count(*), count(*) filter (sent > ts + interval 4 hours), count(*) - count(distinct (device, ts))
        from readings group by d order by d
    """)
    for day, rows, late, twice in days.fetchall():
        print(f"  {day}  {files.count(day)} files  {rows} rows  {late} late  {twice} twice")


if __name__ == "__main__":
    main()
