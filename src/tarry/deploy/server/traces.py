"""Spans of the server's work for OpenTelemetry: accept, dispatch, checkpoint, evaluate.

They are sent to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, over OTLP and HTTP. Without this variable nothing
is loaded and a span costs a dictionary lookup.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ...core.errors import BadInput

__all__ = ["span", "tracing"]

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def span(name: str, **attributes: int | str) -> AbstractContextManager[Any]:
    """Return a context whose duration is a span, if this process has loaded OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return nullcontext()
    context: AbstractContextManager[Any] = trace.get_tracer("tarry").start_as_current_span(name, attributes=attributes)
    return context


@contextmanager
def tracing() -> Iterator[None]:
    """Send spans to a collector if the environment names one; raise BadInput if the libraries are missing."""
    if not os.environ.get(_ENDPOINT):
        yield
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as e:
        raise BadInput(f"{_ENDPOINT}: it needs OpenTelemetry; pip install 'tarry[traces]'") from e
    provider = TracerProvider(resource=Resource.create({"service.name": "tarry"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
