"""Verify a folder: whether a run, a comparison or a federation is complete, and is what was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..core.errors import BadInput, DamagedFile, StorageError, errors_as_keywords
from ..core.printable import printable
from ..record.consistency import Check, check_run
from ..record.journal import NAME as JOURNAL
from ..record.run_folder import RunFolder, runs_below
from ..record.storage import JSON_LIMIT, read_text

__all__ = ["Verification", "verify", "verify_folder"]


@dataclass(frozen=True, repr=False)
class Verification:
    """The checks of a folder. `ok`: every check passed. `finished`: every run has a result.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = tarry.run("fedasync", "digits", clients=3, updates=5, out=f"{folder}/run")
    ...     found = tarry.verify(f"{folder}/run")
    >>> found.ok, found.finished
    (True, True)
    """

    folder: Path
    checks: Sequence[tuple[Path, Check]]  # with the folder of the run that each is about
    finished: bool

    @property
    def ok(self) -> bool:
        """Return whether every check passed.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = tarry.run("fedasync", "digits", clients=3, updates=5, out=f"{folder}/run")
        ...     with open(f"{folder}/run/spec.toml", "a") as spec:
        ...         written = spec.write("lr = 0.5")
        ...     tarry.verify(f"{folder}/run").ok
        False
        """
        return all(check.ok for _, check in self.checks)

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not finished"
        bad = sum(not check.ok for _, check in self.checks)
        found = "consistent" if not bad else f"{bad} of {len(self.checks)} checks failed"
        return f"Verification({printable(self.folder.name)}: {state}, {found})"


Rerun = Literal["proofs", "all"]


def verify(folder: str | Path, *, rerun: Rerun | None = None, **objects: Any) -> Verification:
    """Return the checks of the run, comparison or federation in a folder.

    Nothing is trained unless `rerun` is given: "proofs" trains the visits that the run stored with their results, "all"
    repeats the whole run. A run that was given Python objects needs the same ones again for that, by keyword.

    A finished run is compared with the digests in its result, an unfinished one with its checkpoints; rows of a log
    carry checksums. The table of a comparison is computed again from its results.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     runs = tarry.compare(["fedavg", "fedasync"], clients=3, updates=6, seeds=[0], out=f"{folder}/table")
    ...     tarry.verify(f"{folder}/table")
    Verification(table: finished, consistent)
    """
    with errors_as_keywords():
        return verify_folder(Path(folder), rerun=rerun, **objects)


def verify_folder(folder: Path, *, rerun: Rerun | None = None, **objects: Any) -> Verification:
    """Return the checks of a folder."""
    if (folder / "spec.toml").is_file() or (folder / "result.json").is_file():
        runs = [folder]
    else:
        runs = runs_below(folder)
    if not runs:
        raise BadInput(f"{folder}: there is no run, comparison or federation here (neither spec.toml nor result.json)")
    checks = [(run, check) for run in runs for check in check_run(run)]
    if rerun is not None and all(check.ok for _, check in checks):
        checks += [(run, check) for run in runs for check in _rerun(run, rerun, objects)]
    finished = all(RunFolder(run).result.is_file() for run in runs)
    table = folder / "compare.json"
    if runs != [folder] and finished and all(check.ok for _, check in checks):
        checks += [(folder, check) for check in _check_tables(folder, table)]
    return Verification(folder, checks, finished and (runs == [folder] or table.is_file()))


def _rerun(run: Path, rerun: Rerun, objects: Mapping[str, Any]) -> Iterator[Check]:
    from .rerun import rerun_proofs, rerun_whole  # what trains takes longer to import than a folder to check

    if (run / JOURNAL).is_file():
        raise BadInput(f"{run}: it is a federation; `tarry replay {run}` trains its visits again")
    if rerun == "all":
        yield rerun_whole(run, objects)
    else:
        yield from rerun_proofs(run, objects)


def _check_tables(folder: Path, table: Path) -> Iterator[Check]:
    """Compare the table of a comparison, and its tests of significance, with its results."""
    if not table.is_file():
        yield Check(table.name, True, f"there is no {table.name} yet; the same comparison writes it")
        return
    from ..report.significance import significance_json
    from ..report.tables import to_json
    from .comparison import SIGNIFICANCE, Comparison
    from .read import read

    comparison = read(folder)
    assert isinstance(comparison, Comparison)
    yield _check_same(table, "the table", to_json(comparison.summary))
    if (tests := folder / SIGNIFICANCE).is_file():  # an earlier version wrote none
        yield _check_same(tests, "the tests", significance_json(comparison.significance))


def _check_same(path: Path, what: str, wanted: str) -> Check:
    """Compare a file with what it should be."""
    try:
        written = read_text(path, JSON_LIMIT)
    except (DamagedFile, StorageError) as e:
        return Check(path.name, False, str(e))
    same = wanted == written
    return Check(path.name, same, f"{path.name} {'is' if same else 'is not'} {what} of these runs")
