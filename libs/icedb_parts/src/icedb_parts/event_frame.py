"""The events of one unit inside the native engine, and every question that is asked about them.

Three stages: *lines* (text), *raw* (one column of JSON text for each top-level key) and *typed* (SQL types and
partition values). Each question is one query over all batches; what is fetched is bounded by the number of
batches, columns and partitions, never by the number of rows. Batches are numbered by their place in the unit.
Columns are addressed as ``c0``, ``c1``, … so that no user's name ever meets a name of ours.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa
from icedb_log.table_config import PartitionField

from icedb_parts.json_casts import cast_sql, kind_sql
from icedb_parts.json_types import Kind
from icedb_parts.part_files import ORDINAL
from icedb_parts.sql import quote_name, quote_text
from icedb_parts.staged_lines import BatchLines
from icedb_parts.transforms import transform_sql

ROWS_PER_CHUNK: Final = 65_536
_LINES_SCHEMA: Final = pa.schema([("batch", pa.int32()), ("no", pa.int32()), ("line", pa.string())])


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """The top-level keys of one batch.

    Attributes:
        names: Distinct, in the order of the first event; empty when there are more than were asked for.
        count: Number of distinct keys.
        has_duplicates: Whether some event has a key twice.
    """

    names: tuple[str, ...]
    count: int
    has_duplicates: bool


@dataclass(frozen=True, slots=True)
class ColumnEvidence:
    """What the values of one column of one batch are."""

    kinds: Kind
    value_count: int


@dataclass(frozen=True, slots=True)
class ExampleValue:
    """One offending value: its line and its JSON text, cut."""

    line_number: int
    text: str


class EventFrame:
    """The events of one unit. Lives as long as the engine's connection."""

    def __init__(self, engine: Any, batches: Mapping[int, BatchLines]) -> None:
        self._engine = engine
        self._columns: dict[str, str] = {}
        self._types: dict[str, str] = {}
        lines = pa.Table.from_batches(
            [
                pa.record_batch(
                    [pa.array([number] * len(batch.lines), pa.int32()), batch.numbers, batch.lines],
                    schema=_LINES_SCHEMA,
                )
                for number, batch in batches.items()
            ],
            schema=_LINES_SCHEMA,
        )
        engine.register("lines", lines)

    @property
    def typed_columns(self) -> tuple[str, ...]:
        """The columns of the typed stage."""
        return tuple(self._types)

    def find_malformed(self) -> dict[int, int]:
        """Return the first line of each batch that is not a JSON object."""
        rows = self._fetch(
            r"SELECT batch, min(no) FROM lines "
            r"WHERE NOT (json_valid(line) AND starts_with(ltrim(line, E' \t\r'), '{')) GROUP BY batch"
        )
        return dict(rows)

    def explain_malformed(self, batch: int, line_number: int) -> str:
        """Return the engine's words about one line that is not a JSON object."""
        where = f"FROM lines WHERE batch = {batch} AND no = {line_number}"
        try:
            ((kind,),) = self._fetch(f"SELECT json_type(line) {where}")
        except duckdb.Error as error:
            return str(error).partition("\n")[0].rpartition("Error: ")[2][:200]
        return f"it is a JSON {str(kind).lower()}"

    def read_keys(self, batches: Collection[int], *, max_count: int) -> dict[int, BatchKeys]:
        """Return the top-level keys of some batches; of those with too many only the count."""
        rows = self._fetch(
            f"""
            WITH sets AS (
                SELECT batch, json_keys(line) AS keys, min(no) AS no FROM lines WHERE {_among(batches)} GROUP BY ALL
            ), keys AS (
                SELECT DISTINCT batch, unnest(keys) AS key FROM sets
            ), batches AS (
                SELECT batch, arg_min(keys, no) AS first_keys, bool_or(len(keys) <> len(list_distinct(keys))) AS twice
                FROM sets GROUP BY batch
            )
            SELECT batch, any_value(first_keys[:{max_count}]), any_value(twice), count(key),
                CASE WHEN count(key) <= {max_count} THEN list(key) END
            FROM batches LEFT JOIN keys USING (batch) GROUP BY batch
            """  # noqa: S608 - numbers only
        )
        found = {}
        for batch, first_keys, has_duplicates, count, names in rows:
            place = {name: index for index, name in enumerate(first_keys)}
            ordered = sorted(names or (), key=lambda name: (place.get(name, len(place)), name))
            found[batch] = BatchKeys(tuple(name for name in ordered if name is not None), count, has_duplicates)
        return found

    def extract(self, batches: Collection[int], columns: Sequence[str]) -> None:
        """Make the raw stage: one column of JSON text for each key."""
        self._columns = {name: f"c{index}" for index, name in enumerate(columns)}
        structure = quote_text(json.dumps(dict.fromkeys(columns, "JSON"), ensure_ascii=False))
        outputs = "".join(f", event.{quote_name(name)} AS {column}" for name, column in self._columns.items())
        event = f"from_json(line, {structure})" if columns else "NULL"
        self._engine.execute(
            f"CREATE TEMP TABLE raw AS SELECT batch, no{outputs} "  # noqa: S608 - names are quoted
            f"FROM (SELECT batch, no, {event} AS event FROM lines WHERE {_among(batches)})"
        )
        self._engine.unregister("lines")

    def read_evidence(self) -> dict[int, dict[str, ColumnEvidence]]:
        """Return the kinds of values of each batch and column; columns without a value are left out."""
        outputs = "".join(f", bit_or({kind_sql(column)}), count({column})" for column in self._columns.values())
        evidence: dict[int, dict[str, ColumnEvidence]] = {}
        for batch, *numbers in self._fetch(f"SELECT batch{outputs} FROM raw GROUP BY batch"):  # noqa: S608
            pairs = zip(self._columns, numbers[::2], numbers[1::2], strict=True)
            evidence[batch] = {name: ColumnEvidence(Kind(kinds), count) for name, kinds, count in pairs if count}
        return evidence

    def find_kind(self, batch: int, column: str, kinds: Kind) -> ExampleValue:
        """Return the first value of a batch's column that is of one of the kinds."""
        raw = self._columns[column]
        return self._example(batch, raw, f"({kind_sql(raw)}) & {int(kinds)} <> 0")

    def cast(self, batches: Collection[int], types: Mapping[str, str], partition: Sequence[PartitionField]) -> None:
        """Make the typed stage: the columns of ``types``, and as ``p0``, ``p1``, … the partition values."""
        self._types = dict(types)
        casts = "".join(
            f", {cast_sql(self._columns[name], sql_type)} AS {self._columns[name]}" for name, sql_type in types.items()
        )
        values = "".join(f", {self._partition_sql(field)} AS p{index}" for index, field in enumerate(partition))
        self._engine.execute(
            f"CREATE TEMP TABLE typed AS SELECT *{values} "  # noqa: S608 - names are ours
            f"FROM (SELECT batch{casts} FROM raw WHERE {_among(batches)})"
        )

    def _partition_sql(self, field: PartitionField) -> str:
        if field.column not in self._types:
            return "CAST(NULL AS VARCHAR)"
        return transform_sql(field, self._columns[field.column], self._types[field.column])

    def count_cast(self, columns: Sequence[str]) -> dict[int, dict[str, int]]:
        """Return how many values of each batch and column survived the cast."""
        outputs = "".join(f", count({self._columns[name]})" for name in columns)
        rows = self._fetch(f"SELECT batch{outputs} FROM typed GROUP BY batch")  # noqa: S608
        return {batch: dict(zip(columns, counts, strict=True)) for batch, *counts in rows}

    def find_failed_cast(self, batch: int, column: str) -> ExampleValue:
        """Return the first value of a batch's column that did not survive the cast."""
        raw = self._columns[column]
        return self._example(batch, raw, f"{raw} IS NOT NULL AND ({cast_sql(raw, self._types[column])}) IS NULL")

    def find_missing(self, batch: int, column: str) -> int:
        """Return the first line of a batch without a value in a column."""
        if column not in self._columns:
            ((number,),) = self._fetch(f"SELECT min(no) FROM raw WHERE batch = {batch}")  # noqa: S608
        else:
            return self._example(batch, "''", f"{self._columns[column]} IS NULL").line_number
        return int(number)

    def count_missing(self, partition: Sequence[PartitionField]) -> dict[int, list[int]]:
        """Return for each batch how many rows lack each partition value."""
        outputs = "".join(f", count(*) - count(p{index})" for index in range(len(partition)))
        rows = self._fetch(f"SELECT batch{outputs} FROM typed GROUP BY batch")  # noqa: S608
        return {batch: counts for batch, *counts in rows}

    def read_batch_partitions(
        self, batches: Collection[int], partition_count: int
    ) -> list[tuple[int, tuple[str, ...]]]:
        """Return each batch with each of its partitions."""
        if not partition_count:
            return [(batch, ()) for batch in batches]
        values = ", ".join(f"p{index}" for index in range(partition_count))
        rows = self._fetch(f"SELECT DISTINCT batch, {values} FROM typed WHERE {_among(batches)}")  # noqa: S608
        return [(batch, tuple(texts)) for batch, *texts in rows]

    def read_long_partitions(
        self, batches: Collection[int], partition_count: int, *, min_bytes: int
    ) -> list[tuple[int, tuple[str, ...]]]:
        """Return each batch with each of its partitions whose values have at least ``min_bytes`` bytes."""
        values = ", ".join(f"p{index}" for index in range(partition_count))
        total = " + ".join(f"strlen(p{index})" for index in range(partition_count))
        rows = self._fetch(
            f"SELECT DISTINCT batch, {values} FROM typed "  # noqa: S608
            f"WHERE {_among(batches)} AND {total} >= {min_bytes} ORDER BY ALL"
        )
        return [(batch, tuple(texts)) for batch, *texts in rows]

    def read_partitions(self, batches: Collection[int], partition_count: int) -> list[tuple[str, ...]]:
        """Return the distinct partitions of some batches, ascending."""
        if not partition_count:
            return [()]
        values = ", ".join(f"p{index}" for index in range(partition_count))
        rows = self._fetch(
            f"SELECT DISTINCT {values} FROM typed WHERE {_among(batches)} ORDER BY ALL"  # noqa: S608
        )
        return [tuple(row) for row in rows]

    def stream_sorted(
        self,
        batches: Collection[int],
        *,
        columns: Mapping[str, str],
        sort: Sequence[str],
        partitions: Sequence[tuple[str, ...]],
    ) -> Any:
        """Return the typed rows of some batches as a stream of record batches. Ends the raw stage.

        Args:
            batches: Whose rows.
            columns: What follows the ordinal of the partition, with types; NULL where this frame has no such column.
            sort: Sorted by partition, then by these, nulls last.
            partitions: What :meth:`read_partitions` returned for the same batches.
        """
        fields = [f"p{index}" for index in range(len(partitions[0]))]
        keys = pa.table(
            {
                **{
                    field: pa.array([values[index] for values in partitions], pa.string())
                    for index, field in enumerate(fields)
                },
                ORDINAL: pa.array(range(len(partitions)), pa.int32()),
            }
        )
        self._engine.register("partitions", keys)
        self._engine.execute("DROP TABLE raw")
        joined = f"JOIN partitions USING ({', '.join(fields)})" if fields else "CROSS JOIN partitions"
        outputs = "".join(
            f", {self._columns[name] if name in self._types else f'CAST(NULL AS {sql_type})'} AS {quote_name(name)}"
            for name, sql_type in columns.items()
        )
        order = "".join(f", {self._columns[name]} NULLS LAST" for name in sort if name in self._types)
        self._engine.execute(
            f"SELECT {ORDINAL}{outputs} FROM typed {joined} WHERE {_among(batches)} "  # noqa: S608 - names are quoted
            f"ORDER BY {ORDINAL}{order}"
        )
        return self._engine.to_arrow_reader(ROWS_PER_CHUNK)

    def _example(self, batch: int, raw: str, condition: str) -> ExampleValue:
        ((number, text),) = self._fetch(
            f"SELECT no, CAST({raw} AS VARCHAR) FROM raw "  # noqa: S608
            f"WHERE batch = {batch} AND {condition} ORDER BY no LIMIT 1"
        )
        return ExampleValue(number, text)

    def _fetch(self, query: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._engine.execute(query).fetchall()
        return rows


def _among(batches: Collection[int]) -> str:
    return f"batch IN ({', '.join(str(batch) for batch in batches)})" if batches else "false"
