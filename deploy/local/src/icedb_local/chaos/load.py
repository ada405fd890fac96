"""What goes on while things fail: producers at every door, readers on every way, and the waits between.

A stack is asked from outside only, so that it is no matter of what it is made of: processes, or containers.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from icedb_client import Client, ClientSettings
from icedb_log.clock import Clock
from icedb_log.warehouse import Warehouse

from icedb_local.background import running_together
from icedb_local.chaos.batches import MAX_ROWS, STATES, BatchLedger, State, expected_content
from icedb_local.chaos.chaos_layout import TestedLayout
from icedb_local.chaos.chaos_producers import ChaosProducer, Send, make_grpc_door, make_http_door, make_staging_door
from icedb_local.chaos.chaos_readers import ChaosReader, PastReader, make_client_read, make_gateway_read
from icedb_local.chaos.content_checker import ContentChecker
from icedb_local.chaos.outages import Outages
from icedb_local.table_health import Leftovers, find_leftovers

GATEWAY_BUCKET: Final = "icedb"
DEADLINE_MS: Final = 300_000
"""How long any wait may take: a machine may be very busy."""
POLL_MS: Final = 100
AT_ONCE: Final = {"http": 4}
"""Batches that a door's producer sends side by side; of others: one."""
RETRY_PARTS: Final = 2
"""A batch is tried for half the table's retry window: what is under way then is still in time."""


@dataclass(slots=True)
class Load:
    """Producers and readers of a run.

    Attributes:
        target: The stack.
        tables: Which get batches, and are read.
        ledger: What was sent.
        checker: The judge.
        seed: Of the rows.
        pause_s: Of each producer between two batches.
        clock: For times.
        max_rows: Of a batch.
        producers: While they run, and afterwards.
        readers: While they run, and afterwards.
        leftovers: What :meth:`wait_for_quiet` saw last, by table.
    """

    target: TestedLayout
    tables: tuple[str, ...]
    ledger: BatchLedger
    checker: ContentChecker
    seed: int
    pause_s: float
    clock: Clock
    max_rows: int = MAX_ROWS
    producers: tuple[ChaosProducer, ...] = ()
    readers: tuple[ChaosReader, ...] = ()
    leftovers: dict[str, Leftovers] = field(default_factory=dict)

    @property
    def outages(self) -> list[Outages]:
        """Of each producer and reader."""
        return [*(one.outages for one in self.producers), *(one.outages for one in self.readers)]

    @property
    def rows_acknowledged(self) -> int:
        """Rows that may not be lost."""
        return self._rows("acknowledged")

    @property
    def rows_sent(self) -> int:
        """Rows that may be seen."""
        return self._rows(*STATES)

    def to_json(self) -> dict[str, Any]:
        """Return what was sent and read, and what must not be."""
        states = [entry.state for entry in self.ledger.entries().values()]
        return {
            "ok": not self.checker.violations,
            "seed": self.seed,
            "batches": {state: states.count(state) for state in STATES},
            "rows_sent": self.rows_sent,
            "rows_acknowledged": self.rows_acknowledged,
            "reads_checked": self.checker.checked_count,
            "rows_checked": self.checker.checked_rows,
            "outages": [one.to_json() for one in self.outages],
            "violations": [asdict(one) for one in self.checker.violations],
        }

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Run all readers in a block."""
        target = self.target
        common: dict[str, Any] = {
            "tables": self.tables,
            "checker": self.checker,
            "data_grace_ms": target.pace.data_grace_ms,
            "clock": self.clock,
        }
        served, direct = self._client(is_served=True), self._client(is_served=False)
        self.readers = (
            ChaosReader("service", make_client_read(served), **common),
            ChaosReader("store", make_client_read(direct), **common),
            ChaosReader("gateway", make_gateway_read(target.ports.gateway, GATEWAY_BUCKET), **common),
            PastReader("past", make_client_read(served), log_grace_ms=target.pace.log_grace_ms, **common),
        )
        with contextlib.ExitStack() as exits:
            exits.callback(served.close)
            exits.callback(direct.close)
            exits.enter_context(running_together(self.readers))
            yield

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Run all producers in a block."""
        target = self.target
        client = self._client(is_served=False)
        doors: Mapping[str, Send] = {
            "staging": make_staging_door(client),
            "http": make_http_door(target.ports.http),
            "grpc": make_grpc_door(target.grpc_address),
        }
        window_ms = target.pace.log_grace_ms - target.pace.log_grace_ms // 4
        self.producers = tuple(
            ChaosProducer(
                door,
                send,
                ledger=self.ledger,
                checker=self.checker,
                tables=self.tables,
                retry_ms=window_ms // RETRY_PARTS,
                pause_s=self.pause_s,
                seed=self.seed,
                clock=self.clock,
                max_rows=self.max_rows,
                at_once=AT_ONCE.get(door, 1),
            )
            for door, send in doors.items()
        )
        with contextlib.ExitStack() as exits:
            exits.callback(client.close)
            exits.enter_context(running_together(self.producers))
            yield

    def wait_for_progress(self, *, what: str) -> None:
        """Wait until a batch of each door that is sent from now on is seen, and each reader has read."""
        since_ms = self.clock.monotonic_ms()
        reads = {reader.outages.name: reader.outages.success_count for reader in self.readers}
        doors = {producer.outages.name.split()[-1] for producer in self.producers}

        def missing() -> list[str]:
            seen = self.checker.first_seen_ms
            through = {
                entry.door
                for entry in self.ledger.entries().values()
                if entry.sent_ms >= since_ms and entry.number in seen
            }
            waiting = [f"door {door}" for door in sorted(doors - through)]
            return waiting + [
                reader.outages.name
                for reader in self.readers
                if reader.outages.success_count <= reads[reader.outages.name]
            ]

        while left := missing():
            if self.clock.monotonic_ms() > since_ms + DEADLINE_MS:
                words = f"waited {DEADLINE_MS // 1000} s for {', '.join(left)} {what}"
                self.checker.note(words, table="", reader="conductor")
                return
            self.clock.sleep_ms(POLL_MS)

    def wait_for_quiet(self, warehouse: Warehouse, *, waits_for_orphans: bool, say: Callable[[str], None]) -> None:
        """Wait until nothing is staged and nothing dead is left, no longer than all grace periods allow."""
        pace = self.target.pace
        orphan_age_ms = pace.orphan_age_ms if waits_for_orphans else 0
        limit_ms = DEADLINE_MS + 2 * (pace.log_grace_ms + pace.data_grace_ms + orphan_age_ms)
        say(f"waiting for the janitor, at most {limit_ms // 1000} s")
        deadline_ms = self.clock.monotonic_ms() + limit_ms
        while True:
            for table in self.tables:
                self.leftovers[table] = find_leftovers(
                    warehouse, table, clock=self.clock, with_orphans=waits_for_orphans
                )
            if not any(one.total for one in self.leftovers.values()):
                return
            if self.clock.monotonic_ms() > deadline_ms:
                for table, one in self.leftovers.items():
                    if one.total:
                        self.checker.note(f"garbage is left: {one}", table=table, reader="janitor")
                return
            self.clock.sleep_ms(5 * POLL_MS)

    def _rows(self, *states: State) -> int:
        entries = self.ledger.entries().values()
        return sum(
            expected_content(self.seed, one.number, self.max_rows).rows for one in entries if one.state in states
        )

    def _client(self, *, is_served: bool) -> Client:
        target = self.target
        settings = target.door_settings
        assert settings.s3 is not None
        return Client(
            settings=ClientSettings(
                store=settings.url,
                s3_endpoint=settings.s3.endpoint_url,
                s3_region=settings.s3.region,
                s3_connect_timeout_ms=1_000,
                s3_read_timeout_ms=target.pace.read_timeout_ms,
                snapshot_address=target.snapshot_address if is_served else None,
                snapshot_timeout_ms=10_000,
                redis_url=target.redis_url,
            ),
            clock=self.clock,
        )
