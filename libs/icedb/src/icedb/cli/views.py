"""``icedb views``: the views of a table, whether they are fed, and how that is stopped and started."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from icedb_log.errors import InvalidRequest
from icedb_log.feed.views import ViewLag, detach_view, list_view_lags, read_last_refusal, register_view, source_of
from rich.markup import escape

from icedb.cli.output import format_span, print_error, print_line, print_note, print_table
from icedb.cli.runner import Run, argument, command, option
from icedb.cli.status_figures import format_backfill


@command(records="views")
def views(
    run: Run,
    *,
    source: str = argument("Name of the table that feeds them.", metavar="TABLE"),
    attach: str | None = option("--attach", "Feed this detached view again, with commits from now on.", metavar="VIEW"),
    detach: str | None = option(
        "--detach", "Stop feeding this view, so that the table keeps nothing for it any more.", metavar="VIEW"
    ),
) -> None:
    """List the views of a table: whether they are fed, and what they have still to take; stop and start feeding one.

    A detached view keeps its rows. What is committed to the table while it is detached stays out of it, and so does
    what it has not taken by then of the rows that it began with.
    """
    if attach and detach:
        raise InvalidRequest("give --attach or --detach, not both")
    if attach:
        config = run.client.table_config(attach)
        fed_by = source_of(run.place(attach), config)
        if fed_by.name != source:
            raise InvalidRequest(f"view {attach} is fed by table {fed_by.name}, not by {source}")
        run.client.table_config(source)
        register_view(fed_by, attach, clock=run.clock, is_new=True, backfill=config.has_backfill)
        print_note(f"view {attach} is fed by {source}, with what is committed from now on")
    elif detach:
        is_changed = detach_view(run.place(source), detach, clock=run.clock)
        lost = f"is not fed by {source} any more; what is committed now is lost to it"
        print_note(f"view {detach} {lost if is_changed else 'is detached already'}")
    lags = list_view_lags(run.open(source), on_halt=lambda name, error: print_error(f"view {name} is halted: {error}"))
    why = {lag.view: read_last_refusal(run.place(lag.view)) if lag.refused_commits else None for lag in lags}
    found = [{**asdict(lag), "last_refusal": why[lag.view]} for lag in lags]
    run.answer({"table": source, "views": found}, lambda: _show(source, lags, why))


def _show(source: str, lags: Sequence[ViewLag], why: Mapping[str, str | None]) -> None:
    if not lags:
        print_note(f"table {source} has no views; create one with `icedb table create NAME --from {source} --query …`")
        return
    print_table(
        ("view", "state", ">waiting", ">lag", ">refused"),
        (
            (
                lag.view,
                f"{lag.state}, {format_backfill(lag)}" if lag.backfill_files else lag.state,
                lag.waiting_commits,
                format_span(lag.lag_ms) if lag.waiting_commits else None,
                lag.refused_commits,
            )
            for lag in lags
        ),
    )
    for view, reason in why.items():
        if reason:
            print_line(escape(f"{view} has not taken the rows of refused commits; why, the last time: {reason}"))
