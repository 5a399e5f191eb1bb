from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tarry.core.metric import CurvePoint
from tarry.record.result import Result, Staleness

Make = Callable[..., Result]


def make(label: str, seed: int, accuracies: dict[float, float | None], **others: Any) -> Result:
    """A run whose curve is accuracy by virtual time, with 10 updates a second and loss 1 − accuracy."""
    curve = [(t, round(10 * t), a, None if a is None else 1 - a) for t, a in accuracies.items()]
    time, updates, accuracy, loss = curve[-1]
    values: dict[str, Any] = {
        "method": label.partition("(")[0],
        "label": label,
        "task": "digits",
        "seed": seed,
        "n_clients": 8,
        "virtual_time": time,
        "updates": updates,
        "rounds": updates,
        "final_accuracy": accuracy,
        "final_loss": loss,
        "curve": curve,
        "staleness": Staleness(1.0, 2, 4),
        "lost": 0,
        "rejected": 0,
        "weights_sha256": "0123456789abcdef" * 4,
        "wall_s": 1.5,
        "bytes_up": 2_000_000,
        "bytes_down": 3_000_000,
        "peak_server_bytes": 4_000_000,
        "version": "0.1.0",
    }
    values |= others
    scored = any(point[2] is not None for point in values["curve"])
    points = [CurvePoint.from_row(point, "accuracy" if scored else "loss") for point in values["curve"]]
    return Result(**{**values, "curve": points})


@pytest.fixture(name="make")
def make_fixture() -> Make:
    return make


@pytest.fixture(scope="session")
def two_methods() -> list[Result]:
    """Target 0.57; fedavg is there at 30 and 20 s, orthofl at 10 and 5 s."""
    return [
        make("fedavg", 0, {0: 0.1, 10: 0.4, 20: 0.5, 30: 0.58}),
        make("orthofl", 0, {0: 0.1, 5: 0.5, 10: 0.7, 30: 0.72}),
        make("fedavg", 1, {0: 0.1, 10: 0.3, 20: 0.6, 30: 0.62}),
        make("orthofl", 1, {0: 0.1, 5: 0.65, 10: 0.7, 30: 0.78}),
    ]
