"""Methods that compare classes reject tasks that have none, by the flag that brought them in, before anything runs."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import tarry
from tarry.config.spec import Spec
from tarry.core.errors import BadInput
from tarry.runs.build import build_run

G = torch.Generator().manual_seed(1)
X = [torch.randn(6, 3, generator=G) for _ in range(3)]


def task(targets: list[Tensor], loss: object = nn.functional.mse_loss) -> tarry.Task:
    data = list(zip(X, targets, strict=True))
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
    metrics = ["loss"] if targets[0].is_floating_point() else None
    return tarry.Task("values", model=net, loss=loss, clients=data, test=data[0], metrics=metrics)  # type: ignore[arg-type]


VALUES = task([torch.randn(6, 4, generator=G) for _ in X])
SHARES = task([torch.rand(6, 4, generator=G).softmax(1) for _ in X], nn.functional.cross_entropy)
CLASSES = task([torch.randint(4, (6,), generator=G) for _ in X], nn.functional.cross_entropy)

REFUSED = [
    ("fedsol", "--method.proximal kl: ", "use --method.proximal l2"),
    ("fedavg+local=fedsol", "--local.proximal kl: ", "use --local.proximal l2"),
    ("fedsol:proximal=ntd,strategy=A5", "--method.proximal ntd: ", "use another task"),
    ("fedntd", "--method fedntd: ", "use another task"),
    ("fedecho", "--task values: ", "leave out the distillation"),
    ("fedbuff+distill=fedecho", "--task values: ", "leave out the distillation"),
]
NAMES = [method for method, *_ in REFUSED]


@pytest.mark.parametrize(("method", "flag", "way_out"), REFUSED, ids=NAMES)
def test_a_task_without_classes_is_refused_with_a_way_out(method: str, flag: str, way_out: str) -> None:
    with pytest.raises(BadInput, match=rf"^{re.escape(flag)}.*classes.*'values'.*4 an example.*; .*{way_out}"):
        build_run(Spec.of({"method": method, "task": VALUES}))


SOFT = [name for name in NAMES if "ntd" not in name]


@pytest.mark.parametrize(
    ("method", "of"),
    [*((m, CLASSES) for m in NAMES), *((m, SHARES) for m in SOFT)],
    ids=[*(f"{m} of classes" for m in NAMES), *(f"{m} of shares" for m in SOFT)],
)
def test_classes_and_shares_of_classes_are_learnt(method: str, of: tarry.Task) -> None:
    assert tarry.run(method, of, delay=[1.0] * 3, updates=6, steps=1).updates == 6


@pytest.mark.parametrize(
    "method", ["fedsol:proximal=l2", "fedsol:strategy=A0", "fedsol:rho=0", "fedecho:q=0", "fedavg+local=fedprox"]
)
def test_what_compares_no_classes_learns_values_too(method: str) -> None:
    assert tarry.run(method, VALUES, delay=[1.0] * 3, updates=6, steps=1).updates == 6


@pytest.mark.parametrize("server", ["knn-per", "fedbabu:tune=head", "perfedavg"])
def test_that_others_take_the_place_of_clients_a_method_is_about_is_told(server: str) -> None:
    def problems(**crosses: str) -> list[str]:
        made = build_run(Spec.of({"method": server, "task": CLASSES, "personalize": 1, **crosses}))
        return [remark for remark in made.notices if "takes the place" in remark]

    told = f"--local moon takes the place of {server}'s own clients: its server alone is left of it"
    assert problems(local="moon") == [told]
    assert problems() == problems(local=server) == problems(step="fedasync") == []
