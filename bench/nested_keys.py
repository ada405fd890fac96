"""Tables of events with fifty keys, and a path that is promoted in rows that are there. Deterministic."""

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any, Final

import duckdb
from icedb import connect
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.clock import SystemClock
from icedb_log.table.promoted_paths import add_promotions, parse_promotions

from bench.figures import MS, Figure, TakesTurns
from bench.nested_events import MAX_BATCH_ROWS, MORE_PATHS, make_batches, write_table
from bench.nested_work import PATHS

BATCHES: Final = 100
COMMON_KEYS: Final = 20
OTHER_KEYS: Final = 30
RARE_KEYS: Final = 10_000
KINDS: Final = 8
FILES: Final = 20
"""That merges leave, about."""
_BYTES_OF_ROW: Final = 300
"""In a data file, about."""
_RUNS: Final = 5
_PATHS: Final = ("p.number:BIGINT as number", "p.kind as kind")


def make_key_batches(count: int, *, has_rare: bool, is_plain: bool) -> Iterator[bytes]:
    """Yield batches of events with an object of fifty keys.

    Args:
        count: Events.
        has_rare: Thirty keys of each are some of ten thousand; else all events have the same.
        is_plain: Number and kind stand beside the object, too.
    """
    chance = random.Random(50)
    names = [f'"r{number:04}":' for number in range(RARE_KEYS)]
    step = RARE_KEYS // OTHER_KEYS
    batch_rows = min(MAX_BATCH_ROWS, -(-count // BATCHES))
    for start in range(0, count, batch_rows):
        lines = []
        for number in range(start, min(count, start + batch_rows)):
            value = chance.getrandbits(60)
            own = f'"number":{number},"kind":"kind {value % KINDS}"'
            common = ",".join(f'"c{key:02}":{value >> key & 0xFFFF}' for key in range(COMMON_KEYS - len(_PATHS)))
            first = value % step if has_rare else 0
            other = ",".join(f"{names[first + step * key]}{value >> key & 0xFF}" for key in range(OTHER_KEYS))
            beside = f"{own}," if is_plain else ""
            lines.append(f'{{{beside}"p":{{{own},{common},{other}}}}}\n')
        yield "".join(lines).encode()


class _Work(TakesTurns):
    """A table of such events in a process of its own: one step of its life.

    Args:
        name: What it is called.
        root: Folder of the warehouse.
        count: Events.
        has_rare: As in :func:`make_key_batches`.
        is_plain: The columns are sent as such; else they are promoted, and whatever else is frequent in events with
            rare keys.
    """

    def __init__(self, name: str, root: Path, count: int, *, has_rare: bool = True, is_plain: bool = False) -> None:
        self.name = name
        self._root = root
        self._count = count
        self._has_rare = has_rare
        self._is_plain = is_plain

    def check(self) -> Sequence[Figure]:
        """Count rows, columns and bytes."""
        snapshot = connect(self._root).table("events").snapshot()
        assert snapshot.row_count == self._count, f"{snapshot.row_count} rows, not {self._count}"
        return (
            Figure("columns", "columns", len(snapshot.schema)),
            Figure("files", "files", len(snapshot.files)),
            Figure("size", "MB", snapshot.size_bytes / 1e6),
        )


class Flush(_Work):
    """Batches become a table."""

    def run(self) -> None:
        """Append all of them, each in a commit."""
        shutil.rmtree(self._root, ignore_errors=True)
        table = connect(self._root).create_table(
            "events",
            columns={"p": "VARCHAR"},
            promote=() if self._is_plain else [*_PATHS, *["p.*"] * self._has_rare],
            sort=["number"],
            target_file_bytes=max(1 << 20, self._count * _BYTES_OF_ROW // FILES),
            row_group_rows=max(2048, self._count // (4 * FILES)),
        )
        for batch in make_key_batches(self._count, has_rare=self._has_rare, is_plain=self._is_plain):
            table.append(batch)


class Merge(_Work):
    """The data files of a table are merged."""

    def run(self) -> None:
        """Merge all of them; columns that are frequent are promoted before."""
        connect(self._root).table("events").merge(full=True)


class CountByKind(TakesTurns):
    """Reads a table: how many rows have each value of a column, and which files may hold some of the sort column's.

    Args:
        name: What it is called.
        root: Folder of the warehouse.
        count: Events.
        answers: What was counted, for all systems to find the same.
    """

    def __init__(self, name: str, root: Path, count: int, answers: list[Any]) -> None:
        self.name = name
        self._table = connect(root).table("events")
        self._root = root
        self._count = count
        self._answers = answers
        self._took_ms = 0.0

    def run(self) -> None:
        """Count by one thread, some times; what counts is the processor's time."""
        files = [str(self._root / file.path) for file in self._table.snapshot().files]
        took = []
        with duckdb.connect(config={"threads": 1}) as connection:
            for _ in range(_RUNS):
                began_s = process_time()
                rows = connection.execute(
                    f"SELECT kind, count(*) FROM read_parquet({files}) GROUP BY kind ORDER BY kind"
                ).fetchall()
                took.append(MS * (process_time() - began_s))
                self._answers.append(rows)
        self._took_ms = min(took)

    def check(self) -> Sequence[Figure]:
        """Compare the answers, and count the files that a condition leaves."""
        assert all(rows == self._answers[0] for rows in self._answers), self._answers
        first = self._count // 2
        files = self._table.snapshot(where=f"number >= {first} AND number < {first + self._count // FILES}").files
        return (
            Figure("count_by_kind", "ms", self._took_ms),
            Figure("files_of_some", "files", len(files)),
        )


class Backfill(TakesTurns):
    """A path is promoted in a table that has its rows, another one in each turn.

    Args:
        name: What it is called.
        root: Folder of the warehouse.
        count: Events.
    """

    def __init__(self, name: str, root: Path, count: int) -> None:
        self.name = name
        self._root = root
        self._count = count
        self._paths = iter((*PATHS.values(), *MORE_PATHS))
        self._column = ""

    def prepare(self) -> None:
        """Write the table, once."""
        if not self._root.exists():
            write_table(self._root, make_batches(self._count), path_count=0, target_file_bytes=128 << 20).merge(
                full=True
            )

    def run(self) -> None:
        """Merge until readers see the column."""
        table = connect(self._root).table("events")
        change = add_promotions({}, parse_promotions([f"data.{next(self._paths)}"], option="promote"), option="promote")
        alter_table_config(table.open(), change, clock=SystemClock())
        (self._column,) = change["promoted"]
        while self._column not in table.snapshot().schema:
            table.merge()

    def check(self) -> Sequence[Figure]:
        """See that no value is missing."""
        table = connect(self._root).table("events")
        source, *keys = table.open().config.promoted[self._column]
        path = "$" + "".join(f'."{key}"' for key in keys)
        query = f"""SELECT count("{self._column}"), count({source}->>'{path}') FROM events"""
        ((found, wanted),) = table.query(query).fetchall()
        assert found == wanted, f"{found} values, not {wanted}"
        return ()


class CopyFiles(TakesTurns):
    """The data files of that table are copied.

    Args:
        name: What it is called.
        root: Folder of the warehouse.
        folder: For the copies.
    """

    def __init__(self, name: str, root: Path, folder: Path) -> None:
        self.name = name
        self._root = root
        self._folder = folder

    def prepare(self) -> None:
        """Have an empty folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()

    def run(self) -> None:
        """Copy each."""
        for number, file in enumerate(connect(self._root).table("events").snapshot().files):
            shutil.copyfile(self._root / file.path, self._folder / str(number))

    def check(self) -> Sequence[Figure]:
        """Say how large they are."""
        return (Figure("size", "MB", sum(path.stat().st_size for path in self._folder.iterdir()) / 1e6),)
