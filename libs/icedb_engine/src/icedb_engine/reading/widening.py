"""The types of a flush's columns: what log and configuration say, what units found, and what may become wider.

With ``evolution = widen`` a column becomes wider if no value that is live in the table loses anything. A parse unit
that finds numbers with a fraction in a BIGINT column, or timestamps in a DATE column, does not reject the batch at
once: it stops and *requests* the wider type. The driver grants the request, or refuses it with a reason, and the unit
runs again. The log proves, beside the schema, that nothing is lost (S2). For data files of other writers the proof is
the minimum and maximum in the footers of all live files; a file without these statistics proves nothing. A wider type
that is declared in the table's configuration needs no proof: the declaration accepts that integers beyond 2^53 lose
digits.

Never wider: partition and sort columns, whose values name folders and order files, and declared columns.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Final

from icedb_log.errors import SchemaConflict, Unavailable
from icedb_log.jobs import FlushJob, Target
from icedb_log.log.widening import fixed_columns
from icedb_log.parquet.file_reads import ParquetFooterReader
from icedb_log.parquet.footer import Footer, UnreadableFooter
from icedb_log.store.object_store import ObjectInfo, ObjectStore
from icedb_log.table.file_domains import EXACT_DOUBLE_MAX
from icedb_log.table.table_config import WIDENINGS, TableConfig
from icedb_log.table.transforms import read_bound

from icedb_engine.reading.types import Kind, SchemaBuilder, infer_type

_WIDER: Final[Mapping[str, str]] = dict(WIDENINGS)


def settle_types(known: Mapping[str, str], found: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """Return the types of all columns after several units found new ones, each on its own.

    The first unit wins a conflict, as the first batch does inside a unit; a later one that differs in type, or in
    the case of the name, has to run again with what is returned.

    Args:
        known: The types that the units were given.
        found: New columns and kinds of values of each unit, in the order of the units.
    """
    builder = SchemaBuilder(known)
    spelling = {name.lower(): name for name in known}
    for columns in found:
        for name, kinds in columns.items():
            if spelling.setdefault(name.lower(), name) == name and builder.find_clash(name, Kind(kinds)) is None:
                builder.add(name, Kind(kinds))
    return {**known, **{name: infer_type(kinds) or "" for name, kinds in builder.new_kinds.items()}}


def unite_known(job: Target) -> dict[str, str]:
    """Return the log's schema with the declared columns. Raises SchemaConflict.

    A declared type that is wider than the logged one needs no proof: whoever declares it accepts what it costs.
    """
    fixed = fixed_columns(job.config)
    spelling = {name.lower(): name for name in job.schema}
    for name, declared_type in job.config.declared.items():
        logged_name = spelling.get(name.lower(), name)
        logged_type = job.schema.get(logged_name, declared_type)
        is_widened = job.config.evolution == "widen" and (logged_type, declared_type) in WIDENINGS
        if logged_name == name and is_widened and name not in fixed:
            continue
        if (logged_name, logged_type) != (name, declared_type):
            raise SchemaConflict(
                f"table {job.paths.name}: the configuration declares {name!r} as {declared_type}, but the log has "
                f"{logged_name!r} as {logged_type}: declare it as the log has it, `icedb table alter {job.paths.name} "
                f"--column '{logged_name}:{logged_type}'` (for a time in a BIGINT the type is epoch_s, epoch_ms or "
                f"epoch_us); {job.paths.config_key} is as it was created"
            )
    return {**job.schema, **job.config.declared}


_ONLY_WIDE: Final[Mapping[str, Kind]] = {
    "DOUBLE": Kind.FRACTION | Kind.DECIMAL,
    "TIMESTAMP": Kind.TIMESTAMP,
}
"""Values for which a column becomes as wide as that."""


def find_widenable(config: TableConfig, schema: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that may become wider at all, with the wider type."""
    if config.evolution != "widen":
        return {}
    fixed = fixed_columns(config) | config.declared.keys()
    return {name: _WIDER[kind] for name, kind in schema.items() if kind in _WIDER and name not in fixed}


def find_way_out(config: TableConfig, schema: Mapping[str, str], *, column: str, kinds: Kind, is_refused: bool) -> str:
    """Return how the table can be made to take values of a wider type after all, as the end of a reason.

    Args:
        config: Of the table.
        schema: Its columns.
        column: Which does not take the values as it is.
        kinds: Of the values.
        is_refused: Whether it was looked whether the column can become wider by itself, and it cannot.

    Returns:
        Empty where nothing can be done: another kind of value, or a column by which data files are laid out.
    """
    wide = _WIDER.get(schema.get(column, ""), "")
    # The columns of ``_rows``, which an insert_query reads, are fixed, too: only their configuration names ``source``.
    if not kinds & _ONLY_WIDE.get(wide, Kind(0)) or column in fixed_columns(config) or config.source:
        return ""
    change = "" if config.evolution == "widen" else " --set evolution=widen"
    if column in config.declared or is_refused:
        change += f" --column {shlex.quote(f'{column}:{wide}')}"
    table = config.name
    return f". To have it as {wide}: `icedb table alter {table}{change}`, then `icedb quarantine retry {table} --all`"


class WideningProof:
    """Tells by what the log says of a column; where it says nothing, by the footers of live files, once for a column.

    Args:
        job: The flush: what its log says, and how all live data files are read.
        open_store: Opens the store where the files are; only if it is needed.

    Attributes:
        inexact: Columns of which a footer has values that would change, or does not say: the commit has to say it (S2).
    """

    def __init__(self, job: FlushJob, open_store: Callable[[], ObjectStore]) -> None:
        self.inexact: set[str] = set()
        self._job = job
        self._open_store = open_store

    def find_problem(self, column: str, narrow: str) -> str | None:
        """Return why a column must not become wider than its type; None if nothing is lost.

        Raises:
            Unavailable: The store did not answer.
        """
        is_inexact = False if self._job.inexact is None else self._job.inexact.get(column)
        if is_inexact is None:
            return None  # S2: the log files say so of all their data files
        if is_inexact:
            return f"the table has values which {_WIDER[narrow]} cannot hold exactly, by its log"
        infos = [ObjectInfo(marker.path, "", marker.size_bytes, 0) for marker in self._job.read_live()]
        reader = ParquetFooterReader(self._open_store())
        with closing(reader.read_footers(infos, bounds_of=[column])) as footers:
            problem = next(filter(None, (_find_problem(footer, column, narrow) for footer in footers)), None)
        if problem is not None:
            self.inexact.add(column)
        return problem


def _find_problem(footer: Footer | UnreadableFooter, column: str, narrow: str) -> str | None:
    path = footer.info.key
    if isinstance(footer, UnreadableFooter):
        if footer.cause == "unanswered":
            raise Unavailable(f"{path}: {footer.reason}")
        return f"{path}: {footer.reason}"
    if footer.columns.get(column) != narrow:
        return None  # not there, or wide already
    problem = _find_inexact_value(footer, column)
    return None if problem is None else f"{path} {problem}"


def find_inexact(footer: Footer) -> tuple[str, ...]:
    """Return the columns of another writer's file of whose values its footer does not prove what a commit says (S2).

    The footer was read with the bounds of all columns. No footer says that there is no NaN among numbers.
    """
    found = [name for name, narrow in footer.columns.items() if narrow in _WIDER and _find_inexact_value(footer, name)]
    doubles = (name for name, kind in footer.columns.items() if kind == "DOUBLE")
    found += [name for name in doubles if footer.row_count not in (0, footer.bounds[name].null_count)]
    return tuple(sorted(found))


def _find_inexact_value(footer: Footer, column: str) -> str | None:
    narrow, found = footer.columns[column], footer.bounds[column]
    if footer.row_count in (0, found.null_count):
        return None
    low, high = read_bound(found.low, narrow), read_bound(found.high, narrow)
    if low is None or high is None:
        return "does not say between which bounds its values are"
    # Every day of the calendar is a moment, too.
    if narrow == "BIGINT" and not -EXACT_DOUBLE_MAX <= low <= high <= EXACT_DOUBLE_MAX:
        return f"has values from {low} to {high}, which {_WIDER[narrow]} cannot hold exactly"
    return None
