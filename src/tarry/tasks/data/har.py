"""Human Activity Recognition Using Smartphones (Anguita et al. 2013): windows of 128 readings, 6 activities, 30 people.

`UCI HAR Dataset/` holds, for each of train and test, nine files of signals (body acceleration, angular velocity, total
acceleration, in x, y, z; a window a row), y_*.txt (1 … 6) and subject_*.txt (1 … 30). The 561 computed features are not
used. Series come channels first: N×9×128. har.npz (x N×128×6 or N×6×128, y, subject, is_test) is turned the same way.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...core.errors import BadInput
from ...core.slow_read import SlowReadNotice
from .archives import parent_folder, read_files, zip_files
from .arrays import AnyArray, ArrayDataset, check_split, whole_numbers
from .npz import read_npz

__all__ = ["read_har", "read_har_npz"]

_SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
_WINDOW = 128
_MOST_BYTES = 256 << 20


def read_har_npz(path: Path, flag: str) -> ArrayDataset:
    """Return the examples of har.npz with channels first: the shorter of the two axes is that of the channels."""
    a = read_npz(path, flag)
    if a.x_train.ndim != 3 or a.x_train.dtype != np.float32:
        shape = "×".join(map(str, a.x_train.shape))
        raise BadInput(f"{flag}: its inputs are {a.x_train.dtype} {shape}; expected series, N×time×channels of float32")
    if a.x_train.shape[1] > a.x_train.shape[2]:
        x, xt = (np.ascontiguousarray(x.transpose(0, 2, 1)) for x in (a.x_train, a.x_test))
        return replace(a, x_train=x, x_test=xt)
    return a


def read_har(path: Path, flag: str) -> ArrayDataset:
    """Return the examples of `UCI HAR Dataset`, a folder or an archive, also inside the archive distributed today."""
    found = _contents(path, flag)
    (x, y, who), (xt, yt, _) = (_part(found, part, flag) for part in ("train", "test"))
    arrays = check_split((x, y), (xt, yt), flag, ("train signals", "y_train.txt", "test signals", "y_test.txt"))
    return replace(arrays, groups=whole_numbers(who, len(x), f"{flag}: subject_train.txt"))


def _contents(path: Path, flag: str) -> dict[str, bytes]:
    names = {
        f"{base}_{part}.txt" for part in ("train", "test") for base in ("y", "subject", *_SIGNALS)
    }  # X_*.txt, the features, is not among them

    def wanted(name: str) -> bool:
        return name.rpartition("/")[2] in names

    found = {n.rpartition("/")[2]: c for n, c in read_files(path, wanted, flag, most=_MOST_BYTES, home=_home)}
    if not found and path.is_file():  # a .zip inside a .zip
        for _, inner in read_files(
            path, lambda n: n.endswith("UCI HAR Dataset.zip"), flag, most=_MOST_BYTES, home=parent_folder
        ):
            inside = zip_files(io.BytesIO(inner), wanted, flag, most=_MOST_BYTES, home=_home)
            found = {n.rpartition("/")[2]: c for n, c in inside}
    if missing := sorted(names - found.keys()):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise BadInput(f"{flag}: lacks {', '.join(missing[:3])}{more}")
    return found


def _home(name: str) -> str:
    """Return the folder that contains train/ and test/."""
    steps = name.split("/")[:-1]
    while steps and steps[-1] in ("Inertial Signals", "train", "test"):
        steps.pop()
    return "/".join(steps)


def _part(found: dict[str, bytes], part: str, flag: str) -> tuple[AnyArray, AnyArray, AnyArray]:
    signals, notice, read = dict[str, AnyArray](), SlowReadNotice(f"{flag}: {part}, windows"), 0
    for s in _SIGNALS:
        with np.errstate(over="ignore"):  # too large values become infinite, which is rejected later
            signals[s] = _numbers(found, f"{s}_{part}.txt", flag, _WINDOW).astype(np.float32)
        notice(read := read + len(signals[s]))
    y, who = (_numbers(found, f"{name}_{part}.txt", flag, 1)[:, 0] for name in ("y", "subject"))
    lengths = {s: len(rows) for s, rows in signals.items()} | {"y": len(y), "subject": len(who)}
    if odd := [name for name, n in lengths.items() if n != lengths[_SIGNALS[0]]]:
        first, name = _SIGNALS[0], odd[0]
        raise BadInput(f"{flag}: {name}_{part}.txt has {lengths[name]} lines and {first}_{part}.txt {lengths[first]}")
    return np.stack(list(signals.values()), 1), y - 1, who


def _numbers(found: dict[str, bytes], name: str, flag: str, width: int) -> AnyArray:
    lines = sum(1 for line in found[name].split(b"\n") if line.strip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns of what is no number
            numbers = np.fromstring(found[name].decode("ascii"), sep=" ")
    except (ValueError, DeprecationWarning) as e:
        raise BadInput(f"{flag}: {name} is no table of numbers ({e})") from e
    if not lines or numbers.size != lines * width:
        raise BadInput(f"{flag}: {name} wants {width} {'number' if width == 1 else 'numbers'} a line")
    return numbers.reshape(-1, width)
