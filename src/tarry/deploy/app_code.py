"""The code of the Flower app that the server runs in: its folder, the kind of its client app, its evaluation."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..core.errors import BadInput, first_line
from ..core.storage import read_toml

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.metric import Scores
    from .flower_app import StateDict

__all__ = ["app_folder", "client_kind", "evaluator", "file_of_model", "table_of_app"]

log = logging.getLogger("tarry")


def app_folder() -> Path | None:
    """Return the folder of the Flower app: the first on the path of imports whose pyproject.toml describes one."""
    return next((Path(p).resolve() for p in sys.path if p and _components(Path(p)) is not None), None)


def _components(folder: Path) -> Mapping[str, Any] | None:
    try:
        return table_of_app(folder, "components")
    except BadInput:
        return None


def table_of_app(folder: Path, name: str) -> Mapping[str, Any] | None:
    """Return the table [tool.flwr.app.NAME] of a folder's pyproject.toml; None if there is none."""
    path = folder / "pyproject.toml"
    if not path.is_file():
        return None
    found: Any = read_toml(path, str(path))
    for table in ("tool", "flwr", "app", name):
        found = found.get(table) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def client_kind() -> Literal["tarry", "plain", "legacy"]:
    """Return what the app's `clientapp` is: tarry's own, one with handlers of messages, or one with a client_fn."""
    folder = app_folder()
    reference = str((_components(folder) or {}).get("clientapp", "")) if folder is not None else ""
    if not reference or reference.startswith("tarry."):
        return "tarry"
    try:
        app = _load("clientapp", reference)
    except BadInput as e:
        log.warning("%s; it is taken for one with handlers of messages: `client` in the run config can say else", e)
        return "plain"
    if getattr(app, "_call", None) is not None:
        return "legacy"
    return "tarry" if "query.hello" in getattr(app, "_registered_funcs", {}) else "plain"


def file_of_model(reference: str) -> str:
    """Return MODULE:NAME as FILE.py:NAME, by which settings name a factory of a file."""
    module, colon, name = reference.rpartition(":")
    if not colon or not module or not name:
        raise BadInput(f"model = {reference}: it has the form MODULE:NAME, such as my_app.task:Net")
    return reference if module.endswith(".py") else f"{module.replace('.', '/')}.py:{name}"


def _load(setting: str, reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        return reduce(getattr, name.split("."), importlib.import_module(module))
    except Exception as e:
        raise BadInput(f"{setting} = {reference}: it cannot be loaded ({type(e).__name__}: {first_line(e)})") from e


def evaluator(
    reference: str, state: StateDict, *, legacy: bool, names: Sequence[str] = ()
) -> Callable[[Tensor], Scores]:
    """Return the evaluation of weights by a function of the app, with the signature that Flower's strategies give it.

    That is (round, ArrayRecord) → MetricRecord, and of legacy apps (round, list of arrays, {}) → (loss, metrics). The
    accuracy is its first entry with `acc` in its name, the loss the first with `loss`; `names` are further metrics.
    """
    function, calls = _load("evaluate", reference), 0

    def evaluate(weights: Tensor) -> Scores:
        nonlocal calls
        from flwr.app import Array, ArrayRecord

        arrays, calls = state.arrays(weights), calls + 1
        if legacy:
            loss, metrics = function(calls, list(arrays.values()), {})
            return _scores(metrics, float(loss), names)
        found = dict(function(calls, ArrayRecord({name: Array(a) for name, a in arrays.items()})))
        loss = _named("loss", found)
        return _scores(found, nan if loss is None else loss, names)

    return evaluate


def _scores(found: Mapping[str, Any], loss: float, names: Sequence[str]) -> dict[str, float]:
    if missing := [name for name in names if not isinstance(found.get(name), int | float)]:
        known = ", ".join(map(str, found)) or "nothing"
        raise BadInput(
            f"--metric {missing[0]}: the app's function `evaluate` returns {known}; have it return this, too"
        )
    accuracy = _named("acc", found)
    usual = {} if accuracy is None else {"accuracy": accuracy}
    return {**{name: float(found[name]) for name in names}, **usual, "loss": loss}


def _named(part: str, metrics: Mapping[str, Any]) -> float | None:
    return next((float(v) for k, v in metrics.items() if part in k.lower() and isinstance(v, int | float)), None)
