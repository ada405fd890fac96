"""How a publication is made: the next state of a table's chain, for engines that do not read the log (P1, P2, P4).

Order: the head; a listing of the log, which says whether there is anything new; the record; the log; the objects; the
head, by compare-and-set. The record is a hold (J4): what dies later than its time is kept; the log that is read after
it proves the rest. One that loses the race is never read; its publisher begins again.

Nothing that was published changes. A publisher that sleeps anywhere, for however long, has lost when it wakes up and
the head has moved on.
"""

import contextlib
import hashlib
from dataclasses import replace
from typing import Final

from icedb_log.commit.table import Table
from icedb_log.errors import IceDBError, NotFound, Unavailable
from icedb_log.holds.erasures import list_open_ids
from icedb_log.holds.guards import find_certain_ms, find_data_deaths
from icedb_log.holds.stored_holds import StoredHold, put_hold
from icedb_log.holds.tags import list_tags
from icedb_log.keys import PublicationName, log_name
from icedb_log.log.fold import fold
from icedb_log.log.state import LogState
from icedb_log.publish.head import Head, begin_chain, encode_head, encode_record, read_head
from icedb_log.publish.model import Draft, Publication, PublicationWriter
from icedb_log.publish.steps import find_history
from icedb_log.store.object_store import list_all
from icedb_log.store.records import create_record, replace_claim
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig

MAX_TRIES: Final = 5
"""How often a publisher begins again because others were faster."""


def publish(table: Table, writer: PublicationWriter, *, state: LogState | None = None) -> Publication:
    """Return a publication of everything that had landed when this was called; make one if there is none yet.

    Idempotent: asking again while nothing has changed writes nothing, and costs four requests; after half a grace
    period of data files it is written anew.

    Args:
        table: The table. This host's clock decides nothing.
        writer: Writes what engines read.
        state: What is known of the log from an earlier time, as in :func:`~icedb_log.log.fold.fold`.

    Raises:
        NotFound: No such table, or it is dropped.
        HaltError: The log, or the head, cannot be understood.
        CommitOutcomeUnknown: No answer whether it became the current one; call again.
        Unavailable: The store did not answer, or others were faster each time.
        IceDBError: What the writer raised.
    """
    config = read_table_config(table)
    for _ in range(MAX_TRIES):
        head = _find_head(table)
        listing = list_all(table.store, table.paths.log_prefix)
        tags_digest = _digest_tags(table)
        base = head.current
        if base is not None and not _fits(writer, table, base):
            base = None
        names = {log_name(info.key) for info in listing.objects}
        if base is not None:
            # What is gone from the log since was dead: the janitor took it (J2).
            is_same = base.log_names >= names and base.tags_digest == tags_digest
            if is_same and listing.store_now_ms < _renewed_ms(base, config):
                return base
        writer.require_fit(table, names, now_ms=listing.store_now_ms)
        maker = _Maker(table, config, head, base, store_now_ms=listing.store_now_ms, tags_digest=tags_digest)
        made = maker.make(writer, state)
        if made is not None:
            return made
    raise Unavailable(
        f"table {table.name}: others changed {table.paths.publication_head_key} {MAX_TRIES} times while a publication "
        "was made; try again"
    )


def _fits(writer: PublicationWriter, table: Table, base: Publication) -> bool:
    """Whether a publication is still what is wanted, and can be read."""
    try:
        return writer.fits(table, base)
    except NotFound:
        return False


def _renewed_ms(base: Publication, config: TableConfig) -> int:
    """Return from when on a publication is not shown any longer, whatever the log says, by the store's clock.

    It lasts half a grace period: then it lets go what died before, and a janitor does not take it for one that nobody
    asks for (P5). A tag that has ended by itself is no tag any more.
    """
    renewed_ms = base.modified_ms + config.data_grace_ms // 2
    return renewed_ms if base.tags_end_ms is None else min(renewed_ms, base.tags_end_ms)


def _find_head(table: Table) -> Head:
    """Return the head; create one, of a chain of its own, where there is none. Raises CorruptLog, Unavailable."""
    head = read_head(table)
    if head is None:
        begin_chain(table, table.clock.new_id())
        head = read_head(table)
    if head is None:
        raise Unavailable(f"{table.paths.publication_head_key}: was written, and is not there; try again")
    return head


def _digest_tags(table: Table) -> str:
    """Return what tells the tags from those of another time, whatever they say: one listing. Raises Unavailable."""
    listing = list_all(table.store, table.paths.holds_of("tag"))
    said = "\n".join(f"{info.key} {info.etag}" for info in listing.objects)
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest() if said else ""


def _list_active_tags(table: Table) -> tuple[StoredHold, ...]:
    listed = list_tags(table)
    return tuple(tag for tag in listed.holds if tag.status(listed.store_now_ms) == "active")


class _Maker:
    """Makes one publication on one state of the head."""

    def __init__(
        self,
        table: Table,
        config: TableConfig,
        head: Head,
        base: Publication | None,
        *,
        store_now_ms: int,
        tags_digest: str,
    ) -> None:
        self._table = table
        self._config = config
        self._head = head
        self._base = base
        self._tags_digest = tags_digest
        # What is live in a log that is read from now on died later than that, if ever: at any server of the store.
        since_ms = max(0, store_now_ms - max(MAX_STORE_GAP_MS, config.log_grace_ms))
        self._name = PublicationName(head.chain, head.sequence + 1, since_ms, table.clock.new_id())
        self._record_key = table.paths.publication_key(self._name)

    def make(self, writer: PublicationWriter, state: LogState | None) -> Publication | None:
        """Make it the current one; ``None``: another publisher was faster. Raises as :func:`publish`."""
        written_ms = self._put_record()
        try:
            made = self._write(writer, state, written_ms=written_ms)
        except Exception:
            # It was not tried to make it the current one: nobody refers to anything of it. Its objects go with a sweep.
            with contextlib.suppress(IceDBError):
                self._leave()
            raise
        head = replace(self._head, sequence=self._name.sequence, current=made)
        body = encode_head(self._table.paths, head)
        key = self._table.paths.publication_head_key
        # P1: bodies never repeat, each names its publication. None: another state is there, maybe built on this one.
        info = replace_claim(self._table.store, key, body, etag=self._head.etag)
        return None if info is None else replace(made, modified_ms=info.modified_ms)

    def _leave(self) -> None:
        """Take the record away. One of some time stays: it says that the current publication is asked for (P5)."""
        table, base = self._table, self._base
        prefix = table.paths.holds_of("publication", f"{self._name.chain}.{self._name.sequence:010d}")
        listing = list_all(table.store, prefix)
        young_ms = listing.store_now_ms - self._config.data_grace_ms // 4
        others = (info for info in listing.objects if info.key != self._record_key)
        if base is None or any(info.modified_ms > young_ms for info in others):
            table.store.delete([self._record_key])

    def _put_record(self) -> int:
        """Write the record, and return when it was written, by the store's clock (P2)."""
        table = self._table
        objects = self._base.objects if self._base is not None else ()
        body = encode_record(table.paths, since_ms=self._name.since_ms, owner=table.owner, objects=objects)
        return put_hold(table.store, self._record_key, body).modified_ms

    def _write(self, writer: PublicationWriter, state: LogState | None, *, written_ms: int) -> Publication:
        table, base, name = self._table, self._base, self._name
        try:
            before = None if base is None else writer.live_paths(table, base)
        except NotFound:  # a part of it is lost: nobody can go on from it
            base = before = None
        # WARN: J4: after the record is there. Before it: the log is read, a file dies and gets old, a janitor reads the
        # records, the record is written, and the publication names a file that is about to go.
        view = table.read_log()
        read_table_config(table)  # T3: in a purged table nothing can be held
        snapshot = fold(view, state=state)
        certain_ms = find_certain_ms(written_ms=written_ms, grace_ms=self._config.data_grace_ms)
        since_ms = max(name.since_ms, certain_ms)
        if base is None and list_open_ids(table):
            # WARN: E5: older states name the erased files, and manifests hold their bounds.
            since_ms = view.store_now_ms
        history = find_history(
            view,
            snapshot.live,
            find_data_deaths(view),
            before=before,
            before_digest=None if base is None else writer.live_digest(table, base),
            known=frozenset() if base is None else base.log_names,
            since_ms=since_ms,
        )
        tags = _list_active_tags(table) if self._tags_digest else ()
        log_names = frozenset(log_name(file.key) for file in view.files)
        draft = Draft(
            table=table,
            chain=name.chain,
            publication_id=name.publication_id,
            sequence=name.sequence,
            base=base,
            base_since_ms=0 if base is None else history.before_since_ms,
            steps=history.steps,
            live=snapshot.live,
            schema=snapshot.schema,
            logged_schema=snapshot.logged_schema,
            since_ms=since_ms,
            as_of_ms=view.store_now_ms,
            tags=tags,
            log_names=log_names,
            put=self._put,
        )
        written = writer.write(draft)
        return Publication(
            publication_id=name.publication_id,
            chain=name.chain,
            sequence=name.sequence,
            metadata_key=written.metadata_key,
            since_ms=name.since_ms,
            as_of_ms=view.store_now_ms,
            objects=tuple(sorted(set(written.objects))),
            log_names=log_names,
            tags_digest=self._tags_digest,
            tags_end_ms=min((tag.ends_ms for tag in tags if tag.ends_ms is not None), default=None),
        )

    def _put(self, name: str, body: bytes) -> str:
        """Write an object of this publication: under a key that nobody has used, or will use again (P5)."""
        self._table.check_alive()
        key = self._table.paths.published_key(
            name, sequence=self._name.sequence, publication_id=self._name.publication_id
        )
        create_record(self._table.store, key, body, otherwise="the publication was not made; call again")
        return key
