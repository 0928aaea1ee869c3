"""Send OpenTelemetry traces: one span for each request, below the client's span in `_meta`, and one for each slow step.

A span shows only the method, the name of one of our tools or prompts, and an error's code. Source: OpenTelemetry
semantic conventions for MCP and for RPC; MCP 2026-07-28 basic, "OpenTelemetry trace context"; W3C Trace Context.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from toolgate.server.base.log_format import LOG_CONTEXT, LogContext
from toolgate.server.base.version import VERSION
from toolgate.server.config.transports import HTTP_TRANSPORTS
from toolgate.server.protocol.errors import InternalError, RpcError
from toolgate.server.protocol.messages import replace_surrogates
from toolgate.server.protocol.session import Call, short_hash
from toolgate.tools.api.context.spans import SPAN_FACTORY, DescribeServer
from toolgate.tools.api.registry import Registry

FLUSH = 1.0  # seconds for the remaining spans, at the end
MAX_CONTEXT = 512  # characters of a header of W3C Trace Context, section 3.3.1.5
MAX_ID = 64  # characters of a request's id
TOOL_ERROR, CANCELLED = "tool_error", "cancelled"
FAULT = str(InternalError.code)
TRANSPORT_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "stdio": {"network.transport": "pipe"},
    **{row.name: {"network.transport": "tcp", "network.protocol.name": "http"} for row in HTTP_TRANSPORTS},
}

EXPORT_STATES = {True: "reach the collector again", False: "can't be sent to the collector and are dropped"}

Function = Callable[[Call], Any | Awaitable[Any]]

log = logging.getLogger("toolgate.traces")


class Traces:
    """`registry()` returns the parts of the server; other names never reach a span."""

    def __init__(self, provider: TracerProvider, registry: Callable[[], Registry]) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("toolgate", VERSION)
        self._context = TraceContextTextMapPropagator()
        self._registry = registry

    def trace_method(self, function: Function) -> Function:
        """Return a method with a span around each call."""

        async def run_traced(call: Call) -> Any:
            with self._span(call) as span:
                try:
                    answer = function(call)
                    if inspect.isawaitable(answer):
                        answer = await answer
                except BaseException as error:
                    _fail(span, _code(error))
                    raise
                if call.session.revision is not None:
                    span.set_attribute("mcp.protocol.version", call.session.revision.name)
                if call.output is not None and call.output.is_error:
                    _fail(span, TOOL_ERROR)
                return answer

        return run_traced

    async def close(self) -> None:
        """Send the remaining spans, for a second at most."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, FLUSH)

    @contextmanager
    def _span(self, call: Call) -> Generator[Span]:
        attributes = self._attributes(call)
        target = attributes.get("gen_ai.tool.name") or attributes.get("gen_ai.prompt.name")
        with self._tracer.start_as_current_span(
            f"{call.method} {target}" if target else call.method,
            self._context.extract(_client_context(call.meta)),
            SpanKind.SERVER,
            attributes,
            record_exception=False,  # the log has it; others read these
            set_status_on_exception=False,
        ) as span:
            # both hold for the whole task of the request, which logs its failure after this
            SPAN_FACTORY.set(self._trace_step)
            trace = f"{span.get_span_context().trace_id:032x}"
            LOG_CONTEXT.set(replace(LOG_CONTEXT.get() or LogContext(), trace=trace))
            yield span

    @contextmanager
    def _trace_step(self, name: str, server: DescribeServer | None = None) -> Generator[Span]:
        with self._tracer.start_as_current_span(
            name,
            kind=SpanKind.INTERNAL if server is None else SpanKind.CLIENT,
            attributes=None if server is None else {"rpc.method": name, **server()},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                _fail(span, CANCELLED if isinstance(error, asyncio.CancelledError) else type(error).__name__)
                raise

    def _attributes(self, call: Call) -> dict[str, str]:
        """Return the attributes that are known at the beginning."""
        attributes = {"mcp.method.name": call.method, "jsonrpc.request.id": replace_surrogates(str(call.id)[:MAX_ID])}
        attributes |= TRANSPORT_ATTRIBUTES.get(call.session.transport, {})
        if call.session.key:
            attributes["mcp.session.id"] = short_hash(call.session.key)  # the id itself is a secret
        about = LOG_CONTEXT.get()
        if about is not None and about.request:
            attributes["toolgate.request.id"] = about.request
        name, registry = call.params.get("name"), self._registry()
        if call.method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
            if isinstance(name, str) and name in registry.tools:
                attributes["gen_ai.tool.name"] = name
        elif call.method == "prompts/get" and isinstance(name, str) and name in registry.prompts:
            attributes["gen_ai.prompt.name"] = name
        return attributes


def create_provider(name: str) -> TracerProvider:
    """Return what sends the spans of the server `name` where the `OTEL_*` variables say."""
    resource = Resource.create({"service.version": VERSION})  # with OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": name}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(LazyExporter()))  # type: ignore[arg-type]  # all that it uses of one
    return provider


class LazyExporter:
    """Exports over OTLP. The library's own exporter is made in the sending thread at the first export: its imports take
    longer than a client waits for an answer."""

    def __init__(self) -> None:
        self._exporter: SpanExporter | None = None
        self._works = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._open_exporter().export(spans)
        except Exception:  # a malformed endpoint, and whatever the libraries raise
            log.debug("sending traces", exc_info=True)
            result = SpanExportResult.FAILURE
        self._log_change(result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        if self._exporter is not None:
            self._exporter.shutdown()

    def _open_exporter(self) -> SpanExporter:
        if self._exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # start-up

            self._exporter = OTLPSpanExporter()
        return self._exporter

    def _log_change(self, works: bool) -> None:
        """Log it once, whenever it changes."""
        if works != self._works:
            log.log(logging.INFO if works else logging.WARNING, "traces %s", EXPORT_STATES[works])
            self._works = works


def _client_context(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the client's trace context from `_meta`, without malformed values."""
    given = {name: meta.get(name) for name in ("traceparent", "tracestate")}
    return {name: text for name, text in given.items() if isinstance(text, str) and len(text) <= MAX_CONTEXT}


def _code(error: BaseException) -> str:
    match error:
        case asyncio.CancelledError():
            return CANCELLED
        case RpcError():
            return str(error.code)
        case _:
            return FAULT


def _fail(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    if kind.startswith("-"):
        span.set_attribute("rpc.response.status_code", kind)
    span.set_status(Status(StatusCode.ERROR))
