"""A feed: what was appended to a table becomes rows of a view of it, exactly once (rules V1 to V6, F1 to F3, W1 to W3).

A feed is to a view what a flush is to other tables, with the source's log in the place of staging: under the view's own
``ingest`` fence it takes the source's commits that no feed took before, oldest first, and commits their rows together
with their names. The rows are written by a :class:`~icedb_log.jobs.ViewFeeder`; everything that decides is
here. Safe under any number of concurrent feeds, flushes, merges and janitors, without any lock.

A view that begins with the rows of its source takes the data files of its backfill in the same commits, behind what was
appended since, as far as the bounds of a feed allow: each file as if a commit had added it alone. In each fourth feed
the backfill comes first, else a source with ever more commits would hold it up for ever (V6). The order of the files
never changes, so that the places of those that are taken say all (V1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import orjson

from icedb_log.commit.commit import Added, AppendCommit
from icedb_log.commit.invariants import MAX_LOG_FILES
from icedb_log.commit.table import Table
from icedb_log.errors import CommitOutcomeUnknown, CorruptLog, NotFound, PreconditionFailed, Unavailable
from icedb_log.feed.position import advance, advance_backfill, find_missing, find_unfilled, fold_some
from icedb_log.feed.views import (
    Registration,
    find_unfed,
    find_unrecorded,
    has_unfilled,
    read_append,
    read_feed_state,
    read_registration,
    register_view,
    unite_source_schema,
)
from icedb_log.jobs import (
    FeedJob,
    FeedOutput,
    RefusedCommit,
    SourceCommit,
    ViewFeeder,
    require_commits_accounted,
)
from icedb_log.keys import log_name
from icedb_log.model import FeedState, FileMarker, LogHeads
from icedb_log.units import MIB

MAX_REASONS: Final = 20
"""Refused commits that the result of a task names; all of them lie below the view's ``_icedb/refused/``."""
_FILE: Final = "file-"
"""With its place behind it the name of a data file of the backfill; no log file has such a name."""
BACKFILL_TURN: Final = 4
"""Of so many feeds one takes data files of the backfill before commits."""
_REMEDY: Final = "Restore it, or detach the view: "


@dataclass(frozen=True, slots=True)
class FeedLimits:
    """Bounds of one feed.

    Attributes:
        max_commits: Commits of the source, and data files of the backfill, that one commit of the view takes.
        max_bytes: Bytes of their data files; a single commit or file may exceed it.
        max_backfill_bytes: Bytes of data files of the backfill: it has no hurry, and others wait for the worker.
    """

    max_commits: int = 256
    max_bytes: int = 1024 * MIB
    max_backfill_bytes: int = 256 * MIB


@dataclass(frozen=True, slots=True)
class FeedResult:
    """What a feed did.

    Attributes:
        committed_key: Log file of the view's commit; ``None`` if there was nothing to take.
        commit_count: Commits of the source whose rows the view has now.
        backfilled_count: Data files of the backfill whose rows it has now.
        rows_read: The rows of both.
        row_count: Rows that the query made of them.
        misfit_count: Values of these that do not fit a promoted column of the view, and are NULL there.
        file_count: Data files that the view got.
        size_bytes: Bytes of these data files.
        refused: Commits of the source, and data files of the backfill, that the query cannot take.
        waiting_count: Commits that wait for the next feed.
        unfilled_count: Data files of the backfill that wait for it.
        is_attached: Whether the source feeds the view at all.
        is_log_full: Whether the view's log has no room, so that nothing was taken.
    """

    committed_key: str | None = None
    commit_count: int = 0
    backfilled_count: int = 0
    rows_read: int = 0
    row_count: int = 0
    misfit_count: int = 0
    file_count: int = 0
    size_bytes: int = 0
    refused: tuple[RefusedCommit, ...] = ()
    waiting_count: int = 0
    unfilled_count: int = 0
    is_attached: bool = True
    is_log_full: bool = False

    @property
    def has_more(self) -> bool:
        """Whether something waits for the next feed."""
        return bool(self.waiting_count or self.unfilled_count)


@dataclass(frozen=True, slots=True)
class FeedRun:
    """What some feeds of one view did, one after the other."""

    results: Sequence[FeedResult]

    @property
    def commit_count(self) -> int:
        """Commits."""
        return sum(1 for each in self.results if each.committed_key)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was committed."""
        return not self.commit_count

    def details(self) -> dict[str, Any]:
        """Return it as the result of a task; the counts are of all commits, also of those that it does not name."""
        results = self.results
        refused = [each for result in results for each in result.refused]
        return {
            "commits": self.commit_count,
            "taken": sum(each.commit_count for each in results),
            "refused": len(refused),
            "rows_read": sum(each.rows_read for each in results),
            "rows": sum(each.row_count for each in results),
            "misfits": sum(each.misfit_count for each in results),
            "files": sum(each.file_count for each in results),
            "waiting": results[-1].waiting_count if results else 0,
            "backfilled": sum(each.backfilled_count for each in results),
            "unfilled": results[-1].unfilled_count if results else 0,
            "attached": all(each.is_attached for each in results),
            "log_full": any(each.is_log_full for each in results),
            "reasons": [{"commit": each.commit.name, "reason": each.reason} for each in refused[:MAX_REASONS]],
        }


def feed_view(view: Table, source: Table, feeder: ViewFeeder, *, limits: FeedLimits | None = None) -> FeedResult:
    """Take the oldest commits of a view's source that the view has not taken, and more of its backfill, in one commit.

    Exactly once: what was taken stands in the commit that has the rows (V1), and only the owner of the view's
    ``ingest`` fence commits. A run that fails anywhere leaves the commits to the next one.

    Raises:
        Fenced: Another feed took over; drop the job.
        CommitConflict: The commit certainly did not land; run again.
        CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
        HaltError: The view needs a person.
        Unavailable: A server did not answer, or the job took too long (W3).
    """
    registration = register_view(source, view.name, clock=view.clock, backfill=view.config.has_backfill)
    if registration.state == "detached":
        return FeedResult(is_attached=False)
    seen = source.read_heads()
    state = read_feed_state(view.read_heads())
    has_work = has_unfilled(registration, state) or find_unfed(seen.files, registration, state.names)
    if not has_work and not find_unrecorded(view, state):
        return FeedResult()
    with AppendCommit(view) as commit:
        return _FeedRun(view, source, feeder, commit, registration).feed(limits or FeedLimits())


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What one commit of a view is to take.

    Attributes:
        commits: Commits of the source, oldest first, and data files of the backfill, each as if it were one: a job that
            leaves some leaves the last ones.
        places: Of these data files, by the names that they have here.
        source: The source's log.
        waiting_count: Commits that wait for the next feed.
        unfilled_count: Data files of the backfill that do.
    """

    commits: tuple[SourceCommit, ...]
    places: Mapping[str, int]
    source: LogHeads
    waiting_count: int
    unfilled_count: int


@dataclass(frozen=True, slots=True)
class _FeedRun:
    """What one feed works with once it holds the fence."""

    view: Table
    source: Table
    feeder: ViewFeeder
    commit: AppendCommit
    registration: Registration

    def feed(self, limits: FeedLimits) -> FeedResult:
        state = read_feed_state(self.commit.log)
        # V5: before anything that could forget the reasons.
        self._record_refusals(state, find_unrecorded(self.view, state))
        # WARN: V2: the source's log is listed after the fence was acquired. The other way round: a commit is listed,
        # another feed takes it, its log file is merged and vacuumed, a third feed forgets its name, and this one, with
        # the fence after that, does not find the name among those that were taken: rows twice.
        source = self.source.read_heads()
        unfed = find_unfed(source.files, self.registration, state.names)
        unfilled = tuple(find_unfilled(state.backfilled, self.registration.base_files))
        if len(self.commit.log.files) >= MAX_LOG_FILES:
            return FeedResult(waiting_count=len(unfed), unfilled_count=len(unfilled), is_log_full=True)
        # V6: by a number that each feed raises, so that every run agrees whose turn it is.
        if (state.sequence + 1) % BACKFILL_TURN:
            commits = self._read_commits(source, unfed, limits)
            files = self._read_backfill(unfilled, limits, beside=commits)
            chosen_commits = (*commits, *files.values())
        else:
            files = self._read_backfill(unfilled, limits)
            commits = self._read_commits(source, unfed, limits, beside=tuple(files.values()))
            chosen_commits = (*files.values(), *commits)
        if not chosen_commits:
            return FeedResult()
        chosen = _Chosen(
            commits=chosen_commits,
            places={commit.name: place for place, commit in files.items()},
            source=source,
            waiting_count=len(unfed) - len(commits),
            unfilled_count=len(unfilled) - len(files),
        )
        return self._commit(chosen, state)

    def _read_commits(
        self, source: LogHeads, unfed: Sequence[str], limits: FeedLimits, *, beside: Sequence[SourceCommit] = ()
    ) -> tuple[SourceCommit, ...]:
        """Return the next commits of the source: as many as still have room."""
        by_name = {log_name(file.key): file for file in source.files}
        commits: list[SourceCommit] = []
        size_bytes = sum(each.size_bytes for each in beside)
        for name in unfed[: max(0, limits.max_commits - len(beside))]:
            file = by_name[name]
            try:
                commit = read_append(self.source, file.key, etag=file.etag)
            except (NotFound, PreconditionFailed) as error:
                raise self._gone(file.key) from error
            size_bytes += commit.size_bytes
            if (commits or beside) and size_bytes > limits.max_bytes:
                break
            commits.append(commit)
        return tuple(commits)

    def _read_backfill(
        self, unfilled: Sequence[int], limits: FeedLimits, *, beside: Sequence[SourceCommit] = ()
    ) -> dict[int, SourceCommit]:
        """Return the next data files of the backfill by their places, each as a commit: as many as still have room."""
        room = limits.max_commits - len(beside)
        room_bytes = min(limits.max_bytes - sum(commit.size_bytes for commit in beside), limits.max_backfill_bytes)
        if not unfilled or room <= 0 or room_bytes <= 0:
            return {}
        base = self._read_base()
        found: dict[int, SourceCommit] = {}
        for place in unfilled[:room]:
            marker = base[place]
            room_bytes -= marker.size_bytes
            if room_bytes < 0 and (found or beside):
                break
            found[place] = SourceCommit(f"{_FILE}{place}", marker.created_ms, (marker,))
        return found

    def _read_base(self) -> list[FileMarker]:
        """Return the data files of the backfill in their order: partitions descending, so the newest days first."""
        registration, source = self.registration, self.source
        log = source.read_log()
        missing = find_missing(log, registration.base)
        files = fold_some(log, registration.base)
        if not missing and len(files) == registration.base_files:
            return sorted(files, key=attrgetter("path"), reverse=True)
        # WARN: V4 keeps the log files until the backfill is taken, and not for a run that slept since it looked how far
        # that is: another feed took the rest meanwhile, or the view was detached.
        self.commit.fence.confirm()
        if read_registration(source, self.view.name) != registration:
            raise self._gone(source.paths.named_log_key(min(missing or registration.base)))
        raise CorruptLog(
            f"view {self.view.name}: the log of {source.name} does not say any more with which rows the view begins "
            f"({len(missing)} of {len(registration.base)} log files are gone), and not all of them are taken. {_REMEDY}"
            f"`icedb views {source.name} --detach {self.view.name}`"
        )

    def _commit(self, chosen: _Chosen, state: FeedState) -> FeedResult:
        commits, source, places = chosen.commits, chosen.source, chosen.places
        known = self.commit.known
        output = FeedOutput((), known.effective, commits, (), (), 0, 0)
        if any(commit.files for commit in commits):
            job = FeedJob(
                paths=self.view.paths,
                config=self.view.config,
                schema=known.effective,
                source=self.source.paths,
                source_schema=unite_source_schema(self.source.config, source),
                commits=commits,
                commit_id=self.commit.commit_id,
                time_ms=self.view.clock.now_ms(),
                check_alive=self.commit.still_mine,
            )
            output = self._run(job)  # W1: data files first
        refused = {each.commit.name: _describe_refusal(each, places) for each in output.refused}
        decided = [*(commit.name for commit in output.taken), *refused]
        filled = [places[name] for name in decided if name in places]
        feed = FeedState(
            sequence=state.sequence + 1,
            names=advance(state.names, source.files, decided=[name for name in decided if name not in places]),
            refused=refused,
            backfilled=advance_backfill(state.backfilled, decided=filled) if filled else state.backfilled,
        )
        schema = output.schema if output.files else None
        committed = self.commit.land(self.commit.build(Added(files=output.files, schema=schema, feed=feed)))
        self._record_refusals(feed, tuple(refused))  # V5: only now
        deferred_files = sum(1 for commit in output.deferred if commit.name in places)
        backfilled_count = sum(1 for commit in output.taken if commit.name in places)
        return FeedResult(
            committed_key=committed.key,
            commit_count=len(output.taken) - backfilled_count,
            backfilled_count=backfilled_count,
            rows_read=output.rows_read,
            row_count=output.row_count,
            misfit_count=output.misfit_count,
            file_count=len(output.files),
            size_bytes=sum(marker.size_bytes for marker in output.files),
            refused=output.refused,
            waiting_count=chosen.waiting_count + len(output.deferred) - deferred_files,
            unfilled_count=chosen.unfilled_count + deferred_files,
        )

    def _run(self, job: FeedJob) -> FeedOutput:
        try:
            output = self.feeder.feed_rows(job)
        except NotFound as error:
            # WARN: V4 keeps log file and data files until the commit is taken, and not for a run that slept since it
            # read the log file: another feed took the commit meanwhile, or the view was detached.
            self.commit.fence.confirm()
            for name in {*(commit.name for commit in job.commits if not _is_file(commit.name)), *self._base_of(job)}:
                self._require_there(name)
            raise CorruptLog(
                f"view {self.view.name}: a data file of its source {self.source.name} is gone although a log file "
                f"names it: {error}. {_REMEDY}"
                f"`icedb views {self.source.name} --detach {self.view.name}`"
            ) from error
        require_commits_accounted(job, output)
        return output

    def _base_of(self, job: FeedJob) -> tuple[str, ...]:
        """Return the log files that keep what a job takes of the backfill."""
        return self.registration.base if any(_is_file(commit.name) for commit in job.commits) else ()

    def _require_there(self, name: str) -> None:
        """Raise Unavailable if a log file of the source is gone: its data files may be, then (J2)."""
        key = self.source.paths.named_log_key(name)
        try:
            self.source.store.head(key)
        except NotFound as error:
            raise self._gone(key) from error

    def _gone(self, key: str) -> Unavailable:
        return Unavailable(
            f"view {self.view.name}: {key} went away while it was read: a vacuum that did not know of the view, or "
            "knew it as detached, deleted it; the next feed goes on with what is there"
        )

    def _record_refusals(self, state: FeedState, names: Sequence[str]) -> None:
        """Write down why commits were refused. The content follows from the log: whoever comes second is done."""
        for name in names:
            body = {
                "view": self.view.name,
                "source": self.source.name,
                "backfill" if _is_file(name) else "log_file": name,
                "reason": state.refused[name],
            }
            try:
                self.view.store.put_if_absent(self.view.paths.refused_key(name), orjson.dumps(body))
            except PreconditionFailed:
                continue
            except CommitOutcomeUnknown as error:
                raise Unavailable(
                    f"view {self.view.name}: the store did not confirm {self.view.paths.refused_key(name)}; the reason "
                    "stands in the log until the next feed has written it"
                ) from error


def _is_file(name: str) -> bool:
    return name.startswith(_FILE)


def _describe_refusal(refusal: RefusedCommit, places: Mapping[str, int]) -> str:
    """Return the reason of a refusal, which names a data file of the backfill: its number tells nobody anything."""
    is_file = refusal.commit.name in places
    return f"{refusal.commit.files[0].path}: {refusal.reason}" if is_file else refusal.reason
