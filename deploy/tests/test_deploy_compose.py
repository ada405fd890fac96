"""compose.yaml: its structure, what services are given, what they wait for, and how they are bounded and stopped."""

import importlib.util
import re
import tomllib
from typing import Annotated, Literal

import pytest
from icedb_client.settings import ClientSettings
from icedb_console.settings import ConsoleSettings
from icedb_gateway.settings import GatewaySettings
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.settings import IngestSettings
from icedb_janitor.settings import JanitorSettings
from icedb_merger.settings import MergerSettings
from icedb_service.access.access_file import read_access_file
from icedb_service.endpoints import STOP_MARGIN_S
from icedb_service.settings import EndpointSettings, ServiceSettings, load_settings
from icedb_snapshot.settings import SnapshotSettings
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

SETTINGS = {
    "frontend": FrontendSettings,
    "enqueue": FrontendSettings,
    "ingest": IngestSettings,
    "ingest-large": IngestSettings,
    "merger": MergerSettings,
    "janitor": JanitorSettings,
    "snapshot": SnapshotSettings,
    "gateway": GatewaySettings,
    "console": ConsoleSettings,
    "beat": ServiceSettings,
}
SERVERS = {"s3", "bucket", "redis-1", "redis-2", "redis-3", "prometheus", "grafana"}
ENDLESS = {*SETTINGS, *SERVERS} - {"bucket"}

LAST_STOP_MS = 1_000 * (STOP_MARGIN_S + 1 + STOP_MARGIN_S)
"""How long a service with endpoints may take beyond its own time for requests: its loop is given up, then its metrics'."""

Duration = Annotated[str, StringConstraints(pattern=r"^(\d+m)?(\d+s)?$", min_length=2)]
ByteBudget = Annotated[str, StringConstraints(pattern=r"^\d+[mg]$")]
Image = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9./-]+:(v?\d[\w.-]+|\$\{ICEDB_VERSION:-\d+\.\d+\.\d+(\.dev0)?\})$")
]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Health(Strict):
    test: list[str] | None = None
    interval: Duration | None = None
    timeout: Duration | None = None
    retries: int | None = None
    start_period: Duration | None = None
    disable: bool = False


class Amount(Strict):
    cpus: str | None = None
    memory: ByteBudget | None = None


class Resources(Strict):
    limits: Amount
    reservations: Amount | None = None


class Deployment(Strict):
    resources: Resources


class Condition(Strict):
    condition: Literal["service_healthy", "service_completed_successfully"]
    required: bool = True


class Build(Strict):
    context: Literal[".."]
    dockerfile: Literal["deploy/Dockerfile"]
    target: Literal["service", "spark"]


class Logging(Strict):
    driver: str
    options: dict[str, str]


class Service(Strict):
    """What a service here may say: the names of the Compose specification, and no typing mistakes."""

    image: Image
    build: Build | None = None
    command: list[str] | None = None
    entrypoint: list[str] | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    depends_on: dict[str, Condition] = Field(default_factory=dict)
    healthcheck: Health | None = None
    volumes: list[str] = Field(default_factory=list)
    ports: list[str] = Field(default_factory=list)
    profiles: list[str] = Field(default_factory=list)
    restart: Literal["unless-stopped", "on-failure:5", "no"]
    logging: Logging | None = None
    stop_grace_period: Duration | None = None
    deploy: Deployment
    read_only: bool = False
    tmpfs: list[str] = Field(default_factory=list)
    cap_drop: list[str] = Field(default_factory=list)
    security_opt: list[str] = Field(default_factory=list)


class Compose(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    services: dict[str, Service]
    volumes: dict[str, None]


def seconds(duration: str) -> int:
    minutes, rest = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration).groups()
    return 60 * int(minutes or 0) + int(rest or 0)


def mebibytes(memory: str) -> int:
    return int(memory[:-1]) * (1024 if memory.endswith("g") else 1)


@pytest.fixture(scope="module")
def stack(compose) -> Compose:
    return Compose.model_validate({key: value for key, value in compose.items() if not key.startswith("x-")})


@pytest.fixture(scope="module")
def given(deploy) -> dict[str, str]:
    """The environment that compose substitutes: .env.example with its secrets filled in."""
    lines = (deploy / ".env.example").read_text().splitlines()
    pairs = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {key: value or "a-secret-for-the-test" for key, value in pairs.items()}


def substitute(value: str, given: dict[str, str]) -> str:
    """Do what compose does with ${NAME:-default} and ${NAME:?message}."""

    def resolve(match: re.Match[str]) -> str:
        name, operator, rest = match.groups()
        if given.get(name):
            return given[name]
        assert operator == ":-", f"{name} is needed and .env.example does not have it"
        return rest

    return re.sub(r"(?<!\$)\$\{(\w+)(:-|:\?)([^}]*)\}", resolve, value)


def test_structure(stack):
    assert set(stack.services) == {*SETTINGS, *SERVERS, "cli"}


@pytest.mark.parametrize("kind", [*SETTINGS.values(), ClientSettings])
def test_no_setting_of_others_is_taken_for_a_misspelt_one(kind):
    names = {name for each in (*SETTINGS.values(), ClientSettings) for name in each.model_fields}
    names |= {"version", "run_dir", "debug", "s3_port", "redis_port", "prometheus_port", "grafana_port"}
    assert kind.find_misspelt(f"ICEDB_{name.upper()}" for name in names) == []


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_exists_and_is_valid(stack, given, monkeypatch, name):
    environment = {key: substitute(value, given) for key, value in stack.services[name].environment.items()}
    ours = {key.removeprefix("ICEDB_").lower() for key in environment if key.startswith("ICEDB_")}
    assert ours <= set(SETTINGS[name].model_fields)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    settings = load_settings(SETTINGS[name])
    assert settings.metrics_host == "0.0.0.0"
    assert settings.store == "s3://icedb/warehouse"
    assert len(settings.lock_master_urls) == 3
    grace_ms = settings.drain_ms + LAST_STOP_MS if isinstance(settings, EndpointSettings) else 10_000
    if name in ("ingest", "ingest-large", "merger", "janitor"):
        grace_ms = settings.shutdown_grace_ms
    elif name == "gateway":
        limit = mebibytes(stack.services[name].deploy.resources.limits.memory)
        assert 2 * 2 * settings.gateway_max_bodies * settings.gateway_part_kb // 1024 < limit
    elif name == "console":
        limit = mebibytes(stack.services[name].deploy.resources.limits.memory)
        assert settings.console_max_queries * settings.console_query_memory_mb + 1024 < limit
    assert seconds(stack.services[name].stop_grace_period) * 1000 > grace_ms


def test_the_doors_of_the_front_end_are_open(stack, given):
    service = stack.services["frontend"]
    assert service.environment["ICEDB_FRONTEND_HOST"] == "0.0.0.0"
    inside = {port.rpartition(":")[2] for port in service.ports}
    assert inside == {service.environment[f"ICEDB_FRONTEND_{door}_PORT"] for door in ("HTTP", "GRPC")}
    settings = FrontendSettings(store="s3://icedb/warehouse")
    assert settings.frontend_memory_mb * 2 < mebibytes(service.deploy.resources.limits.memory)


def test_settings_of_the_command(stack, given, monkeypatch):
    environment = {key: substitute(value, given) for key, value in stack.services["cli"].environment.items()}
    ours = {key.removeprefix("ICEDB_").lower() for key in environment if key.startswith("ICEDB_")}
    assert ours <= {*ClientSettings.model_fields, *ServiceSettings.model_fields}
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    host, _, port = ClientSettings().snapshot_address.partition(":")
    assert host in stack.services
    assert f":{port}" in stack.services[host].ports[0]


def test_variables_of_the_file_are_in_the_example(compose, deploy):
    named = set(re.findall(r"(?<!\$)\$\{(\w+)", (deploy / "compose.yaml").read_text()))
    example = (deploy / ".env.example").read_text()
    listed = set(re.findall(r"^#? ?([A-Z][A-Z0-9_]+)=", example, re.MULTILINE))
    assert listed == {*named, "COMPOSE_PROFILES"}


def test_no_secret_has_a_value_in_the_files(compose, deploy):
    example = (deploy / ".env.example").read_text()
    for name in ("AWS_SECRET_ACCESS_KEY", "GRAFANA_ADMIN_PASSWORD"):
        assert f"\n{name}=\n" in example
        assert f"${{{name}:?" in (deploy / "compose.yaml").read_text()
    assert (deploy / ".gitignore").read_text().split() == [".env", "access/*", "!access/access.example.toml"]
    assert [path.name for path in (deploy / "access").glob("*.example.*")] == ["access.example.toml"]


def test_every_service_sees_the_access_file_and_the_example_is_one(stack, deploy):
    for name in (*SETTINGS, "cli"):
        assert "./access:/etc/icedb:ro" in stack.services[name].volumes, name
        assert "ICEDB_ACCESS_FILE" in stack.services[name].environment
    assert set(read_access_file(deploy / "access" / "access.example.toml").identities) >= {"operators", "segment"}


def test_hosts_in_addresses_are_services(stack, given):
    for name, service in stack.services.items():
        for key, value in service.environment.items():
            for host in re.findall(r"(?:http|redis)://([\w-]+):", substitute(value, given)):
                assert host in stack.services, f"{name}: {key}"


def test_three_masters_know_nothing_of_each_other(stack):
    masters = [stack.services[f"redis-{number}"] for number in (1, 2, 3)]
    for master in masters:
        assert "replicaof" not in " ".join(master.command)
        assert master.command[master.command.index("--maxmemory-policy") + 1] == "noeviction"
        assert master.command[master.command.index("--save") + 1] == ""
        limit = mebibytes(master.deploy.resources.limits.memory)
        assert int(master.command[master.command.index("--maxmemory") + 1].removesuffix("mb")) < limit


def test_services_start_when_what_they_need_is_ready(stack):
    for name in (*SETTINGS, "cli"):
        needs = stack.services[name].depends_on
        assert set(needs) == {"redis-1", "redis-2", "redis-3", "bucket"}
        assert needs["bucket"].condition == "service_completed_successfully"
        assert not needs["bucket"].required  # a bucket of one's own: the profile s3 is off
    for service in stack.services.values():
        for needed, condition in service.depends_on.items():
            assert condition.condition == "service_completed_successfully" or stack.services[needed].healthcheck.test


def test_everything_is_bounded_restarted_and_stopped_in_peace(stack):
    for name, service in stack.services.items():
        limits = service.deploy.resources.limits
        assert limits.cpus, name
        assert limits.memory, name
        assert (service.restart == "unless-stopped") == (name in ENDLESS), name
        if name in ENDLESS:
            assert service.stop_grace_period, name
            assert service.logging.options["max-size"], name
            has_own = service.healthcheck is not None and not service.healthcheck.disable
            has_images = service.healthcheck is None and "ICEDB_METRICS_PORT" in service.environment
            assert has_own or has_images or name == "beat", name


@pytest.mark.parametrize("name", ["ingest", "ingest-large", "merger"])
def test_spark_workers_have_room_and_scratch(stack, name):
    service = stack.services[name]
    environment = service.environment
    cores = int(re.fullmatch(r"local\[(\d+)\]", environment["ICEDB_SPARK_MASTER"])[1])
    needed = int(environment["ICEDB_SPARK_MEMORY_MB"]) + cores * int(environment["ICEDB_TASK_MEMORY_MB"]) + 1024
    assert needed < mebibytes(service.deploy.resources.limits.memory)
    assert float(service.deploy.resources.limits.cpus) >= cores
    (volume,) = [volume for volume in service.volumes if "scratch" in volume]
    folder = volume.partition(":")[2]
    assert environment["SPARK_LOCAL_DIRS"] == environment["TMPDIR"] == folder == "/var/lib/icedb/scratch"
    assert service.build.target == "spark"


@pytest.mark.parametrize("name", SETTINGS)
def test_commands_are_modules_of_the_image(stack, repository, name):
    service = stack.services[name]
    python, flag, module = service.command
    assert (python, flag) == ("python", "-m")
    spec = importlib.util.find_spec(module)
    assert spec.submodule_search_locations is None or importlib.util.find_spec(f"{module}.__main__")
    version = tomllib.loads((repository / "services" / "merger" / "pyproject.toml").read_text())["project"]["version"]
    assert service.image == f"icedb-{service.build.target}:${{ICEDB_VERSION:-{version}}}"
    assert service.read_only
    assert service.cap_drop == ["ALL"]


def test_ports_are_open_to_this_machine_only(stack):
    for service in stack.services.values():
        for port in service.ports:
            assert port.startswith("127.0.0.1:"), port


def test_volumes_are_declared_and_mounted_files_exist(stack, deploy):
    mounted = set()
    for service in stack.services.values():
        for volume in service.volumes:
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (deploy / source).exists(), source
                assert volume.endswith(":ro")
            else:
                mounted.add(source)
    assert mounted == set(stack.volumes)


def test_the_store_is_one_whose_conditional_writes_are_atomic(stack):
    """SeaweedFS checks and writes under one lock since 4.30; older releases have two winners."""
    major, minor = stack.services["s3"].image.rpartition(":")[2].split(".")
    assert (int(major), int(minor)) >= (4, 30)
    assert stack.services["s3"].profiles == stack.services["bucket"].profiles == ["s3"]
