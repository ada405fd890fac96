"""Promoted columns that data files lack are made of the text that these have, when the files are written anew (S4).

Of rows that are decoded they are made beside the other columns; beside a row group that is copied as bytes, of its
texts alone, where they lie in the new file: nothing else of it is decoded, and nothing is fetched twice. A column is
made for all rows of an input or for none: what a file has of a column that it is said to lack is left out.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from icedb_log.log.widening import fixed_columns
from icedb_log.model import FileMarker
from icedb_log.table.table_config import TableConfig

from icedb_engine.arrow_types import make_schema, number_columns
from icedb_engine.reading.promoted import MISFITS, Promoted
from icedb_engine.reading.types import Form
from icedb_engine.writing.encodings import encode_rows
from icedb_engine.writing.parquet_join import MAGIC, FooterJoiner, SourceChunk, parse_file


class Filler:
    """Makes what the data files of a group lack. A context manager; any number of threads may ask it.

    Args:
        config: Of the table.
        schema: Columns that data files may have, with types: those that readers see, and hidden ones (S4).
        inputs: The data files.
        found: Columns of the schema that one of them has.
        open_engine: Opens an engine, when it is needed first.
        thread_count: How many pieces of some rows are worked on at once.

    Attributes:
        columns: Columns of the outputs, with types, in the order of the schema.
        made: Those of them that some input lacks.
        misfit_count: Values that do not fit one of these, by now.
    """

    def __init__(
        self,
        config: TableConfig,
        schema: Mapping[str, str],
        inputs: Iterable[FileMarker],
        found: Collection[str],
        open_engine: Callable[[], AbstractContextManager[Any]],
        *,
        thread_count: int,
    ) -> None:
        fixed = fixed_columns(config)  # rows of another writer: they are not sorted by what they lack
        lacking = list(config.promoted.items())[min(marker.promoted_count for marker in inputs) :]
        paths = {column: path for column, path in lacking if path and path[0] in found and column not in fixed}
        self.made: Final[Mapping[str, str]] = {column: schema[column] for column in paths}
        self.columns = {name: kind for name, kind in schema.items() if name in found or name in self.made}
        self.misfit_count = 0
        self._config = config
        self._places = {column: place for place, column in enumerate(config.promoted)}
        self._open_engine = open_engine
        self._thread_count = thread_count
        self._engine: Any = None
        self._stack = ExitStack()
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def find_lacking(self, marker: FileMarker) -> tuple[str, ...]:
        """Return the columns that a data file lacks."""
        return tuple(column for column in self.made if self._places[column] >= marker.promoted_count)

    def fill(self, rows: pa.Table) -> pa.Table:
        """Return decoded rows with all columns of the outputs: those that some input lacks are made of each row."""
        made = self._make(tuple(self.made), rows)
        return pa.table({name: made[name] if name in self.made else rows[name] for name in self.columns})

    def make(
        self, columns: Sequence[str], body: memoryview, chunks: Mapping[str, SourceChunk], *, row_count: int
    ) -> pa.Table:
        """Return columns of a row group.

        Args:
            columns: Which.
            body: The file that the row group lies in.
            chunks: Where its columns lie there.
            row_count: Its rows.

        Raises:
            OSError, ValueError, pa.ArrowException: A text cannot be read.
        """
        there = {name: chunks[name] for name in self._texts_of(columns) if name in chunks}
        return self._make(columns, _read_columns(body, there, row_count=row_count))

    def _texts_of(self, columns: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(self._config.promoted[column][0] for column in columns))

    def _make(self, columns: Sequence[str], rows: pa.Table) -> pa.Table:
        """Return columns of rows that have their texts; NULL where the rows lack one."""
        paths = {column: self._config.promoted[column] for column in columns}
        texts = [name for name in self._texts_of(columns) if name in rows.column_names]
        types = {column: self.made[column] for column in columns}
        names, _ = number_columns({**dict.fromkeys(texts, "VARCHAR"), **types})
        only = self._config.model_copy(update={"promoted": paths})
        promoted = Promoted(only, dict.fromkeys(texts, Form.VARCHAR), names.__getitem__)
        given = rows.select(texts).rename_columns([names[name] for name in texts])
        found = promoted.make(given, self._open_cursor, thread_count=self._thread_count)
        if promoted.has_misfits:
            with self._lock:
                self.misfit_count += pc.sum(found[MISFITS], min_count=0).as_py()
        schema = make_schema(types)
        nulls = {column: pa.nulls(rows.num_rows, kind) for column, kind in zip(columns, schema.types, strict=True)}
        return pa.table({**nulls, **{column: found[names[column]] for column in promoted.types}}).cast(schema)

    def _open_cursor(self) -> Any:
        with self._lock:
            if self._engine is None:
                self._engine = self._stack.enter_context(self._open_engine())
            return self._engine.cursor()


def _read_columns(body: memoryview, chunks: Mapping[str, SourceChunk], *, row_count: int) -> pa.Table:
    """Return text columns of a row group that lies in a file without a footer."""
    if not chunks:
        return pa.table({"nothing": pa.nulls(row_count)})
    joiner, parts, moved, position = FooterJoiner(), [MAGIC], [], len(MAGIC)
    joiner.set_base(parse_file(encode_rows(make_schema(dict.fromkeys(chunks, "VARCHAR")).empty_table())))
    for chunk in chunks.values():
        parts.append(bytes(body[chunk.start : chunk.end]))
        moved.append(chunk.move(position))
        position += chunk.stored_bytes
    joiner.add_group(moved, row_count=row_count)
    parts.append(joiner.make_footer({}))
    with pq.ParquetFile(pa.BufferReader(b"".join(parts)), page_checksum_verification=True) as file:
        return file.read(use_threads=False)
