"""`make containers`, as far as it holds without starting any: what comes up, in which order, what is asked of images."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from icedb_gateway.settings import GatewaySettings
from icedb_ingest.settings import IngestSettings
from icedb_janitor.settings import JanitorSettings
from icedb_local.chaos.batches import encode_batch, expected_content
from icedb_local.containers import podman as podman_module
from icedb_local.containers.__main__ import app
from icedb_local.containers.composed import COMMAND, NOT_TO_BE_HAD, ONCE, Release, read_seconds
from icedb_local.containers.containers_run import MAX_ROWS, SETTINGS, ContainersLayout
from icedb_local.containers.images import LABELS, NEEDED, STAND_INS, find_faults
from icedb_log.errors import InvalidRequest
from icedb_merger.settings import MergerSettings
from icedb_service.settings import load_settings
from icedb_snapshot.settings import SnapshotSettings
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def release(repository) -> Release:
    return Release.read("1.2.3", repository)


@pytest.fixture
def image() -> dict:
    """What podman says of an image that lacks nothing."""
    labels = dict.fromkeys(LABELS, "said")
    health = {"Test": ["CMD", "python", "/usr/local/bin/check-health"]}
    return {"User": "10001:10001", "Config": {"Labels": labels, "Healthcheck": health}}


def test_everything_of_the_compose_file_is_started_but_what_no_package_brings(release):
    started = [name for wave in release.waves() for name in wave]
    assert sorted([*started, COMMAND, *NOT_TO_BE_HAD]) == sorted(release.services)
    assert {*release.ours, *release.servers, ONCE} == {*started}


def test_each_wave_needs_nothing_of_a_later_one(release):
    waves = release.waves()
    for number, wave in enumerate(waves):
        there = {name for earlier in waves[:number] for name in earlier}
        for name in wave:
            assert {*release.services[name].get("depends_on", ())} <= there, name


def test_every_image_is_one_that_was_built(release, deploy):
    services = release.override(SETTINGS)["services"]
    assert {*services} == {*release.services} - {*NOT_TO_BE_HAD}
    for name, change in services.items():
        assert change["image"].startswith("localhost/icedb-containers/"), name
    assert services["merger"]["image"].endswith("/spark:1.2.3")
    assert services["gateway"]["image"].endswith("/service:1.2.3")
    recipe = (deploy / "containers" / "stand-ins.Dockerfile").read_text()
    targets = re.findall(r"^FROM .* AS ([\w-]+)$", recipe, re.MULTILINE)
    assert {*STAND_INS.values()} <= {*targets}


def test_the_recipe_of_the_stand_ins_is_linted_and_copies_what_reaches_the_builder(deploy, repository):
    recipe = deploy / "containers" / "stand-ins.Dockerfile"
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, str(recipe)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    allowed = {
        line[1:] for line in recipe.with_name(f"{recipe.name}.dockerignore").read_text().splitlines() if line[0] == "!"
    }
    copies = re.findall(r"^COPY (.*) \S+$", recipe.read_text(), re.MULTILINE)
    for source in (word for copy in copies for word in copy.split()):
        assert (repository / source).exists()
        assert source.rstrip("/") in allowed


def test_the_pace_of_a_run_is_made_of_settings(monkeypatch):
    monkeypatch.setenv("ICEDB_STORE", "s3://bucket/prefix")
    for key, value in SETTINGS.items():
        monkeypatch.setenv(key, value)
    kinds = (IngestSettings, MergerSettings, JanitorSettings, SnapshotSettings, GatewaySettings)
    known = {field for kind in kinds for field in type(load_settings(kind)).model_fields}
    assert {key.removeprefix("ICEDB_").lower() for key in SETTINGS} <= known


def test_a_run_listens_on_ports_of_its_own(tmp_path):
    layout = ContainersLayout.make(tmp_path)
    assert layout.prometheus_port
    assert layout.door_settings.s3.endpoint_url.endswith(f":{layout.ports.s3}")


def test_each_service_is_stopped_within_the_time_that_the_compose_file_gives_it(release):
    times = {
        name: read_seconds(release.services[name]["stop_grace_period"]) for name in (*release.ours, *release.servers)
    }
    assert times["merger"] == times["janitor"] == 660
    assert times["gateway"] == 60
    with pytest.raises(InvalidRequest, match="1h is no duration"):
        read_seconds("1h")


@pytest.mark.parametrize("target", NEEDED)
def test_an_image_that_lacks_nothing_has_no_faults(image, target):
    assert find_faults(target, image, 400, dict.fromkeys(NEEDED[target], "1")) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda image: image.update(User=""), "runs as root"),
        (lambda image: image["Config"].pop("Healthcheck"), "no health check"),
        (lambda image: image["Config"]["Healthcheck"].update(Test=["NONE"]), "no health check"),
        (lambda image: image["Config"]["Labels"].pop(LABELS[2]), "image.version"),
        (lambda image: image["Config"].update(Labels=None), "image.title"),
    ],
)
def test_what_an_image_lacks_is_named(image, spoil, said):
    spoil(image)
    assert said in " ".join(find_faults("service", image, 400, dict.fromkeys(NEEDED["service"], "1")))


def test_size_and_packages_of_an_image_are_looked_at(image):
    faults = find_faults("service", image, 451, {"icedb-log": "1", "tini": "1", "pip": "1"})
    assert faults == ["has 451 MB, more than 450", "has no icedb-service in its bill of materials", "has pip"]


def test_a_machine_without_the_tools_is_told_so_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(podman_module.shutil, "which", lambda name, path: None if name in ("podman", "runc") else name)
    monkeypatch.setattr(podman_module, "find_tool", lambda name: tmp_path / name)
    monkeypatch.setattr(podman_module.os, "geteuid", lambda: 1000)
    missing = podman_module.find_missing()
    assert missing[0] == "podman, runc (Debian: apt-get install podman runc)"
    assert missing[1].startswith("podman-compose, syft (")
    assert missing[2].startswith("root")
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 0
    assert done.output.replace("\n", " ").startswith("containers: skipped, this machine has no podman, runc (Debian: ")


def test_batches_of_a_run_are_large_and_known_in_advance():
    sizes = [expected_content(5, number, MAX_ROWS).rows for number in range(40)]
    assert max(sizes) > 1_000
    assert len(encode_batch(5, 3, MAX_ROWS).splitlines()) == sizes[3]
