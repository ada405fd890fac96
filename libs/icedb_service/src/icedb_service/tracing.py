"""Traces (OpenTelemetry): where a batch spent its time, from its acceptance to the commit that made its rows live.

Off unless the standard ``OTEL_…`` variables ask for traces; nothing of OpenTelemetry is imported then. On, spans are
made when the work has ended, of the phases that :mod:`icedb_log.phases` has recorded: what works knows of no span.

The queue only wakes workers, so no message carries a batch's context. It is known from the batch itself: **the ids of
its trace and of its first span follow from the batch's id** (:func:`derive`). So whoever finds a batch, the sweep of
another host a day later, goes on with its trace, and all of them take the same sample. Only where the sender gave a
``traceparent`` of his own, the batch belongs to that trace: the front end keeps it in Redis, for a day, on the way of
the wake-ups. If it is lost, the trace is cut in two there, and nothing else happens.

| trace of | spans |
| --- | --- |
| a batch | accept (its front end) · wait · flush, with what that did when · GetSnapshot that waits for it |
| a run of a task | the run, with what it did when; linked with the batches that it committed, and who woke it |

A flush of thousands of batches makes spans for ``MAX_TRACED_BATCHES`` of those that are sampled. Must never fail the
work, nor keep it waiting: spans are exported by a thread, and dropped where the collector does not take them.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import structlog
from icedb_log.clock import Clock, parse_uuid7_ms
from icedb_log.errors import InvalidRequest
from icedb_log.phases import Phase, Recorder, recording

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

MAX_TRACED_BATCHES: Final = 16
"""Batches of one flush that get spans of their own: a dozen each."""
MAX_LINKS: Final = 128
"""Batches of one flush that its run is linked with: as many links as a span has by default."""
MAX_PENDING: Final = 10_000
"""Contexts that wait for Redis; the oldest go first."""
_NS_PER_MS: Final = 1_000_000
_EXPORTERS: Final = ("otlp", "console")
HEADER: Final = "traceparent"
ENABLING: Final = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Any of these variables asks for traces."""


def is_wanted(variables: Mapping[str, str] = os.environ) -> bool:
    """Return whether the standard variables ask for traces."""
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true" or variables.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(variables.get(name) for name in ENABLING)


@dataclass(frozen=True, slots=True)
class SpanRef:
    """A span of this or another process, as W3C's ``traceparent`` names it."""

    trace_id: int
    span_id: int
    is_sampled: bool = True

    @property
    def traceparent(self) -> str:
        """Its header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


def parse_traceparent(text: object) -> SpanRef | None:
    """Return what a header names; ``None`` for what is none: it is ignored, as the standard wants."""
    parts = text.split("-") if isinstance(text, str) else []
    least = 4
    if len(parts) < least or [len(part) for part in parts[:least]] != [2, 32, 16, 2]:
        return None
    version, trace, span, flags = parts[:least]
    try:
        found = SpanRef(int(trace, 16), int(span, 16), bool(int(flags, 16) & 1))
        is_known = int(version, 16) != 0xFF and (len(parts) == least or version != "00")  # noqa: PLR2004 - of the standard
    except ValueError:
        return None
    return found if is_known and found.trace_id and found.span_id and text == str(text).lower() else None


def derive(batch_id: str) -> SpanRef:
    """Return the first span of a batch's own trace. Pure: every process knows it.

    WARN: not the id as it is. Samplers compare the lower 64 bits of a trace's id, all of them random, with a bound; a
    UUID's begin with the bits 10, so that each batch would lie above the bound of every ratio up to a half. They go to
    the end.
    """
    high, low = divmod(int(batch_id.replace("-", ""), 16), 1 << 64)
    turned = (low << 2 | low >> 62) & (1 << 64) - 1
    span_id = int.from_bytes(sha256(batch_id.encode()).digest()[:8]) or 1
    return SpanRef(high << 64 | turned, span_id)


@dataclass(slots=True)
class _Flush:
    """One flush of a run."""

    started_ms: int
    ended_ms: int
    phases: Sequence[Phase]
    batch_ids: Sequence[str]
    kept: Mapping[str, str]
    attributes: Mapping[str, Any]


@dataclass(slots=True)
class RunTrace:
    """The trace of one run of a task, while it runs.

    Attributes:
        ref: Its span.
        recorder: What it did.
    """

    ref: SpanRef
    recorder: Recorder
    flushes: list[_Flush] = field(default_factory=list)

    def note_flush(
        self, begun: tuple[int, int], batch_ids: Sequence[str], kept: Mapping[str, str], attributes: Mapping[str, Any]
    ) -> None:
        """Remember a flush that has ended: its batches get what it did into their traces.

        Args:
            begun: What :meth:`begin_flush` has returned.
            batch_ids: Batches that it made live.
            kept: What the front end kept of some of them, by id.
            attributes: Figures.
        """
        started_ms, first = begun
        phases = [each for each in self.recorder.phases if each.number >= first]
        ended_ms = self.recorder.clock.now_ms()
        self.flushes.append(_Flush(started_ms, ended_ms, phases, batch_ids, kept, attributes))

    def begin_flush(self) -> tuple[int, int]:
        """Return when a flush begins, for :meth:`note_flush`."""
        return self.recorder.clock.now_ms(), self.recorder.begun_count


_run: ContextVar[RunTrace | None] = ContextVar("icedb_run_trace", default=None)


def current_run() -> RunTrace | None:
    """Return the trace of the run in this thread; ``None``: there is none, or traces are off."""
    return _run.get()


class Tracing:
    """Makes spans. Thread-safe.

    Args:
        component: Name of the service, as in its logs.
        exporter: Where spans go; ``None``: where the environment says.
    """

    def __init__(self, component: str, *, exporter: "SpanExporter | None" = None) -> None:
        self._ids = _make_ids()
        self._provider = _make_provider(component, self._ids, exporter)
        self._tracer = self._provider.get_tracer("icedb")
        self._pending: dict[str, str] = {}
        self._lock = threading.Lock()

    @contextmanager
    def run(self, task: str, *, clock: Clock, woken_by: object = None) -> Iterator["_Ending"]:
        """Record one run of a task; its lines of the log say which trace it is. Spans are made when it has ended.

        Args:
            task: Name of the task.
            clock: Of this host.
            woken_by: The ``traceparent`` of whoever asked for it.

        Yields:
            What takes how it ended.
        """
        ref = SpanRef(self._ids.random_trace_id(), self._ids.random_span_id())
        started_ms, ending = clock.now_ms(), _Ending()
        with recording(clock) as recorder, structlog.contextvars.bound_contextvars(trace_id=f"{ref.trace_id:032x}"):
            trace = RunTrace(ref, recorder)
            token = _run.set(trace)
            try:
                yield ending
            finally:
                _run.reset(token)
        if not ending.is_worth_a_trace:
            return
        asked = parse_traceparent(woken_by)
        links = [(asked, {"icedb.link": "woken by"})] if asked is not None else []
        for flush in trace.flushes:
            links += [(self._context_of(each, flush.kept)[0], {"icedb.batch": each}) for each in flush.batch_ids]
        root = self._emit(
            task,
            (started_ms, clock.now_ms()),
            ids=ref,
            links=links[:MAX_LINKS],
            attributes=ending.attributes,
            error=ending.error,
        )
        if root.is_sampled:
            self._emit_phases(recorder.phases, root)
        for flush in trace.flushes:
            self._emit_batches(flush, run=root)

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
        own = None if sender is not None else derive(batch_id)
        ref = self._emit(
            "icedb.accept",
            (started_ms, ended_ms),
            parent=sender,
            ids=own,
            attributes={"icedb.batch": batch_id, **attributes},
            kind="server",
        )
        if ref.is_sampled:
            self._emit_phases(recorder.phases, ref)
        if sender is not None:
            with self._lock:
                self._pending[batch_id] = f"{ref.traceparent} {ended_ms}"
                while len(self._pending) > MAX_PENDING:
                    del self._pending[next(iter(self._pending))]
        return f"{ref.trace_id:032x}"

    def take_pending(self) -> dict[str, str]:
        """Return what has to be kept of accepted batches, by id, and forget it here."""
        if not self._pending:
            return {}
        with self._lock:
            pending, self._pending = self._pending, {}
        return pending

    def served(
        self, method: str, span: tuple[int, int], *, traceparent: object, batch_id: str, attributes: Mapping[str, Any]
    ) -> None:
        """Make the span of a call that was answered: a part of the caller's trace, or of the batch's it waited for."""
        caller, links = parse_traceparent(traceparent), []
        if batch_id:
            batch, _ = self._context_of(batch_id, {})
            links = [(batch, {"icedb.batch": batch_id})] if caller is not None else []
            caller = caller or batch
        error = str(attributes.get("rpc.grpc.status_code", "OK"))
        self._emit(
            method,
            span,
            parent=caller,
            links=links,
            attributes=attributes,
            kind="server",
            error="" if error == "OK" else error,
        )

    def flush(self) -> None:
        """Export what is there; waits for the collector, for a few seconds at most."""
        self._provider.force_flush(5000)

    def _context_of(self, batch_id: str, kept: Mapping[str, str]) -> tuple[SpanRef, int]:
        """Return the span that accepted a batch, and when it had."""
        told, _, ended = kept.get(batch_id, "").partition(" ")
        found = parse_traceparent(told)
        if found is not None and ended.isdigit():
            return found, int(ended)
        own = derive(batch_id)
        return SpanRef(own.trace_id, own.span_id, self._samples(own.trace_id)), parse_uuid7_ms(batch_id)

    def _emit_batches(self, flush: _Flush, *, run: SpanRef) -> None:
        made = 0
        for batch_id in flush.batch_ids:
            context, accepted_ms = self._context_of(batch_id, flush.kept)
            if not context.is_sampled:
                continue
            made += 1
            if made > MAX_TRACED_BATCHES:
                return
            attributes = {"icedb.batch": batch_id}
            self._emit("icedb.wait", (accepted_ms, flush.started_ms), parent=context, attributes=attributes)
            span = self._emit(
                "icedb.flush",
                (flush.started_ms, flush.ended_ms),
                parent=context,
                links=[(run, {"icedb.link": "run"})],
                attributes={**attributes, **flush.attributes},
            )
            self._emit_phases(flush.phases, span)

    def _emit_phases(self, phases: Sequence[Phase], parent: SpanRef) -> None:
        refs: dict[int, SpanRef] = {}
        for each in sorted(phases, key=lambda phase: phase.number):
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
        parent: SpanRef | None = None,
        ids: SpanRef | None = None,
        links: Sequence[tuple[SpanRef, Mapping[str, Any]]] = (),
        attributes: Mapping[str, Any] | None = None,
        kind: str = "internal",
        error: str = "",
    ) -> SpanRef:
        """Make one span that has ended.

        Args:
            name: Of it.
            span: When it began and ended, unix ms; clocks of two hosts may be apart: it never ends before it began.
            parent: What it is a part of.
            ids: The ids that it has to have; a span without parent.
            links: What else it has to do with.
            attributes: Figures.
            kind: ``server`` for what somebody asked for.
            error: Kind of the error that ended it.
        """
        from opentelemetry import trace  # noqa: PLC0415 - only where traces are on

        context = trace.set_span_in_context(trace.INVALID_SPAN)
        if parent is not None:
            context = trace.set_span_in_context(trace.NonRecordingSpan(_to_context(parent)))
        with self._ids.giving(ids):
            made = self._tracer.start_span(
                name,
                context=context,
                kind=trace.SpanKind.SERVER if kind == "server" else trace.SpanKind.INTERNAL,
                links=[trace.Link(_to_context(ref), dict(told)) for ref, told in links],
                attributes={key: value for key, value in (attributes or {}).items() if value is not None},
                start_time=span[0] * _NS_PER_MS,
            )
        if error:
            made.set_status(trace.Status(trace.StatusCode.ERROR, error))
        made.end(max(span) * _NS_PER_MS)
        found = made.get_span_context()
        return SpanRef(found.trace_id, found.span_id, found.trace_flags.sampled)

    def _samples(self, trace_id: int) -> bool:
        """Whether a trace without parent is sampled: the same in every process, for it goes by the trace's id."""
        from opentelemetry.sdk.trace.sampling import Decision  # noqa: PLC0415 - only where traces are on

        decision = self._provider.sampler.should_sample(None, trace_id, "icedb.accept").decision
        return decision is Decision.RECORD_AND_SAMPLE


@dataclass(slots=True)
class _Ending:
    """How a run ended."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    is_worth_a_trace: bool = False
    error: str = ""

    def tell(self, outcome: str, **attributes: Any) -> None:
        """Say it; a run that found nothing to do is worth no trace."""
        self.is_worth_a_trace = outcome not in ("idle", "busy")
        self.attributes = {"icedb.outcome": outcome} | {f"icedb.{name}": each for name, each in attributes.items()}
        self.error = "" if outcome == "done" else outcome


@dataclass(slots=True)
class _Process:
    """What this process knows: whether traces are on, and for whom."""

    component: str = ""
    pid: int = 0
    tracing: Tracing | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_process: Final = _Process()


def configure_tracing(component: str) -> None:
    """Make spans from now on, in this process and in those that it forks, if the environment wants them.

    Raises:
        InvalidRequest: It does, and OpenTelemetry is not installed, or it names an exporter that there is not.
    """
    if not is_wanted():
        return
    for each in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        if each not in _EXPORTERS:
            raise InvalidRequest(f"OTEL_TRACES_EXPORTER {each[:40]!r} is none of: {', '.join(_EXPORTERS)}, none")
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise InvalidRequest(
            "OTEL_… asks for traces, and OpenTelemetry is not installed: pip install 'icedb-service[otel]', or set "
            "OTEL_SDK_DISABLED=true"
        )
    _load_opentelemetry()  # half a second that no request should wait for
    _process.component = component


def tracing() -> Tracing | None:
    """Return what makes spans in this process; ``None``: traces are off."""
    if not _process.component:
        return None
    pid = os.getpid()
    if _process.pid != pid:
        with _process.lock:
            if _process.pid != pid:  # the first time, or the first time in a child: threads are not forked
                _process.tracing, _process.pid = Tracing(_process.component), pid
    return _process.tracing


@contextmanager
def traced_by(found: Tracing) -> Iterator[None]:
    """Make spans in this process by another one within a block: for tests."""
    before = (_process.component, _process.pid, _process.tracing)
    _process.component, _process.pid, _process.tracing = "test", os.getpid(), found
    try:
        yield
    finally:
        _process.component, _process.pid, _process.tracing = before


def traceparent_of(request: Any) -> object:
    """Return the header that a message came with; ``None``: without."""
    return header_of(request, HEADER)


def header_of(request: Any, name: str) -> object:
    """Return a header of the message of a task; ``None``: it came without."""
    headers = getattr(request, "headers", None)
    found = headers.get(name) if isinstance(headers, Mapping) else None
    return found if found is not None else getattr(request, name, None)


def flush_traces() -> None:
    """Export what is there, before a process ends."""
    if _process.component and _process.pid == os.getpid() and _process.tracing is not None:
        _process.tracing.flush()


def _load_opentelemetry() -> None:
    import opentelemetry.sdk.trace.export  # noqa: PLC0415 - only where traces are on

    if "otlp" in os.environ.get("OTEL_TRACES_EXPORTER", "otlp"):
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401, PLC0415 - as above


def _to_context(ref: SpanRef) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415 - only where traces are on

    return SpanContext(ref.trace_id, ref.span_id, is_remote=True, trace_flags=TraceFlags(int(ref.is_sampled)))


def _make_ids() -> Any:
    """Return what makes ids of spans: random ones, or those that a span has to have."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator  # noqa: PLC0415 - only where traces are on

    class Ids(RandomIdGenerator):
        def __init__(self) -> None:
            self._given = threading.local()

        @contextmanager
        def giving(self, ref: SpanRef | None) -> Iterator[None]:
            self._given.ref = ref
            try:
                yield
            finally:
                self._given.ref = None

        def generate_trace_id(self) -> int:
            ref = getattr(self._given, "ref", None)
            return super().generate_trace_id() if ref is None else int(ref.trace_id)

        def generate_span_id(self) -> int:
            ref = getattr(self._given, "ref", None)
            return super().generate_span_id() if ref is None else int(ref.span_id)

        random_trace_id: Callable[[Any], int] = RandomIdGenerator.generate_trace_id
        random_span_id: Callable[[Any], int] = RandomIdGenerator.generate_span_id

    return Ids()


def _make_provider(component: str, ids: Any, exporter: "SpanExporter | None") -> "TracerProvider":
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - only where traces are on
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export import (  # noqa: PLC0415 - as above
        BatchSpanProcessor,
        ConsoleSpanExporter,
        SimpleSpanProcessor,
    )

    is_named = os.environ.get("OTEL_SERVICE_NAME") or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(
        resource=Resource.create({} if is_named else {"service.name": f"icedb-{component}"}), id_generator=ids
    )
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        return provider
    for each in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        if each == "console":
            provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
        else:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
