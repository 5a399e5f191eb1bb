"""A tracker of your own: the curve of each run in a CSV file.

    tarry run --method orthofl --task digits --track examples/own_tracker.py:CsvTracker

A tracker is a class with the methods that it needs of `begin`, `log`, `end`, `begin_group` and `end_group`.
"""

from __future__ import annotations

import csv
from pathlib import Path

import tarry

COLUMNS = ("accuracy", "loss", "staleness_mean", "bytes_up", "wall_s")


class CsvTracker(tarry.Tracker):
    """Write the numbers of each evaluation to FOLDER/METHOD, seed N.csv."""

    def __init__(self, *, folder: str = "curves"):
        self.folder = Path(folder)

    def begin(self, run: tarry.TrackedRun) -> None:
        """Begin a new file; a run that is resumed brings its points from before the interruption."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / f"{run.name.replace('/', '-')}.csv"
        self.file.write_text("")
        self.append("time", "updates", *COLUMNS)
        for point in run.points:
            self.log(point)

    def log(self, point: tarry.TrackedPoint) -> None:
        """Append the numbers of one evaluation."""
        self.append(point.time, point.updates, *(point.values.get(name, "") for name in COLUMNS))

    def end(self, result: tarry.Result | None) -> None:
        """Say where the curve is; `result` is None if the run was interrupted."""
        if result is not None:
            print(f"{self.file.name}: {len(result.curve)} rows, final accuracy {result.final_accuracy:.3f}")

    def append(self, *values: object) -> None:
        """Append a row."""
        with self.file.open("a", newline="") as file:
            csv.writer(file).writerow(values)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tracker = CsvTracker(folder=folder)
        tarry.compare(["fedasync", "orthofl"], "digits", seeds=[0], clients=5, time=2000, lr=0.1, track=tracker)
