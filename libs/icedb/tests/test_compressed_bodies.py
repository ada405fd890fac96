"""Whatever usual tools write as gzip or zstd is read alike by everybody who looks into a body; other kinds are named."""

import gzip
import hashlib
import io
import struct
import zlib
from functools import partial

import pytest
from icedb_client.bodies import wrap_bytes
from icedb_client.files import preview_lines, split_file
from icedb_engine.errors import BatchRejected
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.batches import decompress
from icedb_engine.reading.unit import read_batch
from icedb_log.content import hash_content, zstd
from icedb_log.errors import InvalidRequest
from icedb_log.formats import sniff_compression

LIMITS = FlushUnitLimits()
ONE, OTHER = (b"".join(b'{"n":%d}\n' % n for n in numbers) for numbers in (range(500), range(500, 999)))
BOTH = ONE + OTHER
LONG = BOTH * 2_000
TAR_BLOCK = 512


def bgzip(text: bytes) -> bytes:
    """Return gzip in blocks of which each says its size, and an empty one at the end."""
    blocks = []
    for part in (*(text[start : start + 1000] for start in range(0, len(text), 1000)), b""):
        deflate = zlib.compressobj(wbits=-15)
        packed = deflate.compress(part) + deflate.flush()
        head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + struct.pack("<H", len(packed) + 25)
        blocks.append(head + packed + struct.pack("<II", zlib.crc32(part), len(part)))
    return b"".join(blocks)


def skipped(size: int, kind: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + kind, size) + b"x" * size


def far(text: bytes) -> bytes:
    options = {zstd.CompressionParameter.enable_long_distance_matching: 1, zstd.CompressionParameter.window_log: 27}
    return zstd.compress(text, options=options)


TAKEN = {
    "gzip -9": (gzip.compress(BOTH, 9), BOTH),
    "gzip members (cat, pigz)": (gzip.compress(ONE) + gzip.compress(OTHER), BOTH),
    "gzip, empty member first": (gzip.compress(b"") + gzip.compress(ONE), ONE),
    "gzip with zeros behind (tape)": (gzip.compress(ONE) + bytes(TAR_BLOCK), ONE),
    "gzip with one zero behind": (gzip.compress(ONE) + b"\0", ONE),
    "gzip with zeros between": (gzip.compress(ONE) + bytes(70_000) + gzip.compress(OTHER) + bytes(3), BOTH),
    "bgzip": (bgzip(BOTH), BOTH),
    "zstd": (zstd.compress(BOTH, 19), BOTH),
    "zstd frames (cat)": (zstd.compress(ONE) + zstd.compress(OTHER), BOTH),
    "pzstd": (skipped(4) + zstd.compress(ONE) + skipped(4) + zstd.compress(OTHER), BOTH),
    "zstd, another skipped frame behind": (zstd.compress(ONE) + skipped(9, 15), ONE),
    "zstd --long=27": (far(LONG), LONG),
}


@pytest.mark.parametrize("case", TAKEN)
def test_streams_of_usual_tools_are_read_alike_everywhere(case):
    packed, text = TAKEN[case]
    suffix = sniff_compression(packed)
    assert suffix == ("gz" if "gzip" in case else "zst")
    assert wrap_bytes(packed).format == f"ndjson.{suffix}"
    assert decompress(packed, suffix, LIMITS) == text
    assert hash_content(packed, f"ndjson.{suffix}") == hashlib.sha256(text).hexdigest()
    bodies = split_file(io.BytesIO(packed))
    assert b"".join(zstd.decompress(body.body) for body in bodies) == text
    assert preview_lines(packed, f"ndjson.{suffix}", limit=1) == (text.split(b"\n")[0].decode(),)


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(ONE)[:-5], gzip.compress(ONE) + b"rest", gzip.compress(ONE) + gzip.compress(OTHER)[:-9],
        gzip.compress(ONE) + b"\0\0rest", zstd.compress(ONE)[:-3], zstd.compress(ONE) + b"\0\0\0\0", zstd.compress(ONE) + b"rest",
    ],
    ids=range(7),
)  # fmt: skip
def test_a_damaged_stream_is_damaged_for_everybody(packed):
    suffix = sniff_compression(packed)
    with pytest.raises(BatchRejected, match="not a complete"):
        decompress(packed, suffix, LIMITS)
    with pytest.raises(InvalidRequest):
        list(split_file(io.BytesIO(packed)))
    assert hash_content(packed, f"ndjson.{suffix}") == hashlib.sha256(packed).hexdigest()


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"\x04\x22\x4d\x18\x64\x40\xa7", "is compressed with lz4: `lz4 -d` it first; only gzip and zstd"),
        (b"\xfd7zXZ\0\0", "is compressed with xz"),
        (b"BZh91AY&SY\x01", "is compressed with bzip2"),
        (b"PK\x03\x04\x14", "is a zip archive"),
        (b"\xff\x06\x00\x00sNaPpY", "is compressed with snappy"),
        (b"\x1f\x9d\x90", "is compressed with compress"),
        ('{"n":1}\n'.encode("utf-16"), "is UTF-16"),
    ],
)
def test_what_nobody_reads_is_named_with_its_remedy_at_every_door(start, words):
    for read in (
        partial(split_file, io.BytesIO(start)),
        partial(wrap_bytes, start),
        partial(wrap_bytes, gzip.compress(start)),
    ):
        with pytest.raises(InvalidRequest, match=words):
            list(read())
    for staging_format in ("ndjson", "csv"):
        with pytest.raises(BatchRejected, match=words):
            read_batch(start, staging_format, LIMITS)
