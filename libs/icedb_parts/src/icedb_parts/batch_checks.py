"""The checks that a batch must pass before any of its rows is written (I5), for all batches of a unit at once.

In order: every line is a JSON object; the keys can be columns; the values fit one type for each column; every
value survives its cast; every row has its partition values; the partitions can be keys. A
batch stands or falls on its own: what is wrong with one never touches the others.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from icedb_log.key_rules import MAX_KEY_BYTES
from icedb_log.keys import TablePaths
from icedb_log.partition_path import encode_partition_value
from icedb_log.table_config import TableConfig, check_column_name

from icedb_parts.errors import BatchRejected
from icedb_parts.event_frame import BatchKeys, ColumnEvidence, EventFrame, ExampleValue
from icedb_parts.json_casts import CAN_FAIL_TYPES
from icedb_parts.json_types import TAKEN_KINDS, Kind, SchemaBuilder
from icedb_parts.limits import MAX_PARTITION_VALUE_BYTES, FlushUnitLimits
from icedb_parts.transforms import find_type_problem

_SHOWN_CHARS: Final = 80
_ENCODED_GROWTH: Final = 3
"""A byte of a partition value becomes at most three characters of a key."""
_FILE_NAME_BYTES: Final = 64
"""Room for a data file's own name in its key."""


class UnitChecks:
    """Decides about the batches of one unit, and prepares what is written.

    Attributes:
        rejected: Reason of each batch that was rejected so far.
        accepted: Batches that passed, in order.
        new_kinds: Columns that the schema does not have, with the kinds of their values in accepted batches.
        output_columns: Columns that the data files get, with types: the schema's first, then the new ones.
        partitions: Distinct partitions of accepted batches, as texts.
        partition_paths: Their encoded paths.
    """

    def __init__(
        self,
        config: TableConfig,
        paths: TablePaths,
        schema: Mapping[str, str],
        limits: FlushUnitLimits,
        frame: EventFrame,
    ) -> None:
        self._config = config
        self._paths = paths
        self._schema = schema
        self._limits = limits
        self._frame = frame
        self._builder = SchemaBuilder(schema)
        self._evidence: dict[int, dict[str, ColumnEvidence]] = {}
        self._columns: list[str] = []
        self.rejected: dict[int, str] = {}
        self.accepted: tuple[int, ...] = ()
        self.new_kinds: dict[str, Kind] = {}
        self.output_columns: dict[str, str] = {}
        self.partitions: list[tuple[str, ...]] = []
        self.partition_paths: tuple[str, ...] = ()

    def run(self, batches: Sequence[int]) -> None:
        """Check the batches, which have at least one row each, in order."""
        self.accepted = tuple(batches)
        self._check_lines()
        columns = self._columns = self._check_keys()
        if not self.accepted:
            return
        self._frame.extract(self.accepted, columns)
        self._evidence = self._frame.read_evidence()
        self._check_types(columns)
        if not self.accepted:
            return
        self._cast(columns)
        self._check_casts()
        self._check_partitions()
        self._finish(columns)

    def read_batch_partitions(self) -> dict[int, tuple[int, ...]]:
        """Return the partitions of each accepted batch, as ascending places in ``partitions``."""
        places = {values: place for place, values in enumerate(self.partitions)}
        found: dict[int, list[int]] = {batch: [] for batch in self.accepted}
        for batch, values in self._frame.read_batch_partitions(self.accepted, len(self._config.partition)):
            found[batch].append(places[values])
        return {batch: tuple(sorted(ordinals)) for batch, ordinals in found.items()}

    def keep(self, batches: Collection[int]) -> None:
        """Go on with some of the accepted batches only, at least one; the others wait for another commit."""
        self.accepted = tuple(batch for batch in self.accepted if batch in batches)
        self._finish(self._columns)

    def _reject(self, problems: Mapping[int, str]) -> None:
        self.rejected.update(problems)
        self.accepted = tuple(batch for batch in self.accepted if batch not in problems)

    def _check_lines(self) -> None:
        self._reject(
            {
                batch: f"line {number} is not a JSON object ({self._frame.explain_malformed(batch, number)}); "
                "send one JSON object per line"
                for batch, number in self._frame.find_malformed().items()
            }
        )

    def _check_keys(self) -> list[str]:
        """Check the keys of each batch; return the union of those of accepted batches, in order."""
        spelling = {name.lower(): name for name in self._schema}
        columns: dict[str, None] = {}
        problems: dict[int, str] = {}
        found = self._frame.read_keys(self.accepted, max_count=self._limits.batch_columns)
        for batch in self.accepted:
            try:
                self._check_batch_keys(found[batch], spelling)
            except BatchRejected as error:
                problems[batch] = str(error)
                continue
            names = found[batch].names
            spelling.update((name.lower(), name) for name in names)
            columns.update(dict.fromkeys(names))
        self._reject(problems)
        return list(columns)

    def _check_batch_keys(self, keys: BatchKeys, spelling: Mapping[str, str]) -> None:
        if keys.has_duplicates:
            raise BatchRejected("an event has the same key twice; which value counts is not defined: send it once")
        if keys.count > self._limits.batch_columns:
            raise BatchRejected(
                f"{keys.count} different top-level keys; the limit is {self._limits.batch_columns}: "
                "put keys that vary into a nested object, which is kept as JSON text"
            )
        own_spelling: dict[str, str] = {}
        reserved = {field.name.lower(): field for field in self._config.partition if field.name != field.column}
        for name in keys.names:
            try:
                check_column_name(name)
            except ValueError as error:
                raise BatchRejected(str(error)) from error
            other = own_spelling.setdefault(name.lower(), spelling.get(name.lower(), name))
            if other != name:
                raise BatchRejected(
                    f"columns {other!r} and {name!r} differ only in case, which query engines cannot tell apart: "
                    "use one spelling"
                )
            if name.lower() in reserved:
                raise BatchRejected(
                    f"column {name!r} is named like the partition {reserved[name.lower()]}: readers of Hive partitions "
                    "would take one for the other; rename the column"
                )
        column_count = len(spelling.keys() | own_spelling.keys())
        if column_count > self._limits.table_columns:
            raise BatchRejected(
                f"with this batch the table would have {column_count} columns; the limit is "
                f"{self._limits.table_columns}: put keys that vary into a nested object"
            )

    def _check_types(self, columns: Sequence[str]) -> None:
        problems: dict[int, str] = {}
        for batch in self.accepted:
            evidence = self._evidence.get(batch, {})
            reason = self._find_type_problem(batch, [name for name in columns if name in evidence], evidence)
            if reason:
                problems[batch] = reason
                continue
            for name, found in evidence.items():
                self._builder.add(name, found.kinds)
        self._reject(problems)

    def _find_type_problem(
        self, batch: int, columns: Iterable[str], evidence: Mapping[str, ColumnEvidence]
    ) -> str | None:
        for name in columns:
            kinds = evidence[name].kinds
            clash = self._builder.find_clash(name, kinds)
            if clash:
                taken = TAKEN_KINDS.get(self._builder.type_of(name) or "", Kind(0))
                return f"{clash} ({_show(self._frame.find_kind(batch, name, kinds & ~taken))})"
        if not evidence and not self._schema:
            return "no event has a value that is not null, and the table has no column yet: send at least one value"
        for field in self._config.partition:
            if field.column not in evidence:
                number = self._frame.find_missing(batch, field.column)
                return self._missing_reason(field.column, str(field), number)
            united = self._builder.type_with(field.column, evidence[field.column].kinds)
            problem = find_type_problem(field, united or "")
            if problem:
                return problem
        return None

    def _cast(self, columns: Sequence[str]) -> None:
        types = {name: self._builder.type_of(name) for name in columns}
        self._frame.cast(
            self.accepted,
            {name: sql_type for name, sql_type in types.items() if sql_type},
            self._config.partition,
        )

    def _check_casts(self) -> None:
        columns = [name for name in self._frame.typed_columns if self._builder.type_of(name) in CAN_FAIL_TYPES]
        counts = self._frame.count_cast(columns) if columns else {}
        problems: dict[int, str] = {}
        for batch in self.accepted:
            for name in columns:
                found = self._evidence[batch].get(name)
                if found and counts[batch][name] != found.value_count:
                    example = self._frame.find_failed_cast(batch, name)
                    problems[batch] = (
                        f"column {name!r} is {self._builder.type_of(name)}, and a value of this batch is none "
                        f"({_show(example)}): {_remedy(self._builder.type_of(name))}"
                    )
                    break
        self._reject(problems)

    def _check_partitions(self) -> None:
        partition = self._config.partition
        if not partition:
            return
        missing = self._frame.count_missing(partition)
        problems: dict[int, str] = {}
        for batch in self.accepted:
            lacking = [field for field, count in zip(partition, missing[batch], strict=True) if count]
            if lacking:
                number = self._frame.find_missing(batch, lacking[0].column)
                problems[batch] = self._missing_reason(lacking[0].column, str(lacking[0]), number)
        self._reject(problems)
        self._check_partition_lengths()

    def _check_partition_lengths(self) -> None:
        partition = self._config.partition
        room = MAX_KEY_BYTES - len(self._paths.data_prefix) - _FILE_NAME_BYTES
        room -= sum(len(field.name) + 2 for field in partition)
        # Shorter ones cannot exceed any bound, however much they grow by their encoding.
        min_bytes = min(MAX_PARTITION_VALUE_BYTES, max(0, room)) // _ENCODED_GROWTH
        problems: dict[int, str] = {}
        for batch, values in self._frame.read_long_partitions(self.accepted, len(partition), min_bytes=min_bytes):
            encoded = [encode_partition_value(value) for value in values]
            longest = max(range(len(partition)), key=lambda index: len(encoded[index]))
            if len(encoded[longest]) > MAX_PARTITION_VALUE_BYTES or sum(map(len, encoded)) > room:
                field = partition[longest]
                problems.setdefault(
                    batch,
                    f"partition {field}: value {values[longest][:_SHOWN_CHARS]!r} of column {field.column!r} has "
                    f"{len(encoded[longest])} bytes in a key; the limit is {MAX_PARTITION_VALUE_BYTES} bytes a value "
                    f"and {room} a key: use truncate[n] or bucket[n]",
                )
        self._reject(problems)

    def _finish(self, columns: Sequence[str]) -> None:
        if not self.accepted:
            return
        kinds: dict[str, Kind] = {}
        for batch in self.accepted:
            for name, found in self._evidence.get(batch, {}).items():
                kinds[name] = kinds.get(name, Kind(0)) | found.kinds
        # A type may rest on a batch that was rejected for a value later: the evidence stays with the type.
        self.new_kinds = {
            name: self._builder.new_kinds[name] for name in columns if name in kinds and name not in self._schema
        }
        known = tuple(name for name in self._schema if name in kinds)
        names = (*known, *self.new_kinds) or (next(iter(self._schema)),)
        self.output_columns = {name: self._builder.type_of(name) or "" for name in names}
        self.partitions = self._frame.read_partitions(self.accepted, len(self._config.partition))
        self.partition_paths = tuple(
            "/".join(
                f"{field.name}={encode_partition_value(value)}"
                for field, value in zip(self._config.partition, values, strict=True)
            )
            for values in self.partitions
        )

    def _missing_reason(self, column: str, field: str, line_number: int) -> str:
        return (
            f"line {line_number}: column {column!r} is missing or null, and partition {field} of table "
            f"{self._paths.name} needs it: send it with every event"
        )


def _show(example: ExampleValue) -> str:
    text = example.text if len(example.text) <= _SHOWN_CHARS else f"{example.text[:_SHOWN_CHARS]}…"
    return f"line {example.line_number}: {text}"


def _remedy(sql_type: str | None) -> str:
    if sql_type == "TIMESTAMP":
        return "send ISO-8601 text such as 2023-06-07T13:00:00Z, or integer unix milliseconds, of the years 1 to 9999"
    if sql_type == "DATE":
        return "send text such as 2023-06-07"
    return "send numbers in the range of a 64-bit float"
