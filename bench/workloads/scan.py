"""W=scan: how fast engines read our data files, beside files of the same rows that others wrote.

A system is the writer of the files; a case is an engine that reads them by one thread, twelve queries a turn (Arrow:
eight columns). All of ours are read by DuckDB; others read the merged ones. Three things are bounded so that the middle
size ends in twelve minutes: 2,000,000 rows of eight columns and 500,000 of thirty; four queries of files of thirty
columns and of those on S3; and one run of each query by Spark and on S3 where there are three otherwise. Spark does not
read S3 here. To group by a text of which each is another is left out: it is the engine's table that takes its time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from icedb_log.parquet.pages import read_chunks, read_pages

from bench.counting_s3 import take_all
from bench.figures import OURS, Figure, TakesTurns
from bench.harness import ONE_TURN_S, Case, Workload
from bench.processes import Remote
from bench.scan_events import make_events, write_merged, write_ours
from bench.scan_spark import Spark
from bench.scan_work import ALL, COLUMNS, FEW, SORT, SQL, Engine, Files, Took, spell
from bench.serve import Peer
from bench.slow_s3 import running_slow_s3

ROWS_PER_EVENT: Final = 2
"""So many times the events of other workloads: a scan takes milliseconds."""
WIDE_SHARE: Final = 4
"""Files of thirty columns have so small a part of these rows."""
RUNS: Final = 3
LATENCY_MS: Final = 15
LEVEL: Final = 1
"""Of zstd, where sizes are compared that writers would have at the same level."""
NARROW, WIDE = "8 columns", "30 columns"
ARROW: Final = "PyArrow"
IN_PROCESS: Final = ("DuckDB", "Polars", "ClickHouse", ARROW)
SOURCE: Final = "source.parquet"
MB: Final = 1e6


class Size(TakesTurns):
    """The bytes of the files of one writer."""

    def __init__(self, files: Files) -> None:
        self.name = files.name
        self._files = files

    def run(self) -> None:
        """There is nothing to do."""

    def check(self) -> Sequence[Figure]:
        """Return their size, and what they are made of."""
        paths = self._files.paths
        metadata = [pq.read_metadata(path) for path in paths]
        chunks = [
            each.row_group(group).column(column)
            for each in metadata
            for group in range(each.num_row_groups)
            for column in range(each.num_columns)
        ]
        dictionary_count = sum(any("DICTIONARY" in name for name in chunk.encodings) for chunk in chunks)
        delta_count = sum(any("DELTA" in name for name in chunk.encodings) for chunk in chunks)
        return (
            Figure("size", "MB", sum(path.stat().st_size for path in paths) / MB),
            Figure("files", "", len(paths)),
            Figure("row_groups", "", sum(each.num_row_groups for each in metadata)),
            Figure("pages", "", sum(map(_count_pages, paths))),
            Figure("chunks_with_a_dictionary", "%", 100 * dictionary_count / len(chunks)),
            Figure("chunks_of_differences", "%", 100 * delta_count / len(chunks)),
        )


def _count_pages(path: Path) -> int:
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as body:
        return sum(sum(1 for _ in read_pages(body, chunk)) for chunk in read_chunks(body))


@dataclass(frozen=True, slots=True)
class Asked:
    """What an engine is asked.

    Attributes:
        answers: The first row of each query.
        run_count: Runs of each query a turn.
        root: Folder of the buckets, if the files are on S3.
        endpoint: Address of S3.
    """

    answers: Mapping[str, Sequence[Any]]
    run_count: int = RUNS
    root: Path | None = None
    endpoint: str = ""


class Reading(TakesTurns):
    """An engine that reads the files of one writer.

    Args:
        files: These.
        engine: The process in which the engine works; it reads the files of all writers.
        asked: What it is asked.
    """

    def __init__(self, files: Files, engine: Remote, asked: Asked) -> None:
        self.name = files.name
        self._files = files
        self._engine = engine
        self._asked = asked
        self._took: dict[str, Took] = {}

    def prepare(self) -> None:
        """Forget what S3 has counted."""
        if self._asked.endpoint:
            take_all(self._asked.endpoint)

    def run(self) -> None:
        """Run all queries."""
        asked, paths = self._asked, self._files.paths
        names = [str(path) for path in paths] if asked.root is None else self._files.below(asked.root)
        self._took = {
            query: self._engine.ask("measure", names, query, answer, asked.run_count)
            for query, answer in asked.answers.items()
        }

    def check(self) -> Sequence[Figure]:
        """Return what each took; the engine has compared the answers."""
        times = [Figure(query, "ms", took.wall_ms) for query, took in self._took.items()]
        figures = [
            Figure("mean_query", "ms", geometric_mean([max(each.value, 1e-3) for each in times])),
            *times,
            Figure("cpu_time", "ms", sum(took.cpu_ms for took in self._took.values())),
        ]
        if self._asked.endpoint:
            counts = take_all(self._asked.endpoint)
            figures += [
                Figure("requests", "", sum(counts.operations.values()) / self._asked.run_count),
                Figure("read", "MB", counts.sent_bytes / self._asked.run_count / MB),
            ]
        return figures


class ScanWorkload(Workload):
    """One case for each engine and shape of the files; the systems are the writers of the files."""

    description = (
        "how fast engines read data files, one thread, in ms: the same events of 8 and of 30 columns, sorted by event "
        "and time, one file of each writer at its defaults; **icedb** is merged, *flushed* is not; the mean of queries "
        "is the geometric one"
    )

    def cases(self) -> Iterator[Case]:
        """Have all writers write, then let each engine read the files of each."""
        count = ROWS_PER_EVENT * self.options.event_count
        with _started(Spark()) as spark:
            yield from self._narrow(make_events(count), self.folder / "narrow", spark)
            yield from self._wide(make_events(count // WIDE_SHARE, is_wide=True), self.folder / "wide", spark)

    def _narrow(self, rows: pa.Table, folder: Path, spark: Remote) -> Iterator[Case]:
        answers = _write_source(rows, folder)
        all_ours = write_ours(rows, folder / "ours")
        ours = [files for files in all_ours if files.name == OURS]
        peers = _write_peers(folder, spark)
        yield from self._compare_sizes(NARROW, all_ours, peers, _write_peers(folder, spark, level=LEVEL))
        of_columns = dict.fromkeys(COLUMNS, (rows.num_rows,))
        for name in IN_PROCESS:
            with _started(Peer(f"bench.peers.scan:{name}")) as engine:
                asked = Asked(of_columns if name == ARROW else answers)
                written = [*(all_ours if name == "DuckDB" else ours), *peers]
                yield from self._read(f"{name}, {NARROW}", written, engine, asked)
        yield from self._read(f"Spark, {NARROW}", [*ours, *peers], spark, Asked(answers, run_count=1))
        few = {query: answers[query] for query in FEW}
        with running_slow_s3(folder, self.folder / "s3", latency_ms=LATENCY_MS) as endpoint:
            for name in IN_PROCESS:
                with _started(Peer(f"bench.peers.scan:{name}", endpoint)) as engine:
                    of_s3 = {"url": (rows.num_rows,)} if name == ARROW else few
                    asked = Asked(of_s3, run_count=1, root=folder, endpoint=endpoint)
                    where = f"{name}, {NARROW}, S3 with {LATENCY_MS} ms a request"
                    yield from self._read(where, [*ours, *peers], engine, asked)

    def _wide(self, rows: pa.Table, folder: Path, spark: Remote) -> Iterator[Case]:
        few = {query: answer for query, answer in _write_source(rows, folder).items() if query in FEW}
        ours, peers = [write_merged(rows, folder / "ours")], _write_peers(folder, spark)
        yield from self._compare_sizes(WIDE, ours, peers, _write_peers(folder, spark, level=LEVEL))
        for name in IN_PROCESS:
            with _started(Peer(f"bench.peers.scan:{name}")) as engine:
                asked = Asked({ALL: (rows.num_rows,)} if name == ARROW else few)
                yield from self._read(f"{name}, {WIDE}", [*ours, *peers], engine, asked)
        yield from self._read(f"Spark, {WIDE}", [*ours, *peers], spark, Asked(few, run_count=1))

    def _compare_sizes(
        self, shape: str, ours: Sequence[Files], peers: Sequence[Files], at_level: Sequence[Files]
    ) -> Iterator[Case]:
        for name, written in ((f"size, {shape}", peers), (f"size, {shape}, all with zstd at level {LEVEL}", at_level)):
            if self.wants(name):
                sizes = [Size(files) for files in (*ours, *written)]
                yield Case(name, 1, sizes, warm_turn_count=0, is_timed=False)

    def _read(self, name: str, written: Sequence[Files], engine: Remote, asked: Asked) -> Iterator[Case]:
        if self.wants(name):
            systems = [Reading(files, engine, asked) for files in written]
            patience_s = ONE_TURN_S if asked.endpoint else None
            yield Case(name, 1, systems, warm_turn_count=1, is_timed=False, patience_s=patience_s)


@contextmanager
def _started(work: Engine | Peer) -> Iterator[Remote]:
    """Start a process for some work; it ends with the block."""
    remote = Remote(is_peer=isinstance(work, Peer))
    try:
        remote.take(work)
        yield remote
        remote.ask("close")
    finally:
        remote.close()


def _write_source(rows: pa.Table, folder: Path) -> dict[str, Sequence[Any]]:
    """Write what peers begin with; return the answers of all queries."""
    folder.mkdir()
    source = folder / SOURCE
    pq.write_table(rows.sort_by([(column, "ascending") for column in SORT]), source, compression="none")
    with duckdb.connect() as connection:
        return {
            query: connection.execute(spell(query, files=f"read_parquet('{source}')", time="TIMESTAMP '{}'")).fetchone()
            or ()
            for query in SQL
        }


def _write_peers(folder: Path, spark: Remote, *, level: int | None = None) -> list[Files]:
    """Have the peers write, with zstd at a level, or as each does that is told nothing."""
    source, written = folder / SOURCE, folder / f"peers-{level or 'default'}"
    with _started(Peer("bench.peers.scan:Writers", source, written)) as writers:
        files: list[Files] = writers.ask("write", level)
    return [*files, spark.ask("write", source, written / "spark", level)]
