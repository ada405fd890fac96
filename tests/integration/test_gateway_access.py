"""Who may read what through the S3 gateway: tenants see their tables only, and every wrong signature has its name."""

import contextlib
import http.client
import socket
import urllib.error
import urllib.request

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from icedb_log.errors import InvalidRequest
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.rigs.access_rig import token_entry, write_access
from icedb_sim.rigs.gateway_rig import BUCKET, LIMIT_S, LOOPBACK, HandTable, start_gateway
from waiting import wait_until

SECRETS = {"RED1": "red-secret-of-the-test", "BLUE1": "blue-secret-of-the-test", "SLOW1": "slow-secret-of-the-test"}
TOKEN = "a-token-of-the-test"
BODY = b"PAR1 tenants PAR1"


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tenants")
    keys = {name: {"access_keys": [{"id": key, "secret": SECRETS[key]}]} for name, key in
            (("red", "RED1"), ("blue", "BLUE1"), ("slow", "SLOW1"))}  # fmt: skip
    keys["red"]["tokens"] = [token_entry(TOKEN)]
    keys["slow"]["rate"] = {"calls_per_s": 0.001, "burst": 2}
    grants = [
        {"identities": ["red"], "tables": ["red_*"], "verbs": ["read"]},
        {"identities": ["red"], "tables": ["shared_inbox"], "verbs": ["append"]},
        {"identities": ["blue", "slow"], "tables": ["blue_*"], "verbs": ["read"]},
    ]
    access = write_access(folder / "access.json", {"identities": keys, "grants": grants})
    warehouse = Warehouse(LocalObjectStore(folder / "store"))
    for name in ("blue_events", "red_events", "shared_inbox"):  # before: the gateway looks which tables there are
        table = HandTable(warehouse, name).create("d=day(ts)")
        table.commit([table.write("d=2026-01-01", BODY)])
    rig = start_gateway(warehouse, access_file=str(access))
    yield rig
    rig.gateway.stop()


def client(rig, key="RED1", secret=None, **config):
    return boto3.client(
        "s3",
        endpoint_url=rig.url,
        aws_access_key_id=key,
        aws_secret_access_key=secret or SECRETS.get(key, "none"),
        region_name="eu-central-1",
        config=Config(retries={"total_max_attempts": 1}, signature_version="s3v4", **config),
    )


def refusal(call, **arguments):
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return caught.value.response


def code_of(call, **arguments):
    return refusal(call, **arguments)["Error"]["Code"]


def keys(s3, **arguments):
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET, **arguments).get("Contents", ())]


@pytest.mark.parametrize(("key", "own", "other"), [("RED1", "red", "blue"), ("BLUE1", "blue", "red")])
def test_tenants_see_their_tables_only(rig, key, own, other):
    (theirs,) = keys(client(rig, f"{other.upper()}1"), Prefix=f"{other}_events/")
    s3 = client(rig, key)
    (mine,) = keys(s3)
    assert mine.startswith(f"{own}_events/")
    folders = s3.list_objects_v2(Bucket=BUCKET, Delimiter="/")["CommonPrefixes"]
    assert folders == [{"Prefix": f"{own}_events/"}]
    assert s3.get_object(Bucket=BUCKET, Key=mine)["Body"].read() == BODY
    assert keys(s3, Prefix=f"{other}_events/") == keys(s3, Prefix="no_table/") == []
    for call in (s3.get_object, s3.head_object):
        hidden = refusal(call, Bucket=BUCKET, Key=theirs)["Error"]
        missing = refusal(call, Bucket=BUCKET, Key=mine.replace(own, "no"))["Error"]
        assert hidden["Code"] == missing["Code"]
        assert hidden["Message"].replace(theirs, "") == missing["Message"].replace(mine.replace(own, "no"), "")
    for folder in (f"{other}_events@tag-x/", f"{other}_events@5/"):
        assert keys(s3, Prefix=folder) == []


def test_a_token_of_one_tenant_leads_another_nowhere(rig):
    table = rig.table("red_pages").create("d=day(ts)")
    table.commit([table.write("d=2026-01-01", BODY) for _ in range(3)])
    page = client(rig).list_objects_v2(Bucket=BUCKET, Prefix="red_pages/", MaxKeys=1)
    token = page["NextContinuationToken"]
    assert len(keys(client(rig), Prefix="red_pages/", ContinuationToken=token)) == 2
    assert keys(client(rig, "BLUE1"), Prefix="red_pages/", ContinuationToken=token) == []
    assert not any("red" in key for key in keys(client(rig, "BLUE1"), ContinuationToken=token))


def test_appending_is_not_reading(rig):
    s3 = client(rig)
    assert code_of(s3.list_objects_v2, Bucket=BUCKET, Prefix="shared_inbox/") == "AccessDenied"
    assert code_of(s3.get_object, Bucket=BUCKET, Key="shared_inbox/x.parquet") == "AccessDenied"
    assert code_of(s3.put_object, Bucket=BUCKET, Key="shared_inbox/x.parquet", Body=b"x") == "MethodNotAllowed"


def test_wrong_keys_have_names(rig):
    assert code_of(client(rig, "NOBODY").list_buckets) == "InvalidAccessKeyId"
    assert code_of(client(rig, "RED1", SECRETS["BLUE1"]).list_buckets) == "SignatureDoesNotMatch"
    answer = rig.call("GET", f"/{BUCKET}?list-type=2")
    assert (answer.status, "<Code>AccessDenied</Code>" in answer.text) == (403, True)
    assert rig.call("GET", f"/{BUCKET}", Authorization="AWS RED1:x").status == 400
    assert rig.call("PUT", f"/{BUCKET}/x").status == 403  # who asks is looked at before what is asked
    wait_until(lambda: rig.metric("icedb_gateway_refused_signatures_total", code="SignatureDoesNotMatch") == 1)
    wait_until(lambda: rig.metric("icedb_gateway_refused_signatures_total", code="InvalidAccessKeyId") == 1)


def test_what_no_client_signs_is_refused_and_not_failed(rig):
    names = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=20260102T030405Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host"
    credential = "X-Amz-Credential=RED1%2F20260102%2F%FF%2Fs3%2Faws4_request"
    answer = rig.call("GET", f"/{BUCKET}/red_events/a.parquet?{names}&{credential}&X-Amz-Signature={'a' * 64}")
    assert (answer.status, "<Code>InvalidArgument</Code>" in answer.text) == (400, True)


def test_a_path_without_a_bucket_is_no_list_of_buckets(rig):
    (key,) = keys(client(rig), Prefix="red_events/")
    answer = rig.call("GET", f"//{BUCKET}/{key}", Authorization=f"Bearer {TOKEN}")
    assert (answer.status, "<Code>NoSuchBucket</Code>" in answer.text) == (404, True)


@pytest.mark.parametrize(
    ("start", "more"),
    [(b"GET / HTTP/1.1\r\nHost: x\r\n", b"a: b\r\n"), (b"GET /", b"a"), (b"GET / HTTP/1.1\r\nx:", b"a")],
)
def test_headers_have_a_bound(rig, start, more):
    with socket.create_connection((LOOPBACK, rig.gateway.port), timeout=LIMIT_S) as connection:
        try:
            connection.sendall(start)
            for _ in range(100):
                connection.sendall(more * ((1 << 20) // len(more)))
        except OSError:
            return  # it hung up
    pytest.fail("100 MiB of headers were taken")


def test_presigned_urls(rig):
    s3 = client(rig)
    (key,) = keys(s3, Prefix="red_events/")
    url = s3.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": key}, ExpiresIn=60)
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        assert answer.read() == BODY
    blue = client(rig, "BLUE1").generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": key}, ExpiresIn=60)
    for changed, status in ((url.replace("Expires=60", "Expires=61"), 403), (blue, 404)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(changed, timeout=LIMIT_S)
        assert caught.value.code == status
        caught.value.close()


def test_a_bearer_token_will_do(rig):
    assert "red_events/" in rig.call("GET", f"/{BUCKET}?list-type=2", Authorization=f"Bearer {TOKEN}").text
    assert rig.call("GET", f"/{BUCKET}?list-type=2", Authorization="Bearer other").status == 403


def test_a_read_with_a_body_is_refused(rig):
    request = AWSRequest("GET", f"{rig.url}/{BUCKET}?list-type=2", data=b"<Select/>")
    S3SigV4Auth(Credentials("RED1", SECRETS["RED1"]), "s3", "us-east-1").add_auth(request)
    connection = http.client.HTTPConnection(LOOPBACK, rig.gateway.port, timeout=LIMIT_S)
    connection.request("GET", f"/{BUCKET}?list-type=2", b"<Select/>", dict(request.prepare().headers))
    answer = connection.getresponse()
    assert (answer.status, b"<Code>XAmzContentSHA256Mismatch</Code>" in answer.read()) == (400, True)
    connection.close()


def test_a_rate_is_kept(rig):
    s3 = client(rig, "SLOW1")
    assert len(keys(s3, Prefix="blue_events/")) == 1
    s3.list_objects_v2(Bucket=BUCKET, MaxKeys=0)
    error = refusal(s3.put_object, Bucket=BUCKET, Key="x", Body=b"")
    assert error["Error"]["Code"] == "SlowDown"
    assert int(error["ResponseMetadata"]["HTTPHeaders"]["retry-after"]) > 60


@pytest.mark.parametrize(
    "call",
    [
        lambda s3: s3.list_buckets(),
        lambda s3: s3.head_bucket(Bucket=BUCKET),
        lambda s3: s3.get_bucket_location(Bucket=BUCKET),
        lambda s3: s3.get_bucket_versioning(Bucket=BUCKET),
        lambda s3: s3.list_objects_v2(Bucket="another"),
        lambda s3: s3.get_object(Bucket=BUCKET, Key="no table/x.parquet"),
        lambda s3: s3.get_object(Bucket=BUCKET, Key="red_events/x.parquet"),
    ],
)
def test_whatever_is_asked_for_counts_against_the_rate(tmp_path, rig, call):
    keys = {"access_keys": [{"id": "ONE1", "secret": "s"}], "rate": {"calls_per_s": 0.001, "burst": 1}}
    grants = [{"identities": ["one"], "tables": ["red_*"], "verbs": ["read"]}]
    access = write_access(tmp_path / "a.json", {"identities": {"one": keys}, "grants": grants})
    one = start_gateway(rig.warehouse, access_file=str(access))
    try:
        s3 = client(one, "ONE1", "s")
        with contextlib.suppress(ClientError):
            call(s3)
        assert code_of(call, s3=s3) in ("SlowDown", "503"), "a HEAD has no body that says it"
    finally:
        one.gateway.stop()


def test_a_reader_that_stands_still_leaves_half_of_the_bodies_to_others(tmp_path, monkeypatch):
    names = ("red", "blue")
    access = write_access(
        tmp_path / "a.json",
        {
            "identities": {name: {"tokens": [token_entry(f"{TOKEN} {name}".replace(" ", "-"))]} for name in names},
            "grants": [{"identities": names, "tables": ["wide"], "verbs": ["read"]}],
        },
    )
    warehouse = Warehouse(LocalObjectStore(tmp_path / "store"))
    table = HandTable(warehouse, "wide").create("d=day(ts)")
    size_bytes = 8 * 1024 * 1024
    path = table.write("d=2026-01-01", bytes(size_bytes))
    table.commit([path])
    key = f"wide/{path.partition('/_data/')[2]}"
    most = {"gateway_max_bodies": 2, "gateway_part_kb": 64}
    monkeypatch.setattr("icedb_gateway.bodies.BODY_WAIT_MS", 0)
    rig = start_gateway(warehouse, access_file=str(access), **most)

    def ask(name):
        return rig.call("GET", f"/{BUCKET}/{key}", Authorization=f"Bearer {TOKEN}-{name}")

    try:
        with socket.socket() as still:
            still.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            still.connect((LOOPBACK, rig.gateway.port))
            headers = f"Host: x\r\nAuthorization: Bearer {TOKEN}-red\r\n\r\n"
            still.sendall(f"GET /{BUCKET}/{key} HTTP/1.1\r\n{headers}".encode())
            wait_until(lambda: rig.metric("icedb_gateway_open_bodies") == 1)
            refused = ask("red")
            assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
            assert b"<Code>SlowDown</Code>" in refused.body
            assert b"red has 1 files on their way here already" in refused.body
            assert len(ask("blue").body) == size_bytes
        wait_until(lambda: rig.metric("icedb_gateway_open_bodies") == 0)
        assert len(ask("red").body) == size_bytes
        assert rig.metric("icedb_access_denied_total", door="s3", reason="share") == 1
    finally:
        rig.gateway.stop()


def test_a_clock_that_is_wrong(tmp_path, rig):
    access = write_access(
        tmp_path / "a.json", {"identities": {"red": {"access_keys": [{"id": "RED1", "secret": "s"}]}}}
    )
    late = start_gateway(rig.warehouse, clock=FakeClock(1_700_000_000_000), access_file=str(access))
    try:
        assert code_of(client(late, "RED1", "s").list_buckets) == "RequestTimeTooSkewed"
    finally:
        late.gateway.stop()


def test_without_an_access_file_others_are_kept_away(rig):
    with pytest.raises(InvalidRequest, match="ICEDB_ACCESS_FILE"):
        start_gateway(rig.warehouse, gateway_host="0.0.0.0")
    start_gateway(rig.warehouse, gateway_host="0.0.0.0", open_access=True).gateway.stop()
