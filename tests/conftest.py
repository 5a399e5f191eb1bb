from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels for a GPU are tried without one; read when they are imported


@pytest.fixture(autouse=True, scope="session")
def default_signals() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGHUP. `nohup make test &` starts the suite with both ignored, and every
    process that a test starts would inherit that.
    """
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tensors here are tiny, so that threads get in each other's way; and sums depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(before)
