"""Writes publications in Iceberg's form: an implementation of :class:`~icedb_log.publish.model.PublicationWriter`.

What it wrote, or read, of the newest publications stays in memory: which data files are live, and in which manifest
each is named. So a commit of ten files costs the same in a table of a hundred and of 100,000. Objects are put in the
order manifests, lists, metadata, so that nothing ever names what is not there yet.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from cachetools import LRUCache
from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound
from icedb_log.holds.stored_holds import StoredHold
from icedb_log.holds.tags import read_tagged
from icedb_log.log.fold import Snapshot
from icedb_log.log.live_files import path_digest, sum_digests
from icedb_log.log.state import LogState
from icedb_log.publish.model import Draft, Publication, Step, Written
from icedb_log.store.object_store import ObjectStore, limit_reads, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MINUTE_MS

from icedb_iceberg.avro_files import ManifestCodec, decode_list, decode_manifest, decode_uris, encode_list
from icedb_iceberg.column_types import parse_type
from icedb_iceberg.field_ids import give_field_ids
from icedb_iceberg.location import fix_location, locate_table, root_of
from icedb_iceberg.manifests import Entry, EntryMaker, Manifest, ManifestSet
from icedb_iceberg.metadata import (
    BOUNDS,
    DIGEST,
    LOG_NAME,
    MAIN,
    SEQUENCE_STEP,
    SINCE,
    MetadataDraft,
    Tag,
    make_snapshot_id,
    make_table_uuid,
    summarize,
)
from icedb_iceberg.table_form import UNPARTITIONED, TableForm, describe_table, make_form
from icedb_iceberg.unfit_files import Fitness, UnfitFiles, read_row_counts

READ_THREADS: Final = 16
MAX_HINTED: Final = 10_000
LOOK_INTERVAL_MS: Final = MINUTE_MS
"""How long a deleted part of a publication may stay unnoticed."""
MAX_KEPT_FILES: Final = 1_000_000
"""Data files of all publications, over all tables, whose places are kept in memory; about 300 bytes each."""


@dataclass(frozen=True, slots=True)
class Published:
    """What is known of one publication.

    Attributes:
        metadata: Its table metadata.
        manifests: Of its current snapshot.
        where: Key of the manifest that names it, of each live data file, by path.
        refers: Of each snapshot in its history, by id: keys of its list and its manifests.
        chain: Which chain it belongs to.
        sequence: Of it in the chain.
    """

    metadata: Mapping[str, Any]
    manifests: tuple[Manifest, ...]
    where: Mapping[str, str]
    refers: Mapping[int, tuple[str, ...]]
    chain: str
    sequence: int


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a state of a table was not published, and which one that was, as of which time of the store's clock."""

    reason: str
    as_of_ms: int
    log_names: AbstractSet[str]
    config: TableConfig

    def holds(self, table: Table, log_names: AbstractSet[str], *, now_ms: int) -> bool:
        """Whether it would be refused again: data files never change, and what is gone from the log was dead (J2)."""
        is_same = self.log_names >= log_names and self.config == table.config
        return is_same and now_ms < self.as_of_ms + table.config.data_grace_ms // 4


class IcebergWriter:
    """Writes publications of any number of tables. Thread-safe; of one table only one call at a time is useful."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Published] = OrderedDict()
        self._states: LRUCache[str, LogState] = LRUCache(MAX_KEPT_FILES, lambda state: len(state.live) + 1)
        self._hinted: LRUCache[str, bool] = LRUCache(MAX_HINTED)
        self._fitness = Fitness()
        self._refused: LRUCache[str, _Refusal] = LRUCache(MAX_HINTED)
        self._looked_ms: LRUCache[str, int] = LRUCache(MAX_HINTED)
        self._said: LRUCache[str, tuple[str, bool]] = LRUCache(MAX_HINTED)
        self._lock = threading.Lock()

    def fits(self, table: Table, base: Publication) -> bool:
        """Whether a publication is whole, names files where they are, and says of bounds what the table is set to say.

        Raises as :func:`read_metadata` and :func:`~icedb_iceberg.location.read_location`.
        """
        if not self._is_whole(table, base):
            return False
        with self._lock:
            said = self._said.get(base.publication_id)
        if said is None:
            metadata = self._read_metadata(table, base)
            said = metadata["location"], metadata["properties"].get(BOUNDS) == "true"
            with self._lock:
                self._said[base.publication_id] = said
        return said == (locate_table(table), table.config.iceberg_bounds == "on")

    def _is_whole(self, table: Table, base: Publication) -> bool:
        """Look now and then whether objects of a publication were deleted from outside: memory does not tell."""
        place = table.store.uri(table.paths.prefix)
        now_ms = table.clock.monotonic_ms()
        with self._lock:
            looked_ms = self._looked_ms.get(place)
        if looked_ms is not None and now_ms - looked_ms < LOOK_INTERVAL_MS:
            return True
        there = {info.key for info in list_all(table.store, table.paths.published_prefix).objects}
        is_whole = there.issuperset(base.objects)
        with self._lock:
            if is_whole:
                self._looked_ms[place] = now_ms
            else:
                self._kept.pop(base.publication_id, None)
        return is_whole

    def require_fit(self, table: Table, log_names: AbstractSet[str], *, now_ms: int) -> None:
        """Raise UnfitFiles if these log files were refused a short time ago."""
        with self._lock:
            refused = self._refused.get(table.store.uri(table.paths.prefix))
        if refused is not None and refused.holds(table, log_names, now_ms=now_ms):
            raise UnfitFiles(refused.reason)

    def live_paths(self, table: TableStore, base: Publication) -> Collection[str]:
        """Return the paths of the data files of a publication's current state."""
        return self._published(table, base).where.keys()

    def live_digest(self, table: TableStore, base: Publication) -> int | None:
        """Return what tells these data files from others, as the newest snapshot says."""
        metadata = self._published(table, base).metadata
        number = metadata.get("current-snapshot-id")
        if number is None:
            return 0
        return next(int(each["summary"][DIGEST]) for each in metadata["snapshots"] if each["snapshot-id"] == number)

    def take_state(self, table: TableStore) -> LogState:
        """Return what is known of a table's log from the last publication: a copy, for several threads may ask."""
        with self._lock:
            known = self._states.get(table.store.uri(table.paths.prefix))
            return LogState() if known is None else known.copy()

    def keep_state(self, table: TableStore, state: LogState) -> None:
        """Keep what is known of a table's log for the next publication."""
        with self._lock, suppress(ValueError):  # larger than all that may be kept
            self._states[table.store.uri(table.paths.prefix)] = state

    def write(self, draft: Draft) -> Written:
        """Write the objects of a publication: manifests, lists, metadata.

        Raises:
            CorruptLog: What the base consists of, or the field ids, cannot be understood.
            UnfitFiles: Engines would read some of the live data files wrongly.
            InvalidRequest: The warehouse was moved, or the rows of a data file are not known.
            NotFound: An object of the base is gone.
            Unavailable: The store did not answer.
        """
        table = draft.table
        base = None if draft.base is None else self._published(table, draft.base)
        types, left_out = describe_table(table.config, draft.schema)
        ids = give_field_ids(table, {**types, **{name: parse_type(kind) for name, kind in left_out.items()}})
        with_bounds = table.config.iceberg_bounds == "on"
        form = make_form(table.config, draft.schema, draft.logged_schema, ids, with_bounds=with_bounds)
        try:
            draft = self._fitness.leave_out_unfit(draft, trusts_base=base is not None and _keeps_types(base, form))
        except UnfitFiles as error:
            with self._lock:
                place = table.store.uri(table.paths.prefix)
                self._refused[place] = _Refusal(str(error), draft.as_of_ms, draft.log_names, table.config)
            raise
        location = f"{fix_location(table.store, root_of(table))}/{table.name}"
        run = _PublicationRun(draft, form, location, base, self._fitness)
        if not run.can_go_on:
            steps = _as_one_step(draft)
            draft = replace(draft, base=None, base_since_ms=0, steps=steps)
            run = _PublicationRun(draft, form, location, None, self._fitness)
        run.run()
        metadata, key = run.finish()
        refers = {each["snapshot-id"]: run.refers[each["snapshot-id"]] for each in metadata["snapshots"]}
        published = Published(metadata, tuple(run.manifests), run.where, refers, draft.chain, draft.sequence)
        self._remember(draft.publication_id, published)
        return Written(key, (key, *dict.fromkeys(each for keys in refers.values() for each in keys)))

    def has_hinted(self, publication: Publication) -> bool:
        """Whether :meth:`note_hint` was told of a publication."""
        return publication.publication_id in self._hinted

    def note_hint(self, publication: Publication) -> None:
        """Take note that ``version-hint.text`` names a publication."""
        with self._lock:
            self._hinted[publication.publication_id] = True

    def held_back(self, table: TableStore) -> str:
        """Return why the newest state of a table was refused last; empty: it was not, or :meth:`note_fit` was told."""
        with self._lock:
            refused = self._refused.get(table.store.uri(table.paths.prefix))
        return "" if refused is None else refused.reason

    def note_fit(self, table: TableStore) -> None:
        """Take note that the newest state of a table is published."""
        with self._lock:
            self._refused.pop(table.store.uri(table.paths.prefix), None)

    def _remember(self, publication_id: str, published: Published) -> None:
        with self._lock:
            # Of a chain the newest won publication is needed, and the one that is being tried.
            old = [key for key, each in self._kept.items() if each.chain == published.chain]
            for key in old[:-1]:
                del self._kept[key]
            self._kept[publication_id] = published
            while len(self._kept) > 1 and sum(len(each.where) for each in self._kept.values()) > MAX_KEPT_FILES:
                self._kept.popitem(last=False)

    def _published(self, table: TableStore, base: Publication) -> Published:
        """Return what is known of a publication, read if nothing is."""
        with self._lock:
            known = self._kept.get(base.publication_id)
            if known is not None:
                self._kept.move_to_end(base.publication_id)
                return known
        read = _read_published(table, base)
        self._remember(base.publication_id, read)
        return read

    def _read_metadata(self, table: TableStore, base: Publication) -> Mapping[str, Any]:
        with self._lock:
            known = self._kept.get(base.publication_id)
        return read_metadata(table, base) if known is None else known.metadata


class _PublicationRun:
    """Writes one publication."""

    def __init__(self, draft: Draft, form: TableForm, location: str, base: Published | None, fitness: Fitness) -> None:
        self._draft = draft
        self._fitness = fitness
        self._form = form
        self._location = location
        self._base_metadata = None if base is None else base.metadata
        self._metadata = MetadataDraft(form, self._base_metadata)
        self.refers: dict[int, tuple[str, ...]] = {} if base is None else dict(base.refers)
        self.where: dict[str, str] = {} if base is None else dict(base.where)
        table, metadata = draft.table, self._metadata
        self._entries = EntryMaker(
            form,
            prefix=table.paths.prefix,
            location=location,
            spec_id=metadata.spec_id,
            row_counts=read_row_counts(table.store, (marker for step in draft.steps for marker in step.added)),
        )
        self._codecs = self._make_codecs()
        self._set = self._make_set(() if base is None else base.manifests, self.where)

    @property
    def manifests(self) -> Sequence[Manifest]:
        """Of the newest snapshot."""
        return self._set.manifests

    @property
    def can_go_on(self) -> bool:
        """Whether all manifests of the base can be written anew: of no spec that the table had before."""
        return all(manifest.spec_id in self._codecs for manifest in self._set.manifests)

    def run(self) -> None:
        """Write manifests and lists of all steps."""
        draft = self._draft
        tail = self._metadata.snapshots[
            -1:
        ]  # what the next snapshot comes after, whether it stays in the history or not
        self._metadata.cut_history(
            draft.since_ms,
            base_since_ms=draft.base_since_ms if draft.base is not None else None,
            is_current=not draft.steps,
        )
        parent = tail[0] if tail else None
        for number, step in enumerate(draft.steps):
            parent = self._add_snapshot(number, step, parent)

    def finish(self) -> tuple[dict[str, Any], str]:
        """Write the metadata; return it with its key."""
        draft = self._draft
        properties = {
            "gc.enabled": "false",  # an engine that could write must not delete our files
            "icedb.table": draft.table.name,
            "icedb.chain": draft.chain,
            "icedb.publication": draft.publication_id,
        }
        metadata = self._metadata.finish(
            location=self._location,
            table_uuid=make_table_uuid(draft.chain),
            tags=self._find_tags(),
            properties=properties,
            now_ms=draft.as_of_ms,
        )
        return metadata, draft.put("v.metadata.json", orjson.dumps(metadata))

    def _make_codecs(self) -> dict[int, ManifestCodec]:
        """Return the codecs of all specs that have manifests, or get some now."""
        schema, spec_id = self._metadata.schema, self._metadata.spec_id
        codecs = {UNPARTITIONED: ManifestCodec(UNPARTITIONED, (), schema)}
        return codecs | {spec_id: ManifestCodec(spec_id, self._form.spec, schema)}

    def _add_snapshot(self, number: int, step: Step, parent: Mapping[str, Any] | None) -> dict[str, Any]:
        draft = self._draft
        snapshot_id = make_snapshot_id(draft.chain, draft.publication_id, number)
        sequence_number = draft.sequence * SEQUENCE_STEP + number
        before: Mapping[str, str] = {} if parent is None else parent["summary"]
        is_last = number == len(draft.steps) - 1
        summary = self._change(self._set, step, before, snapshot_id, sequence_number, is_last=is_last)
        snapshot: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "sequence-number": sequence_number,
            "timestamp-ms": step.time_ms,
            "summary": summary,
        }
        if parent is not None:
            snapshot["parent-snapshot-id"] = parent["snapshot-id"]
        self._write_list(snapshot, self._set.manifests)
        return self._metadata.add_snapshot(snapshot)

    def _write_list(self, snapshot: dict[str, Any], manifests: Sequence[Manifest]) -> None:
        number = snapshot["snapshot-id"]
        name = f"snap-{number}.avro"
        body = encode_list(name, [each.row for each in manifests], snapshot=snapshot)
        key, snapshot["manifest-list"] = self._put(name, body)
        self.refers[number] = (key, *(each.key for each in manifests))

    def _change(
        self,
        manifests: ManifestSet,
        step: Step,
        before: Mapping[str, str],
        snapshot_id: int,
        sequence_number: int,
        *,
        is_last: bool,
    ) -> dict[str, str]:
        """Write the manifests of a step, and return the summary of its snapshot, given that of the one before."""
        numbers = {"snapshot_id": snapshot_id, "sequence_number": sequence_number}
        added: dict[int, list[Entry]] = {}
        for marker in step.added:
            spec_id, entry = self._entries.make(marker, **numbers)
            added.setdefault(spec_id, []).append(entry)
        gone = manifests.change(added, step.removed, **numbers, is_last=is_last)
        came_files = [entry["data_file"] for entries in added.values() for entry in entries]
        summary = summarize(step.operation, came_files, [entry["data_file"] for entry in gone], before)
        summary |= {SINCE: str(step.since_ms), DIGEST: _change_digest(before.get(DIGEST, "0"), step)}
        return summary | {LOG_NAME: step.log_name} if step.log_name else summary

    def _make_set(self, manifests: Sequence[Manifest], where: dict[str, str], *, name: str = "") -> ManifestSet:
        store = self._draft.table.store
        return ManifestSet(
            manifests,
            where,
            prefix=self._draft.table.paths.prefix,
            location=self._location,
            codecs=self._codecs,
            load=lambda wanted: _load_manifests(store, wanted),
            put=lambda each, body: self._put(name + each, body),
        )

    def _put(self, name: str, body: bytes) -> tuple[str, str]:
        key = self._draft.put(name, body)
        return key, self._location + key.removeprefix(self._draft.table.paths.prefix)

    def _find_tags(self) -> dict[str, Tag]:
        """Return the active tags in Iceberg's form. What one says is read once: the next publication finds it here."""
        tags: dict[str, Tag] = {}
        for number, tag in enumerate(self._draft.tags):
            tag_id = tag.key.removesuffix(".jsonl").rpartition(".")[2]
            snapshot = self._metadata.find_tagged(tag.name, tag_id)
            if snapshot is None:
                snapshot = self._make_tagged(number, tag)
            if snapshot is not None and tag.name != MAIN:
                tags[tag.name] = Tag(tag_id, snapshot)
        return tags

    def _make_tagged(self, number: int, tag: StoredHold) -> dict[str, Any] | None:
        """Return the snapshot of a tagged state: of the history, or one of its own; ``None``: it ended, or is unfit."""
        try:
            _, tagged = read_tagged(self._draft.table, tag.name)
        except (NotFound, InvalidRequest):
            return None  # it ended just now
        found = self._metadata.find_state(str(tagged.live.digest))
        if found is None and self._fitness.is_fit(self._draft, tagged):
            return self._add_detached(number, tag, tagged)
        return found

    def _add_detached(self, number: int, tag: StoredHold, tagged: Snapshot) -> dict[str, Any]:
        """Write a snapshot that is no part of the history: of a state that is older than it."""
        draft = self._draft
        snapshot_id = make_snapshot_id(draft.chain, draft.publication_id, SEQUENCE_STEP + number)
        sequence_number = draft.sequence * SEQUENCE_STEP + SEQUENCE_STEP - 1
        step = Step("append", tag.last_commit_ms, "", tuple(tagged.live), (), 0)
        # Columns that became wider since were narrow then, and so are these files.
        form = make_form(draft.table.config, tagged.schema, tagged.schema, self._form.ids, with_bounds=False)
        self._entries.add_row_counts(read_row_counts(draft.table.store, step.added))
        manifests = self._make_set((), {}, name=f"tag{number}-")
        summary = self._change(manifests, step, {}, snapshot_id, sequence_number, is_last=True)
        snapshot: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "sequence-number": sequence_number,
            "timestamp-ms": tag.last_commit_ms,
            "schema-id": self._metadata.add_schema(form.schema),
            "summary": summary,
        }
        self._write_list(snapshot, manifests.manifests)
        return snapshot


def read_metadata(table: TableStore, publication: Publication) -> dict[str, Any]:
    """Return the table metadata of a publication: one read. Raises CorruptLog, NotFound, Unavailable."""
    key = publication.metadata_key
    try:
        metadata: dict[str, Any] = orjson.loads(table.store.get(key).body)
        metadata["location"], metadata["snapshots"], metadata["properties"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLog(f"{key}: is no table metadata ({error!r}); `icedb fsck` says what to do") from error
    return metadata


def _read_published(table: TableStore, base: Publication) -> Published:
    """Read a publication: its metadata, the lists of all its snapshots, the manifests of the current one."""
    metadata = read_metadata(table, base)
    location, prefix, store = metadata["location"], table.paths.prefix, table.store

    def to_key(uri: str) -> str:
        if not uri.startswith(f"{location}/"):
            raise CorruptLog(f"{base.metadata_key}: names {uri[:200]}, which is not below {location}")
        return prefix + uri.removeprefix(location)

    snapshots = metadata["snapshots"]
    lists = [to_key(snapshot["manifest-list"]) for snapshot in snapshots]
    rows = _map(store, lambda key: decode_list(store.get(key).body, key), lists)
    refers = {
        snapshot["snapshot-id"]: (key, *(to_key(row["manifest_path"]) for row in found))
        for snapshot, key, found in zip(snapshots, lists, rows, strict=True)
    }
    current = [
        found
        for each, found in zip(snapshots, rows, strict=True)
        if each["snapshot-id"] == metadata.get("current-snapshot-id")
    ]
    manifests = tuple(Manifest(to_key(row["manifest_path"]), row) for found in current for row in found)
    named = _map(store, lambda key: decode_uris(store.get(key).body, key), [each.key for each in manifests])
    where = {to_key(uri): manifest.key for manifest, uris in zip(manifests, named, strict=True) for uri in uris}
    return Published(metadata, manifests, where, refers, base.chain, base.sequence)


def _load_manifests(store: ObjectStore, manifests: Sequence[Manifest]) -> list[list[Entry]]:
    keys = [manifest.key for manifest in manifests]
    return _map(store, lambda key: decode_manifest(store.get(key).body, key), keys)


def _map(store: ObjectStore, read: Callable[[str], Any], keys: Sequence[str]) -> list[Any]:
    """Read several objects, side by side where the store makes one wait."""
    threads = min(limit_reads(store, READ_THREADS), len(keys))
    if threads <= 1:
        return [read(key) for key in keys]
    with ThreadPoolExecutor(threads, "icedb-iceberg") as pool:
        return list(pool.map(read, keys))


def _keeps_types(base: Published, form: TableForm) -> bool:
    """Return whether all columns that the base has are of the same type now."""
    metadata = base.metadata
    (schema,) = (each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
    types = {field["name"]: field["type"] for field in form.schema["fields"]}
    return all(types.get(field["name"]) == field["type"] for field in schema["fields"])


def _as_one_step(draft: Draft) -> tuple[Step, ...]:
    """Return the step from no data files to those that are live."""
    time_ms = max((step.time_ms for step in draft.steps), default=draft.as_of_ms)
    return (Step("overwrite", time_ms, "", tuple(draft.live), (), draft.as_of_ms),)


def _change_digest(before: str, step: Step) -> str:
    """Return what tells the data files after a step from others, as :attr:`LiveFiles.digest` does."""
    came = sum(path_digest(marker.path) for marker in step.added)
    return str(sum_digests([int(before), came, -sum(map(path_digest, step.removed))]))
