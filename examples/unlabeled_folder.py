"""FedEcho with a folder of generated images as its unlabeled inputs, such as the output of a diffusion model.

python -m tarry run --method fedecho --task digits --unlabeled folder --unlabeled.path IMAGES --time 1000
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import tarry


def draw_images(folder: Path, n: int) -> None:
    """Write strokes on black, 8×8, in place of images that a generator was asked for."""
    rng = np.random.default_rng(0)
    for i in range(n):
        row, column = rng.integers(2, 6, size=2)
        image = np.zeros((8, 8), np.uint8)
        image[row - 2 : row + 2, column] = image[row, column - 2 : column + 2] = rng.integers(100, 256)
        Image.fromarray(image).save(folder / f"{i}.png")


def compare(folder: Path) -> None:
    """Print the accuracy of FedBuff, and of FedEcho with the images."""
    fedecho = {"name": "fedecho", "lr": 1e-3}
    for method, more in (("fedbuff", {}), (fedecho, {"unlabeled": {"name": "folder", "path": str(folder)}})):
        result = tarry.run(method, "digits", delay="fedecho-mild", clients=10, time=1000, lr=0.1, **more)
        print(f"{result.method:8} {result.final_accuracy:.3f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compare(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            draw_images(Path(made), 200)
            compare(Path(made))
