"""Publishes a table in Iceberg's form: for commands, services and programs.

Nothing is written while nothing has changed. Engines without a catalog find the newest metadata by
``version-hint.text`` beside it, the one object below ``metadata/`` that is written over; nothing is decided by it.
"""

from typing import Final

from icedb_log.commit.table import Table
from icedb_log.errors import NotFound
from icedb_log.publish.head import read_publication
from icedb_log.publish.model import Publication
from icedb_log.publish.publications import publish
from icedb_log.store.table_store import TableStore

from icedb_iceberg.location import locate_table
from icedb_iceberg.unfit_files import UnfitFiles
from icedb_iceberg.writer import IcebergWriter

METADATA_SUFFIX: Final = ".metadata.json"
_HINT_TRIES: Final = 5
_writer: Final = IcebergWriter()


def publish_table(table: Table, *, writer: IcebergWriter | None = None) -> Publication:
    """Return a publication of everything that had landed when this was called; make one if there is none yet.

    Idempotent: asking again while nothing has changed writes nothing. While the newest state has data files that
    engines would read wrongly, the last one that had none is returned; :func:`find_held_back` says why.

    Args:
        table: The table.
        writer: Keeps in memory what was published; one for all tables of a process. The module's own if not given.

    Raises:
        UnfitFiles: There are such data files, and no publication; the message says what to do.
        InvalidRequest: The table cannot be published as it is; the message says what to do.
        NotFound: No such table, or it is dropped.
        Fenced: It is another one of that name meanwhile.
        HaltError: The log, or what was published, cannot be understood.
        CommitOutcomeUnknown: No answer whether it became the current one; call again.
        Unavailable: The store did not answer, or others were faster each time.
    """
    used = writer or _writer
    try:
        known = used.take_state(table)
        publication = publish(table, used, state=known)
        used.keep_state(table, known)
        used.note_fit(table)
    except UnfitFiles:
        found = read_publication(table)
        if found is None or not used.fits(table, found):
            raise
        publication = found
    if not used.has_hinted(publication):
        _write_hint(table, publication)
        used.note_hint(publication)
    return publication


def find_held_back(table: TableStore, *, writer: IcebergWriter | None = None) -> str:
    """Return why the newest state was not published when :func:`publish_table` was asked last; empty: it was."""
    return (writer or _writer).held_back(table)


def metadata_uri(table: TableStore, publication: Publication) -> str:
    """Return the URI of the object that engines begin with. Raises as :func:`~icedb_iceberg.location.read_location`."""
    return locate_table(table) + publication.metadata_key.removeprefix(table.paths.prefix)


def _write_hint(table: Table, publication: Publication) -> None:
    """Let the hint name a publication, or the one that others have made meanwhile."""
    key = table.paths.version_hint_key
    current: Publication | None = publication
    for _ in range(_HINT_TRIES):
        if current is None:
            return
        wanted = current.metadata_key.rpartition("/")[2].removesuffix(METADATA_SUFFIX).encode()
        try:
            is_said = table.store.get(key).body == wanted
        except NotFound:
            is_said = False
        if not is_said:
            table.store.put(key, wanted)
        # WARN: two publishers: the earlier one may write last. Whoever writes looks at the head once more.
        found = read_publication(table)
        if found is None or found.publication_id == current.publication_id:
            return
        current = found
