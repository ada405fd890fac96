"""docs/reliability.md and docs/internals/clocks.md promise nothing that is not tested: each test, target, metric and alert is there."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["reliability.md", "internals/clocks.md"]
TEST = re.compile(r"`((?:[\w.-]+/)*test_\w+\.py)(?:::(\w+))?`")
TARGET = re.compile(r"`make ([a-z]+)")
METRIC = re.compile(r"`(icedb_[a-z_]+)`")
ALERT = re.compile(r"IceDB[A-Z]\w+")


@cache
def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def missing(page, text):
    """What a page names that is not there."""
    for path, test in TEST.findall(text):
        if not (ROOT / path).is_file():
            yield path
        elif test and not re.search(rf"^(?:async )?def {test}\(", read(path), re.MULTILINE):
            yield f"{path}::{test}"
    yield from set(TARGET.findall(text)) - set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    yield from set(METRIC.findall(text)) - set(METRIC.findall(read("docs/metrics.md")))
    rules = "".join(path.read_text() for path in (ROOT / "deploy/prometheus/rules").glob("*.yml"))
    yield from set(ALERT.findall(text)) - set(re.findall(r"alert: (\w+)", rules))


@pytest.mark.parametrize("page", [*PAGES, "internals/testing.md"])
def test_what_a_page_names_is_there(page):
    text, _, _ = read(f"docs/{page}").partition("<!-- figures -->")
    assert len(TEST.findall(text)) > 10
    assert list(missing(page, text)) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_line_of_a_table_names_its_test(page):
    """Promises and clocks: no line without a proof. A file that is named alone stands for all of its tests."""
    checked = 0
    for table in re.split(r"\n\n", read(f"docs/{page}")):
        lines = [line for line in table.splitlines() if line.startswith("| ")]
        if lines and re.search(r"\| (proved|tested) by \|$", lines[0]):
            for line in lines[2:]:
                assert TEST.search(line.rsplit("|", 2)[1]), line[:120]
                checked += 1
    assert checked > 10


def test_what_is_not_there_is_found():
    text = "`tests/test_none.py` `tests/integration/test_docs_reliability.py::test_none` `make none` `icedb_none` IceDBNone"
    assert sorted(missing("page", text)) == [
        "IceDBNone",
        "icedb_none",
        "none",
        "tests/integration/test_docs_reliability.py::test_none",
        "tests/test_none.py",
    ]
