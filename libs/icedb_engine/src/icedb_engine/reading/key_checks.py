"""The checks of lines and keys: is every line one JSON object, and can its keys be columns of the table?"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from icedb_log.table.table_config import TableConfig, check_column_name

from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.raw_events import BatchKeys, RawEvents
from icedb_engine.reading.row_problems import Problem, number_fault
from icedb_engine.reading.staged_batch import BatchContent

_SHOWN_NAMES: Final = 5


class KeyChecks:
    """Decides about keys, batch after batch: who spells a column first is right.

    Attributes:
        is_order_at_stake: Whether some batch was judged by keys of others that are known only roughly: those of
            batches that the fast reader took. They have to be read exactly, then.

    Args:
        config: Of the table.
        schema: Its columns so far.
        limits: Bounds of a batch.
        fast_names: Columns that batches of the fast reader may have, all of them taken as if they came first.
    """

    def __init__(
        self, config: TableConfig, schema: Mapping[str, str], limits: FlushUnitLimits, fast_names: Collection[str]
    ) -> None:
        self.is_order_at_stake = False
        self._config = config
        self._schema = schema
        self._limits = limits
        self._has_fast = bool(fast_names)
        self._spelling = {name.lower(): name for name in (*schema, *fast_names)}
        self._reserved = {field.name.lower(): field for field in config.partition if field.name != field.column}

    def check_lines(self, lines: RawEvents, batches: Mapping[int, BatchContent]) -> dict[int, Problem]:
        """Return the batches with a line that is not a JSON object."""
        problems = {}
        for batch, number in lines.find_malformed().items():
            noun = batches[batch].noun
            explain = partial(_explain_malformed, lines, batch, noun)
            problems[batch] = Problem(
                explain(number),
                partial(lines.read_malformed, batch),
                f"a {noun} is not a JSON object; send one JSON object per {noun}",
                explain,
            )
        return problems

    def check(
        self, batches: Mapping[int, BatchContent], keys: Mapping[int, BatchKeys], lines: Mapping[int, RawEvents]
    ) -> dict[int, Problem]:
        """Return the batches whose keys cannot be columns of the table.

        Args:
            batches: By number, oldest first.
            keys: Their keys.
            lines: Where each of those that came as lines can be looked up.
        """
        problems: dict[int, Problem] = {}
        for batch, content in batches.items():
            problem = self._check_batch(batch, content, keys[batch], lines.get(batch))
            if problem is None:
                self._spelling.update((name.lower(), name) for name in keys[batch].names)
            else:
                problems[batch] = problem
        return problems

    def _check_batch(
        self, batch: int, content: BatchContent, keys: BatchKeys, lines: RawEvents | None
    ) -> Problem | None:
        if keys.has_duplicates:
            return _describe_duplicate(lines, batch, content.noun)
        if keys.count > self._limits.batch_columns:
            return Problem(
                f"{keys.count} different top-level keys; the limit is {self._limits.batch_columns}: "
                "put keys that vary into a nested object, which is kept as JSON text"
            )
        if content.row_count * keys.count > self._limits.unit_cells:
            return Problem(
                f"{content.row_count} events with {keys.count} different keys together; the limit is "
                f"{self._limits.unit_cells} events times keys: send smaller batches"
            )
        bad = {name: reason for name in keys.names if (reason := self._find_name_problem(name))}
        bad |= self._find_case_problems(keys.names)
        if bad:
            return _describe_names(lines, batch, content.noun, bad)
        column_count = len(self._spelling.keys() | {name.lower() for name in keys.names})
        if column_count > self._limits.table_columns:
            self.is_order_at_stake |= self._has_fast
            return Problem(
                f"with this batch the table would have {column_count} columns; the limit is "
                f"{self._limits.table_columns}: put keys that vary into a nested object"
            )
        return None

    def _find_name_problem(self, name: str) -> str | None:
        try:
            check_column_name(name)
        except ValueError as error:
            return str(error)
        if name.lower() in self._reserved:
            return (
                f"column {name!r} is named like the partition {self._reserved[name.lower()]}: readers of Hive "
                "partitions would take one for the other; rename the column"
            )
        if self._config.evolution == "strict" and name.lower() not in map(str.lower, self._schema):
            return (
                f"column {name!r} is not in the schema of table {self._config.name}, and the table takes no other "
                "(evolution strict): declare it with `icedb table alter`, or leave it out"
            )
        return None

    def _find_case_problems(self, names: Sequence[str]) -> dict[str, str]:
        own: dict[str, str] = {}
        problems = {}
        for name in names:
            other = own.setdefault(name.lower(), self._spelling.get(name.lower(), name))
            if other != name:
                self.is_order_at_stake |= self._has_fast
                problems[name] = (
                    f"columns {other!r} and {name!r} differ only in case, which query engines cannot tell apart: "
                    "use one spelling"
                )
        return problems


def _explain_malformed(lines: RawEvents, batch: int, noun: str, number: int) -> str:
    words = lines.explain_malformed(batch, number)
    return f"{noun} {number} is not a JSON object ({words}); send one JSON object per {noun}"


def _explain_name(lines: RawEvents, batch: int, noun: str, bad: Mapping[str, str], number: int) -> str:
    reason = next(bad[name] for name in lines.read_line_keys(batch, number) if name in bad)
    return f"{noun} {number}: {reason}"


def _describe_duplicate(lines: RawEvents | None, batch: int, noun: str) -> Problem:
    what = "an event has the same key twice; which value counts is not defined: send it once"
    if lines is None:
        return Problem(what)
    explain = partial(number_fault, noun, what)
    return Problem(explain(lines.find_duplicate_line(batch)), partial(lines.read_lines_with, batch, ()), what, explain)


def _describe_names(lines: RawEvents | None, batch: int, noun: str, bad: Mapping[str, str]) -> Problem:
    name, reason = next(iter(bad.items()))
    if lines is None:
        return Problem(reason)
    return Problem(
        f"{noun} {lines.find_key_line(batch, name)}: {reason}",
        partial(lines.read_lines_with, batch, tuple(bad)),
        reason if len(bad) == 1 else "a field cannot be a column of the table, by its name",
        partial(_explain_name, lines, batch, noun, bad),
    )
