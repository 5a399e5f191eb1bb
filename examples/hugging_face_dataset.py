"""A Hugging Face data set of texts as a task; `pip install "tarry[hub]"`."""

import datasets
import torch
from torch import nn

import tarry

WORDS = ["the", "a", "film", "story", "is", "was", "great", "fine", "warm", "funny", "dull", "slow", "bad", "long"]
GOOD, BAD = {"great", "fine", "warm", "funny"}, {"dull", "slow", "bad", "long"}


def reviews(n: int, seed: int) -> datasets.Dataset:
    """Texts of eight words by twelve authors, with the label 1 if they have more good words than bad ones."""
    drawn = torch.randint(0, len(WORDS), (n, 8), generator=torch.Generator().manual_seed(seed)).tolist()
    texts = [[WORDS[i] for i in row] for row in drawn]
    labels = [int(sum((w in GOOD) - (w in BAD) for w in words) > 0) for words in texts]
    return datasets.Dataset.from_dict(
        {"text": [" ".join(words) for words in texts], "label": labels, "author": [i % 12 for i in range(n)]}
    )


def numbers(row: dict) -> tuple[torch.Tensor, int]:
    """Return the places of the words in the vocabulary, and the label."""
    return torch.tensor([WORDS.index(word) for word in row["text"].split()]), row["label"]


task = tarry.Task.from_dataset(
    reviews(600, seed=0),
    lambda: nn.Sequential(nn.EmbeddingBag(len(WORDS), 8), nn.Linear(8, 2)),
    test=reviews(300, seed=1),
    name="reviews",
    transform=numbers,  # applied once
    clients_by="author",
)
result = tarry.run("orthofl", task, delay="constant", updates=150, lr=0.5)
print(f"{result.n_clients} authors, accuracy {result.final_accuracy:.3f}")
