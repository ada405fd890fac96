"""Of a large data file only the columns and row groups that are read are fetched; rows are those of the whole file."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_engine.reading import column_ranges
from icedb_engine.units.read_unit import read_files
from icedb_log.errors import CorruptLog, NotFound
from icedb_sim.tables.profiles import SHARED_FIXTURES
from sorted_files import COLUMNS, CONDITIONS, Files, make_rows, row, sorts


class CountingStore:
    """Counts the bytes that leave a store."""

    def __init__(self, store):
        self._store = store
        self.byte_count = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def download(self, key, path):
        self._store.download(key, path)
        self.byte_count += path.stat().st_size

    def get_range(self, key, **told):
        found = self._store.get_range(key, **told)
        self.byte_count += len(found.body)
        return found


def read(table, columns, *files, **more):
    """Return the rows of some files, and how many bytes of them were fetched."""
    store = CountingStore(table.store)
    unit = table.read_unit(columns, *files, **more)
    rows = [row for chunk in read_files(unit, store) for row in chunk.to_pylist()]
    return rows, store.byte_count


def as_text(rows):
    return sorted(map(repr, rows))


@given(
    rows=st.lists(row, min_size=1, max_size=40),
    missing=st.sets(st.sampled_from(list(COLUMNS)[:-1]), max_size=2),
    columns=st.sets(st.sampled_from(list(COLUMNS)), min_size=1, max_size=3),
    where=st.sampled_from([None, *CONDITIONS, "false"]),
    sort=sorts,
)
@settings(max_examples=40, deadline=None, suppress_health_check=SHARED_FIXTURES)
def test_rows_are_those_of_the_whole_file(make_table, tmp_path_factory, rows, missing, columns, where, sort):
    made = Files(make_table, sort=sort)
    file = made.put(make_rows(rows, 0).drop_columns(sorted(missing)), tmp_path_factory.mktemp("files"))
    wanted = tuple(name for name in COLUMNS if name in columns)
    whole, _ = read(made.table, COLUMNS, file, where=where, wanted=wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_ranges, "SMALL_FILE_BYTES", 0)
        patch.setattr(column_ranges, "GAP_BYTES", 0)
        patch.setattr(column_ranges, "WORTH_SHARE", 0)
        found, _ = read(made.table, COLUMNS, file, where=where, wanted=wanted)
    assert as_text(found) == as_text(whole)


@pytest.fixture
def wide(make_table, tmp_path, monkeypatch):
    """A file of twelve row groups, most bytes of which are text."""
    monkeypatch.setattr(column_ranges, "GAP_BYTES", 0)
    made = Files(make_table, sort=("i",))
    made.table.config = made.table.config.model_copy(update={"row_group_rows": 2048})
    rng = np.random.default_rng(7)
    rows = make_rows([{"i": n, "f": n / 4} for n in range(24_576)], 0)
    texts = pa.array([rng.bytes(64).hex() for _ in range(rows.num_rows)])
    rows = rows.set_column(rows.column_names.index("s"), "s", texts)
    return made, write(made, rows, tmp_path), rows


def write(made, rows, folder):
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr("sorted_files.GROUP_ROWS", 2048)
        return made.put(rows, folder)


def test_few_columns_are_few_bytes(wide):
    made, file, _ = wide
    assert file.size_bytes > column_ranges.SMALL_FILE_BYTES
    everything, whole_bytes = read(made.table, COLUMNS, file)
    found, few_bytes = read(made.table, {"i": "BIGINT", "f": "DOUBLE"}, file)
    assert [(each["c0"], each["c1"]) for each in found] == [(each["c1"], each["c2"]) for each in everything]
    assert whole_bytes >= file.size_bytes, "most of it is asked for: nothing is to be gained"
    assert few_bytes < file.size_bytes / 5


def test_row_groups_that_no_condition_can_fulfil_stay_where_they_are(wide):
    made, file, rows = wide
    columns = {"i": "BIGINT", "s": "VARCHAR"}
    found, byte_count = read(made.table, columns, file, where="i BETWEEN 4096 AND 4099")
    assert [each["c0"] for each in found] == [4096, 4097, 4098, 4099]
    assert [each["c1"] for each in found] == rows["s"].slice(4096, 4).to_pylist()
    assert byte_count < file.size_bytes / 4
    nothing, footer_bytes = read(made.table, columns, file, where="i < 0")
    assert nothing == []
    assert footer_bytes < byte_count


def test_row_groups_of_which_too_little_is_known_are_read(wide, tmp_path):
    made, _, rows = wide
    times = pa.array([400_000_000_000_000_000] * rows.num_rows).cast(pa.timestamp("us"))  # in the year 14645
    file = write(made, rows.set_column(rows.column_names.index("t"), "t", times), tmp_path)
    found, byte_count = read(made.table, {"i": "BIGINT", "t": "TIMESTAMP"}, file, where="i < 2", wanted=("i",))
    assert [each["c0"] for each in found] == [0, 1]
    assert byte_count < file.size_bytes / 4


def test_other_files_are_fetched_whole(wide, monkeypatch):
    made, file, rows = wide
    columns = {"i": "BIGINT"}
    foreign = made.table.put_file(rows, "foreign", compression="zstd")
    assert read(made.table, columns, foreign)[1] > foreign.size_bytes
    narrow = made.table.put_file(rows.set_column(1, "i", rows["i"].cast(pa.int32())), "narrow")
    assert len(read(made.table, columns, narrow)[0]) == rows.num_rows
    monkeypatch.setattr(column_ranges, "SMALL_FILE_BYTES", file.size_bytes)
    assert read(made.table, columns, file)[1] == file.size_bytes


def test_what_is_damaged_or_gone_is_named(wide):
    made, file, _ = wide
    body = bytearray(made.table.store.get(file.path).body)
    chunk = pq.read_metadata(pa.BufferReader(bytes(body))).row_group(3).column(1)
    body[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    made.table.store.put(file.path, bytes(body))
    with pytest.raises(CorruptLog, match="cannot be read"):
        read(made.table, {"i": "BIGINT"}, file)
    assert len(read(made.table, {"f": "DOUBLE"}, file)[0]) == 24_576, "of that column nothing is damaged"
    made.table.store.delete([file.path])
    with pytest.raises(NotFound, match="is gone from the store"):
        read(made.table, {"i": "BIGINT"}, file)
