"""deploy/kubernetes: what Kustomize makes of it, against the API's schemas and against what the services are."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import kubernetes_validate
import pytest
import yaml
from icedb_log.names import QUEUES
from icedb_service.endpoints import STOP_MARGIN_S
from icedb_service.settings import ServiceSettings, load_settings
from pydantic import BaseModel, ConfigDict
from waiting import LIMIT_S

HERE = Path(__file__).resolve().parents[1] / "kubernetes"
OVERLAYS = ("small", "cloud")
OLDEST, NEWEST = "1.30", "1.35"
SPARK = {"ingest", "ingest-large", "merger"}
QUEUE_OF = {"ingest": "ingest", "ingest-large": "ingest-large", "merger": "merge"}


def load_script(name: str) -> ModuleType:
    """Load a script that lies beside the manifests."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_settings = load_script("check_settings")
SETTINGS = check_settings.SETTINGS


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Labels(Strict):
    matchLabels: dict[str, str]


class Authentication(Strict):
    class Target(Strict):
        parameter: Literal["address", "password"]
        name: str
        key: str

    secretTargetRef: list[Target]


class Scaled(Strict):
    """What a ScaledObject of KEDA says here."""

    class Target(Strict):
        name: str

    class Fallback(Strict):
        failureThreshold: int
        replicas: int

    class Queue(Strict):
        listName: str
        listLength: str
        activationListLength: str
        databaseIndex: str

    class Query(Strict):
        serverAddress: str
        query: str
        threshold: str

    class Trigger(Strict):
        type: Literal["redis", "prometheus"]
        name: str
        metadata: "Scaled.Queue | Scaled.Query"
        authenticationRef: "Scaled.Target | None" = None

    class Advanced(Strict):
        horizontalPodAutoscalerConfig: dict[Literal["behavior"], dict[str, Any]]

    scaleTargetRef: Target
    minReplicaCount: int
    maxReplicaCount: int
    pollingInterval: int
    fallback: Fallback
    advanced: Advanced
    triggers: list[Trigger]


class Monitor(Strict):
    """What a ServiceMonitor says here."""

    class Endpoint(Strict):
        port: str
        path: Literal["/metrics"]
        interval: str
        scrapeTimeout: str

    jobLabel: str
    selector: Labels
    endpoints: list[Endpoint]


class Rules(Strict):
    """What a PrometheusRule says; promtool looks at the rules themselves (test_deploy_prometheus.py)."""

    class Group(Strict):
        name: str
        rules: list[dict[str, Any]]

    groups: list[Group]


OPERATORS = {
    ("keda.sh/v1alpha1", "TriggerAuthentication"): Authentication,
    ("keda.sh/v1alpha1", "ScaledObject"): Scaled,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): Monitor,
    ("monitoring.coreos.com/v1", "PrometheusRule"): Rules,
}
"""Resources of operators: their schemas are in no package that is kept up; these are the fields that are used."""


@cache
def render(overlay: str) -> tuple[dict[str, Any], ...]:
    return build(HERE / "overlays" / overlay)


def build(folder: Path) -> tuple[dict[str, Any], ...]:
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "Kustomize warns, e.g. of a field that is about to go"
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(overlay: str, kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in render(overlay) if each["kind"] == kind}


def component_of(resource: dict[str, Any]) -> str:
    return resource["metadata"]["labels"]["app.kubernetes.io/component"]


def our_deployments(overlay: str) -> dict[str, dict[str, Any]]:
    found = of_kind(overlay, "Deployment").values()
    return {component_of(each): each for each in found if "redis" not in each["metadata"]["name"]}


def container_of(deployment: dict[str, Any]) -> dict[str, Any]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


def environment_of(overlay: str, container: dict[str, Any]) -> dict[str, str]:
    return check_settings.environment_of(render(overlay), container)


def load(overlay: str, component: str, monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    for key, value in environment_of(overlay, container_of(our_deployments(overlay)[component])).items():
        monkeypatch.setenv(key, value)
    return load_settings(SETTINGS[component])


@pytest.fixture(params=[(overlay, name) for overlay in OVERLAYS for name in SETTINGS], ids="-".join)
def place(request) -> tuple[str, str]:
    return request.param


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_resources_are_valid_by_the_schemas_of_the_api(overlay, version):
    for resource in render(overlay):
        if (resource["apiVersion"], resource["kind"]) not in OPERATORS:
            kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_may_lie_anywhere(overlay, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(HERE / "overlays" / overlay, folder)
    main = folder / "kustomization.yaml"
    main.write_text(main.read_text().replace("../../", f"{os.path.relpath(HERE, folder)}/"))
    assert build(folder) == render(overlay)


def test_a_misspelt_field_is_found():
    resource = json.loads(json.dumps(our_deployments("small")["merger"]))
    container_of(resource)["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenessProb"):
        kubernetes_validate.validate(resource, NEWEST, strict=True)


def test_resources_of_operators_say_what_they_may():
    found = {(each["apiVersion"], each["kind"]): each for each in render("cloud")}
    assert set(OPERATORS) <= set(found)
    for resource in render("cloud"):
        kind = OPERATORS.get((resource["apiVersion"], resource["kind"]))
        if kind is None:
            continue
        assert set(resource) == {"apiVersion", "kind", "metadata", "spec"}
        kind.model_validate(resource["spec"])
        behavior = resource["spec"].get("advanced", {}).get("horizontalPodAutoscalerConfig", {}).get("behavior")
        if behavior is not None:  # KEDA hands it to the scaler of the API as it is
            scaler = json.loads(json.dumps(of_kind("cloud", "HorizontalPodAutoscaler")["icedb-frontend"]))
            scaler["spec"]["behavior"] = behavior
            kubernetes_validate.validate(scaler, NEWEST, strict=True)


def test_the_executors_pod_is_valid():
    pod = yaml.safe_load((HERE / "components" / "spark-executors" / "executor.yaml").read_text())
    pod["metadata"]["name"] = "icedb-merger-exec-1"  # Spark names it
    kubernetes_validate.validate(pod, NEWEST, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_service_is_there(overlay):
    assert set(our_deployments(overlay)) == set(SETTINGS)


def test_every_variable_is_a_setting_and_valid(place, monkeypatch):
    overlay, component = place
    given = environment_of(overlay, container_of(our_deployments(overlay)[component]))
    assert not [value for value in given.values() if "$(" in value], "a variable that stands later, or nowhere"
    ours = {key.removeprefix("ICEDB_").lower() for key in given if key.startswith("ICEDB_")}
    known = {name for kind in SETTINGS.values() for name in kind.model_fields}
    assert ours <= (known if component == "beat" else set(SETTINGS[component].model_fields))
    settings = load(overlay, component, monkeypatch)
    assert settings.metrics_host == "0.0.0.0"
    assert settings.access_file == "/etc/icedb/access.toml"
    assert len(settings.lock_master_urls) == (3 if overlay == "small" else 1)


def test_an_overlay_as_it_comes_lacks_a_bucket_and_nothing_else():
    for overlay in OVERLAYS:
        problems = check_settings.find_problems(render(overlay))
        assert len(problems) == len(SETTINGS)
        assert all("'CHANGE-ME' is not the name of a bucket" in problem for problem in problems)


def test_wrong_settings_are_told_before_they_are_applied():
    """By the command of docs/kubernetes.md."""
    text = yaml.safe_dump_all(render("small")).replace("s3://CHANGE-ME/warehouse", "s3://lake/warehouse")

    def check(manifests: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, HERE / "check_settings.py"], input=manifests, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout.splitlines()

    assert check(text) == (0, [])
    code, said = check(
        text.replace("ICEDB_LOG_LEVEL: info", "ICEDB_LOGLEVEL: info").replace("value: '50052'", "value: '70000'")
    )
    assert code == 1
    assert sum("ICEDB_LOGLEVEL is no setting; did you mean ICEDB_LOG_LEVEL" in line for line in said) == len(SETTINGS)
    (wrong,) = [line for line in said if "70000" in line]
    assert wrong.startswith("icedb-frontend: ")
    assert "ICEDB_FRONTEND_GRPC_PORT='70000': Input should be less than or equal to 65535" in wrong
    assert check("")[0] == 1


def test_the_command_is_a_module_of_the_image(place, repository):
    overlay, component = place
    container = container_of(our_deployments(overlay)[component])
    assert "command" not in container, "the image's tini stays the first process"
    python, flag, module = container["args"]
    assert (python, flag) == ("python", "-m")
    spec = importlib.util.find_spec(module)
    assert spec.submodule_search_locations is None or importlib.util.find_spec(f"{module}.__main__")
    target = "spark" if component in SPARK else "service"
    compose = yaml.safe_load((repository / "deploy" / "compose.yaml").read_text())["services"][component]
    version = re.search(r":-([\w.]+)\}", compose["image"])[1]
    assert container["image"] == f"registry.example/icedb-{target}:{version}"
    assert container["args"] == compose["command"]


def test_ports_are_those_that_the_service_listens_on(place, monkeypatch):
    overlay, component = place
    ports = {each["name"]: each["containerPort"] for each in container_of(our_deployments(overlay)[component])["ports"]}
    settings = load(overlay, component, monkeypatch)
    expected = {"metrics": settings.metrics_port}
    if component == "frontend":
        expected |= {"http": settings.frontend_http_port, "grpc": settings.frontend_grpc_port}
        assert settings.frontend_host == "0.0.0.0"
    elif component == "gateway":
        expected |= {"s3": settings.gateway_port, "iceberg": settings.gateway_iceberg_port}
        assert settings.gateway_host == "0.0.0.0"
    elif component == "console":
        expected |= {"http": settings.console_port}
        assert settings.console_host == "0.0.0.0"
    elif component == "snapshot":
        host, _, port = settings.snapshot_address.rpartition(":")
        expected |= {"grpc": int(port)}
        assert host == "0.0.0.0"
    elif overlay == "cloud" and component in SPARK:
        options = settings.spark_options
        expected |= {"driver": int(options["spark.driver.port"]), "blocks": int(options["spark.blockManager.port"])}
    assert ports == expected


def test_probes_ask_what_the_service_answers(place, repository):
    overlay, component = place
    container = container_of(our_deployments(overlay)[component])
    routes = set(re.findall(r'Route\("(/\w+)"', (repository / HTTP_SERVER).read_text()))
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {each["port"] for each in asked.values()} == {"metrics"}
    assert {each["path"] for each in asked.values()} <= routes
    assert asked["startup"]["path"] == asked["liveness"]["path"] == "/healthz"
    assert asked["readiness"]["path"] == "/readyz"


LAST_STOP_MS = 1_000 * (STOP_MARGIN_S + 1 + STOP_MARGIN_S)
"""How long a service with endpoints may take beyond its own time for requests: its loop is given up, then its metrics'."""
HTTP_SERVER = "libs/icedb_service/src/icedb_service/http_server.py"


def test_a_pod_has_the_time_that_its_service_takes_to_stop(place, monkeypatch):
    overlay, component = place
    settings = load(overlay, component, monkeypatch)
    grace_ms = {
        **dict.fromkeys(("frontend", "gateway", "console"), lambda: settings.drain_ms + LAST_STOP_MS),
        "snapshot": lambda: settings.drain_ms + 15_000,
        "beat": lambda: 1000,
    }.get(component, lambda: settings.shutdown_grace_ms)()
    pod = our_deployments(overlay)[component]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] * 1000 > grace_ms


def test_pods_run_without_rights_and_see_no_variables_of_other_services(place):
    overlay, component = place
    pod = our_deployments(overlay)[component]["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False, "ICEDB_GATEWAY_PORT=tcp://… would be taken for a setting"
    assert pod["automountServiceAccountToken"] is (overlay == "cloud" and component in SPARK)
    assert pod["securityContext"]["runAsNonRoot"]
    own = container_of(our_deployments(overlay)[component])["securityContext"]
    assert (own["readOnlyRootFilesystem"], own["allowPrivilegeEscalation"]) == (True, False)
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert pod["serviceAccountName"] == f"icedb-{component}"
    assert pod["serviceAccountName"] in of_kind(overlay, "ServiceAccount")


def mebibytes(amount: str) -> int:
    return int(amount[:-2]) * {"Mi": 1, "Gi": 1024}[amount[-2:]]


def test_memory_has_room_for_what_settings_allow(place, monkeypatch):
    overlay, component = place
    settings = load(overlay, component, monkeypatch)
    resources = container_of(our_deployments(overlay)[component])["resources"]
    limit = mebibytes(resources["limits"]["memory"])
    assert mebibytes(resources["requests"]["memory"]) <= limit
    if component == "frontend":
        assert 2 * settings.frontend_memory_mb < limit
    elif component == "gateway":
        assert 4 * settings.gateway_max_bodies * settings.gateway_part_kb // 1024 < limit
    elif component == "console":
        assert settings.console_max_queries * settings.console_query_memory_mb + 1024 < limit
    elif component in SPARK and overlay == "small":
        cores = int(re.fullmatch(r"local\[(\d+)\]", settings.spark_master)[1])
        assert settings.spark_memory_mb + cores * settings.task_memory_mb + 1024 < limit
    elif component in SPARK:
        options = settings.spark_options
        needed = int(options["spark.executor.cores"]) * settings.task_memory_mb + 1024
        assert int(options["spark.executor.memoryOverhead"].removesuffix("g")) * 1024 >= needed


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_the_pods_that_they_are_meant_for(overlay):
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in of_kind(overlay, "Deployment").values()]

    def find(wanted: dict[str, Any]) -> list[str]:
        plain = wanted.get("matchLabels", wanted).items()
        return [labels.get("app.kubernetes.io/component", "redis") for labels in pods if plain <= labels.items()]

    for name, deployment in of_kind(overlay, "Deployment").items():
        template = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= template.items(), name
    for name, service in of_kind(overlay, "Service").items():
        assert find(service["spec"]["selector"]) == [re.sub(r"-\d$", "", name.removeprefix("icedb-"))]
        (selected,) = [
            each
            for each in of_kind(overlay, "Deployment").values()
            if service["spec"]["selector"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        offered = {port["name"] for port in container_of(selected)["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= offered
    budgets = {
        found for each in of_kind(overlay, "PodDisruptionBudget").values() for found in find(each["spec"]["selector"])
    }
    assert budgets >= set(SETTINGS) - {"beat"}
    for name, policy in of_kind(overlay, "NetworkPolicy").items():
        assert find(policy["spec"]["podSelector"]), name
        for rule in (*policy["spec"].get("ingress", ()), *policy["spec"].get("egress", ())):
            ours = [
                each["podSelector"] for each in (*rule.get("from", ()), *rule.get("to", ())) if "podSelector" in each
            ]
            assert all(find(each) for each in ours), name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_callers_are_let_in_to_every_port_that_a_service_offers_and_monitoring_to_the_metrics(overlay):
    for component, deployment in our_deployments(overlay).items():
        labels = deployment["spec"]["template"]["metadata"]["labels"].items()
        rules = [
            rule
            for policy in of_kind(overlay, "NetworkPolicy").values()
            if policy["spec"]["podSelector"].get("matchLabels", {}).items() <= labels
            and "matchExpressions" not in policy["spec"]["podSelector"]
            for rule in policy["spec"].get("ingress", ())
        ]
        opened = {port["port"]: rule["from"] for rule in rules for port in rule["ports"]}
        service = of_kind(overlay, "Service")[f"icedb-{component}"]
        assert set(opened) == {port["targetPort"] for port in service["spec"]["ports"]}, component
        (monitoring,) = opened["metrics"]
        assert monitoring["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}


def test_the_page_says_of_each_deployment_what_the_manifests_do(repository):
    page = (repository / "docs" / "kubernetes.md").read_text()
    rows = re.findall(r"^\| `icedb-([\w-]+)` \| ([\w ]+) \|([^|]*)\| (\d+) (s|min) \|", page, re.MULTILINE)
    told = {
        name: (replicas, scales.strip(), int(time) * (60 if unit == "min" else 1))
        for name, replicas, scales, time, unit in rows
    }
    assert set(told) == set(SETTINGS)
    scalers = {
        each["spec"]["scaleTargetRef"]["name"]: each["spec"]
        for kind in ("HorizontalPodAutoscaler", "ScaledObject")
        for each in of_kind("cloud", kind).values()
    }
    for component, deployment in our_deployments("cloud").items():
        replicas, scales, seconds = told[component]
        assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == seconds, component
        scaler = scalers.get(f"icedb-{component}")
        assert bool(scales) == (scaler is not None), component
        if scaler is None:
            assert replicas == str(deployment["spec"]["replicas"])
        else:
            least, most = (scaler.get(f"{one}ReplicaCount") or scaler[f"{one}Replicas"] for one in ("min", "max"))
            assert replicas == f"{least} to {most}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_that_is_referred_to_is_there_or_said_to_be_made_by_hand(overlay, repository):
    page = (repository / "docs" / "kubernetes.md").read_text()
    maps = of_kind(overlay, "ConfigMap")
    for name in set(find_values(render(overlay), "configMapRef", "configMap")):
        assert name in maps
    secrets = set(find_values(render(overlay), "secretRef", "secretTargetRef", "secret"))
    assert secrets
    for name in secrets:
        assert f"secret generic {name} " in page, f"docs/kubernetes.md does not say how to make the Secret {name}"


def find_values(value: Any, *kinds: str) -> Iterator[str]:
    """Every name below a key of one of these kinds."""
    if isinstance(value, dict):
        for key, inner in value.items():
            for each in inner if isinstance(inner, list) else [inner]:
                if key in kinds and isinstance(each, dict) and ("name" in each or "secretName" in each):
                    yield each.get("secretName") or each["name"]
            yield from find_values(inner, *kinds)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from find_values(each, *kinds)


def test_no_secret_has_a_value_in_the_files():
    for overlay in OVERLAYS:
        assert not of_kind(overlay, "Secret")
        for name, data in ((each["metadata"]["name"], each["data"]) for each in of_kind(overlay, "ConfigMap").values()):
            assert not [key for key in data if re.search("SECRET|PASSWORD|TOKEN|ACCESS_KEY", key)], name


def test_redis_is_as_compose_has_it(compose):
    containers = [container_of(each) for name, each in of_kind("small", "Deployment").items() if "redis" in name]
    assert len(containers) == 3
    for container in containers:
        assert container["args"] == compose["services"]["redis-1"]["command"]
        assert container["image"] == compose["services"]["redis-1"]["image"]
    urls = of_kind("small", "ConfigMap")
    (data,) = [each["data"] for name, each in urls.items() if name.startswith("icedb-")]
    hosts = set(re.findall(r"redis://([\w-]+):6379", data["ICEDB_REDLOCK_URLS"] + data["ICEDB_REDIS_URL"]))
    assert hosts == {name for name in of_kind("small", "Service") if "redis" in name}


def test_jobs_of_prometheus_are_those_of_the_alerts(scrape_jobs):
    (monitor,) = of_kind("cloud", "ServiceMonitor").values()
    assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/component"
    (endpoint,) = monitor["spec"]["endpoints"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    scraped = {
        component_of(each)
        for each in of_kind("cloud", "Service").values()
        if wanted <= each["metadata"]["labels"].items()
        and endpoint["port"] in {port["name"] for port in each["spec"]["ports"]}
    }
    assert scraped == set(SETTINGS)
    assert scraped | {"enqueue", "s3", "prometheus"} >= set(scrape_jobs)


def test_rules_are_those_of_prometheus(rules, repository):
    module = load_script("prometheus_rules")
    assert module.OUTPUT.read_text() == module.render(), "run `make kubernetes`"
    (rule,) = of_kind("cloud", "PrometheusRule").values()
    assert [each for group in rule["spec"]["groups"] for each in group["rules"]] == rules


def test_replicas_follow_queues_and_figures_that_exist(metric_names):
    scaled = {
        each["spec"]["scaleTargetRef"]["name"]: each["spec"] for each in of_kind("cloud", "ScaledObject").values()
    }
    by_cpu = {each["spec"]["scaleTargetRef"]["name"] for each in of_kind("cloud", "HorizontalPodAutoscaler").values()}
    deployments = of_kind("cloud", "Deployment")
    assert not scaled.keys() & by_cpu
    assert {*scaled, *by_cpu} == {name for name, each in deployments.items() if "replicas" not in each["spec"]}
    for name, spec in scaled.items():
        triggers = {each["name"]: each for each in spec["triggers"]}
        queue = triggers["queue"]["metadata"]["listName"]
        assert queue == QUEUE_OF[name.removeprefix("icedb-")]
        assert queue in QUEUES
        authentication = triggers["queue"]["authenticationRef"]["name"]
        assert authentication in of_kind("cloud", "TriggerAuthentication")
        for trigger in triggers.values():
            assert set(re.findall(r"icedb_\w+", trigger["metadata"].get("query", ""))) <= metric_names
    assert {trigger["name"] for spec in scaled.values() for trigger in spec["triggers"]} == {"queue", "age", "lag"}


def test_executors_have_the_image_the_account_and_the_template_of_their_worker(monkeypatch):
    for component in SPARK:
        deployment = our_deployments("cloud")[component]
        options = load("cloud", component, monkeypatch).spark_options
        container = container_of(deployment)
        assert options["spark.kubernetes.container.image"] == container["image"]
        path = Path(options["spark.kubernetes.executor.podTemplateFile"])
        (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == str(path.parent)]
        volumes = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["volumes"]}
        data = of_kind("cloud", "ConfigMap")[volumes[mount["name"]]["configMap"]["name"]]["data"]
        pod = yaml.safe_load(data[path.name])
        (executor,) = pod["spec"]["containers"]
        assert executor["name"] == options["spark.kubernetes.executor.podTemplateContainerName"]
        scratch = environment_of("cloud", container)["SPARK_LOCAL_DIRS"]
        assert scratch in {each["mountPath"] for each in executor["volumeMounts"]}
        bound = [each["subjects"] for each in of_kind("cloud", "RoleBinding").values()]
        assert {"icedb-ingest", "icedb-ingest-large", "icedb-merger"} == {each["name"] for each in bound[0]}
        assert all(each["namespace"] == "icedb" for each in bound[0])
        policy = of_kind("cloud", "NetworkPolicy")["icedb-spark"]["spec"]
        (expression,) = policy["podSelector"]["matchExpressions"]
        assert {component, pod["metadata"]["labels"]["app.kubernetes.io/component"]} <= set(expression["values"])
        opened = {port["port"] for port in policy["ingress"][0]["ports"]}
        assert opened == {int(options["spark.driver.port"]), int(options["spark.blockManager.port"])}


def test_every_file_is_part_of_an_overlay():
    """A patch that nobody names would be read by people as if it held."""
    named = set()
    for path in HERE.rglob("kustomization.yaml"):
        text = path.read_text()
        named |= {(path.parent / each).resolve() for each in re.findall(r"[\w/.-]+\.(?:yaml|env)", text)}
    files = {path.resolve() for path in HERE.rglob("*") if path.suffix in (".yaml", ".env")}
    assert {path.relative_to(HERE) for path in files - named if path.name != "kustomization.yaml"} == set()


@pytest.fixture(scope="module")
def executor(deploy):
    spec = importlib.util.spec_from_file_location("spark_executor", deploy / "spark_executor.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_executor_gets_what_spark_says(executor):
    names = dict(zip(executor.ARGUMENTS.values(), "abcdefg", strict=True))
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dx={number}" for number in (10, 2, 0)}
    command = executor.make_command({**names, **options, "SPARK_EXECUTOR_MEMORY": "1g", "JAVA_HOME": "/java"})
    assert command[:6] == ["/java/bin/java", "-Dx=0", "-Dx=2", "-Dx=10", "-Xms1g", "-Xmx1g"]
    assert ("--driver-url", names["SPARK_DRIVER_URL"]) in pairwise(command)
    with pytest.raises(KeyError, match="SPARK_EXECUTOR_MEMORY"):
        executor.make_command(names)


def test_the_images_executor_starts_and_knows_its_arguments(executor, monkeypatch):
    """The JVM of PySpark's own jars takes every option, and fails at what is wrong here: nobody listens as driver."""
    from icedb_engine.spark.spark_session import find_java  # noqa: PLC0415 - PySpark takes a second to import

    given = dict.fromkeys(executor.ARGUMENTS.values(), "1") | {
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(find_java().path),
    }
    done = subprocess.run(
        executor.make_command(given), env=given, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode != 0
    assert "127.0.0.1:1" in done.stdout + done.stderr, done.stderr[-2000:]
    assert "Unrecognized options" not in done.stdout + done.stderr
