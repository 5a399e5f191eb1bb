"""Flower apps that do not use tarry: what they are sent, what is read of their replies, how the server finds them."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tarry.core.errors import BadInput
from tarry.core.layout import Layout
from tarry.core.tickets import Ticket
from tarry.deploy.app_code import app_folder, client_kind, evaluator, file_of_model
from tarry.deploy.app_defaults import complete_config
from tarry.deploy.client_processes import guard_client_apps
from tarry.deploy.config import read_config
from tarry.deploy.failures import failure_text
from tarry.deploy.flower_app import FlowerAppProtocol, LegacyAppProtocol, StateDict, check_flower_app
from tarry.deploy.server.open_tickets import OpenTicket
from tarry.deploy.server.slots import read_slots
from tarry.deploy.server_app import _lr_of
from tarry.deploy.wire import Rejected, ReplyMessage
from tarry.record.result import Result
from tarry.record.rows import read_rows
from tarry.record.update_archive import UpdateArchive
from tests.helpers.app_grid import AppGrid
from tests.helpers.fake_grid import npy, small_plan
from tests.helpers.served import served

EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"
TICKET = OpenTicket(0, 0, 0, "t", 0.0)


@pytest.mark.parametrize("method", ["fedasync", "fedbuff", "ca2fl", "fadas", "mifa", "orthofl", "fedecho", "fedavg"])
def test_methods_whose_clients_just_train_suit_any_flower_app(method):
    made = small_plan(method=method).method
    check_flower_app(made, method)


@pytest.mark.parametrize("method", ["scaffold", "fedprox", "moon", "fedogd", "asynccurve", "orthofl:placement=client"])
def test_methods_that_need_more_of_clients_are_refused(method):
    with pytest.raises(BadInput, match="a plain Flower app does not do this"):
        check_flower_app(small_plan(method=method).method, method)


class Normed(nn.Module):
    """BatchNorm, a frozen tensor, tied weights, and a buffer that the state dict leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.tied = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.bias.requires_grad_(False)
        self.tied.weight = self.a.weight
        self.register_buffer("scale", torch.full((3,), 2.0), persistent=False)


def _sent(kind):
    module = Normed()
    layout = Layout.of(module)
    vec = layout.read(module, torch.float32)
    protocol = kind(StateDict(layout, module), dtype=torch.float32, lr=lambda _: 0.1)
    ticket = Ticket(0, 0, 0, 0, 0.0, vec + 1, vec + 1)
    return module, layout, protocol, ticket, protocol.encode_ticket(ticket, TICKET, node=1, memory_visit=-1, ttl=9.0)


def test_an_app_gets_the_whole_state_dict_with_tied_weights_and_counters_as_built():
    module, _, _, _, request = _sent(FlowerAppProtocol)
    assert list(request.arrays) == list(module.state_dict())
    module.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in request.arrays.items()})
    assert np.array_equal(request.arrays["tied.weight"], request.arrays["a.weight"]), "the present weights, twice"
    assert request.arrays["norm.num_batches_tracked"] == 0
    assert np.array_equal(request.arrays["norm.running_var"], np.full(6, 2.0)), "1 as built, and 1 was added"
    assert dict(request.fields) == {"server-round": 1, "lr": 0.1}


def test_an_app_is_told_the_learning_rate_of_its_visit():
    work = small_plan(lr=0.5, lr_schedule="exponential:factor=0.5,by=visits").work
    module = Normed()
    layout = Layout.of(module)
    vec = layout.read(module, torch.float32)
    protocol = FlowerAppProtocol(StateDict(layout, module), dtype=torch.float32, lr=_lr_of(work))
    for visit, lr in ((0, 0.5), (3, 0.0625)):
        ticket = Ticket(9, 0, visit, 7, 1.0, vec, vec)
        request = protocol.encode_ticket(ticket, TICKET, node=1, memory_visit=-1, ttl=9.0)
        assert dict(request.fields) == {"server-round": 8, "lr": lr}


def test_running_statistics_are_read_back_and_counters_are_not():
    _, layout, protocol, ticket, request = _sent(FlowerAppProtocol)
    arrays = {k: npy(np.asarray(v + 1)) for k, v in request.arrays.items()}
    answer = protocol.decode_reply(ReplyMessage("x", 1, {"num-examples": 7, "train_loss": 0.5}, arrays), ticket)
    views = layout.views(answer.result.delta)
    assert torch.allclose(views.pop("scale"), torch.zeros(3)), "the app does not know this buffer"
    assert all(torch.allclose(v, torch.ones_like(v)) for v in views.values())
    assert {"norm.running_mean", "norm.running_var"} <= views.keys()
    assert answer.result.loss == 0.5
    for fields, missing in (({}, ""), ({"num-examples": 7}, "a.weight"), ({"num-examples": 7}, "norm.running_mean")):
        with pytest.raises(Rejected):
            protocol.decode_reply(
                ReplyMessage("x", 1, fields, {k: v for k, v in arrays.items() if k != missing}), ticket
            )


def _legacy_reply(request, **changed):
    """A reply as Flower makes it of FitRes: arrays by position that do not say their shape and type."""
    arrays = {k: npy(np.asarray(v + 1))._replace(dtype="", shape=()) for k, v in request.arrays.items()}
    fields = {"num_examples": 7, "code": 0, "message": "Success", **changed}
    return ReplyMessage("x", 1, fields, arrays)


def test_a_legacy_app_gets_fitins_and_answers_by_position():
    _, layout, protocol, ticket, request = _sent(LegacyAppProtocol)
    assert request.records == ("fitins.config", "fitins.parameters")
    assert list(request.arrays) == [str(i) for i in range(len(request.arrays))]
    answer = protocol.decode_reply(_legacy_reply(request), ticket)
    assert answer.result.n_examples == 7
    assert torch.allclose(layout.views(answer.result.delta)["norm.running_var"], torch.ones(6))
    evaluated = protocol.encode_eval(ticket.sent, node=1, client=0, ttl=9.0)
    assert evaluated.records == ("evaluateins.config", "evaluateins.parameters")


def _wrong_shape(reply):
    return reply._replace(arrays={**reply.arrays, "0": npy(np.zeros(3, np.float32))._replace(dtype="", shape=())})


def _one_more(reply):
    return reply._replace(arrays={**reply.arrays, "99": reply.arrays["0"]})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r._replace(fields={**r.fields, "code": 3, "message": "no data"}), "status 3: no data"),
        (lambda r: r._replace(fields={**r.fields, "num_examples": "many"}), "num-examples"),
        (_wrong_shape, "array"),
        (_one_more, "tensors"),
        (lambda r: r._replace(arrays={"_empty": r.arrays["0"]}), "1 tensors"),
    ],
)
def test_a_legacy_reply_that_does_not_fit_is_rejected(change, says):
    _, _, protocol, ticket, request = _sent(LegacyAppProtocol)
    with pytest.raises(Rejected, match=says):
        protocol.decode_reply(change(_legacy_reply(request)), ticket)


@pytest.fixture(params=["pytorch_project", "legacy_client", "own_client"])
def example(request, monkeypatch):
    """The folder of an example, with its package on the path of imports as in a server of Flower."""
    folder = EXAMPLES / request.param
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    yield folder
    for name in [n for n in sys.modules if n.split(".")[0] == request.param]:
        del sys.modules[name]


def _run_config(folder):
    import tomllib

    return tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def test_the_example_apps_run_after_two_lines_of_their_pyproject_changed(example, tmp_path):
    """Their own code, through Flower's messages and client apps; the server finds out the kind of the app."""
    given = _run_config(example)
    torch.manual_seed(0)  # the apps shuffle with the generator of their process
    app = importlib.import_module(f"{example.name}.client_app").app
    assert app_folder() == example
    grid = AppGrid(app, 3, given)
    config = complete_config({**given, "out": str(tmp_path / "out")}, grid, sleep=grid.clock.sleep)
    assert config["client"] == ("legacy" if example.name == "legacy_client" else "plain")
    assert config["clients"] == 3
    setting = read_config({**config, "eval-every": 4.0})
    assert served(grid, setting) == "updates"
    result = Result.read(tmp_path / "out")
    assert result.updates == config["updates"]
    assert result.final_accuracy is not None
    assert result.final_accuracy > 0.5
    assert result.lost == 0


def test_nodes_of_several_links_are_not_counted():
    with pytest.raises(BadInput, match="set `clients`"):
        complete_config({"client": "plain", "links": "localhost:1"}, AppGrid(None, 1, {}))


def test_the_reason_of_an_apps_exception_reaches_log_and_status(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES / "own_client"), *sys.path])
    app = importlib.import_module("own_client.client_app").app

    def change(request, reply):
        if request.node != 101:
            return reply
        why = failure_text("<class 'ValueError'>:<'no \x1b[31mdata" + "x" * 500 + "'>")
        return ReplyMessage("", 0, {}, {}, "its app raised an error", why)

    grid = AppGrid(app, 2, {"local-epochs": 1})
    grid.change = change
    config = {"client": "plain", "method": "fedasync", "model": "own_client.model:Net", "clients": 2, "updates": 6}
    assert served(grid, read_config({**config, "out": str(tmp_path / "out")})) == "updates"
    said = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    (why,) = {line["why"] for line in said if line["client"] == 1}
    assert why.startswith("its app raised an error: ValueError: no \\x1b[31mdata")
    assert len(why) < 300
    status = json.loads((tmp_path / "out" / "status.json").read_text())
    assert status["clients"][1]["last_failure"] == why
    assert status["clients"][1]["failed"].keys() == {"its app raised an error"}


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("<class 'ZeroDivisionError'>:<'division by zero'>", "ZeroDivisionError: division by zero"),
        ("<class 'my.app.NoData'>:<''>", "NoData"),
        ("<class 'KeyError'>:<''fitins.parameters''>", "KeyError: 'fitins.parameters'"),
        ("ClientApp stopped responding.", "ClientApp stopped responding."),
        ("a\nb", "a"),
        ("", ""),
    ],
)
def test_the_text_of_a_failure_is_its_type_and_message(said, text):
    assert failure_text(said) == text


def test_a_model_is_named_by_module_or_file():
    assert file_of_model("my_app.task:Net") == "my_app/task.py:Net"
    assert file_of_model("my_app/task.py:Net") == "my_app/task.py:Net"
    with pytest.raises(BadInput, match="MODULE:NAME"):
        file_of_model("Net")
    with pytest.raises(BadInput, match="leave one out"):
        read_config({"client": "plain", "model": "a.b:Net", "task": "digits"})
    with pytest.raises(BadInput, match="there is no file"):
        read_config({"client": "plain", "model": "nowhere:Net", "clients": 2}).spec.task.build("task")


def test_an_app_that_cannot_be_loaded_is_taken_for_a_plain_one(monkeypatch, tmp_path):
    components = '[tool.flwr.app.components]\nserverapp = "s:app"\nclientapp = "not_there:app"\n'
    (tmp_path / "pyproject.toml").write_text(components)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert client_kind() == "plain"
    (tmp_path / "pyproject.toml").write_text(components.replace("not_there", "tarry.deploy.client_app"))
    assert client_kind() == "tarry"
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert client_kind() == "tarry", "there is no app at all"


PLAIN = {"client": "plain", "method": "fedasync", "model": "own_client.model:Net", "clients": 3}


@pytest.fixture
def own_client(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES / "own_client"), *sys.path])
    return importlib.import_module("own_client.client_app").app


def _names(folder):
    return {slot.client: slot.name for slot in read_slots(folder).taken}


def test_a_node_without_a_key_that_came_back_as_another_gets_the_slot_of_the_absent_one(own_client, tmp_path):
    grid, out = AppGrid(own_client, 3, {"local-epochs": 1}), tmp_path / "out"
    restarted: list[float] = []

    def change(request, reply):
        if request.node == 102 and grid.clock() > 1e9 + 20 and not restarted:
            restarted.append(grid.clock())
            grid.here = [100, 101, 202]
        return reply

    grid.change = change
    setting = read_config({**PLAIN, "time": 200.0, "deadline": 30.0, "release-after": 40.0, "out": str(out)})
    assert served(grid, setting) == "time"
    assert sorted(_names(out).values()) == ["node 100", "node 101", "node 202"]
    released = [r for r in read_rows(out / "journal.jsonl") if r["op"] == "release"]
    assert [r["name"] for r in released] == ["node 102"]
    assert 40 <= released[0]["t"] - (restarted[0] - 1e9) < 120, "not before the time, and at the next request after it"
    status = json.loads((out / "status.json").read_text())
    assert all(c["updates"] > 5 for c in status["clients"])


def test_a_node_with_a_name_in_its_configuration_keeps_its_slot(own_client, monkeypatch, tmp_path):
    """`identity = "name"`: tarry's fork server answers for the app, with the name and key of the node."""
    monkeypatch.setattr(type(own_client), "__call__", type(own_client).__call__)
    guard_client_apps()
    grid, out = AppGrid(own_client, 2, {"local-epochs": 1}), tmp_path / "out"
    grid.node_config = lambda node: {"name": f"site-{node % 100}", "home": str(tmp_path / f"home-{node % 100}")}

    def change(request, reply):
        if grid.clock() > 1e9 + 15:
            grid.here = [200, 101]
        return reply

    grid.change = change
    setting = read_config({**PLAIN, "clients": 2, "identity": "name", "time": 60.0, "deadline": 20.0, "out": str(out)})
    assert served(grid, setting) == "time"
    slots = read_slots(out).taken
    assert [(slot.name, slot.node) for slot in slots] == [("site-0", 200), ("site-1", 101)]
    assert all(slot.key for slot in slots)
    assert [r["op"] for r in read_rows(out / "journal.jsonl")].count("release") == 0


def test_a_replay_repeats_the_server_if_updates_were_kept(own_client, tmp_path, cli):
    for kept in (True, False):
        out = tmp_path / f"kept-{kept}"
        grid = AppGrid(own_client, 3, {"local-epochs": 1})
        config = {**PLAIN, "method": "fedbuff:buffer=2", "updates": 12, "keep-updates": kept, "out": str(out)}
        assert served(grid, read_config(config)) == "updates"
        result = Result.read(out)
        assert any("`tarry replay` will not" in w for w in result.warnings) is not kept
        code, text = cli("replay", out)
        if kept:
            assert code == 0, text
            assert "12 updates" in text
            assert "the federation's weights to the bit" in text
        else:
            assert code == 2
            assert "its clients train by their own code" in text
            assert "keep-updates = true" in text
            assert len(text.strip().splitlines()) == 1


def test_a_kept_update_that_is_another_is_named_in_the_replay(own_client, tmp_path, cli):
    out = tmp_path / "out"
    config = {**PLAIN, "updates": 6, "keep-updates": True, "out": str(out)}
    assert served(AppGrid(own_client, 3, {"local-epochs": 1}), read_config(config)) == "updates"
    kept = UpdateArchive(out)
    kept.save(2, kept.load(2)._replace(delta=kept.load(2).delta + 1))
    code, text = cli("replay", out)
    assert code == 1
    assert "the first update that is another: ticket 2" in text
    (out / "update-archive" / "00000002.safetensors").unlink()
    assert "00000002.safetensors: it is missing" in cli("replay", out)[1].replace("\n", "")


@pytest.mark.parametrize("legacy", [False, True])
def test_an_apps_own_evaluation_gives_the_metrics_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, legacy: bool
) -> None:
    found = "{'test_acc': 0.5, 'f1': 0.25, 'test_loss': 2.0}"
    answer = f"2.0, {found}" if legacy else found
    more = ", config" if legacy else ""
    (tmp_path / "own_evaluation.py").write_text(f"def evaluate(number, arrays{more}):\n    return {answer}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_evaluation", raising=False)
    module = nn.Linear(2, 1)
    layout = Layout.of(module)
    state, weights = StateDict(layout, module), layout.read(module, torch.float32)
    plain = evaluator("own_evaluation:evaluate", state, legacy=legacy)
    assert plain(weights) == {"accuracy": 0.5, "loss": 2.0}
    named = evaluator("own_evaluation:evaluate", state, legacy=legacy, names=["f1"])
    assert named(weights) == {"f1": 0.25, "accuracy": 0.5, "loss": 2.0}
    with pytest.raises(BadInput, match="--metric auroc: the app's function `evaluate` returns test_acc, f1, test_loss"):
        evaluator("own_evaluation:evaluate", state, legacy=legacy, names=["auroc"])(weights)
