"""The settings of a run as the command line shows them, read from the source of `Spec`, whose import needs torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

__all__ = ["FlagSetting", "setting_list"]


@dataclass(frozen=True)
class FlagSetting:
    """One field of `Spec`: its name, help, default (a component by its name), and the alternatives of its type."""

    name: str
    help: str
    default: Any
    types: tuple[str, ...]  # such as ("int", "all") for int | Literal["all"]; None is left out

    @property
    def is_component(self) -> bool:
        """Return whether the value is the name of a method, task and so on."""
        return "Choice" in self.types


@cache
def setting_list() -> tuple[FlagSetting, ...]:
    """Return all settings in the order of `Spec`."""
    found = find_spec("tarry.config.spec")
    assert found is not None
    source = found.loader.get_source("tarry.config.spec")  # type: ignore[union-attr]
    module = ast.parse(source)
    spec = next(n for n in module.body if isinstance(n, ast.ClassDef) and n.name == "Spec")
    components = _named_components(module)
    return tuple(_setting(node, components) for node in spec.body if isinstance(node, ast.AnnAssign))


def _setting(node: ast.AnnAssign, components: dict[str, str]) -> FlagSetting:
    """Return the setting of a line `name: Annotated[type, help] = default`."""
    assert isinstance(node.target, ast.Name)
    assert isinstance(node.annotation, ast.Subscript)
    assert isinstance(node.annotation.slice, ast.Tuple)
    kind, text, *_ = node.annotation.slice.elts
    types = tuple(t for t in _alternatives(kind) if t != "None")
    return FlagSetting(node.target.id, ast.literal_eval(text), _default(node.value, components), types)


def _alternatives(kind: ast.expr) -> list[str]:
    if isinstance(kind, ast.BinOp):
        return _alternatives(kind.left) + _alternatives(kind.right)
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Literal":
        values = ast.literal_eval(kind.slice)
        return [str(v) for v in (values if isinstance(values, tuple) else (values,))]
    return [ast.unparse(kind)]


def _default(value: ast.expr | None, components: dict[str, str]) -> Any:
    if isinstance(value, ast.Name):
        return components[value.id]
    if isinstance(value, ast.Call):  # field(default=...)
        value = next(k.value for k in value.keywords if k.arg == "default")
    assert value is not None
    return ast.literal_eval(value)


def _named_components(module: ast.Module) -> dict[str, str]:
    """Return the names in `_A, _B = map(Choice, ("a", "b"))`."""
    out: dict[str, str] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Tuple):
            names = [n.id for n in node.targets[0].elts if isinstance(n, ast.Name)]
            out.update(zip(names, ast.literal_eval(node.value.args[1]), strict=True))
    return out
