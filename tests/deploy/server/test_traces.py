"""Spans reach the collector that the environment names, and nothing is loaded without one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tarry.core.errors import BadInput
from tarry.deploy.server.traces import tracing

#: a federation on a grid in memory, in a process of its own: OpenTelemetry's provider is set once in a process
RUN = """
import sys
from pathlib import Path
from tarry.deploy.server.traces import tracing
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan

folder = Path(sys.argv[1])
made = small_plan(method="fedasync", updates=6)
grid = FakeGrid(Clock(), nodes(made, folder / "homes"))
with tracing():
    d = driver(made, grid, folder / "out")
    finished(d, grid)
print(d.engine.updates, "opentelemetry.trace" in sys.modules)
"""


def run(folder, **environment) -> str:
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}, **environment}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_spans_are_sent(tmp_path):
    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            endpoint = f"http://127.0.0.1:{server.server_address[1]}"
            told = run(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_COMPRESSION="none")
        finally:
            server.shutdown()
            thread.join()
    assert told == "6 True"
    assert {path for path, _ in received} == {"/v1/traces"}
    content = b"".join(body for _, body in received)
    assert all(name in content for name in (b"accept", b"dispatch", b"checkpoint", b"evaluate", b"tarry"))
    assert content.count(b"accept") == 6


def test_nothing_is_loaded_without_a_collector(tmp_path):
    assert run(tmp_path) == "6 False"


def test_missing_libraries_are_one_line(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(BadInput, match=r"pip install 'tarry\[traces\]'"):
        tracing().__enter__()
