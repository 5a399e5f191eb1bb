"""Syntax of the setting `track`: names of trackers with parameters, separated by commas, or a list of them.

--track tensorboard --track mlflow:experiment=mine        track=["tensorboard", "mlflow:experiment=mine"]
--track tensorboard,mlflow:experiment=mine                track="tensorboard,mlflow:experiment=mine"
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..core.errors import BadInput
from ..trackers import Tracker, trackers
from .components import Choice

__all__ = ["Tracked", "build_tracker", "checked_trackers", "errors_under_track", "parse_track", "track_texts"]

#: a tracker by name, or the object itself
Tracked = Choice | Tracker


def parse_track(value: Any) -> tuple[Tracked, ...] | None:
    """Return the trackers that a setting names; ValueError if it is of another form."""
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    found = [tracked for item in items for tracked in _parse_item(item)]
    return tuple(found) or None


def _parse_item(item: Any) -> list[Tracked]:
    if isinstance(item, Tracker):
        return [item]
    if isinstance(item, str):
        return [Choice.of(text) for text in _parts(item) if text not in ("", "none")]
    if item is None:
        return []
    if isinstance(item, Mapping | Choice):
        return [Choice.of(item)]
    hint = "; make an object of the class first" if isinstance(item, type) and issubclass(item, Tracker) else ""
    raise ValueError(f"wants names or trackers, got {type(item).__name__}{hint}")


def _parts(text: str) -> list[str]:
    """Split at commas, but not between the parameters of one tracker: a=1,b=2."""
    parts: list[str] = []
    for part in text.split(","):
        name, equals, _ = part.partition("=")
        if parts and equals and ":" not in name:
            parts[-1] += f",{part}"
        else:
            parts.append(part.strip())
    return parts


def checked_trackers(track: Sequence[Tracked] | None) -> tuple[Tracked, ...] | None:
    """Return the trackers with their registry entries and checked parameters; BadInput names what is wrong."""
    with errors_under_track():
        checked = [t if isinstance(t, Tracker) else _with_entry(t) for t in track or ()]
    texts = track_texts(checked)
    if twice := next((text for i, text in enumerate(texts) if text in texts[:i]), None):
        raise BadInput(f"--track {twice}: it is there twice; leave one out")
    return tuple(checked) or None


def _with_entry(choice: Choice) -> Choice:
    choice = choice.with_absolute_paths()
    entry = trackers.find(choice.name)
    return replace(choice, params=entry.check(choice.params), entry=entry)


def build_tracker(tracked: Tracked) -> Tracker:
    """Return the tracker itself; BadInput if its library is missing."""
    if isinstance(tracked, Tracker):
        return tracked
    choice = tracked if tracked.entry is not None else _with_entry(tracked)
    assert choice.entry is not None
    made: Tracker = choice.entry.make(choice.params)
    return made


def track_texts(track: Sequence[Tracked]) -> list[str]:
    """Return each tracker as it is written, an object by its class."""
    return [_text(t) if isinstance(t, Choice) else type(t).__name__ for t in track]


def _text(choice: Choice) -> str:
    given = ",".join(f"{name}={value}" for name, value in choice.params.items())
    return f"{choice.name}:{given}" if given else choice.name


@contextmanager
def errors_under_track() -> Iterator[None]:
    """Rename the flag in a BadInput: the registry says --tracker, and the setting is --track."""
    try:
        yield
    except BadInput as e:
        raise BadInput([re.sub(r"--tracker(?=[. ])", "--track", problem) for problem in e.problems]) from e
