"""Delay models and availability of clients. Importing the package fills the registry `delays`."""

from . import distributions as distributions
from . import measured as measured
from . import papers as papers
from .base import delays

__all__ = ["delays"]
