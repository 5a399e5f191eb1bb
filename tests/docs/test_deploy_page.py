"""Commands, units and the container file of docs/deploy.md: flags exist, files parse, settings are there."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tarry.deploy.config import Options, read_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
EXAMPLES = ROOT / "examples" / "flower"
UNITS = sorted((EXAMPLES / "systemd").glob("*.service"))
PROGRAMS = ("flower-superlink", "flower-superexec", "flower-supernode")


@pytest.fixture(scope="module")
def flags():
    """The flags that each of Flower's programs has."""
    folder = Path(sys.executable).parent
    told = {
        p: subprocess.run([folder / p, "--help"], capture_output=True, text=True, check=True).stdout for p in PROGRAMS
    }
    found = {p: set(re.findall(r"--[a-z][a-z-]+", text)) for p, text in told.items()}
    return {**found, "tarry.deploy.node": found["flower-supernode"],
            "tarry.deploy.fork_server": {"--runtime-api-address", "--root-certificates"}}  # fmt: skip


def commands(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.startswith(("    ", "ExecStart="))]


@pytest.mark.parametrize("source", ["docs/deploy.md", *(f"examples/flower/systemd/{u.name}" for u in UNITS)])
def test_flowers_programs_have_the_flags_that_are_used(source, flags):
    seen = 0
    for line in commands((ROOT / source).read_text()):
        for program, known in flags.items():
            if re.search(rf"(^|[/ =]){re.escape(program)} ", line):
                used = set(re.findall(r"(?<= )--[a-z][a-z-]+", line.partition("#")[0]))
                assert used <= known, line
                seen += 1
    assert seen or "tarry-app" in source


def test_units_are_whole():
    assert len(UNITS) == 5
    for unit in UNITS:
        parsed = configparser.ConfigParser(strict=False, interpolation=None)
        parsed.optionxform = str  # type: ignore[assignment, method-assign]
        parsed.read_string(unit.read_text())
        assert {"Unit", "Service", "Install"} == set(parsed.sections()), unit
        assert parsed["Service"]["ExecStart"].startswith("/opt/tarry/bin/")
        assert "FLWR_TELEMETRY_ENABLED=0" in parsed["Service"]["Environment"]
        after = parsed["Unit"].get("After", "")
        assert all((EXAMPLES / "systemd" / a).is_file() for a in after.split() if a.startswith("tarry-"))


def test_the_container_file_has_only_instructions_there_are():
    text = (EXAMPLES / "Containerfile").read_text().replace("\\\n", " ")
    words = [line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert words[0] == "FROM"
    assert set(words) <= {"FROM", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "CMD"}
    assert words.index("USER") > words.index("RUN"), "it does not run as root"


APPS = {"digits": "tarry", "own_client": "plain", "pytorch_project": "plain", "legacy_client": "legacy"}


@pytest.mark.parametrize("app", APPS)
def test_the_examples_settings_are_settings(app):
    config = tomllib.loads((EXAMPLES / app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    found = read_config({"client": APPS[app], **{k: v for k, v in config.items() if k not in ("task", "model")}})
    assert found.options.client == APPS[app]
    assert "out" in config or "model" in config


def test_every_option_of_a_deployment_is_on_the_page():
    for name in Options.__dataclass_fields__:
        assert f"| `{name.replace('_', '-')}` |" in PAGE, name


def test_the_page_names_files_that_are_there():
    for name in re.findall(r"`(examples/[\w/.]+|tests/[\w/.]+)`", PAGE):
        assert (ROOT / name).exists(), name
