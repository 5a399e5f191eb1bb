"""The endpoint for Prometheus and for probes: what it tells is the driver's state, and nobody can make it grow."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import sys
from types import SimpleNamespace

import pytest

from tarry.core.errors import BadInput
from tarry.deploy.server import log_format
from tarry.deploy.server import monitor as module
from tarry.deploy.server.log_format import JsonFormatter, TextFormatter, logging_to
from tarry.deploy.server.metrics import take_snapshot
from tarry.deploy.server.monitor import ServerMonitor, monitoring
from tests.helpers.fake_grid import Clock, FakeGrid, driver, finished, nodes, small_plan


@pytest.fixture
def served(monkeypatch):
    """A monitor at a free port, and a function that asks it."""
    ports, plain = [], module._listen

    def listen(host, port, monitor):
        server = plain(host, port, monitor)
        ports.append(server.server_address[1])
        return server

    monkeypatch.setattr(module, "_listen", listen)
    with monitoring("127.0.0.1", 0) as monitor:

        def ask(path: str, method: str = "GET") -> tuple[int, str]:
            connection = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=60)
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        yield SimpleNamespace(monitor=monitor, ask=ask, port=ports[0])


def samples(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_metrics_are_the_state_of_the_driver(served, tmp_path):
    made = small_plan(method="fedasync", updates=14)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    grid.there[101].spoil = lambda _, back: back._replace(fields={**back.fields, "token": "0" * 32})
    d = driver(made, grid, tmp_path / "out", checkpoint_every=4.0)
    while d.engine.updates < 9:
        d.tick()
        grid.clock.sleep(0.1)
    served.monitor.update(d)
    status, text = served.ask("/metrics")
    found = samples(text)
    assert status == 200
    assert found["tarry_updates_total"] == d.engine.updates
    assert found["tarry_model_version"] == d.engine.server.version
    assert found["tarry_tickets_open"] == len(d.open_tickets)
    assert found["tarry_nodes_present"] == found["tarry_clients_present"] == 4
    assert found["tarry_received_bytes_total"] == d.engine.bytes_up
    assert found["tarry_journal_bytes"] == (tmp_path / "out" / "journal.jsonl").stat().st_size
    assert found["tarry_accuracy"] == d.engine.curve[-1][2]
    assert found["tarry_checkpoint_age_seconds"] >= 0
    assert found['tarry_staleness_bucket{le="+Inf"}'] == d.engine.updates == found["tarry_staleness_count"]
    assert found["tarry_staleness_sum"] == sum(s * n for s, n in d.engine.staleness.items())
    assert found['tarry_rejected_total{reason="foreign ticket"}'] == d.engine.rejected > 0
    assert found["tarry_clients_quarantined"] == len(d.engine.quarantined(d.now()))
    assert found["tarry_alarms_total"] == 0
    assert sum(v for k, v in found.items() if k.startswith("tarry_rejected_total")) == sum(d.stats.rejected.values())
    assert found['tarry_queue_length{queue="tickets to send"}'] == 0
    assert found["process_resident_memory_bytes"] > 1e6
    finished(d, grid)


def test_thousands_of_reasons_make_few_time_series(served, tmp_path):
    made = small_plan(method="fedasync", updates=4)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, tmp_path / "out")
    for number in range(3000):
        d.stats[number % 4].failed[f"reason {number}\n{'x' * 500}"] += 1
    served.monitor.update(d)
    lost = {k: v for k, v in samples(served.ask("/metrics")[1]).items() if k.startswith("tarry_lost_total")}
    assert len(lost) <= 25
    assert sum(lost.values()) == 3000
    assert max(map(len, lost)) < 200
    finished(d, grid)


def test_probes_tell_whether_the_server_is_alive_and_accepts_updates(served, tmp_path):
    assert served.ask("/healthz") == (200, "ok\n")
    assert served.ask("/readyz") == (503, "the server has not begun\n")
    made = small_plan(method="fedasync", updates=4)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, tmp_path / "out")
    served.monitor.update(d)
    assert served.ask("/readyz") == (200, "ok\n")
    grid.down, left = True, [3]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    def look(d):
        served.monitor.update(d)
        grid.down = grid.down and left[0] > 0

    states = []
    d.run(stop, on_progress=lambda d: (look(d), states.append(served.ask("/readyz"))), sleep=grid.clock.sleep)
    assert (503, "the link does not answer (connection rejected)\n") in states
    assert states[-1] == (200, "ok\n")
    d.close()
    served.monitor.pause("journal.jsonl: it cannot be written")
    assert served.ask("/healthz") == (200, "ok\n")
    assert served.ask("/readyz") == (503, "journal.jsonl: it cannot be written\n")
    assert samples(served.ask("/metrics")[1])["tarry_paused"] == 1


def test_a_link_that_does_not_answer_in_the_background_is_no_ready_server(served, tmp_path):
    made, stalled = small_plan(method="fedasync", updates=4), {"1": 0.0}

    class Grid(FakeGrid):
        def stalls(self) -> dict[str, float]:
            return dict(stalled)

    grid = Grid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, tmp_path / "out")
    answers = []
    for seconds in (0.0, 8.0, 0.0):
        stalled["1"] += seconds
        d.tick()
        served.monitor.update(d)
        answers.append(served.ask("/readyz"))
    d.close()
    assert answers == [(200, "ok\n"), (503, "the link does not answer (run 1)\n"), (200, "ok\n")]


def test_a_thread_without_a_sign_of_life_is_reported():
    clock = Clock()
    monitor = ServerMonitor(is_served=True, clock=clock)
    assert monitor.why_not_alive() == ""
    clock.sleep(3600)
    assert "no sign of life since 3600 s" in monitor.why_not_alive()


def test_nothing_else_is_answered(served):
    assert served.ask("/etc/passwd")[0] == 404
    assert served.ask("/metrics", "POST")[0] == 501
    assert served.ask("/metrics/../healthz")[0] == 404


def test_connections_that_say_nothing_take_a_bounded_number_of_threads(served):
    silent = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(40)]
    refused = 0
    for connection in silent:
        connection.settimeout(0.3)
        try:
            refused += connection.recv(1) == b""
        except TimeoutError:
            continue
    assert refused >= 40 - module._MAX_REQUESTS
    for connection in silent:
        connection.close()


def test_a_port_that_is_taken_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"metrics-port = {port}, metrics-host = 127.0.0.1: it cannot be used"):
            monitoring("127.0.0.1", port).__enter__()


def test_a_missing_library_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(BadInput, match=r"pip install 'tarry\[prometheus\]'"):
        monitoring("127.0.0.1", 0).__enter__()


def test_without_a_port_nothing_listens_and_nothing_is_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with monitoring("127.0.0.1", None) as monitor:
        monitor.update(None)
    assert monitor.read() == (None, "")


def test_a_snapshot_has_no_token_and_no_weights(tmp_path):
    made = small_plan(method="fedasync", updates=6)
    grid = FakeGrid(Clock(), nodes(made, tmp_path / "homes"))
    d = driver(made, grid, tmp_path / "out")
    finished(d, grid)
    shown = repr(take_snapshot(d))
    assert "tensor" not in shown
    assert not [r for r in grid.log if r.kind == "train" and str(r.fields["token"]) in shown]


def record(message: str, **about) -> logging.LogRecord:
    made = logging.LogRecord("tarry", logging.WARNING, "", 0, message, (), None)
    if about:
        made.about = about
    return made


def test_json_lines_have_time_level_message_and_what_they_are_about():
    line = JsonFormatter().format(record("an answer was rejected: why \x1b[31mred", why="\x1b[31mred", client=3))
    assert "\x1b" not in line
    found = json.loads(line)
    assert found.pop("time").endswith("+00:00")
    assert found == {"level": "warning", "message": "an answer was rejected: why \x1b[31mred", "why": "\x1b[31mred",
                     "client": 3}  # fmt: skip


def test_lines_of_text_show_control_characters_as_escapes():
    assert TextFormatter("%(message)s").format(record("a\x1b[31mb")) == "a\\x1b[31mb"


@pytest.mark.parametrize("kind", ["text", "json"])
def test_records_are_written_to_standard_error_and_to_a_file(kind, capsys, tmp_path):
    logger = logging.getLogger("tarry")
    before = list(logger.handlers)
    with logging_to(tmp_path, kind):
        logger.info("hello")
        logger.debug("not this")
    assert logger.handlers == before
    for lines in (capsys.readouterr().err.splitlines(), (tmp_path / "server.log").read_text().splitlines()):
        assert len(lines) == 1
        assert json.loads(lines[0])["message"] == "hello" if kind == "json" else lines[0].endswith(" tarry hello")


def test_the_log_file_has_a_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr(log_format, "_LIMIT", 2000)
    with logging_to(tmp_path, "text"):
        for number in range(200):
            logging.getLogger("tarry").info("line %d", number)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"server.log", "server.log.1"}
    assert max(sizes.values()) <= 2000
    assert (tmp_path / "server.log").read_text().endswith("line 199\n")
