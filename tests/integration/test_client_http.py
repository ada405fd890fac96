"""Sending over HTTP: credentials, TLS, answers of proxies, kept connections, the command, and a whole way over Redis and S3."""

import json
import os
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from client_rig import HandClock
from icedb_client import Client, ClientSettings
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.errors import (
    IceDBError,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    StoreRefused,
    Unauthenticated,
    Unavailable,
)
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import list_all_staged
from icedb_log.names import INGEST_FLUSH
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_sim.rigs.access_rig import Authority, token_entry, write_access
from icedb_sim.rigs.frontend_rig import start_rig
from icedb_sim.tables.row_files import RowFileWriter
from processes import LIMIT_S, read_port, service_env, start_talking
from redis import Redis
from threaded_server import serving_in_thread
from waiting import wait_until

CLOCK = SystemClock()
PAGE = Path(__file__).parents[2] / "docs" / "first-errors.md"
WRITER, READER = (f"icedbt_{name}-0123456789abcdef" for name in ("writer", "reader"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("senders")


@pytest.fixture(scope="module")
def access_file(folder):
    document = {
        "identities": {
            "writer": {"tokens": [token_entry(WRITER)], "certificates": ["writer"]},
            "reader": {"tokens": [token_entry(READER)]},
        },
        "grants": [
            {"identities": ["writer"], "tables": ["*"], "verbs": ["append"]},
            {"identities": ["reader"], "tables": ["events"], "verbs": ["read"]},
        ],
    }
    return write_access(folder / "access.json", document)


@pytest.fixture(scope="module")
def guarded(folder, access_file):
    """A front end that wants to know who sends."""
    rig = start_rig(folder / "guarded", access_file=str(access_file))
    yield rig
    rig.frontend.stop()


@pytest.fixture(scope="module")
def authority(folder):
    authority = Authority()
    authority.write(folder / "ca.crt")
    authority.issue(folder, "server", dns=["localhost"])
    authority.issue(folder, "writer")
    return authority


@pytest.fixture(scope="module")
def secure(folder, access_file, authority):
    """A front end that speaks TLS and asks for certificates of its authority."""
    rig = start_rig(
        folder / "secure",
        access_file=str(access_file),
        tls_cert_file=str(folder / "server.crt"),
        tls_key_file=str(folder / "server.key"),
        tls_client_ca_file=str(folder / "ca.crt"),
    )
    yield rig
    rig.frontend.stop()


@contextmanager
def sending(address, **fields):
    with Client(settings=ClientSettings(address=address, store=None, **fields), clock=HandClock()) as client:
        yield client


def plain(rig):
    return f"http://127.0.0.1:{rig.frontend.port}"


def test_credentials_that_are_wrong_are_one_clear_error_before_a_row_is_taken(guarded, tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{WRITER}\n")
    with sending(plain(guarded), token_file=file) as client:
        assert client.enqueue("events", [{"n": 1}]).row_count == 1
        file.write_text("another token of the same user\n")
        os.utime(file, ns=(1, 1))
        with pytest.raises(Unauthenticated, match="ICEDB_TOKEN_FILE"):
            client.enqueue("events", [{"n": 2}])
    for token, table, kind in (
        (None, "events", Unauthenticated),
        ("wrong", "events", Unauthenticated),
        (READER, "events", PermissionDenied),
        (READER, "payroll", NotFound),
    ):
        with sending(plain(guarded), token=token) as client:
            for send in (lambda: client.producer(table), lambda: client.enqueue(table, [{"n": 1}])):
                with pytest.raises(kind) as caught:
                    send()
                assert str(token) not in str(caught.value)


def test_a_token_does_not_leave_this_machine_in_plain_text():
    with sending("http://events.example.com", token="t") as client, pytest.raises(InvalidRequest, match="https://"):
        client.producer("events")
    with sending("http://events.example.com:1", token="t", token_over_plaintext=True) as client:
        assert client.transport is client.transport


def test_tls_with_an_authority_and_a_certificate_of_its_own(secure, guarded, folder):
    address = f"https://localhost:{secure.frontend.port}"
    ca, cert, key = (folder / name for name in ("ca.crt", "writer.crt", "writer.key"))
    with sending(address, ca_file=ca, client_cert_file=cert, client_key_file=key) as client:
        assert client.enqueue("events", [{"n": 1}]).row_count == 1
    with sending(address) as client, pytest.raises(StoreRefused, match=r"certificate is not trusted.*ICEDB_CA_FILE"):
        client.producer("events")
    with (
        sending(address, ca_file=ca, token=WRITER) as client,
        pytest.raises(Unavailable, match="ICEDB_CLIENT_CERT_FILE"),
    ):
        client.producer("events")
    with sending(address.replace("https", "http")) as client, pytest.raises(Unavailable, match="https://"):
        client.producer("events")
    with (
        sending(plain(guarded).replace("http", "https")) as client,
        pytest.raises(StoreRefused, match="speaks no TLS: write http://"),
    ):
        client.producer("events")
    for name in ("ca_file", "client_cert_file"):
        files = {"client_cert_file": cert, "client_key_file": key, name: folder / "missing.crt"}
        with (
            sending(address, **files) as client,
            pytest.raises(InvalidRequest, match=rf"ICEDB_{name.upper()}.*missing"),
        ):
            client.producer("events")


def test_the_page_of_first_errors_quotes_what_is_said(guarded, secure, proxy):
    def fail(address, **fields):
        with sending(address, **fields) as client, pytest.raises(IceDBError) as caught:
            client.producer("events")
        return str(caught.value)

    proxy.script = [(404, {}, b"")]
    said = [
        fail("http://127.0.0.1:1"),
        fail(f"https://localhost:{secure.frontend.port}"),
        fail(plain(guarded).replace("http", "https")),
        fail(proxy.address),
        fail(plain(guarded)),
    ]
    section = PAGE.read_text(encoding="utf-8").partition("## A front end that refuses")[2].partition("## ")[0]
    quotes = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(quotes) == len(said)
    for quote, words in zip(quotes, said, strict=True):
        assert re.search(re.escape(quote).replace("…", ".*"), words), (quote, words)


class Proxy(BaseHTTPRequestHandler):
    """Answers what its server's script says: a status, headers, and a body."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.connections.add(self.client_address)
        status, headers, body = self.server.script.pop(0)
        if status is None:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


TERMS = (200, {}, b'{"table":"events","retry_window_ms":450000,"now_ms":1767312000000}')
ACCEPTED = (202, {}, b'{"batch_id":"01a1fe76-3c1e-7a4a-b39f-cbe7cb116932","table":"events","status":"staged"}')


@pytest.fixture
def proxy():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads, server.connections = True, set()
    with serving_in_thread(server):
        server.address = f"http://127.0.0.1:{server.server_port}"
        yield server


@pytest.mark.parametrize(
    ("answer", "kind", "words", "retry_after_ms"),
    [
        ((302, {"Location": "https://login.example.com"}, b""), InvalidRequest, "answered 302", None),
        ((404, {}, b"<html>"), InvalidRequest, "correct --address or ICEDB_ADDRESS", None),
        ((200, {}, b'{"ok": true}'), InvalidRequest, "answered 200", None),
        ((200, {}, b"[]"), InvalidRequest, "not as a front end does", None),
        ((502, {}, b"bad gateway"), Unavailable, "answered 502", None),
        ((503, {"Retry-After": "7"}, b""), Unavailable, "answered 503", 7000),
        ((503, {"Retry-After": "soon"}, b""), Unavailable, "answered 503", None),
        ((429, {"Retry-After": "7"}, b""), Unavailable, "answered 429", 7000),
        ((None, {}, b""), Unavailable, "does not answer", None),
    ],
)
def test_answers_that_no_front_end_gives_are_told_from_those_of_one(proxy, answer, kind, words, retry_after_ms):
    proxy.script = [TERMS, answer]
    with sending(proxy.address) as client, pytest.raises(kind, match=words) as caught:
        client.enqueue("events", [{"n": 1}])
    # What a proxy refuses may have been accepted behind it: never Overloaded, which frees the id.
    assert type(caught.value) is kind
    assert getattr(caught.value, "retry_after_ms", None) == retry_after_ms


def test_retries_wait_as_long_as_they_are_told_and_keep_their_id_where_the_batch_may_be_there(proxy):
    def problem(status, code, retry_after_ms):
        body = {"type": f"urn:icedb:problem:{code}", "detail": code, "retry_after_ms": retry_after_ms}
        return status, {}, json.dumps(body).encode()

    sent = []
    answer = Proxy.answer

    def note(handler):
        sent.append(handler.headers["Idempotency-Key"])
        answer(handler)

    proxy.RequestHandlerClass = type("Noting", (Proxy,), {"do_POST": note})
    proxy.script = [
        TERMS,
        problem(429, "back-pressure", 7000),
        TERMS,
        problem(503, "busy", 3000),
        TERMS,
        problem(503, "unavailable", 1000),
        (503, {"Retry-After": "20"}, b""),
        problem(429, "rate-limited", 4000),
        ACCEPTED,
    ]
    clock = HandClock()
    waits = []
    clock.on_sleep = lambda: waits.append(clock.ms)
    settings = ClientSettings(address=proxy.address, store=None)
    with Client(settings=settings, clock=clock) as client, client.producer("events") as producer:
        began_ms = clock.ms
        producer.send({"n": 1})
        producer.flush()
    steps = [after - before for before, after in zip([began_ms, *waits], waits, strict=False)]
    assert steps == [7000, 3000, 1000, 20_000, 4000]
    assert len(set(sent[:3])) == 3  # nothing was accepted under these
    assert len(set(sent[2:])) == 1  # from here on it may have been
    assert len(sent) == 6


def test_connections_are_kept(proxy):
    proxy.script = [TERMS, *[ACCEPTED] * 5]
    with sending(proxy.address) as client:
        for n in range(5):
            client.enqueue("events", [{"n": n}])
        assert len(proxy.connections) == 1


def test_a_question_is_asked_again_when_its_answer_is_lost(proxy):
    proxy.script = [(None, {}, b""), (502, {}, b""), TERMS, ACCEPTED]
    with sending(proxy.address) as client:
        assert client.enqueue("events", [{"n": 1}]).batch_id.startswith("01a1fe76")


def test_a_child_process_has_connections_of_its_own(proxy, monkeypatch):
    proxy.script = [TERMS, ACCEPTED, ACCEPTED]
    with sending(proxy.address) as client:
        client.enqueue("events", [{"n": 1}])
        monkeypatch.setattr(os, "getpid", lambda: 1)
        client.enqueue("events", [{"n": 2}])
    assert len(proxy.connections) == 2


@pytest.mark.redis
def test_rows_go_over_http_and_s3_and_wake_a_worker(redis_server, s3_server):
    """The sender knows an address; the keys of the bucket are with the front end, which is a process of its own."""
    store = f"s3://{s3_server.bucket}/senders"
    warehouse = StoreSettings(store, s3_server.options).open()
    create_table(warehouse.table("events"), TableConfig.create(name="events"))
    env = service_env(
        ICEDB_STORE=store,
        ICEDB_S3_ENDPOINT=s3_server.endpoint_url,
        AWS_ACCESS_KEY_ID="dev",
        AWS_SECRET_ACCESS_KEY="dev",
        ICEDB_REDIS_URL=redis_server.url,
        ICEDB_FRONTEND_HTTP_PORT=0,
        ICEDB_FRONTEND_GRPC_PORT=0,
    )
    process = start_talking("icedb_ingest.frontend", env)
    try:
        address = f"http://127.0.0.1:{read_port(process, 'http')}"
        place, batches = warehouse.table("events"), []
        with Client(settings=ClientSettings(address=address, store=None)) as client:
            with client.producer("events", max_rows=100, senders=4, on_accepted=batches.append) as producer:
                producer.send_rows({"n": n} for n in range(1000))
            ids = [batch.batch_id for batch in batches]
            assert {batch.batch_id for batch in list_all_staged(place).batches} == set(ids)
            with Redis.from_url(redis_server.url) as redis:
                wait_until(lambda: INGEST_FLUSH in str(redis.lrange("ingest", 0, -1)))
            flush_table(Table.open(place, clock=CLOCK, owner="test"), RowFileWriter(place.store, CLOCK))
            assert client.wait_committed("events", ids).committed == tuple(ids)
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
