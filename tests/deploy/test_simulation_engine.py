"""The example apps in Flower's simulation engine, by `flwr run` with its default federation of two nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tarry.deploy.local.processes import free_ports
from tarry.record.result import Result
from tests.helpers.processes import PATIENCE, wait_until

pytestmark = pytest.mark.federation
EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"


@pytest.fixture
def environment(tmp_path):
    """The SuperLink that `flwr run` would start by itself, without the installation of the app's dependencies."""
    (port,) = free_ports(1)
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "TARRY_OUT": str(tmp_path / "out"),
    }
    with (tmp_path / "link.log").open("wb") as log:
        link = subprocess.Popen(
            ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess", "--host", "127.0.0.1",
             "--port", str(port), "--disable-runtime-dependency-installation"],
            env=env, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        wait_until(lambda: _answers(port), (tmp_path / "link.log").read_text)
        yield env
    finally:
        os.killpg(link.pid, signal.SIGTERM)
        try:
            link.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(link.pid, signal.SIGKILL)
            link.wait()


def _answers(port):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
    except urllib.error.HTTPError as e:
        e.close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("app", ["pytorch_project", "legacy_client"])
def test_flwr_run_trains_the_example_apps_asynchronously(app, environment, tmp_path):
    done = subprocess.run(
        ["flwr", "run", str(EXAMPLES / app), "--stream"], env=environment, cwd=tmp_path, capture_output=True,
        text=True, check=False, timeout=4 * PATIENCE,
    )  # fmt: skip
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    assert (tmp_path / "out" / "result.json").is_file(), log[-5000:]
    result = Result.read(tmp_path / "out")
    assert result.n_clients == 2
    assert result.updates == (16 if app == "pytorch_project" else 18)
    assert result.final_accuracy is not None
    assert result.final_accuracy > 0.5
    assert "HTTP Request" not in log, "the lines of other libraries are not tarry's"
