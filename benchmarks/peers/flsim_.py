"""FLSim's asynchronous trainer: FedBuff with a buffer of 10, about 10 clients training at a time, one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any

import no_torchvision  # noqa: F401
import shared_defaults  # noqa: F401
import torch
from flsim.clients.base_client import ClientConfig
from flsim.data.data_provider import IFLDataProvider, IFLUserData
from flsim.interfaces.model import IFLModel
from flsim.optimizers.async_aggregators import FedAvgWithLRFedBuffAggregatorConfig
from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig
from flsim.trainers.async_trainer import AsyncTrainer, AsyncTrainerConfig
from flsim.utils.async_trainer.training_event_generator import (
    AsyncTrainingEventGeneratorConfig,
    PoissonAsyncTrainingStartTimeDistrConfig,
)
from flsim.utils.simple_batch_metrics import FLBatchMetrics
from flsim.utils.timing.training_duration_distribution import PerUserExponentialDurationDistributionConfig
from omegaconf import OmegaConf
from torch import Tensor, nn
from workload import BATCH, COHORT, LR, Bare, LeNet5, Meter, Shard, clients, parse_options

ENDLESS = 1e6


class Enough(Exception):
    """Raised at the end of the time: the trainer cannot be stopped in another way."""


class User(IFLUserData):
    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = x, y

    def num_train_examples(self) -> int:
        return len(self.x)

    def num_train_batches(self) -> int:
        return -(-len(self.x) // BATCH)

    def num_eval_examples(self) -> int:
        return 0

    def num_eval_batches(self) -> int:
        return 0

    def train_data(self) -> Iterator[Shard]:
        for index in torch.randperm(len(self.x)).split(BATCH):
            yield self.x[index], self.y[index]

    def eval_data(self) -> Iterator[Shard]:
        return iter(())


class Users(IFLDataProvider):
    def __init__(self, shards: list[Shard]):
        self.users = [User(*s) for s in shards]

    def train_user_ids(self) -> list[int]:
        return list(range(len(self.users)))

    def num_train_users(self) -> int:
        return len(self.users)

    def get_train_user(self, user_index: int) -> User:
        return self.users[user_index]

    def train_users(self) -> Iterable[User]:
        return self.users

    def eval_users(self) -> Iterable[User]:
        return []

    def test_users(self) -> Iterable[User]:
        return []


class Net(IFLModel):
    def __init__(self) -> None:
        self.module = LeNet5()

    def fl_forward(self, batch: Shard) -> Any:
        x, y = batch
        out = self.module(x)
        loss = nn.functional.cross_entropy(out, y)
        return FLBatchMetrics(loss=loss, num_examples=len(x), predictions=out.detach(), targets=y, model_inputs=[])

    def fl_create_training_batch(self, batch: Shard) -> Shard:
        return batch

    def fl_get_module(self) -> nn.Module:
        return self.module

    def fl_cuda(self) -> None:
        pass

    def get_eval_metrics(self, batch: Shard) -> Any:
        return self.fl_forward(batch)

    def get_num_examples(self, batch: Shard) -> int:
        return len(batch[0])


class Timed(AsyncTrainer):
    meter: Meter

    def train_and_update_global_model(self, client: Any) -> None:
        super().train_and_update_global_model(client)
        self.meter.round(1)
        if self.meter.done:
            raise Enough


def main() -> None:
    options = parse_options()
    shards = clients(options.samples)
    torch.manual_seed(0)
    config = AsyncTrainerConfig(
        epochs=ENDLESS,
        do_eval=False,
        report_train_metrics=False,
        client=ClientConfig(epochs=1, optimizer=LocalOptimizerSGDConfig(lr=LR)),
        aggregator=FedAvgWithLRFedBuffAggregatorConfig(lr=1.0, buffer_size=COHORT),
        training_event_generator=AsyncTrainingEventGeneratorConfig(
            # The number started per second, with a mean duration of 1 s, is the mean number of clients at work.
            training_start_time_distribution=PoissonAsyncTrainingStartTimeDistrConfig(training_rate=COHORT),
            duration_distribution_generator=PerUserExponentialDurationDistributionConfig(training_duration_mean=1.0),
        ),
    )
    trainer = Timed(model=Net(), cuda_enabled=False, **OmegaConf.structured(config))
    trainer.meter = Meter("FLSim", version("flsim"), "FedBuff", options.samples, options.seconds, Bare(shards))
    try:
        trainer.train(Users(shards), None, num_total_users=len(shards))
    except Enough:
        trainer.meter.report()


if __name__ == "__main__":
    main()
