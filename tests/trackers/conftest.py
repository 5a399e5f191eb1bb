from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what MLflow and W&B write: mlflow.db and wandb/. Nothing contacts a network."""
    folder = tmp_path_factory.mktemp("stores")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
            patch.delenv(name, raising=False)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.setenv("WANDB_DIR", str(folder))
        for name in ("CONFIG", "CACHE", "DATA", "ARTIFACT"):
            patch.setenv(f"WANDB_{name}_DIR", str(folder / name.lower()))
        yield folder
