"""Rows of a query: for people on a terminal, for programs in a pipe, or in a file, in one of several formats.

For people numbers have separators and cells are cut; for everybody else a value is written as it is.
"""

import csv
import os
import pydoc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from io import RawIOBase, StringIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer
from icedb_log.errors import IceDBError, InvalidRequest
from rich.cells import cell_len, set_cell_size
from rich.pager import Pager

from icedb.cli.output import (
    count_of,
    dump_json,
    format_bytes,
    format_count,
    make_visible,
    out,
    print_note,
    to_json,
    to_plain_text,
    write_text,
)
from icedb.cli.runner import LIST, Format, Run

if TYPE_CHECKING:
    from icedb_client.duck import QueryResult

ROW_FORMATS: Final[tuple[Format, ...]] = (*LIST, "parquet", "arrow")
ToOption = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="FILE",
        help="Write all rows to this file, in the format of -o or its suffix (.csv, .json, .ndjson, .parquet, .arrow).",
    ),
]

SHOWN_ROWS: Final = 100
FETCH_ROWS: Final = 10_000
_NUMERIC: Final = ("BIGINT", "INTEGER", "HUGEINT", "DOUBLE", "FLOAT", "DECIMAL", "UBIGINT", "SMALLINT")
_RIGID: Final = (*_NUMERIC, "TIMESTAMP", "DATE", "BOOLEAN")
"""Types of which a part of a value would be another value: their cells are never cut."""
_IN_A_LINE: Final = str.maketrans({"\r": None, "\n": "↵", "\t": " "})
_GAP: Final = 2
_PLAN: Final = ["explain_key", "explain_value"]
"""Columns of what EXPLAIN gives."""
_MIN_WIDTH: Final = 8
_MIN_SEPARATED: Final = 10_000
"""Years and ports have no separators."""
_MIN_DECIMAL: Final = 1e-3
_MAX_DECIMAL: Final = 1e15
_SUFFIXES: Final[Mapping[str, str]] = {
    ".jsonl": "ndjson",
    **{f".{name}": name for name in ROW_FORMATS if name != "table"},
}


def answer_rows(
    run: Run,
    rows: "QueryResult",
    *,
    to: Path | None = None,
    most: int | None = None,
) -> None:
    """Print or write rows as a command was asked to.

    Args:
        run: The command; its ``-o`` says how, else the suffix of the file, else they are a table.
        rows: The rows.
        to: To which file; it is there whole, or as it was.
        most: How many; ``None``: 100 in a table, else all.

    Raises:
        InvalidRequest: The format and the place do not fit.
        IceDBError: The file cannot be written.
    """
    chosen = run.output or (None if to is None else _SUFFIXES.get(to.suffix.lower()))
    if to is not None:
        if chosen is None or chosen == "table":
            raise InvalidRequest(f"--to {to}: give it a suffix ({', '.join(_SUFFIXES)}), or another -o")
        if to.parts[:1] and to.parts[0].endswith(":"):
            raise InvalidRequest(f"--to {to}: give a file of this machine, and copy it from there")
        if not to.parent.is_dir():
            raise InvalidRequest(f"--to {to}: there is no folder {to.parent}; make it, or correct the path")
        with _replacing(to) as file:
            count = _WRITERS[chosen](rows, most, file)
        print_note(f"{count_of(count, 'row')} written to {to} ({format_bytes(to.stat().st_size)})")
    elif chosen in ("parquet", "arrow") and sys.stdout.isatty():
        raise InvalidRequest(f"-o {chosen} is not for a terminal: give --to FILE, or redirect it")
    elif chosen in (None, "table"):
        show_rows(rows, SHOWN_ROWS if most is None else most)
    else:
        stream = _Terminal() if sys.stdout.isatty() else sys.stdout.buffer
        _WRITERS[chosen](rows, most, stream)
        sys.stdout.flush()


def show_rows(rows: "QueryResult", most: int) -> int:
    """Print so many rows as a table, in a pager if they are more than a screen; a plan as it is. Return how many."""
    found, has_more = _fetch(rows, most)
    left_out: list[str] = []
    with _paging():
        if rows.columns == _PLAN:
            for _, plan in found:
                out.print(plan, markup=False, highlight=False, soft_wrap=True)
        else:
            left_out = print_rows(list(zip(rows.columns, map(str, rows.types), strict=True)), found)
    if left_out:
        print_note(f"{len(left_out)} of {len(rows.columns)} columns do not fit: {', '.join(left_out)}")
    if has_more:
        print_note(f"the first {count_of(len(found), 'row')}; --limit shows more")
    return len(found)


def print_rows(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]]) -> list[str]:
    """Print rows as a table and return the columns that do not fit a terminal; elsewhere all fit.

    Args:
        columns: Their names and SQL types.
        rows: Their values.
    """
    is_read = out.is_terminal
    lines = [[name for name, _ in columns], *([to_text(value, is_read=is_read) for value in row] for row in rows)]
    lines = [[make_visible(cell.translate(_IN_A_LINE)) for cell in line] for line in lines]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    if is_read:
        widths = _fit(widths, [sql_type.startswith(_RIGID) for _, sql_type in columns], out.width)
    are_right = [sql_type.startswith(_NUMERIC) for _, sql_type in columns]
    for number, line in enumerate(lines):
        cells = (_place(*each) for each in zip(line, widths, are_right, strict=False))
        out.print((" " * _GAP).join(cells).rstrip(), style=None if number else "bold", markup=False, soft_wrap=True)
    return [name for name, _ in columns[len(widths) :]]


def _place(cell: str, width: int, is_right: bool) -> str:  # noqa: FBT001 - called for each cell
    text = cell if cell_len(cell) <= width else f"{set_cell_size(cell, width - 1)}…"
    space = " " * (width - cell_len(text))
    return space + text if is_right else text + space


def _fit(widths: Sequence[int], rigid: Sequence[bool], room: int) -> list[int]:
    """Return the widths of as many columns as fit; only those that are not rigid are narrowed."""

    def narrow(cap: int, count: int) -> list[int]:
        pairs = zip(widths[:count], rigid, strict=False)
        return [width if is_rigid else min(width, cap) for width, is_rigid in pairs]

    def fits(cap: int, count: int) -> bool:
        return sum(narrow(cap, count)) + _GAP * (count - 1) <= room

    count = next((count for count in range(len(widths), 0, -1) if fits(_MIN_WIDTH, count)), 1)
    return narrow(next((cap for cap in range(room, _MIN_WIDTH, -1) if fits(cap, count)), _MIN_WIDTH), count)


def to_text(value: object, *, is_read: bool = False) -> str:
    """Return the text of a value: readable, or as it is."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if is_read and type(value) is int and abs(value) >= _MIN_SEPARATED:
        return format_count(value)
    if is_read and isinstance(value, float) and (value == 0 or _MIN_DECIMAL <= abs(value) < _MAX_DECIMAL):
        return f"{value:,.6f}".rstrip("0").rstrip(".")
    return to_json(value) if isinstance(value, list | dict) else to_plain_text(value)


class _LongPager(Pager):
    """Shows what is longer than the screen in the user's pager, and all else at once."""

    def show(self, content: str) -> None:
        if content.count("\n") < out.height:
            sys.stdout.write(content)
        else:
            pydoc.pager(content)


def _paging() -> AbstractContextManager[Any]:
    if not (out.is_terminal and sys.stdin.isatty()):
        return nullcontext()
    os.environ.setdefault("LESS", "FRX")  # colours, and what was shown stays on the screen
    return out.pager(_LongPager(), styles=True)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file beside a path that takes its name when it is whole. Raises IceDBError: it cannot be written."""
    path = path.resolve()  # through links: what they name is replaced
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.exists() and not path.is_file():  # a pipe or a device takes what is written
            with path.open("wb") as file:
                yield file
            return
        with beside.open("xb") as file:
            yield file
        beside.replace(path)
    except OSError as error:
        raise IceDBError(f"--to {path}: cannot be written: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


def _fetch(rows: "QueryResult", most: int | None) -> tuple[list[tuple[Any, ...]], bool]:
    """Return at most so many rows, and whether there are more."""
    found = [row for chunk in _chunks(rows, None if most is None else most + 1) for row in chunk]
    return found[:most], most is not None and len(found) > most


def _chunks(rows: "QueryResult", most: int | None) -> Iterator[list[tuple[Any, ...]]]:
    left = most
    while left is None or left > 0:
        chunk = rows.fetchmany(FETCH_ROWS if left is None else min(FETCH_ROWS, left))
        if not chunk:
            return
        left = None if left is None else left - len(chunk)
        yield chunk


_Writer = Callable[["QueryResult", int | None, Any], int]
"""Writes so many rows to a stream of bytes, and returns how many there were."""


class _Terminal(RawIOBase):
    """Standard output, for texts of others."""

    def write(self, data: Any) -> int:
        write_text(data.decode())
        return len(data)


def _write_json(rows: "QueryResult", most: int | None, stream: Any) -> int:
    _require_different(rows.columns)
    found, has_more = _fetch(rows, most)
    types = zip(rows.columns, rows.types, strict=True)
    document = {
        "columns": [{"name": name, "type": str(sql_type)} for name, sql_type in types],
        "rows": [dict(zip(rows.columns, row, strict=True)) for row in found],
        "row_count": len(found),
        "has_more": has_more,
        "snapshots": {name: found.snapshot_id for name, found in rows.snapshots.items()},
    }
    stream.write(dump_json(document).encode())
    return len(found)


def _lines_by(to_lines: Callable[[list[str], Sequence[Sequence[Any]]], str], *, has_head: bool) -> _Writer:
    """Return the writer of a format of lines, the first of which may have the names of the columns."""

    def write(rows: "QueryResult", most: int | None, stream: Any) -> int:
        names, count = list(rows.columns), 0
        heads: list[Sequence[Sequence[Any]]] = [[names]] if has_head else []
        for chunk in chain(heads, _chunks(rows, most)):
            stream.write(to_lines(names, chunk).encode())
            count += len(chunk)
        return count - has_head

    return write


def _to_csv(_names: list[str], chunk: Sequence[Sequence[Any]]) -> str:
    text = StringIO()
    plain = (("" if each is None else to_text(each) for each in row) for row in chunk)
    csv.writer(text, lineterminator="\n").writerows(plain)
    return text.getvalue()


def _require_different(names: Sequence[str]) -> None:
    """Raise InvalidRequest if columns have the same name: an object of JSON holds one of each."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(f"several columns are called {', '.join(twice)}: name them apart (AS) for JSON")


def _to_ndjson(names: list[str], chunk: Sequence[Sequence[Any]]) -> str:
    _require_different(names)
    return "".join(f"{to_json(dict(zip(names, row, strict=True)))}\n" for row in chunk)


def _batches_by(make: Callable[[Any, Any], Any]) -> _Writer:
    """Return the writer of a format of pyarrow."""

    def write(rows: "QueryResult", most: int | None, stream: Any) -> int:
        reader, count = rows.to_arrow_reader(FETCH_ROWS), 0
        take = rows.guarded(lambda: next(reader, None))
        try:
            opened = make(stream, reader.schema)
        except import_module("pyarrow").ArrowNotImplementedError as error:
            raise InvalidRequest(f"this format has no such type: {error}; cast that column, e.g. to VARCHAR") from error
        with opened as writer:
            while (most is None or count < most) and (batch := take()) is not None:
                writer.write_batch(batch if most is None else batch[: most - count])
                count += batch.num_rows
        return count if most is None else min(count, most)

    return write


_WRITERS: Final[Mapping[str, _Writer]] = {
    "csv": _lines_by(_to_csv, has_head=True),
    "json": _write_json,
    "ndjson": _lines_by(_to_ndjson, has_head=False),
    "parquet": _batches_by(lambda *given: import_module("pyarrow.parquet").ParquetWriter(*given, compression="zstd")),
    "arrow": _batches_by(lambda *given: import_module("pyarrow.ipc").new_stream(*given)),
}
