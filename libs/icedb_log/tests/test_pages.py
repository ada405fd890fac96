"""Pages of real Parquet files, read without an engine: flipped bytes are found, and nothing else ends the reading."""

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_log.parquet import pages
from icedb_log.parquet.file_reads import ParquetPageReader
from icedb_log.parquet.pages import check_page_sums, read_chunks, read_pages
from icedb_log.parquet.schema import DamagedFile
from icedb_log.store.object_store import ObjectInfo
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Effect, Fault, ScriptedStore

ROWS = pa.table(
    {
        "n": pa.array([*range(500), None], pa.int64()),
        "s": pa.array([f"word {number % 7}" for number in range(500)] + [None]),
        "l": pa.array([[1, 2], None, []] * 167),
        "none": pa.nulls(501, pa.string()),
    }
)


def parquet(rows=ROWS, **options):
    sink = io.BytesIO()
    pq.write_table(rows, sink, **{"write_page_checksum": True, "compression": "zstd", "row_group_size": 200, **options})
    return sink.getvalue()


def look(body):
    store = MemoryObjectStore(lambda: 1)
    store.put("f", body)
    (found,) = ParquetPageReader(store, threads=1).read_pages([store.head("f")])
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"data_page_version": "2.0"}, {"compression": "none"}, {"write_batch_size": 10, "data_page_size": 50}],
)
def test_a_file_as_it_was_written_is_sound(options):
    found = look(parquet(**options))
    assert (found.cause, found.unsummed_count) == (None, 0)
    assert found.page_count >= 12


def test_every_byte_of_every_page_counts():
    body = parquet()
    found = [page for chunk in read_chunks(body) for page in read_pages(body, chunk)]
    assert sum(page.end - page.start for page in found) > len(body) / 4
    for page in found:
        for place in range(page.start, page.end):
            damaged = bytearray(body)
            damaged[place] ^= 1 << place % 8
            with pytest.raises(DamagedFile, match=f"the page at byte {page.start} has another checksum"):
                check_page_sums(bytes(damaged))


def page_starts(body):
    return [page.start for chunk in read_chunks(body) for page in read_pages(body, chunk)]


def test_no_damage_whatsoever_ends_the_reading():
    body, chance = parquet(), random.Random(7)
    for _ in range(1000):
        damaged = bytearray(body)
        for _ in range(chance.choice((1, 3, 60))):
            damaged[chance.randrange(len(body))] = chance.randrange(256)
        found = look(bytes(damaged[: chance.choice((len(body), chance.randrange(len(body))))]))
        assert found.cause in (None, "damaged")


def test_pages_without_checksums_are_counted_and_decompressed():
    body = parquet(write_page_checksum=False)
    found = look(body)
    assert found.cause is None
    assert found.unsummed_count == found.page_count > 0
    chance, seen = random.Random(7), 0
    for _ in range(100):
        damaged = bytearray(body)
        for start in chance.sample(page_starts(body), 3):
            damaged[start + 9] ^= 255
        seen += look(bytes(damaged)).cause == "damaged"
    assert seen > 50, "most damage ends zstd, and there is no other way to see it"


def test_a_page_that_says_to_be_huge_is_not_decompressed(monkeypatch):
    monkeypatch.setattr(pages, "MAX_UNPACKED_BYTES", 100)
    rows = pa.table({"s": ["a" * 10_000] * 10})
    body = bytearray(parquet(rows, write_page_checksum=False, use_dictionary=False))
    body[page_starts(bytes(body))[0]] ^= 255
    found = look(bytes(body))
    assert (found.cause, found.unsummed_count) == (None, 1)
    monkeypatch.undo()
    assert look(bytes(body)).cause == "damaged"


def test_values_that_are_missing_are_found():
    """A header has no checksum: what it says of its values is held against the footer."""
    body = bytearray(
        parquet(pa.table({"n": pa.array(range(60), pa.int64())}), compression="none", use_dictionary=False)
    )
    (page,) = read_pages(bytes(body), next(read_chunks(bytes(body))))
    at = body.index(bytes([60 << 1]), 4, page.start)  # zigzag
    body[at] -= 2
    assert "its pages have 59 values, its footer says 60" in look(bytes(body)).reason


def test_an_answer_that_does_not_come_is_no_damage():
    store = ScriptedStore(MemoryObjectStore(lambda: 1))
    store.put("f", parquet())
    info = store.head("f")
    store.script = [Fault("download", Effect.UNAVAILABLE)]
    gone = ObjectInfo("gone", "", 10, 0)
    found = list(ParquetPageReader(store, threads=1).read_pages([info, gone, info]))
    assert [each.cause for each in found] == ["unanswered", "gone", None]


def test_an_empty_file_is_damaged():
    assert look(b"").cause == "damaged"
