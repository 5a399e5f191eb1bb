"""pfl-research: federated averaging in the simulated backend, one process, a cohort of 10."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from workload import BATCH, CLIENTS, COHORT, LR, Bare, LeNet5, Meter, clients, parse_options

ENDLESS = 10**6


class Net(LeNet5):
    """LeNet5 with the two functions that pfl requires."""

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:  # noqa: ARG002
        return {}


class EachRound(TrainingProcessCallback):
    def __init__(self, meter: Meter):
        self.meter = meter

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.meter.round(COHORT)
        return self.meter.done, Metrics()


def main() -> None:
    options = parse_options()
    shards = clients(options.samples)
    np.random.seed(0)  # noqa: NPY002, pfl draws its seeds from here

    def user(number: int) -> Dataset:
        x, y = shards[number]
        order = torch.randperm(len(x))
        return Dataset(raw_data=[x[order], y[order]], user_id=str(number))

    data = FederatedDataset(user, get_user_sampler("random", range(CLIENTS)))
    net = Net()
    model = PyTorchModel(
        net, local_optimizer_create=torch.optim.SGD, central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0)
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH)
    rounds = NNAlgorithmParams(
        central_num_iterations=ENDLESS, evaluation_frequency=ENDLESS, train_cohort_size=COHORT, val_cohort_size=0
    )
    meter = Meter("pfl-research", version("pfl"), "one process", options.samples, options.seconds, Bare(shards))
    backend = SimulatedBackend(training_data=data, val_data=data)
    FederatedAveraging().run(
        algorithm_params=rounds, backend=backend, model=model, model_train_params=local, callbacks=[EachRound(meter)]
    )
    meter.report()


if __name__ == "__main__":
    main()
