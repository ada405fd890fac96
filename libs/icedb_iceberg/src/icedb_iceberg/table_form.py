"""A table in Iceberg's words: its schema, partition specs and sort order. Pure.

**Partition spec.** A partition field is said only if Iceberg's transform gives the same value for every row: the day of
a UTC timestamp does; our bucket (MD5) does not, nor does ``day`` over a BIGINT. ``truncate`` is left out for DuckDB's
sake (1.5.5), which cuts text by graphemes, and wraps round where the multiple below a number is no BIGINT: it finds no
row where there are some. What is left out prunes by bounds.

A data file whose path does not say every value of the spec (files of other writers), and whose bounds do not either,
lies in a spec without fields, number 0, which every table has: a file in the wrong partition would be rows that are
lost. So does one with the day or the month of a timestamp from before 1970, which DuckDB rounds towards 1970.

**Sort order.** That of new data files: ascending, nulls last. No data file says that it is sorted, since files that
were imported as they are may not be.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from icedb_log.model import FileMarker
from icedb_log.table.file_domains import DomainReader
from icedb_log.table.partitions import read_partition_values
from icedb_log.table.table_config import TIME_TRANSFORMS, PartitionField, TableConfig, unite_columns

from icedb_iceberg.column_types import (
    IcebergType,
    SpecField,
    find_type,
    parse_type,
    read_partition_value,
    transform_value,
)
from icedb_iceberg.field_ids import FieldIds, describe_type, map_names

FIRST_PARTITION_ID: Final = 1000
"""Number of the first partition field, as in Iceberg."""
UNPARTITIONED: Final = 0
"""Number of the spec without fields."""
_IDENTITIES: Final = frozenset(("string", "long", "boolean", "date", "timestamp"))
_TIMES: Final = frozenset(("date", "timestamp"))
_RESULTS: Final[Mapping[str, str]] = {"year": "int", "month": "int", "day": "date", "hour": "int"}


@dataclass(frozen=True, slots=True)
class TableForm:
    """What publications of a table say of all its files.

    Attributes:
        config: The table's configuration.
        types: Type of each column that Iceberg can say, in the order of the schema.
        ids: Their numbers.
        left_out: Columns that it cannot say, with their SQL type.
        spec: Fields of the partition spec; empty: the table has no partitions that Iceberg could say.
        schema: In Iceberg's JSON, without its number.
        domains: Reads bounds of columns.
        with_bounds: Whether bounds of columns are published.
        narrow: Columns that became wider: bounds of their files may be of the narrow type.
    """

    config: TableConfig
    types: Mapping[str, IcebergType]
    ids: FieldIds
    left_out: Mapping[str, str]
    spec: tuple[SpecField, ...]
    schema: Mapping[str, Any]
    domains: DomainReader
    with_bounds: bool
    narrow: frozenset[str] = frozenset()

    @property
    def name_mapping(self) -> str:
        """The text of ``schema.name-mapping.default``: of columns that are left out, too, as files have them."""
        kinds = {**self.types, **{name: parse_type(sql_type) for name, sql_type in self.left_out.items()}}
        mapping = [map_names(kind, self.ids.columns[name], name) for name, kind in kinds.items()]
        return orjson.dumps(mapping).decode()

    @property
    def sort_fields(self) -> list[dict[str, Any]]:
        """The sort order in Iceberg's JSON, up to the first column that it cannot say."""
        fields = []
        for column in self.config.sort:
            if not isinstance(self.types.get(column), str):
                break
            number = self.ids.columns[column].number
            fields.append(
                {"transform": "identity", "source-id": number, "direction": "asc", "null-order": "nulls-last"}
            )
        return fields

    def read_partition(self, marker: FileMarker, partition: str) -> dict[str, Any] | None:
        """Return the values of a file in the spec, by name; ``None``: they are not known, it belongs to no partition.

        Args:
            marker: The file.
            partition: Its partition path, encoded.
        """
        texts: Mapping[str, str | None] = read_partition_values(partition)
        try:
            values = {each.name: self._read_value(each, marker, texts) for each in self.spec}
        except ValueError:
            return None
        return None if any(_is_rounded_up(each, values[each.name]) for each in self.spec) else values

    def _read_value(self, spec: SpecField, marker: FileMarker, texts: Mapping[str, str | None]) -> Any:
        """Return the partition value of all rows of a file. Raises ValueError if it is not certain."""
        name = spec.field.name
        if name in texts:
            text = texts[name]
            return None if text is None else read_partition_value(spec, text)
        domain = self.domains.read(marker, spec.field.column)
        if not domain.has_values:
            return None
        # Bounds of text are cut.
        if domain.has_nulls or domain.low is None or domain.high is None or spec.source_type == "string":
            raise ValueError(name)
        low, high = transform_value(spec, domain.low), transform_value(spec, domain.high)
        if low != high:
            raise ValueError(name)
        return low


def _is_rounded_up(spec: SpecField, value: Any) -> bool:
    """Whether DuckDB takes the values of a partition for those of a later one."""
    is_rounded = spec.source_type == "timestamp" and spec.field.transform in ("day", "month")
    return is_rounded and value is not None and value < 0


def describe_table(config: TableConfig, schema: Mapping[str, str]) -> tuple[dict[str, IcebergType], dict[str, str]]:
    """Return the type of each column that Iceberg can say, and the SQL type of each that it cannot."""
    columns = unite_columns(schema, config)
    found = {column: find_type(sql_type) for column, sql_type in columns.items()}
    types = {column: kind for column, kind in found.items() if kind is not None}
    return types, {column: columns[column] for column, kind in found.items() if kind is None}


def make_form(
    config: TableConfig, schema: Mapping[str, str], logged: Mapping[str, str], ids: FieldIds, *, with_bounds: bool
) -> TableForm:
    """Return the form of a table.

    Args:
        config: Its configuration.
        schema: Types as readers see them.
        logged: Types of the schema lines.
        ids: Numbers of the columns, all that :func:`describe_table` returns.
        with_bounds: Whether bounds of columns are published.
    """
    types, left_out = describe_table(config, schema)
    fields = [
        {
            "id": ids.columns[name].number,
            "name": name,
            "required": False,
            "type": describe_type(kind, ids.columns[name]),
        }
        for name, kind in types.items()
    ]
    return TableForm(
        config,
        types,
        ids,
        left_out,
        tuple(_make_spec(config, types, ids)),
        {"type": "struct", "fields": fields},
        DomainReader(config, schema),
        with_bounds,
        frozenset(name for name, kind in logged.items() if schema.get(name) != kind),
    )


def _make_spec(config: TableConfig, types: Mapping[str, IcebergType], ids: FieldIds) -> list[SpecField]:
    spec = []
    taken = {name.lower(): name for name in types}
    for place, field in enumerate(config.partition):
        kind = types.get(field.column)
        result = find_result(field, kind) if isinstance(kind, str) else None
        if not isinstance(kind, str) or result is None:
            continue
        clash = taken.get(field.name.lower())
        is_source = clash == field.name == field.column and field.transform == "identity"
        name = field.name
        while name.lower() in taken and not is_source:
            name += "_partition"
        if not is_source:
            taken[name.lower()] = name
        width = "" if field.width is None else f"[{field.width}]"
        transform = f"{field.transform}{width}"
        number = ids.columns[field.column].number
        spec.append(SpecField(field, name, transform, number, FIRST_PARTITION_ID + place, kind, result))
    return spec


def find_result(field: PartitionField, kind: str) -> str | None:
    """Return the type of a partition field's values; ``None``: Iceberg's transform, or an engine's, gives others."""
    if field.transform == "identity":
        return kind if kind in _IDENTITIES else None
    if field.transform in TIME_TRANSFORMS:
        is_said = kind in _TIMES and not (kind == "date" and field.transform == "hour")
        return _RESULTS.get(field.transform) if is_said else None
    return None  # bucket: ours is MD5, Iceberg's Murmur3; truncate: DuckDB's is not Iceberg's
