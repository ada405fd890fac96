"""The fault proxy before a real S3 server: each kind of trouble is what its name says, and is told to those who count.

What the store makes of it is looked at, too: an unknown outcome stays unknown, and what landed is found.
"""

import threading

import pytest
from icedb_local.chaos.fault_proxy import WRITES, FaultProxy, ProxyFault
from icedb_log.clock import SystemClock
from icedb_log.errors import CommitOutcomeUnknown, NotFound, PreconditionFailed, Unavailable
from icedb_log.store.request_failures import listen_to_failures, stop_listening
from icedb_log.store.s3 import S3ObjectStore
from icedb_log.store.s3_client import SINGLE_REQUEST_BYTES
from icedb_log.store.s3_options import S3Options
from waiting import LIMIT_MS, LIMIT_S, wait_until

pytestmark = pytest.mark.s3

SHORT_TIMEOUT_S = 0.5
"""Where the answer never comes."""
CLOCK = SystemClock()
DONE = []
"""What the proxy was asked, and the server has answered."""


class Rig:
    """A proxy with a store behind it, and one that goes past it."""

    def __init__(self, proxy, server):
        self.proxy = proxy
        self.direct = S3ObjectStore(server.bucket, server.options)
        self.bucket = server.bucket
        self.store = self.open_store()
        self.failures = []

    def open_store(self, **options):
        """A store behind the proxy."""
        url = f"http://127.0.0.1:{self.proxy.ports['services']}"
        keys = {"access_key_id": "dev", "secret_access_key": "dev"}
        return S3ObjectStore(self.bucket, S3Options(endpoint_url=url, **keys, **options))

    def during(self, fault):
        """A block in which a fault is active."""
        return _During(self.proxy, fault)

    def key(self):
        return f"chaos-proxy/{CLOCK.new_id()}"


class _During:
    def __init__(self, proxy, fault):
        self.proxy, self.fault = proxy, fault

    def __enter__(self):
        self.hits = self.proxy.begin(self.fault)
        return self.hits

    def __exit__(self, *_):
        self.proxy.end(self.hits)


@pytest.fixture(scope="module")
def proxy(s3_server):
    port = int(s3_server.endpoint_url.rpartition(":")[2])
    with FaultProxy(
        port,
        {"services": 0, "watchers": 0},
        clock=CLOCK,
        on_done=lambda request, _: DONE.append((request.door, f"{request.method} {request.path}", request.body)),
    ) as running:
        yield running


@pytest.fixture
def rig(proxy, s3_server):
    made = Rig(proxy, s3_server)

    def note(operation, reason):
        made.failures.append((operation, reason))

    listen_to_failures(note)
    yield made
    stop_listening(note)
    proxy.faults.clear()
    proxy.open_doors()


def test_without_a_fault_everything_passes(rig):
    key, body = rig.key(), bytes(range(256)) * 4000
    rig.store.put_if_absent(key, body)
    assert rig.store.get(key).body == body
    assert rig.store.get_range(key, start=10, length=5).body == body[10:15]
    assert [info.key for info in rig.store.list_page("chaos-proxy/", limit=1000).objects][-1] == key
    assert rig.store.head(key).size_bytes == len(body)
    with pytest.raises(PreconditionFailed):
        rig.store.put_if_absent(key, b"another")
    rig.store.put(key, b"")
    assert rig.store.get(key).body == b""
    assert rig.store.delete([key]).deleted == (key,)
    with pytest.raises(NotFound):
        rig.store.get(key)
    assert rig.failures == []


def test_what_the_server_has_done_is_told_with_its_body(rig):
    key = rig.key()
    DONE.clear()
    with rig.during(ProxyFault("drop", WRITES)), pytest.raises(CommitOutcomeUnknown):
        rig.store.put_if_absent(key, b"body")
    with rig.during(ProxyFault("reset", WRITES)), pytest.raises(CommitOutcomeUnknown):
        rig.store.put_if_absent(rig.key(), b"never")
    rig.store.delete([key])
    (put, deleted) = DONE
    assert put == ("services", f"PUT /{rig.bucket}/{key}", b"body")
    assert deleted[1].startswith((f"POST /{rig.bucket}", f"DELETE /{rig.bucket}"))
    assert key in deleted[1] + deleted[2].decode()


@pytest.mark.parametrize(
    ("fault", "has_landed", "reason"),
    [
        (ProxyFault("status", WRITES, status=500), False, "server_error"),
        (ProxyFault("status", WRITES, status=507), False, "server_error"),
        (ProxyFault("status", WRITES, status=503), False, "throttled"),
        (ProxyFault("status_after", WRITES, status=500), True, "server_error"),
        (ProxyFault("drop", WRITES), True, "broken"),
        (ProxyFault("reset", WRITES), False, "broken"),
        (ProxyFault("hold", WRITES, delay_ms=50), False, "broken"),
    ],
    ids=lambda value: value.action + str(value.status) if isinstance(value, ProxyFault) else None,
)
def test_a_write_without_an_answer_is_unknown(rig, fault, has_landed, reason):
    key = rig.key()
    with rig.during(fault) as hits, pytest.raises(CommitOutcomeUnknown):
        rig.store.put_if_absent(key, b"body")
    assert hits.by_door == {"services": 1}
    assert rig.failures == [("write", reason)]
    if has_landed:
        assert rig.direct.get(key).body == b"body"
    else:
        with pytest.raises(NotFound):
            rig.direct.get(key)


def test_an_answer_that_never_comes_is_a_timeout(rig):
    store = rig.open_store(read_timeout_s=SHORT_TIMEOUT_S)
    with rig.during(ProxyFault("hold", WRITES, delay_ms=600_000)), pytest.raises(CommitOutcomeUnknown):
        store.put_if_absent(rig.key(), b"body")
    assert rig.failures == [("write", "timeout")]


def test_a_write_lands_after_its_client_has_given_up(rig):
    key = rig.key()
    with rig.during(ProxyFault("late", WRITES, delay_ms=600_000)), pytest.raises(CommitOutcomeUnknown):
        rig.store.put_if_absent(key, b"late")
    assert rig.proxy.late_count == 1
    with pytest.raises(NotFound):
        rig.direct.get(key)
    rig.proxy.land_late()
    wait_until(lambda: rig.proxy.late_count == 0)
    assert rig.direct.get(key).body == b"late"


def test_half_a_body_is_no_body(rig):
    key, body = rig.key(), b"0123456789" * 1000
    etag = rig.direct.put(key, body)
    with rig.during(ProxyFault("truncate", frozenset({"GET"}), limit=2)) as hits:
        assert rig.store.get(key).body == body, "the third try came whole"
        assert hits.total == len(rig.failures) == 2
    with rig.during(ProxyFault("truncate", frozenset({"GET"}))):
        with pytest.raises(Unavailable):
            rig.store.get(key)
        with pytest.raises(Unavailable):
            rig.store.get(key, if_match=etag)
    assert set(rig.failures) == {("read", "broken")}


@pytest.mark.parametrize("part_count", [1, 3])
def test_half_of_a_large_file_is_asked_for_again_and_is_told(rig, tmp_path, part_count):
    key, body = rig.key(), bytes(2 * part_count * SINGLE_REQUEST_BYTES - 1)
    rig.direct.put(key, body)
    with rig.during(ProxyFault("truncate", frozenset({"GET"}), limit=2)) as hits:
        rig.store.download(key, tmp_path / "copy")
        assert hits.total == 2
    assert (tmp_path / "copy").read_bytes() == body
    assert rig.failures == [("read", "broken")] * 2


@pytest.mark.parametrize("knows_version", [False, True], ids=["newest", "one version"])
@pytest.mark.parametrize(("status", "reason"), [(503, "throttled"), (500, "server_error")])
def test_retries_that_go_well_are_told_all_the_same(rig, status, reason, knows_version):
    key = rig.key()
    etag = rig.direct.put(key, b"x")
    with rig.during(ProxyFault("status", status=status, limit=1)) as hits:
        assert rig.store.get(key, if_match=etag if knows_version else None).body == b"x"
    assert hits.total == 1
    assert rig.failures == [("read", reason)]


def test_half_an_answer_that_nothing_is_there_is_none_and_is_told(rig):
    with rig.during(ProxyFault("truncate", frozenset({"GET"}), limit=1)) as hits:
        with pytest.raises(Unavailable, match="without an error of S3's"):
            rig.store.get(rig.key())
        assert hits.total == 1
    assert rig.failures == [("read", "broken")]


def test_half_a_listing_is_asked_for_again_and_is_told(rig):
    key = rig.key()
    rig.direct.put(key, b"x")
    with rig.during(ProxyFault("truncate", frozenset({"GET"}), limit=1)) as hits:
        assert [info.key for info in rig.store.list_page(key, limit=1).objects] == [key]
        assert hits.total == 1
    assert rig.failures == [("list", "server_error")], "botocore takes half a document for an error of the server"


def test_an_answer_whose_status_says_all_is_not_cut(rig):
    key = rig.key()
    rig.direct.put(key, b"x")
    with rig.during(ProxyFault("truncate", frozenset({"GET"}))) as hits, pytest.raises(PreconditionFailed):
        rig.store.get(key, if_match="another")
    assert hits.total == 0
    assert rig.failures == []


def test_an_answer_that_refuses_is_no_failure_of_the_store(rig):
    key = rig.key()
    rig.direct.put(key, b"x")
    with pytest.raises(PreconditionFailed):
        rig.store.get(key, if_match="another")
    with pytest.raises(NotFound):
        rig.store.get(rig.key(), if_match="another")
    assert rig.failures == []


def test_an_answer_from_a_clock_that_is_ahead(rig):
    rig.store.put(rig.key(), b"x")
    told_ms = rig.store.list_page("chaos-proxy/").store_now_ms
    with rig.during(ProxyFault("ahead", delay_ms=60_000)):
        assert rig.store.list_page("chaos-proxy/").store_now_ms >= told_ms + 60_000
    assert rig.store.list_page("chaos-proxy/").store_now_ms < told_ms + 60_000


def test_a_door_that_is_closed_refuses_and_breaks_what_is_open(rig):
    key = rig.key()
    rig.store.put(key, b"x")
    rig.proxy.close_doors()
    with pytest.raises(Unavailable, match="cannot connect"):
        rig.store.put_if_absent(rig.key(), b"y")
    with pytest.raises(Unavailable):
        rig.store.get(key)
    rig.proxy.open_doors()
    assert rig.store.get(key).body == b"x"
    assert {reason for _, reason in rig.failures} <= {"unreachable", "broken"}
    assert ("write", "unreachable") in rig.failures


def test_a_fault_meets_only_what_it_wants_and_so_often(rig):
    fault = ProxyFault("status", frozenset({"PUT"}), target="/_log/", status=500, limit=1)
    with rig.during(fault) as hits:
        rig.store.put_if_absent(rig.key(), b"x")
        with pytest.raises(CommitOutcomeUnknown):
            rig.store.put_if_absent(f"{rig.key()}/_log/1.jsonl", b"x")
        rig.store.put_if_absent(f"{rig.key()}/_log/1.jsonl", b"x")
    assert hits.total == 1


@pytest.mark.parametrize(("action", "has_landed"), [("slow", True), ("hold", False)])
def test_a_request_waits_until_it_is_released(rig, action, has_landed):
    key, outcomes = rig.key(), []

    def put():
        try:
            outcomes.append(rig.store.put_if_absent(key, b"x"))
        except CommitOutcomeUnknown as error:
            outcomes.append(error)

    hits = rig.proxy.begin(ProxyFault(action, frozenset({"PUT"}), delay_ms=LIMIT_MS, limit=1, client="127.0.0.1 Boto3"))
    writer = threading.Thread(target=put)
    writer.start()
    wait_until(lambda: hits.total, "the request has come")
    assert hits.clients[0].startswith("127.0.0.1 Boto3/")
    assert outcomes == []
    rig.proxy.release(hits)
    writer.join(LIMIT_S)
    assert isinstance(outcomes[0], str) is has_landed
    assert [info.key for info in rig.store.list_page(key, limit=1).objects] == [key] * has_landed


def test_a_fault_may_be_for_one_client_alone():
    fault = ProxyFault("slow", client=r"app/node-1\b")
    assert fault.wants("GET", "/b/k", "10.1.1.1 Boto3/1 app/node-1")
    assert not fault.wants("GET", "/b/k", "10.1.1.1 Boto3/1 app/node-12")
