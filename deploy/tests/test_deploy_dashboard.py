"""The dashboards: current, complete, and naming only what exists."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml

POLICIES = {
    "icedb_table_read_timestamp_seconds",  # age of the figures: by the exporter, not by table
    "icedb_table_log_grace_seconds",  # the bound of lag is computed from it
    "icedb_table_cost_budget_dollars",  # one for all tables, for the alert alone
}
"""Figures of a table that no panel shows by themselves."""


@pytest.fixture(scope="module")
def panels(boards) -> dict[str, dict]:
    """Every panel with queries by its title; it is the same on each dashboard, but for its place and width."""
    found = {}
    for name, board in boards.items():
        titles = [panel["title"] for panel in board["panels"] if panel.get("targets")]
        assert len(set(titles)) == len(titles), name
        for panel in board["panels"]:
            if panel.get("targets"):
                same = {key: value for key, value in panel.items() if key not in ("gridPos", "id")}
                assert found.setdefault(panel["title"], same) == same
    return found


@pytest.fixture(scope="module")
def queries(panels) -> list[tuple[str, dict]]:
    return [(title, target) for title, panel in panels.items() for target in panel["targets"]]


def steps(panel: dict) -> list[float]:
    return [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]]


def test_the_committed_files_are_what_the_code_builds(deploy):
    script = str(deploy / "grafana" / "dashboards.py")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_not_current_is_found(deploy, tmp_path):
    shutil.copytree(deploy / "grafana", tmp_path / "grafana")
    shutil.copytree(deploy / "prometheus" / "rules", tmp_path / "prometheus" / "rules")
    rules = tmp_path / "prometheus" / "rules" / "merge-lag.yml"
    rules.write_text(rules.read_text().replace("> 900", "> 1200"))
    (tmp_path / "grafana" / "dashboards" / "gone.json").write_text("{}")
    script = str(tmp_path / "grafana" / "dashboards.py")
    stale = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert stale.returncode == 1
    assert stale.stderr.startswith("gone.json, merge-lag.json, overview.json, table.json: ")
    subprocess.run([sys.executable, script], check=True)
    assert "1200" in (tmp_path / "grafana" / "dashboards" / "merge-lag.json").read_text()


def test_every_query_is_promql(queries, promtool, tmp_path):
    rules = [
        {"record": "panel:query", "expr": target["expr"].replace("$table", "a|b").replace("$__rate_interval", "1m")}
        for _, target in queries
    ]
    rules = [{**rule, "labels": {"number": str(number)}} for number, rule in enumerate(rules)]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(tmp_path / "queries.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_queries_name_only_series_that_there_are(queries, metric_names, recordings, find_metric_names, find_recordings):
    for title, target in queries:
        unknown = find_metric_names(target["expr"]) - metric_names
        unknown |= find_recordings(target["expr"]) - set(recordings)
        assert not unknown, f"{title}: {sorted(unknown)}"


def test_every_figure_of_a_table_is_shown(queries, recordings, metric_names, find_metric_names, find_recordings):
    texts = {target["expr"] for _, target in queries}
    shown = set().union(*map(find_metric_names, texts))
    assert shown >= {name for name in metric_names if name.startswith("icedb_table_")} - POLICIES
    recorded = set().union(*map(find_recordings, texts))
    assert set().union(*(find_metric_names(recordings[name]["expr"]) for name in recorded)) & POLICIES


def test_every_panel_has_a_place(deploy):
    script = "import boards, panels; print({*panels.PANELS} - {g.title for b in boards.BOARDS for r in b.rows.values() for g in r})"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=deploy / "grafana", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_labels_in_queries_and_legends_agree(queries):
    for title, target in queries:
        kept = re.findall(r" by \(([\w, ]+)\)", target["expr"])
        kept = set(kept[0].split(", ")) if kept else {"table"} if 'table=~"$table"' in target["expr"] else set()
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, title


def test_lines_are_drawn_where_alerts_fire(panels, alerts):
    assert steps(panels["Merge lag"]) == [900, 3600]
    assert steps(panels["Log files"]) == [500, 800]
    assert steps(panels["Halted tables"]) == [1]
    assert steps(panels["Refused batches"]) == [0.01]
    assert steps(panels["Tables that are late"]) == [1]
    for panel in panels.values():
        for link in panel["links"]:
            name = link["title"].removeprefix("Runbook: ")
            assert name in alerts
            assert link["url"] == f"${{runbook}}#{name.lower()}"


def test_bounds_are_those_of_the_tables_policy(panels):
    """What a table's own policy sets is a dashed line, not a number that stands here."""
    bounds = {
        target["legendFormat"]: target["expr"]
        for panel in panels.values()
        for target in panel["targets"]
        if target["legendFormat"].endswith(" bound")
    }
    assert {name.removeprefix("{{table}} ") for name in bounds} == {"late bound", "slow bound", "stop bound"}
    for panel in panels.values():
        has_bounds = any(target["legendFormat"].endswith(" bound") for target in panel["targets"])
        overrides = [each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]]
        assert overrides == (["/ bound$/"] if has_bounds else [])


def test_a_reader_chooses_the_table(boards, queries, panels):
    for name, board in boards.items():
        variables = {variable["name"]: variable for variable in board["templating"]["list"]}
        assert list(variables) == ["datasource", "table", "runbook", "console"]
        assert variables["table"]["query"] == "label_values(icedb_table_data_files, table)"
        assert variables["table"]["multi"] == (name != "table")
    for title, target in queries:
        if "icedb_table_" in target["expr"] or "icedb:table_" in target["expr"]:
            assert 'table=~"$table"' in target["expr"], title
    for panel in panels.values():
        assert panel["datasource"]["uid"] == "${datasource}"


def test_dashboards_ask_and_lead_on(boards, repository):
    """Each begins with questions; every dashboard, entry of the runbook and panel that is named is there."""
    headings = re.findall(r"^#+ (.+)$", (repository / "docs" / "runbook.md").read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(",", "").replace(" ", "-") for heading in headings}
    assert set(boards) == {"overview", "merge-lag", "table", "ingest", "janitor", "snapshot", "gateway"}
    for name, board in boards.items():
        assert board["uid"] == f"icedb-{name}"
        first, *others = board["panels"]
        assert first["type"] == "text"
        content = first["options"]["content"]
        assert len(re.findall(r"^- \*\*.+\?\*\* .+$", content, re.MULTILINE)) >= 3
        assert {uid.removeprefix("icedb-") for uid in re.findall(r"\(/d/([\w-]+)", content)} <= set(boards)
        assert set(re.findall(r"\$\{runbook\}#([\w-]+)", content)) <= anchors
        assert "(board:" not in content
        assert "(runbook:" not in content
        named = set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", content))
        assert named <= {panel["title"] for panel in others}, name
        assert [link["type"] for link in board["links"]] == ["dashboards", "link", "link"]
    assert any(f"/d/icedb-{name}?" in json.dumps(boards["overview"]) for name in ("ingest", "table"))


def test_panels_do_not_overlap(boards):
    for board in boards.values():
        taken = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, panel["title"]
            taken |= cells


def test_provisioning_finds_dashboards_and_prometheus(deploy, compose):
    provisioning = deploy / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"
    interval = yaml.safe_load((deploy / "prometheus" / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "icedb.yaml").read_text())["providers"]
    grafana = compose["services"]["grafana"]
    folder = provider["options"]["path"]
    assert f"./grafana/dashboards:{folder}:ro" in grafana["volumes"]
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{folder}/overview.json"
    assert (deploy / "grafana" / "dashboards" / "overview.json").is_file()
