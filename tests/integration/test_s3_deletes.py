"""Deletes on a real S3 server behind a proxy that refuses, forgets and throttles: what goes, and by how many requests."""

import re
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import unescape

import boto3
import pytest
from icedb_log.errors import NotFound, Unavailable
from icedb_log.store.deletes import FIRST_PAUSE_MS, MAX_TRIES, START_IN_FLIGHT, DeletePace
from icedb_log.store.object_store import delete_or_raise, list_all
from icedb_log.store.s3 import S3ObjectStore
from icedb_log.store.s3_options import S3Options
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.store_acceptance import expect
from threaded_server import serving_in_thread

pytestmark = pytest.mark.s3

KEY = re.compile(rb"<Key>(.*?)</Key>")
NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a server, unless the rule has another answer for a delete.

    ``rule(number, keys)`` returns ``None`` (pass it on), ``"hang up"``, ``(status, body)``, or a dictionary from key to
    the error code that stands for it: a key with the code ``""`` is left alone and in no list.
    """

    daemon_threads = True

    def __init__(self, port):
        super().__init__(("127.0.0.1", 0), Handler)
        self.port = port
        self._lock = threading.Lock()
        self.forget()

    def forget(self):
        self.rule = lambda number, keys: None
        self.deletes = []
        self.headers = []

    def answer_of(self, keys, headers):
        with self._lock:
            self.deletes.append(keys)
            self.headers.append(headers)
            return self.rule(len(self.deletes), keys)

    def handle_error(self, request, client_address):
        """A client that hung up is what some tests want."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        action = None
        if self.command == "POST" and self.path.split("?")[-1].startswith("delete"):
            keys = [unescape(key.decode()) for key in KEY.findall(body)]
            action = self.server.answer_of(keys, dict(self.headers.items()))
        if action == "hang up":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif isinstance(action, dict):
            self.delete_some(keys, action)
        elif action is not None:
            self.send(action[0], action[1].encode())
        else:
            self.send(*self.pass_on(body))

    def delete_some(self, keys, codes):
        rest = [key for key in keys if key not in codes]
        objects = "".join(f"<Object><Key>{key}</Key></Object>" for key in rest)
        if rest:
            self.pass_on(f"<Delete {NAMESPACE}>{objects}<Quiet>false</Quiet></Delete>".encode())
        entries = [f"<Deleted><Key>{key}</Key></Deleted>" for key in rest]
        errors = [(key, code) for key, code in codes.items() if code and key in keys]
        entries += [f"<Error><Key>{k}</Key><Code>{c}</Code><Message>words</Message></Error>" for k, c in errors]
        self.send(200, f"<DeleteResult {NAMESPACE}>{''.join(entries)}</DeleteResult>".encode())

    def pass_on(self, body):
        connection = HTTPConnection("127.0.0.1", self.server.port)
        try:
            dropped = ("host", "content-length", "content-md5", "expect", "x-amz-checksum-crc32")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def send(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = handle_any

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture(scope="module")
def direct(s3_server):
    return S3ObjectStore(s3_server.bucket, s3_server.options)


@pytest.fixture(scope="module")
def rig(s3_server):
    """A proxy, and a store behind it: a client costs a tenth of a second, so that all tests share them."""
    with serving_in_thread(Proxy(int(s3_server.endpoint_url.rpartition(":")[2]))) as proxy:
        address = f"http://127.0.0.1:{proxy.server_address[1]}"
        options = S3Options(address, access_key_id="dev", secret_access_key="dev", read_timeout_s=30)
        yield proxy, S3ObjectStore(s3_server.bucket, options)


@pytest.fixture(scope="module")
def client(s3_server):
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint_url,
        aws_access_key_id="dev",
        aws_secret_access_key="dev",
        region_name="us-east-1",
    )
    yield client
    client.close()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def proxy(rig):
    rig[0].forget()
    return rig[0]


@pytest.fixture
def store(rig, proxy, clock):
    """The store as if it were new, with a clock that does not wait."""
    rig[1]._clock, rig[1]._pace = clock, DeletePace(clock)
    return rig[1]


@pytest.fixture
def fill(direct, request):
    """Write some objects among many names; return all the names. What is not there is deleted like the rest."""
    prefix = f"deletes/{request.node.name}/"

    def fill(count, *, real=40):
        keys = [f"{prefix}{number:05}" for number in range(count)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: direct.put(key, b"x"), keys[:: max(1, count // real)]))
        return keys

    yield fill
    direct.delete([info.key for info in list_all(direct, prefix).objects])


def left_of(direct, keys):
    return [info.key for info in list_all(direct, keys[0].rpartition("/")[0]).objects]


def test_a_store_that_throttles_for_a_while_loses_no_key(store, direct, proxy, clock, fill):
    keys = fill(12_000)
    limits = []

    def rule(number, keys):
        limits.append(store._pace.limit)
        # Between the fake second 0 and 2 every request is refused: as a whole, inside a 200, or with an error as the body.
        if number < 6 or clock.monotonic_ms() > 2000:
            return None
        return [
            (503, "<Error><Code>SlowDown</Code><Message>words</Message></Error>"),
            dict.fromkeys(keys, "SlowDown"),
            (200, "<Error><Code>ServiceUnavailable</Code><Message>words</Message></Error>"),
        ][number % 3]

    proxy.rule = rule
    report = store.delete(keys)
    assert (report.deleted, report.failed) == (tuple(keys), ())
    assert left_of(direct, keys) == []
    assert clock.monotonic_ms() >= 2000
    assert len(proxy.deletes) <= 12 + START_IN_FLIGHT + 2 + MAX_TRIES["throttled"]
    lowest = limits.index(min(limits))
    assert min(limits) == 1
    assert max(limits[:lowest]) > START_IN_FLIGHT
    assert max(limits[lowest:]) > 1
    # The next call knows; and after it the pace is higher than it was.
    before = store._pace.limit
    assert store.delete(fill(5000)).failed == ()
    assert store._pace.limit > before


def test_a_store_that_only_throttles_is_given_up_and_says_so(store, direct, proxy, clock, fill):
    keys = fill(3000)
    proxy.rule = lambda number, keys: (503, "")
    report = store.delete(keys)
    assert Counter(each.kind for each in report.failed) == {"throttled": 3000}
    assert report.deleted == ()
    assert len(proxy.deletes) <= MAX_TRIES["throttled"] + START_IN_FLIGHT
    assert clock.monotonic_ms() < FIRST_PAUSE_MS << MAX_TRIES["throttled"]
    assert "throttled" in str(expect(Unavailable, lambda: delete_or_raise(store, keys[:1])))
    proxy.rule = lambda number, keys: None
    assert store.delete(keys).failed == ()
    assert left_of(direct, keys) == []


def test_an_answer_of_200_that_deleted_nothing_or_not_all_is_noticed(store, direct, proxy, fill):
    keys = fill(25)
    lost, denied = set(keys[:3]), set(keys[3:5])
    proxy.rule = lambda number, keys: dict.fromkeys(lost, "") | dict.fromkeys(denied, "AccessDenied")
    report = store.delete(keys)
    assert {each.key: each.kind for each in report.failed} == dict.fromkeys(lost, "ignored") | dict.fromkeys(
        denied, "denied"
    )
    assert all(each.reason for each in report.failed)
    assert "s3:DeleteObject" in next(each.reason for each in report.failed if each.kind == "denied")
    assert set(report.deleted) == set(keys) - lost - denied
    assert set(keys) & set(left_of(direct, keys)) == lost | denied
    assert [len(sent) for sent in proxy.deletes] == [len(keys), len(lost)]
    proxy.rule = lambda number, keys: (200, f"<DeleteResult {NAMESPACE}/>")
    assert {each.kind for each in store.delete(sorted(lost)).failed} == {"ignored"}
    proxy.rule = lambda number, keys: dict.fromkeys(keys, "InternalError") if number % 2 else None
    assert store.delete(keys).failed == ()
    assert not set(keys) & set(left_of(direct, keys))


def test_keys_that_xml_has_to_escape_are_deleted_and_no_others(direct):
    keys = [f"deletes/escaped/{name}" for name in ("a&b", "<c>", "d&amp;", "\"e'", "é ü", "f>g")]
    for key in (*keys, "deletes/escaped/d&"):
        direct.put(key, b"x")
    assert direct.delete(keys).deleted == tuple(keys)
    assert [info.key for info in list_all(direct, "deletes/escaped/").objects] == ["deletes/escaped/d&"]
    direct.delete(["deletes/escaped/d&"])


def test_an_answer_in_which_errors_stand_among_what_is_gone_is_understood(store, proxy):
    keys = [f"deletes/among/{name}" for name in ("a&b", "c", "d", "e")]
    gone = ["<Deleted><Key>deletes/among/a&amp;b</Key></Deleted>", "<Deleted><Key>deletes/among/d</Key></Deleted>"]
    error = "<Error><Key>deletes/among/c</Key><Code>AccessDenied</Code></Error>"
    for entries in ((gone[0], error, gone[1]), (*gone, error), (error, *gone)):
        proxy.rule = lambda number, keys, said=entries: (
            200,
            f"<DeleteResult {NAMESPACE}>{''.join(said)}</DeleteResult>",
        )
        report = store.delete(keys)
        assert report.deleted == (keys[0], keys[2])
        assert {each.key for each in report.failed} == {keys[1], keys[3]}


def test_no_permission_is_a_report_and_asks_no_second_time(store, direct, proxy, fill):
    keys = fill(5000)
    proxy.rule = lambda number, keys: (403, "<Error><Code>AccessDenied</Code><Message>words</Message></Error>")
    report = store.delete(keys)
    assert [(each.key, each.kind) for each in report.failed] == [(key, "denied") for key in keys]
    assert len(proxy.deletes) <= START_IN_FLIGHT
    assert "denied" in str(expect(Unavailable, lambda: delete_or_raise(store, keys[:1])))
    proxy.rule = lambda number, keys: dict.fromkeys(keys, "AccessDenied")
    report = store.delete(keys[:1500])
    assert Counter(each.kind for each in report.failed) == {"denied": 1500}
    assert len(left_of(direct, keys)) == 40


@pytest.mark.parametrize("answer", [(500, ""), (502, "<html>"), "hang up"], ids=["500", "502", "hang up"])
def test_a_server_that_does_not_answer_is_unavailable_and_one_that_answers_later_is_not(
    store, direct, proxy, fill, answer
):
    keys = fill(10, real=10)
    proxy.rule = lambda number, keys: answer
    expect(Unavailable, lambda: store.delete(keys))
    assert len(proxy.deletes) == MAX_TRIES["unanswered"]
    # One request of two goes: no error, and the report has the others.
    proxy.rule = lambda number, sent: None if keys[0] in sent else answer
    more = [*keys, *(f"{keys[0]}/{number}" for number in range(1990))]
    report = store.delete(more)
    assert report.deleted == tuple(more[:1000])
    assert {each.kind for each in report.failed} == {"unanswered"}
    proxy.rule = lambda number, keys: answer if number % 2 else None
    assert store.delete(more).failed == ()


def test_a_delete_goes_out_with_both_checksums(store, proxy):
    # Servers from before 2025 want the one, S3 itself takes either.
    store.delete(["deletes/checksum"])
    headers = {name.lower(): value for name, value in proxy.headers[0].items()}
    assert headers["content-md5"]
    assert headers["x-amz-checksum-crc32"]
    assert "content-md5" in headers["authorization"]


def test_in_a_bucket_that_keeps_versions_a_delete_marker_is_a_delete(s3_server, client):
    client.create_bucket(Bucket="versions")
    client.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
    store = S3ObjectStore("versions", s3_server.options)
    store.put("a", b"x")
    report = store.delete(["a", "never"])
    assert (report.deleted, report.failed) == (("a", "never"), ())
    expect(NotFound, lambda: store.get("a"))
    assert client.list_object_versions(Bucket="versions", Prefix="a")["DeleteMarkers"]


def test_uploads_that_nobody_finished_are_ended(s3_server, direct, client):
    bucket = s3_server.bucket
    for key in ("uploads/t/_data/a", "uploads/t/_data/b", "uploads/t2/_data/c"):
        upload = client.create_multipart_upload(Bucket=bucket, Key=key)
        client.upload_part(Bucket=bucket, Key=key, UploadId=upload["UploadId"], PartNumber=1, Body=b"part")
    # This server says of every upload that it began in 2010.
    assert direct.abort_stale_uploads("uploads/t/", before_ms=1_200_000_000_000) == 0
    assert direct.abort_stale_uploads("uploads/t/", before_ms=1_700_000_000_000) == 2
    assert direct.abort_stale_uploads("uploads/t/", before_ms=1_700_000_000_000) == 0
    assert [each["Key"] for each in client.list_multipart_uploads(Bucket=bucket)["Uploads"]] == ["uploads/t2/_data/c"]
    assert direct.abort_stale_uploads("uploads/", before_ms=1_700_000_000_000) == 1
