"""Reading the audit: which runs deleted something, and what became of one object (rule J10).

Reads page by page and a few objects at once, so memory is bounded by a page and :data:`FETCH_THREADS` parts. An object
that cannot be understood is reported, never a reason to stop: the audit decides nothing.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from icedb_log.clock import parse_uuid7_ms
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.keys import MAX_MS, TablePaths, parse_audit_key
from icedb_log.store.object_store import ObjectStore

SLICE_DIGITS: Final = 5
"""Of the 13 digits of a time: the listings of a search by time go by slices of 10^8 ms, a bit more than a day."""
SLICE_MS: Final = 10 ** (13 - SLICE_DIGITS)
MAX_SLICES: Final = 40
"""A search over more slices lists everything instead."""
UUID_HEX_CHARS: Final = 32
FETCH_THREADS: Final = 16
"""Parts that are fetched at once, and held in memory."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What the audit says of one object.

    Attributes:
        key: Its key.
        kind: What it was.
        why: Why it was deleted.
        passed: Guards that had let it go.
        died_ms: When it died, unix ms, if that has a meaning.
        size_bytes: Its size, if known.
        outcome: ``announced`` (the run was cut off: it may have gone or not), ``deleted`` or ``failed``.
        reason: Why it would not go.
    """

    key: str
    kind: str
    why: str
    passed: tuple[str, ...]
    died_ms: int | None
    size_bytes: int | None
    outcome: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class AuditPart:
    """One object of the audit: a run, and what it deleted at once.

    Attributes:
        audit_key: The object's own key.
        run_id: The run.
        part: Number of this part of the run, from 0.
        kind: What the run was.
        owner: Who deleted.
        release: Of IceDB.
        store_now_ms: The store's clock that ages were measured against, unix ms.
        written_ms: When this part was written last, by the store's clock, unix ms.
        policy: Grace periods and other bounds.
        found: What was there that can hold objects: ``count`` and ``names`` for each kind.
        entries: The objects.
    """

    audit_key: str
    run_id: str
    part: int
    kind: str
    owner: str
    release: str
    store_now_ms: int
    written_ms: int
    policy: Mapping[str, int | None]
    found: Mapping[str, Mapping[str, Any]]
    entries: tuple[AuditEntry, ...]


@dataclass(frozen=True, slots=True)
class DamagedPart:
    """An object of the audit that cannot be understood.

    Attributes:
        audit_key: Its key.
        problem: What is wrong.
    """

    audit_key: str
    problem: str


def read_audit(
    store: ObjectStore, paths: TablePaths, *, since_ms: int = 0, until_ms: int = MAX_MS
) -> Iterator[AuditPart | DamagedPart]:
    """Read the parts of all runs that began between two times of the store's clock, oldest first.

    Args:
        store: The object store.
        paths: Keys of the table; it need not exist any more.
        since_ms: From when on, unix ms.
        until_ms: Until when, unix ms.

    Raises:
        Unavailable: The store did not answer.
    """
    with ThreadPoolExecutor(FETCH_THREADS, "icedb-audit-reader") as pool:
        for prefix in _prefixes(paths, since_ms, until_ms):
            token: str | None = None
            while True:
                page = store.list_page(prefix, token=token)
                keys = [info.key for info in page.objects if _is_wanted(info.key, since_ms, until_ms)]
                for start in range(0, len(keys), FETCH_THREADS):
                    # Not the whole page at once: a part has up to 10,000 objects.
                    for part in pool.map(partial(_read_part, store), keys[start : start + FETCH_THREADS]):
                        if part is not None:
                            yield part
                token = page.next_token
                if token is None:
                    break


def find_deletions(
    store: ObjectStore, paths: TablePaths, key: str, *, since_ms: int = 0, until_ms: int = MAX_MS
) -> Iterator[tuple[AuditPart, AuditEntry] | DamagedPart]:
    """Find what the audit says of one object, oldest first; nothing if it does not know it.

    Arguments and errors as :func:`read_audit`; ``key`` is the object's full key. The time in its name bounds the
    search.
    """
    for part in read_audit(store, paths, since_ms=max(since_ms, _made_ms(key)), until_ms=until_ms):
        if isinstance(part, DamagedPart):
            yield part
            continue
        for entry in part.entries:
            if entry.key == key:
                yield part, entry


def _made_ms(key: str) -> int:
    """Return the time before which an object cannot have been deleted, as its name tells; 0 if it does not.

    Names are given by hosts whose clocks may be wrong: a day is taken off.
    """
    stem = key.rpartition("/")[2].partition(".")[0].rpartition("_")[2]
    digits = stem.replace("-", "")
    if len(digits) != UUID_HEX_CHARS:
        return 0
    dashed = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    try:
        return max(0, parse_uuid7_ms(dashed) - SLICE_MS)
    except InvalidRequest:
        return 0


def _prefixes(paths: TablePaths, since_ms: int, until_ms: int) -> list[str]:
    first, last = max(since_ms, 0) // SLICE_MS, min(until_ms, MAX_MS) // SLICE_MS
    if last - first >= MAX_SLICES:
        return [paths.audit_prefix]
    return [f"{paths.audit_prefix}{number:0{SLICE_DIGITS}d}" for number in range(first, last + 1)]


def _is_wanted(key: str, since_ms: int, until_ms: int) -> bool:
    name = parse_audit_key(key)
    return name is None or since_ms <= name.time_ms <= until_ms


def _read_part(store: ObjectStore, key: str) -> AuditPart | DamagedPart | None:
    if parse_audit_key(key) is None:
        return DamagedPart(key, "not the name of an audit object")
    try:
        stored = store.get(key)
    except NotFound:
        return None  # past its retention since the listing
    try:
        head, *entries = (orjson.loads(line) for line in stored.body.splitlines())
        return AuditPart(
            audit_key=key,
            run_id=str(head["run"]),
            part=int(head["part"]),
            kind=str(head["kind"]),
            owner=str(head["owner"]),
            release=str(head["release"]),
            store_now_ms=int(head["store_now_ms"]),
            written_ms=stored.info.modified_ms,
            policy=dict(head["policy"]),
            found=dict(head["found"]),
            entries=tuple(_read_entry(entry) for entry in entries),
        )
    except (ValueError, KeyError, TypeError) as error:
        return DamagedPart(key, f"{type(error).__name__}: {error}"[:200])


def _read_entry(value: Mapping[str, Any]) -> AuditEntry:
    return AuditEntry(
        key=str(value["key"]),
        kind=str(value["kind"]),
        why=str(value["why"]),
        passed=tuple(str(guard) for guard in value["passed"]),
        died_ms=value["died_ms"],
        size_bytes=value["size_bytes"],
        outcome=str(value["outcome"]),
        reason=value.get("reason"),
    )
