"""Names that come from outside never leave the folder they belong to, whatever they are made of."""

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.errors import CorruptLog, IceDBError, InvalidRequest
from icedb_log.holds.erasures import check_erasure_id
from icedb_log.keys import TablePaths, check_table_name, check_tag_name, parse_log_key, parse_staged_key
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.table.partitions import encode_partition_value

PATHS = TablePaths("events", "wh/events")
WAYS_OUT = [
    *("..", ".", "", "/", "//", "a/b", "../x", "a/../../x", "/etc/passwd", "%2e%2e/x", "..%2fx", "%00", "a\0b"),
    *("\N{FULLWIDTH FULL STOP}" * 2, "..\N{DIVISION SLASH}x", "\u202ecod", "a\nb", "a\\..\\b", "C:\\x", "~", "x" * 300),
    *(
        "événements",
        "ﬁle",
        "e\u0301",
        "EVENTS",
        "events ",
        " events",
        "events\n",
        "_icedb",
        "-x",
        "$(id)",
        "`id`",
        "a;b",
        "'",
    ),
]
hostile = st.one_of(st.sampled_from(WAYS_OUT), st.text(max_size=80), st.text("./\\%\0~ab", max_size=12))


@pytest.mark.parametrize("name", WAYS_OUT)
def test_no_way_out_is_the_name_of_a_table_or_tag(name):
    for check in (check_table_name, PATHS.view_key, PATHS.sibling):
        with pytest.raises(InvalidRequest):
            check(name)
    with pytest.raises(InvalidRequest):
        check_tag_name(name)


@given(hostile)
def test_names_of_tables_are_plain(name):
    try:
        found = check_table_name(name)
    except InvalidRequest:
        return
    assert found.isascii()
    assert found.replace("_", "a").isalnum()
    assert PATHS.sibling(found).prefix == f"wh/{found}"


KEYS = {
    "lease": lambda part: PATHS.hold_key("lease", part),
    "erasure": PATHS.erasure_key,
    "import": PATHS.import_key,
    "idempotency": PATHS.idempotency_key,
    "quarantine": PATHS.quarantine_key,
    "refused": PATHS.refused_key,
    "commit": lambda name: PATHS.log_key(time_ms=1, commit_id=name, is_merged=False),
    "file": lambda name: PATHS.data_key(partition="d=1", file_id=name),
    "staged": lambda name: PATHS.staging_key(batch_id=name, staging_format="json"),
}


@pytest.mark.parametrize("kind", KEYS)
@given(hostile)
def test_a_key_stays_in_its_folder(kind, name):
    try:
        key = KEYS[kind](name)
    except InvalidRequest:
        return
    folder = KEYS[kind]("018bcfe5-6800-7a4a-b39f-cbe7cb116932").rpartition("/")[0]
    assert key.rpartition("/")[0] == folder
    assert os.path.normpath(key) == key


@given(hostile)
def test_a_partition_value_is_one_part_of_a_key(value):
    encoded = encode_partition_value(value)
    assert "/" not in encoded
    assert encoded.isascii()
    key = PATHS.data_key(partition=f"u={encoded}", file_id="x")
    assert os.path.normpath(key) == key


@given(hostile)
def test_a_partition_path_that_is_not_encoded_makes_no_key(partition):
    try:
        key = PATHS.data_key(partition=partition, file_id="x")
    except InvalidRequest:
        return
    assert key.startswith("wh/events/_data/")
    assert os.path.normpath(key) == key


@given(hostile)
def test_keys_that_are_listed_are_what_they_should_be_or_refused(name):
    for parse, error in ((parse_log_key, CorruptLog), (parse_staged_key, InvalidRequest)):
        try:
            parse(f"wh/events/x/{name}")
        except error:
            continue
    with contextlib.suppress(InvalidRequest):
        assert check_erasure_id(name).isalnum()


@given(hostile)
def test_a_store_in_a_directory_stays_in_it(tmp_path_factory, key):
    root = tmp_path_factory.getbasetemp() / "names" / "store"
    store = LocalObjectStore(root)
    outside = root.parent / "outside"
    root.mkdir(parents=True, exist_ok=True)
    outside.mkdir(exist_ok=True)
    before = {path.name for path in root.parent.iterdir()}
    for name in (key, f"../outside/{key}", f"a/../../outside/{key}", f"/{outside}/{key}"):
        try:
            store.put(name, b"x")
            store.delete([name])
        except IceDBError:
            continue
    assert {path.name for path in root.parent.iterdir()} == before
    assert not list(outside.iterdir())


@pytest.mark.parametrize(
    "key", ["..", "../outside/x", "a/../../outside/x", "//x", "a//b", "a/./b", "a\0b", "/etc/passwd", ""]
)
def test_a_key_that_is_a_way_out_is_refused_by_the_directory_store(tmp_path, key):
    store = LocalObjectStore(tmp_path / "store")
    for call in (
        lambda: store.get(key),
        lambda: store.put(key, b"x"),
        lambda: store.put_if_absent(key, b"x"),
        lambda: store.head(key),
    ):
        with pytest.raises(InvalidRequest):
            call()
