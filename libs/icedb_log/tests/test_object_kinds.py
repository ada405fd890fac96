"""The kinds of object: the list in the code is the table in the documentation."""

import re
from pathlib import Path

import pytest
from icedb_log.keys import OBJECT_KINDS, ROLES, TablePaths, find_kind

PATHS = TablePaths("t", "wh/t")
PROTOCOL = Path(__file__).parents[3] / "docs" / "protocol.md"
BATCH = "01889a1b-3f75-7000-8000-00000000000a"
EXAMPLES = {
    "chain": "ab" * 16,
    "sequence": "0000000001",
    "ms": "1700000000000",
    "id": "00ab",
    "partition": "p=a/d=2023-06-07",
    "uuid7": BATCH,
    "format": "ndjson.zst",
    "sha256": "ab" * 32,
    "digest": "ab" * 16,
    "role": ROLES[0],
    "view": "v",
    "name": "q3",
    "owner": "tag",
    "run": "ab",
    "commit id": "ab",
    "log": "1700000000000_00ab.jsonl",
    "entry": f"{BATCH}.conflict-{'ab' * 32}",
    "what": "batch",
    "hash": "ab" * 16,
}


def documented():
    """Return what the table of objects names, with examples in the place of what stands in angle brackets."""
    section = PROTOCOL.read_text().partition("## Objects")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    return [re.sub(r"<(\w+)>", lambda match: EXAMPLES[match[1]], key.replace("[_<part>]", "")) for key in found]


def test_each_object_of_the_documentation_has_a_kind_and_each_kind_is_documented():
    kinds = {key: find_kind(PATHS, f"{PATHS.prefix}/{key}") for key in documented()}
    assert [key for key, kind in kinds.items() if kind is None] == []
    assert set(kinds.values()) == set(OBJECT_KINDS)


@pytest.mark.parametrize(
    "key",
    [
        "wh/t",
        "wh/t/",
        "wh/t2/_data/a.parquet",
        "wh/t/_data/a.txt",
        "wh/t/_data/.parquet",
        "wh/t/_data/p=a/_SUCCESS",
        "wh/t/_logs/x.jsonl",
        "wh/t/_log/x.json",
        "wh/t/_log/a/x.jsonl",
        "wh/t/_icedb/table.json.bak",
        "wh/t/_icedb/table_json",
        "wh/t/_icedb/fence/janitor.json",
        "wh/t/_icedb/staging/x.ndjson",
        "wh/t/_icedb/quarantine/x.json",
        "wh/t/_icedb/holds/lease.a/b.jsonl",
        "wh/t/_icedb/new/x.json",
        "wh/t/README\n",
    ],
)
def test_everything_else_has_none(key):
    assert find_kind(PATHS, key) is None
