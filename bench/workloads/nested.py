"""W=nested: the five queries of JSONBench over nested events in several forms, what these take, and what paths cost.

The events are generated, of the shape of JSONBench's. Ours is one table with the paths of the queries promoted, read
by these columns and by its text; *flattened Parquet* has the same columns beside the text, made by hand. All are in the
order of the same columns, and answers are compared with those of the flattened file. One thread, in memory.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

import duckdb
import pyarrow as pa

from bench.figures import OURS, Figure, TakesTurns
from bench.harness import ONE_TURN_S, Case, Workload
from bench.nested_events import make_batches, write_table
from bench.nested_keys import Backfill, CopyFiles, CountByKind, Flush, Merge
from bench.nested_work import COLUMNS, PATHS, QUERIES, TEXT
from bench.processes import Remote, started
from bench.serve import Peer

RUNS: Final = 3
PATH_COUNTS: Final = (0, 5, 20)
FLAT: Final = "flattened Parquet"
PLAIN: Final = f"{OURS}, plain columns"
COMMON: Final = f"{OURS}, no rare keys"
COPY: Final = "bound: copy of the files"
MANY: Final = 10
"""In a full run fifty keys and the backfill have so many times the events of the other cases."""
LEVEL: Final = 3
"""Of zstd, as its command has it."""
MB: Final = 1e6


class Asking(TakesTurns):
    """The queries, over events in one form."""

    def __init__(self, holder: Remote, name: str, answers: dict[str, Any]) -> None:
        self.name = name
        self._holder = holder
        self._answers = answers
        self._took: dict[str, float] = {}

    def run(self) -> None:
        """Run all queries."""
        for query in QUERIES:
            self._took[query], rows = self._holder.ask("measure", query, self._answers.get(query), RUNS)
            self._answers.setdefault(query, rows)

    def check(self) -> Sequence[Figure]:
        """Return what each took; the holder has compared the answers."""
        mean = geometric_mean([max(each, 1e-3) for each in self._took.values()])
        return (Figure("mean_query", "ms", mean), *(Figure(query, "ms", took) for query, took in self._took.items()))


class Size(TakesTurns):
    """What one form takes on disk."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self.name = name
        self._size_bytes = size_bytes

    def run(self) -> None:
        """There is nothing to do."""

    def check(self) -> Sequence[Figure]:
        """Return the size."""
        return (Figure("size", "MB", self._size_bytes / MB),)


class Ingest(TakesTurns):
    """Batches that become an unsorted table with so many promoted paths."""

    def __init__(self, folder: Path, batches: Sequence[bytes], path_count: int) -> None:
        self.name = OURS if path_count == 0 else f"{OURS}, {path_count} paths"
        self._folder = folder
        self._batches = batches
        self._path_count = path_count
        self._table: Any = None

    def run(self) -> None:
        """Append all batches."""
        self._table = write_table(self._folder, self._batches, path_count=self._path_count)

    def check(self) -> Sequence[Figure]:
        """Count the rows, and the values of the first path."""
        rows = self._table.snapshot().row_count
        expected = sum(batch.count(b"\n") for batch in self._batches)
        assert rows == expected, f"{rows} rows, not {expected}"
        return (Figure("size", "MB", self._table.snapshot().size_bytes / MB),)


class NestedWorkload(Workload):
    """Queries, sizes and ingest of JSONBench's events; events of fifty keys; a backfill."""

    description = (
        "nested events as JSONBench has them: its five queries by one thread in ms, over our table by promoted paths "
        "and by its text, over Parquet that was flattened by hand, and over the JSON types of DuckDB and ClickHouse; "
        "what each takes on disk; and how long batches take to become a table with 0, 5 and 20 promoted paths. Events "
        "of fifty keys, of which thirty are some of 10,000: flushed, merged, counted by a path. A path promoted in a "
        "table that has its rows"
    )

    def cases(self) -> Iterator[Case]:
        """Write the events in all forms, then ask."""
        count = self.options.event_count * (MANY if self.options.size == "full" else 1)
        if self.wants("50 keys"):
            yield from self._keys(count)
        if self.wants("backfill"):
            root = self.folder / "backfill"
            with started(Backfill(OURS, root, count), CopyFiles(COPY, root, self.folder / "copies")) as systems:
                yield Case("backfill", count, systems, warm_turn_count=0)
            shutil.rmtree(root)
        if any(map(self.wants, ("queries", "size", "ingest"))):
            yield from self._jsonbench()

    def _keys(self, count: int) -> Iterator[Case]:
        roots = {name: self.folder / name for name in (OURS, COMMON, PLAIN)}
        more: dict[str, dict[str, bool]] = {OURS: {}, COMMON: {"has_rare": False}, PLAIN: {"is_plain": True}}
        for step in (Flush, Merge):
            with started(*(step(name, roots[name], count, **more[name]) for name in roots)) as systems:
                name = f"50 keys, {step.__name__.lower()}"
                yield Case(name, count, systems, warm_turn_count=0, patience_s=ONE_TURN_S)
        answers: list[Any] = []
        readers = [CountByKind(name, root, count, answers) for name, root in roots.items() if name != COMMON]
        yield Case("50 keys, read", count, readers, warm_turn_count=1, is_timed=False)
        for root in roots.values():
            shutil.rmtree(root)

    def _jsonbench(self) -> Iterator[Case]:
        batches = list(make_batches(self.options.event_count))
        source = self.folder / "events.ndjson"
        source.write_bytes(b"".join(batches))
        if self.wants("queries") or self.wants("size"):
            yield from self._queries(source, batches)
        if self.wants("ingest"):
            systems = [Ingest(self.folder / f"ingest-{count}", batches, count) for count in PATH_COUNTS]
            size_bytes = sum(map(len, batches))
            yield Case("ingest", self.options.event_count, systems, warm_turn_count=1, size_bytes=size_bytes)

    def _queries(self, source: Path, batches: Sequence[bytes]) -> Iterator[Case]:
        root = self.folder / "ours"
        table = write_table(root, batches, path_count=len(PATHS), sort=list(PATHS))
        table.merge()
        ours = [str(root / file.path) for file in table.snapshot().files]
        flat = self.folder / "flat.parquet"
        values = ", ".join(f"{TEXT[name]} AS {name}" for name in PATHS)
        with duckdb.connect() as connection:
            connection.execute(
                f"COPY (SELECT {values}, data FROM read_parquet({ours}) ORDER BY {', '.join(PATHS)}) "
                f"TO '{flat}' (FORMAT parquet, COMPRESSION zstd)"
            )
        works = {
            FLAT: Peer("bench.peers.nested:Parquet", FLAT, COLUMNS, [str(flat)]),
            OURS: Peer("bench.peers.nested:Parquet", OURS, COLUMNS, ours),
            f"{OURS}, text": Peer("bench.peers.nested:Parquet", f"{OURS}, text", TEXT, ours),
            "duckdb, JSON": Peer("bench.peers.nested:DuckDB", "duckdb, JSON", TEXT, source, self.folder),
            "clickhouse, JSON": Peer("bench.peers.nested:ClickHouse", "clickhouse, JSON", source, self.folder),
        }
        with _started(works) as holders:
            if self.wants("queries"):
                answers: dict[str, Any] = {}
                systems = [Asking(holder, name, answers) for name, holder in holders.items()]
                yield Case("queries", 1, systems, warm_turn_count=1, is_timed=False)
            if self.wants("size"):
                sizes = {name: holder.ask("size_bytes") for name, holder in holders.items()}
                sizes |= {FLAT: flat.stat().st_size, OURS: sum(Path(path).stat().st_size for path in ours)}
                sizes["bound: zstd of the source"] = _compress(source)
                forms = [Size(name, size_bytes) for name, size_bytes in sizes.items() if size_bytes]
                yield Case("size", 1, forms, warm_turn_count=0, is_timed=False)


@contextmanager
def _started(works: dict[str, Peer]) -> Iterator[dict[str, Remote]]:
    """Start a process for each; they end with the block."""
    remotes: dict[str, Remote] = {}
    try:
        for name, work in works.items():
            remotes[name] = Remote(is_peer=True)
            remotes[name].take(work)
        yield remotes
        for remote in remotes.values():
            remote.ask("close")
    finally:
        for remote in remotes.values():
            remote.close()


def _compress(source: Path) -> int:
    """Return what a file takes by zstd."""
    return len(pa.Codec("zstd", compression_level=LEVEL).compress(source.read_bytes(), asbytes=True))
