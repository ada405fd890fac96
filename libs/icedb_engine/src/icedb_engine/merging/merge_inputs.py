"""The data files of a merge's group: fetched, their footers read once, their columns united.

A small group is fetched into memory and never touches the disk; a large one waits in the scratch folder.
Only the footer's schema and row count are read here, never what it says of single columns: pyarrow ends the process
on some damaged column metadata.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from icedb_log.errors import CorruptLog, NotFound, SchemaConflict
from icedb_log.log.widening import is_widening
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore

from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.imports.import_types import NARROW_TYPES
from icedb_engine.writing.parquet_join import TAIL_BYTES

_SQL_TYPES: Final[Mapping[Any, str]] = {arrow_type: sql_type for sql_type, arrow_type in ARROW_TYPES.items()}
_SHOWN_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class MergeInput:
    """One data file that is merged.

    Attributes:
        marker: What the log says of it.
        source: Its content, or the file that holds it.
        metadata: Its footer.
        types: Column to SQL type; ``None`` if some column is of a type that only the native engine can name.
    """

    marker: FileMarker
    source: Path | pa.Buffer
    metadata: Any
    types: Mapping[str, str] | None

    @property
    def row_count(self) -> int:
        """Rows, by its footer."""
        return int(self.metadata.num_rows)

    def open(self, *, dictionary_columns: Sequence[str] = ()) -> Any:
        """Open it, with those of some columns of text that it has as numbers of the words in a dictionary."""
        source = str(self.source) if isinstance(self.source, Path) else pa.BufferReader(self.source)
        known = [name for name in dictionary_columns if self.types is None or name in self.types]
        # A merge that took damaged pages for good would write them anew with checksums that are right.
        return pq.ParquetFile(source, metadata=self.metadata, read_dictionary=known, page_checksum_verification=True)

    def read_footer(self) -> bytes:
        """Return the bytes of its footer, without its length and the magic bytes."""
        if not isinstance(self.source, Path):
            return _cut_footer(memoryview(self.source))
        with self.source.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            return _cut_footer(content)

    def make_file(self, folder: Path) -> Path:
        """Return a file with its content. Idempotent."""
        if isinstance(self.source, Path):
            return self.source
        path = folder / Path(self.marker.path).name
        if not path.exists():
            path.write_bytes(self.source)
        return path


OtherColumn = tuple[MergeInput, str, str]
"""A data file, a column of it that the table does not have, and its SQL type."""


def fetch_inputs(
    markers: Sequence[FileMarker],
    store: ObjectStore,
    *,
    table: str,
    folder: Path | None,
    transfer_count: int,
) -> list[MergeInput]:
    """Fetch data files and read their footers.

    Args:
        markers: Which ones.
        store: Where they are.
        table: Name of the table, for messages.
        folder: Where to put them; ``None``: into memory.
        transfer_count: How many at once.

    Raises:
        NotFound: One is gone.
        CorruptLog: One is not readable as Parquet, though the log names it.
        Unavailable: The store did not answer.
    """

    def fetch(numbered: tuple[int, FileMarker]) -> tuple[FileMarker, Path | pa.Buffer]:
        number, marker = numbered
        try:
            if folder is None:
                return marker, pa.py_buffer(store.get(marker.path).body)
            file = folder / f"{number:06d}.parquet"
            store.download(marker.path, file)
        except NotFound as error:
            raise NotFound(
                f"table {table}: data file {marker.path} is live but gone from the store: "
                "read the log again; if it is still named there, restore the object"
            ) from error
        return marker, file

    with ThreadPoolExecutor(transfer_count, thread_name_prefix="icedb-download") as pool:
        return [_read_footer(marker, source) for marker, source in pool.map(fetch, enumerate(markers))]


def _read_footer(marker: FileMarker, source: Path | pa.Buffer) -> MergeInput:
    try:
        with pq.ParquetFile(str(source) if isinstance(source, Path) else pa.BufferReader(source)) as file:
            metadata, schema = file.metadata, file.schema_arrow
    except (OSError, ValueError, pa.ArrowException) as error:
        raise unreadable(marker, error) from error
    names = [_SQL_TYPES.get(kind) for kind in schema.types]
    types = None if None in names else dict(zip(schema.names, names, strict=True))
    return MergeInput(marker, source, metadata, types)


def _cut_footer(content: memoryview | mmap) -> bytes:
    end = len(content) - TAIL_BYTES
    return bytes(content[end - int.from_bytes(content[end : end + 4], "little") : end])


def unreadable(marker: FileMarker, error: Exception) -> CorruptLog:
    """Return what a data file that cannot be read means."""
    return CorruptLog(
        f"data file {marker.path} is not readable as Parquet ({str(error)[:_SHOWN_CHARS]}): restore the object"
    )


def unite_columns(
    inputs: Iterable[MergeInput],
    *,
    table: str,
    schema: Mapping[str, str],
    describe: Callable[[MergeInput], Mapping[str, str]],
) -> tuple[dict[str, str], list[OtherColumn]]:
    """Return those columns of the schema that an input has, with the types to be written, in the schema's order.

    A narrower type of an input becomes the table's: of an imported file, or from before the column became wider (S2).
    What inputs have besides is returned apart: it is not written, so whoever writes has to see that it is no data.

    Args:
        inputs: The data files.
        table: Name of the table, for messages.
        schema: Column to SQL type of the whole table.
        describe: Names the types of a file's columns where its footer alone does not.

    Raises:
        SchemaConflict: A column has two types or two spellings; names the file.
    """
    found: set[str] = set()
    others: list[OtherColumn] = []
    spelling = {name.lower(): name for name in schema}
    for each in inputs:
        types = describe(each) if each.types is None else each.types
        for name, sql_type in types.items():
            known_name = spelling.get(name.lower())
            if known_name is None:
                others.append((each, name, sql_type))
            elif known_name != name or not _is_read_as(sql_type, schema[name]):
                raise SchemaConflict(
                    f"table {table}: column {name!r} is {sql_type} in data file {each.marker.path}, "
                    f"but the table has {known_name!r} as {schema[known_name]}: "
                    "rewrite that file with the table's type"
                )
            else:
                found.add(name)
    return {name: sql_type for name, sql_type in schema.items() if name in found}, others


def _is_read_as(found_type: str, table_type: str) -> bool:
    read_type = NARROW_TYPES.get(found_type, found_type)
    return table_type in (found_type, read_type) or is_widening(read_type, table_type)


def have_types(inputs: Iterable[MergeInput], columns: Mapping[str, str]) -> bool:
    """Return whether every column of every input that is written has its type: no value has to be converted."""
    return all(
        each.types is not None and all(columns.get(name, sql_type) == sql_type for name, sql_type in each.types.items())
        for each in inputs
    )
