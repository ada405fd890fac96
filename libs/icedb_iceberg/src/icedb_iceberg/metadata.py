"""Table metadata, format version 2: the JSON object that engines begin with. Pure.

Source: the specification of Iceberg, "Table Metadata". Numbers of schemas and specs go on from those of the base, as
the snapshots of the history name them.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import orjson

from icedb_iceberg.table_form import FIRST_PARTITION_ID, UNPARTITIONED, TableForm

FORMAT_VERSION: Final = 2
MAX_SNAPSHOTS: Final = 100
"""The history of a publication has no more."""
SEQUENCE_STEP: Final = 128
"""Sequence numbers that each publication may use: more than its steps."""
MAIN: Final = "main"

# Properties, of tables and in the summaries of snapshots.
NAME_MAPPING: Final = "schema.name-mapping.default"
BOUNDS: Final = "icedb.bounds"
LEFT_OUT: Final = "icedb.left-out-columns"
SINCE: Final = "icedb.since-ms"
LOG_NAME: Final = "icedb.log"
DIGEST: Final = "icedb.files-digest"
TAGS: Final = "icedb.tags"


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag of ours as one of Iceberg.

    Attributes:
        tag_id: Tells it from earlier tags of its name.
        snapshot: The tagged state.
    """

    tag_id: str
    snapshot: Mapping[str, Any]


def make_table_uuid(chain: str) -> str:
    """Return the UUID of a table: another one after its publications were lost, or the table was made anew."""
    return str(UUID(bytes=hashlib.sha256(f"table {chain}".encode()).digest()[:16], version=5))


def make_snapshot_id(chain: str, publication_id: str, step: int) -> int:
    """Return the id of a snapshot: 63 bit that no other publication ever uses."""
    digest = hashlib.sha256(f"snapshot {chain} {publication_id} {step}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1 or 1


class MetadataDraft:
    """The metadata of a publication, while it is made from those of its base.

    Args:
        form: The table in Iceberg's words.
        base: Metadata of the publication that this one goes on from; ``None``: from nothing.

    Attributes:
        snapshots: The history: states of the table, one after the other.
    """

    def __init__(self, form: TableForm, base: Mapping[str, Any] | None) -> None:
        self._form = form
        self._base = base
        logged = frozenset() if base is None else frozenset(each["snapshot-id"] for each in base["snapshot-log"])
        # Those that are no part of the history are there for a tag alone.
        self.snapshots: list[dict[str, Any]] = (
            [] if base is None else [each for each in base["snapshots"] if each["snapshot-id"] in logged]
        )
        self._schemas: list[Mapping[str, Any]] = [] if base is None else list(base["schemas"])
        unpartitioned = {"spec-id": UNPARTITIONED, "fields": []}
        self._specs: list[Mapping[str, Any]] = [unpartitioned] if base is None else list(base["partition-specs"])
        self._orders: list[Mapping[str, Any]] = (
            [{"order-id": 0, "fields": []}] if base is None else list(base["sort-orders"])
        )
        self.last_updated_ms = 0 if base is None else int(base["last-updated-ms"])
        self._last_sequence_number = 0 if base is None else int(base["last-sequence-number"])
        self._last_partition_id = FIRST_PARTITION_ID - 1 if base is None else int(base["last-partition-id"])
        self.schema_id = _add(self._schemas, "schema-id", form.schema)
        self.spec_id = _add(self._specs, "spec-id", {"fields": [each.json for each in form.spec]})
        self._order_id = _add(self._orders, "order-id", {"fields": form.sort_fields})

    @property
    def schema(self) -> Mapping[str, Any]:
        """The current schema, with its number."""
        return next(each for each in self._schemas if each["schema-id"] == self.schema_id)

    def find_tagged(self, name: str, tag_id: str) -> dict[str, Any] | None:
        """Return the snapshot that the base has for a tag; ``None``: there is none."""
        if self._base is None or orjson.loads(self._base["properties"].get(TAGS, "{}")).get(name) != tag_id:
            return None
        number = self._base["refs"][name]["snapshot-id"]
        return next((each for each in self._base["snapshots"] if each["snapshot-id"] == number), None)

    def find_state(self, digest: str) -> dict[str, Any] | None:
        """Return the newest snapshot of the history that has certain data files; ``None``: there is none."""
        history = reversed(self.snapshots[-MAX_SNAPSHOTS:])
        return next((each for each in history if each["summary"][DIGEST] == digest), None)

    def add_schema(self, schema: Mapping[str, Any]) -> int:
        """Return the number of a schema that a snapshot has, added if it is a new one."""
        return _add(self._schemas, "schema-id", schema)

    def cut_history(self, since_ms: int, *, base_since_ms: int | None, is_current: bool) -> None:
        """Drop the snapshots of the base whose data files may be gone, and all before them.

        Args:
            since_ms: What a snapshot may need at most: no file that was dead at or before this time.
            base_since_ms: The same of the newest snapshot of the base, as it is known now.
            is_current: Whether the newest one stays the current one: then it needs nothing dead.
        """
        if not self.snapshots:
            return
        if base_since_ms is not None:
            newest = self.snapshots[-1]
            self.snapshots[-1] = newest | {"summary": newest["summary"] | {SINCE: str(base_since_ms)}}
        kept: list[dict[str, Any]] = []
        for snapshot in reversed(self.snapshots):
            if int(snapshot["summary"][SINCE]) < since_ms and not (is_current and not kept):
                break
            kept.append(snapshot)
        self.snapshots = kept[::-1]

    def add_snapshot(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Add the next snapshot, and return it as it is there.

        Times never go back: engines look for the newest snapshot at a time.
        """
        time_ms = max(int(snapshot["timestamp-ms"]), self.last_updated_ms + 1)
        added = {**snapshot, "timestamp-ms": time_ms, "schema-id": self.schema_id}
        self.snapshots.append(added)
        self.last_updated_ms = time_ms
        self._last_sequence_number = _sequence_of(snapshot)
        return added

    def finish(
        self, *, location: str, table_uuid: str, tags: Mapping[str, Tag], properties: Mapping[str, str], now_ms: int
    ) -> dict[str, Any]:
        """Return the metadata.

        Args:
            location: Of the table, a URI without a slash at its end.
            table_uuid: Of the table.
            tags: By name.
            properties: Of the table, beside those that follow from its form.
            now_ms: The time of the publication, where it has no snapshot yet.
        """
        history = self.snapshots[-MAX_SNAPSHOTS:]
        tagged = {tag.snapshot["snapshot-id"]: tag.snapshot for tag in tags.values()}
        snapshots = list((tagged | {each["snapshot-id"]: each for each in history}).values())
        used = {self.schema_id, *(snapshot["schema-id"] for snapshot in snapshots)}
        refs: dict[str, Any] = {
            name: {"snapshot-id": tag.snapshot["snapshot-id"], "type": "tag"} for name, tag in tags.items()
        }
        current: dict[str, Any] = {}
        if history:
            number = history[-1]["snapshot-id"]
            refs[MAIN] = {"snapshot-id": number, "type": "branch"}
            current = {"current-snapshot-id": number}
        said = dict(properties)
        said |= {NAME_MAPPING: self._form.name_mapping, BOUNDS: str(self._form.with_bounds).lower()}
        if tags:
            said[TAGS] = orjson.dumps({name: tag.tag_id for name, tag in tags.items()}).decode()
        if self._form.left_out:
            said[LEFT_OUT] = ", ".join(f"{name} {kind}" for name, kind in self._form.left_out.items())
        return {
            "format-version": FORMAT_VERSION,
            "table-uuid": table_uuid,
            "location": location,
            "last-sequence-number": max(self._last_sequence_number, *map(_sequence_of, snapshots), 0),
            "last-updated-ms": self.last_updated_ms or now_ms,
            "last-column-id": self._form.ids.last_id,
            "current-schema-id": self.schema_id,
            "schemas": [each for each in self._schemas if each["schema-id"] in used],
            "default-spec-id": self.spec_id,
            "partition-specs": self._specs,
            "last-partition-id": max(self._last_partition_id, *(each.field_id for each in self._form.spec), 0),
            "default-sort-order-id": self._order_id,
            "sort-orders": self._orders,
            "properties": said,
            **current,
            "refs": refs,
            "snapshots": snapshots,
            "snapshot-log": [
                {"snapshot-id": each["snapshot-id"], "timestamp-ms": each["timestamp-ms"]} for each in history
            ],
            "metadata-log": [],
            "statistics": [],
            "partition-statistics": [],
        }


def summarize(
    operation: str,
    added: Sequence[Mapping[str, Any]],
    gone: Iterable[Mapping[str, Any]],
    base: Mapping[str, str] | None,
) -> dict[str, str]:
    """Return the summary of a snapshot, with its totals.

    Args:
        operation: Of the snapshot.
        added: Data files that came, as manifests have them.
        gone: Data files that went.
        base: Summary of the snapshot before; ``None``: there is none.
    """
    counts: dict[str, int] = {}
    for sign, word, files in ((1, "added", added), (-1, "deleted", list(gone))):
        if not files:
            continue
        rows, size = (sum(each[name] for each in files) for name in ("record_count", "file_size_in_bytes"))
        size_name = "added-files-size" if sign > 0 else "removed-files-size"
        counts |= {f"{word}-data-files": len(files), f"{word}-records": rows, size_name: size}
    totals = {
        "total-data-files": counts.get("added-data-files", 0) - counts.get("deleted-data-files", 0),
        "total-records": counts.get("added-records", 0) - counts.get("deleted-records", 0),
        "total-files-size": counts.get("added-files-size", 0) - counts.get("removed-files-size", 0),
    }
    totals = {name: change + int((base or {}).get(name, 0)) for name, change in totals.items()}
    fixed = {"total-delete-files": 0, "total-position-deletes": 0, "total-equality-deletes": 0}
    said = {name: str(number) for name, number in (counts | totals | fixed).items()}
    return {"operation": operation, **said}


def _sequence_of(snapshot: Mapping[str, Any]) -> int:
    return int(snapshot["sequence-number"])


def _add(known: list[Mapping[str, Any]], id_name: str, wanted: Mapping[str, Any]) -> int:
    """Return the number of something, added if it is not there yet."""
    for each in known:
        if all(each.get(name) == value for name, value in wanted.items()):
            return int(each[id_name])
    number = max((int(each[id_name]) for each in known), default=-1) + 1
    known.append({**wanted, id_name: number})
    return number
