"""A real local stack: Redis, the services, and the S3 server if asked for, under supervisord.

Owns starting (servers, then what takes batches and answers, then the workers), waiting until every part answers, and
stopping. A part answers when its own process listens: somebody else's server on its port is never taken for it.
Stopping has one path: the guard's pipe is closed, by ``stop``, by the end of this process, or by its death; the guard
then takes everything down (see :mod:`icedb_local.guard`). Never waits without a deadline.
"""

import contextlib
import dataclasses
import functools
import signal
import subprocess
import sys
import tempfile
import xmlrpc.client  # of our own supervisor, over a socket of this user  # nosec B411
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

import psutil
from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import InvalidRequest, Unavailable
from supervisor.xmlrpc import SupervisorTransport

from icedb_local.guard import find_run_processes, kill_run_processes
from icedb_local.ports import HeldPorts, answers_http, answers_ok, answers_ping, is_free, is_listening, is_serving
from icedb_local.stack_layout import DOORS, ENV_FILE, LARGE, WORKERS, StackLayout, StackPorts
from icedb_local.supervisor_config import log_path, render_config

START_DEADLINE_MS: Final = 300_000
"""As long as a worker waits for its own engine: a busy machine takes minutes to start several JVMs."""
START_TRIES: Final = 3
"""How often ports may be lost to somebody else between the look and the start."""
STOP_DEADLINE_S: Final = 75
POLL_MS: Final = 200
LOG_TAIL_LINES: Final = 15
MAX_SOCKET_PATH: Final = 90
MAX_WORDS: Final = 500
SOCKET_NAME_BYTES: Final = 32
"""Of a socket in a folder of its own."""
FAILED_STATES: Final = ("FATAL", "EXITED")
LEFT_STATES: Final = ("BACKOFF", *FAILED_STATES)
RUNNING_STATE: Final = "RUNNING"
STOPPED_STATE: Final = "STOPPED"
DEATH_DEADLINE_MS: Final = 60_000
DEATH_POLL_MS: Final = 10

ReadyCallback = Callable[[str], None]
IsMet = Callable[[], bool]


class PortTaken(Unavailable):
    """Somebody else listens where a program wants to."""


class LocalStack(contextlib.AbstractContextManager["LocalStack"]):
    """A stack that lives as long as this object is entered.

    Not thread-safe: start and stop it from the main thread.

    Args:
        layout: Where it lives and what it runs; the run folder is created.
        on_ready: Called with a program's name as soon as it answers; again if the stack has to move to other ports.
        choose_ports: Where it listens, asked when it starts, and again if a port is lost to somebody else meanwhile; it
            may hold its choice, until the stack has stopped. Without it, the layout's ports are fixed.
        start_deadline_ms: How long everything may take to answer.
        clock: For waiting.
    """

    def __init__(
        self,
        layout: StackLayout,
        *,
        on_ready: ReadyCallback = lambda _: None,
        choose_ports: Callable[[HeldPorts], StackPorts] | None = None,
        start_deadline_ms: int = START_DEADLINE_MS,
        clock: Clock | None = None,
    ) -> None:
        self.layout = layout
        self._on_ready = on_ready
        self._choose_ports = choose_ports
        self._start_deadline_ms = start_deadline_ms
        self._clock = clock or SystemClock()
        self._guard: subprocess.Popen[bytes] | None = None
        self._socket_dir: Path | None = None
        self._held = HeldPorts()
        self._suspects: dict[str, int | None] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def program_names(self) -> tuple[str, ...]:
        """Names of all programs, in the order of starting."""
        return tuple(program.name for program in self.layout.programs())

    def start(self) -> None:
        """Start everything and wait until all of it answers.

        Raises:
            InvalidRequest: Another stack lives in the same run folder.
            Unavailable: Something did not answer in time; the message has its last words, and names its log.
        """
        self._check_folder()
        for tries_left in reversed(range(START_TRIES)):
            if self._choose_ports is not None:
                self.layout = dataclasses.replace(self.layout, ports=self._choose_ports(self._held))
            try:
                self._start()
            except PortTaken:
                if not tries_left or self._choose_ports is None:
                    raise
                self.stop()
            else:
                return

    def _start(self) -> None:
        run_dir = self.layout.run_dir
        for name in ("logs", "redis", "scratch", "warehouse"):
            (run_dir / name).mkdir(parents=True, exist_ok=True)
        programs = self.layout.programs()
        config = run_dir / "supervisord.conf"
        config.write_text(render_config(programs, run_dir=run_dir, socket_path=self._socket_path()))
        (run_dir / ENV_FILE).write_text("\n".join([*self.layout.export_lines(), ""]))
        with log_path(run_dir, "guard").open("wb") as guard_log:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", "icedb_local.guard", str(run_dir), str(config)],
                stdin=subprocess.PIPE,
                stdout=guard_log,
                stderr=subprocess.STDOUT,
                cwd=run_dir,
                env=self.layout.service_env(),
                start_new_session=True,
            )
        deadline_ms = self._clock.monotonic_ms() + self._start_deadline_ms
        self._wait_for(self._server_conditions(), deadline_ms)
        conditions = self._service_conditions()
        for is_door in (True, False):  # the workers would take the processor from what people wait for
            now = [one for one in programs if not one.starts_at_once and (one.name in DOORS) is is_door]
            for program in now:
                self._rpc("startProcess", program.process_name, False)
            self._wait_for({one.name: conditions[one.name] for one in now}, deadline_ms)

    def stop(self) -> None:
        """Stop everything, in order, and leave no process. Idempotent; Ctrl-C waits until it is done."""
        with _ignored_interrupts():
            guard, self._guard = self._guard, None
            if guard is not None:
                if guard.stdin is not None:
                    guard.stdin.close()
                try:
                    guard.wait(STOP_DEADLINE_S)
                except subprocess.TimeoutExpired:
                    guard.kill()
                    guard.wait()
                kill_run_processes(self.layout.run_dir)
                (self.layout.run_dir / ENV_FILE).unlink(missing_ok=True)
            if self._socket_dir is not None:
                with contextlib.suppress(OSError):
                    for path in self._socket_dir.iterdir():
                        path.unlink()
                    self._socket_dir.rmdir()
                self._socket_dir = None
            self._held.release()

    def is_alive(self) -> bool:
        """Whether the guard, and so supervisord, still runs."""
        return self._guard is not None and self._guard.poll() is None

    def find_process(self, program_name: str) -> psutil.Process:
        """Return the main process of a running program, e.g. of ``ingest``.

        Raises:
            Unavailable: It does not run at this moment.
        """
        for info in self._rpc("getAllProcessInfo"):
            if info["name"] == program_name and info["pid"]:
                with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                    return psutil.Process(info["pid"])
        raise Unavailable(f"{program_name} does not run now{self._last_words(program_name)}")

    def kill_and_hold_down(self, program_name: str) -> None:
        """Kill a program (SIGKILL) and keep it from being started again, until :meth:`start_again`.

        Raises:
            Unavailable: It does not run at this moment, and nothing was done; or supervisord does not notice its death.
        """
        try:
            process = self.find_process(program_name)
            process.suspend()  # it must not leave in good order when supervisord sends SIGTERM
            try:
                # Told before it dies: supervisord starts at once what ends by itself.
                self._rpc("stopProcess", self._process_name(program_name), False)
            except Unavailable:
                process.resume()
                raise
        except psutil.NoSuchProcess as error:
            raise Unavailable(f"{program_name} has just ended") from error
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        deadline_ms = self._clock.monotonic_ms() + DEATH_DEADLINE_MS
        while self._states().get(program_name) != STOPPED_STATE:
            if self._clock.monotonic_ms() > deadline_ms:
                raise Unavailable(f"supervisord does not notice that {program_name} was killed")
            self._clock.sleep_ms(DEATH_POLL_MS)

    def start_again(self, program_name: str) -> None:
        """Start a program that was held down. Raises Unavailable if supervisord does not, or if it runs already."""
        self._rpc("startProcess", self._process_name(program_name), False)

    def stop_program(self, program_name: str) -> int:
        """Ask a program to stop, and wait until it has ended, at most for its ``stop_wait_s``.

        Returns:
            The exit code that it ended with; -1: it did not end in time, and was killed.

        Raises:
            Unavailable: It does not run at this moment.
        """
        name = self._process_name(program_name)
        self._rpc("stopProcess", name)
        return int(self._rpc("getProcessInfo", name)["exitstatus"])

    def start_program(self, program_name: str) -> None:
        """Start a program that was stopped, and wait until it answers.

        Raises:
            Unavailable: It runs already, or does not answer in time; the message has its last words.
        """
        self.start_again(program_name)
        conditions = self._server_conditions() | self._service_conditions()
        deadline_ms = self._clock.monotonic_ms() + self._start_deadline_ms
        self._wait_for({program_name: conditions[program_name]}, deadline_ms)

    def _process_name(self, program_name: str) -> str:
        return next(one.process_name for one in self.layout.programs() if one.name == program_name)

    def read_log_tail(self, program_name: str, *, line_count: int = LOG_TAIL_LINES) -> str:
        """Return the last lines of a program's log."""
        path = log_path(self.layout.run_dir, program_name)
        try:
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - 64 * 1024))
                lines = log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return f"(no log at {path})"
        return "\n".join(lines[-line_count:]) or f"({path} is empty)"

    def _check_folder(self) -> None:
        run_dir = self.layout.run_dir
        if " ;" in str(run_dir) or '"' in str(run_dir):
            raise InvalidRequest(f"run folder {run_dir}: choose one without quotes and semicolons")
        if find_run_processes(run_dir):
            raise InvalidRequest(
                f"a stack lives in {run_dir} already: use it (source {run_dir / ENV_FILE}), stop it (Ctrl-C where it "
                "runs), or start another one beside it in a folder of its own (make up DATA=FOLDER)"
            )

    def _socket_path(self) -> Path:
        path = self.layout.run_dir / "supervisor.sock"
        if len(str(path).encode()) <= MAX_SOCKET_PATH:
            return path
        if self._socket_dir is None:
            parent = tempfile.gettempdir()
            is_short = len(parent.encode()) + SOCKET_NAME_BYTES <= MAX_SOCKET_PATH
            folder = parent if is_short else "/tmp"  # mkdtemp makes one of this user's own in it  # nosec B108
            self._socket_dir = Path(tempfile.mkdtemp(prefix="icedb-", dir=folder))
        return self._socket_dir / "supervisor.sock"

    def _server_conditions(self) -> dict[str, IsMet]:
        layout = self.layout
        conditions: dict[str, IsMet] = {"redis": lambda: answers_ping(layout.redis_url)}
        if layout.store == "s3":
            conditions["s3"] = lambda: answers_http(layout.ports.s3)
        return conditions

    def _service_conditions(self) -> dict[str, IsMet]:
        layout, ports = self.layout, self.layout.ports
        # A worker is ready when its child has its Spark session and takes tasks.
        asked = {name: ports.metrics_of(name) for name in (*WORKERS, LARGE, "enqueue")}
        asked |= {"frontend": ports.http, "gateway": ports.gateway, "console": ports.console}
        conditions: dict[str, IsMet] = {
            name: functools.partial(answers_ok, port, "/readyz") for name, port in asked.items()
        }
        conditions["snapshot"] = lambda: is_serving(layout.snapshot_address)
        conditions["beat"] = lambda: self._states().get("beat") == RUNNING_STATE
        return {name: conditions[name] for name in self.program_names if name in conditions}

    def _wait_for(self, conditions: Mapping[str, IsMet], deadline_ms: int) -> None:
        waiting = dict(conditions)
        while waiting:
            for name, is_met in tuple(waiting.items()):
                if is_met() and self._listens(name):
                    del waiting[name]
                    self._on_ready(name)
            if waiting:
                self._check_progress(tuple(waiting), deadline_ms)
                self._clock.sleep_ms(POLL_MS)

    def _listens(self, program_name: str) -> bool:
        """Whether whoever listens on a program's ports is that program."""
        found = self._listening_ports(program_name)
        return found is not None and found >= set(self.layout.ports.of(program_name).values())

    def _listening_ports(self, program_name: str) -> set[int] | None:
        """Return the ports on which a program's processes listen; ``None`` if one ended while it was looked at."""
        try:
            main = self.find_process(program_name)
        except Unavailable:
            return set()
        try:
            tree = [main, *main.children(recursive=True)]
            return {one.laddr.port for process in tree for one in process.net_connections("tcp") if not one.raddr}
        except psutil.Error:
            return None

    def _find_lost_port(self, program_name: str, state: str | None) -> int | None:
        """Return a port of a program that somebody else has, whether the program has given up or still runs.

        One that has given up may also have lost it to a connection, where no server listens.
        """
        if state not in (RUNNING_STATE, *LEFT_STATES):
            return None
        for port in self.layout.ports.of(program_name).values():
            if is_listening(port) if state == RUNNING_STATE else not is_free(port):
                # After the look at the port: the program may have begun to listen in between.
                found = self._listening_ports(program_name)
                if found is not None and port not in found:
                    return port
        return None

    def _check_progress(self, names: Sequence[str], deadline_ms: int) -> None:
        if not self.is_alive():
            raise Unavailable(
                f"the supervisor of the stack ended while {', '.join(names)} started{self._last_words('supervisord')}"
            )
        states = self._states()
        for name in names:
            state = states.get(name)
            lost = self._find_lost_port(name, state)
            # One that runs is asked twice: its processes may have changed between the look at the port and at them.
            if lost is not None and (state != RUNNING_STATE or self._suspects.get(name) == lost):
                raise PortTaken(f"{name} lost port {lost} to somebody else{self._last_words(name)}")
            self._suspects[name] = lost
            if state in FAILED_STATES:
                raise Unavailable(f"{name} does not start{self._last_words(name)}")
        if self._clock.monotonic_ms() > deadline_ms:
            waited = f"within {self._start_deadline_ms // 1000} s"
            raise Unavailable(f"{', '.join(names)} did not answer {waited}{self._last_words(names[0])}")

    def _last_words(self, program_name: str) -> str:
        last = self.read_log_tail(program_name, line_count=1).strip()
        return f": {last[:MAX_WORDS]}; log: {log_path(self.layout.run_dir, program_name)}"

    def _states(self) -> dict[str, str]:
        try:
            return {info["name"]: info["statename"] for info in self._rpc("getAllProcessInfo")}
        except Unavailable:
            return {}  # supervisord has not opened its socket yet

    def _rpc(self, method: str, *arguments: object) -> Any:
        transport = SupervisorTransport(None, None, f"unix://{self._socket_path()}")
        try:
            proxy = xmlrpc.client.ServerProxy("http://localhost", transport=transport)
            return getattr(proxy.supervisor, method)(*arguments)
        except (OSError, xmlrpc.client.Error) as error:
            raise Unavailable(f"supervisord does not answer {method}: {error}") from error
        finally:
            transport.close()


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that context managers stop what they started."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _ignored_interrupts() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
