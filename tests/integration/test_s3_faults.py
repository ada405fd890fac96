"""What the S3 store concludes from broken answers, and how often it sends what (W2). The server is real, and rude."""

import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.retries.standard import ExponentialBackoff
from icedb_log.errors import (
    CommitOutcomeUnknown,
    IceDBError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    StoreRefused,
    Unavailable,
    UnsupportedFormat,
)
from icedb_log.store import s3_client
from icedb_log.store.object_store import list_all
from icedb_log.store.plain_reads import PlainReads
from icedb_log.store.request_failures import listen_to_failures, stop_listening
from icedb_log.store.s3 import CONFLICT_WAITS_MS, S3ObjectStore
from icedb_log.store.s3_client import READ_ATTEMPTS, SINGLE_REQUEST_BYTES
from icedb_log.store.s3_options import S3Options
from icedb_sim.fakes.store_acceptance import expect
from icedb_sim.rigs.access_rig import Authority
from waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.s3


@pytest.fixture(autouse=True)
def _no_back_off(monkeypatch):
    """boto3 waits a second or two between attempts; how many there are is what counts here."""
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0)


class RudeServer(ThreadingHTTPServer):
    """Answers each request with the next item of a script, the last one again and again."""

    daemon_threads = True

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), RudeHandler)
        self.script = list(script)
        self.requests = []
        self.connections = []
        self.released = threading.Event()
        self._lock = threading.Lock()

    def next_answer(self, request):
        with self._lock:
            self.requests.append(request)
            return self.script[min(len(self.requests), len(self.script)) - 1]

    def get_request(self):
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def end_connections(self):
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        """A client that hung up is what some tests want."""


class RudeHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        request = (self.command, self.path, dict(self.headers.items()), body)
        action = self.server.next_answer(request)
        if action == "hang":
            self.server.released.wait(LIMIT_S)
            self.close_connection = True
        elif action == "hang up":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            status, code, headers, content = action
            if content is None:
                content = f"<Error><Code>{code}</Code><Message>words</Message></Error>".encode()
            self.send_response_only(status)
            for name, value in {
                "Date": formatdate(usegmt=True),
                "Content-Length": str(len(content)),
                **headers,
            }.items():
                if value is not None:
                    self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

    def log_message(self, *arguments):
        """Say nothing."""


def error_answer(status, code):
    return (status, code, {}, None)


OK_PUT = (200, "", {"ETag": '"abc"'}, b"")
CALLS = {
    "put_if_absent": lambda store: store.put_if_absent("key", b"body"),
    "put_if_match": lambda store: store.put_if_match("key", b"body", etag="abc"),
}


class NoWait:
    """A clock that remembers its waits instead of waiting."""

    def __init__(self):
        self.waits_ms = []

    def sleep_ms(self, duration_ms):
        self.waits_ms.append(duration_ms)

    def new_id(self):
        return "0" * 32


@contextmanager
def rude_store(*script, clock=None, read_timeout_s=30, key="dev", certificate=None):
    server = RudeServer(script)
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    options = S3Options(
        f"http{'s' * (certificate is not None)}://127.0.0.1:{server.server_address[1]}",
        access_key_id=key,
        secret_access_key=key,
        read_timeout_s=read_timeout_s,
    )
    try:
        yield S3ObjectStore("bucket", options, clock=clock or NoWait()), server
    finally:
        server.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


OUTCOMES = [
    (error_answer(500, "InternalError"), CommitOutcomeUnknown),
    (error_answer(502, ""), CommitOutcomeUnknown),
    (error_answer(503, "SlowDown"), CommitOutcomeUnknown),
    (error_answer(504, ""), CommitOutcomeUnknown),
    ("hang up", CommitOutcomeUnknown),
    ((200, "", {}, b""), CommitOutcomeUnknown),
    (error_answer(412, "PreconditionFailed"), PreconditionFailed),
    (error_answer(404, "NoSuchKey"), PreconditionFailed),
    (error_answer(404, ""), PreconditionFailed),
    ((404, "", {}, b"<html><body>404 page not found</body></html>"), CommitOutcomeUnknown),
    (error_answer(404, "NoSuchBucket"), StoreRefused),
    ((404, "", {}, b"default backend - 404"), CommitOutcomeUnknown),
    (error_answer(403, "AccessDenied"), StoreRefused),
    (error_answer(403, "InvalidAccessKeyId"), StoreRefused),
    (error_answer(400, "ExpiredToken"), Unavailable),
    (error_answer(429, "TooManyRequests"), Unavailable),
    (error_answer(400, "InvalidArgument"), InvalidRequest),
    (error_answer(501, "NotImplemented"), UnsupportedFormat),
]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_conditional_write_is_sent_once_whatever_comes_back(call):
    with rude_store(*(answer for answer, _ in OUTCOMES)) as (store, server):
        for number, (answer, outcome) in enumerate(OUTCOMES, start=1):
            error = expect(IceDBError, lambda: call(store))
            assert type(error) is outcome, (answer, error)
            assert len(server.requests) == number, answer
            assert "bucket bucket at http://127.0.0.1" in str(error)


def test_a_server_that_says_nothing_is_given_up():
    with rude_store("hang", read_timeout_s=0.2) as (store, server):
        for number, call in enumerate(CALLS.values(), start=1):
            expect(CommitOutcomeUnknown, lambda: call(store))
            await_requests(server, number)
        server.requests.clear()
        server.connections.clear()
        expect(Unavailable, lambda: store.get("key"))
        await_requests(server, READ_ATTEMPTS)


def await_requests(server, count):
    """Wait for what was sent and given up, before a busy server had looked at it; there is nothing besides."""
    wait_until(lambda: len(server.requests) >= count)
    assert len(server.requests) == len(server.connections) == count


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_conflict_is_sent_again_after_a_growing_wait(call):
    conflict = error_answer(409, "ConditionalRequestConflict")
    clock = NoWait()
    with rude_store(conflict, conflict, OK_PUT, clock=clock) as (store, server):
        assert call(store) == "abc"
        assert len(server.requests) == 3
        assert clock.waits_ms == [20, 40]
    with rude_store(conflict) as (store, server):
        expect(Unavailable, lambda: call(store))
        assert len(server.requests) == (len(CONFLICT_WAITS_MS) + 1)
    with rude_store(conflict, error_answer(412, "PreconditionFailed")) as (store, server):
        expect(PreconditionFailed, lambda: call(store))
        assert len(server.requests) == 2


def test_the_conditions_go_out_as_s3_and_its_gateways_take_them():
    with rude_store(OK_PUT) as (store, server):
        store.put_if_absent("key", b"body")
        store.put_if_match("key", b"body", etag="abc")
        store.put("key", b"body")
        (_, path, create, body), (_, _, replace, _), (_, _, plain, _) = server.requests
    assert (path, body) == ("/bucket/key", b"body")
    assert (create["If-None-Match"], create.get("If-Match")) == ("*", None)
    assert (replace["If-Match"], replace.get("If-None-Match")) == ("abc", None)
    assert "If-Match" not in plain
    assert "If-None-Match" not in plain


READS = {
    "get": lambda store: store.get("key"),
    "head": lambda store: store.head("key"),
    "list_page": lambda store: store.list_page("key"),
    "list_folders": lambda store: store.list_folders("key/"),
    "put": lambda store: store.put("key", b"x"),
}


@pytest.mark.parametrize("call", READS.values(), ids=READS)
def test_what_may_be_repeated_is_and_then_unavailable(call):
    answers = [error_answer(500, "InternalError"), error_answer(503, "SlowDown"), "hang up"]
    script = [answer for answer in answers for _ in range(READ_ATTEMPTS)]
    with rude_store(*script) as (store, server):
        for number in range(1, len(answers) + 1):
            expect(Unavailable, lambda: call(store))
            assert len(server.requests) == READ_ATTEMPTS * number


def test_a_body_that_breaks_off_is_read_again():
    headers = {"ETag": '"abc"', "Last-Modified": formatdate(0, usegmt=True)}
    broken = (200, "", {**headers, "Content-Length": "100", "Connection": "close"}, b"half")
    whole = (200, "", headers, b"whole")
    with rude_store(broken, broken, whole) as (store, server):
        stored = store.get("key")
        assert (stored.body, stored.info.etag, stored.info.modified_ms) == (b"whole", "abc", 0)
        assert len(server.requests) == 3
    with rude_store(broken) as (store, server):
        expect(Unavailable, lambda: store.get("key"))
        assert len(server.requests) == READ_ATTEMPTS


WHOLE = (200, "", {"ETag": '"abc"', "Last-Modified": formatdate(0, usegmt=True)}, b"whole")
CHUNKED = b"5\r\nwhole\r\n0\r\n\r\n"
UNUSUAL = {
    "breaks off": (200, "", {**WHOLE[2], "Content-Length": "100", "Connection": "close"}, b"half"),
    "hangs up": "hang up",
    "has an error": error_answer(503, "SlowDown"),
    "has no ETag": (200, "", {"Last-Modified": WHOLE[2]["Last-Modified"]}, b"whole"),
    "has no time": (200, "", {"ETag": '"abc"'}, b"whole"),
    "is chunked": (200, "", {**WHOLE[2], "Content-Length": None, "Transfer-Encoding": "chunked"}, CHUNKED),
    "is encoded": (200, "", {**WHOLE[2], "Content-Encoding": "gzip"}, b"whole"),
    "has not changed": (304, "", {**WHOLE[2], "Content-Length": None}, b""),
    "leads elsewhere": (307, "", {"Location": "http://127.0.0.1:1/"}, b""),
}


def is_of_boto3(request):
    return "Boto3" in request[2].get("User-Agent", "")


def test_a_read_of_one_version_is_a_plain_signed_request():
    part = (206, "", {**WHOLE[2], "Content-Range": "bytes 1-2/5"}, b"ho")
    with rude_store(WHOLE, part, WHOLE) as (store, server):
        stored = store.get("a/key with=sign", if_match="abc")
        assert (stored.body, stored.info.etag, stored.info.size_bytes, stored.info.modified_ms) == (
            b"whole",
            "abc",
            5,
            0,
        )
        found = store.get_range("key", start=1, length=2, if_match="abc")
        assert (found.body, found.info.size_bytes) == (b"ho", 5)
        assert store.get("key").body == b"whole"
    first, second, _ = server.requests
    assert len(server.connections) == 2  # boto3 has one of its own
    assert first[1] == "/bucket/a/key%20with%3Dsign"
    assert first[2]["If-Match"] == "abc"
    assert first[2]["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=dev/")
    assert second[2]["Range"] == "bytes=1-2"
    assert [is_of_boto3(request) for request in server.requests] == [False, False, True]
    for request in (first, second):
        require_signed(request, Credentials("dev", "dev"))


def require_signed(request, credentials):
    """What was signed is what was sent: signed again by botocore, it gets the same signature."""
    _, path, sent, _ = request
    signed = sent["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {"host", "if-match", "x-amz-date"} <= set(signed)
    kept = {name: value for name, value in sent.items() if name.lower() in signed and name != "Host"}
    again = AWSRequest("GET", f"http://{sent['Host']}{path}", headers=kept)
    again.context["timestamp"] = sent["X-Amz-Date"]
    signer = S3SigV4Auth(credentials, "s3", "us-east-1")
    signature = signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again)
    assert sent["Authorization"].endswith(f"Signature={signature}")


@pytest.mark.parametrize(
    ("base_url", "host"),
    [
        ("http://minio:80/bucket", "minio"),
        ("http://minio:9000/bucket", "minio:9000"),
        ("http://[::1]:80/bucket", "[::1]"),
    ],
)
def test_the_host_that_is_signed_is_the_one_that_is_sent(base_url, host, monkeypatch):
    sent = []

    def send(connection, data):
        sent.append(data)
        raise ConnectionResetError

    monkeypatch.setattr(HTTPConnection, "connect", lambda connection: setattr(connection, "sock", socket.socket()))
    monkeypatch.setattr(HTTPConnection, "send", send)
    credentials = Credentials("dev", "dev")
    reads = PlainReads(base_url, region="us-east-1", credentials=credentials, ca_bundle=None, timeouts_s=(1, 1))
    assert reads.read("key", etag="abc") is None
    first, *lines = sent[0].decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if line)
    assert headers["Host"] == host
    require_signed(("GET", first.split(" ")[1], headers, b""), credentials)


def test_credentials_of_a_role_are_sent_with_their_token(monkeypatch):
    for name, value in {"ACCESS_KEY_ID": "role", "SECRET_ACCESS_KEY": "hush", "SESSION_TOKEN": "to/ken=="}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with rude_store(WHOLE, key=None) as (store, server):
        assert store.get("key", if_match="abc").body == b"whole"
    (request,) = server.requests
    assert request[2]["X-Amz-Security-Token"] == "to/ken=="
    require_signed(request, Credentials("role", "hush", "to/ken=="))


@contextmanager
def reported_failures():
    failures = []

    def note(operation, reason):
        failures.append((operation, reason))

    listen_to_failures(note)
    try:
        yield failures
    finally:
        stop_listening(note)


def test_a_kept_connection_that_the_server_has_ended_is_no_failure():
    with rude_store(WHOLE) as (store, server), reported_failures() as failures:
        for _ in range(3):
            assert store.get("key", if_match="abc").body == b"whole"
            server.end_connections()
        assert not any(map(is_of_boto3, server.requests))
        assert (len(server.requests), len(server.connections), failures) == (3, 3, [])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [("hang up", "broken"), (error_answer(503, "SlowDown"), "throttled"), (UNUSUAL["breaks off"], "broken")],
    ids=["hangs up", "is slowed down", "breaks off"],
)
def test_a_plain_read_that_failed_is_reported(answer, reason):
    with rude_store(answer, WHOLE) as (store, server), reported_failures() as failures:
        assert store.get("key", if_match="abc").body == b"whole"
        assert (len(server.requests), failures) == (2, [("read", reason)])


@pytest.mark.parametrize("reason", ["unreachable", "timeout"])
def test_a_plain_read_that_nobody_answers_is_reported(reason):
    with socket.create_server(("127.0.0.1", 0)) as silent, reported_failures() as failures:
        port = silent.getsockname()[1]
        if reason == "unreachable":
            silent.close()
        reads = PlainReads(
            f"http://127.0.0.1:{port}/bucket",
            region="us-east-1",
            credentials=Credentials("dev", "dev"),
            ca_bundle=None,
            timeouts_s=(10, 0.05),
        )
        assert reads.read("key", etag="abc") is None
        assert failures == [("read", reason)]


def test_a_large_object_comes_whole_and_many_threads_share_connections():
    large = (200, "", WHOLE[2], bytes(range(256)) * 20_000)
    with rude_store(large) as (store, server), ThreadPoolExecutor(8) as pool:
        bodies = list(pool.map(lambda _: store.get("key", if_match="abc").body, range(40)))
        assert all(body == large[3] for body in bodies)
        assert len(server.connections) <= 8


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_server_is_believed_whose_certificate_is_trusted(tmp_path, monkeypatch, is_trusted):
    authority = Authority()
    trusted = authority if is_trusted else Authority("another")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted.write(tmp_path / "ca.crt")))
    with rude_store(WHOLE, certificate=authority.issue(tmp_path, "server", dns=("localhost",))) as (store, server):
        if is_trusted:
            assert store.get("key", if_match="abc").body == b"whole"
            assert not is_of_boto3(server.requests[0])
        else:
            expect(Unavailable, lambda: store.get("key", if_match="abc"))
            assert not server.requests


@pytest.mark.parametrize("answer", UNUSUAL.values(), ids=UNUSUAL)
def test_whatever_is_unusual_about_a_plain_read_is_left_to_boto3(answer):
    with rude_store(answer, WHOLE) as (store, server):
        assert store.get("key", if_match="abc").body == b"whole"
        assert [is_of_boto3(request) for request in server.requests] == [False, True]
    with rude_store(error_answer(412, "PreconditionFailed")) as (store, server):
        expect(PreconditionFailed, lambda: store.get("key", if_match="abc"))


def test_a_refused_read_says_what_to_set():
    refusals = [
        (error_answer(404, "NoSuchKey"), NotFound, "no such object"),
        (error_answer(403, "AccessDenied"), StoreRefused, "AWS_SECRET_ACCESS_KEY"),
        (error_answer(403, "SignatureDoesNotMatch"), StoreRefused, "AWS_SECRET_ACCESS_KEY"),
        (error_answer(404, "NoSuchBucket"), StoreRefused, "ICEDB_STORE"),
        ((404, "", {}, b"default backend - 404"), Unavailable, "ICEDB_S3_ENDPOINT"),
        (error_answer(400, "AuthorizationHeaderMalformed"), StoreRefused, "ICEDB_S3_REGION"),
        (error_answer(412, "PreconditionFailed"), PreconditionFailed, "list and read again"),
    ]
    with rude_store(*(answer for answer, _, _ in refusals)) as (store, _):
        for _, outcome, words in refusals:
            error = expect(IceDBError, lambda: store.get("key"))
            assert type(error) is outcome
            assert words in str(error)


def test_old_uploads_are_found_page_by_page_and_ended_one_by_one():
    def page(*uploads, more):
        entries = "".join(
            f"<Upload><Key>{key}</Key><UploadId>{key}-id</UploadId><Initiated>{began}</Initiated></Upload>"
            for key, began in uploads
        )
        marker = f"<NextKeyMarker>{uploads[-1][0]}</NextKeyMarker><NextUploadIdMarker>x</NextUploadIdMarker>"
        body = f"<IsTruncated>{str(more).lower()}</IsTruncated>{marker}{entries}"
        return (200, "", {}, f"<ListMultipartUploadsResult>{body}</ListMultipartUploadsResult>".encode())

    old, young = "1970-01-01T00:00:09.999Z", "1970-01-01T00:00:10.000Z"
    gone = (204, "", {}, b"")
    endless = (200, "", {}, b"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated></ListMultipartUploadsResult>")
    script = [page(("a", old), ("b", young), more=True), page(("c", old), ("d", old), more=False)]
    script += [gone, error_answer(404, "NoSuchUpload"), gone]
    script += [page(("a", old), ("c", old), more=False), error_answer(403, "AccessDenied"), gone]
    with rude_store(*script, error_answer(501, "NotImplemented"), endless) as (store, server):
        assert store.abort_stale_uploads("pre/", before_ms=10_000) == 2
        paths = [(method, path) for method, path, _, _ in server.requests]
        assert "prefix=pre%2F" in paths[0][1]
        assert "key-marker=b&" in paths[1][1]
        assert paths[2:] == [("DELETE", f"/bucket/{key}?uploadId={key}-id") for key in "acd"]
        # One that may not be ended keeps no other from being ended, and is not forgotten.
        expect(Unavailable, lambda: store.abort_stale_uploads("", before_ms=10_000))
        assert len(server.requests) == 8
        assert store.abort_stale_uploads("", before_ms=10_000) == 0
        # A server that says there is more, and not from where, or from where it was, is not asked for ever.
        assert store.abort_stale_uploads("", before_ms=10_000) == 0
        assert len(server.requests) == 10
        server.script.append(page(("a", young), more=True))
        assert store.abort_stale_uploads("", before_ms=10_000) == 0
        assert len(server.requests) == 12


def test_a_server_that_ignores_ranges_is_understood():
    with rude_store(WHOLE) as (store, _):
        assert store.get_range("key", start=1, length=2).body == b"ho"
        assert store.get_range("key", start=1, length=2, if_match="abc").body == b"ho"
        assert store.get_range("key", start=3, length=9).body == b"le"
        assert store.get_range("key", start=1, length=2).info.size_bytes == 5


def test_an_object_that_grew_between_a_refused_range_and_the_look_at_it_is_read_again():
    refused = error_answer(416, "InvalidRange")
    grown = (200, "", {**WHOLE[2], "Content-Length": "9"}, b"")
    with rude_store(refused, grown) as (store, _):
        assert "replaced while it was read" in str(
            expect(Unavailable, lambda: store.get_range("key", start=5, length=2))
        )
    with rude_store(refused, grown) as (store, _):
        assert store.get_range("key", start=9, length=2).body == b""


def listing(*keys, more, folders=False):
    entry = "<Contents><Key>{}</Key><LastModified>1970-01-01T00:00:01.000Z</LastModified><ETag>e</ETag><Size>1</Size></Contents>"
    entry = "<CommonPrefixes><Prefix>{}/</Prefix></CommonPrefixes>" if folders else entry
    token = "<NextContinuationToken>next</NextContinuationToken>" if more else ""
    body = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(map(entry.format, keys))}"
    return (200, "", {}, f"<ListBucketResult>{body}</ListBucketResult>".encode())


def test_a_page_that_is_not_full_is_not_the_last_one_and_a_full_one_may_be():
    with rude_store(listing("a", more=True), listing("b", "c", more=False)) as (store, server):
        page = store.list_page("", limit=2)
        assert ([info.key for info in page.objects], page.next_token) == (["a"], "next")
        page = store.list_page("", limit=2, token=page.next_token)
        assert ([info.key for info in page.objects], page.next_token) == (["b", "c"], None)
        assert "continuation-token=next" in server.requests[1][1]
    with rude_store(listing(more=True), listing("a", more=False)) as (store, _):
        assert [info.key for info in list_all(store, "").objects] == ["a"]


ENTRY = (
    "<Contents><Key>{key}</Key><LastModified>2026-01-02T03:04:05.678Z</LastModified><ETag>&quot;ab-1&quot;</ETag>"
    "<Size>{size}</Size><Owner><ID>me</ID></Owner><StorageClass>STANDARD</StorageClass></Contents>"
)
FOLDER = "<CommonPrefixes><Prefix>x/</Prefix></CommonPrefixes>"


def page_of(*parts, head="<ListBucketResult>"):
    return (200, "", {}, f"{head}<EncodingType>url</EncodingType>{''.join(parts)}</ListBucketResult>".encode())


@pytest.mark.parametrize("is_usual", [True, False])
@pytest.mark.parametrize(
    "head",
    [
        "<ListBucketResult>",
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
        '<?xml version="1.0" encoding="latin-1"?><ListBucketResult>',
    ],
)
def test_a_listing_says_what_botocore_reads_of_it(head, is_usual, monkeypatch):
    keys = ("a%2Bb+c/%C3%BC", "x&amp;y", "z<!-- hm -->z")
    entries = [ENTRY.format(key=key, size=size) for size, key in enumerate(keys)]
    answer = page_of(*entries[:2], "" if is_usual else FOLDER, entries[2], head=head)
    with rude_store(answer) as (store, _):
        found = store.list_page("").objects
    monkeypatch.setattr(s3_client, "_parse_contents", lambda **_: None)
    with rude_store(answer) as (store, _):
        assert found == store.list_page("").objects
    assert [(info.key, info.etag, info.size_bytes, info.modified_ms) for info in found[:2]] == [
        *(("a+b c/ü", "ab-1", 0, 1_767_323_045_000), ("x&y", "ab-1", 1, 1_767_323_045_000)),
    ]


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("tag", ["<Contents >", '<Contents xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'])
def test_no_object_is_left_out_whose_tag_is_written_in_another_way(tag, place):
    entries = [ENTRY.format(key=key, size=1) for key in "abc"]
    entries[place] = entries[place].replace("<Contents>", tag)
    with rude_store(page_of(*entries)) as (store, _):
        assert [info.key for info in store.list_page("").objects] == ["a", "b", "c"]


def test_a_listing_that_is_cut_or_lacks_something_is_refused_as_botocore_does(monkeypatch):
    whole, ours = ENTRY.format(key="a", size=1), s3_client._parse_contents
    for entry in (whole.replace("<Size>1</Size>", ""), whole.replace("<Size>1<", "<Size>many<"), whole[:-5]):
        refused = []
        for parse in (ours, lambda **_: None):
            monkeypatch.setattr(s3_client, "_parse_contents", parse)
            with rude_store(page_of(whole, entry)) as (store, _), pytest.raises(Exception) as caught:
                store.list_page("")
            refused.append(caught.type)
        assert refused[0] is refused[1]


def test_folders_of_all_pages_are_listed():
    pages = [listing("x/b", more=True, folders=True), listing(more=True), listing("x/a", more=False, folders=True)]
    with rude_store(*pages) as (store, server):
        assert store.list_folders("x/") == ("a", "b")
        assert len(server.requests) == 3


def test_a_server_without_a_clock_is_refused():
    listing = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
    with rude_store((200, "", {"Date": None}, listing)) as (store, _):
        assert "Date" in str(expect(UnsupportedFormat, lambda: store.list_page("")))
    with rude_store((200, "", {"Date": "Thu, 01 Jan 1970 00:00:07 GMT"}, listing)) as (store, _):
        assert store.list_page("").store_now_ms == 7000


def test_a_file_of_one_request_is_not_looked_at_again(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    with rude_store(OK_PUT) as (store, server):
        store.upload("key", tmp_path / "file")
        assert [(method, body) for method, _, _, body in server.requests] == [("PUT", b"12345")]


def test_an_upload_in_parts_that_does_not_arrive_whole_is_not_taken(tmp_path):
    size_bytes = 2 * SINGLE_REQUEST_BYTES + 1
    with (tmp_path / "file").open("wb") as file:
        file.truncate(size_bytes)
    begun = (200, "", {}, b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
    done = (200, "", {}, b'<CompleteMultipartUploadResult><ETag>"abc-2"</ETag></CompleteMultipartUploadResult>')
    head = (200, "", {"ETag": '"abc"', "Last-Modified": formatdate(0, usegmt=True), "Content-Length": "4"}, b"")
    with rude_store(begun, OK_PUT, OK_PUT, done, head) as (store, _):
        assert f"4 of {size_bytes} bytes" in str(expect(Unavailable, lambda: store.upload("key", tmp_path / "file")))


def test_a_download_that_does_not_come_whole_is_not_taken(tmp_path):
    """The object is replaced by a shorter one while it is fetched in parts: whatever came is not what was asked for."""
    described = {"ETag": '"abc"', "Last-Modified": formatdate(0, usegmt=True)}
    whole = (200, "", {**described, "Content-Length": str(SINGLE_REQUEST_BYTES + 1)}, b"")
    short = (200, "", described, b"1234")
    with rude_store(whole, short) as (store, server):
        error = expect(Unavailable, lambda: store.download("key", tmp_path / "file"))
    assert f"4 of {SINGLE_REQUEST_BYTES + 1} bytes came" in str(error)
    assert server.requests[-1][0] == "GET"


def test_a_full_disk_fails_a_download_with_its_path(tmp_path):
    headers = {"ETag": '"abc"', "Last-Modified": formatdate(0, usegmt=True)}
    with rude_store((200, "", headers, b"x")) as (store, _):
        target = tmp_path / "no" / "folder"
        assert str(target) in str(expect(Unavailable, lambda: store.download("key", target)))


LISTED_NOTHING = (200, "", {}, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")


@pytest.mark.parametrize(
    ("then", "kind"),
    [
        (LISTED_NOTHING, NotFound),
        (error_answer(404, "NoSuchBucket"), StoreRefused),
        (error_answer(403, "AccessDenied"), StoreRefused),
        ((404, "", {}, b"default backend - 404"), Unavailable),
    ],
)
def test_a_head_without_words_is_asked_about(then, kind):
    """Its 404 is that of an object, of a bucket, or of a proxy: nothing may be taken for gone that cannot be looked at."""
    with rude_store((404, "", {}, b""), then) as (store, server):
        expect(kind, lambda: store.head("a/b"))
    assert [request[0] for request in server.requests[:2]] == ["HEAD", "GET"]


def test_a_proxy_that_has_lost_its_servers_empties_no_listing():
    with rude_store((404, "", {}, b"<html>404</html>")) as (store, _):
        expect(Unavailable, lambda: store.list_page("a/"))
        expect(Unavailable, lambda: store.list_folders("a/"))
        expect(Unavailable, lambda: store.put("a/b", b"x"))
        expect(Unavailable, lambda: store.get("a/b"))
