"""Footers of row files: what :class:`~icedb_log.parquet.footer.FooterReader` gives, for tests without Parquet."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from icedb_log.errors import NotFound, PreconditionFailed, Unavailable
from icedb_log.parquet.footer import ColumnBounds, Footer, UnreadableFooter, read_origin
from icedb_log.store.object_store import ObjectInfo, ObjectStore

from icedb_sim.tables.row_files import row_type


@dataclass(frozen=True, slots=True)
class RowFooterReader:
    """Reads the rows of a row file, and its last line, as a footer. One file after another, in the caller's thread."""

    store: ObjectStore

    def read_footers(
        self, infos: Iterable[ObjectInfo], *, bounds_of: Iterable[str] = ()
    ) -> Iterator[Footer | UnreadableFooter]:
        """Read the footers of any number of files."""
        wanted = tuple(bounds_of)
        for info in infos:
            try:
                yield _read(info, self.store.get(info.key, if_match=info.etag or None).body, wanted)
            except NotFound:
                yield UnreadableFooter(info, "gone", "it is gone since it was listed")
            except PreconditionFailed:
                yield UnreadableFooter(info, "changed", "it changed since it was listed")
            except Unavailable as error:
                yield UnreadableFooter(info, "unanswered", str(error))


def _read(info: ObjectInfo, body: bytes, wanted: tuple[str, ...]) -> Footer | UnreadableFooter:
    lines = [line for line in body.split(b"\n") if line]
    try:
        texts = orjson.loads(lines.pop()[1:]) if lines and lines[-1].startswith(b"#") else {}
        rows: list[dict[str, Any]] = [orjson.loads(line) for line in lines]
    except orjson.JSONDecodeError as error:
        return UnreadableFooter(info, "damaged", f"its footer is damaged: {error}")
    columns: dict[str, str] = {}
    for row in rows:
        columns.update({name: row_type(value) for name, value in row.items() if value is not None})
    return Footer(
        info=info,
        row_count=len(rows),
        columns=columns,
        origin=read_origin(texts),
        bounds={name: _bounds(name, rows) for name in wanted if name in columns},
    )


def _bounds(name: str, rows: list[dict[str, Any]]) -> ColumnBounds:
    values = [row[name] for row in rows if row.get(name) is not None]
    return ColumnBounds(min(values), max(values), len(rows) - len(values), is_exact=True)
