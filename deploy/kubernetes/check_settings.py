"""Check the settings in manifests before they are applied, by what the services themselves take.

kubectl kustomize OVERLAY | python deploy/kubernetes/check_settings.py      exits 1, and says what is wrong, if anything

Kustomize has no values and so no schema of them: the values are the variables ``ICEDB_…`` of ConfigMaps and containers,
and their schema are the models that each service reads them with, whose checks of one setting against another no JSON
schema could say. What stands in Secrets is not seen.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import yaml
from icedb_console.settings import ConsoleSettings
from icedb_gateway.settings import GatewaySettings
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.settings import IngestSettings
from icedb_janitor.settings import JanitorSettings
from icedb_log.errors import InvalidRequest
from icedb_log.texts import did_you_mean
from icedb_merger.settings import MergerSettings
from icedb_service.settings import ServiceSettings, env_name, load_settings
from icedb_snapshot.settings import SnapshotSettings

SETTINGS: Final[Mapping[str, type[ServiceSettings]]] = {
    "frontend": FrontendSettings,
    "ingest": IngestSettings,
    "ingest-large": IngestSettings,
    "merger": MergerSettings,
    "janitor": JanitorSettings,
    "beat": ServiceSettings,
    "snapshot": SnapshotSettings,
    "gateway": GatewaySettings,
    "console": ConsoleSettings,
}
"""What the service of each component reads."""
COMPONENT: Final = "app.kubernetes.io/component"
FILLED: Final = "10.0.0.7"
"""What stands for a field of the pod, which Kubernetes fills in."""

Resource = Mapping[str, Any]


def environment_of(resources: Sequence[Resource], container: Resource) -> dict[str, str]:
    """Return a container's variables as its process sees them, without those of Secrets.

    A reference counts only if the variable stands before it.
    """
    maps = {each["metadata"]["name"]: each.get("data", {}) for each in resources if each["kind"] == "ConfigMap"}
    given: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            given |= maps.get(source["configMapRef"]["name"], {})
    for each in container.get("env", ()):
        if "secretKeyRef" in each.get("valueFrom", {}):
            continue
        text = each.get("value", FILLED)
        given[each["name"]] = re.sub(r"\$\((\w+)\)", lambda match: given.get(match[1], match[0]), text)
    return given


def find_problems(resources: Sequence[Resource]) -> list[str]:
    """Return what is wrong with the settings of each service, in words; empty: nothing is."""
    return [problem for each in resources if each["kind"] == "Deployment" for problem in _look_at(resources, each)]


def _look_at(resources: Sequence[Resource], deployment: Resource) -> Iterator[str]:
    kind = SETTINGS.get(deployment["metadata"].get("labels", {}).get(COMPONENT, ""))
    if kind is None:
        return
    who = deployment["metadata"]["name"]
    known = {env_name(field) for each in SETTINGS.values() for field in each.model_fields}
    for container in deployment["spec"]["template"]["spec"]["containers"]:
        given = environment_of(resources, container)
        for name in sorted(name for name in given if name.startswith("ICEDB_") and name not in known):
            yield f"{who}: {name} is no setting{did_you_mean(name, known) or ': it has no effect'}"
        with _in_environment(given):
            try:
                load_settings(kind).store_settings.open()
            except InvalidRequest as error:
                yield f"{who}: {error}"


@contextmanager
def _in_environment(given: Mapping[str, str]) -> Iterator[None]:
    """Replace all settings of this process by these, in a block."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith(("ICEDB_", "AWS_"))]:
        del os.environ[name]
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> int:
    """Read manifests from standard input, and print what is wrong."""
    resources = [each for each in yaml.safe_load_all(sys.stdin) if each]
    problems = find_problems(resources)
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    count = sum(each["kind"] == "Deployment" for each in resources)
    if not count:
        sys.stderr.write("no Deployment was read: give the output of kubectl kustomize on standard input\n")
    return 1 if problems or not count else 0


if __name__ == "__main__":
    sys.exit(main())
