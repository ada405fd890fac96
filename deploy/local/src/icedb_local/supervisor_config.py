"""The configuration of supervisord, rendered from a list of programs.

Owns the mapping of a :class:`Program` to supervisor's INI format and its quoting. Groups stop one after the
other, the one with the highest priorities first; programs of one group are told in descending order of priority
and stop side by side.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from icedb_log.errors import InvalidRequest

EXIT_USAGE: Final = 2
LOG_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Program:
    """One process that supervisord keeps running.

    Attributes:
        name: Lower-case word; also the name of its log file.
        group: Groups stop one after the other.
        priority: Lower starts earlier and is told to stop later.
        command: Program and arguments.
        directory: Where it runs.
        env: Variables on top of supervisord's own.
        stop_wait_s: Seconds from SIGTERM to SIGKILL of its whole process group.
        starts_at_once: Start it with supervisord; otherwise when it is asked for.
        start_retries: How often it may end within its first second, one time after the other.
    """

    name: str
    group: str
    priority: int
    command: tuple[str, ...]
    directory: Path
    env: Mapping[str, str] = field(default_factory=dict)
    stop_wait_s: int = 10
    starts_at_once: bool = False
    start_retries: int = 3

    @property
    def process_name(self) -> str:
        """The name by which supervisor's commands know it."""
        return f"{self.group}:{self.name}"


def render_config(programs: Sequence[Program], *, run_dir: Path, socket_path: Path) -> str:
    """Render supervisord's configuration file.

    Args:
        programs: What to run.
        run_dir: Where logs and the pid file go.
        socket_path: Control socket, at most about 100 bytes long (a limit of the operating system).
    """
    sections = [
        _section("unix_http_server", {"file": socket_path, "chmod": "0600"}),
        _section(
            "supervisord",
            {
                "nodaemon": "true",
                "silent": "true",
                "pidfile": run_dir / "supervisord.pid",
                "logfile": run_dir / "logs" / "supervisord.log",
                "logfile_maxbytes": LOG_BYTES,
                "logfile_backups": 1,
                "childlogdir": run_dir / "logs",
                "strip_ansi": "true",
            },
        ),
        _section(
            "rpcinterface:supervisor",
            {"supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"},
        ),
        _section("supervisorctl", {"serverurl": f"unix://{socket_path}"}),
    ]
    groups: dict[str, list[Program]] = {}
    for program in programs:
        groups.setdefault(program.group, []).append(program)
        sections.append(_section(f"program:{program.name}", _program_fields(program, run_dir)))
    for group, members in groups.items():
        names = ",".join(member.name for member in members)
        sections.append(
            _section(f"group:{group}", {"programs": names, "priority": min(member.priority for member in members)})
        )
    return "\n".join(sections)


def log_path(run_dir: Path, program_name: str) -> Path:
    """Return where a program's output goes."""
    return run_dir / "logs" / f"{program_name}.log"


def _program_fields(program: Program, run_dir: Path) -> dict[str, object]:
    return {
        "command": shlex.join(program.command),
        "directory": program.directory,
        "priority": program.priority,
        "environment": ",".join(f'{key}="{_check_value(value)}"' for key, value in program.env.items()),
        "autostart": str(program.starts_at_once).lower(),
        # Restarted however it ended, also by kill -9; only "my settings are wrong" is not mended by a restart.
        "autorestart": "unexpected",
        "exitcodes": EXIT_USAGE,
        "startsecs": 1,
        "startretries": program.start_retries,
        # A worker gets SIGTERM alone, so that its running job ends well; what is left is killed as a group.
        "stopasgroup": "false",
        "killasgroup": "true",
        "stopsignal": "TERM",
        "stopwaitsecs": program.stop_wait_s,
        "redirect_stderr": "true",
        "stdout_logfile": log_path(run_dir, program.name),
        "stdout_logfile_maxbytes": LOG_BYTES,
        "stdout_logfile_backups": 1,
    }


def _section(name: str, fields: Mapping[str, object]) -> str:
    lines = [f"{key} = {_escape(str(value))}" for key, value in fields.items() if str(value)]
    return "\n".join([f"[{name}]", *lines, ""])


def _escape(value: str) -> str:
    if "\n" in value or " ;" in value:
        raise InvalidRequest(f"{value[:120]!r} cannot stand in a supervisor configuration: choose another folder")
    return value.replace("%", "%%")


def _check_value(value: str) -> str:
    if '"' in value or "\\" in value:
        raise InvalidRequest(f"{value[:120]!r} cannot stand in a supervisor environment: quotes and backslashes")
    return value
