"""Makes the spans of traces. Imported only where traces are on (:mod:`icedb_service.tracing`).

Spans of a batch are made when the work has ended, of the phases that :mod:`icedb_log.phases` has recorded: what works
knows of no span, and one flush has a part in the traces of many batches.

The queue only wakes workers, so no message carries a batch's context. It is known from the batch itself: **the ids of
its trace and of its first span follow from the batch's id** (:func:`derive`). So whoever finds a batch, the sweep of
another host a day later, goes on with its trace, and all of them take the same sample. Where the sender gave a
``traceparent`` of his own, its acceptance is a part of that trace, and linked with the batch's.

| trace of | spans |
| --- | --- |
| a batch | accept (its front end) · wait · flush, with what it did when · GetSnapshot that waits for it |
| a run of a task | the run, with what it did when; linked with the batches that it committed, and who woke it |

A flush of thousands of batches makes spans for ``MAX_TRACED_BATCHES`` of those that are sampled. Must never fail the
work, nor keep it waiting: spans are exported by a thread, and dropped where the collector does not take them.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import structlog
from icedb_log.batch_ids import parse_batch_id_ms
from icedb_log.clock import Clock
from icedb_log.phases import Phase, Recorder, recording
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

MAX_LINKS: Final = 128
"""Batches of one flush that its run is linked with: as many links as a span has by default."""
MAX_TRACED_BATCHES: Final = 16
"""Batches of one flush that get spans of their own: a dozen each."""
_NS_PER_MS: Final = 1_000_000
_HEADER: Final = "traceparent"
_W3C: Final = TraceContextTextMapPropagator()


def parse_traceparent(text: object) -> SpanContext | None:
    """Return what a header names; ``None`` for what is none: it is ignored, as the standard wants."""
    context = _W3C.extract({_HEADER: text} if isinstance(text, str) else {})
    found = get_current_span(context).get_span_context()
    return found if found.is_valid else None


def format_traceparent(context: SpanContext) -> str:
    """Return the header that names a span."""
    headers: dict[str, str] = {}
    _W3C.inject(headers, _below(context))
    return headers[_HEADER]


def derive(batch_id: str, *, is_sampled: bool = True) -> SpanContext:
    """Return the first span of a batch's own trace. Pure: every process knows it.

    WARN: not the id as it is. Samplers compare the lower 64 bits of a trace's id, all of them random, with a bound; a
    UUID's begin with the bits 10, so that each batch would lie above the bound of every ratio up to a half. They go to
    the end.
    """
    high, low = divmod(int(batch_id.replace("-", ""), 16), 1 << 64)
    turned = (low << 2 | low >> 62) & (1 << 64) - 1
    span_id = int.from_bytes(sha256(batch_id.encode()).digest()[:8]) or 1
    return SpanContext(high << 64 | turned, span_id, is_remote=True, trace_flags=TraceFlags(is_sampled))


@dataclass(frozen=True, slots=True)
class _Flush:
    """One flush of a run."""

    started_ms: int
    ended_ms: int
    phases: Sequence[Phase]
    batch_ids: Sequence[str]
    attributes: Mapping[str, Any]


@dataclass(slots=True)
class RunTrace:
    """The trace of one run of a task, while it runs.

    Attributes:
        span: Of the run.
        recorder: What it did.
        flushes: Those that have ended.
        is_worth_a_trace: Whether it found something to do.
    """

    span: Span
    recorder: Recorder
    flushes: list[_Flush] = field(default_factory=list)
    is_worth_a_trace: bool = False

    @property
    def traceparent(self) -> str:
        """The header that names the run."""
        return format_traceparent(self.span.get_span_context())

    @property
    def max_batches(self) -> int:
        """How many batches of a flush it is worth to name."""
        return MAX_LINKS

    def begin_flush(self) -> tuple[int, int]:
        """Return when a flush begins, for :meth:`note_flush`."""
        return self.recorder.clock.now_ms(), self.recorder.begun_count

    def note_flush(self, begun: tuple[int, int], batch_ids: Sequence[str], attributes: Mapping[str, Any]) -> None:
        """Remember a flush that has ended: its batches get what it did into their traces.

        Args:
            begun: What :meth:`begin_flush` has returned.
            batch_ids: Batches that it made live.
            attributes: Figures.
        """
        started_ms, first = begun
        phases = [each for each in self.recorder.phases if each.number >= first]
        ended_ms = self.recorder.clock.now_ms()
        self.flushes.append(_Flush(started_ms, ended_ms, phases, batch_ids, attributes))

    def tell(self, outcome: str, **attributes: Any) -> None:
        """Say how it ended; a run that found nothing to do is worth no trace."""
        self.is_worth_a_trace = outcome not in ("idle", "busy")
        self.span.set_attributes(
            {"icedb.outcome": outcome} | {f"icedb.{name}": each for name, each in attributes.items()}
        )
        if outcome != "done":
            self.span.set_status(Status(StatusCode.ERROR, outcome))


_run: Final[ContextVar[RunTrace | None]] = ContextVar("icedb_run_trace", default=None)


class Tracing:
    """Makes spans. Thread-safe.

    Args:
        component: Name of the service, as in its logs.
        exporters: Where spans go, by the standard's names.
        exporter: One more, which has each span at once.
    """

    def __init__(self, component: str, exporters: Sequence[str] = (), *, exporter: SpanExporter | None = None) -> None:
        named_by = (
            os.environ.get("OTEL_SERVICE_NAME"),
            "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""),
        )
        resource = Resource.create({} if any(named_by) else {"service.name": f"icedb-{component}"})
        self._ids = _Ids()
        self._provider = TracerProvider(resource=resource, id_generator=self._ids)
        at_once = [ConsoleSpanExporter() for each in exporters if each == "console"]
        for each in at_once if exporter is None else [exporter]:
            self._provider.add_span_processor(SimpleSpanProcessor(each))
        if "otlp" in exporters:
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("icedb")

    def current_run(self) -> RunTrace | None:
        """Return the trace of the run in this thread; ``None``: there is none."""
        return _run.get()

    @contextmanager
    def run(self, task: str, *, clock: Clock, woken_by: object = None) -> Iterator[RunTrace]:
        """Trace one run of a task; its lines of the log say which trace it is.

        Args:
            task: Name of the task.
            clock: Of this host.
            woken_by: The ``traceparent`` of whoever asked for it.

        Yields:
            What takes how it ended.
        """
        asked = parse_traceparent(woken_by)
        links = [] if asked is None else [Link(asked, {"icedb.link": "woken by"})]
        span = self._tracer.start_span(task, Context(), links=links, start_time=clock.now_ms() * _NS_PER_MS)
        ref = span.get_span_context()
        with (
            recording(clock) as recorder,
            structlog.contextvars.bound_contextvars(trace_id=format_trace_id(ref.trace_id)),
        ):
            run = RunTrace(span, recorder)
            token = _run.set(run)
            try:
                yield run
            finally:
                _run.reset(token)
        if not run.is_worth_a_trace:
            return  # a span that never ends is never exported
        batch_ids = [each for flush in run.flushes for each in flush.batch_ids]
        for batch_id in batch_ids[: MAX_LINKS - len(links)]:
            span.add_link(self._context_of(batch_id), {"icedb.batch": batch_id})
        span.end(clock.now_ms() * _NS_PER_MS)
        self._emit_phases(recorder.phases, ref)
        for flush in run.flushes:
            self._emit_batches(flush, run=ref)

    def accepted(
        self,
        batch_id: str,
        recorder: Recorder,
        *,
        started_ms: int,
        traceparent: str | None,
        attributes: Mapping[str, Any],
    ) -> str:
        """Make the spans of a batch that was accepted just now, before anybody is woken for it.

        Args:
            batch_id: Its id.
            recorder: What was done for it.
            started_ms: When that began.
            traceparent: What the sender gave.
            attributes: Figures, and where it came.

        Returns:
            The id of the trace, for the log.
        """
        ended_ms, sender = recorder.clock.now_ms(), parse_traceparent(traceparent)
        with self._ids.giving(derive(batch_id) if sender is None else None):
            ref = self._emit(
                "icedb.accept",
                (started_ms, ended_ms),
                parent=sender,
                links=[] if sender is None else [Link(self._context_of(batch_id), {"icedb.batch": batch_id})],
                attributes={"icedb.batch": batch_id, **attributes},
                kind=SpanKind.SERVER,
            )
        self._emit_phases(recorder.phases, ref)
        return format_trace_id(ref.trace_id)

    def served(
        self, method: str, span: tuple[int, int], *, traceparent: object, batch_id: str, attributes: Mapping[str, Any]
    ) -> None:
        """Make the span of a call that was answered: a part of the caller's trace, or of the batch's it waited for."""
        caller, links = parse_traceparent(traceparent), []
        if batch_id:
            batch = self._context_of(batch_id)
            links = [Link(batch, {"icedb.batch": batch_id})] if caller is not None else []
            caller = caller or batch
        code = str(attributes.get("rpc.grpc.status_code", "OK"))
        error = "" if code == "OK" else code
        self._emit(method, span, parent=caller, links=links, attributes=attributes, kind=SpanKind.SERVER, error=error)

    def flush(self) -> None:
        """Export what is there; waits for the collector, for a few seconds at most."""
        self._provider.force_flush(5000)

    def _context_of(self, batch_id: str) -> SpanContext:
        """Return the first span of a batch's own trace, sampled or not."""
        return derive(batch_id, is_sampled=self.samples(batch_id))

    def _emit_batches(self, flush: _Flush, *, run: SpanContext) -> None:
        sampled = [each for each in flush.batch_ids if self.samples(each)]
        for batch_id in sampled[:MAX_TRACED_BATCHES]:
            context, attributes = derive(batch_id), {"icedb.batch": batch_id}
            waited = parse_batch_id_ms(batch_id), flush.started_ms
            self._emit("icedb.wait", waited, parent=context, attributes=attributes)
            ref = self._emit(
                "icedb.flush",
                (flush.started_ms, flush.ended_ms),
                parent=context,
                links=[Link(run, {"icedb.link": "run"})],
                attributes={**attributes, **flush.attributes},
            )
            self._emit_phases(flush.phases, ref)

    def _emit_phases(self, phases: Sequence[Phase], parent: SpanContext) -> None:
        refs: dict[int, SpanContext] = {}
        for each in sorted(phases, key=lambda phase: phase.number) if parent.trace_flags.sampled else ():
            refs[each.number] = self._emit(
                f"icedb.{each.name}",
                (each.started_ms, each.ended_ms),
                parent=refs.get(each.parent, parent),
                attributes={f"icedb.{name}": value for name, value in each.attributes.items()},
                error=each.error,
            )

    def _emit(
        self,
        name: str,
        span: tuple[int, int],
        *,
        parent: SpanContext | None,
        attributes: Mapping[str, Any],
        links: Sequence[Link] = (),
        kind: SpanKind = SpanKind.INTERNAL,
        error: str = "",
    ) -> SpanContext:
        """Make one span that has ended.

        Args:
            name: Of it.
            span: When it began and ended, unix ms; clocks of two hosts may be apart: it never ends before it began.
            parent: What it is a part of.
            attributes: Figures.
            links: What else it has to do with.
            kind: ``SERVER`` for what somebody asked for.
            error: Kind of the error that ended it.
        """
        made = self._tracer.start_span(
            name,
            Context() if parent is None else _below(parent),
            kind=kind,
            links=links,
            attributes={key: value for key, value in attributes.items() if value is not None},
            start_time=span[0] * _NS_PER_MS,
        )
        if error:
            made.set_status(Status(StatusCode.ERROR, error))
        made.end(max(span) * _NS_PER_MS)
        return made.get_span_context()

    def samples(self, batch_id: str) -> bool:
        """Whether a batch's own trace is sampled: the same in every process, for it goes by the trace's id."""
        trace_id = derive(batch_id).trace_id
        decision = self._provider.sampler.should_sample(None, trace_id, "icedb.accept").decision
        return decision is Decision.RECORD_AND_SAMPLE


class _Ids(RandomIdGenerator):
    """Makes ids of spans: random ones, or within a block those that the first span of a batch has to have."""

    def __init__(self) -> None:
        self._given: ContextVar[SpanContext | None] = ContextVar("icedb_given_ids", default=None)

    @contextmanager
    def giving(self, context: SpanContext | None) -> Iterator[None]:
        token = self._given.set(context)
        try:
            yield
        finally:
            self._given.reset(token)

    def generate_trace_id(self) -> int:
        given = self._given.get()
        return super().generate_trace_id() if given is None else given.trace_id

    def generate_span_id(self) -> int:
        given = self._given.get()
        return super().generate_span_id() if given is None else given.span_id


def _below(parent: SpanContext) -> Context:
    return set_span_in_context(NonRecordingSpan(parent), Context())
