"""Memory that is freed goes back to the system when it is asked for."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

HELD = """
from pathlib import Path
from tarry.vector.process import trim_memory

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

large, lasting = [], []
for _ in range(2000):
    large.append(bytearray(100_000))
    lasting.append(bytearray(1_000))
del large
before = megabytes()
trim_memory()
print(before - megabytes())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc, and decides for itself")
def test_what_is_free_below_what_lasts_is_handed_back() -> None:
    out = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    assert float(out.stdout) > 100
