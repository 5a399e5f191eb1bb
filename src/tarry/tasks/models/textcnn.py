"""TextCNN. Y. Kim 2014, Convolutional Neural Networks for Sentence Classification; Fed-OGD's on AG_NEWS.

    c = f(w · x_{i:i+h−1} + b),   ĉ = max c,   y = W ĉ + b        Eq. 2, 3, 4; h = 3, 4, 5, of 100 maps each; f = ReLU

The embedding is trained with the rest (the paper's CNN-rand). Token 0 is padding: its vector stays 0. The paper has
vectors of 300 and dropout 0.5 before the last layer. Fed-OGD gives only the model's size, 9.92 MB (of 2^20 bytes):
vectors of 100 and 24,790 words have this size. Dropout is 0 by default.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from ...core.errors import BadInput
from .input_checks import check_at_least, check_token_shape
from .registry import Build, ExampleShape, models

__all__ = ["TextCNN"]

_WIDTHS = (3, 4, 5)


class TextCNN(nn.Module):
    """Token numbers, N×L, 0 for padding, to `classes` outputs; L at least 5."""

    shortest = max(_WIDTHS)

    def __init__(self, vocabulary: int, classes: int, *, embedding: int = 100, maps: int = 100, dropout: float = 0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding, maps, width) for width in _WIDTHS)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(len(_WIDTHS) * maps, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        largest = [convolution(x).amax(-1) for convolution in self.convolutions]  # ReLU after max: the same
        out: Tensor = self.head(self.dropout(torch.cat(largest, 1).relu()))
        return out


@models.register("textcnn", paper="Kim 2014, Convolutional Neural Networks for Sentence Classification")
def _textcnn(
    shape: ExampleShape,
    classes: int,
    *,
    vocabulary: Annotated[int, "Number of different tokens, including 0 for padding"],
    embedding: Annotated[int, "Number of features of a token"] = 100,
    maps: Annotated[int, "Number of convolutions of each of the widths 3, 4 and 5"] = 100,
    dropout: Annotated[float, "Share of features dropped in training"] = 0.0,
) -> Build:
    """Convolutions of three widths over word vectors, used by Fed-OGD on AG_NEWS."""
    check_token_shape("textcnn", shape, TextCNN.shortest)
    for flag, value, least in (("vocabulary", vocabulary, 2), ("embedding", embedding, 1), ("maps", maps, 1)):
        check_at_least(flag, value, least)
    if not 0 <= dropout < 1:
        raise BadInput(f"--task.dropout {dropout}: must be at least 0 and below 1")
    return partial(TextCNN, vocabulary, classes, embedding=embedding, maps=maps, dropout=dropout)
