"""Every code of ``icedb fsck`` is tried by a test and explained in docs/repair.md."""

import json
from pathlib import Path

from icedb_log.repair.fsck_findings import CODES

HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs"


def test_every_code_is_tried():
    text = "".join(page.read_text() for page in HERE.glob("test_fsck_*.py") if page != Path(__file__))
    words = {word for part in text.split('"')[1::2] for word in part.split()}
    assert [name for name in CODES if name not in words] == []


def test_every_code_is_documented():
    text = (DOCS / "repair.md").read_text()
    assert [name for name in CODES if f"| `{name}` |" not in text] == []


def test_the_schema_knows_every_code():
    schema = json.loads((DOCS / "schemas" / "icedb.fsck.schema.json").read_text())
    kinds = [schema["$defs"][kind]["properties"]["code"]["enum"] for kind in ("count", "finding")]
    assert [sorted(CODES)] * 2 == [sorted(each) for each in kinds]


def test_every_code_says_what_to_do():
    for code in CODES.values():
        assert code.title
        assert code.remedy
        assert code.rule in ("Wire", "Objects") or code.rule[0] in "WSFMRJINVETP"
