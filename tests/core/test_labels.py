from __future__ import annotations

import pytest

from tarry.core.labels import split_label, with_axes


@pytest.mark.parametrize(
    ("method", "axes"),
    [
        ("fedavg", {}),
        ("fedbuff:buffer=3", {"lr": 0.1}),
        ("orthofl+local=fedsol:rho=1+manifold=bezier", {"lr": 1e-05, "optimizer": "adam", "partition.alpha": 0.5}),
        ("fedavg", {"weight_decay": 1e20, "epochs": 2, "batch": "all"}),
    ],
)
def test_the_axes_of_a_label_are_found_again(method, axes):
    assert split_label(with_axes(method, axes)) == (method, axes)


def test_whole_numbers_are_written_without_a_point():
    assert with_axes("a", {"lr": 1.0, "epochs": 3}) == "a+lr=1+epochs=3"
