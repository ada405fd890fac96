"""What lies below ``_icedb`` beside the configuration: fences, tags, leases, staging, quarantine, views, records.

Each object is looked at by itself, and gone is no finding: others work meanwhile. What a worker writes in two steps is
reported only when the first step is an hour old.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import format_ms
from icedb_log.commit.fence import FenceState, read_fence_object
from icedb_log.errors import HaltError, NotFound, UnsupportedFormat
from icedb_log.feed.views import is_view_there, read_registration, source_of
from icedb_log.holds.erasures import decode_erasure
from icedb_log.holds.stored_holds import decode_snapshot, list_holds
from icedb_log.holds.tags import list_tags
from icedb_log.imports.import_records import decode_record
from icedb_log.ingest.pressure import read_pressure
from icedb_log.ingest.quarantine import entry_of, is_reason, parse_reason
from icedb_log.ingest.staging import list_all_staged
from icedb_log.keys import ROLES, Role, find_kind, parse_log_key, parse_log_name
from icedb_log.log.fold import find_lost, read_horizon_ms
from icedb_log.model import LogView
from icedb_log.publish.head import read_publication, read_publications
from icedb_log.repair.fsck_data import Inspection
from icedb_log.repair.fsck_log import is_log_key
from icedb_log.store.object_store import ObjectInfo, StoredObject, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig
from icedb_log.texts import first_message
from icedb_log.units import HOUR_MS, MINUTE_MS

LONG_ERASURE_MS: Final = 48 * HOUR_MS
MAX_READS: Final = 1000
"""Objects of one kind that are read; there are never so many but of leftovers."""


@dataclass(frozen=True, slots=True)
class FenceFact:
    """A fence as it was found: what it says, ``None`` if it is not there, or not a fence, and then why."""

    role: Role
    state: FenceState | None
    modified_ms: int = 0
    problem: str = ""


def read_fences(table: TableStore) -> tuple[FenceFact, ...]:
    """Read the fences. Raises Unavailable."""
    facts: list[FenceFact] = []
    for role in ROLES:
        try:
            state, info = read_fence_object(table.store, table.paths.fence_key(role))
        except HaltError as error:
            facts.append(FenceFact(role, None, problem=str(error)))
        else:
            facts.append(FenceFact(role, state, info.modified_ms if info is not None else 0))
    return tuple(facts)


def check_fences(seen: Inspection, facts: Iterable[FenceFact]) -> None:
    """F1 to F4. The fences were read between both logs."""
    found, paths, after = seen.found, seen.table.paths, seen.after
    present = {file.key for file in after.files}
    horizon_ms = read_horizon_ms(LogView(paths.name, after.readable, after.store_now_ms))
    for fact in facts:
        key, state = paths.fence_key(fact.role), fact.state
        if fact.problem:
            found.add("fence-unreadable", key, problem=fact.problem)
            continue
        if state is None:
            logs = [file for file in seen.before.readable if file.log.commit_id is not None]
            # A backup writes the log of its copy without a fence, in the name of a merge.
            commits = (file.key for file in logs if file.log.commit_id != file.log.rebuilt)
            if any(("_m_" in name) == (fact.role == "merge") for name in commits):
                found.add("fence-missing", key, role=fact.role)
            continue
        commit = state.commit
        if commit is not None and not is_log_key(paths, commit):
            found.add("fence-unreadable:intent", key, commit=commit[:200])
        elif commit is not None and commit not in present and parse_log_key(commit).time_ms > horizon_ms:
            # R3: had it landed and been deleted since, its merge would be part of the horizon.
            age_ms = max(0, after.store_now_ms - fact.modified_ms)
            found.add("fence-intent", key, owner=state.owner, commit=commit, minutes=age_ms / MINUTE_MS)


def check_lost_commits(seen: Inspection, facts: Iterable[FenceFact]) -> None:
    """F5: a commit that landed is in the log, or a merge replaced it; the log was read after the fences."""
    after, paths = seen.after, seen.table.paths
    if not after.is_whole:
        return  # what a log file that cannot be read says of others is not known
    landed = [name for fact in facts if fact.state is not None for name in fact.state.landed]
    view = LogView(paths.name, after.readable, after.store_now_ms)
    for name in find_lost(landed, view):
        time = format_ms(parse_log_name(name).time_ms)
        seen.found.add("commit-lost", paths.named_log_key(name), time=time)


def check_lost(seen: Inspection, fences: Iterable[FenceFact], *, has_tags: bool) -> None:
    """S1: a log that has had a commit is never empty again; called if it is, before and after the objects were listed.

    What proves a commit: a tag that names files (an empty table can be tagged), a fence that says that one landed (F5),
    or a fence of merges, which nobody takes before there is something to merge. Data files alone may be of a first
    commit that was cut off.
    """
    count = seen.walk.unnamed_count
    if not count:
        return
    has_merged = any(fact.role == "merge" and fact.state is not None for fact in fences)
    has_landed = any(fact.state is not None and fact.state.landed for fact in fences)
    is_certain = has_merged or has_tags or has_landed
    seen.found.add("log-lost" if is_certain else "log-lost:doubtful", seen.table.paths.log_prefix, count=count)


@dataclass(frozen=True, slots=True)
class TagFacts:
    """What active tags name, by the key of the tag, and why others cannot be read; before the objects are listed."""

    files: Mapping[str, frozenset[str]]
    problems: Mapping[str, str]


def read_tags(table: TableStore) -> TagFacts:
    """Read the active tags. Raises Unavailable."""
    files: dict[str, frozenset[str]] = {}
    problems: dict[str, str] = {}
    listed = list_tags(table)
    for tag in listed.holds:
        status = tag.status(listed.store_now_ms)
        if status == "unreadable":
            end = "deletes it" if tag.owner else "moves it away, because by its name it is no tag"
            problems[tag.key] = f"it cannot be parsed, and holds every dead data file until a person {end}"
        elif status == "late":
            problems[tag.key] = "it became active too late to be sure of its files"
        elif status == "active":
            try:
                log = decode_snapshot(tag, table.store.get(tag.key).body)
            except NotFound:
                continue
            except HaltError as error:
                problems[tag.key] = str(error)
            else:
                files[tag.key] = frozenset(marker.path for marker in log.markers)
    return TagFacts(files, problems)


def check_tags(seen: Inspection, facts: TagFacts) -> None:
    """J4. The tags were read before the objects were listed."""
    if not facts.files and not facts.problems:
        return
    found = seen.found
    listed = list_tags(seen.table)  # J4: one that is still active held its files all the time
    lasting = {tag.key for tag in listed.holds if tag.status(listed.store_now_ms) in ("active", "late", "unreadable")}
    for key, problem in facts.problems.items():
        if key in lasting:
            found.add("tag:doubtful", key, problem=problem)
    for key, files in facts.files.items():
        gone = files & seen.walk.missing
        if gone and key in lasting:
            found.add("tag", key, count=len(gone), files=len(files), path=min(gone))


def check_state(seen: Inspection) -> None:
    """Everything else that the walk met below ``_icedb``. Raises Unavailable."""
    _check_staging(seen)
    _check_flushes(seen)
    _check_payloads(seen)
    _check_records(seen)
    _check_leases(seen)
    _check_views(seen)
    _check_publications(seen)
    if seen.config is not None and seen.config.view_of is not None:
        _check_source(seen, seen.config)


def _check_staging(seen: Inspection) -> None:
    found, walk, prefix = seen.found, seen.walk, seen.table.paths.staging_prefix
    unknown = [info for info in walk.unknown if info.key.startswith(prefix)]
    if walk.of_kind("staged_batch"):
        listing = list_all_staged(seen.table)
        groups = [info for info in listing.unknown if find_kind(seen.table.paths, info.key) == "staged_batch"]
        unknown += groups  # named as groups, and not to be read
        old = [batch for batch in listing.batches if batch.staged_ms + HOUR_MS <= walk.store_now_ms]
        if old:
            oldest = min(old, key=lambda batch: batch.staged_ms)
            hours = (walk.store_now_ms - oldest.staged_ms) / HOUR_MS
            found.add("staging-old", oldest.key, count=len(old), hours=hours)
    for info in unknown:
        found.add("staging-unknown", info.key, size_bytes=info.size_bytes)


def _check_flushes(seen: Inspection) -> None:
    said = read_pressure(seen.table)
    if said is not None and (reason := said.find_failure(store_now_ms=seen.walk.store_now_ms)):
        seen.found.add("flushes-fail", seen.table.paths.pressure_key, reason=reason)


def _check_payloads(seen: Inspection) -> None:
    """I5: payload first, reason second."""
    old_ms = seen.walk.store_now_ms - HOUR_MS
    there = seen.walk.of_kind("quarantine")
    payloads = [info for info in there if not is_reason(info.key) and info.modified_ms <= old_ms]
    reasons = {entry_of(info.key) for info in there if is_reason(info.key)}
    lonely = [info for info in payloads if entry_of(info.key) not in reasons]
    if lonely:
        now = {info.key for info in list_all(seen.table.store, seen.table.paths.quarantine_prefix).objects}
        reasons |= {entry_of(key) for key in now if is_reason(key)}
        for info in lonely:
            if info.key in now and entry_of(info.key) not in reasons:
                seen.found.add("quarantine-without-reason", info.key)


def _check_records(seen: Inspection) -> None:
    """Small objects, each read by itself; those that are gone meanwhile are none."""
    of_kind, now_ms = seen.walk.of_kind, seen.walk.store_now_ms

    def read_erasure(stored: StoredObject) -> None:
        erasure = decode_erasure(stored)
        age_ms, count = now_ms - erasure.requested_ms, len(erasure.objects)
        if not erasure.has_ended and age_ms > LONG_ERASURE_MS:
            hours = age_ms / HOUR_MS
            seen.found.add("erasure-open-long", stored.info.key, hours=hours, state=erasure.state, count=count)

    def read_reason(stored: StoredObject) -> None:
        if not parse_reason(stored).fields:
            raise ValueError("not a reason")

    erasures = of_kind("erasure")[::-1]  # the newest: those that have ended stay for ever
    reasons = [info for info in of_kind("quarantine") if is_reason(info.key)]
    reads: tuple[tuple[str, list[ObjectInfo], Callable[[StoredObject], object]], ...] = (
        ("quarantine-without-reason:unreadable", reasons, read_reason),
        ("import-record", of_kind("import_record"), decode_record),
        ("erasure-open-long:unreadable", erasures, read_erasure),
    )
    for kind, infos, read in reads:
        for info in infos[:MAX_READS]:
            try:
                read(seen.table.store.get(info.key))
            except NotFound:
                continue
            except HaltError as error:
                seen.found.add(kind, info.key, problem=error)
            except ValueError as error:
                seen.found.add(kind, info.key, problem=first_message(error))


def _check_leases(seen: Inspection) -> None:
    for lease in list_holds(seen.table, owner="lease").lasting(data_grace_ms=0):
        if lease.owner == "lease" and lease.state is None:
            seen.found.add("lease", lease.key)


def _check_views(seen: Inspection) -> None:
    found, paths, walk = seen.found, seen.table.paths, seen.walk
    for info in walk.of_kind("view")[:MAX_READS]:
        view = info.key.removeprefix(paths.views_prefix).removesuffix(".json")
        try:
            registration = read_registration(seen.table, view)
            is_there = is_view_there(seen.table, view)
        except UnsupportedFormat:
            continue  # the view's own configuration: fsck of the view says so
        except HaltError as error:
            found.add("view-registration", info.key, problem=error)
            continue
        if registration is None:
            continue
        if not is_there:
            found.add("view-registration:left", info.key, view=view)
        elif registration.state == "pending" and info.modified_ms + HOUR_MS <= walk.store_now_ms:
            found.add("view-registration:pending", info.key)


def _check_publications(seen: Inspection) -> None:
    """P1, P5: what the current publication refers to is there; another one may be the current one meanwhile."""
    found, table = seen.found, seen.table
    published = read_publications(table)
    if published.problem:
        found.add("publication:unreadable", table.paths.publication_head_key, problem=published.problem)
    for record in published.records:
        if record.name is None:
            found.add("publication:record", record.info.key)
    current = None if published.head is None else published.head.current
    if current is None:
        return
    there = {info.key for info in list_all(table.store, table.paths.published_prefix).objects}
    missing = [key for key in current.objects if key not in there]
    if missing and read_publication(table) == current:
        counts = {"count": len(missing), "objects": len(current.objects)}
        found.add("publication", table.paths.publication_head_key, path=missing[0], **counts)


def _check_source(seen: Inspection, config: TableConfig) -> None:
    found, store, paths = seen.found, seen.table.store, seen.table.paths
    source = source_of(seen.table, config)
    try:
        read_table_config(source)
        registration = read_registration(source, paths.name)
    except NotFound:
        found.add("view-registration:no-source", paths.config_key, source=source.name)
        return
    except HaltError:
        return  # fsck of the source says so
    if registration is None:
        age_ms = seen.table.read_store_clock() - store.head(paths.config_key).modified_ms
        if age_ms > HOUR_MS:
            key = source.paths.numbered(1).view_key(paths.name)
            found.add("view-registration:unknown", key, source=source.name, view=paths.name)
