"""Submission: submit an app to a SuperLink, and again if its process was killed: the app resumes from its record."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...core.errors import BadInput, TarryError
from ...core.storage import storage_errors
from ...record.shapes import Shape, between, fields, number, optional, read_record, text
from ...record.storage import TEXT_LIMIT, check_writable, make_folder, write_atomic
from .processes import began

__all__ = ["Submission"]

_START_TIMEOUT = 30.0  # seconds for an app to start
_FLWR_TIMEOUT = 120  # seconds for a call of Flower's command line
_RUN = fields({"run": text, "at": number})
_SERVER = fields({"pid": between(2, 2**31 - 1), "began": optional(text), "run": text})
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


@dataclass(frozen=True)
class Submission:
    """A Flower app, the SuperLink it goes to (a name of Flower's configuration), and the folder of its record.

    The server's process is on this machine: a submission is made where the SuperLink runs.
    """

    folder: Path
    app: Path
    link: str
    override: Sequence[str] = ()  # of its run config: key=value
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return (self.folder / "result.json").is_file()

    def serving(self) -> bool:
        """Return whether the app runs, or is about to start."""
        submitted, server = _json(self.folder / "run.json", _RUN), _json(self.folder / "server.json", _SERVER)
        if submitted is None:
            return False
        if server is not None and _runs(server):
            return True
        if server is not None and server["run"] == submitted["run"]:
            return False
        if time.time() - submitted["at"] < _START_TIMEOUT:
            return True
        runs = self.flwr("list", self.link, "--run-id", submitted["run"], "--format", "json")
        return re.search(r'"status":\s*"finished', runs) is None  # it may wait in the queue

    def fate(self) -> Literal["at work", "about to begin", "gone"]:
        """The state of the app's process, from the files in the folder, without a call of Flower."""
        submitted, server = _json(self.folder / "run.json", _RUN), _json(self.folder / "server.json", _SERVER)
        if server is not None and _runs(server):
            return "at work"
        begun = submitted is None or (server is not None and server["run"] == submitted["run"])
        return "gone" if begun or time.time() - submitted["at"] >= _START_TIMEOUT else "about to begin"

    def submit(self) -> str:
        """Call `flwr run`; return the id of the run. Nothing is submitted while the folder cannot be written."""
        make_folder(self.folder)
        check_writable(self.folder)
        output = self.flwr("run", str(self.app), self.link, *(w for o in self.override for w in ("--run-config", o)))
        run = re.search(r"run (\d+)", output)
        if run is None:
            raise TarryError(f"Flower did not start the app: {output.strip()[-300:]}")
        write_atomic(self.folder / "run.json", json.dumps({"run": run[1], "at": time.time()}).encode())
        return run[1]

    def stop(self, within: float) -> bool:
        """Ask the app to end when the visits under way have ended; return whether it has ended."""
        until = time.monotonic() + within
        while self.serving() and time.monotonic() < until:
            with storage_errors(self.folder / "stop"):
                (self.folder / "stop").touch()  # repeatedly: an app that starts removes the file
            time.sleep(0.1)
        (self.folder / "stop").unlink(missing_ok=True)
        return not self.serving()

    def flwr(self, *words: str) -> str:
        """Call Flower's command line; return its output."""
        environment = {**os.environ, **_QUIET, **self.environment, "COLUMNS": "500"}
        try:
            done = subprocess.run(
                ["flwr", *words], env=environment, capture_output=True, text=True, check=False, timeout=_FLWR_TIMEOUT
            )
        except FileNotFoundError as e:
            raise BadInput("flwr: there is no such program; pip install 'tarry[flower]'") from e
        except subprocess.TimeoutExpired as e:
            raise TarryError(f"flwr {words[0]}: no answer from the SuperLink within {_FLWR_TIMEOUT} s") from e
        if done.returncode:
            if (home := Path(environment.get("FLWR_HOME", Path.home() / ".flwr"))).is_dir():
                check_writable(home)  # the reason, if it is a full disk
            raise TarryError(f"flwr {words[0]} failed: {(done.stderr + done.stdout).strip()[-500:]}")
        return done.stdout + done.stderr


def _runs(server: Mapping[str, Any]) -> bool:
    return began(server["pid"]) is not None and began(server["pid"]) == server["began"]


def _json(path: Path, shape: Shape) -> Any:
    return read_record(path, shape, TEXT_LIMIT) if path.is_file() else None
