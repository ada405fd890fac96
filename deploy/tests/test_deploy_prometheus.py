"""The Prometheus configuration and rules, checked by promtool and against compose.yaml, the services and the runbook."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from waiting import LIMIT_S

RULE_TESTS = sorted((Path(__file__).parent / "rules").glob("*.yml"))


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def test_configuration_is_valid(deploy, promtool):
    done = run(promtool, "check", "config", "prometheus.yml", cwd=deploy / "prometheus")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULE_TESTS)} rule files found" in done.stdout


def test_rules_are_valid_and_have_no_lint(deploy, promtool):
    rules = sorted(str(path) for path in (deploy / "prometheus" / "rules").glob("*.yml"))
    done = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", *rules, cwd=deploy)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_rules_fire_when_they_should_and_not_before(path, promtool):
    done = run(promtool, "test", "rules", path.name, cwd=path.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_that_never_fires_is_found(deploy, promtool, tmp_path):
    """The unit tests can fail: with another threshold they do."""
    rules = (deploy / "prometheus" / "rules" / "merge-lag.yml").read_text()
    tests = (deploy / "tests" / "rules" / "merge-lag.yml").read_text()
    (tmp_path / "rules.yml").write_text(rules.replace("> 900", "> 90000"))
    (tmp_path / "tests.yml").write_text(tests.replace("../../prometheus/rules/merge-lag.yml", "rules.yml"))
    done = run(promtool, "test", "rules", "tests.yml", cwd=tmp_path)
    assert done.returncode != 0
    assert "IceDBMergeLagHigh" in done.stdout + done.stderr


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not(alerts):
    fires, silent = set(), set()
    for path in RULE_TESTS:
        for case in yaml.safe_load(path.read_text())["tests"]:
            for check in case.get("alert_rule_test", []):
                (fires if check["exp_alerts"] else silent).add(check["alertname"])
            for check in case.get("promql_expr_test", []):
                pattern = re.search(r'alertname=~?"([^"]+)"', check["expr"])
                matched = {name for name in alerts if pattern and re.fullmatch(pattern[1], name)}
                if not check["exp_samples"]:
                    silent |= matched
                named = set(re.findall(r'alertname="(\w+)"', str(check["exp_samples"])))
                fires |= named or (matched if check["exp_samples"] else set())
    assert fires >= set(alerts)
    assert silent >= set(alerts)


def test_every_alert_says_what_to_do(alerts, repository):
    anchors = {
        line.removeprefix("#").strip("# ").lower().replace(" ", "-")
        for line in (repository / "docs" / "runbook.md").read_text().splitlines()
        if line.startswith("#")
    }
    for name, rule in alerts.items():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, name
        assert rule["labels"]["severity"] in ("warning", "critical"), name
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, name
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert path == "{{ with $externalLabels.runbook }}{{ . }}{{ else }}docs/runbook.md{{ end }}"
        assert anchor == name.lower()
        assert anchor in anchors, f"{name} has no entry in the runbook"


def test_rules_name_only_series_that_there_are(rules, recordings, metric_names, find_metric_names, find_recordings):
    for rule in rules:
        unknown = find_metric_names(rule["expr"]) - metric_names
        unknown |= find_recordings(rule["expr"]) - set(recordings)
        assert not unknown, f"{rule}: {sorted(unknown)}"


def test_every_recording_is_used_and_has_a_test(rules, recordings, boards, find_recordings):
    used = [rule["expr"] for rule in rules]
    used += [
        target["expr"] for board in boards.values() for panel in board["panels"] for target in panel.get("targets", ())
    ]
    tests = "".join(path.read_text() for path in RULE_TESTS)
    assert set().union(*map(find_recordings, used)) == set(recordings)
    for name, rule in recordings.items():
        assert set(rule) == {"record", "expr"}
        assert name in tests or any(name in other["expr"] and other.get("alert", "-") in tests for other in rules), name


def test_rules_name_only_jobs_that_are_scraped(rules, scrape_jobs):
    for rule in rules:
        for matcher in re.findall(r'job=~?"([^"]+)"', rule["expr"]):
            assert set(matcher.split("|")) <= set(scrape_jobs), rule


def test_a_service_that_is_gone_is_told(alerts, compose):
    """Whatever has metrics: by an alert on one replica, and by one on all of them, for there may be no target left."""
    services = {
        name for name, each in compose["services"].items() if "ICEDB_METRICS_PORT" in each.get("environment", {})
    }

    def jobs_of(*names: str) -> set[str]:
        texts = (alerts[name]["expr"] for name in names)
        return {job for text in texts for found in re.findall(r'job=~?"([^"]+)"', text) for job in found.split("|")}

    assert jobs_of("IceDBInstanceDown") == services
    gone = [name for name in alerts if name.endswith("Down") and name != "IceDBInstanceDown"]
    assert jobs_of(*gone) == services - {"ingest-large"}  # without it IceDBLargeBatchesUnserved fires


def test_every_service_with_metrics_is_scraped_where_it_listens(compose, scrape_jobs):
    ports = {
        name: int(service["environment"]["ICEDB_METRICS_PORT"])
        for name, service in compose["services"].items()
        if "ICEDB_METRICS_PORT" in service.get("environment", {})
    }
    workers = {"ingest", "ingest-large", "merger", "janitor"}
    assert set(ports) == {*workers, "frontend", "enqueue", "snapshot", "gateway", "console"}
    for name, port in ports.items():
        (discovery,) = scrape_jobs[name]["dns_sd_configs"]
        assert (discovery["names"], discovery["port"]) == ([name], port)
    assert set(scrape_jobs) == {*ports, "s3", "prometheus"}
    (s3,) = scrape_jobs["s3"]["dns_sd_configs"]
    assert s3["names"] == ["s3"]
    assert f"-metricsPort={s3['port']}" in compose["services"]["s3"]["command"]
