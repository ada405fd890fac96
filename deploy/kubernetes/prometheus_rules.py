"""The recordings and alerts of ../prometheus/rules as a resource of the Prometheus operator.

Owns `components/monitoring/prometheus-rules.yaml`, which is generated and committed: rules are written in one place.

    python deploy/kubernetes/prometheus_rules.py    writes the file; `make kubernetes` does the same
"""

from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "components" / "monitoring" / "prometheus-rules.yaml"
RULES = HERE.parent / "prometheus" / "rules"


def render() -> str:
    """Return the text of the resource: every group of every file, in the order of the files' names."""
    groups = [group for path in sorted(RULES.glob("*.yml")) for group in yaml.safe_load(path.read_text())["groups"]]
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "icedb", "labels": {"release": "prometheus"}},
        "spec": {"groups": groups},
    }
    head = (
        "# Written by ../../prometheus_rules.py from deploy/prometheus/rules. Edit those, then run `make kubernetes`.\n"
    )
    return head + yaml.safe_dump(resource, sort_keys=False, allow_unicode=True, width=120)


if __name__ == "__main__":
    OUTPUT.write_text(render(), encoding="utf-8")
