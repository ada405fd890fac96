"""A real Prometheus with the production configuration, and the queries of the dashboards' panels."""

import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from processes import free_port
from waiting import LIMIT_S

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules"
WORKERS = ("ingest", "merger", "janitor")
FRONTENDS = ("frontend", "enqueue")
JOBS = (*WORKERS, "ingest-large", *FRONTENDS, "snapshot", "gateway", "console")
TABLE = "events"
POLL_S = 0.1

T = TypeVar("T")


def wait_for(what: str, ask: Callable[[], T | None]) -> T:
    """Ask until there is an answer that is true."""
    deadline = time.monotonic() + LIMIT_S
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"{what}: not within {LIMIT_S} s"
        time.sleep(POLL_S)
    return answer


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus that is running."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode({name.rstrip("_"): value for name, value in parameters.items()})
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=LIMIT_S) as answer:
            return json.load(answer)["data"]

    def query(self, expr: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Values by labels, without the name."""
        return {
            tuple(sorted((key, value) for key, value in sample["metric"].items() if key != "__name__")): float(
                sample["value"][1]
            )
            for sample in self.get("query", query=expr)["result"]
        }

    def value(self, expr: str) -> float:
        """The only value of an expression; 0 when it has none."""
        return next(iter(self.query(expr).values()), 0.0)


def hasten_rules(folder: Path) -> Path:
    """Write the rules down with seconds for minutes, hours and days; return where.

    Windows are twenty seconds, `for` is one, ages are three; everything else, labels and counts, is as in production.
    """
    hasty = folder / "rules"
    hasty.mkdir()
    for path in RULES.glob("*.yml"):
        text = re.sub(r"\[\d+[mhd]\]", "[20s]", path.read_text())
        text = re.sub(r"for: \d+[smhd]\b", "for: 1s", text)
        text = re.sub(r"(<=|>|\+) (?:300|900|3600|86400)\b", r"\1 3", text)
        (hasty / path.name).write_text(text)
    return hasty


@contextmanager
def running_prometheus(folder: Path, targets: dict[str, int], *, is_hasty: bool = False) -> Iterator[Prometheus]:
    """Prometheus with the production configuration, its discovery replaced by ports of this machine.

    Args:
        folder: For its data and configuration.
        targets: Metrics port of each job.
        is_hasty: Whether rules look at seconds where they look at minutes and days: see `hasten`.
    """
    fetch = subprocess.run(
        [sys.executable, str(DEPLOY / "prometheus" / "fetch.py")], capture_output=True, text=True, check=False
    )
    assert fetch.returncode == 0, fetch.stderr
    port = free_port()
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str((hasten_rules(folder) if is_hasty else RULES) / "*.yml")]
    assert {job["job_name"] for job in config["scrape_configs"]} == {*JOBS, "s3", "prometheus"}
    config["scrape_configs"] = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for name, port in targets.items()
    ]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        json.loads(fetch.stdout)["prometheus"],
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}"

        def is_ready() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                with urllib.request.urlopen(f"{url}/-/ready", timeout=LIMIT_S):
                    return True
            except OSError:
                return False

        wait_for("Prometheus is ready", is_ready)
        yield Prometheus(url)
    finally:
        process.terminate()
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def read_boards() -> dict[str, Any]:
    """Every dashboard by its name, as it is committed."""
    return {
        path.stem: json.loads(path.read_text()) for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
    }


def fill_query(expr: str, tables: str) -> str:
    """Return a panel's query as Grafana would send it for these tables.

    A stack of minutes has no month with whole hours in it: its last hour stands in for that.
    """
    for name, value in {"$table": tables, "$__rate_interval": "20s", "[30d:1h]": "[1h:5s]"}.items():
        expr = expr.replace(name, value)
    return expr


def read_panels(tables: str = TABLE) -> dict[str, list[str]]:
    """The queries of each panel of every dashboard, by its title."""
    return {
        panel["title"]: [fill_query(target["expr"], tables) for target in panel["targets"]]
        for board in read_boards().values()
        for panel in board["panels"]
        if panel.get("targets")
    }
