"""DeployConfig: the settings of a federation from a Flower app's run config, of the run and of the deployment.

    [tool.flwr.app.config]                      method = "orthofl:beta=0.4"
    method.name = "orthofl"                     task = "digits"
    method.beta = 0.4                           updates = 200

Settings of a run are those of `tarry run` (lr, epochs, batch, time, updates, eval-every ...); `delay` makes tarry's
clients sleep, to try slow clients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from ..config.components import REGISTRIES
from ..config.spec import Spec
from ..config.spec import settings as run_settings
from ..core.errors import BadInput, near
from ..core.parameter import Param
from .app_code import file_of_model

__all__ = ["DeployConfig", "Options", "read_config"]

_EVAL_EVERY, _CHECKPOINT_EVERY = 15.0, 30.0


@dataclass(frozen=True)
class Options:
    """The options that only a deployment has."""

    out: Annotated[str, "folder of the server's record; a federation in it is resumed"] = "tarry-federation"
    client: Annotated[
        Literal["tarry", "plain", "legacy"],
        "clients run tarry.deploy.client_app, or your own Flower app: with handlers of messages (plain), or a client_fn"
        " (legacy); by default what the app's clientapp is",
    ] = "tarry"
    model: Annotated[str | None, "model of your own Flower app, or its factory: MODULE:NAME; in place of a task"] = None
    evaluate: Annotated[str | None, "function of your own Flower app that evaluates on the server: MODULE:NAME"] = None
    keep_updates: Annotated[bool, "keep every update on disk, so that `tarry replay` can repeat a plain app's run"] = (
        False
    )
    identity: Annotated[
        Literal["node", "name"], "a plain app's client is known by its Flower node, or by its `name` and key"
    ] = "node"
    release_after: Annotated[
        float, "seconds after which an absent node without a key loses its slot, if another node needs one"
    ] = 60.0
    data: Annotated[
        Literal["split", "own"], "all have the task's examples and take their share, or each has its own"
    ] = "split"
    deadline: Annotated[float, "the most seconds that a visit may take"] = 3600.0
    in_flight: Annotated[int | Literal["auto"], "tickets that a client may hold; 2 where the method allows"] = "auto"
    stop_within: Annotated[float, "seconds that a stop waits for what is under way"] = 60.0
    ask_every: Annotated[float | None, "seconds between evaluations on clients; never"] = None
    known: Annotated[str | None, "TOML file of clients' names and keys; others are rejected"] = None
    metrics_port: Annotated[int | None, "port of the metrics and the health endpoint; none"] = None
    metrics_host: Annotated[str, "address at which they are served"] = "127.0.0.1"
    log_format: Annotated[Literal["text", "json"], "lines of the server's log"] = "text"
    links: Annotated[str, "further SuperLinks whose nodes take part: HOST:PORT, with commas between"] = ""
    links_root_certificates: Annotated[str | None, "certificates of the further SuperLinks; no TLS without"] = None

    @property
    def link_addresses(self) -> list[str]:
        return [at.strip() for at in self.links.split(",") if at.strip()]


@dataclass(frozen=True)
class DeployConfig:
    """A spec and options; `sleeps`: whether clients sleep by the spec's delay; `given`: the settings as given."""

    spec: Spec
    options: Options
    sleeps: bool
    given: dict[str, Any]


def read_config(config: Mapping[str, Any]) -> DeployConfig:
    """Parse a run config, flat as Flower passes it or in tables; one error names all problems."""
    hints = get_type_hints(Options, include_extras=True)
    kinds = {f.name: Param(f.name, get_args(hints[f.name])[0], f.default, "") for f in fields(Options)}
    given, chosen, strange, problems = dict[str, Any](), dict[str, Any](), list[str](), list[str]()
    for key, value in _nest(config).items():
        name = key.replace("-", "_")
        if name in kinds:
            try:
                chosen[name] = kinds[name].parse(value)
            except ValueError as e:
                problems.append(f"{key} = {value!r}: {e}")
        elif name in run_settings():
            given[name] = value
        else:
            strange.append(key)
    options = Options(**chosen)
    if options.model is not None:
        given.update(_own_model(options, given))
    if options.client == "tarry":  # a plain client's app has settings of its own
        known = [k.replace("_", "-") for k in (*kinds, *run_settings())]
        problems += [f"{key}: there is no such setting.{near(key, known)}" for key in strange]
    problems += [*_contradictions(options), *_without_examples(given, options)]
    if problems:
        raise BadInput(problems)
    return DeployConfig(_spec(given), options, "delay" in given, {**given, **chosen})


def _own_model(options: Options, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task that `model` stands for."""
    if options.client == "tarry":
        raise BadInput(
            f"model = {options.model}: tarry's own client app trains a task; name one, or your own clientapp"
        )
    if "task" in given:
        raise BadInput(f"model = {options.model}: `task` names a model too; leave one out")
    return {"task": file_of_model(str(options.model))}


def _spec(given: Mapping[str, Any]) -> Spec:
    defaults = {"delay": "constant", "eval_every": _EVAL_EVERY, "checkpoint_every": _CHECKPOINT_EVERY, "gate": True}
    filled = {**defaults, **given}
    return Spec.of({k: _with_app_path(v) if k in REGISTRIES else v for k, v in filled.items()})


def _contradictions(o: Options) -> list[str]:
    positive = [f"{n} = {v}: must be above 0" for n, v in (("deadline", o.deadline), ("stop-within", o.stop_within),
                ("release-after", o.release_after),
                ("ask-every", o.ask_every)) if v is not None and not v > 0]  # fmt: skip
    if o.in_flight not in ("auto", 1, 2):
        positive.append(f"in-flight = {o.in_flight}: must be auto, 1 or 2")
    if o.metrics_port is not None and not 0 <= o.metrics_port <= 65535:
        positive.append(f"metrics-port = {o.metrics_port}: must be from 1 to 65535, or 0 for a free one")
    if o.client != "tarry" and o.known is not None and o.identity == "node":
        positive.append("known: a plain Flower app cannot give its name; register its node with Flower instead")
    if o.client == "tarry" and o.evaluate is not None:
        positive.append(f"evaluate = {o.evaluate}: tarry's own client app has a task, whose test set is evaluated")
    wrong = [at for at in o.link_addresses if not at.rpartition(":")[0] or not at.rpartition(":")[2].isdigit()]
    return [*positive, *(f"links: {at!r} is no address; it must be HOST:PORT" for at in wrong)]


def _without_examples(given: Mapping[str, Any], o: Options) -> Iterator[str]:
    """Yield the settings of a run that a federation cannot have."""
    if given.get("patience") is not None:
        yield f"patience = {given['patience']}: a federation has no early stopping; use target, time, updates or rounds"
    if given.get("validation") is not None and (o.data == "own" or o.client != "tarry"):
        yield (
            f"validation = {given['validation']}: clients have examples of their own, and the server cannot hold out a"
            " share; give its task a validation set, tarry.Task(..., validation=(x, y))"
        )


def _nest(config: Mapping[str, Any]) -> dict[str, Any]:
    """Turn `method.name` and `method.beta`, or `method` and `method.beta`, into one table."""
    out: dict[str, Any] = {}
    for key in sorted(config, key=len):
        group, dot, name = key.partition(".")
        if not dot:
            out[key] = dict(config[key]) if isinstance(config[key], Mapping) else config[key]
            continue
        before = out.get(group, {})
        table = before if isinstance(before, dict) else {"name": before}
        out[group] = {**table, name.replace("-", "_"): config[key]}
    return out


def _with_app_path(choice: Any) -> Any:
    """Return the choice with the path of a file of the Flower app, which is installed elsewhere."""
    name = choice.get("name") if isinstance(choice, Mapping) else choice
    file, colon, factory = str(name).rpartition(".py:")
    if not colon or Path(file).is_absolute() or (Path.cwd() / f"{file}.py").is_file():
        return choice
    for folder in sys.path:
        if (path := Path(folder) / f"{file}.py").is_file():
            found = f"{path}:{factory}"
            return {**choice, "name": found} if isinstance(choice, Mapping) else found
    return choice
