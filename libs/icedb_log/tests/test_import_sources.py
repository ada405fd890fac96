"""Which objects a pattern means, and what a worker may be asked to read."""

import pytest
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.imports.import_sources import list_sources, parse_pattern, require_allowed
from icedb_log.store.local_store import LocalObjectStore
from icedb_sim.fakes.memory_store import MemoryObjectStore

KEYS = [
    "in/a.parquet", "in/b.parquet", "in/c.csv", "in/.hidden.parquet", "in/_SUCCESS",
    "in/day=1/a.parquet", "in/_temporary/0/x.parquet", "in/_p=1/x.parquet",
    "in/x/y/deep.parquet", "in/_delta_log/1.checkpoint.parquet", "in2/a.parquet", "in/[odd].parquet",
]  # fmt: skip


def find(*patterns, allowed=("s3://",)):
    store = MemoryObjectStore(lambda: 0)
    for key in KEYS:
        store.put(key, key.encode())
    found = list_sources([parse_pattern(text) for text in patterns], open_store=lambda url: store, allowed=allowed)
    return [source.url.removeprefix("s3://b/") for source in found]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("in/*.parquet", ["in/[odd].parquet", "in/a.parquet", "in/b.parquet"]),
        ("in/a.parquet", ["in/a.parquet"]),
        ("in/?.parquet", ["in/a.parquet", "in/b.parquet"]),
        ("in/[!a].parquet", ["in/b.parquet"]),
        ("in/[ab].*", ["in/a.parquet", "in/b.parquet"]),
        ("in/[[]odd].parquet", ["in/[odd].parquet"]),
        ("in*/a.parquet", ["in/a.parquet", "in2/a.parquet"]),
        ("in/day=*/*", ["in/day=1/a.parquet"]),
        ("in/**/deep.parquet", ["in/x/y/deep.parquet"]),
        ("in/**/a.parquet", ["in/a.parquet", "in/day=1/a.parquet"]),
        (
            "in/**",
            [
                "in/[odd].parquet",
                "in/_p=1/x.parquet",
                "in/a.parquet",
                "in/b.parquet",
                "in/c.csv",
                "in/day=1/a.parquet",
                "in/x/y/deep.parquet",
            ],
        ),
        (
            "in/",
            [
                "in/[odd].parquet",
                "in/_p=1/x.parquet",
                "in/a.parquet",
                "in/b.parquet",
                "in/day=1/a.parquet",
                "in/x/y/deep.parquet",
            ],
        ),
        ("in/_temporary/**/*.parquet", ["in/_temporary/0/x.parquet"]),
        ("in/.hid*.parquet", ["in/.hidden.parquet"]),
        ("**/b.parquet", ["in/b.parquet"]),
    ],
)
def test_a_pattern_matches_components(pattern, expected):
    assert find(f"s3://b/{pattern}") == expected


def test_several_patterns_give_each_object_once():
    assert find("s3://b/in/*.parquet", "s3://b/in/a.parquet") == ["in/[odd].parquet", "in/a.parquet", "in/b.parquet"]


def test_a_named_object_is_known_as_such():
    store = MemoryObjectStore(lambda: 0)
    store.put("x.parquet", b"")
    for text, expected in (("s3://b/x.parquet", True), ("s3://b/*", False)):
        (source,) = list_sources([parse_pattern(text)], open_store=lambda url: store, allowed=["s3://"])
        assert source.is_named is expected


@pytest.mark.parametrize("pattern", ["s3://b/nothing/*.parquet", "s3://b/nothing.parquet"])
def test_a_pattern_without_a_match_is_not_found(pattern):
    with pytest.raises(NotFound, match="matches no object"):
        find("s3://b/in/*", pattern)


@pytest.mark.parametrize(
    "text",
    ["", "in/*.parquet", "/in/*.parquet", "http://b/x", "s3://", "s3://b", "s3://*/x", "file://host/x", "file:///x", "s3://b/../x",
     "s3://b/in//x", "s3://user@b/x", "file:///a/../../etc/passwd", "s3://b/\n"],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(text):
    with pytest.raises(InvalidRequest, match="import source"):
        parse_pattern(text)


@pytest.mark.parametrize(
    ("text", "allowed", "is_allowed"),
    [
        ("s3://b/in/x.parquet", ["s3://"], True),
        ("s3://b/in/x.parquet", ["s3://b"], True),
        ("s3://b/in/x.parquet", ["s3://b/in"], True),
        ("s3://b/in/*", ["s3://b/in/"], True),
        ("s3://b/in/**", ["s3://other", "s3://b/in"], True),
        ("s3://b/in*/x", ["s3://b/in"], False),
        ("s3://b/in2/x", ["s3://b/in"], False),
        ("s3://bb/x", ["s3://b"], False),
        ("file:///etc/x.parquet", ["s3://"], False),
        ("file:///data/w/x.parquet", ["s3://", "file:///data/w"], True),
        ("file:///data/w2/x.parquet", ["file:///data/w"], False),
        ("s3://b/x", [], False),
    ],
)
def test_a_worker_reads_only_what_it_may(text, allowed, is_allowed):
    if is_allowed:
        require_allowed(parse_pattern(text), allowed)
        return
    with pytest.raises(InvalidRequest, match="ICEDB_IMPORT_SOURCES"):
        find(text, allowed=allowed)


def test_a_symbolic_link_does_not_lead_out_of_what_is_allowed(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "in" / "good.parquet").write_bytes(b"x")
    (tmp_path / "secret" / "bad.parquet").write_bytes(b"x")
    (tmp_path / "in" / "link.parquet").symlink_to(tmp_path / "secret" / "bad.parquet")
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "secret")
    root = tmp_path.joinpath(*tmp_path.parts[:2])

    def names(pattern):
        found = list_sources(
            [parse_pattern(f"file://{tmp_path}/in/{pattern}")],
            open_store=lambda url: LocalObjectStore(root),
            allowed=[f"file://{tmp_path}/in"],
        )
        return [source.url.rpartition("/")[2] for source in found]

    assert names("**/*.parquet") == ["good.parquet"]
    with pytest.raises(NotFound):
        names("link.parquet")
    with pytest.raises(NotFound):
        names("folder/bad.parquet")
