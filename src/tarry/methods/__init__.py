"""Methods, one module or package for each paper; no method imports another. The import fills the registry."""

from importlib import import_module
from pkgutil import iter_modules

from .registry import methods as methods

__all__ = ["methods"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
