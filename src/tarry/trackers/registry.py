"""Registry of the trackers."""

from ..core.registry import Registry
from .tracker import Tracker

__all__ = ["trackers"]

trackers: Registry[Tracker] = Registry("tracker", Tracker)
