"""How the tests come by Prometheus: from PATH, from what is unpacked, or from Debian's package, without root."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOWNLOADS = """#!/bin/sh
case "$*" in *download*) : > prometheus_2.42.0_all.deb ;; esac
"""
DOWNLOADS_WITH_OWN_LISTS = """#!/bin/sh
case "$*" in
  *Lists=*update*) : > "${2#Dir::State::Lists=}/fetched" ;;
  *Lists=*download*) test -e "${2#Dir::State::Lists=}/fetched" && : > prometheus_2.42.0_all.deb ;;
  *) echo "E: Unable to locate package prometheus" >&2; exit 100 ;;
esac
"""
FAILS = """#!/bin/sh
echo "E: no network" >&2
exit 100
"""
UNPACKS = """#!/bin/sh
mkdir -p "$3/usr/bin"
for name in prometheus promtool; do echo '#!/bin/sh' > "$3/usr/bin/$name"; chmod +x "$3/usr/bin/$name"; done
"""


@pytest.fixture
def clone(deploy, tmp_path) -> Path:
    """A repository that holds nothing but the script."""
    script = tmp_path / "clone" / "deploy" / "prometheus" / "fetch.py"
    script.parent.mkdir(parents=True)
    shutil.copy(deploy / "prometheus" / "fetch.py", script)
    return tmp_path / "clone"


@pytest.fixture
def programs(tmp_path) -> Path:
    """A folder for programs, the only one on PATH besides the shell's."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sh", "mkdir", "chmod", "test"):
        (folder / name).symlink_to(shutil.which(name))
    return folder


def add(programs: Path, name: str, text: str) -> None:
    (programs / name).write_text(text)
    (programs / name).chmod(0o755)


def fetch(clone: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    script = str(clone / "deploy" / "prometheus" / "fetch.py")
    environment = {**os.environ, "PATH": str(programs)}
    return subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)


def test_programs_on_path_come_first(clone, programs):
    for name in ("prometheus", "promtool"):
        add(programs, name, "#!/bin/sh\n")
    done = fetch(clone, programs)
    assert done.returncode == 0, done.stderr
    assert str(programs / "promtool") in done.stdout
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("apt", [DOWNLOADS, DOWNLOADS_WITH_OWN_LISTS])
def test_the_package_is_unpacked_once(clone, programs, apt):
    add(programs, "apt-get", apt)
    add(programs, "dpkg-deb", UNPACKS)
    first = fetch(clone, programs)
    assert first.returncode == 0, first.stderr
    assert str(clone / ".venv" / "prometheus" / "usr" / "bin" / "promtool") in first.stdout
    assert [path.name for path in (clone / ".venv").iterdir()] == ["prometheus"]
    add(programs, "apt-get", FAILS)
    assert fetch(clone, programs).stdout == first.stdout


def test_without_network_the_message_says_what_to_install(clone, programs):
    add(programs, "apt-get", FAILS)
    add(programs, "dpkg-deb", UNPACKS)
    done = fetch(clone, programs)
    assert done.returncode == 1
    assert "E: no network" in done.stderr
    assert "Install Prometheus 2.42" in done.stderr
    assert not list((clone / ".venv").iterdir())


def test_without_apt_the_message_says_what_to_install(clone, programs):
    done = fetch(clone, programs)
    assert done.returncode == 1
    assert "apt-get and dpkg-deb" in done.stderr
    assert "Install Prometheus 2.42" in done.stderr


def test_a_package_that_cannot_be_unpacked_leaves_nothing(clone, programs):
    add(programs, "apt-get", DOWNLOADS)
    add(programs, "dpkg-deb", FAILS)
    done = fetch(clone, programs)
    assert done.returncode == 1
    assert "dpkg-deb -x prometheus_2.42.0_all.deb failed" in done.stderr
    assert not list((clone / ".venv").iterdir())
