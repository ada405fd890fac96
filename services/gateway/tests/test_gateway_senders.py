"""Who sends a request: keys that the catalog gave away, their tokens and ends, and reads that bring a body."""

from types import SimpleNamespace

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from icedb_gateway.errors import S3Error
from icedb_gateway.requests import Authentication, GatewayParts, parse_request
from icedb_gateway.signature import _read_time
from icedb_gateway.vended_keys import SESSION_TOKEN, Vended, VendedKeys
from icedb_service.access.access_file import Identity
from icedb_sim.fakes.fake_clock import FakeClock

HOST = "s3.example.com"
KEYS = VendedKeys("a secret of the deployment, of 32 characters")
VENDED = Vended("ann", "events", 4_000_000_000_000)
OWN = SimpleNamespace(identity=Identity("bob"), secret="bobs-secret")
KEPT = {"BOB": OWN}


def recognise(pair, *, token=None, headers=(), method="GET", now_ms=None):
    """Sign a request as botocore does, with more headers that are not signed; return who sends it."""
    request = AWSRequest(method, f"http://{HOST}/b/k", headers={"Host": HOST})
    S3SigV4Auth(Credentials(*pair, token), "s3", "r").add_auth(request)
    sent = [(name.lower(), value) for name, value in request.prepare().headers.items()]
    sent = [(name, value if isinstance(value, str) else value.decode()) for name, value in sent]
    pairs = [("host", HOST), *[pair for pair in sent if pair[0] != "host"], *headers]
    scope = {
        "method": method,
        "path": "/b/k",
        "raw_path": b"/b/k",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in pairs],
    }
    clock = FakeClock(_read_time(dict(pairs)["x-amz-date"]) if now_ms is None else now_ms)
    guard = SimpleNamespace(is_enforced=True, access_key=KEPT.get)
    metrics = SimpleNamespace(count_refusal=lambda code: None)
    parts = GatewayParts(None, SimpleNamespace(http_max_connections=2), metrics, clock, guard, None, None, KEYS)
    return Authentication(parts).recognise(parse_request(scope), scope)


def vended(expires_ms=VENDED.expires_ms):
    found = KEYS.issue(Vended("ann", "events", expires_ms))
    return found.access_key_id, found.secret_access_key


def code_of(*args, **kwargs):
    with pytest.raises(S3Error) as caught:
        recognise(*args, **kwargs)
    return caught.value.code


@pytest.mark.parametrize("token", [None, SESSION_TOKEN])
def test_a_key_that_is_vended_is_for_one_table(token):
    sender = recognise(vended(), token=token)
    assert (sender.identity.name, sender.table) == ("ann", "events")


def test_a_key_of_the_access_file_is_for_all_that_its_identity_may_read():
    sender = recognise(("BOB", OWN.secret))
    assert (sender.identity.name, sender.table) == ("bob", None)


def test_a_session_token_that_does_not_belong_to_the_key_is_refused():
    assert code_of(vended(), token="another") == "InvalidToken"
    assert code_of(("BOB", OWN.secret), token=SESSION_TOKEN) == "InvalidToken"
    assert code_of(("BOB", OWN.secret), token="another") == "InvalidToken"


def test_a_key_that_nobody_made_or_with_another_secret_is_refused():
    assert code_of(("ALICE", OWN.secret)) == "InvalidAccessKeyId"
    assert code_of(("BOB", "x")) == code_of((vended()[0], "x")) == "SignatureDoesNotMatch"


def test_a_vended_key_ends_in_the_moment_that_it_says():
    request = AWSRequest("GET", f"http://{HOST}/b/k", headers={"Host": HOST})
    S3SigV4Auth(Credentials("a", "b"), "s3", "r").add_auth(request)
    now_ms = _read_time(request.headers["X-Amz-Date"])
    assert recognise(vended(now_ms + 1), now_ms=now_ms).table == "events"
    assert code_of(vended(now_ms), now_ms=now_ms) == "ExpiredToken"


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ([("content-length", "0")], False),
        ([("content-length", "5")], True),
        ([("transfer-encoding", "chunked")], True),
        ([("content-length", "0"), ("transfer-encoding", "chunked")], True),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_read_brings_no_body(method, headers, is_refused):
    """What is in one nobody would compare with its hash."""
    if is_refused:
        assert code_of(vended(), headers=headers, method=method) == "XAmzContentSHA256Mismatch"
    else:
        assert recognise(vended(), headers=headers, method=method).table == "events"
