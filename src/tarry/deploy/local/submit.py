"""Submission: submit an app to a SuperLink, and again if its process was killed: the app resumes from its record."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...core.errors import BadInput, TarryError
from ...core.storage import read_toml, storage_errors
from ...record.shapes import Shape, between, count, fields, list_of, number, optional, read_record, table_of, text
from ...record.storage import TEXT_LIMIT, check_writable, make_folder, write_atomic
from .processes import began

__all__ = ["Submission", "settings_of_links"]

_START_TIMEOUT = 30.0  # seconds for an app to start
_FLWR_TIMEOUT = 120  # seconds for a call of Flower's command line
_RUN = fields({"run": text, "at": number})
_SERVER = fields({"pid": between(2, 2**31 - 1), "began": optional(text), "run": text})
_WAITING = fields({"links_without_run": list_of(count)})
_SUBMITTED_TO = table_of(number)
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
    further: Sequence[str] = ()  # SuperLinks on which the same app drives more nodes

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
        """Call `flwr run` for each SuperLink; return the id of the run on the first.

        Nothing is submitted while the folder cannot be written.
        """
        make_folder(self.folder)
        check_writable(self.folder)
        for link in self.further:
            self.submit_to(link)
        run = self.submit_to(self.link)
        write_atomic(self.folder / "run.json", json.dumps({"run": run, "at": time.time()}).encode())
        return run

    def submit_to_links_without_run(self) -> None:
        """Submit the app to the further links that have lost its run, as the server app reports them."""
        if not self.further or not (self.folder / "status.json").is_file():
            return
        waiting = read_record(self.folder / "status.json", _WAITING)["links_without_run"]
        path = self.folder / "links.json"
        at: dict[str, float] = _json(path, _SUBMITTED_TO) or {}
        for link in [self.further[i - 1] for i in waiting if 1 <= i <= len(self.further)]:
            if time.time() - at.get(link, 0.0) >= _START_TIMEOUT:
                with suppress(TarryError):  # it may be down
                    self.submit_to(link)
                write_atomic(path, json.dumps({**at, link: time.time()}).encode())

    def submit_to(self, link: str) -> str:
        """Call `flwr run` for one SuperLink; return the id of the run."""
        output = self.flwr("run", str(self.app), link, *(w for o in self.override for w in ("--run-config", o)))
        run = re.search(r"run (\d+)", output)
        if run is None:
            raise TarryError(f"Flower did not start the app: {output.strip()[-300:]}")
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


def settings_of_links(names: Sequence[str]) -> dict[str, str]:
    """Return the settings of a server app for further links, named as in Flower's configuration."""
    if not names:
        return {}
    path = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr")) / "config.toml"
    known: Any = read_toml(path, f"--link {names[0]}: {path}").get("superlink", {})
    addresses, certificates = list[str](), set[str | None]()
    for name in names:
        entry = known.get(name) if isinstance(known, dict) else None
        if not isinstance(entry, dict) or not isinstance(entry.get("address"), str):
            raise BadInput(f"--link {name}: {path} has no [superlink.{name}] with an address; add it")
        addresses.append(entry["address"])
        certificates.add(None if entry.get("insecure") else entry.get("root-certificates"))
    if len(certificates) > 1:
        raise BadInput(f"--link {names[-1]}: all further SuperLinks must have the same root-certificates in {path}")
    (trust,) = certificates
    return {"links": ",".join(addresses), **({} if trust is None else {"links-root-certificates": trust})}


def _runs(server: Mapping[str, Any]) -> bool:
    return began(server["pid"]) is not None and began(server["pid"]) == server["began"]


def _json(path: Path, shape: Shape) -> Any:
    return read_record(path, shape, TEXT_LIMIT) if path.is_file() else None
