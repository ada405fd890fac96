"""Lists of files as Arrow: what pyarrow reads of them, and which parts of a list a commit makes anew."""

import json
import random

import pyarrow as pa
import pytest
from icedb_log.keys import TablePaths
from icedb_log.log.fold import fold
from icedb_log.log.live_files import LiveChunk
from icedb_log.log.markers import DecodedMarkers
from icedb_log.log.state import LogState
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogView
from icedb_log.serving.arrow_files import FileColumns, group_chunks
from icedb_log.table.table_config import PartitionField, TableConfig

PATHS = TablePaths("events", "wh/events")
CONFIG = TableConfig.create(
    name="events", partition=(PartitionField.parse("d=day(ts)"), PartitionField.parse("country")), sort=("n",)
)
PLAIN, BOUNDED = (FileColumns.of(PATHS, CONFIG, with_bounds=with_bounds) for with_bounds in (False, True))

VALUES = (
    None,
    True,
    False,
    0,
    -(2**63),
    2**64,
    1.5,
    -1e300,
    "",
    "a",
    "Zürich \U0001f427",
    "2026-01-02T00:00:00.000000Z",
)


def some_files(chance):
    """Return markers of which some lack rows or statistics, with names of any script."""
    return [
        FileMarker(
            chance.choice(("a", "ü", "\U0001f427", " ")) + str(number),
            chance.choice((0, 1, 2**63 - 1)),
            chance.randrange(2**53),
            row_count=chance.choice((None, 0, 2**63 - 1)),
            stats={
                name: (chance.choice(VALUES), chance.choice(VALUES), chance.randrange(9))
                for name in chance.sample(("ts", "country", "n", "other"), chance.randrange(5))
            },
        )
        for number in range(chance.randint(1, 40))
    ]


def read(columns, parts):
    table = pa.ipc.open_stream(columns.encode_schema() + b"".join(map(columns.encode_part, parts))).read_all()
    table.validate(full=True)
    return table


def chunk_of(markers, partition):
    prefix = f"{PATHS.data_prefix}{partition}/"
    found = sorted(
        (FileMarker(prefix + m.path, m.size_bytes, m.created_ms, None, m.row_count, m.stats) for m in markers),
        key=lambda marker: marker.path,
    )
    source = DecodedMarkers("k", found)
    return LiveChunk(prefix, source.entries(), {source.number: source}, frozenset()), found


@pytest.mark.parametrize("columns", [PLAIN, BOUNDED], ids=["plain", "with bounds"])
@pytest.mark.parametrize("seed", range(20))
def test_pyarrow_reads_what_was_written(seed, columns):
    chance = random.Random(seed)
    one, in_one = chunk_of(some_files(chance), "d=2026-01-02/country=S_c3_a3o")
    two, in_two = chunk_of(some_files(chance), "d=2026-01-03/country=__HIVE_DEFAULT_PARTITION__")
    table = read(columns, [[one, two], [one]])
    markers = [*in_one, *in_two, *in_one]
    assert table["path"].to_pylist() == [marker.path for marker in markers]
    assert table["size_bytes"].to_pylist() == [marker.size_bytes for marker in markers]
    assert table["row_count"].to_pylist() == [marker.row_count for marker in markers]
    assert table["created_ms"].to_pylist() == [marker.created_ms for marker in markers]
    assert table["partition.country"].to_pylist() == [
        "São" if at < len(in_one) or at >= len(in_one) + len(in_two) else None for at in range(len(markers))
    ]
    assert set(table["partition.d"].to_pylist()) == {"2026-01-02", "2026-01-03"}
    if columns is BOUNDED:
        for name in ("ts", "country", "n"):
            known = [marker.stats.get(name) for marker in markers]
            assert table[f"null_count.{name}"].to_pylist() == [None if each is None else each[2] for each in known]
            for at, bound in enumerate(("min", "max")):
                for text, each in zip(table[f"{bound}.{name}"].to_pylist(), known, strict=True):
                    value = None if each is None else each[at]
                    assert (text is None) == (value is None)
                    if value is not None:
                        assert text == (value if isinstance(value, str) else json.dumps(value))


def test_a_list_without_files_has_its_columns():
    assert read(BOUNDED, []).num_rows == 0
    assert read(PLAIN, []).column_names == [
        *("path", "size_bytes", "row_count", "created_ms", "partition.d", "partition.country")
    ]


def log_file(number, partition, count):
    markers = tuple(
        FileMarker(f"{PATHS.data_prefix}{partition}/{number:05d}-{at:05d}.parquet", 10, number, row_count=1)
        for at in range(count)
    )
    key = PATHS.log_key(time_ms=number, commit_id=f"{number:032x}", is_merged=False)
    return ListedLogFile(key, key, number, 1, LogFile(number, {"n": "BIGINT"}, markers, commit_id=f"{number:032x}"))


@pytest.mark.parametrize(
    ("partition_count", "files_each"), [(3, 700), (500, 3)], ids=["large partitions", "many small ones"]
)
def test_a_commit_makes_the_parts_anew_that_its_files_are_in_and_no_others(partition_count, files_each):
    files = [log_file(n, f"d=2026-01-02/country=c{n:04d}", files_each) for n in range(1, partition_count + 1)]
    state, encoded = LogState(), []

    def ask(until):
        live = fold(LogView("events", tuple(until), 0), state=state).live
        parts = list(group_chunks(live.chunks))
        encoded.clear()
        batches = [PLAIN.once(part, lambda batch: (encoded.append(len(batch)), batch)[1]) for part in parts]
        table = pa.ipc.open_stream(PLAIN.encode_schema() + b"".join(batches)).read_all()
        assert table["path"].to_pylist() == live.paths()
        return parts

    parts = ask(files)
    assert len(encoded) == len(parts) <= max(12, partition_count // 8)
    ask(files)
    assert not encoded
    for number in range(1000, 1010):
        files.append(log_file(number, f"d=2026-01-02/country=c{number % partition_count + 1:04d}", 1))
        ask(files)
        assert 1 <= len(encoded) <= 3  # its own; one that became too large is cut in two
        assert max(encoded) < 150 * 700


def test_rows_that_another_log_file_tells_later_are_in_the_list():
    """Of three files in a folder, and in one that shares a part with it, no log file tells the rows at first."""
    names = [f"{PATHS.data_prefix}d=2026-01-02/country={country}/{at}.parquet" for country in "ab" for at in range(3)]

    def said(number, rows):
        markers = tuple(FileMarker(name, 10, 1, row_count=count) for name, count in rows.items())
        key = PATHS.log_key(time_ms=number, commit_id=f"{number:032x}", is_merged=False)
        return ListedLogFile(key, key, number, 1, LogFile(number, {"n": "BIGINT"}, markers, commit_id=f"{number:032x}"))

    state, files, known = LogState(), [], dict.fromkeys(names)
    for number, rows in enumerate((known, {names[0]: 1}, {names[4]: 2}, {names[1]: 3, names[2]: 4}), 1):
        files.append(said(number, rows))
        known = {**known, **rows}
        live = fold(LogView("events", tuple(files), 0), state=state).live
        batches = [PLAIN.once(part, bytes) for part in group_chunks(live.chunks)]
        table = pa.ipc.open_stream(PLAIN.encode_schema() + b"".join(batches)).read_all()
        assert dict(zip(table["path"].to_pylist(), table["row_count"].to_pylist(), strict=True)) == known
