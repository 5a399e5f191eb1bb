"""Arithmetic that repeats itself: what is set for it, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tarry.training.determinism import deterministic, nondeterministic


def settings() -> tuple[int, bool, bool, bool]:
    backends = torch.backends
    tf32 = backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32
    return (torch.get_num_threads(), *tf32, backends.cudnn.deterministic)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("exact", [True, False])
def test_what_was_before_comes_back(exact: bool) -> None:
    before, seen = settings(), []

    def work() -> None:
        with deterministic(exact=exact):
            seen.append(settings())
            with nondeterministic():
                seen.append(settings())
            seen.append(settings())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert seen == [(1, not exact, not exact, repeats) for repeats in (True, False, True)]
    assert settings() == before
