"""Small pure parts: ranges, conditions, tokens, refs, requests, XML, settings, and errors."""

import email.utils
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_gateway.errors import S3Error, to_s3_error
from icedb_gateway.list_objects import ListPage, parse_list_request, render_error, render_list
from icedb_gateway.listing import (
    Resume,
    SnapshotName,
    TableRef,
    decode_marker,
    decode_token,
    encode_marker,
    encode_token,
    etag_of,
    modified_ms_of,
    parse_table_ref,
)
from icedb_gateway.metrics import outcome_of_s3
from icedb_gateway.operations import ByteRange, check_conditions, http_date, parse_range
from icedb_gateway.requests import parse_request
from icedb_gateway.settings import GatewaySettings
from icedb_log.clock import make_uuid7_hex
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, Overloaded, PermissionDenied, Unavailable
from icedb_log.model import FileMarker
from icedb_service.settings import load_settings
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, (0, 100, False)),
        ("bytes=0-9", (0, 10, True)),
        ("bytes=90-", (90, 10, True)),
        ("bytes=-8", (92, 8, True)),
        ("bytes=-800", (0, 100, True)),
        ("bytes=50-500", (50, 50, True)),
        ("bytes = 1 - 2 ", (1, 2, True)),
        ("bytes=0-99", (0, 100, True)),
        ("bytes=9-2", (0, 100, False)),
        ("bytes=-", (0, 100, False)),
        ("bytes=0-1,5-6", (0, 100, False)),
        ("lines=0-1", (0, 100, False)),
        ("bytes=a-b", (0, 100, False)),
    ],
)
def test_ranges(header, found):
    assert parse_range(header, size_bytes=100) == ByteRange(*found)


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=100-", 100), ("bytes=-0", 100), ("bytes=0-0", 0), ("bytes=-5", 0)]
)
def test_ranges_of_nothing(header, size):
    with pytest.raises(S3Error) as caught:
        parse_range(header, size_bytes=size)
    assert caught.value.status == 416
    assert caught.value.headers == {"Content-Range": f"bytes */{size}"}


NOW_MS = 1_767_312_000_500
SAME, BEFORE, AFTER = (http_date(NOW_MS + shift) for shift in (0, -1000, 1000))


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        ({}, "send"),
        ({"if-match": '"e"'}, "send"),
        ({"if-match": "e"}, "send"),
        ({"if-match": '"x", "e"'}, "send"),
        ({"if-match": "*"}, "send"),
        ({"if-match": '"x"'}, 412),
        ({"if-match": '"e"', "if-unmodified-since": BEFORE}, "send"),
        ({"if-unmodified-since": SAME}, "send"),
        ({"if-unmodified-since": BEFORE}, 412),
        ({"if-unmodified-since": "nonsense"}, "send"),
        ({"if-none-match": '"e"'}, "not_modified"),
        ({"if-none-match": 'W/"e"'}, "not_modified"),
        ({"if-none-match": '"x"'}, "send"),
        ({"if-none-match": '"x"', "if-modified-since": AFTER}, "send"),
        ({"if-modified-since": SAME}, "not_modified"),
        ({"if-modified-since": BEFORE}, "send"),
        ({"if-modified-since": "nonsense"}, "send"),
    ],
)
def test_conditions(headers, outcome):
    if outcome == 412:
        with pytest.raises(S3Error) as caught:
            check_conditions(headers, etag="e", modified_ms=NOW_MS)
        assert caught.value.code == "PreconditionFailed"
    else:
        assert check_conditions(headers, etag="e", modified_ms=NOW_MS) == outcome


def test_times_are_http_dates():
    assert email.utils.parsedate_to_datetime(http_date(NOW_MS)).timestamp() == NOW_MS // 1000


NAMES = st.builds(SnapshotName, st.text(max_size=20), st.text(max_size=20), st.integers(0, 9_999_999_999_999))
RESUMES = st.builds(Resume, st.text(max_size=50).filter(lambda key: "#" not in key), st.none() | NAMES)


@given(RESUMES)
def test_tokens_come_back(resume):
    assert decode_token(encode_token(resume)) == resume
    assert decode_marker(encode_marker(resume)) == resume


@given(st.text(max_size=60))
def test_other_tokens_are_refused_or_say_what_they_would_say(text):
    try:
        resume = decode_token(text)
    except S3Error as error:
        assert error.code == "InvalidArgument"
    else:
        assert isinstance(resume, Resume)


@pytest.mark.parametrize(
    "token", ["", "x" * 9000, "WzFd", "WzIsImEiXQ", "WzEsWyJhIl1d", "é", encode_token(Resume("a")) + "!"]
)
def test_tokens_that_are_none(token):
    with pytest.raises(S3Error, match="continuation token provided is incorrect"):
        decode_token(token)


def test_a_marker_sorts_right_behind_its_key():
    marker = encode_marker(Resume("events/d=1/a.parquet", SnapshotName("events", "id", 5)))
    assert "events/d=1/a.parquet" < marker < "events/d=1/a.parquet0"
    assert decode_marker("events/d=1/a.parquet") == Resume("events/d=1/a.parquet")
    with pytest.raises(S3Error):
        decode_marker("another" + marker)


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("events", TableRef("events")),
        ("events@1767312000000", TableRef("events", as_of_ms=1_767_312_000_000)),
        ("events@0", TableRef("events", as_of_ms=0)),
        ("events@tag-end-of_2025", TableRef("events", tag="end-of_2025")),
    ],
)
def test_refs(text, ref):
    assert parse_table_ref(text) == ref
    assert str(ref) == text


@pytest.mark.parametrize(
    "text", ["", "Events", "_log", "events@", "events@01", "events@99999999999999", "events@tag-", "events@tag-A",
             "events@x", "events@1@2", "../events", "events ", "events@-1", "events@१"]
)  # fmt: skip
def test_refs_that_are_none(text):
    assert parse_table_ref(text) is None


def scope(path, query="", host="h", method="GET"):
    return {
        "method": method,
        "path": "",
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", host.encode())],
    }


@pytest.mark.parametrize(
    ("path", "bucket", "key"),
    [
        ("/", "", ""),
        ("/icedb", "icedb", ""),
        ("/icedb/", "icedb", ""),
        ("/icedb/events/d%3D1/a%2520.parquet", "icedb", "events/d=1/a%20.parquet"),
        ("/icedb//a", "icedb", "/a"),
    ],
)
def test_buckets_and_keys(path, bucket, key):
    request = parse_request(scope(path))
    assert (request.bucket, request.key) == (bucket, key)


def test_parameters_are_decoded_and_each_is_there_once():
    request = parse_request(scope("/b", "prefix=a%2Fb+c&X-Amz-Date=1&delimiter="))
    assert request.parameters == {"prefix": "a/b c", "delimiter": ""}
    for query in ("prefix=a&prefix=b", "prefix=%ff", "a=" + "x" * 20_000):
        with pytest.raises(S3Error) as caught:
            parse_request(scope("/b", query))
        assert caught.value.code == "InvalidArgument"
    with pytest.raises(S3Error, match="UTF-8"):
        parse_request(scope("/b/%ff"))


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"list-type": "3"}, "InvalidArgument"),
        ({"list-type": "2", "max-keys": "-1"}, "InvalidArgument"),
        ({"max-keys": "ten"}, "InvalidArgument"),
        ({"encoding-type": "base64"}, "InvalidArgument"),
        ({"list-type": "2", "continuation-token": ""}, "InvalidArgument"),
        ({"list-type": "2", "marker": "a"}, "NotImplemented"),
        ({"uploads": ""}, "NotImplemented"),
        ({"versions": ""}, "NotImplemented"),
        ({"acl": ""}, "NotImplemented"),
    ],
)
def test_listings_that_cannot_be(parameters, code):
    with pytest.raises(S3Error) as caught:
        parse_list_request(parameters)
    assert caught.value.code == code


def test_pages_have_at_most_a_thousand_keys():
    assert parse_list_request({"max-keys": "2147483647"}).query.limit == 1000
    assert parse_list_request({"max-keys": "0"}).query.limit == 0


def test_what_xml_cannot_carry_is_replaced_or_encoded():
    asked = parse_list_request({"prefix": 'p<&>"\x01', "delimiter": "/", "max-keys": "5"})
    root = ET.fromstring(render_list("b", asked, ListPage(common_prefixes=["a&b/"])))
    assert root.find("{*}Prefix").text == 'p<&>"\ufffd'
    assert root.find("{*}CommonPrefixes/{*}Prefix").text == "a&b/"
    asked = parse_list_request({"prefix": "\x01 é+", "encoding-type": "url"})
    root = ET.fromstring(render_list("b", asked, ListPage(next=Resume("x"))))
    assert root.find("{*}Prefix").text == "%01%20%C3%A9%2B"
    assert root.find("{*}NextMarker").text.startswith("x%23")
    assert ET.fromstring(render_error("Code", "<x>", resource="/\x02", request_id="r")).find("Message").text == "<x>"


def test_etag_and_time_follow_from_the_marker():
    path = f"wh/t/_data/{make_uuid7_hex(NOW_MS, 5)}.parquet"
    assert etag_of(path, 5) == etag_of(path, 5) != etag_of(path, 6)
    assert etag_of(path, 5).endswith("-1")
    assert modified_ms_of(FileMarker(path, 5, 77)) == NOW_MS
    assert modified_ms_of(FileMarker("wh/t/_data/foreign.parquet", 5, 77)) == 77


@pytest.mark.parametrize(
    ("error", "code", "status", "outcome"),
    [
        (Overloaded("x", retry_after_ms=1500), "SlowDown", 503, "slow_down"),
        (Unavailable("x"), "ServiceUnavailable", 503, "unavailable"),
        (PermissionDenied("x"), "AccessDenied", 403, "denied"),
        (NotFound("x"), "NoSuchKey", 404, "not_found"),
        (InvalidRequest("x"), "InvalidArgument", 400, "bad_request"),
        (CorruptLog("x"), "InternalError", 500, "failed"),
        (ValueError("secret"), "InternalError", 500, "failed"),
    ],
)
def test_errors(error, code, status, outcome):
    found = to_s3_error(error)
    assert (found.code, found.status) == (code, status)
    assert outcome_of_s3(status, code) == outcome
    assert "secret" not in str(found)
    assert found.headers == ({"Retry-After": "2"} if code == "SlowDown" else {})


@pytest.mark.parametrize(
    "fields",
    [
        {"gateway_bucket": "healthz"},
        {"gateway_bucket": "Up"},
        {"gateway_port": 70_000},
    ],
)
def test_settings_that_are_refused(fields):
    with pytest.raises(ValidationError):
        GatewaySettings(store="file:///x", **fields)


def test_the_region_is_that_of_the_bucket():
    assert GatewaySettings(store="s3://x/y").region == "us-east-1"
    assert GatewaySettings(store="s3://x/y", s3_region="eu-central-1").region == "eu-central-1"


def test_a_wrong_setting_is_named(monkeypatch):
    monkeypatch.setenv("ICEDB_STORE", "file:///x")
    monkeypatch.setenv("ICEDB_GATEWAY_BUCKET", "no")
    with pytest.raises(InvalidRequest, match="ICEDB_GATEWAY_BUCKET='no'"):
        load_settings(GatewaySettings)
