"""Which batches have times that their table takes for a mistake: seconds that were sent as milliseconds, for one."""

from collections.abc import Callable, Collection, Mapping
from functools import partial

from icedb_log.table.table_config import TableConfig
from icedb_log.table.time_columns import DEFAULT_UNIT, TIME_WORDS, TimeColumn
from icedb_log.table.transforms import bad_time_sql

from icedb_engine.reading.event_frame import EventFrame, ExampleValue
from icedb_engine.reading.row_problems import Problem


def find_bad_times(
    frame: EventFrame,
    batches: Collection[int],
    *,
    types: Mapping[str, str],
    config: TableConfig,
    show: Callable[[int, ExampleValue], str],
) -> dict[int, Problem]:
    """Return what is wrong with the times of some batches.

    Args:
        frame: With the typed rows of the batches.
        batches: Whose rows.
        types: Columns of the typed rows, with types.
        config: Of the table.
        show: Returns a value of a batch for people, with its row.
    """
    conditions = {
        name: condition
        for name, time in config.times.items()
        if name in types and (condition := bad_time_sql(time, types[name])) is not None
    }
    counts = frame.count_bad(conditions) if conditions and batches else {}

    def describe(batch: int, name: str) -> Problem:
        time, condition = config.times[name], conditions[name]

        def explain(row: int | None) -> str:
            example = frame.find_bad(batch, name, condition, row=row)
            wrong = time.describe_bad(name, example.text, sql_type=types[name], table=config.name)
            return f"{wrong} ({show(batch, example)})"

        rows = partial(frame.read_bad_rows, batch, name, condition)
        return Problem(explain(None), rows, f"column {name!r} takes times of {time.describe_range()}", explain)

    bad = {batch: next((name for name, n in counts.get(batch, {}).items() if n), None) for batch in batches}
    return {batch: describe(batch, name) for batch, name in bad.items() if name is not None}


def describe_remedy(sql_type: str | None, time: TimeColumn | None, text: str = "") -> str:
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
    return "send numbers in the range of a 64-bit float"
