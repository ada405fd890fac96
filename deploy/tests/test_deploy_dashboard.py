"""The dashboard: current, complete, and naming only what exists."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml


@pytest.fixture(scope="module")
def board(deploy) -> dict:
    return json.loads((deploy / "grafana" / "dashboards" / "merge-lag.json").read_text())


@pytest.fixture(scope="module")
def panels(board) -> dict[str, dict]:
    found = [panel for panel in board["panels"] if panel["type"] == "timeseries"]
    assert len({panel["title"] for panel in found}) == len(found)
    return {panel["title"]: panel for panel in found}


def steps(panel: dict) -> list[float]:
    return [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]]


def test_the_committed_file_is_what_the_code_builds(deploy):
    script = str(deploy / "grafana" / "dashboards.py")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_not_current_is_found(deploy, tmp_path):
    shutil.copytree(deploy / "grafana", tmp_path / "grafana")
    shutil.copytree(deploy / "prometheus" / "rules", tmp_path / "prometheus" / "rules")
    rules = tmp_path / "prometheus" / "rules" / "merge-lag.yml"
    rules.write_text(rules.read_text().replace("> 900", "> 1200"))
    script = str(tmp_path / "grafana" / "dashboards.py")
    stale = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert stale.returncode == 1
    assert "merge-lag.json" in stale.stderr
    subprocess.run([sys.executable, script], check=True)
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0
    assert subprocess.run([sys.executable, script, "--force"], capture_output=True, check=False).returncode == 2


def test_queries_name_only_metrics_that_services_have(panels, metric_names, find_metric_names):
    for title, panel in panels.items():
        assert panel["targets"], title
        for target in panel["targets"]:
            unknown = find_metric_names(target["expr"]) - metric_names
            assert not unknown, f"{title}: {sorted(unknown)}"


def test_every_figure_of_a_table_is_shown(panels, metric_names, find_metric_names):
    shown = set().union(
        *(find_metric_names(target["expr"]) for panel in panels.values() for target in panel["targets"])
    )
    policies = {
        "icedb_table_data_grace_seconds",
        "icedb_table_log_grace_seconds",
        "icedb_table_orphan_age_seconds",
        "icedb_table_read_timestamp_seconds",
    }
    assert shown >= {name for name in metric_names if name.startswith("icedb_table_")} - policies


def test_labels_in_queries_and_legends_agree(panels):
    for title, panel in panels.items():
        for target in panel["targets"]:
            kept = re.match(r"(?:time\(\) - )?\w+ by \(([\w, ]+)\)", target["expr"])
            kept = set(kept[1].split(", ")) if kept else set()
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, title


def test_lines_are_drawn_where_alerts_fire(panels, alerts):
    assert steps(panels["Merge lag"]) == [900, 3600]
    assert steps(panels["Log files"]) == [500, 800]
    assert steps(panels["Halted tables"]) == [1]
    for panel in panels.values():
        for link in panel.get("links", []):
            name = link["title"].removeprefix("Runbook: ")
            assert name in alerts
            assert link["url"] == f"${{runbook}}#{name.lower()}"


def test_a_reader_chooses_the_table(board, panels):
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["table"]["query"] == "label_values(icedb_table_data_files, table)"
    assert variables["table"]["multi"]
    for target in (target for panel in panels.values() for target in panel["targets"]):
        if "icedb_table_" in target["expr"]:
            assert 'table=~"$table"' in target["expr"]
    for panel in panels.values():
        assert panel["datasource"]["uid"] == "${datasource}"


def test_panels_do_not_overlap(board):
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


def test_provisioning_finds_the_dashboard_and_prometheus(deploy, compose):
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
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (deploy / "grafana" / "dashboards" / home.removeprefix(f"{folder}/")).is_file()
