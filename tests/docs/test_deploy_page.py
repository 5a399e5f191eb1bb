"""Commands, units and the container file of docs/deploy.md: flags exist, files parse, settings are there."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tarry.cli.federation import COMMANDS
from tarry.deploy.config import Options, read_config
from tarry.deploy.server.metrics import COUNTERS, GAUGES, Snapshot, families

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
    return {**found, "tarry.deploy.node": found["flower-supernode"], "tarry.deploy.link": found["flower-superlink"],
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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path):
    """The programs of /opt/tarry are not on this machine: empty ones take their places."""
    for unit in UNITS:
        text = unit.read_text()
        for program in set(re.findall(r"/opt/tarry/bin/([\w-]+)", text)):
            (tmp_path / program).write_text("#!/bin/sh\n")
            (tmp_path / program).chmod(0o755)
        (tmp_path / unit.name).write_text(text.replace("/opt/tarry/bin", str(tmp_path)))
    done = subprocess.run(
        ["systemd-analyze", "verify", *(tmp_path / unit.name for unit in UNITS)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "tarry-" in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.parametrize("name", ["server.yaml", "client.yaml"])
def test_compose_files_fit_the_schema_of_the_compose_specification(name):
    tool = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*tool, EXAMPLES / "compose" / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("name", "count"), [("server.yaml", 5), ("client.yaml", 2)])
def test_kubernetes_accepts_the_manifests(name, count):
    documents = list(yaml.safe_load_all((EXAMPLES / "kubernetes" / name).read_text()))
    assert len(documents) == count
    for document in documents:
        kubernetes_validate.validate(document, "1.31", strict=True)


def test_containers_run_the_commands_of_the_page(flags):
    """The programs and flags of compose files and manifests are those that exist."""
    seen = set()
    for path in [*(EXAMPLES / "compose").glob("*.yaml"), *(EXAMPLES / "kubernetes").glob("*.yaml")]:
        for command in _container_commands(path):
            words = command.split()
            program = next(
                p
                for p in ("tarry.deploy.node", "tarry.deploy.link", "tarry.deploy.fork_server", *PROGRAMS, "tarry")
                if p in words
            )
            seen.add(program)
            used = set(re.findall(r"(?<= )--[a-z][a-z-]+", command))
            assert used <= flags.get(program, {"--out"}), command
    assert seen == {*flags, "tarry"} - {"flower-supernode", "flower-superlink"}


def _container_commands(path: Path) -> list[str]:
    found = []
    for document in yaml.safe_load_all(path.read_text()):
        services = document.get("services", {}).values()
        pods = [document["spec"]["template"]["spec"]["containers"]] if document.get("kind") == "Deployment" else []
        for command in [s["command"] for s in services] + [c["args"] for pod in pods for c in pod]:
            found.append(command if isinstance(command, str) else " ".join(command))
    return found


def test_the_app_of_the_manifest_is_an_app():
    config_map = next(yaml.safe_load_all((EXAMPLES / "kubernetes" / "server.yaml").read_text()))
    app = tomllib.loads(config_map["data"]["pyproject.toml"])["tool"]["flwr"]["app"]
    found = read_config(app["config"])
    assert (found.options.metrics_port, found.options.log_format) == (9464, "json")
    assert tomllib.loads(config_map["data"]["config.toml"])["superlink"]["here"]["address"] == "localhost:8000"


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


def test_the_page_on_operation_has_every_metric_and_no_other():
    page = (ROOT / "docs" / "operate.md").read_text()
    snapshot = Snapshot("fedasync", dict.fromkeys(COUNTERS, 1), dict.fromkeys(GAUGES, 1), {}, {}, {}, {0: 1}, 1.0, 1.0)
    found = {
        f"{family.name}_total"
        if family.type == "counter"
        else f"{family.name}_info"
        if family.type == "info"
        else family.name
        for family in families(snapshot, "")
    }
    assert set(re.findall(r"\btarry_\w+", page)) == found


def test_the_page_on_operation_names_commands_and_files_that_are_there():
    page = (ROOT / "docs" / "operate.md").read_text()
    for name in re.findall(r"`((?:examples|tests|tools)/[\w/.]+)`", page):
        assert (ROOT / name).exists(), name
    assert set(re.findall(r"tarry federation (\w+)", page)) <= set(COMMANDS)
    units = set(re.findall(r"\btarry-\w+", "\n".join(re.findall(r"systemctl .*", page))))
    assert units == {unit.stem for unit in UNITS}
