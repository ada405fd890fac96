"""An Iceberg table as PyIceberg's fast appends leave it: a manifest for each commit, and a catalog in SQLite.

Written with PyIceberg's own writers, but without its commits, each of which writes the list of all manifests anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2, new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, NestedField, StringType, TimestampType

from bench.snapshot_work import FIRST_COMMIT_MS, NATIVE_METADATA, ROWS, STEP_MS, File, Shape

IDENTIFIER: Final = "bench.events"
_TYPES: Final = {"ts": TimestampType(), "event": StringType(), "user_id": StringType(), "amount": DoubleType()}
_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class IcebergCatalog:
    """Where the catalog is, and how the files are read. Travels by pickle.

    Attributes:
        database: The catalog's file.
        metadata_location: The table's metadata.
        properties: How the file system is reached.
    """

    database: Path
    metadata_location: str
    properties: Mapping[str, str]

    def open(self) -> SqlCatalog:
        """Open the catalog, with the table in it."""
        catalog = SqlCatalog("bench", uri=f"sqlite:///{self.database}", **self.properties)
        if not catalog.namespace_exists("bench"):
            catalog.create_namespace("bench")
        if not catalog.table_exists(IDENTIFIER):
            catalog.register_table(IDENTIFIER, self.metadata_location)
        return catalog

    def load(self, catalog: SqlCatalog) -> Table:
        """Load the table."""
        return catalog.load_table(IDENTIFIER)


def build_iceberg(root: Path, shape: Shape, *, location: str, manifest_files: int | None = None) -> str:
    """Write a table to a directory, that others see at ``location``; return where its metadata is.

    With ``manifest_files`` so many files each are in one manifest, as a writer that joins them leaves them.
    """
    root.joinpath("metadata").mkdir(parents=True)
    schema = Schema(*(NestedField(i, name, kind, required=False) for i, (name, kind) in enumerate(_TYPES.items(), 1)))
    spec = PartitionSpec(PartitionField(1, 1000, DayTransform(), "d"))
    metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, location)
    joined = shape if manifest_files is None else Shape(shape.file_count, max(1, shape.file_count // manifest_files))
    manifests = [
        _write_manifest(root, metadata, commit, numbers, location) for commit, numbers in enumerate(joined.commits(), 1)
    ]
    count = shape.commit_count
    name = f"metadata/snap-{count}.avro"
    with write_manifest_list(
        2, PyArrowFileIO().new_output(str(root / name)), count, count - 1, count, "deflate"
    ) as out:
        out.add_manifests(manifests)
    snapshots = [
        _snapshot(number, f"{location}/metadata/snap-{number}.avro", shape.file_count // count)
        for number in range(1, count + 1)
    ]
    whole = metadata.model_copy(
        update={
            "snapshots": snapshots,
            "current_snapshot_id": count,
            "last_sequence_number": count,
            "refs": {MAIN_BRANCH: SnapshotRef.model_validate({"snapshot-id": count, "type": SnapshotRefType.BRANCH})},
            "snapshot_log": [
                SnapshotLogEntry(snapshot_id=each.snapshot_id, timestamp_ms=each.timestamp_ms) for each in snapshots
            ],
        }
    )
    path = NATIVE_METADATA
    assert isinstance(whole, TableMetadataV2)
    root.joinpath(path).write_text(whole.model_dump_json())
    return f"{location}/{path}"


def _write_manifest(root: Path, metadata: TableMetadata, commit: int, numbers: range, location: str) -> ManifestFile:
    name = f"metadata/{commit:06d}-m0.avro"
    output = PyArrowFileIO().new_output(str(root / name))
    with write_manifest(2, metadata.spec(), metadata.schema(), output, commit, "deflate") as writer:
        for number in numbers:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=commit, data_file=_data_file(File(number), location)
            )
            writer.add_entry(entry)
    manifest = writer.to_manifest_file()
    manifest[0] = f"{location}/{name}"
    # What a commit fills in when it writes the list of manifests.
    manifest[4] = manifest[5] = commit
    return manifest


def _data_file(file: File, location: str) -> DataFile:
    low, high = (datetime.fromisoformat(value.removesuffix("Z")) for value in file.bounds["ts"])
    event = file.bounds["event"][0]
    bounds: list[dict[int, bytes]] = [
        {1: to_bytes(TimestampType(), _micros(ts)), 2: to_bytes(StringType(), event)} for ts in (low, high)
    ]
    data_file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{location}/data/{file.name}",
        file_format=FileFormat.PARQUET,
        partition=Record((low.date() - _EPOCH).days),
        record_count=ROWS,
        file_size_in_bytes=file.size_bytes,
        column_sizes={},
        value_counts=dict.fromkeys((1, 2), ROWS),
        null_value_counts=dict.fromkeys((1, 2), 0),
        nan_value_counts={},
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
    data_file.spec_id = 0
    return data_file


def _micros(moment: datetime) -> int:
    return int((moment - datetime(1970, 1, 1)).total_seconds()) * 1_000_000  # noqa: DTZ001 - as Iceberg's TIMESTAMP


def _snapshot(number: int, manifest_list: str, added: int) -> Snapshot:
    counts = {"added-data-files": added, "added-records": added * ROWS, "added-files-size": added * File(0).size_bytes}
    counts |= {
        "total-data-files": added * number,
        "total-records": added * number * ROWS,
        "total-files-size": added * number * File(0).size_bytes,
        "total-delete-files": 0,
        "total-position-deletes": 0,
        "total-equality-deletes": 0,
    }
    summary = Summary(Operation.APPEND, **{name: str(value) for name, value in counts.items()})
    more: dict[str, Any] = {"parent-snapshot-id": number - 1} if number > 1 else {}
    return Snapshot(
        **{"snapshot-id": number, "sequence-number": number, "timestamp-ms": FIRST_COMMIT_MS + number * STEP_MS},
        **{"manifest-list": manifest_list, "summary": summary, "schema-id": 0},
        **more,
    )
