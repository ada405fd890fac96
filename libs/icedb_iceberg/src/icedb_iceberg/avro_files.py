"""Manifests and manifest lists as Avro files: encoding and decoding. Pure.

Source: the specification of Iceberg, format version 2, "Manifests" and "Manifest lists". An entry, and a row of a list,
is the record itself, as a dictionary. Every entry says its sequence numbers: nothing is inherited, since no manifest is
written before the number of its snapshot is known.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from io import BytesIO
from typing import Any, Final

import fastavro
import orjson
from icedb_log.errors import CorruptLog

from icedb_iceberg.column_types import SpecField, count_days, count_micros

EXISTING: Final = 0
ADDED: Final = 1
DELETED: Final = 2

_CODEC: Final = "deflate"
_AVRO_TYPES: Final[Mapping[str, Any]] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "string": "string",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
}
_NOT_AVRO: Final = re.compile(r"[^A-Za-z0-9_]")


def _field(name: str, kind: Any, number: int, *, is_optional: bool = False) -> dict[str, Any]:
    if is_optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": number}
    return {"name": name, "type": kind, "field-id": number}


def _map(key_id: int, value_id: int, value: str) -> dict[str, Any]:
    fields = [_field("key", "int", key_id), _field("value", value, value_id)]
    return {
        "type": "array",
        "logicalType": "map",
        "items": {"type": "record", "name": f"k{key_id}_v{value_id}", "fields": fields},
    }


def _array(element_id: int, element: Any) -> dict[str, Any]:
    return {"type": "array", "items": element, "element-id": element_id}


def _make_entry_schema(spec: Sequence[SpecField]) -> dict[str, Any]:
    partition = [
        _field(avro_name(each.name), _AVRO_TYPES[each.result_type], each.field_id, is_optional=True) for each in spec
    ]
    data_file = [
        _field("content", "int", 134),
        _field("file_path", "string", 100),
        _field("file_format", "string", 101),
        _field("partition", {"type": "record", "name": "r102", "fields": partition}, 102),
        _field("record_count", "long", 103),
        _field("file_size_in_bytes", "long", 104),
        _field("column_sizes", _map(117, 118, "long"), 108, is_optional=True),
        _field("value_counts", _map(119, 120, "long"), 109, is_optional=True),
        _field("null_value_counts", _map(121, 122, "long"), 110, is_optional=True),
        _field("nan_value_counts", _map(138, 139, "long"), 137, is_optional=True),
        _field("lower_bounds", _map(126, 127, "bytes"), 125, is_optional=True),
        _field("upper_bounds", _map(129, 130, "bytes"), 128, is_optional=True),
        _field("key_metadata", "bytes", 131, is_optional=True),
        _field("split_offsets", _array(133, "long"), 132, is_optional=True),
        _field("equality_ids", _array(136, "int"), 135, is_optional=True),
        _field("sort_order_id", "int", 140, is_optional=True),
    ]
    fields = [
        _field("status", "int", 0),
        _field("snapshot_id", "long", 1, is_optional=True),
        _field("sequence_number", "long", 3, is_optional=True),
        _field("file_sequence_number", "long", 4, is_optional=True),
        _field("data_file", {"type": "record", "name": "r2", "fields": data_file}, 2),
    ]
    return {"type": "record", "name": "manifest_entry", "fields": fields}


_SUMMARY: Final = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field("contains_null", "boolean", 509),
        _field("contains_nan", "boolean", 518, is_optional=True),
        _field("lower_bound", "bytes", 510, is_optional=True),
        _field("upper_bound", "bytes", 511, is_optional=True),
    ],
}
_LIST: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "manifest_file",
        "fields": [
            _field("manifest_path", "string", 500),
            _field("manifest_length", "long", 501),
            _field("partition_spec_id", "int", 502),
            _field("content", "int", 517),
            _field("sequence_number", "long", 515),
            _field("min_sequence_number", "long", 516),
            _field("added_snapshot_id", "long", 503),
            _field("added_files_count", "int", 504),
            _field("existing_files_count", "int", 505),
            _field("deleted_files_count", "int", 506),
            _field("added_rows_count", "long", 512),
            _field("existing_rows_count", "long", 513),
            _field("deleted_rows_count", "long", 514),
            _field("partitions", _array(508, _SUMMARY), 507, is_optional=True),
            _field("key_metadata", "bytes", 519, is_optional=True),
        ],
    }
)


_URIS: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field("status", "int", 0),
            _field("data_file", {"type": "record", "name": "r2", "fields": [_field("file_path", "string", 100)]}, 2),
        ],
    }
)
"""What is read of an entry that is only looked for."""


def avro_name(name: str) -> str:
    """Return the name of a partition field as Avro takes it; engines go by its number."""
    name = _NOT_AVRO.sub(lambda match: f"_x{ord(match[0]):X}", name)
    return f"_{name}" if name[0].isdigit() else name


class ManifestCodec:
    """Encodes manifests of one spec.

    Args:
        spec_id: Number of the spec.
        spec: Its fields.
        schema: Of the table, in Iceberg's JSON, with its number.

    Attributes:
        spec_id: Number of the spec.
        names: Its fields, each with its name in a partition's record.
    """

    def __init__(self, spec_id: int, spec: Sequence[SpecField], schema: Mapping[str, Any]) -> None:
        self.spec_id = spec_id
        self.names = [(each, avro_name(each.name)) for each in spec]
        self._avro = fastavro.parse_schema(_make_entry_schema(spec))
        self._metadata = {
            "schema": orjson.dumps(schema).decode(),
            "schema-id": str(schema["schema-id"]),
            "partition-spec": orjson.dumps([each.json for each in spec]).decode(),
            "partition-spec-id": str(spec_id),
            "format-version": "2",
            "content": "data",
        }

    def encode(self, name: str, entries: Iterable[Mapping[str, Any]]) -> bytes:
        """Return a manifest.

        Args:
            name: Of its object; unique, as the marks between its blocks are made of it.
            entries: What it holds.
        """
        return _encode(self._avro, name, entries, self._metadata)


def decode_manifest(body: bytes, key: str) -> list[dict[str, Any]]:
    """Return the entries of a manifest that was written here. Raises CorruptLog if it cannot be read."""
    entries = _decode(body, key)
    for entry in entries:
        partition = entry["data_file"]["partition"]
        for name, value in partition.items():
            if isinstance(value, datetime):
                partition[name] = count_micros(value.replace(tzinfo=None))
            elif isinstance(value, date):
                partition[name] = count_days(value)
    return entries


def decode_uris(body: bytes, key: str) -> list[str]:
    """Return the URIs of the live files in a manifest: much faster than all of it. Raises as above."""
    return [entry["data_file"]["file_path"] for entry in _decode(body, key, schema=_URIS) if entry["status"] != DELETED]


def encode_list(name: str, rows: Iterable[Mapping[str, Any]], *, snapshot: Mapping[str, Any]) -> bytes:
    """Return the manifest list of a snapshot, given as Iceberg's JSON has it."""
    parent = snapshot.get("parent-snapshot-id")
    metadata = {
        "snapshot-id": str(snapshot["snapshot-id"]),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(snapshot["sequence-number"]),
        "format-version": "2",
    }
    return _encode(_LIST, name, rows, metadata)


def decode_list(body: bytes, key: str) -> list[dict[str, Any]]:
    """Return the rows of a manifest list that was written here. Raises CorruptLog if it cannot be read."""
    return _decode(body, key)


def _encode(schema: Any, name: str, records: Iterable[Mapping[str, Any]], metadata: dict[str, str]) -> bytes:
    file = BytesIO()
    marker = hashlib.blake2b(name.encode(), digest_size=16).digest()
    fastavro.writer(file, schema, records, codec=_CODEC, metadata=metadata, sync_marker=marker)
    return file.getvalue()


def _decode(body: bytes, key: str, *, schema: Any = None) -> list[dict[str, Any]]:
    try:
        return list(fastavro.reader(BytesIO(body), schema))  # type: ignore[arg-type]
    except Exception as error:  # the library raises whatever it stumbles over
        raise CorruptLog(
            f"{key}: cannot be read as Avro ({error!r}); all below _icedb/iceberg/ can be made anew: "
            "withdraw what is published (`icedb fsck` says how) and publish again"
        ) from error
