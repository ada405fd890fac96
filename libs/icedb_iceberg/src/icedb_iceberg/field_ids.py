"""Field ids: each column of a table has a number of its own, for ever.

``_icedb/fields.json`` is one object, changed by compare-and-set, and only ever grows: no number is given twice.
Engines find columns by these numbers, so that two
publications that disagreed would show one column's values under another's name. Nested fields, elements, keys and
values have numbers, too. It lies beside ``_icedb/iceberg/``, not in it: what is lost there can be made anew, but a
number with a new meaning could not be taken back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog
from icedb_log.model import EMPTY
from icedb_log.store.object_store import StoredObject
from icedb_log.store.records import CasObject

from icedb_iceberg.column_types import IcebergType, NestedType

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class FieldId:
    """The number of a column or of a part of one.

    Attributes:
        number: The field id.
        parts: Of a nested type, the numbers of what is in it, by name.
    """

    number: int
    parts: Mapping[str, "FieldId"] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class FieldIds:
    """All numbers of a table.

    Attributes:
        last_id: The highest that was ever given.
        columns: By name of the column.
    """

    last_id: int = 0
    columns: Mapping[str, FieldId] = field(default_factory=lambda: EMPTY)

    def grow(self, types: Mapping[str, IcebergType]) -> "FieldIds":
        """Return it with a number for each of some columns; those that have one keep it. Pure."""
        last_id, columns = self.last_id, dict(self.columns)
        for column, kind in types.items():
            columns[column], last_id = _number(kind, columns.get(column), last_id)
        return self if columns == self.columns else replace(self, last_id=last_id, columns=columns)


def give_field_ids(table: Table, types: Mapping[str, IcebergType]) -> FieldIds:
    """Return the numbers of a table's columns; those that have none get one now. Idempotent.

    One request where all have one, else a write more.

    Args:
        table: The table.
        types: Of the columns that Iceberg can say.

    Raises:
        CorruptLog: The object cannot be understood.
        CommitConflict: Others kept changing it.
        Unavailable: The store did not answer.
    """
    record = CasObject(table.store, table.paths.fields_key, _decode, _encode)
    return record.update(lambda known: (known or FieldIds()).grow(types)).state


def _number(kind: IcebergType, known: FieldId | None, last_id: int) -> tuple[FieldId, int]:
    """Return the number of a field, and the highest one that is given then."""
    if known is None:
        last_id += 1
    number = last_id if known is None else known.number
    if isinstance(kind, str):
        return FieldId(number) if known is None else known, last_id
    parts = {} if known is None else dict(known.parts)
    for name, part in kind.parts:
        parts[name], last_id = _number(part, parts.get(name), last_id)
    return FieldId(number, parts), last_id


def _decode(stored: StoredObject) -> FieldIds:
    key = stored.info.key
    try:
        said = orjson.loads(stored.body)
        if said["format"] != _FORMAT:
            raise CorruptLog(f"{key}: format {said['format']} of field ids is unknown; use a newer release")
        columns = {name: _decode_one(one) for name, one in said["columns"].items()}
        found = FieldIds(int(said["last_id"]), columns)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptLog(
            f"{key}: cannot be understood ({error!r}); a person must look: it says which column is which"
            " for engines that read this table by Iceberg"
        ) from error
    numbers = [number for one in columns.values() for number in _numbers(one)]
    if len(set(numbers)) != len(numbers) or not all(0 < number <= found.last_id for number in numbers):
        raise CorruptLog(f"{key}: gives one number twice, or one above its highest; a person must look")
    return found


def _decode_one(said: Any) -> FieldId:
    parts = {name: _decode_one(one) for name, one in said.get("parts", EMPTY).items()}
    return FieldId(int(said["id"]), parts)


def _numbers(one: FieldId) -> list[int]:
    return [one.number, *(number for part in one.parts.values() for number in _numbers(part))]


def _encode(ids: FieldIds) -> bytes:
    columns = {name: _encode_one(one) for name, one in ids.columns.items()}
    said = {"format": _FORMAT, "last_id": ids.last_id, "columns": columns}
    return orjson.dumps(said, option=orjson.OPT_INDENT_2)


def _encode_one(one: FieldId) -> dict[str, Any]:
    parts = {name: _encode_one(part) for name, part in one.parts.items()}
    return {"id": one.number, "parts": parts} if parts else {"id": one.number}


def describe_type(kind: IcebergType, known: FieldId) -> Any:
    """Return a type as Iceberg's JSON has it."""
    if isinstance(kind, str):
        return kind
    described = {name: describe_type(part, known.parts[name]) for name, part in kind.parts}
    if kind.kind == "struct":
        fields = [
            {"id": known.parts[name].number, "name": name, "required": False, "type": inner}
            for name, inner in described.items()
        ]
        return {"type": "struct", "fields": fields}
    said: dict[str, Any] = {"type": kind.kind}
    for name, inner in described.items():
        said |= {f"{name}-id": known.parts[name].number, name: inner}
    # The key of a map is never null; whether anything else is, nobody has promised.
    return said | {"value-required" if kind.kind == "map" else "element-required": False}


def map_names(kind: IcebergType, known: FieldId, name: str) -> dict[str, Any]:
    """Return a field of ``schema.name-mapping.default``: files carry names, and no field ids."""
    said: dict[str, Any] = {"field-id": known.number, "names": [name]}
    if isinstance(kind, NestedType):
        said["fields"] = [map_names(part, known.parts[inner], inner) for inner, part in kind.parts]
    return said
