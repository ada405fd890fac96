"""Orders of four shops, and a view that keeps their sums by day: whoever asks for a day reads no orders.

The same orders every time: they come from a seeded generator, and from five days of March 2026.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from icedb import LakeTable, connect

START = datetime(2026, 3, 1, tzinfo=UTC)
DAYS, BATCHES, ORDERS = 5, 12, 2500
SHOPS = ["berlin", "lyon", "oslo", "porto"]
PARTS = "select date_trunc('day', ts) as day, shop, count(*) as orders, sum(cents) as cents from _rows group by all"
SUMS = "select day, shop, sum(orders) as orders, sum(cents) as cents from source_files group by all"
BY_DAY = "select day, sum(orders) as orders, sum(cents) as cents from daily group by day order by day"


def make_batches() -> Iterator[list[dict]]:
    """Yield batches of orders, each of 24 hours that end a little later than those of the batch before."""
    chance = random.Random(5)
    for number in range(BATCHES):
        end = START + timedelta(days=1 + number * (DAYS - 1) / (BATCHES - 1))
        yield [
            {
                "ts": end - timedelta(seconds=chance.randrange(1, 86_400)),
                "shop": chance.choice(SHOPS),
                "cents": chance.randrange(500, 20_000),
            }
            for _ in range(ORDERS)
        ]


def main() -> None:
    """Create both tables, commit orders while the view takes them, compare, and merge."""
    lake = connect()
    orders = lake.create_table(
        "orders", partition=["d=day(ts)"], sort=["shop", "ts"], columns={"shop": "VARCHAR", "cents": "BIGINT"}
    )
    daily = lake.create_table(
        "daily",
        view_of="orders",
        view_query=PARTS,
        merge_query=SUMS,
        partition=["m=month(day)"],
        sort=["day", "shop"],
    )
    for number, rows in enumerate(make_batches()):
        orders.append(rows)
        if number % 4 == 3:
            daily.feed()  # `icedb work` does it for those who do not want to call it
    print(f"orders: {orders.snapshot().row_count} rows")
    show(daily, "as it was fed")
    daily.merge(full=True)
    show(daily, "after a merge")
    for day, count, cents in lake.query(BY_DAY).fetchall():
        print(f"  {day:%Y-%m-%d}  {count:5} orders  {cents / 100:10.2f}")
    exact = lake.query("select count(*), sum(cents) from orders").fetchall()
    summed = lake.query("select sum(orders), sum(cents) from daily").fetchall()
    print("the view and the orders say the same:", exact == summed)


def show(daily: LakeTable, when: str) -> None:
    """Print how many rows the view has."""
    print(f"the view {when}: {daily.snapshot().row_count} rows")


if __name__ == "__main__":
    main()
