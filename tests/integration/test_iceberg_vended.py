"""Keys that the Iceberg catalog gives to engines, and what can be read with them over real S3: one table, nothing else."""

import time
from types import SimpleNamespace
from urllib.parse import quote, unquote

import orjson
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from iceberg_rig import (
    BLUE,
    RED,
    RED_KEY,
    SECRET,
    VENDING,
    ask,
    code_of,
    load,
    s3_client,
    start_catalog,
    vended_client,
    write_tenants,
)
from icedb_gateway.vended_keys import SESSION_TOKEN, Vended, VendedKeys
from icedb_log.holds.leases import read_leases
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store_settings import open_warehouse
from icedb_sim.rigs.access_rig import token_entry, write_access
from icedb_sim.rigs.gateway_rig import BUCKET
from waiting import LIMIT_MS, wait_until

BODY = b"PAR1 " + b"rows of the table " * 1000 + b" PAR1"
DENIED = (403, "AccessDenied")
FOREVER_MS = 4_000_000_000_000


def publish(table):
    """Write one line of metadata, as a publication whose rows nobody reads."""
    key = f"{table.paths.published_prefix}0000000001-{'a' * 32}-v.metadata.json"
    metadata = {"location": table.store.uri(table.paths.prefix), "snapshots": [], "refs": {}}
    table.store.put(key, orjson.dumps(metadata))
    return SimpleNamespace(publication_id="a" * 32, metadata_key=key, as_of_ms=table.read_log().store_now_ms)


@pytest.fixture(scope="module")
def rig(tmp_path_factory, s3_server):
    folder = tmp_path_factory.mktemp("vended")
    warehouse = open_warehouse(f"s3://{s3_server.bucket}/vended/wh", s3_server.options)
    rig = start_catalog(
        warehouse, access_file=str(write_tenants(folder)), publish=publish,
        gateway_iceberg_credentials="vended", gateway_iceberg_secret=SECRET,
    )  # fmt: skip
    yield rig
    rig.gateway.stop()


@pytest.fixture(scope="module")
def paths(rig):
    """Two tables of red and one of blue, each with a live file, a dead one, and one that no log file names."""
    found = {}
    for name in ("red_events", "red_pages", "blue_events"):
        table = rig.table(name).create("d=day(ts)")
        dead, live, stray = (table.write("d=2026-01-01", BODY) for _ in range(3))
        table.commit([dead])
        table.commit([live], [dead])
        token = BLUE if name.startswith("blue") else RED
        metadata = load(rig, name, token=token).json["metadata-location"].partition("/wh/")[2]
        found[name] = SimpleNamespace(
            live=live, dead=dead, stray=stray, metadata=f"vended/wh/{metadata}", log=table.logs[0]
        )
    return found


@pytest.fixture(scope="module")
def config(rig, paths):
    return load(rig, "red_events", token=RED, headers=VENDING).json["config"]


@pytest.fixture(scope="module")
def s3(config):
    return vended_client(config)


@pytest.fixture(scope="module")
def bucket(s3_server):
    return s3_server.bucket


def test_a_key_is_given_to_those_who_ask(rig, paths):
    plain = load(rig, "red_events", token=RED).json
    assert plain["config"] == {"client.region": "us-east-1", "s3.region": "us-east-1"}
    assert "storage-credentials" not in plain
    answer = load(rig, "red_events", token=RED, headers=VENDING).json
    config = answer["config"]
    assert config["s3.endpoint"] == f"{rig.url}/"  # ClickHouse needs the slash
    assert config["s3.path-style-access"] == "true"
    (credential,) = answer["storage-credentials"]
    assert credential == {"prefix": answer["metadata"]["location"], "config": config}
    lasts_ms = int(config["s3.session-token-expires-at-ms"]) - time.time() * 1000
    assert 1_800_000 - LIMIT_MS < lasts_ms <= 3_600_000
    assert SECRET not in str(answer)


def test_a_key_that_is_asked_for_again_is_the_same_for_half_an_hour(rig, paths):
    def asked_twice():
        answer = load(rig, "red_events", token=RED, headers=VENDING).json
        path = f"/{answer['config']['client.refresh-credentials-endpoint']}"
        return answer["storage-credentials"] == ask(rig, path, token=RED).json["storage-credentials"]

    wait_until(asked_twice, "two answers of one half hour")


def test_one_lease_holds_what_is_shown_for_as_long_as_keys_last(rig, paths):
    table = rig.table("red_pages")
    load(rig, "red_pages", token=RED)
    assert read_leases(table.warehouse.table("red_pages")) == ()  # who asks for no key goes by the grace period
    configs = [load(rig, "red_pages", token=RED, headers=VENDING).json["config"] for _ in range(3)]
    *earlier, lease = sorted(read_leases(table.warehouse.table("red_pages")), key=lambda lease: lease.expires_ms)
    assert len(earlier) <= 1  # the half of an hour has just ended
    assert lease.holder == "the Iceberg catalog"
    assert lease.at_ms <= time.time() * 1000 + 1000
    assert lease.expires_ms + MAX_STORE_GAP_MS >= int(configs[-1]["s3.session-token-expires-at-ms"])
    ask(rig, f"/{configs[-1]['client.refresh-credentials-endpoint']}", token=RED)
    assert len(read_leases(table.warehouse.table("red_pages"))) <= len(earlier) + 2


def test_an_answer_with_a_key_can_be_asked_for_again(rig, paths):
    first = load(rig, "red_events", token=RED, headers=VENDING)
    again = load(rig, "red_events", token=RED, headers={**VENDING, "If-None-Match": first.headers["etag"]})
    other = load(rig, "red_events", token=RED, headers={"If-None-Match": first.headers["etag"]})
    assert other.status == 200
    assert again.status == 304 or again.json["config"] != first.json["config"]  # the half of an hour has just ended


def test_files_and_metadata_of_the_table_can_be_read(s3, bucket, paths):
    own = paths["red_events"]
    for key in (own.live, own.dead):
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == BODY
    part = s3.get_object(Bucket=bucket, Key=own.live, Range="bytes=5-21")
    assert (part["Body"].read(), part["ContentRange"]) == (BODY[5:22], f"bytes 5-21/{len(BODY)}")
    assert s3.head_object(Bucket=bucket, Key=own.live)["ContentLength"] == len(BODY)
    metadata = s3.get_object(Bucket=bucket, Key=own.metadata)
    assert orjson.loads(metadata["Body"].read())["location"] == f"s3://{bucket}/vended/wh/red_events"
    tail = s3.get_object(Bucket=bucket, Key=own.metadata, Range="bytes=-2")["Body"].read()
    assert tail == b"}}"[-2:] or tail.endswith(b"}")
    assert s3.head_object(Bucket=bucket, Key=own.metadata)["ETag"] == metadata["ETag"]


def forbidden(paths):
    own, sibling, other = paths["red_events"], paths["red_pages"], paths["blue_events"]
    root = "vended/wh/red_events"
    name = own.live.rpartition("/")[2]
    return [
        own.stray,
        own.log,
        f"{root}/_icedb/table.json",
        f"{root}/_icedb/fields.json",
        f"{root}/_icedb/iceberg/head.json",
        f"{root}/_icedb/holds/publication.x.jsonl",
        f"{root}/_icedb/iceberg/metadata/",
        f"{root}/_icedb/iceberg/metadata/../head.json",
        f"{root}/_icedb/iceberg/metadata/..",
        f"{root}/_icedb/iceberg/metadata/.hidden",
        f"{root}/_icedb/iceberg/metadata//x",
        f"{root}/_icedb/iceberg/metadata/%2e%2e/head.json",
        f"{root}/_icedb/iceberg/metadata/..%2fhead.json",
        f"{root}/_data/../_icedb/table.json",
        f"{root}/_data/%2e%2e/_icedb/table.json",
        f"{root}/_data/../../red_pages/_data/d=2026-01-01/{sibling.live.rpartition('/')[2]}",
        f"{root}/_data/d=2026-01-01/./{name}",
        f"{root}/_data//d=2026-01-01/{name}",
        f"{root}/_data/d=2026-01-01/{name}/",
        f"{root}/_data/",
        f"/{own.live}",
        "vended/wh/_icedb/iceberg-location.json",
        "vended/wh/Red_events/_data/x.parquet",
        f"vended/other/red_events/_data/d=2026-01-01/{name}",
        sibling.live,
        sibling.metadata,
        other.live,
        other.metadata,
        "vended/wh/no_table/_data/x.parquet",
    ]


def test_everything_else_is_forbidden_alike(s3, bucket, paths):
    for key in forbidden(paths):
        assert code_of(s3.get_object, Bucket=bucket, Key=key) == DENIED, key
        assert code_of(s3.head_object, Bucket=bucket, Key=key)[0] == 403, key
    assert code_of(s3.list_objects_v2, Bucket=bucket, Prefix="vended/wh/red_events/") == DENIED
    assert code_of(s3.list_buckets) == DENIED
    assert code_of(s3.head_bucket, Bucket=bucket)[0] == 403
    assert (
        code_of(s3.get_object, Bucket=BUCKET, Key=f"red_events/d=2026-01-01/{paths['red_events'].live[-37:]}") == DENIED
    )
    assert code_of(s3.list_objects_v2, Bucket=BUCKET, Prefix="red_events/") == DENIED
    assert code_of(s3.put_object, Bucket=bucket, Key=paths["red_events"].live, Body=b"x") == (405, "MethodNotAllowed")
    assert code_of(s3.delete_object, Bucket=bucket, Key=paths["red_events"].live) == (405, "MethodNotAllowed")


def test_raw_paths_lead_nowhere_either(rig, paths, config, bucket):
    """What boto3 would encode once more, sent as it is; the signature is right: it is made of what is decoded."""
    folder = f"/{bucket}/vended/wh/red_events/_data/"
    for tail in ("../_icedb/table.json", "%2e%2e/_icedb/table.json", "%2E%2E%2F_icedb%2Ftable.json", "..%2f_log/x"):
        found = presigned(rig, config, folder + tail)
        assert (found.status, "<Code>AccessDenied</Code>" in found.text) == (403, True), tail
    good = presigned(rig, config, f"/{bucket}/{paths['red_events'].live}")
    assert (good.status, good.body) == (200, BODY)


def presigned(rig, config, path):
    request = AWSRequest("GET", rig.url + quote(unquote(path)))
    credentials = Credentials(config["s3.access-key-id"], config["s3.secret-access-key"], config["s3.session-token"])
    S3SigV4QueryAuth(credentials, "s3", "us-east-1", expires=60).add_auth(request)
    return rig.call("GET", f"{path}?{request.url.partition('?')[2]}")


def test_a_presigned_url_of_a_vended_key_needs_its_session_token_as_it_was(rig, paths, config, bucket):
    wrong = presigned(rig, {**config, "s3.session-token": "other"}, f"/{bucket}/{paths['red_events'].live}")
    assert (wrong.status, "<Code>InvalidToken</Code>" in wrong.text) == (400, True)


def issued(rig, identity, table, expires_ms, secret=SECRET):
    pair = VendedKeys(secret).issue(Vended(identity, table, expires_ms))
    return s3_client(rig.url, pair.access_key_id, pair.secret_access_key, SESSION_TOKEN)


def test_keys_of_other_replicas_count_and_keys_of_others_do_not(rig, paths, bucket):
    where = {"Bucket": bucket, "Key": paths["red_events"].live}
    assert code_of(issued(rig, "red", "red_events", FOREVER_MS).get_object, **where) == (200, "")
    for secret in ("another secret of somebody, 32 characters", ""):
        found = code_of(issued(rig, "red", "red_events", FOREVER_MS, secret=secret).get_object, **where)
        assert found == (403, "InvalidAccessKeyId")


def test_an_expired_key_says_so(rig, paths, bucket):
    s3 = issued(rig, "red", "red_events", 1_700_000_000_000)
    assert code_of(s3.get_object, Bucket=bucket, Key=paths["red_events"].live) == (400, "ExpiredToken")


def test_tampered_keys(rig, config, paths, bucket):
    where = {"Bucket": bucket, "Key": paths["red_events"].live}
    key, secret = config["s3.access-key-id"], config["s3.secret-access-key"]
    other = VendedKeys(SECRET).issue(Vended("red", "red_pages", FOREVER_MS))
    for changed, refusal in (
        ({"s3.secret-access-key": secret[:-1] + ("A" if secret[-1] != "A" else "B")}, "SignatureDoesNotMatch"),
        ({"s3.access-key-id": key[:30] + ("A" if key[30] != "A" else "B") + key[31:]}, "InvalidAccessKeyId"),
        ({"s3.access-key-id": other.access_key_id}, "SignatureDoesNotMatch"),
    ):
        assert code_of(vended_client(config, **changed).get_object, **where) == (403, refusal)
    assert code_of(vended_client(config, **{"s3.session-token": "x"}).get_object, **where) == (400, "InvalidToken")
    assert code_of(vended_client(config, **{"s3.session-token": None}).get_object, **where) == (200, "")


def test_a_key_gives_no_right_that_its_identity_has_not_got(rig, paths, bucket):
    """Neither a table of another tenant, nor one that it only appends to, nor who is gone from the access file."""
    for identity, table in (("red", "blue_events"), ("nobody", "red_events"), ("anybody", "red_events")):
        s3 = issued(rig, identity, table, FOREVER_MS)
        assert code_of(s3.get_object, Bucket=bucket, Key=paths[table].live) == DENIED
        assert code_of(s3.get_object, Bucket=bucket, Key=paths[table].metadata) == DENIED


def test_a_withdrawn_grant_ends_its_keys(tmp_path, rig, paths, bucket):
    identities = {"red": {"tokens": [token_entry(RED)]}}
    grant = {"identities": ["red"], "tables": ["red_*"], "verbs": ["read"]}
    for grants, found in (([grant], (200, "")), ([{**grant, "verbs": ["append"]}], DENIED), ([], DENIED)):
        access = write_access(tmp_path / "access.json", {"identities": identities, "grants": grants})
        other = start_catalog(rig.warehouse, access_file=str(access), publish=publish, gateway_iceberg_secret=SECRET)
        try:
            s3 = issued(other, "red", "red_events", FOREVER_MS)
            assert code_of(s3.get_object, Bucket=bucket, Key=paths["red_events"].live) == found
        finally:
            other.gateway.stop()


def test_an_identitys_own_key_reads_all_its_tables_and_no_others(rig, paths, bucket):
    s3 = s3_client(rig.url, *RED_KEY)
    for table in ("red_events", "red_pages"):
        assert s3.get_object(Bucket=bucket, Key=paths[table].live)["Body"].read() == BODY
        assert code_of(s3.get_object, Bucket=bucket, Key=paths[table].metadata) == (200, "")
    mine = {paths["red_pages"].live, paths["red_pages"].metadata}
    for key in forbidden(paths):
        if key not in mine:
            assert code_of(s3.get_object, Bucket=bucket, Key=key) == DENIED, key
    assert code_of(s3.list_objects_v2, Bucket=bucket) == DENIED
    assert len(s3.list_objects_v2(Bucket=BUCKET, Prefix="red_events/")["Contents"]) == 1  # views are as they were
    assert code_of(s3.get_object, Bucket="else", Key=paths["red_events"].live) == (404, "NoSuchBucket")
    assert code_of(s3_client(rig.url, *RED_KEY, "token").list_buckets) == (400, "InvalidToken")


def test_an_object_of_metadata_that_is_gone_says_what_to_do(s3, bucket):
    key = f"vended/wh/red_events/_icedb/iceberg/metadata/0000000001-{'b' * 32}-m0.avro"
    assert code_of(s3.get_object, Bucket=bucket, Key=key) == (404, "NoSuchKey")


def test_without_an_access_file_everybody_reads_what_can_be_read(s3_server, rig, paths, bucket):
    other = start_catalog(rig.warehouse, publish=publish, gateway_iceberg_credentials="vended")
    try:
        config = load(other, "red_events", headers=VENDING).json["config"]
        s3 = vended_client(config)
        assert s3.get_object(Bucket=bucket, Key=paths["red_events"].live)["Body"].read() == BODY
        for key in (paths["red_events"].stray, paths["red_events"].log, "vended/wh/red_events/_icedb/table.json"):
            assert code_of(s3.get_object, Bucket=bucket, Key=key) == DENIED
    finally:
        other.gateway.stop()


def test_the_same_bucket_shows_views_and_keys(rig, paths, s3_server):
    """A bucket of views that has the name of the store's own: real keys are told from folders of views."""
    other = start_catalog(rig.warehouse, publish=publish, gateway_bucket=s3_server.bucket)
    try:
        s3, own = s3_client(other.url, "any", "thing"), paths["red_events"]
        (listed,) = s3.list_objects_v2(Bucket=s3_server.bucket, Prefix="red_events/")["Contents"]
        for key in (own.live, listed["Key"]):
            assert s3.get_object(Bucket=s3_server.bucket, Key=key)["Body"].read() == BODY
        assert code_of(s3.get_object, Bucket=s3_server.bucket, Key=own.log) == (404, "NoSuchKey")
    finally:
        other.gateway.stop()
