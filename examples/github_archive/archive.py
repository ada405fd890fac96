"""Events as GitHub's archive has them: an hour a file, objects within objects, some events in two files.

The same events every time: they come from a seeded generator, and from an evening of March 2026.
"""

import gzip
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2026, 3, 7, 18, tzinfo=UTC)
REPOS = ["duckdb/duckdb", "apache/arrow", "python/cpython", "pola-rs/polars", "apache/spark"]
WORDS = ["reader", "cache", "docs", "tests", "index", "types", "memory", "join"]
TYPES = {"PushEvent": 50, "WatchEvent": 25, "IssuesEvent": 12, "PullRequestEvent": 10, "ForkEvent": 3}


def payload(kind: str, number: int, chance: random.Random) -> dict:
    """Return what an event of this kind says: each has a shape of its own."""
    title = f"{chance.choice(['Faster', 'Smaller', 'Clearer'])} {chance.choice(WORDS)}"
    if kind == "PushEvent":
        commits = [
            {
                "sha": f"{chance.getrandbits(160):040x}",
                "message": f"{title} ({part})",
                "author": {"name": f"dev{chance.randrange(60)}"},
            }
            for part in range(chance.randrange(1, 5))
        ]
        return {"ref": "refs/heads/main", "size": len(commits), "commits": commits}
    if kind == "IssuesEvent":
        labels = [{"name": name} for name in chance.sample(["bug", "docs", "question"], chance.randrange(3))]
        issue = {"number": number, "title": title, "labels": labels}
        return {"action": chance.choice(["opened", "closed"]), "issue": issue}
    if kind == "PullRequestEvent":
        request = {"number": number, "title": title, "merged": chance.random() < 0.6}
        return {"action": "closed", "pull_request": request}
    return {"action": "started"} if kind == "WatchEvent" else {"forkee": {"full_name": f"fork{number}/copy"}}


def hours(count: int = 6, each: int = 500) -> Iterator[list[dict]]:
    """Yield the events of one hour after the other; the first ten of each are the last ten of the hour before."""
    chance = random.Random(48)
    number, overlap = 0, []
    for hour in range(count):
        events = list(overlap)
        for position in range(each):
            number += 1
            kind = chance.choices(list(TYPES), TYPES.values())[0]
            at = START + timedelta(hours=hour, seconds=position * 3600 // each)
            actor = chance.randrange(400)
            events.append(
                {
                    "id": str(40_000_000_000 + number),
                    "type": kind,
                    "actor": {"id": actor, "login": f"user{actor}", "url": f"https://api.example/users/user{actor}"},
                    "repo": {"id": chance.randrange(5), "name": chance.choice(REPOS)},
                    "payload": payload(kind, number, chance),
                    "public": True,
                    "created_at": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            )
        overlap = events[-10:]
        yield events


def main() -> None:
    """Write one file an hour, as the archive names them."""
    folder = Path("archive")
    folder.mkdir(exist_ok=True)
    for hour, events in enumerate(hours()):
        name = f"{START + timedelta(hours=hour):%Y-%m-%d-%H}.json.gz"
        lines = "".join(json.dumps(event) + "\n" for event in events)
        (folder / name).write_bytes(gzip.compress(lines.encode(), mtime=0))
    print(f"{hour + 1} files in {folder}")


if __name__ == "__main__":
    main()
