"""A feed: what was appended to a table becomes rows of a view of it, exactly once (rules V1 to V5, F1 to F3, W1 to W3).

A feed is to a view what a flush is to other tables, with the source's log in the place of staging: under the view's own
``ingest`` fence it takes the source's commits that no feed took before, oldest first, and commits their rows together
with their names. The rows are written by a :class:`~icedb_log.jobs.ViewFeeder`; everything that decides is
here. Safe under any number of concurrent feeds, flushes, merges and janitors, without any lock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from icedb_log.commit.commit import Added, AppendCommit
from icedb_log.commit.invariants import MAX_LOG_FILES
from icedb_log.commit.table import Table
from icedb_log.errors import CommitOutcomeUnknown, CorruptLog, NotFound, PreconditionFailed, Unavailable
from icedb_log.feed.position import advance
from icedb_log.feed.views import (
    Registration,
    find_unfed,
    find_unrecorded,
    read_append,
    read_feed_state,
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
from icedb_log.model import FeedState, LogHeads
from icedb_log.units import MIB

MAX_REASONS: Final = 20
"""Refused commits that the result of a task names; all of them lie below the view's ``_icedb/refused/``."""


@dataclass(frozen=True, slots=True)
class FeedLimits:
    """Bounds of one feed.

    Attributes:
        max_commits: Commits of the source that one commit of the view takes.
        max_bytes: Bytes of their data files; a single commit may exceed it.
    """

    max_commits: int = 256
    max_bytes: int = 1024 * MIB


@dataclass(frozen=True, slots=True)
class FeedResult:
    """What a feed did.

    Attributes:
        committed_key: Log file of the view's commit; ``None`` if there was nothing to take.
        commit_count: Commits of the source whose rows the view has now.
        rows_read: Their rows.
        row_count: Rows that the query made of them.
        misfit_count: Values of these that do not fit a promoted column of the view, and are NULL there.
        file_count: Data files that the view got.
        size_bytes: Bytes of these data files.
        refused: Commits of the source that the query cannot take.
        waiting_count: Commits that wait for the next feed.
        is_attached: Whether the source feeds the view at all.
        is_log_full: Whether the view's log has no room, so that nothing was taken.
    """

    committed_key: str | None = None
    commit_count: int = 0
    rows_read: int = 0
    row_count: int = 0
    misfit_count: int = 0
    file_count: int = 0
    size_bytes: int = 0
    refused: tuple[RefusedCommit, ...] = ()
    waiting_count: int = 0
    is_attached: bool = True
    is_log_full: bool = False


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
            "attached": all(each.is_attached for each in results),
            "log_full": any(each.is_log_full for each in results),
            "reasons": [{"commit": each.commit.name, "reason": each.reason} for each in refused[:MAX_REASONS]],
        }


def feed_view(view: Table, source: Table, feeder: ViewFeeder, *, limits: FeedLimits | None = None) -> FeedResult:
    """Take the oldest commits of a view's source that the view has not taken, in one commit.

    Exactly once: what was taken stands in the commit that has the rows (V1), and only the owner of the view's
    ``ingest`` fence commits. A run that fails anywhere leaves the commits to the next one.

    Raises:
        Fenced: Another feed took over; drop the job.
        CommitConflict: The commit certainly did not land; run again.
        CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
        HaltError: The view needs a person.
        Unavailable: A server did not answer, or the job took too long (W3).
    """
    registration = register_view(source, view.name, clock=view.clock)
    if registration.state == "detached":
        return FeedResult(is_attached=False)
    seen = source.read_heads()
    state = read_feed_state(view.read_heads())
    if not find_unfed(seen.files, registration, state.names) and not find_unrecorded(view, state):
        return FeedResult()
    with AppendCommit(view) as commit:
        return _FeedRun(view, source, feeder, commit).feed(registration, limits or FeedLimits())


@dataclass(frozen=True, slots=True)
class _FeedRun:
    """What one feed works with once it holds the fence."""

    view: Table
    source: Table
    feeder: ViewFeeder
    commit: AppendCommit

    def feed(self, registration: Registration, limits: FeedLimits) -> FeedResult:
        state = read_feed_state(self.commit.log)
        # V5: before anything that could forget the reasons.
        self._record_refusals(state, find_unrecorded(self.view, state))
        # WARN: V2: the source's log is listed after the fence was acquired. The other way round: a commit is listed,
        # another feed takes it, its log file is merged and vacuumed, a third feed forgets its name, and this one, with
        # the fence after that, does not find the name among those that were taken: rows twice.
        source = self.source.read_heads()
        unfed = find_unfed(source.files, registration, state.names)
        if len(self.commit.log.files) >= MAX_LOG_FILES:
            return FeedResult(waiting_count=len(unfed), is_log_full=True)
        commits = self._read_commits(source, unfed, limits)
        if not commits:
            return FeedResult()
        return self._commit(commits, source, state, waiting_count=len(unfed) - len(commits))

    def _read_commits(self, source: LogHeads, unfed: Sequence[str], limits: FeedLimits) -> tuple[SourceCommit, ...]:
        by_name = {log_name(file.key): file for file in source.files}
        commits: list[SourceCommit] = []
        size_bytes = 0
        for name in unfed[: limits.max_commits]:
            file = by_name[name]
            try:
                commit = read_append(self.source, file.key, etag=file.etag)
            except (NotFound, PreconditionFailed) as error:
                raise self._gone(file.key) from error
            size_bytes += commit.size_bytes
            if commits and size_bytes > limits.max_bytes:
                break
            commits.append(commit)
        return tuple(commits)

    def _commit(
        self, commits: tuple[SourceCommit, ...], source: LogHeads, state: FeedState, *, waiting_count: int
    ) -> FeedResult:
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
        refused = {each.commit.name: each.reason for each in output.refused}
        feed = FeedState(
            sequence=state.sequence + 1,
            names=advance(state.names, source.files, decided=[*(commit.name for commit in output.taken), *refused]),
            refused=refused,
        )
        schema = output.schema if output.files else None
        committed = self.commit.land(self.commit.build(Added(files=output.files, schema=schema, feed=feed)))
        self._record_refusals(feed, tuple(refused))  # V5: only now
        return FeedResult(
            committed_key=committed.key,
            commit_count=len(output.taken),
            rows_read=output.rows_read,
            row_count=output.row_count,
            misfit_count=output.misfit_count,
            file_count=len(output.files),
            size_bytes=sum(marker.size_bytes for marker in output.files),
            refused=output.refused,
            waiting_count=waiting_count + len(output.deferred),
        )

    def _run(self, job: FeedJob) -> FeedOutput:
        try:
            output = self.feeder.feed_rows(job)
        except NotFound as error:
            # WARN: V4 keeps log file and data files until the commit is taken, and not for a run that slept since it
            # read the log file: another feed took the commit meanwhile, or the view was detached.
            self.commit.fence.confirm()
            for commit in job.commits:
                self._require_there(commit)
            raise CorruptLog(
                f"view {self.view.name}: a data file of its source {self.source.name} is gone although a log file "
                f"names it: {error}. Restore it, or detach the view: "
                f"`icedb views {self.source.name} --detach {self.view.name}`"
            ) from error
        require_commits_accounted(job, output)
        return output

    def _require_there(self, commit: SourceCommit) -> None:
        """Raise Unavailable if the log file of a commit is gone: its data files may be, then (J2)."""
        key = self.source.paths.named_log_key(commit.name)
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
                "log_file": name,
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
