"""Which manifests a snapshot consists of, so that a commit writes few of them anew, and what they say of data files.

Files that come get a manifest of their own. Once there are eight manifests of about one size, these are joined, and cut
anew in the order of paths (so by partition), until they hold about a thousand files each: those stay as they are until
one of their files goes. So each file is written about three times, and a table of 100,000 files has 100 to 200
manifests. When a file goes, its manifest is written anew, with the file as deleted in it; the next time that the
manifest is written, the file is gone.

A manifest is never changed: the snapshots of the history go on naming the ones that they had. Partition, counts and
bounds of data files are from the file markers of the log.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from icedb_log.errors import CorruptLog
from icedb_log.model import FileMarker

from icedb_iceberg.avro_files import ADDED, DELETED, EXISTING, ManifestCodec, avro_name
from icedb_iceberg.column_types import pack_bounds, pack_value
from icedb_iceberg.table_form import UNPARTITIONED, TableForm

TARGET_FILES: Final = 1000
"""Files of a manifest when many come at once."""
FAN_IN: Final = 8
MATURE_FILES: Final = TARGET_FILES // 2
"""Manifests of so many files are not joined any more: eight smaller ones of one size are fewer once they are."""

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that was written.

    Attributes:
        key: Of its object.
        row: As manifest lists have it.
    """

    key: str
    row: Mapping[str, Any]

    @property
    def live_count(self) -> int:
        """Files in it that are live."""
        return int(self.row["added_files_count"] + self.row["existing_files_count"])

    @property
    def spec_id(self) -> int:
        """Number of its partition spec."""
        return int(self.row["partition_spec_id"])


@dataclass(slots=True)
class _Group:
    """Entries that are going to be one manifest or, if they are many, several."""

    spec_id: int
    entries: list[Entry]

    @property
    def live_count(self) -> int:
        return sum(entry["status"] != DELETED for entry in self.entries)


class ManifestSet:
    """The manifests of a table's newest snapshot, while snapshots are added to it.

    Args:
        manifests: Of the snapshot to begin with.
        where: Key of the manifest that names it, of each live data file, by path. Changed in place.
        prefix: Of the table's keys.
        location: Of the table, a URI without a slash at its end.
        codecs: By number of the spec.
        load: Returns the entries of a manifest.
        put: Writes a manifest's object, given its name and body; returns key and URI.
    """

    def __init__(
        self,
        manifests: Iterable[Manifest],
        where: dict[str, str],
        *,
        prefix: str,
        location: str,
        codecs: Mapping[int, ManifestCodec],
        load: Callable[[Sequence[Manifest]], list[list[Entry]]],
        put: Callable[[str, bytes], tuple[str, str]],
    ) -> None:
        self._manifests = {manifest.key: manifest for manifest in manifests}
        self._where = where
        self._prefix = prefix
        self._location = location
        self._codecs = codecs
        self._load_stored = load
        self._put = put
        self._own: dict[str, list[Entry]] = {}
        self._written = 0

    @property
    def manifests(self) -> list[Manifest]:
        """The manifests now."""
        return list(self._manifests.values())

    def change(
        self,
        added: Mapping[int, list[Entry]],
        removed: Collection[str],
        *,
        snapshot_id: int,
        sequence_number: int,
        is_last: bool,
    ) -> list[Entry]:
        """Add a snapshot; return the entries of the files that went.

        Args:
            added: Entries of files that come, by number of their spec.
            removed: Paths of files that go.
            snapshot_id: Of the snapshot.
            sequence_number: Of the snapshot.
            is_last: Whether small manifests are joined now: once in a publication.

        Raises:
            CorruptLog: A file goes that is not there.
        """
        self._manifests = {key: each for key, each in self._manifests.items() if each.live_count}
        groups = [_Group(spec_id, entries) for spec_id, entries in added.items() if entries]
        gone: list[Entry] = []
        touched = dict.fromkeys(self._forget(path) for path in removed)
        rewritten = [self._manifests.pop(key) for key in touched]
        wanted = frozenset(self._location + path.removeprefix(self._prefix) for path in removed)
        for manifest, entries in zip(rewritten, self._load(rewritten), strict=True):
            kept = []
            for entry in _carry(entries, snapshot_id):
                if entry["status"] != DELETED and entry["data_file"]["file_path"] in wanted:
                    entry = _delete(entry, snapshot_id)  # noqa: PLW2901
                    gone.append(entry)
                kept.append(entry)
            groups.append(_Group(manifest.spec_id, kept))
        if is_last:
            groups = self._join(groups, snapshot_id)
        for group in groups:
            self._write(group, snapshot_id, sequence_number)
        return gone

    def _join(self, groups: list[_Group], snapshot_id: int) -> list[_Group]:
        """Take small manifests of about one size together, with the groups that are to be written anyway.

        WARN: all of a size, not as many as fit into one: a first publication of 90 commits left 82 manifests, each of
        which costs a reader as much as a hundred files in it.
        """
        tiers: dict[tuple[int, int], list[_Group | Manifest]] = {}
        small: list[_Group | Manifest] = [*self._manifests.values(), *groups]
        for each in small:
            if each.live_count < MATURE_FILES:
                tiers.setdefault((each.spec_id, _tier(each.live_count)), []).append(each)
        for (spec_id, _), members in tiers.items():
            if len(members) < FAN_IN:
                continue
            stored = [each for each in members if isinstance(each, Manifest)]
            entries = [entry for loaded in self._load(stored) for entry in _carry(loaded, snapshot_id)]
            entries += [entry for each in members if isinstance(each, _Group) for entry in each.entries]
            for manifest in stored:
                del self._manifests[manifest.key]
            taken = {id(each) for each in members}
            groups = [*(each for each in groups if id(each) not in taken), _Group(spec_id, entries)]
        return groups

    def _forget(self, path: str) -> str:
        try:
            return self._where.pop(path)
        except KeyError as error:
            raise CorruptLog(
                f"data file {path} is to go, but the publication that this one goes on from does not have it; "
                "`icedb fsck` says what is wrong"
            ) from error

    def _load(self, manifests: Sequence[Manifest]) -> list[list[Entry]]:
        """Return the entries of manifests, of those of this publication as they were written."""
        missing = [manifest for manifest in manifests if manifest.key not in self._own]
        loaded = dict(zip((each.key for each in missing), self._load_stored(missing), strict=True)) if missing else {}
        return [self._own.get(manifest.key) or loaded[manifest.key] for manifest in manifests]

    def _write(self, group: _Group, snapshot_id: int, sequence_number: int) -> None:
        """Write a group, as manifests of about equal size."""
        entries = sorted(group.entries, key=lambda entry: entry["data_file"]["file_path"])
        codec = self._codecs[group.spec_id]
        pieces = -(-len(entries) // TARGET_FILES)
        for piece in range(pieces):
            part = entries[len(entries) * piece // pieces : len(entries) * (piece + 1) // pieces]
            name = f"m{self._written}.avro"
            self._written += 1
            body = codec.encode(f"{snapshot_id}/{name}", part)
            key, uri = self._put(name, body)
            row = _summarize(part, codec, snapshot_id=snapshot_id, sequence_number=sequence_number)
            self._manifests[key] = Manifest(key, row | {"manifest_path": uri, "manifest_length": len(body)})
            self._own[key] = part
            for entry in part:
                if entry["status"] != DELETED:
                    self._where[self._prefix + entry["data_file"]["file_path"].removeprefix(self._location)] = key


def _tier(count: int) -> int:
    tier = 0
    while count >= FAN_IN:
        count //= FAN_IN
        tier += 1
    return tier


def _carry(entries: Iterable[Entry], snapshot_id: int) -> Iterable[Entry]:
    """Return what a manifest that is written anew says of files it had; what this snapshot itself did stays said."""
    for entry in entries:
        if entry["snapshot_id"] == snapshot_id and entry["status"] != EXISTING:
            yield entry
        elif entry["status"] != DELETED:
            yield entry if entry["status"] == EXISTING else entry | {"status": EXISTING}


def _delete(entry: Entry, snapshot_id: int) -> Entry:
    """Return the entry of a file that goes: without bounds, which nobody needs any more."""
    names = ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    data_file = entry["data_file"] | dict.fromkeys(names)
    return entry | {"status": DELETED, "snapshot_id": snapshot_id, "data_file": data_file}


def _summarize(
    entries: Sequence[Entry], codec: ManifestCodec, *, snapshot_id: int, sequence_number: int
) -> dict[str, Any]:
    """Return the row of a manifest in a list, without its path and length."""
    counts, rows = [0, 0, 0], [0, 0, 0]
    for entry in entries:
        counts[entry["status"]] += 1
        rows[entry["status"]] += entry["data_file"]["record_count"]
    live = [entry["sequence_number"] for entry in entries if entry["status"] != DELETED]
    summaries = []
    for each, name in codec.names:
        found = {entry["data_file"]["partition"][name] for entry in entries}
        values = found - {None}
        summaries.append(
            {
                "contains_null": None in found,
                "contains_nan": False,
                "lower_bound": pack_value(each.result_type, min(values)) if values else None,
                "upper_bound": pack_value(each.result_type, max(values)) if values else None,
            }
        )
    return {
        "partition_spec_id": codec.spec_id,
        "content": 0,
        "sequence_number": sequence_number,
        "min_sequence_number": min(live, default=sequence_number),
        "added_snapshot_id": snapshot_id,
        "added_files_count": counts[ADDED],
        "existing_files_count": counts[EXISTING],
        "deleted_files_count": counts[DELETED],
        "added_rows_count": rows[ADDED],
        "existing_rows_count": rows[EXISTING],
        "deleted_rows_count": rows[DELETED],
        "partitions": summaries,
        "key_metadata": None,
    }


_DATA: Final = "/_data/"


class EntryMaker:
    """Makes entries of manifests for data files that come.

    Args:
        form: The table in Iceberg's words.
        prefix: Of the table's keys.
        location: Of the table, a URI without a slash at its end.
        spec_id: Number of the table's partition spec.
        row_counts: Rows of files whose markers do not say, by path.
    """

    def __init__(
        self, form: TableForm, *, prefix: str, location: str, spec_id: int, row_counts: Mapping[str, int]
    ) -> None:
        self._form = form
        self._prefix = prefix
        self._location = location
        self._spec_id = spec_id
        self._row_counts = dict(row_counts)
        self._names = [(each.name, avro_name(each.name)) for each in form.spec]
        self._kinds = {name.lower(): (name, kind) for name, kind in form.types.items() if name not in form.narrow}
        self._partitioned = [field.column.lower() for field in form.config.partition]

    def add_row_counts(self, row_counts: Mapping[str, int]) -> None:
        """Take note of the rows of further files."""
        self._row_counts |= row_counts

    def uri(self, path: str) -> str:
        """Return the URI of a data file."""
        return self._location + path.removeprefix(self._prefix)

    def make(self, marker: FileMarker, *, snapshot_id: int, sequence_number: int) -> tuple[int, dict[str, Any]]:
        """Return the number of the spec that a file belongs to, and its entry."""
        _, _, inner = marker.path.rpartition(_DATA)
        values = self._form.read_partition(marker, inner.rpartition("/")[0])
        spec_id = UNPARTITIONED if values is None else self._spec_id
        partition = {} if values is None else {avro: values[name] for name, avro in self._names}
        row_count = self._row_counts[marker.path] if marker.row_count is None else marker.row_count
        data_file = {
            "content": 0,
            "file_path": self.uri(marker.path),
            "file_format": "PARQUET",
            "partition": partition,
            "record_count": row_count,
            "file_size_in_bytes": marker.size_bytes,
            **self._measure(marker, row_count),
        }
        entry = {
            "status": ADDED,
            "snapshot_id": snapshot_id,
            "sequence_number": sequence_number,
            "file_sequence_number": sequence_number,
            "data_file": data_file,
        }
        return spec_id, entry

    def _measure(self, marker: FileMarker, row_count: int) -> dict[str, Any]:
        """Return counts and bounds, of the columns that the marker or the partition says something of."""
        counts: list[dict[str, Any]] = []
        nulls: list[dict[str, Any]] = []
        lows: list[dict[str, Any]] = []
        highs: list[dict[str, Any]] = []
        stats = {name.lower(): said for name, said in marker.stats.items()}
        for column in dict.fromkeys((*stats, *self._partitioned)):
            if column not in self._kinds:
                continue
            name, kind = self._kinds[column]
            number = self._form.ids.columns[name].number
            if column in stats and isinstance(kind, str):  # a list has more values than rows
                counts.append({"key": number, "value": row_count})
                nulls.append({"key": number, "value": stats[column][2]})
            bounds = pack_bounds(kind, self._form.domains.read(marker, name)) if self._form.with_bounds else None
            if bounds is not None:
                lows.append({"key": number, "value": bounds[0]})
                highs.append({"key": number, "value": bounds[1]})
        said = {"value_counts": counts, "null_value_counts": nulls, "lower_bounds": lows, "upper_bounds": highs}
        return {name: values or None for name, values in said.items()}
