"""Registry of the methods."""

from ..core.method import Method
from ..core.registry import Registry

__all__ = ["methods"]

methods: Registry[Method] = Registry("method", Method)
