"""Events as JSONBench has them (Bluesky's stream), and our tables of them. Deterministic."""

import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from icedb import connect

from bench.nested_work import PATHS

BATCHES: Final = 20
MAX_BATCH_ROWS: Final = 50_000
MORE_PATHS: Final = (
    "commit.rev", "commit.rkey", "commit.cid", 'commit.record."$type"', "commit.record.createdAt",
    "commit.record.text", "commit.record.langs", "commit.record.subject.cid", "commit.record.subject.uri",
    "commit.record.reply.root.cid", "commit.record.reply.root.uri", "commit.record.reply.parent.cid",
    "commit.record.reply.parent.uri", 'commit.record.embed."$type"', "identity.handle",
)  # fmt: skip
"""With those of the queries, twenty."""
_FIRST_US: Final = 1_732_206_349_000_000
_COLLECTIONS: Final = (
    ("app.bsky.feed.like", 0.47),
    ("app.bsky.graph.follow", 0.24),
    ("app.bsky.feed.post", 0.12),
    ("app.bsky.feed.repost", 0.09),
    ("app.bsky.graph.block", 0.04),
    ("app.bsky.graph.listitem", 0.02),
    ("app.bsky.actor.profile", 0.02),
)
_WORDS: Final = (
    "the", "sky", "is", "blue", "today", "and", "I", "am", "so", "happy", "to", "see", "all", "of", "you", "here",
    "again", "with", "new", "photos",
)  # fmt: skip
_ALL_ROWS_IN_ONE_FILE: Final = 1 << 33


def make_batches(count: int) -> Iterator[bytes]:
    """Yield batches of NDJSON; the whole event is in a field ``data``."""
    chance = random.Random(34)
    names, weights = zip(*_COLLECTIONS, strict=True)
    dids = [f"did:plc:{_letters(chance, 24)}" for _ in range(max(10, count // 8))]
    batch_rows = min(MAX_BATCH_ROWS, -(-count // BATCHES))
    for start in range(0, count, batch_rows):
        numbers = range(start, min(count, start + batch_rows))
        kinds = chance.choices(names, weights, k=len(numbers))
        yield b"".join(
            b'{"data":%b}\n' % orjson.dumps(_make_event(chance, number, kind, dids))
            for number, kind in zip(numbers, kinds, strict=True)
        )


def _make_event(chance: random.Random, number: int, collection: str, dids: Sequence[str]) -> dict[str, Any]:
    did, time_us = dids[int(len(dids) * chance.random() ** 2)], _FIRST_US + number * 86_400 + chance.randrange(9_000)
    event: dict[str, Any] = {"did": did, "time_us": time_us, "kind": "commit"}
    if number % 50 == 0:
        handle = f"{_letters(chance, 8)}.bsky.social"
        return {**event, "kind": "identity", "identity": {"did": did, "handle": handle, "seq": number}}
    commit = {
        "rev": _letters(chance, 13),
        "operation": "create",
        "collection": collection,
        "rkey": _letters(chance, 13),
    }
    if chance.random() < 0.05:
        return {**event, "commit": {**commit, "operation": "delete"}}
    record: dict[str, Any] = {"$type": collection, "createdAt": f"2024-11-21T16:{number % 60:02d}:09.095Z"}
    if collection == "app.bsky.feed.post":
        record |= {"langs": ["en"], "text": " ".join(chance.choices(_WORDS, k=chance.randrange(2, 30)))}
        if chance.random() < 0.4:
            record["reply"] = {"root": _make_subject(chance, dids), "parent": _make_subject(chance, dids)}
    else:
        record["subject"] = _make_subject(chance, dids)
    return {**event, "commit": {**commit, "record": record, "cid": f"bafyrei{_letters(chance, 52)}"}}


def _make_subject(chance: random.Random, dids: Sequence[str]) -> dict[str, str]:
    place = f"at://{dids[int(len(dids) * chance.random())]}/app.bsky.feed.post/{_letters(chance, 13)}"
    return {"cid": f"bafyrei{_letters(chance, 52)}", "uri": place}


def _letters(chance: random.Random, count: int) -> str:
    """Return random characters of base 32, which are hard to compress, as those of ids are."""
    return f"{chance.getrandbits(4 * count):0{count}x}"


def spell_paths(count: int) -> list[str]:
    """Return so many paths to promote, those of the queries first, under their names."""
    own = [f"data.{path}{':BIGINT' if name == 'time' else ''} as {name}" for name, path in PATHS.items()]
    return [*own, *(f"data.{path}" for path in MORE_PATHS)][:count]


def write_table(
    root: Path,
    batches: Iterable[bytes],
    *,
    path_count: int,
    sort: Sequence[str] = (),
    target_file_bytes: int = _ALL_ROWS_IN_ONE_FILE,
) -> Any:
    """Write a fresh table with so many promoted paths, sorted by some of them; return it."""
    shutil.rmtree(root, ignore_errors=True)
    table = connect(root).create_table(
        "events",
        promote=spell_paths(path_count),
        columns={"data": "VARCHAR"},
        sort=list(sort),
        target_file_bytes=target_file_bytes,
    )
    for batch in batches:
        table.append(batch)
    return table
