"""What a Parquet footer says: rows, columns as SQL types, key-value metadata, bounds of columns. Pure, no engine.

The layout is Parquet's ``FileMetaData`` (parquet.thrift of parquet-format 2.11). A footer that contradicts itself or
the length of its file is :class:`~icedb_log.parquet.errors.BadFooter`; nothing else is ever raised, whatever the
bytes are.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from icedb_log.parquet.bounds import GatheredBounds, Statistics, read_statistics
from icedb_log.parquet.errors import BadFooter
from icedb_log.parquet.schema import ParquetSchema, read_schema
from icedb_log.repair.footers import ColumnBounds
from icedb_log.thrift import STRUCT, ThriftError, ThriftReader


@dataclass(slots=True)
class ParquetFooter:
    """What the footer says.

    Attributes:
        row_count: Rows of the file.
        schema: Its columns.
        texts: Key-value metadata that IceDB wrote.
        bounds: Of the columns asked for.
    """

    row_count: int = 0
    schema: ParquetSchema = field(default_factory=ParquetSchema)
    texts: dict[str, str] = field(default_factory=dict)
    bounds: dict[str, ColumnBounds] = field(default_factory=dict)


def parse_parquet_footer(data: bytes, *, data_bytes: int, bounds_of: Collection[str] = ()) -> ParquetFooter:
    """Parse a footer.

    Args:
        data: Its bytes, without the length and the magic bytes behind it.
        data_bytes: Length of the file before the footer: columns must lie in there.
        bounds_of: Columns whose bounds are wanted.

    Raises:
        BadFooter: It cannot be read, or cannot be true.
    """
    try:
        return _FooterParser(data, data_bytes, frozenset(bounds_of)).parse()
    except ThriftError as error:
        raise BadFooter(f"its footer is damaged: {error}") from error


class _FooterParser:
    """Parses one footer."""

    def __init__(self, data: bytes, data_bytes: int, bounds_of: frozenset[str]) -> None:
        self._reader = ThriftReader(data)
        self._data_bytes = data_bytes
        self._bounds_of = bounds_of
        self._schema: ParquetSchema | None = None
        self._gathered: dict[int, GatheredBounds] = {}
        self._group_rows = 0
        self._texts: dict[str, str] = {}

    def parse(self) -> ParquetFooter:
        reader = self._reader
        row_count = -1
        for number, kind in reader.fields():
            if number == 2:  # noqa: PLR2004 - field numbers of parquet.thrift, here and below
                self._read_schema(kind)
            elif number == 3:  # noqa: PLR2004
                row_count = reader.integer(kind)
            elif number == 4:  # noqa: PLR2004
                for item in reader.items(kind):
                    self._read_group(item)
            elif number == 5:  # noqa: PLR2004
                for item in reader.items(kind):
                    self._read_text(item)
            else:
                reader.skip(kind)
        if row_count < 0 or self._schema is None:
            raise BadFooter("its footer is damaged: it lacks the schema or the number of rows")
        if row_count != self._group_rows:
            raise BadFooter(f"its footer contradicts itself: {row_count} rows, {self._group_rows} in its row groups")
        leaves = self._schema.leaves
        bounds = {leaves[place].name: gathered.finish(row_count) for place, gathered in self._gathered.items()}
        return ParquetFooter(row_count, self._schema, self._texts, bounds)

    def _read_schema(self, kind: int) -> None:
        if self._schema is not None:
            raise BadFooter("its footer is damaged: it has two schemas")
        self._schema = read_schema(self._reader, kind)
        self._gathered = {
            place: GatheredBounds()
            for place, leaf in enumerate(self._schema.leaves)
            if leaf.name in self._bounds_of and leaf.sql_type is not None
        }

    def _read_text(self, kind: int) -> None:
        if kind != STRUCT:
            raise BadFooter("its footer is damaged: its metadata is no list of pairs")
        name = value = ""
        for number, field_kind in self._reader.fields():
            if number == 1:
                name = self._reader.text(field_kind)
            elif number == 2:  # noqa: PLR2004
                value = self._reader.text(field_kind)
            else:
                self._reader.skip(field_kind)
        if name.startswith("icedb."):
            self._texts[name] = value

    def _read_group(self, kind: int) -> None:
        if kind != STRUCT or self._schema is None:
            raise BadFooter("its footer is damaged: a row group that belongs to no schema")
        rows = column_count = 0
        stats: dict[int, Statistics] = {}
        for number, field_kind in self._reader.fields():
            if number == 1:
                for item in self._reader.items(field_kind):
                    found = self._read_chunk(item, is_wanted=column_count in self._gathered)
                    if found is not None:
                        stats[column_count] = found
                    column_count += 1
            elif number == 3:  # noqa: PLR2004
                rows = self._reader.integer(field_kind)
            else:
                self._reader.skip(field_kind)
        if rows < 0 or column_count != len(self._schema.leaves):
            raise BadFooter("its footer is damaged: a row group does not have the columns of the schema")
        self._group_rows += rows
        for place, gathered in self._gathered.items():
            gathered.add(stats.get(place), self._schema.leaves[place], rows)

    def _read_chunk(self, kind: int, *, is_wanted: bool) -> Statistics | None:
        if kind != STRUCT:
            raise BadFooter("its footer is damaged: a column of a row group is no struct")
        found: Statistics | None = None
        for number, field_kind in self._reader.fields():
            if number == 1 and self._reader.binary(field_kind):
                raise BadFooter("it is a summary of other files, and has no rows itself")
            if number == 3 and field_kind == STRUCT:  # noqa: PLR2004
                found = self._read_chunk_metadata(is_wanted=is_wanted)
            elif number != 1:
                self._reader.skip(field_kind)
        return found

    def _read_chunk_metadata(self, *, is_wanted: bool) -> Statistics | None:
        reader, found = self._reader, None
        length = data_start = dictionary_start = 0
        for number, kind in reader.fields():
            if number == 7:  # noqa: PLR2004
                length = reader.integer(kind)
            elif number == 9:  # noqa: PLR2004
                data_start = reader.integer(kind)
            elif number == 11:  # noqa: PLR2004
                dictionary_start = reader.integer(kind)
            elif number == 12 and is_wanted and kind == STRUCT:  # noqa: PLR2004
                found = read_statistics(reader)
            else:
                reader.skip(kind)
        start = dictionary_start or data_start
        if start < 0 or length < 0 or start + length > self._data_bytes:
            raise BadFooter("its footer names bytes that the file does not have: it is damaged or cut")
        return found
