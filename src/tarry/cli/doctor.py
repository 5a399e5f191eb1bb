"""`tarry doctor`: what is installed and found here, with a remedy for what is not."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from ..version import __version__
from . import console

__all__ = ["doctor"]

#: extras for work on tarry itself
_OF_DEVELOPMENT = ("dev", "docs")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?.*?extra == [\"']([^\"']+)[\"']")


def doctor() -> None:
    """Report versions, devices, installed extras and data sets, with a remedy for what is missing."""
    console.print_lines([f"tarry {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"])
    for title, lines in (("devices", _devices()), ("extras", _extras()), ("data sets", _data_sets())):
        console.print_parts((title, "bold"))
        console.print_lines(f"  {line}" for line in lines)


def _devices() -> Iterator[str]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield f"cpu: {cores} {'core' if cores == 1 else 'cores'}; torch {torch.__version__}"
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        yield f"cuda:{number}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB; use --device cuda"
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "no GPU is visible" if built else "this torch is built for the CPU; pytorch.org has the command for CUDA"
        yield f"cuda: none ({why})"


def _extras() -> Iterator[str]:
    for extra, packages in _packages_of_extras().items():
        found = {package: _version_of(package) for package in packages}
        if missing := [package for package, text in found.items() if text is None]:
            yield f'{extra}: {", ".join(missing)} missing; pip install "tarry[{extra}]"'
        else:
            yield f"{extra}: {', '.join(f'{package} {text}' for package, text in found.items())}"


def _packages_of_extras() -> dict[str, list[str]]:
    """Return the packages of each extra that users install, sorted by extra."""
    out: dict[str, list[str]] = {}
    for requirement in _requirements():
        found = _REQUIREMENT.match(requirement)
        if found and found[2] not in _OF_DEVELOPMENT:
            out.setdefault(found[2], []).append(found[1])
    return dict(sorted(out.items()))


def _requirements() -> list[str]:
    try:
        return requires("tarry") or []
    except PackageNotFoundError:  # run from its source
        return []


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _data_sets() -> Iterator[str]:
    from ..tasks.data.sets import catalog, loose_files, where_data_is

    yield where_data_is()
    sets, files = catalog(), loose_files()
    for name, data in sets.items():
        if (found := data.find()) is not None:
            yield f"--task {name}: {found[0]}"
    yield from (f"--task {name}: {path}" for name, path in files.items() if name not in sets)
    if missing := [name for name, data in sets.items() if data.find() is None]:
        yield f"not there: {', '.join(missing)}; `tarry tasks NAME` says how to get one"
    yield "--task digits is embedded"
