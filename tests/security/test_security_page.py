"""docs/internals/security.md: each threat names code that exists, and a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "security.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| S(?P<number>\d+) \| (?P<threat>[^|]+) \| (?P<defence>[^|]+) \| `(?P<test>[^`|]+)` \|$", re.MULTILINE
)


def test_each_threat_names_code_and_a_test_that_exist():
    rows = list(ROW.finditer(PAGE))
    assert [int(row["number"]) for row in rows] == list(range(1, PAGE.count("\n| S") + 1))
    assert len(rows) >= 40
    for row in rows:
        files = re.findall(r"`([A-Za-z_/.]+)`", row["defence"])
        files = [each for each in files if "/" in each or each == "Makefile"]
        assert files, f"S{row['number']} names no file"
        for file in files:
            assert (ROOT / file).is_file(), f"S{row['number']}: no file {file}"
        file, _, name = row["test"].partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"S{row['number']}: no test {row['test']}"


def test_every_test_of_security_is_named_or_stands_beside_one_that_is():
    for path in [*(ROOT / "tests").glob("*/test_security_*.py")]:
        name = path.relative_to(ROOT).as_posix()
        assert name in PAGE or path == Path(__file__), f"docs/internals/security.md does not know of {name}"
