"""Machines of a cluster, on this one: each has a network of its own, bounds of its own, and a small disk.

Root gets network namespaces on one bridge, control groups and file systems of some MiB. Anybody else gets plain
processes on loopback, which share everything: :attr:`Nodes.are_isolated` says which. A process is known by the variable
``ICEDB_SIM_NODE``, which all inherit that a node starts. Not for production, and one thread's: nothing is locked.

What the kernel is asked for has the id of this process in its name: what a run left that was killed is removed by the
next one.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

LOOPBACK: Final = "127.0.0.1"
NAME_VARIABLE: Final = "ICEDB_SIM_NODE"
DISK_MIB: Final = 192
NODE_MEMORY_MIB: Final = 3072
NODE_MBIT: Final = 1000
_TAG: Final = re.compile(r"icedb(\d+)n")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_LINKS: Final = Path("/sys/class/net")
_PERIOD_US: Final = 100_000
_BALLAST: Final = "ballast"
_ENTER: Final = 'for group in $0; do echo $$ > "$group/cgroup.procs" || exit 1; done; exec "$@"'


@dataclass(frozen=True, slots=True)
class Node:
    """One machine.

    Attributes:
        name: As the agent of its requests to a store says it, and, with this run's id, :data:`NAME_VARIABLE`.
        address: Its own, or loopback.
        scratch: Its disk.
        groups: Folders of its control groups.
        tag: Its name for the kernel; empty: it is not isolated.
    """

    name: str
    address: str
    scratch: Path
    groups: tuple[Path, ...] = ()
    tag: str = ""

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs there."""
        if not self.tag:
            return list(command)
        groups = " ".join(map(str, self.groups))
        return ["sh", "-c", _ENTER, groups, "nsenter", f"--net=/run/netns/{self.tag}", *command]

    def env(self) -> Mapping[str, str]:
        """Return what its processes have in their environment. botocore tells the store the name, as its caller's."""
        return {NAME_VARIABLE: _label(self.name), "AWS_SDK_UA_APP_ID": self.name}

    def find(self, words: str) -> list[psutil.Process]:
        """Return its processes whose command line has some words."""
        return [each for each in find_processes(self.name) if words in _read_command(each)]

    def cut(self) -> None:
        """Take its cable out: whatever is under way stays there, and nobody is told."""
        _run("ip", "link", "set", self.tag, "down")

    def join(self) -> None:
        """Put the cable in again. Idempotent."""
        _run("ip", "link", "set", self.tag, "up")

    def slow_down(self, cores: float | None) -> None:
        """Let all its processes have so much of a core together; ``None``: no bound."""
        quota = None if cores is None else int(cores * _PERIOD_US)
        for group in self.groups:
            for name, text in (
                ("cpu.max", f"{quota or 'max'} {_PERIOD_US}"),
                ("cpu.cfs_quota_us", str(quota or -1)),
            ):
                if (group / name).exists():
                    (group / name).write_text(text)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Keep its disk full."""
        ballast = self.scratch / _BALLAST
        try:
            with ballast.open("wb", buffering=0) as file:
                for size in (1 << 20, 4096, 1):
                    with suppress(OSError):
                        while file.write(b"\0" * size):
                            pass
            yield
        finally:
            ballast.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Nodes:
    """All machines.

    Attributes:
        hub: The address at which they reach what runs outside of them.
        all: The machines.
        are_isolated: Whether each has a network, bounds and a disk of its own.
    """

    hub: str
    all: tuple[Node, ...]
    are_isolated: bool

    def find(self, words: str) -> list[psutil.Process]:
        """Return the processes of all machines whose command line has some words."""
        return [process for node in self.all for process in node.find(words)]


@contextmanager
def running_nodes(folder: Path, *, count: int = 3) -> Iterator[Nodes]:
    """Make machines, and take them away with all that runs there.

    Args:
        folder: For their disks; made if it is not there.
        count: How many.
    """
    is_isolated = os.geteuid() == 0 and _can_isolate()
    pid = os.getpid()
    names = [f"node-{number}" for number in range(1, count + 1)]
    if not is_isolated:
        nodes = tuple(Node(name, LOOPBACK, folder / name) for name in names)
        for node in nodes:
            node.scratch.mkdir(parents=True)
        try:
            yield Nodes(LOOPBACK, nodes, are_isolated=False)
        finally:
            _end(names)
        return
    _remove_leftovers()
    network = f"10.{200 + pid % 50}.{pid // 50 % 256}"
    bridge = f"icedb{pid}n"
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{network}.1/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        nodes = tuple(
            _isolate(Node(name, f"{network}.{number + 10}", folder / name, tag=f"icedb{pid}n{number}"), bridge)
            for number, name in enumerate(names)
        )
        yield Nodes(f"{network}.1", nodes, are_isolated=True)
    finally:
        _end(names)
        _remove(pid)


def find_processes(name: str) -> list[psutil.Process]:
    """Return the running processes of a machine."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(NAME_VARIABLE) == _label(name) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _label(name: str) -> str:
    """Return how this run's machine is known: another run's has the same name."""
    return f"{os.getpid()}/{name}"


def _isolate(node: Node, bridge: str) -> Node:
    tag, inside = node.tag, f"{node.tag}i"
    _run("ip", "netns", "add", tag)
    _run("ip", "link", "add", tag, "type", "veth", "peer", "name", inside, "netns", tag)
    _run("ip", "link", "set", tag, "master", bridge, "up")
    for change in (["addr", "add", f"{node.address}/24", "dev", inside], ["link", "set", inside, "up"]):
        _run("ip", "-n", tag, *change)
    _run("ip", "-n", tag, "link", "set", "lo", "up")
    # Bounds both ways where the kernel has them: what leaves by this end, and what comes back by the other one.
    shape = ["root", "tbf", "rate", f"{NODE_MBIT}mbit", "burst", "1mbit", "latency", "400ms"]
    for place in (["tc"], ["nsenter", f"--net=/run/netns/{tag}", "tc"]):
        device = inside if len(place) > 1 else tag
        subprocess.run([*place, "qdisc", "add", "dev", device, *shape], capture_output=True, check=False)
    node.scratch.mkdir(parents=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", tag, str(node.scratch))
    return Node(node.name, node.address, node.scratch, _make_groups(tag), tag)


def _make_groups(tag: str) -> tuple[Path, ...]:
    """Make control groups of version 2, or of version 1, for processor and memory."""
    if (_CGROUPS / "cgroup.controllers").exists():
        with suppress(OSError):
            (_CGROUPS / "cgroup.subtree_control").write_text("+cpu +memory")
        groups, limit = [_CGROUPS / tag], "memory.max"
    else:
        groups, limit = [_CGROUPS / "cpu" / tag, _CGROUPS / "memory" / tag], "memory.limit_in_bytes"
    for group in groups:
        group.mkdir()
        if (group / limit).exists():
            (group / limit).write_text(str(NODE_MEMORY_MIB << 20))
    return tuple(groups)


def _can_isolate() -> bool:
    """Whether this machine gives out namespaces: a container's root is often not allowed to."""
    tag = f"icedb{os.getpid()}nt"
    made = subprocess.run(["ip", "netns", "add", tag], capture_output=True, check=False).returncode == 0
    if made:
        _run("ip", "netns", "del", tag)
    return made and os.access(_CGROUPS, os.W_OK)


def _end(names: Sequence[str]) -> None:
    processes = [process for name in names for process in find_processes(name)]
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=20)


def _remove_leftovers() -> None:
    """Remove what runs left that are no more."""
    for link in _LINKS.iterdir():
        found = _TAG.match(link.name)
        if found and not psutil.pid_exists(int(found[1])):
            _remove(int(found[1]))


def _remove(pid: int) -> None:
    """Remove all that one run has made; whatever of it is there."""
    tag = f"icedb{pid}n"
    for line in Path("/proc/mounts").read_text().splitlines():
        source, place = line.split()[:2]
        if source.startswith(tag):
            subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
    spaces = Path("/run/netns")
    for space in spaces.iterdir() if spaces.exists() else ():
        if space.name.startswith(tag):
            subprocess.run(["ip", "netns", "del", space.name], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", tag], capture_output=True, check=False)
    for link in _LINKS.iterdir():
        if link.name.startswith(tag):
            subprocess.run(["ip", "link", "del", link.name], capture_output=True, check=False)
    for pattern in (f"{tag}*", f"*/{tag}*"):
        for group in _CGROUPS.glob(pattern):
            with suppress(OSError):
                group.rmdir()


def _read_command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
