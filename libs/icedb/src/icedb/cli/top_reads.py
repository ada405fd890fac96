"""What ``icedb top`` shows: the figures of all tables in rounds of a bounded cost, and all that is known of one.

Reads the bucket as ``icedb status`` does, or asks the snapshot service where only that is set. Every figure comes from
the function that the other commands take it from. Must never write.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from icedb_log.errors import IceDBError, NotFound
from icedb_log.log.fence import FenceLook
from icedb_log.log.history import CommitHistory, CommitInfo
from icedb_log.merge.small_files import MANY_SMALL_FILES
from icedb_log.serving.statuses import StatusReader, TableDetails
from icedb_log.serving.table_cache import TableCache
from icedb_log.table.status import Health, TableStatus, find_health
from icedb_log.units import MINUTE_MS

from icedb.cli.output import pick
from icedb.cli.quarantine import quarantined_to_json
from icedb.cli.read import pin_to_json
from icedb.cli.status import status_to_json

if TYPE_CHECKING:
    from icedb_client.client import Client

ROUND_TABLES: Final = 64
"""Tables of which figures are read in one round: a thousand of them take sixteen rounds, those that are seen are read
in each. One takes twelve small requests, and one more for each log file that is new."""
MAX_TABLES: Final = 2000
READ_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One table in figures; ``None`` is what is not known.

    Attributes:
        table: Its name.
        health: How it is; ``None``: not read yet.
        row_count: Live rows.
        size_bytes: Bytes of live data files.
        file_count: Live data files.
        lag_ms: How long the oldest file waits that a merge would take now.
        backlog_files: Files that a merge would take now.
        staged_batches: Batches that wait for a flush.
        quarantined: Batches that wait for a person.
        log_files: Objects below ``_log``.
        pressure: Its level.
        last_commit_ms: Time of the newest commit.
        workers: Who is at work on it.
        document: All of it, for ``--json``.
    """

    table: str
    health: Health | None = None
    row_count: int | None = None
    size_bytes: int | None = None
    file_count: int | None = None
    lag_ms: int | None = None
    backlog_files: int | None = None
    staged_batches: int | None = None
    quarantined: int | None = None
    log_files: int | None = None
    pressure: str | None = None
    last_commit_ms: int | None = None
    workers: tuple[FenceLook, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Overview:
    """All tables as they were read last.

    Attributes:
        rows: One for each table, by name.
        now_ms: This host's time.
        unread_count: Tables of which nothing was read yet.
        problem: Why the last round failed; empty: it did not. What was read before stays.
    """

    rows: tuple[Row, ...] = ()
    now_ms: int = 0
    unread_count: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """What is known of one table.

    Attributes:
        row: As among the others.
        now_ms: This host's time.
        state: Its figures; ``None``: they cannot be read, or only a snapshot service is asked.
        commits: The newest ones.
        details: What else is known of it.
        problem: What of it cannot be read, and why.
    """

    row: Row
    now_ms: int
    state: TableStatus | None = None
    commits: tuple[CommitInfo, ...] = ()
    details: TableDetails = field(default_factory=TableDetails)
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as a document."""
        config, details = None if self.state is None else self.state.config, self.details
        return {
            **self.row.document,
            "commits": [asdict(commit) for commit in self.commits],
            "merge": None if details.merge is None else asdict(details.merge),
            "deletable": {"log_files": details.due_logs, "data_files": details.due_files},
            "kept": [asdict(kept) for kept in details.kept or ()],
            "quarantine": [quarantined_to_json(entry) for entry in details.quarantined],
            "pins": [] if config is None else [pin_to_json(pin, status, config) for pin, status in details.pins],
            "views": [asdict(view) for view in details.views],
            "problem": self.problem or None,
        }


class Source(Protocol):
    """Where figures come from. For one thread."""

    @property
    def place(self) -> str:
        """What is looked at, for the title."""

    def read_all(self, *, first: Sequence[str] = (), limit: int | None = ROUND_TABLES) -> Overview:
        """Read one round: the tables that are named, then those that were read longest ago, up to ``limit`` together.

        Raises:
            IceDBError: The tables cannot be listed.
        """

    def read_page(self, table: str) -> Page:
        """Read all that is known of one table. Raises as :meth:`read_all`, and NotFound."""


def open_source(client: "Client") -> Source:
    """Return where a client's figures come from."""
    is_served = client.settings.store is None and client.settings.snapshot_address is not None
    return _Served(client) if is_served else _Bucket(client)


class _Bucket:
    """Reads the bucket itself."""

    def __init__(self, client: "Client") -> None:
        self.place: Final = client.settings.store or ""
        self._clock = client.clock
        self._warehouse = client.warehouse
        tables = TableCache(
            self._warehouse,
            clock=client.clock,
            max_tables=MAX_TABLES,
            wait_ms=MINUTE_MS,
            on_refresh=lambda _duration_ms: None,
        )
        self._statuses = StatusReader(self._warehouse, tables, clock=client.clock)
        self._known: dict[str, Row] = {}
        self._read_ms: dict[str, int] = {}
        self._histories: dict[str, CommitHistory] = {}

    def read_all(self, *, first: Sequence[str] = (), limit: int | None = ROUND_TABLES) -> Overview:
        """See :class:`Source`. A folder without a configuration is no table, and is looked at again by turn."""
        names = self._warehouse.list_names()
        by_age = sorted(names, key=lambda name: self._read_ms.get(name, -1))
        chosen = [name for name in dict.fromkeys((*first, *by_age)) if name in set(names)][:limit]
        with ThreadPoolExecutor(READ_THREADS, "icedb-top") as pool:
            found = dict(zip(chosen, pool.map(self._read_row, chosen), strict=True))
        now_ms = self._clock.monotonic_ms()
        self._read_ms = {name: self._read_ms[name] for name in names if name in self._read_ms} | dict.fromkeys(
            chosen, now_ms
        )
        known = {name: self._known[name] for name in names if name in self._known}
        self._known = {name: row for name, row in (known | found).items() if row is not None}
        for name in set(self._histories) - set(names):
            del self._histories[name]
        rows = [
            self._known.get(name) or Row(name) for name in names if name in self._known or name not in self._read_ms
        ]
        return Overview(tuple(rows), self._clock.now_ms(), sum(row.health is None for row in rows))

    def read_page(self, table: str) -> Page:
        """See :class:`Source`. What cannot be read hides nothing else."""
        try:
            log = self._statuses.read_log(table)
            state = self._statuses.read(table, log=log)
        except NotFound:
            self._statuses.drop(table)
            raise
        except IceDBError as error:
            return Page(_row_of(table, error), self._clock.now_ms(), problem=str(error))
        commits = self._histories.setdefault(table, CommitHistory()).read(log.view)
        page = Page(_row_of(table, state), self._clock.now_ms(), state, commits)
        try:
            details = self._statuses.read_details(log, state, explains=state.merge_lag_files <= MANY_SMALL_FILES)
        except IceDBError as error:
            return replace(page, problem=str(error))
        return replace(page, details=details, problem="; ".join(dict.fromkeys(details.problems.values())))

    def _read_row(self, name: str) -> Row | None:
        try:
            return _row_of(name, self._statuses.read(name))
        except NotFound:
            self._statuses.drop(name)
            return None
        except IceDBError as error:
            return _row_of(name, error)


class _Served:
    """Asks the snapshot service, which tells what is live, and not what waits."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self.place: Final = client.settings.snapshot_address or ""

    def read_all(self, *, first: Sequence[str] = (), limit: int | None = ROUND_TABLES) -> Overview:
        """See :class:`Source`. One call tells all tables: the service has read them already."""
        del first, limit
        names = self._client.tables()
        return Overview(self._read(names), self._client.clock.now_ms())

    def read_page(self, table: str) -> Page:
        """See :class:`Source`."""
        rows = self._read((table,))
        if not rows:
            raise NotFound(f"table {table!r} does not exist")
        told = "what waits, and why, stands in the bucket: set ICEDB_STORE to see it"
        return Page(rows[0], self._client.clock.now_ms(), problem=told)

    def _read(self, names: Sequence[str]) -> tuple[Row, ...]:
        events = {event.table: event for event in islice(self._client.watch(names), len(names))} if names else {}
        rows = []
        for name, event in sorted(events.items()):
            if event.problem is None and event.snapshot_id is None:
                continue  # gone
            health = Health("ok", "ok") if event.problem is None else Health("bad", "unread", (event.problem,))
            figures = pick(event, "row_count", "size_bytes", "file_count", "last_commit_ms")
            document = {"table": name, "snapshot_id": event.snapshot_id, **figures, **_health_to_json(health)}
            rows.append(Row(name, health, **figures, document=document))
        return tuple(rows)


def _row_of(name: str, state: TableStatus | IceDBError) -> Row:
    health = find_health(state)
    document = {**status_to_json(name, state), **_health_to_json(health)}
    if isinstance(state, IceDBError):
        return Row(name, health, document=document)
    return Row(
        name,
        health,
        row_count=state.live_rows,
        size_bytes=state.live_bytes,
        file_count=state.live_files,
        lag_ms=state.merge_lag_ms if state.merge_lag_files else None,
        backlog_files=state.merge_lag_files,
        staged_batches=state.staged_batches,
        quarantined=state.quarantined_batches,
        log_files=state.log_files,
        pressure=state.pressure.level,
        last_commit_ms=state.last_commit_ms or None,
        workers=state.workers,
        document=document,
    )


def _health_to_json(health: Health) -> dict[str, Any]:
    return {"health": health.level, "reasons": list(health.reasons)}
