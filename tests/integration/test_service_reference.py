"""docs/metrics.md and docs/settings.md say what the code says."""

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PARTS = "ingest|frontend|merge|janitor|snapshot|gateway|table|access|clock|store|redis|beat"


@pytest.fixture(scope="module")
def reference():
    return runpy.run_path(str(DOCS / "reference.py"))


@pytest.mark.parametrize(
    ("page", "render"),
    [
        ("metrics.md", "render_metrics_page"),
        ("settings.md", "render_settings_page"),
        ("reliability.md", "render_reliability_page"),
        ("schemas/icedb.ingest.enqueue.schema.json", "render_enqueue_schema"),
    ],
)
def test_a_reference_page_is_current(reference, page, render):
    assert (DOCS / page).read_text(encoding="utf-8") == reference[render](), "run `python docs/reference.py`"


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
