"""Lets a framework be imported that names torchvision without needing it: `import no_torchvision` before it.

Where torchvision works it is left alone. Where it is missing, or was built for another torch, any `torchvision.x.y`
can be imported and any name in it is an empty class.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def _empty(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Empty(name, (), {})


class _Empty(type):
    """The class of placeholder classes: each attribute is another one, so they can replace modules and base classes."""

    def __getattr__(cls, name: str) -> type:
        return _empty(name)


class _Module(ModuleType):
    def __getattr__(self, name: str) -> type:
        return _empty(name)


class _Stub(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "torchvision" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError, OSError):
    for name in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Stub())
