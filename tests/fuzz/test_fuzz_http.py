"""HTTP requests, byte by byte, at every HTTP port: ingest with its webhooks, the S3 gateway, metrics and health.

Whatever comes, the answer is proper HTTP with a status that says whose fault it is, or the connection is closed; never
a 500, no traceback in the logs, and a good request is answered afterwards.
"""

import json
import re
import socket
import urllib.request

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.warehouse import Warehouse
from icedb_service.http_server import start_metrics_server
from icedb_sim.rigs.access_rig import token_entry, write_access
from icedb_sim.rigs.frontend_rig import start_rig
from icedb_sim.rigs.gateway_rig import start_gateway
from icedb_sim.tables.profiles import fuzz_examples
from processes import free_port
from prometheus_client import CollectorRegistry, Counter
from waiting import LIMIT_S, wait_until

TOKEN = "icedbt_fuzz"
PAR = b"PAR1 some bytes of a file PAR1"
STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) [^\r\n]*\r\n")
WRONG = {500, 502, 504}
"""501 says that a method is not known, 503 that the server is full or shutting down."""


class Door:
    """One port: how to ask it something good, and what else it knows."""

    def __init__(self, port, good, paths, headers, bodies, held_bytes=lambda: 0):
        self.port = port
        self.good = good
        self.paths = paths
        self.headers = headers
        self.bodies = bodies
        self.held_bytes = held_bytes

    def check_that_nothing_is_held(self):
        wait_until(lambda: self.held_bytes() == 0, "bodies of requests that have ended are held in memory no more")

    def check_that_it_lives(self):
        method, path, headers, body = self.good
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            assert 200 <= answer.status < 300


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("http")
    rig = start_rig(
        folder / "ingest",
        frontend_max_batch_mb=1,
        frontend_memory_mb=32,
    )
    (folder / "gateway").mkdir()
    warehouse = Warehouse(LocalObjectStore(folder / "gateway"))
    access = write_access(
        folder / "access.json",
        {
            "identities": {
                "fuzz": {"tokens": [token_entry(TOKEN)], "access_keys": [{"id": "FUZZ", "secret": "s" * 40}]},
            },
            "grants": [{"identities": ["fuzz"], "tables": ["*"], "verbs": ["read"]}],
        },
    )
    open_gateway = start_gateway(warehouse)
    closed_gateway = start_gateway(warehouse, access_file=str(access))
    table = open_gateway.table("events").create("d=day(ts)")
    path = table.write("d=2026-01-01", PAR)
    table.commit([path])
    registry = CollectorRegistry()
    Counter("fuzz", "Nothing.", registry=registry).inc()
    metrics = start_metrics_server(registry, host="127.0.0.1", port=free_port())
    bearer = f"Bearer {TOKEN}"
    yield {
        "ingest": Door(
            rig.frontend.port,
            ("POST", "/v1/tables/events/batches", {"Content-Type": "application/x-ndjson"}, b'{"a":1}\n'),
            ["/v1/tables/events/batches", "/v1/tables/events/batches/018bcfe5-6800-7a4a-b39f-cbe7cb116932", "/v1/tables/events/segment", "/v1/tables/events/segment/v1/track", "/v1/tables/events/segment/v1/batch", "/v1/tables/nope/batches", "/v1/tables/%2e%2e/batches", "/v1/tables/events%0a/batches", "/healthz", "/readyz"],
            {"Content-Type": ["application/x-ndjson", "application/json", "text/csv", "application/vnd.apache.parquet", "application/vnd.apache.arrow.stream", "application/json; charset=latin-1", "x" * 300, ";;;"], "Content-Encoding": ["gzip", "zstd", "identity", "br", "gzip, gzip", ""], "Idempotency-Key": ["k1", "", "x" * 300, "\xe9", "018bcfe5-6800-7a4a-b39f-cbe7cb116932"], "X-Signature": ["00", "z" * 40], "Origin": ["http://x", "null"], "Access-Control-Request-Method": ["POST"]},
            [b'{"a":1}\n', b'{"type":"track","event":"x","messageId":"m"}', b'{"batch":[{"type":"track"},5,null]}', b"[" * 3000, b"{" + b'"a":{' * 3000, b'{"a":' + b"1" * 5000 + b"}", b"\x1f\x8b\x08junk", b"\x28\xb5\x2f\xfdjunk", b"PAR1PAR1", b"ARROW1\x00\x00junk", b'{"type":"\\ud800"}', b"[1]", b"null", b'"x"', b"\xff\xfe", b'{"timestamp":"9999999-01-01","sentAt":"x","type":"track","event":"e"}', b'{"writeKey":5,"batch":{}}'],
            held_bytes=lambda: rig.metric("icedb_frontend_held_bytes"),
        ),
        "gateway": Door(
            open_gateway.gateway.port,
            ("GET", "/icedb?list-type=2", {}, None),
            gateway_paths(),
            gateway_headers(bearer),
            [b"", b"<Delete/>", b"x" * 100],
        ),
        "closed gateway": Door(
            closed_gateway.gateway.port,
            ("GET", "/icedb?list-type=2", {"Authorization": bearer}, None),
            gateway_paths(),
            gateway_headers(bearer),
            [b"", b"<Delete/>"],
        ),
        "metrics": Door(
            metrics.port,
            ("GET", "/metrics", {}, None),
            ["/metrics", "/healthz", "/readyz", "/", "//", "/metrics?name[]=x", "http://x/metrics"],
            {"Accept": ["text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=x", "application/openmetrics-text; version=", "*/*;q=x", ";", ",,,", "text/plain; version=1.0.0; escaping=what", "text/plain;version=99999999999.0.0;escaping=allow-utf-8"]},
            [b"", b"x"],
        ),
    }  # fmt: skip
    metrics.stop()
    open_gateway.gateway.stop()
    closed_gateway.gateway.stop()
    rig.frontend.stop()


def gateway_paths():
    return [
        "/",
        "/icedb",
        "/icedb/",
        "/icedb/events/d%3D2026-01-01/x.parquet",
        "/icedb/events/",
        "/icedb/events@1700000000000/",
        "/icedb/events@99999999999999999999/",
        "/icedb/events@tag/",
        "/icedb/events@/",
        "/icedb/%ff",
        "/icedb/../../etc/passwd",
        "/icedb/%2e%2e/%2e%2e/etc/passwd",
        "/icedb/events/%00",
        "/other",
        "//",
        "/icedb/" + "a" * 2000,
        "/icedb/\xe9",
    ]


def gateway_headers(bearer):
    scope = "FUZZ/20260102/us-east-1/s3/aws4_request"
    return {
        "Authorization": [bearer, "Bearer x", "Bearer", "Basic eDp5", f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host;x-amz-date, Signature={'0' * 64}", f"AWS4-HMAC-SHA256 Credential={scope},SignedHeaders=,Signature=x", "AWS4-HMAC-SHA256 ,,,", "AWS FUZZ:xxx=", "Bearer ey.\xe9.x", "Bearer eyJhbGciOiJub25lIn0.e30.", "\xe9"],
        "X-Amz-Date": ["20260102T030405Z", "20269999T999999Z", "x", "\xe9"],
        "X-Amz-Content-Sha256": ["UNSIGNED-PAYLOAD", "x", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"],
        "Range": ["bytes=0-3", "bytes=-3", "bytes=5-2", "bytes=0-99999999999999999999", "bytes=0-1,3-4", "bytes=", "x=1-2", "bytes=\xb2-3"],
        "If-Match": ['"x"', "*", "\xe9", ","],
        "If-None-Match": ["*", '"x", "y"'],
        "If-Modified-Since": ["Thu, 01 Jan 1970 00:00:00 GMT", "x", "Thu, 99 Jan 99999 00:00:00 GMT"],
        "If-Unmodified-Since": ["0", "Thu, 01 Jan 0000 00:00:00 GMT"],
        "X-Amz-Security-Token": ["x"],
    }  # fmt: skip


QUERIES = st.lists(
    st.tuples(
        st.sampled_from(["list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "marker", "encoding-type", "location", "uploads", "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "versionId", "partNumber", "x", "where", "fetch-owner"]),
        st.sampled_from(["", "1", "2", "0", "-1", "99999999999999999999", "/", "%2F", "%ff", "%", "url", "events", "events%2F", "%00", "%ED%A0%80", "x" * 3000, "AWS4-HMAC-SHA256", "%C2%B2", "FUZZ%2F20260102%2Fus-east-1%2Fs3%2Faws4_request", "20260102T030405Z", "eyJ4Ijoi"]),
    ),
    max_size=3,
)  # fmt: skip
METHODS = st.sampled_from(
    ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "get", "G\x00T", "TRACE", "CONNECT", "X" * 50, "POST", "GET"]
)
LENGTHS = st.sampled_from(
    [
        None,
        None,
        None,
        None,
        "0",
        "-1",
        "5",
        "99999999999",
        "99999999999999999999999",
        "1e3",
        "+1",
        "\xb2",
        "5, 5",
        "chunked",
    ]
)
EDITS = st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=3), st.integers(0, 3)), max_size=2)


@st.composite
def requests(draw, door):
    """The bytes of a request; most of them a proper one with odd values, some of them cut or changed anywhere."""
    path = draw(st.sampled_from(door.paths))
    is_odd = draw(st.integers(0, 3)) == 0
    method = draw(METHODS) if is_odd else draw(st.sampled_from(["GET", "HEAD"])) if door.good[0] == "GET" else "POST"
    query = "&".join(f"{name}={value}" for name, value in draw(QUERIES))
    names = draw(st.lists(st.sampled_from(sorted(door.headers)), max_size=3))
    lines = [f"{method} {path}{'?' if query else ''}{query} HTTP/1.{draw(st.sampled_from('109')) if is_odd else 1}"]
    lines += draw(st.sampled_from([[], ["Host: x", "Host: y"], ["Host: \xe9"]])) if is_odd else ["Host: x"]
    headers = {
        **({} if is_odd else door.good[2]),
        **{name: draw(st.sampled_from(door.headers[name])) for name in names},
    }
    lines += [f"{name}: {value}" for name, value in headers.items()]
    body = draw(st.one_of(st.sampled_from(door.bodies), st.binary(max_size=40)))
    length = draw(LENGTHS) if is_odd else draw(st.sampled_from([None, None, "chunked"]))
    if length == "chunked":
        lines.append("Transfer-Encoding: chunked")
        size = draw(st.sampled_from([f"{len(body):x}", "0", "-1", "fffffffffffffffff", "zz", ""]))
        body = size.encode() + b"\r\n" + body + b"\r\n0\r\n\r\n"
    else:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    lines.append("Connection: close")
    sent = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
    for at, inserted, removed in draw(EDITS) if is_odd else []:
        place = at % (len(sent) + 1)
        sent = sent[:place] + inserted + sent[place + removed :]
    return sent


def talk(port, sent):
    """Send bytes and the end of them; return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # answered, and closed, before all of it was sent
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
        except ConnectionResetError:
            event("reset")
    return received


def check(door, sent):
    received = talk(door.port, sent)
    if not received:
        event("closed")
        return
    match = STATUS.match(received)
    if match is None:
        assert b"<!DOCTYPE" in received[:20] or b"HTTP/0.9" in sent or b"\n" not in received, received[:200]
        return
    status = int(match[1])
    event(str(status))
    assert status not in WRONG, (sent, received[:500])
    assert b"Traceback" not in received
    if status >= 400 and b"application/problem+json" in received:
        assert json.loads(received.partition(b"\r\n\r\n")[2].partition(b"\r\n\r\n")[0] or b"{}") is not None


NAMES = ["ingest", "gateway", "closed gateway", "metrics"]


@pytest.mark.parametrize("name", NAMES)
@fuzz_examples(110)
@given(data=st.data())
def test_every_request_has_a_proper_answer(doors, name, data):
    check(doors[name], data.draw(requests(doors[name])))


@pytest.mark.parametrize("name", NAMES)
@fuzz_examples(25)
@given(sent=st.binary(max_size=200))
@example(sent=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
@example(sent=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
def test_bytes_that_are_no_request_are_answered_or_closed(doors, name, sent):
    check(doors[name], sent)


@pytest.mark.parametrize("name", NAMES)
def test_a_good_request_is_answered_after_all_that(doors, name):
    doors[name].check_that_it_lives()
    doors[name].check_that_nothing_is_held()
