"""Every image of a run: the targets of ``deploy/Dockerfile``, now and as released, and what stands in for a registry's.

Built by Buildah in Docker's format (the other one has no health checks). The base is Debian's, bootstrapped: the build
takes it as the Dockerfile's ``PYTHON_IMAGE`` and ``RUNTIME_IMAGE``.
"""

import json
import ssl
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from icedb_local.containers.podman import Podman

SUITE: Final = "bookworm"
BASE_PACKAGES: Final = "python3,python3-venv,python-is-python3,ca-certificates"
NEEDLESS: Final = (
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/man",
    "var/cache",
    "var/lib/apt/lists",
)
"""What slim images leave out, too."""
BASE: Final = "localhost/icedb-containers/base:12"
STAND_INS: Final = {
    **{f"redis-{number}": "redis" for number in (1, 2, 3)},
    "s3": "s3",
    "bucket": "aws-cli",
    "prometheus": "prometheus",
}
"""Each service whose image a registry has, and the target of the stand-ins' Dockerfile that is started for it."""
TARGETS: Final = ("service", "spark")
PIP_CONF: Final = Path("/etc/pip.conf")
MAX_SERVICE_MB: Final = 450
USER: Final = "10001:10001"
NEEDED: Final = {
    "service": ("icedb-log", "icedb-service", "tini"),
    "spark": ("icedb-log", "icedb-merger", "tini", "pyspark", "openjdk-17-jre-headless"),
}
"""What the bill of materials of each target must name, or it was not read."""
LABELS: Final = tuple(
    f"org.opencontainers.image.{name}" for name in ("title", "description", "version", "revision", "licenses")
)


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What is known of an image that was built.

    Attributes:
        name: With its tag.
        size_mb: In MB, as registries count.
        packages: Name of each package in its bill of materials, and its version.
        faults: What it should have and has not.
    """

    name: str
    size_mb: int
    packages: dict[str, str] = field(repr=False)
    faults: tuple[str, ...]


class Images:
    """Builds images.

    Args:
        podman: Where they are stored.
        say: Told how far it is.
    """

    def __init__(self, podman: Podman, say: Callable[[str], None]) -> None:
        self._podman = podman
        self._say = say

    def build_all(self, sources: Path, version: str, revision: str) -> None:
        """Build both targets from a folder of sources. Raises Unavailable: a build failed."""
        for target in TARGETS:
            arguments = (f"PYTHON_IMAGE={BASE}", f"RUNTIME_IMAGE={BASE}", f"VERSION={version}", f"REVISION={revision}")
            self._build(sources, "deploy/Dockerfile", target, image_name(target, version), arguments)

    def build_stand_ins(self, sources: Path) -> None:
        """Build what stands for the images of a registry. Raises Unavailable: a build failed."""
        for target in sorted(set(STAND_INS.values())):
            file = "deploy/containers/stand-ins.Dockerfile"
            self._build(sources, file, target, stand_in_name(target), (f"BASE_IMAGE={BASE}",))

    def make_base(self) -> None:
        """Bootstrap Debian with Python, if it is not there from a run before. Raises Unavailable: it cannot be had."""
        if self._podman.try_to_run("image", "exists", BASE):
            return
        self._say(f"Debian {SUITE} with Python, by debootstrap")
        with tempfile.TemporaryDirectory(prefix="base-", dir=self._podman.folder) as folder:
            root = Path(folder) / "root"
            self._podman.run("--variant=minbase", f"--include={BASE_PACKAGES}", SUITE, str(root), tool="debootstrap")
            for path in NEEDLESS:
                self._podman.run(str(root / path), "-mindepth", "1", "!", "-type", "d", "-delete", tool="find")
            archive = Path(folder) / "base.tar"
            self._podman.run("--create", f"--file={archive}", f"--directory={root}", ".", tool="tar")
            self._podman.run("import", "--quiet", str(archive), BASE)

    def look_at(self, target: str, version: str, folder: Path) -> ImageFacts:
        """Write an image's bill of materials to a folder, and return what is known of it.

        Raises:
            Unavailable: It is not there, or cannot be scanned.
        """
        name = image_name(target, version)
        (known,) = self._podman.inspect(name, kind="image")
        size_mb = int(known["Size"]) // 1_000_000
        bill = folder / f"icedb-{target}-{version}.cdx.json"
        mounted = self._podman.run("image", "mount", name).strip()
        try:
            scan = ("scan", f"dir:{mounted}", "--source-name", f"icedb-{target}", "--source-version", version)
            self._podman.run(*scan, "--quiet", "--output", f"cyclonedx-json={bill}", tool="syft")
        finally:
            self._podman.run("image", "unmount", name)
        components = json.loads(bill.read_text()).get("components", [])
        packages = {one["name"]: one.get("version", "") for one in components if one.get("purl")}
        return ImageFacts(name, size_mb, packages, tuple(find_faults(target, known, size_mb, packages)))

    def _build(self, sources: Path, file: str, target: str, tag: str, arguments: tuple[str, ...]) -> None:
        self._say(f"building {tag}")
        words = ["bud", "--isolation", "chroot", "--network", "host", "--format", "docker", "--layers"]
        ignore = sources / f"{file}.dockerignore"
        if ignore.exists():
            words += ["--ignorefile", str(ignore)]
        if ca_file := ssl.get_default_verify_paths().cafile:
            words += ["--volume", f"{ca_file}:/etc/ssl/certs/ca-certificates.crt:ro"]
        if PIP_CONF.exists():
            words += ["--secret", f"id=pip_conf,src={PIP_CONF}"]
        for argument in arguments:
            words += ["--build-arg", argument]
        self._podman.run(
            *words, "--file", str(sources / file), "--target", target, "--tag", tag, str(sources), tool="buildah"
        )


def image_name(target: str, version: str) -> str:
    """Return the name of an image of ours."""
    return f"localhost/icedb-containers/{target}:{version}"


def stand_in_name(target: str) -> str:
    """Return the name of an image that stands for one of a registry."""
    return f"localhost/icedb-containers/stand-in-{target}:1"


def find_faults(target: str, known: dict[str, Any], size_mb: int, packages: dict[str, str]) -> list[str]:
    """Return what an image should have and has not, from what ``podman inspect`` and its bill of materials say."""
    config = known["Config"]
    faults = []
    if known.get("User") != USER:
        faults.append(f"runs as {known.get('User') or 'root'}, not as {USER}")
    health = known.get("HealthCheck") or known.get("Healthcheck") or config.get("Healthcheck") or {}
    if (health.get("Test") or [""])[0] not in ("CMD", "CMD-SHELL"):
        faults.append("has no health check")
    faults += [f"has no label {name}" for name in LABELS if not (config.get("Labels") or {}).get(name)]
    if target == "service" and size_mb > MAX_SERVICE_MB:
        faults.append(f"has {size_mb} MB, more than {MAX_SERVICE_MB}")
    faults += [f"has no {name} in its bill of materials" for name in NEEDED[target] if name not in packages]
    if "pip" in packages:
        faults.append("has pip")
    return faults


def read_revision(sources: Path) -> str:
    """Return the commit that is checked out, or ``unknown``."""
    done = subprocess.run(["git", "-C", str(sources), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
