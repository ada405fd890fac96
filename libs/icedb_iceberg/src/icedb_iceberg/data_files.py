"""Data files as manifests name them: partition, counts and bounds, from the file markers of the log. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from icedb_log.model import FileMarker

from icedb_iceberg.avro_files import ADDED, avro_name
from icedb_iceberg.table_form import UNPARTITIONED, TableForm
from icedb_iceberg.values import pack_bounds

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
