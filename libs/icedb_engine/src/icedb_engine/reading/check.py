"""The checks that a batch must pass before any of its rows is written (I5), for all batches of a unit at once.

In order: every line is a JSON object; the keys can be columns; the values fit one type for each column; every value
survives its cast; times are no mistakes; every row has its partition values; the partitions can be keys. A batch
stands or falls on its own: what is wrong with one never touches the others. What the fast reader took and a check
objects to is read again the exact way, and all checks are done again, so that the same batches always end the same
way. If the table wants bad rows told from bad batches, the rows at fault are set aside and the checks done again
without them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.store.object_store import MAX_KEY_BYTES
from icedb_log.table.column_names import ColumnNames
from icedb_log.table.decimals import find_decimal
from icedb_log.table.partitions import encode_partition_value
from icedb_log.table.promoted_paths import spell_path
from icedb_log.table.table_config import PartitionField
from icedb_log.table.time_columns import DEFAULT_UNIT, TIME_WORDS, TimeColumn
from icedb_log.table.transforms import bad_time_sql, find_type_problem
from icedb_log.texts import did_you_mean

from icedb_engine.limits import MAX_PARTITION_VALUE_BYTES
from icedb_engine.reading.batches import MAX_OWN_REASONS, BadLines, Fault
from icedb_engine.reading.frame import ColumnEvidence, EventFrame, UnitSections
from icedb_engine.reading.read_json import BadRowQuery, BatchKeys, Example
from icedb_engine.reading.types import Form, Kind, SchemaBuilder, find_odd_kinds, find_taken, infer_type
from icedb_engine.reading.widening import find_way_out, find_widenable
from icedb_engine.work import FlushUnit

_SHOWN_CHARS: Final = 80
_SHOWN_COLUMNS: Final = 10
_ENCODED_GROWTH: Final = 3
"""A byte of a partition value becomes at most three characters of a key."""
_FILE_NAME_BYTES: Final = 64
"""Room for a data file's own name in its key."""
_TEXT_TYPES: Final = ("VARCHAR", "DATE")
"""Columns of these types take the cells of a CSV file as text, whatever they look like."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a batch cannot be taken as it is.

    Attributes:
        reason: In words for its producer: what, where, the remedy; of the first row if it is about rows.
        rows: Those that are at fault; None if it is the batch as a whole.
        what: What is wrong with each of them, without number and value.
        explain: Returns the reason of one of them.
    """

    reason: str
    rows: BadRowQuery | None = None
    what: str = ""
    explain: Callable[[Example], str] | None = None

    @classmethod
    def of_rows(cls, rows: BadRowQuery, what: str, explain: Callable[[Example], str]) -> "Problem":
        """Return a problem whose reason is that of the first row."""
        return cls(explain(rows.find_example()), rows, what, explain)

    def find_faults(self) -> dict[int, Fault]:
        """Return the rows that are at fault, ascending, with what is wrong: the first ones each in its own words."""
        if self.rows is None or self.explain is None:
            return {}
        numbers = sorted(self.rows.find_numbers())
        own = {number: self.explain(self.rows.find_example(number)) for number in numbers[:MAX_OWN_REASONS]}
        return {number: Fault(self.what, own.get(number, "")) for number in numbers}


class UnitChecks:
    """Decides about the batches of one unit, and prepares what is written.

    Attributes:
        widening_requests: Columns that have to become wider, with the wider type; if there are any, nothing is
            decided.
        rejected: Reason of each batch that was rejected so far.
        accepted: Batches that passed, in order.
        left: Batches that were not looked at further, because those before them are enough for a unit.
        bad_rows: Rows that were set aside, of accepted batches that have any.
        row_counts: Rows to be written of each accepted batch.
        misfit_count: Values of these rows that do not fit a promoted column.
        new_kinds: Columns that the schema does not have, with the kinds of their values in accepted batches.
        output_columns: Columns that the data files get, with types: the schema's first, then the new ones.
        partitions: Distinct partitions of accepted batches, as texts.
        partition_paths: Their encoded paths.
    """

    def __init__(self, unit: FlushUnit, frame: EventFrame) -> None:
        self._unit = unit
        self._config = unit.config
        self._schema = unit.schema
        self._limits = unit.limits
        self._frame = frame
        self._sections = UnitSections(unit, frame)
        self._splits_rows = unit.config.on_bad_rows == "quarantine_rows"
        widenable = find_widenable(unit.config, unit.schema)
        self._widenable = {name: wide for name, wide in widenable.items() if name not in unit.refused_widenings}
        self._builder = SchemaBuilder(self._schema, self._widenable)
        self._evidence: dict[int, dict[str, ColumnEvidence]] = {}
        self._columns: list[str] = []
        self._names = ColumnNames(unit.config)
        self._bad_found: dict[int, dict[int, Fault]] = {}
        self._doubts: set[int] = set()
        self.widening_requests: dict[str, str] = {}
        self.rejected: dict[int, str] = {}
        self.accepted: tuple[int, ...] = ()
        self.left: tuple[int, ...] = ()
        self.bad_rows: dict[int, BadLines] = {}
        self.row_counts: dict[int, int] = {}
        self.misfit_count = 0
        self.new_kinds: dict[str, Kind] = {}
        self.output_columns: dict[str, str] = {}
        self.partitions: list[tuple[str, ...]] = []
        self.partition_paths: tuple[str, ...] = ()

    def run(self, batches: Sequence[int], *, is_exact: bool = False) -> None:
        """Check the batches, which have at least one row each, in order; if so, by the exact reader alone."""
        if not is_exact:
            self._sections.read_fast()
        self._check_all(batches)
        while self._mend():
            self._check_all(batches)
        if self.widening_requests:
            return
        for number in batches:
            batch = self._frame.batches[number]
            if batch.bad.row_count and not batch.row_count:
                self.rejected[number] = batch.bad.reason
        self._finish()

    def _check_all(self, batches: Sequence[int]) -> None:
        """Do every check, from the beginning."""
        self._builder = SchemaBuilder(self._schema, self._widenable)
        self._evidence, self.rejected, self.widening_requests = {}, {}, {}
        self._bad_found, self._doubts = {}, set()
        self.accepted = tuple(number for number in batches if self._frame.batches[number].row_count)
        columns = self._columns = self._check_keys()
        if not self.accepted:
            return
        self._evidence = self._read_evidence()
        columns += [name for name in self._sections.fast_names if name not in columns]
        self._check_types()
        if not self.accepted:
            return
        types = {name: self._builder.type_of(name) for name in dict.fromkeys([*self._schema, *columns])}
        found = {name for own in self._evidence.values() for name in own}
        self._frame.cast({name: sql_type for name, sql_type in types.items() if sql_type and name in found})
        self._check_casts()
        self._check_times()
        self._check_partitions()

    def _mend(self) -> bool:
        """Read again exactly what the fast reader took and a check objects to; set bad rows aside.

        Returns whether there was any, so that the checks have to be done again.
        """
        doubtful = (self.rejected.keys() | self._doubts) & self._sections.fast
        if doubtful:
            self._sections.slow_down(doubtful)
            return True
        for number, rows in self._bad_found.items():
            self._frame.batches[number] = self._frame.batches[number].split(rows)
        return bool(self._bad_found)

    @property
    def long_columns(self) -> tuple[str, ...]:
        """Known columns of which an accepted batch has integers beyond 2^53."""
        return self._builder.long_columns

    def read_batch_partitions(self) -> dict[int, tuple[int, ...]]:
        """Return the partitions of each accepted batch, as ascending places in ``partitions``."""
        places = {values: place for place, values in enumerate(self.partitions)}
        found: dict[int, list[int]] = {batch: [] for batch in self.accepted}
        for batch, values in self._frame.read_batch_partitions(self.accepted):
            found[batch].append(places[values])
        return {batch: tuple(sorted(ordinals)) for batch, ordinals in found.items()}

    def keep(self, batches: Collection[int]) -> None:
        """Go on with some of the accepted batches only, at least one; the others wait for another commit."""
        self.accepted = tuple(batch for batch in self.accepted if batch in batches)
        self._finish()

    def _reject(self, problems: Mapping[int, Problem]) -> None:
        for number, problem in problems.items():
            self.rejected[number] = problem.reason
            if self._splits_rows and number not in self._sections.fast:
                rows = problem.find_faults()
                if rows:
                    self._bad_found[number] = rows
        self.accepted = tuple(batch for batch in self.accepted if batch not in problems)

    def _check_keys(self) -> list[str]:
        """Check lines and keys; return the union of the keys that the exact reader found, in order."""
        sections = self._sections
        sections.open_lines(self.accepted)
        if sections.lines is not None:
            malformed = set(sections.lines.find_malformed())
            self._reject({batch: self._describe_malformed(batch) for batch in self.accepted if batch in malformed})
        exact = [number for number in self.accepted if number not in sections.fast]
        keys = sections.read_keys(exact)
        # Who spells a column first is right. The fast reader's batches are taken as if they came first.
        self._names = ColumnNames(self._config, (*self._schema, *sections.fast_names))
        problems: dict[int, Problem] = {}
        for batch in exact:
            problem = self._find_key_problem(batch, keys[batch])
            if problem is None:
                for name in keys[batch].names:
                    self._names.add(name)
            else:
                problems[batch] = problem
        self._reject(problems)
        self._leave_beyond(keys)
        sections.fill_frame(self.accepted, keys)
        accepted = [number for number in exact if number in self.accepted]
        return list(dict.fromkeys(name for number in accepted for name in keys[number].names))

    def _describe_malformed(self, batch: int) -> Problem:
        lines, noun = self._sections.lines, self._noun(batch)
        assert lines is not None  # noqa: S101 - it has found them

        def explain(row: Example) -> str:
            words = lines.explain_malformed(batch, row.row_number)
            return f"{noun} {row.row_number} is not a JSON object ({words}); send one JSON object per {noun}"

        what = f"a {noun} is not a JSON object; send one JSON object per {noun}"
        return Problem.of_rows(lines.malformed(batch), what, explain)

    def _find_key_problem(self, batch: int, keys: BatchKeys) -> Problem | None:
        row_count, lines = self._frame.batches[batch].row_count, self._sections.lines
        if keys.has_duplicates and lines is not None:
            what = "an event has the same key twice; which value counts is not defined: send it once"
            return self._describe_rows(batch, lines.having(batch, (), or_twice=True), what)
        if keys.count > self._limits.batch_columns:
            return Problem(
                f"{keys.count} different top-level keys; the limit is {self._limits.batch_columns}: "
                "put keys that vary into a nested object, which is kept as JSON text"
            )
        if row_count * keys.count > self._limits.unit_cells:
            return Problem(
                f"{row_count} events with {keys.count} different keys together; the limit is "
                f"{self._limits.unit_cells} events times keys: send smaller batches"
            )
        bad = {name: reason for name in keys.names if (reason := self._find_name_problem(name))}
        bad |= self._find_case_problems(keys.names)
        if bad:
            return self._describe_names(batch, bad)
        column_count = len(self._names.plus(keys.names))
        if column_count > self._limits.table_columns:
            self._doubt_order()
            return Problem(
                f"with this batch the table would have {column_count} columns; the limit is "
                f"{self._limits.table_columns}: put keys that vary into a nested object"
            )
        return None

    def _doubt_order(self) -> None:
        """Have all batches of the fast reader read exactly: one was rejected by keys that are known only roughly."""
        if self._sections.fast_names:
            self._doubts |= self._sections.fast

    def _find_name_problem(self, name: str) -> str | None:
        problem = self._names.find_problem(name)
        if problem is not None:
            return f"{problem}; rename the column"
        if self._config.evolution == "strict" and name.lower() not in map(str.lower, self._schema):
            return (
                f"column {name!r} is not in the schema of table {self._config.name}, and the table takes no other "
                "(evolution strict): declare it with `icedb table alter`, or leave it out"
            )
        return None

    def _find_case_problems(self, names: Sequence[str]) -> dict[str, str]:
        own = self._names.plus(names)
        problems = {name: f"{problem}: use one spelling" for name in names if (problem := own.find_case_problem(name))}
        if problems:
            self._doubt_order()
        return problems

    def _describe_names(self, batch: int, bad: Mapping[str, str]) -> Problem:
        name, reason = next(iter(bad.items()))
        lines, noun = self._sections.lines, self._noun(batch)
        if self._frame.batches[batch].forms is not None or lines is None:
            return Problem(reason)

        def explain(row: Example) -> str:
            own = next(bad[key] for key in lines.read_line_keys(batch, row.row_number) if key in bad)
            return f"{noun} {row.row_number}: {own}"

        return Problem(
            f"{noun} {lines.having(batch, (name,)).find_example().row_number}: {reason}",
            lines.having(batch, tuple(bad), or_twice=True),
            reason if len(bad) == 1 else "a field cannot be a column of the table, by its name",
            explain,
        )

    def _leave_beyond(self, keys: Mapping[int, BatchKeys]) -> None:
        """Leave the batches from the first one on with which rows times columns would be above the bound."""
        columns: set[str] = set()
        row_count = 0
        self.left = ()
        fast_columns = self._sections.fast_columns
        for place, batch in enumerate(self.accepted):
            own_count = self._frame.batches[batch].row_count
            if batch in self._sections.fast and own_count * len(fast_columns) > self._limits.unit_cells:
                self._doubts.add(batch)
            row_count += own_count
            columns.update(keys[batch].names if batch in keys else fast_columns)
            if place and row_count * len(columns) > self._limits.unit_cells:
                self.accepted, self.left = self.accepted[:place], self.accepted[place:]
                return

    def _read_evidence(self) -> dict[int, dict[str, ColumnEvidence]]:
        """Return the evidence of each batch; the cells of a CSV column that are no one type count as text."""
        evidence = self._frame.read_evidence()
        for batch, own in evidence.items():
            for name, found in own.items():
                if self._frame.form_of(batch, name) != Form.CELL:
                    continue
                known = self._schema.get(name)
                if known in _TEXT_TYPES or (known is None and infer_type(found.kinds) is None):
                    own[name] = ColumnEvidence(Kind.STRING, found.value_count)
        return evidence

    def _check_types(self) -> None:
        problems: dict[int, Problem] = {}
        last: dict[str, ColumnEvidence] | None = None
        for batch in self.accepted:
            evidence = self._evidence.get(batch, {})
            if evidence is last:
                continue  # the batch before says the same, and was taken
            problem = self._find_type_problem(batch, evidence)
            if problem:
                problems[batch] = problem
                continue
            for name, found in evidence.items():
                self._builder.add(name, found.kinds)
            last = evidence
        self._reject(problems)

    def _find_type_problem(self, batch: int, evidence: Mapping[str, ColumnEvidence]) -> Problem | None:
        clashes = {
            name: clash
            for name in sorted(evidence)
            if (clash := self._builder.find_clash(name, evidence[name].kinds)) is not None
        }
        widening_requests = {name: self._builder.find_wider(name, evidence[name].kinds) for name in clashes}
        wider = {name: wide for name, wide in widening_requests.items() if wide}
        # What no wider column would take comes first: without those rows the others may well become wider.
        for name, clash in clashes.items():
            if name not in wider:
                return self._describe_clash(batch, name, evidence[name].kinds, clash)
        if wider:
            self.widening_requests = {**wider, **self.widening_requests}
            return Problem("waits for wider columns")
        if not evidence and not self._schema:
            return Problem(
                "no event has a value that is not null, and the table has no column yet: send at least one value"
            )
        for field in self._config.partition:
            if field.column not in evidence:
                return self._describe_missing(batch, field)
            united = self._builder.type_with(field.column, evidence[field.column].kinds)
            problem = find_type_problem(field, united or "")
            if problem:
                return Problem(problem)
        return None

    def _describe_clash(self, batch: int, name: str, kinds: Kind, clash: str) -> Problem:
        sql_type, refused = self._builder.type_of(name), self._unit.refused_widenings.get(name)
        odd = (~Kind(0) if self._frame.form_of(batch, name) == Form.CELL else kinds) & ~find_taken(sql_type)
        if sql_type is None:
            odd = find_odd_kinds(kinds, self._frame.find_first_kind(batch, name))
        elif name in self._widenable:
            odd = kinds & odd & ~find_taken(self._widenable[name]) or odd
        if refused is not None:
            clash = f"{clash}; the column cannot become wider: {refused}"
        way_out = ""
        if name not in self._widenable:
            is_refused = refused is not None
            way_out = find_way_out(self._config, self._schema, column=name, kinds=kinds, is_refused=is_refused)
        return Problem.of_rows(
            self._frame.of_kinds(batch, name, odd),
            f"{clash}{way_out}",
            lambda row: f"{clash} ({self._show(batch, row)}){way_out}",
        )

    def _check_casts(self) -> None:
        columns = sorted(self._frame.find_fallible())
        counts = self._frame.count(dict.fromkeys(columns, "{} IS NOT NULL")) if columns else {}
        problems: dict[int, Problem] = {}
        for batch in self.accepted:
            for name in columns:
                found = self._evidence[batch].get(name)
                if found and counts[batch][name] != found.value_count:
                    problems[batch] = self._describe_failed_cast(batch, name)
                    break
        self._reject(problems)

    def _describe_failed_cast(self, batch: int, name: str) -> Problem:
        sql_type, time = self._builder.type_of(name), self._config.times.get(name)
        what = f"column {name!r} is {sql_type}, and a value of this batch is none"

        def explain(row: Example) -> str:
            return f"{what} ({self._show(batch, row)}): {_describe_remedy(sql_type, time, row.text)}"

        whole = f"{what}: {_describe_remedy(sql_type, time)}"
        return Problem.of_rows(self._frame.failed_cast(batch, name), whole, explain)

    def _check_times(self) -> None:
        """Reject batches with times that the table takes for a mistake."""
        types = self._frame.types
        conditions = {
            name: condition
            for name, time in self._config.times.items()
            if name in types and (condition := bad_time_sql(time, types[name])) is not None
        }
        counts = self._frame.count(conditions) if conditions and self.accepted else {}
        bad = {batch: next((name for name, n in counts.get(batch, {}).items() if n), None) for batch in self.accepted}
        self._reject(
            {
                batch: self._describe_bad_time(batch, name, conditions[name])
                for batch, name in bad.items()
                if name is not None
            }
        )

    def _describe_bad_time(self, batch: int, name: str, condition: str) -> Problem:
        time, sql_type = self._config.times[name], self._frame.types[name]

        def explain(row: Example) -> str:
            wrong = time.describe_bad(name, row.text, sql_type=sql_type, table=self._config.name)
            return f"{wrong} ({self._show(batch, row)})"

        what = f"column {name!r} takes times of {time.describe_range()}"
        return Problem.of_rows(self._frame.bad_times(batch, name, condition), what, explain)

    def _check_partitions(self) -> None:
        partition = self._config.partition
        if not partition or not self.accepted:
            return
        missing = self._frame.count_missing()
        problems: dict[int, Problem] = {}
        for batch in self.accepted:
            lacking = [field for field, count in zip(partition, missing[batch], strict=True) if count]
            if lacking:
                problems[batch] = self._describe_missing(batch, lacking[0])
        self._reject(problems)
        room = MAX_KEY_BYTES - len(self._unit.paths.data_prefix) - _FILE_NAME_BYTES
        room -= sum(len(field.name) + 2 for field in partition)
        # Shorter ones cannot exceed any bound, however much they grow by their encoding.
        min_bytes = min(MAX_PARTITION_VALUE_BYTES, max(0, room)) // _ENCODED_GROWTH
        problems = {}
        for batch, values in self._frame.read_batch_partitions(self.accepted, min_bytes=min_bytes):
            encoded = [encode_partition_value(value) for value in values]
            longest = max(range(len(partition)), key=lambda index: len(encoded[index]))
            if batch in problems or (
                len(encoded[longest]) <= MAX_PARTITION_VALUE_BYTES and sum(map(len, encoded)) <= room
            ):
                continue
            field = partition[longest]
            column = f"column {field.column!r}"
            problems[batch] = self._describe_rows(
                batch,
                self._frame.in_partition(batch, values),
                f"partition {field}: value {values[longest][:_SHOWN_CHARS]!r} of {column} has "
                f"{len(encoded[longest])} bytes in a key; the limit is {MAX_PARTITION_VALUE_BYTES} bytes a "
                f"value and {room} a key: use truncate[n] or bucket[n]",
                what=f"partition {field}: a value of {column} is too long for a key: use truncate[n] or bucket[n]",
            )
        self._reject(problems)

    def _finish(self) -> None:
        """Settle what is written of the accepted batches."""
        batches = self._frame.batches
        self.row_counts = {number: batches[number].row_count for number in self.accepted}
        self.misfit_count = sum(self._sections.misfits.get(number, 0) for number in self.accepted)
        self.bad_rows = {number: batches[number].bad for number in self.accepted if batches[number].bad.row_count}
        if not self.accepted:
            return
        found = {name for batch in self.accepted for name in self._evidence.get(batch, {})}
        # A type may rest on a batch that was rejected for a value later: the evidence stays with the type.
        self.new_kinds = {
            name: self._builder.new_kinds[name] for name in self._columns if name in found and name not in self._schema
        }
        known = tuple(name for name in self._schema if name in found)
        names = (*known, *self.new_kinds) or (next(iter(self._schema)),)
        self.output_columns = {name: self._builder.type_of(name) or "" for name in names}
        self.partitions = self._frame.read_partitions(self.accepted)
        self.partition_paths = tuple(
            "/".join(
                f"{field.name}={encode_partition_value(value)}"
                for field, value in zip(self._config.partition, values, strict=True)
            )
            for values in self.partitions
        )

    def _describe_missing(self, batch: int, field: PartitionField) -> Problem:
        path = self._config.promoted.get(field.column)
        column = f"column {field.column!r}" if path is None else f"{spell_path(path)}, column {field.column!r},"
        what = (
            f"{column} is missing or null, and partition {field} of table {self._unit.paths.name} needs it: send it "
            "with every event"
        )
        others = "" if field.column in self._evidence[batch] else self._describe_columns(batch, field.column)
        return self._describe_rows(batch, self._frame.missing(batch, field.column), what + others, what=what)

    def _describe_columns(self, batch: int, name: str) -> str:
        """Return which columns have values in a batch that has none in column ``name``, and which may be meant."""
        names = sorted(self._evidence[batch])  # their order in a unit depends on its other batches
        if not names:
            return ""
        shown = ", ".join(repr(each[:_SHOWN_CHARS]) for each in names[:_SHOWN_COLUMNS])
        more = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
        noun = "columns" if len(names) > 1 else "column"
        return f"; this batch has the {noun} {shown}{more}{did_you_mean(name, names)}"

    def _describe_rows(self, batch: int, rows: BadRowQuery, says: str, *, what: str = "") -> Problem:
        """Return the problem of rows that are given only by their numbers."""
        noun = self._noun(batch)
        return Problem.of_rows(rows, what or says, lambda row: f"{noun} {row.row_number}: {says}")

    def _show(self, batch: int, row: Example) -> str:
        text = row.text if len(row.text) <= _SHOWN_CHARS else f"{row.text[:_SHOWN_CHARS]}…"
        return f"{self._noun(batch)} {row.row_number}: {text}"

    def _noun(self, batch: int) -> str:
        return self._frame.batches[batch].noun


def _describe_remedy(sql_type: str | None, time: TimeColumn | None, text: str = "") -> str:
    """Return what to send instead of a value that did not survive its cast, and which unit its digits seem to have."""
    if sql_type == "TIMESTAMP":
        time = time or TimeColumn()
        likely = time.describe_likely(text)
        return (
            f"{likely}{likely and '; '}send ISO-8601 text such as 2023-06-07T13:00:00Z, or integer unix "
            f"{TIME_WORDS[time.unit or DEFAULT_UNIT]}, of the years 1 to 9999"
        )
    if sql_type == "DATE":
        return "send text such as 2023-06-07"
    digits = find_decimal(sql_type)
    if digits is not None:
        return (
            f"send numbers, or text of numbers, of at most {digits.precision - digits.scale} digits before the point "
            f"and {digits.scale} behind it"
        )
    return "send numbers in the range of a 64-bit float"
