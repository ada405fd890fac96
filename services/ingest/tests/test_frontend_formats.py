"""Formats of bodies: which header means what, and the looks at a body that are cheap. Keys of producers."""

import gzip

import pytest
from backports import zstd
from icedb_ingest.frontend.errors import BatchTooLarge, UnsupportedMedia
from icedb_ingest.frontend.formats import (
    HEAD_BYTES,
    MEDIA_TYPES,
    check_body,
    decompress,
    parse_content_encoding,
    parse_content_type,
)
from icedb_ingest.frontend.http_endpoint import parse_key
from icedb_log.errors import InvalidRequest
from icedb_log.formats import FORMATS, STAGING_FORMATS, join_format

UUID7 = "018f0000-0000-7000-8000-000000000000"


def test_every_staging_format_can_be_said_with_headers():
    said = set()
    for container in MEDIA_TYPES.values():
        for compression in ("", "gz", "zst"):
            if compression and not FORMATS[container].is_text:
                with pytest.raises(InvalidRequest, match="has its own compression"):
                    join_format(container, compression)
            else:
                said.add(join_format(container, compression))
    assert said == set(STAGING_FORMATS)


def test_headers_are_read_without_regard_to_case_and_parameters():
    assert parse_content_type(" Application/JSON ; charset=utf-8") == "json"
    assert parse_content_encoding(" GZip ") == "gz"
    with pytest.raises(UnsupportedMedia, match="application/x-ndjson"):
        parse_content_type("text/html")
    with pytest.raises(UnsupportedMedia, match="gzip, zstd or none"):
        parse_content_encoding("gzip, zstd")


@pytest.mark.parametrize(
    ("body", "staging_format"),
    [
        (b'\xef\xbb\xbf\r\n {"a":1}', "ndjson"),
        (b" " * (2 * HEAD_BYTES) + b"{}", "ndjson"),  # the worker looks further
        (zstd.compress(b" [] "), "json.zst"),
        (gzip.compress(b'{"a":1}') + gzip.compress(b'{"a":2}'), "ndjson.gz"),
        (gzip.compress(b"\n") + gzip.compress(b"{}"), "ndjson.gz"),
        (gzip.compress(b" " * 2 * HEAD_BYTES + b"{}"), "ndjson.gz"),
        (zstd.compress(b" " * 2 * HEAD_BYTES + b"{}"), "ndjson.zst"),
        (b"a,b\n", "csv"),
    ],
)
def test_what_may_be_right_passes(body, staging_format):
    check_body(body, staging_format)


@pytest.mark.parametrize(
    ("body", "staging_format", "words"),
    [
        (b"", "csv", "empty"),
        (b"\n \t\n", "csv", "empty"),
        (gzip.compress(b" "), "ndjson.gz", "empty"),
        (zstd.compress(b""), "csv.zst", "empty"),
        (b"<xml>", "json", "begins '<xml>'"),
        (b"[{}]", "ndjson", "use application/json"),
        (b"a,\0b\n", "csv", "NUL"),
        (b"PAR1PAR1", "parquet", "begins and ends with PAR1"),
        (b"\xff\xff", "arrow", "neither"),
        (b"\x28\xb5\x2f\xfd broken", "json.zst", "not a zstd stream"),
    ],
)
def test_what_is_certainly_wrong_does_not(body, staging_format, words):
    with pytest.raises(InvalidRequest, match=words):
        check_body(body, staging_format)


@pytest.mark.parametrize(("compress", "name"), [(gzip.compress, "gz"), (zstd.compress, "zst")])
def test_a_decompression_bomb_is_stopped(compress, name):
    packed = compress(b"x" * 1000) + compress(b"y" * 1000)
    assert decompress(packed, name, max_bytes=2000) == b"x" * 1000 + b"y" * 1000
    for max_bytes in (999, 1999):
        with pytest.raises(BatchTooLarge):
            decompress(packed, name, max_bytes=max_bytes)
    with pytest.raises(InvalidRequest, match="in the middle"):
        decompress(packed[:-5], name, max_bytes=2000)
    with pytest.raises(InvalidRequest, match="is not a"):
        decompress(b"what is this", name, max_bytes=2000)


def test_a_key_is_an_id_or_the_producers_own():
    assert parse_key(None) == (None, None)
    assert parse_key(UUID7) == parse_key(f'"{UUID7}"') == (UUID7, None)
    assert parse_key(UUID7.upper()) == (None, UUID7.upper())
    assert parse_key("a" * 255) == (None, "a" * 255)
    for bad in ("", '""', "a" * 256, "tab\t", "umlaut \u00fc"):
        with pytest.raises(InvalidRequest, match="printable"):
            parse_key(bad)
