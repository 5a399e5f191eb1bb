"""Types of the parameters that several tasks share. Each string is the help text of a flag."""

from __future__ import annotations

from typing import Annotated

__all__ = [
    "FetchFromHub",
    "ImageModel",
    "LoraAlpha",
    "LoraRank",
    "TestSample",
    "TrainingLimit",
    "TrainingSample",
]

ImageModel = Annotated[
    str, "Name of the model, such as mlp, lenet5, cnn, vgg11 or resnet18; its options are flags of the task"
]
TrainingLimit = Annotated[int | None, "Use only the first N training examples, for quick runs"]
TrainingSample = Annotated[int | None, "Use only N training examples, drawn at random, for quick runs"]
TestSample = Annotated[int | None, "Use only N test examples, drawn at random; none: all"]
FetchFromHub = Annotated[
    bool, "Fetch the data set from the Hugging Face hub if it is not in TARRY_DATA (as TARRY_HUB=1 does)"
]
LoraRank = Annotated[int, "Rank of the LoRA matrices; 0 trains the whole model"]
LoraAlpha = Annotated[float, "α of LoRA: the output of its matrices is scaled by α / rank"]
