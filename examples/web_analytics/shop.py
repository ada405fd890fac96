"""A shop's visitors, as Segment's SDKs tell them: sends their events to an IceDB front end and waits for the commit.

The same numbers every time: visitors come from a seeded generator, on three days of March 2026.
"""

import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from os import environ

from icedb_client import Client

ADDRESS = f"http://127.0.0.1:{environ.get('ICEDB_FRONTEND_HTTP_PORT', '8088')}"
TABLE = f"{ADDRESS}/v1/tables/events"
WRITE_KEY = environ.get("ICEDB_FRONTEND_SEGMENT_WRITE_KEY", "")
FUNNEL = [("Product Viewed", 0.9), ("Product Added", 0.45), ("Checkout Started", 0.6), ("Order Completed", 0.7)]
PRICES = {"kettle": 39.0, "lamp": 59.5, "chair": 120.0, "desk": 349.0}


def make_visits(count: int = 400) -> Iterator[list[dict]]:
    """Yield the events of one visitor after the other."""
    chance = random.Random(7)
    for number in range(count):
        visitor = {"anonymousId": f"a{number}"}
        at = datetime(2026, 3, 2, tzinfo=UTC) + timedelta(seconds=chance.randrange(3 * 86_400))
        source = chance.choice(["search", "newsletter", "ads"])
        product = chance.choice(list(PRICES))
        events = [{"type": "page", "name": "Home", "context": {"campaign": {"source": source}}}]
        for event, share in FUNNEL:
            if chance.random() > share * (1.25 if source == "newsletter" else 1):
                break
            events.append({"type": "track", "event": event, "properties": {"product": product}})
        if len(events) == len(FUNNEL) + 1:
            events[-1]["properties"]["revenue"] = PRICES[product]
            events.insert(-1, {"type": "identify", "userId": f"u{number}", "traits": {"plan": "guest"}})
        for position, event in enumerate(events):
            at += timedelta(seconds=chance.randrange(20, 600))
            event.update(visitor, timestamp=at.isoformat(), messageId=f"m{number}-{position}")
        yield events


def post(events: list[dict]) -> dict:
    """Send events as an SDK does, and return the answer: they are durable when it comes."""
    body = json.dumps({"batch": events, "writeKey": WRITE_KEY}).encode()
    request = urllib.request.Request(
        f"{TABLE}/segment/v1/batch", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def wait_until_ready() -> None:
    """Ask until the front end answers, at most half a minute."""
    for _ in range(150):
        with suppress(urllib.error.URLError), urllib.request.urlopen(f"{ADDRESS}/readyz"):
            return
        time.sleep(0.2)
    raise SystemExit(f"no front end at {ADDRESS} after 30 seconds")


def main() -> None:
    """Send all visits at once, and some of them twice: an SDK that loses an answer sends again."""
    wait_until_ready()
    visits = list(make_visits())
    repeats = visits[::40]
    with ThreadPoolExecutor(16) as visitors:
        batch_ids = {answer["batch_id"] for answer in visitors.map(post, visits + repeats)}
    with Client(ADDRESS) as client:
        waiting = client.wait_committed("events", batch_ids, timeout_ms=30_000).waiting
    if waiting:
        raise SystemExit(f"{len(waiting)} batches are not committed after 30 seconds")
    print(f"{sum(map(len, visits))} events, and {sum(map(len, repeats))} of them once more")


if __name__ == "__main__":
    main()
