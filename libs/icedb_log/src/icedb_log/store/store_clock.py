"""Can ages be told by this store's clock? Asked before a run deletes by age (J1, J5).

An age is the store's "now" minus an object's LastModified. That is only true if both come from one clock, which goes
forward as time does. A gateway that keeps the times of the files below it makes new objects look old; a ``Date`` that
jumps makes everything look old at once. Nothing in a listing shows either, so one object is written and looked at.

What this cannot see: a clock that was wrong when older objects were written and is right now. Grace periods and orphan
ages have to be longer than such an error.
"""

from typing import Final

from icedb_log.clock import Clock, format_ms
from icedb_log.errors import InvalidRequest, NotFound, Unavailable, UnsupportedFormat
from icedb_log.store.object_store import ObjectStore

MAX_STORE_GAP_MS: Final = 10_000
"""How far the store's answers about one moment may lie apart: several servers answer, each in whole seconds."""

MAX_HOST_GAP_MS: Final = 15 * 60 * 1000
"""How far the clocks of store and host may lie apart. S3 itself refuses requests of a host that is further off."""


def check_has_come(table: str, name: str, time_ms: int, *, store_now_ms: int) -> None:
    """Return if a time that is asked for has come, as far as servers of one store can tell.

    Args:
        table: Whose state is asked for.
        name: What the caller calls the time.
        time_ms: The time, unix ms.
        store_now_ms: The store's clock.

    Raises:
        InvalidRequest: It lies in the future.
    """
    if time_ms > store_now_ms + MAX_STORE_GAP_MS:
        raise InvalidRequest(
            f"table {table}: {name} {time_ms} lies in the future: the store's clock says {store_now_ms} "
            f"({format_ms(store_now_ms)}); ask for a time that has come, or leave it out for the newest state"
        )


def check_store_clock(store: ObjectStore, key: str, *, clock: Clock) -> int:
    """Check that the store tells the time of what is written just now. Costs two listings of one key and one write.

    The host's clock decides about no age. But of two clocks that disagree one is wrong, and nobody knows which: then
    nothing may be deleted (unknown means keep).

    Args:
        store: The object store.
        key: A scratch object, e.g. :attr:`icedb_log.keys.TablePaths.clock_key`. It is overwritten and stays.
        clock: Of this host.

    Returns:
        The store's clock, unix ms, at the second listing.

    Raises:
        UnsupportedFormat: LastModified is not the time of the write, or a listing lacks what was just written: no age
            of this store means anything.
        Unavailable: The store's clock jumped meanwhile, or is far from the host's; or the store did not answer.

    Idempotency: may be repeated, and run many times at once with one key.
    """
    began_ms = clock.monotonic_ms()
    earlier_ms = store.list_page(key, limit=1).store_now_ms
    heard_ms = clock.monotonic_ms()
    etag = store.put(key, clock.new_id().encode())
    asked_ms, host_ms = clock.monotonic_ms(), clock.now_ms()
    page = store.list_page(key, limit=1)
    found = [info.modified_ms for info in page.objects if info.key == key]
    least_ms, most_ms = asked_ms - heard_ms, clock.monotonic_ms() - began_ms
    passed_ms = page.store_now_ms - earlier_ms
    if not found:
        # WARN: T5: a purge deletes this object, too, also one of a table that had the name before, and asleep since.
        _require_there(store, key, etag)
        raise UnsupportedFormat(
            f"{key}: was written just now, and a listing does not show it: listings of this store are not consistent; "
            "use a store that lists what was written, and let no cache answer for it"
        )
    if not least_ms - MAX_STORE_GAP_MS <= passed_ms <= most_ms + MAX_STORE_GAP_MS:
        raise Unavailable(
            f"{key}: the store's clock moved by {passed_ms} ms while {most_ms} ms passed: nothing is deleted by age "
            "until it goes steadily; check the clocks of the store's servers (NTP)"
        )
    if not host_ms - MAX_HOST_GAP_MS <= page.store_now_ms <= clock.now_ms() + MAX_HOST_GAP_MS:
        raise Unavailable(
            f"{key}: the store's clock says {page.store_now_ms}, this host's {clock.now_ms()} (unix ms), more than "
            f"{MAX_HOST_GAP_MS // 60_000} minutes apart: nothing is deleted by age until both agree; set the one that "
            "is wrong (NTP)"
        )
    if not earlier_ms - MAX_STORE_GAP_MS <= found[0] <= page.store_now_ms + MAX_STORE_GAP_MS:
        raise UnsupportedFormat(
            f"{key}: was written between {earlier_ms} and {page.store_now_ms} by the store's clock, and its "
            f"LastModified says {found[0]} (unix ms): this store does not keep the time of a write, so no age can be "
            "told; use a store whose LastModified is its own time of the last write"
        )
    return page.store_now_ms


def _require_there(store: ObjectStore, key: str, etag: str) -> None:
    """Raise Unavailable if somebody has removed what was written: then its absence says nothing about listings.

    Another run may have put one there since: what each writes is its own.
    """
    try:
        is_mine = store.head(key).etag == etag
    except NotFound:
        is_mine = False
    if not is_mine:
        raise Unavailable(f"{key}: somebody removed it just now: nothing is deleted by age; the next run goes on")
