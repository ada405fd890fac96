"""Podman, Buildah and what they need: found, or told how to be got; one folder holds all that they store.

Images, containers and networks of a run have a storage of their own, so that nothing of the user's is touched and the
end of a run leaves nothing. Without a registry, without systemd and under cgroups of either version: runc, limits that
a machine without more may give, health checks that are asked for (systemd's timers would ask elsewhere).
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from icedb_log.errors import Unavailable

DEBIAN_PACKAGES: Final[Mapping[str, str]] = {
    "podman": "podman",
    "buildah": "buildah",
    "runc": "runc",
    "conmon": "conmon",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "netavark": "netavark",
    "aardvark-dns": "aardvark-dns",
}
"""Each program, and the package that brings it on Debian."""
PYTHON_TOOLS: Final = ("podman-compose", "syft")
"""Of the dependency group ``containers``."""
HELPER_FOLDERS: Final = ("/usr/lib/podman", "/usr/libexec/podman", "/usr/sbin", "/usr/local/libexec/podman")
CONTAINERS_CONF: Final = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{folder}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
STORAGE_CONF: Final = """\
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


def find_missing() -> tuple[str, ...]:
    """Return what a run needs and this machine does not have, each with how to get it; empty: nothing is missing."""
    if sys.platform != "linux":
        return ("Linux",)
    path = os.pathsep.join((os.environ.get("PATH", ""), *HELPER_FOLDERS))
    packages = [package for tool, package in DEBIAN_PACKAGES.items() if not shutil.which(tool, path=path)]
    missing = [f"{', '.join(packages)} (Debian: apt-get install {' '.join(packages)})"] if packages else []
    tools = [tool for tool in PYTHON_TOOLS if not find_tool(tool).exists()]
    if tools:
        missing.append(f"{', '.join(tools)} (`make containers` installs them into .venv)")
    if os.geteuid() != 0:
        missing.append("root (debootstrap, and images that no registry gives)")
    return tuple(missing)


def find_tool(name: str) -> Path:
    """Return where a tool of this environment is, or would be."""
    return Path(sys.executable).with_name(name)


class Podman:
    """Runs commands on a storage of its own; use as a context manager: its end removes all containers and networks.

    Args:
        folder: Of the storage; a short absolute path, since sockets lie in it.
        keeps_images: Whether images stay for the next run.
    """

    def __init__(self, folder: Path, *, keeps_images: bool) -> None:
        self.folder = folder
        self._keeps_images = keeps_images
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ICEDB_", "COMPOSE_"))},
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "DISABLE_HC_SYSTEMD": "true",
            "BUILDAH_ISOLATION": "chroot",
        }

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("containers.conf", CONTAINERS_CONF), ("storage.conf", STORAGE_CONF)):
            (self.folder / name).write_text(text.format(folder=self.folder))
        (self.folder / "networks").mkdir(exist_ok=True)
        self._remove_containers()
        return self

    def __exit__(self, *_: object) -> None:
        self._remove_containers()
        if not self._keeps_images:
            self.try_to_run("rmi", "--all", "--force")
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(
        self, *arguments: str, tool: str = "podman", env: Mapping[str, str] | None = None, keeps_errors: bool = False
    ) -> str:
        """Run a command and return what it printed, on both outputs if errors are to be kept.

        Raises:
            Unavailable: It failed; the message has the end of what it said.
        """
        command = [str(find_tool(tool)) if tool in PYTHON_TOOLS else tool, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**self.env, **(env or {})})
        if done.returncode:
            shown = " ".join(command)[:300]
            raise Unavailable(f"{shown}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout + (done.stderr if keeps_errors else "")

    def try_to_run(self, *arguments: str) -> bool:
        """Run a command of podman; return whether it went well."""
        return subprocess.run(["podman", *arguments], capture_output=True, check=False, env=self.env).returncode == 0

    def inspect(self, *names: str, kind: str = "container") -> list[dict[str, Any]]:
        """Return what podman knows of containers or images. Raises Unavailable: there is no such thing."""
        found: list[dict[str, Any]] = json.loads(self.run("inspect", "--type", kind, *names))
        return found

    def find_containers(self, labels: Sequence[str]) -> list[str]:
        """Return the ids of the containers, running or not, that have all of some labels."""
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        return self.run("ps", "--all", "--quiet", "--no-trunc", *filters).split()

    def _remove_containers(self) -> None:
        self.try_to_run("rm", "--all", "--force", "--time", "0")
        self.try_to_run("volume", "prune", "--force")
        self.try_to_run("network", "prune", "--force")
