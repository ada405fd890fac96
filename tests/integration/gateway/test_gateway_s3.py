"""The S3 gateway with boto3: listings of both versions, pages of one snapshot, files, ranges, errors, slow parts."""

import urllib.request

import pytest
from gateway_boto import BODY, DAYS, FILES, client, fresh, key_of, listed, refused
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.holds.tags import create_tag, delete_tag
from icedb_log.store.s3 import S3ObjectStore
from icedb_log.store.table_store import TableStore
from icedb_log.warehouse import Warehouse
from icedb_sim.rigs.gateway_rig import BUCKET, LIMIT_S, start_gateway
from waiting import wait_until

CLOCK = SystemClock()


def test_buckets(rig, s3):
    assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == [BUCKET]
    assert s3.head_bucket(Bucket=BUCKET)["BucketRegion"] == "us-east-1"
    assert s3.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] is None
    assert "Status" not in s3.get_bucket_versioning(Bucket=BUCKET)
    assert refused(s3.list_objects_v2, Bucket="other") == ("NoSuchBucket", 404)
    assert refused(s3.head_bucket, Bucket="other") == ("404", 404)


@pytest.mark.parametrize("version", [1, 2])
def test_thousands_of_keys_in_pages(rig, s3, version):
    keys, prefixes, page_count = listed(s3, version, Prefix="large/")
    assert (len(keys), len(set(keys)), prefixes, page_count) == (FILES, FILES, [], 3)
    assert keys == sorted(keys)
    assert listed(s3, version, Prefix="large/", PaginationConfig={"PageSize": 700})[0] == keys
    day = [key for key in keys if key.startswith(f"large/{DAYS[3]}/")]
    assert listed(s3, version, Prefix=f"large/{DAYS[3]}/", PaginationConfig={"PageSize": 70})[0] == day


@pytest.mark.parametrize("version", [1, 2])
def test_folders(rig, s3, version):
    assert listed(s3, version, Delimiter="/")[1] == ["events/", "large/", "nothing/"]
    folders = [f"large/{day}/" for day in DAYS]
    for size in (1, 5, 1000):
        config = {"PageSize": size}
        assert listed(s3, version, Prefix="large/", Delimiter="/", PaginationConfig=config)[:2] == ([], folders)
        assert listed(s3, version, Delimiter="/", PaginationConfig=config)[1][0] == "events/"
        assert listed(s3, version, Prefix="large/d", Delimiter="=", PaginationConfig=config)[1] == ["large/d="]
    assert listed(s3, version, Prefix="nothing/") == ([], [], 1)
    assert listed(s3, version, Prefix="no_such_table/") == ([], [], 1)


def test_a_listing_over_all_tables_and_after_a_key(rig, s3):
    everything, _, _ = listed(s3)
    assert everything == sorted(everything)
    assert len(everything) == FILES + len(DAYS)
    assert listed(s3, PaginationConfig={"PageSize": 628})[0] == everything
    for start in (everything[-5], "events/zzz", "large/d=2", "zzz"):
        expected = [key for key in everything if key > start]
        assert listed(s3, StartAfter=start)[0] == expected
        assert listed(s3, 1, Marker=start)[0] == expected
    answer = s3.list_objects_v2(Bucket=BUCKET, MaxKeys=0)
    assert (answer["KeyCount"], answer["IsTruncated"]) == (0, False)


def test_no_key_of_the_log_nor_of_ours_is_shown_or_served(rig, s3):
    table, paths = fresh(rig, "hidden")
    orphan = table.write(DAYS[0], BODY)
    keys, _, _ = listed(s3, Prefix="hidden/")
    assert keys == [key_of(path) for path in paths]
    inner = [table.logs[0], "wh/hidden/_icedb/table.json", orphan, "wh/hidden/_data/../_icedb/table.json"]
    tried = [path.removeprefix("wh/") for path in inner] + [key_of(orphan), "hidden/_data/x.parquet", "", "hidden"]
    tried += ["hidden/../events/x.parquet", "hidden/_log/x.parquet", "wh/hidden/x.parquet", "hidden/\x00.parquet"]
    for key in filter(None, tried):
        assert refused(s3.get_object, Bucket=BUCKET, Key=key) == ("NoSuchKey", 404), key
        assert refused(s3.head_object, Bucket=BUCKET, Key=key) == ("404", 404), key


def test_head_get_and_ranges(rig, s3):
    key = f"events/{DAYS[0]}/"
    entry = s3.list_objects_v2(Bucket=BUCKET, Prefix=key, FetchOwner=True)["Contents"][0]
    body = BODY + DAYS[0].encode()
    head = s3.head_object(Bucket=BUCKET, Key=entry["Key"])
    whole = s3.get_object(Bucket=BUCKET, Key=entry["Key"])
    assert whole["Body"].read() == body
    for answer in (head, whole):
        assert answer["ContentLength"] == entry["Size"] == len(body)
        assert (answer["ETag"], answer["LastModified"]) == (entry["ETag"], entry["LastModified"])
        assert answer["AcceptRanges"] == "bytes"
    for header, part, described in (
        ("bytes=0-3", body[:4], f"bytes 0-3/{len(body)}"),
        ("bytes=5-", body[5:], f"bytes 5-{len(body) - 1}/{len(body)}"),
        ("bytes=-4", body[-4:], f"bytes {len(body) - 4}-{len(body) - 1}/{len(body)}"),
    ):
        answer = s3.get_object(Bucket=BUCKET, Key=entry["Key"], Range=header)
        assert (answer["Body"].read(), answer["ContentRange"]) == (part, described)
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert refused(s3.get_object, Bucket=BUCKET, Key=entry["Key"], Range="bytes=99-") == ("InvalidRange", 416)
    get = {"Bucket": BUCKET, "Key": entry["Key"]}
    assert refused(s3.get_object, **get, IfMatch='"other"') == ("PreconditionFailed", 412)
    assert refused(s3.get_object, **get, IfNoneMatch=entry["ETag"])[1] == 304
    assert refused(s3.head_object, **get, IfModifiedSince=entry["LastModified"])[1] == 304
    assert refused(s3.get_object, **get, VersionId="v1") == ("NoSuchVersion", 404)


def test_a_large_file_comes_whole_and_only_as_much_as_is_asked_for_is_read(rig, s3):
    table = rig.table("wide").create("d=day(ts)")
    body = bytes(range(256)) * 4096  # 1 MiB: 16 parts
    table.commit([table.write(DAYS[0], body)])
    key = listed(s3, Prefix="wide/")[0][0]
    assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == body
    rig.warehouse.store.data_reads = 0
    part = s3.get_object(Bucket=BUCKET, Key=key, Range="bytes=100000-199999")["Body"].read()
    assert part == body[100_000:200_000]
    assert rig.warehouse.store.data_reads == 2
    wait_until(lambda: rig.metric("icedb_gateway_open_bodies") == 0)  # its end is counted behind its last byte


def test_writes_and_unknown_subresources_are_refused(rig, s3):
    key = {"Bucket": BUCKET, "Key": "events/x.parquet"}
    assert refused(s3.put_object, **key, Body=b"x") == ("MethodNotAllowed", 405)
    assert refused(s3.delete_object, **key) == ("MethodNotAllowed", 405)
    assert refused(s3.create_multipart_upload, **key) == ("MethodNotAllowed", 405)
    delete = {"Objects": [{"Key": "events/x.parquet"}]}
    assert refused(s3.delete_objects, Bucket=BUCKET, Delete=delete) == ("MethodNotAllowed", 405)
    assert refused(s3.create_bucket, Bucket="other") == ("MethodNotAllowed", 405)
    for call in (s3.get_bucket_acl, s3.get_bucket_policy, s3.list_multipart_uploads, s3.list_object_versions):
        assert refused(call, Bucket=BUCKET) == ("NotImplemented", 501)
    assert refused(s3.get_object_tagging, **key) == ("NotImplemented", 501)
    assert rig.call("OPTIONS", f"/{BUCKET}").status == 405


@pytest.mark.parametrize("version", [1, 2])
def test_pages_stay_on_one_snapshot_while_everything_is_merged_and_deleted(rig, s3, version):
    table, paths = fresh(rig, f"busy{version}", 6)
    pages = s3.get_paginator("list_objects_v2" if version == 2 else "list_objects").paginate(
        Bucket=BUCKET, Prefix=f"{table.name}/", PaginationConfig={"PageSize": 2}
    )
    seen = []
    for number, page in enumerate(pages):
        seen += [entry["Key"] for entry in page["Contents"]]
        merged = table.write(DAYS[number], BODY + b"merged")
        table.commit([merged], paths if number == 0 else (), dead_logs=table.logs[:1] if number == 0 else ())
    assert seen == [key_of(path) for path in paths]
    for key in seen:  # merged into others since, and still there: whoever listed them reads on
        assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read().startswith(BODY)
        assert s3.head_object(Bucket=BUCKET, Key=key)["ContentLength"] > len(BODY)
    now, _, _ = listed(s3, version, Prefix=f"{table.name}/")
    assert len(now) == 3
    assert not set(now) & set(seen)
    table.warehouse.store.delete(paths)
    code = refused(s3.get_object, Bucket=BUCKET, Key=seen[0])
    assert code == ("NoSuchKey", 404)


def test_another_replica_goes_on_with_the_same_snapshot_or_refuses(rig, s3):
    table, paths = fresh(rig, "replicas", 5)
    first = s3.list_objects_v2(Bucket=BUCKET, Prefix="replicas/", MaxKeys=2)
    CLOCK.sleep_ms(2)  # the next commit has a later time
    table.commit([table.write(DAYS[7], BODY)], paths[4:])
    token = {"Bucket": BUCKET, "Prefix": "replicas/", "ContinuationToken": first["NextContinuationToken"]}
    other = start_gateway(rig.warehouse)
    try:
        there = client(other)
        rest = [entry["Key"] for entry in there.list_objects_v2(**token)["Contents"]]
        assert rest == [key_of(path) for path in paths[2:]]
        table.commit(time_ms=CLOCK.now_ms() - 3_600_000)  # changes nothing
        assert len(client(other).list_objects_v2(**token)["Contents"]) == 3
    finally:
        other.gateway.stop()
    late = table.write(DAYS[8], BODY)
    log = table.logs[0]
    table.commit([late], time_ms=int(log.rpartition("/")[2][:13]) - 1)  # landed late, with an earlier time
    third = start_gateway(rig.warehouse)
    try:
        assert refused(client(third).list_objects_v2, **token) == ("InvalidArgument", 400)
    finally:
        third.gateway.stop()
    assert len(s3.list_objects_v2(**token)["Contents"]) == 3  # it has it in memory
    assert refused(s3.list_objects_v2, **{**token, "ContinuationToken": "bm9uZQ"}) == ("InvalidArgument", 400)


def test_time_travel_and_tags_by_prefix(rig, s3):
    table, paths = fresh(rig, "past")
    at_ms = CLOCK.now_ms()
    create_tag(Table.open(TableStore(rig.warehouse.store, table.warehouse.table("past").paths), clock=CLOCK), "eom")
    CLOCK.sleep_ms(2)
    newest = table.write(DAYS[9], BODY)
    table.commit([newest], paths)
    assert listed(s3, Prefix="past/")[0] == [key_of(newest)]
    for folder in (f"past@{at_ms}", "past@tag-eom"):
        before = [key_of(path).replace("past/", f"{folder}/") for path in paths]
        for version in (1, 2):
            assert listed(s3, version, Prefix=f"{folder}/", PaginationConfig={"PageSize": 3})[0] == before
        assert listed(s3, Prefix=folder, Delimiter="/")[1] == [f"{folder}/"]
        assert s3.get_object(Bucket=BUCKET, Key=before[0])["Body"].read() == BODY + b"0"
        hidden = key_of(newest).replace("past/", f"{folder}/")
        assert refused(s3.get_object, Bucket=BUCKET, Key=hidden) == ("NoSuchKey", 404)
    assert refused(s3.list_objects_v2, Bucket=BUCKET, Prefix="past@9999999999999/") == ("InvalidArgument", 400)
    assert refused(s3.list_objects_v2, Bucket=BUCKET, Prefix="past@tag-other/") == ("InvalidArgument", 400)
    assert listed(s3, Prefix="no_table@tag-eom/")[0] == []
    delete_tag(TableStore(rig.warehouse.store, table.warehouse.table("past").paths), "eom")


def test_a_live_file_that_is_not_there_is_an_error_of_ours_and_not_a_missing_key(rig, s3):
    table, paths = fresh(rig, "damaged", 1)
    table.warehouse.store.delete(paths)
    assert refused(s3.get_object, Bucket=BUCKET, Key=key_of(paths[0])) == ("InternalError", 500)
    wait_until(lambda: rig.metric("icedb_gateway_missing_files_total") == 1)
    table, paths = fresh(rig, "grown", 1)
    table.warehouse.store.put(paths[0], BODY * 2)
    assert refused(s3.get_object, Bucket=BUCKET, Key=key_of(paths[0])) == ("InternalError", 500)


def test_a_damaged_log_halts_its_table_alone(rig, s3):
    table, _ = fresh(rig, "broken")
    table.warehouse.store.put(table.logs[0], b"{")
    assert refused(s3.list_objects_v2, Bucket=BUCKET, Prefix="broken/") == ("InternalError", 500)
    assert refused(s3.list_objects_v2, Bucket=BUCKET) == ("InternalError", 500)  # never less than everything
    assert len(listed(s3, Prefix="events/")[0]) == len(DAYS)
    table.warehouse.store.delete([table.logs[0], "wh/broken/_icedb/table.json"])


def test_a_presigned_url_needs_no_client(rig, s3):
    key = listed(s3, Prefix="events/")[0][0]
    for version in ("s3v4", "s3"):
        signer = client(rig, signature_version=version)
        url = signer.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": key}, ExpiresIn=60)
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            assert answer.read() == BODY + DAYS[0].encode()


@pytest.mark.s3
def test_over_a_bucket(s3_server):
    """The same over S3 itself: what the gateway reads from is a bucket, too."""
    store = S3ObjectStore(s3_server.bucket, s3_server.options)
    rig = start_gateway(Warehouse(store, "gateway/wh"), gateway_part_kb=64)
    try:
        table = rig.table("events").create("d=day(ts)")
        body = bytes(range(256)) * 1024
        paths = [table.write(day, body + day.encode()) for day in DAYS[:3]]
        table.commit(paths)
        there = client(rig)
        keys, _, _ = listed(there, Prefix="events/", PaginationConfig={"PageSize": 2})
        assert len(keys) == 3
        assert there.get_object(Bucket=BUCKET, Key=keys[0])["Body"].read() == body + DAYS[0].encode()
        assert refused(there.get_object, Bucket=BUCKET, Key="events/none.parquet") == ("NoSuchKey", 404)
        store.delete(paths[:1])
        assert refused(there.get_object, Bucket=BUCKET, Key=keys[0]) == ("InternalError", 500)
    finally:
        rig.gateway.stop()
