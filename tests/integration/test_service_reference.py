"""docs/metrics.md, docs/settings.md and the tables of rules say what the code says."""

import re
import runpy
from functools import cache
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
WITHOUT_PROOF = {"I1", "W1"}
"""Rules that say all there is to say in their line."""
PARTS = "ingest|frontend|merge|janitor|snapshot|gateway|console|table|access|clock|store|redis|beat"


@pytest.fixture(scope="module")
def reference():
    found = runpy.run_path(str(DOCS / "reference.py"))
    return {name: cache(value) if name.startswith("render_") else value for name, value in found.items()}


@pytest.mark.parametrize(
    ("page", "render"),
    [
        ("metrics.md", "render_metrics_page"),
        ("settings.md", "render_settings_page"),
        ("internals/testing.md", "render_testing_page"),
        ("protocol.md", "render_protocol_page"),
        ("internals/promises.md", "render_promises_page"),
        ("dashboards.md", "render_dashboards_page"),
        ("schemas/icedb.ingest.enqueue.schema.json", "render_enqueue_schema"),
        ("schemas/openapi.json", "render_http_contract"),
        ("decisions/README.md", "render_decisions_page"),
    ],
)
def test_a_reference_page_is_current(reference, page, render):
    assert (DOCS / page).read_text(encoding="utf-8") == reference[render](), "run `make docs`"


@pytest.mark.parametrize("page", ["protocol", "promises"])
def test_each_rule_is_enforced_and_tested_somewhere(reference, page):
    table = reference[f"render_{page}_page"]().partition("<!-- rules -->\n")[2].partition("<!-- end")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert len(rows) > 20
    assert [row[0] for row in rows if not all(row)] == []


def test_each_rule_has_one_line_and_a_proof_on_the_page_of_its_group():
    page = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("protocol.md", "internals/promises.md"))
    rules = re.findall(r"^- \*\*([A-Z]\d+)\*\* ", page, re.MULTILINE)
    assert len(rules) == len(set(rules))
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "internals").glob("protocol-*.md"))
    proved = set()
    for letter, first, last in re.findall(r"^(?:#+ |[^#\n]*\*\*)([A-Z])(\d+)(?: to [A-Z](\d+))?", pages, re.MULTILINE):
        proved |= {f"{letter}{number}" for number in range(int(first), int(last or first) + 1)}
    assert set(rules) - proved == WITHOUT_PROOF


def test_every_name_keeps_to_the_scheme(reference):
    names = re.findall(r"^\| `(icedb_[a-z_]+)` \| ([a-z]+) \|", reference["render_metrics_page"](), re.MULTILINE)
    assert len(names) > 50
    for name, kind in names:
        assert re.match(rf"icedb_({PARTS})_[a-z_]+$", name), name
        assert name.endswith("_total") == (kind == "counter"), name


def test_every_metric_that_dashboards_and_alerts_ask_for_exists(reference):
    known = set(re.findall(r"`(icedb_[a-z_]+)`", reference["render_metrics_page"]()))
    deploy = DOCS.parent / "deploy"
    asked = set()
    for path in [*deploy.rglob("*.yml"), *deploy.rglob("*.yaml"), *deploy.rglob("dashboards/*.json")]:
        asked |= set(
            re.findall(
                rf"icedb_(?:{PARTS})_[a-z_]+",
                path.read_text(encoding="utf-8"),
            )
        )
    assert asked
    unknown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked - known} - known
    assert not unknown
