"""Files that the settings of a run name: which they are, and which have changed since the run began."""

from __future__ import annotations

from pathlib import Path

from ..config.components import REGISTRIES, Choice
from ..config.spec import Spec
from ..record.digests import file_digests
from ..record.run_folder import RunFolder
from ..tasks import tasks
from ..tasks.data.sets import loose_files, without_suffix

__all__ = ["changed_files", "files_of"]


def changed_files(folder: Path, spec: Spec) -> dict[str, Path]:
    """Return the files of the spec whose content has changed since the run in the folder began, by setting."""
    before, files = RunFolder(folder).meta().files, files_of(spec)
    return {s: files[s] for s, digest in file_digests(files).items() if before.get(s, digest) != digest}


def files_of(spec: Spec) -> dict[str, Path]:
    """Return the files that the settings name, by setting: `file.py:factory`, paths, and NAME.npz of TARRY_DATA."""
    named = {} if not isinstance(spec.availability, str) else {"availability": spec.availability}
    for group in REGISTRIES:
        choice = getattr(spec, group)
        if isinstance(choice, Choice):
            flag = group.replace("_", "-")
            texts = {flag: choice.name, **{f"{flag}.{k}": v for k, v in choice.params.items()}}
            named |= {k: v for k, v in texts.items() if k.endswith((".path", ".speeds")) or ".py:" in str(v)}
            if (
                group == "task"
                and (name := without_suffix(choice.name)) not in tasks
                and name in (loose := loose_files())
            ):
                named["task"] = str(loose[name])
    files = [m for m in spec.metric or () if isinstance(m, str) and ".py:" in m]
    named |= {"metric" if i == 0 else f"metric.{i}": file for i, file in enumerate(files)}
    return {k: Path(_file(v)).expanduser().resolve() for k, v in named.items() if isinstance(v, str)}


def _file(text: str) -> str:
    file, colon, _ = text.rpartition(".py:")
    return f"{file}.py" if colon else text
