"""Image and series data sets of the catalog."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from .arrays import ArrayDataset, check_classes, check_shape
from .cifar import read_binary, read_pickles
from .folders import read_cinic10, read_tiny_imagenet
from .har import read_har, read_har_npz
from .hub import image_source
from .idx import MARKS, read_idx
from .leaf import read_femnist
from .npz import read_image_npz
from .sets import DataSet, FileFormat, HubSource, add_set
from .stl10 import read_stl10
from .svhn import FILES as SVHN_FILES
from .svhn import read_svhn

__all__: list[str] = []

ArrayReader = Callable[[Path, str], ArrayDataset]


def _add(
    name: str,
    what: str,
    classes: int,
    *forms: FileFormat,
    shape: tuple[int, int, int] | None,
    examples: tuple[int, int] | None,
    get: str,
    stand_in: str,
    folders: tuple[str, ...] = (),
    hub: HubSource | None = None,
    npz: ArrayReader = read_image_npz,
) -> None:
    """Add a set of images to the catalog. `shape` (height, width, channels) and `examples` are None where they vary."""

    def checked(arrays: ArrayDataset, flag: str) -> ArrayDataset:
        check_classes(arrays, classes, flag, name)
        return arrays if shape is None else check_shape(arrays, shape, flag, name)

    def of(read: ArrayReader) -> ArrayReader:
        return lambda path, flag: checked(read(path, flag), flag)

    every = tuple(FileFormat(f.at, of(f.read), f.marks) for f in (FileFormat((f"{name}.npz",), npz), *forms))
    there = None if hub is None else HubSource(hub.id, lambda flag: checked(hub.read(flag), flag))
    add_set(DataSet(name, what, every, get, stand_in, folders, there, () if examples is None else (examples,)))


_add(
    "mnist",
    "handwritten digits, 28×28 gray, 10 classes: 60,000 / 10,000",
    10,
    FileFormat(("./",), read_idx, MARKS),
    shape=(28, 28, 1),
    examples=(60_000, 10_000),
    folders=("MNIST/raw", "MNIST"),
    get="the four files train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz,"
    " t10k-labels-idx1-ubyte.gz of yann.lecun.com/exdb/mnist, or Keras's mnist.npz",
    stand_in="--task digits, bundled: smaller handwritten digits",
    hub=image_source("ylecun/mnist", rgb=False),
)
_add(
    "fashion_mnist",
    "pieces of clothing, 28×28 gray, 10 classes: 60,000 / 10,000",
    10,
    FileFormat(
        ("fashion_mnist/", "fashion-mnist/", "FashionMNIST/raw/", "FashionMNIST/", "fashion-mnist/data/fashion/"),
        read_idx,
        MARKS,
    ),
    shape=(28, 28, 1),
    examples=(60_000, 10_000),
    get="the four *-ubyte.gz files of github.com/zalandoresearch/fashion-mnist; they have the names of MNIST's, so put"
    " them into a folder fashion_mnist of their own",
    stand_in="--task mnist, or --task digits, bundled",
    hub=image_source("zalando-datasets/fashion_mnist", rgb=False),
)
_add(
    "cifar10",
    "photographs, 32×32 color, 10 classes: 50,000 / 10,000",
    10,
    FileFormat(
        ("cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10/", "CIFAR10/"), read_pickles, ("data_batch_1",)
    ),
    FileFormat(
        ("cifar-10-batches-bin", "cifar-10-binary.tar.gz", "cifar10/", "CIFAR10/"), read_binary, ("data_batch_1.bin",)
    ),
    shape=(32, 32, 3),
    examples=(50_000, 10_000),
    folders=("CIFAR10",),
    get="cifar-10-python.tar.gz from www.cs.toronto.edu/~kriz/cifar.html, as it is or unpacked",
    stand_in="--task digits, bundled, for a first try; svhn or cinic10 for a task of this size",
    hub=image_source("uoft-cs/cifar10", x="img"),
)
_add(
    "cifar100",
    "photographs, 32×32 color, 100 classes: 50,000 / 10,000",
    100,
    FileFormat(
        ("cifar-100-python", "cifar-100-python.tar.gz", "cifar100/", "CIFAR100/"),
        partial(read_pickles, fine=True),
        ("train",),
    ),
    FileFormat(
        ("cifar-100-binary", "cifar-100-binary.tar.gz", "cifar100/", "CIFAR100/"),
        partial(read_binary, fine=True),
        ("train.bin",),
    ),
    shape=(32, 32, 3),
    examples=(50_000, 10_000),
    folders=("CIFAR100",),
    get="cifar-100-python.tar.gz from www.cs.toronto.edu/~kriz/cifar.html, as it is or unpacked",
    stand_in="--task cifar10; as unlabeled set --unlabeled noise or mixup",
    hub=image_source("uoft-cs/cifar100", x="img", y="fine_label"),
)
_add(
    "svhn",
    "digits of house numbers, 32×32 color, 10 classes: 73,257 / 26,032",
    10,
    FileFormat(("./",), read_svhn, SVHN_FILES),
    shape=(32, 32, 3),
    examples=(73_257, 26_032),
    folders=("SVHN",),
    get="train_32x32.mat and test_32x32.mat from ufldl.stanford.edu/housenumbers",
    stand_in="--task cifar10 (same shape) or mnist (same classes)",
    hub=image_source("ufldl-stanford/svhn", config="cropped_digits"),
)
_add(
    "cinic10",
    "photographs of CIFAR-10 and ImageNet, 32×32 color, 10 classes: 90,000 / 90,000 (valid/ is not used)",
    10,
    FileFormat(("CINIC-10", "CINIC-10.tar.gz", "cinic-10", "CINIC10", "cinic10/"), read_cinic10, ("train",)),
    shape=(32, 32, 3),
    examples=(90_000, 90_000),
    get="CINIC-10.tar.gz from datashare.ed.ac.uk/handle/10283/3192, as it is or unpacked into a folder CINIC-10",
    stand_in="--task cifar10 (same classes and size)",
    hub=image_source("flwrlabs/cinic10"),
)
_add(
    "pathmnist",
    "stained tissue of the colon, 28×28 color, 9 classes: 100,000 (training and validation) / 7,180",
    9,
    shape=(28, 28, 3),
    examples=(100_000, 7180),
    folders=("medmnist", "MedMNIST"),
    get="pathmnist.npz (28×28) of MedMNIST v2 from zenodo.org/records/10519652",
    stand_in="--task cifar10",
)
_add(
    "tissuemnist",
    "kidney cortex cells, 28×28 gray, 8 classes: 189,106 (training and validation) / 47,280",
    8,
    shape=(28, 28, 1),
    examples=(189_106, 47_280),
    folders=("medmnist", "MedMNIST"),
    get="tissuemnist.npz (28×28) of MedMNIST v2 from zenodo.org/records/10519652",
    stand_in="--task mnist",
)
_add(
    "femnist",
    "handwritten characters by writer, 28×28 gray, 62 classes, about 3,500 writers: 805,263 in all",
    62,
    FileFormat(
        ("femnist/", "femnist/data/", "FEMNIST/", "leaf/data/femnist/data/"), read_femnist, ("train", "all_data")
    ),
    shape=(28, 28, 1),
    examples=None,
    get="LEAF (github.com/TalwalkarLab/leaf): in data/femnist run ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample and"
    " put the folders train and test, as they are, into a folder femnist",
    stand_in="--task mnist with a Dirichlet partition; --task har has natural groups",
    hub=image_source("flwrlabs/femnist", y="character", group="writer_id", test=None, rgb=False),
)
_add(
    "stl10",
    "photographs, 96×96 color, 10 classes: 5,000 / 8,000, and 100,000 without labels (--unlabeled stl10)",
    10,
    FileFormat(("stl10_binary", "stl10_binary.tar.gz", "stl10/", "STL10/"), read_stl10, ("train_X.bin",)),
    shape=(96, 96, 3),
    examples=(5000, 8000),
    folders=("STL10",),
    get="stl10_binary.tar.gz from cs.stanford.edu/~acoates/stl10, as it is or unpacked",
    stand_in="--task cifar10; as unlabeled set --unlabeled task --unlabeled.of cifar100",
    hub=image_source("tanganke/stl10"),
)
_add(
    "tiny_imagenet",
    "photographs, 64×64 color, 200 classes: 100,000 / 10,000",
    200,
    FileFormat(
        ("tiny-imagenet-200", "tiny-imagenet-200.zip", "tiny_imagenet/", "tiny-imagenet/"),
        read_tiny_imagenet,
        ("train",),
    ),
    shape=(64, 64, 3),
    examples=(100_000, 10_000),
    folders=("tiny-imagenet",),
    get="tiny-imagenet-200.zip from cs231n.stanford.edu, as it is or unpacked",
    stand_in="--task cifar100",
    hub=image_source("zh-plus/tiny-imagenet", test="valid"),
)
_add(
    "har",
    "movements of 30 people recorded by a phone, windows of 128 readings, 6 activities: 7,352 / 2,947",
    6,
    FileFormat(
        ("UCI HAR Dataset", "UCI HAR Dataset.zip", "human+activity+recognition+using+smartphones.zip", "har/", "HAR/"),
        read_har,
        ("train/Inertial Signals",),
    ),
    shape=None,
    examples=(7352, 2947),
    folders=("HAR",),
    get="Human Activity Recognition Using Smartphones from archive.ics.uci.edu/dataset/240, the .zip as it is or the"
    " folder UCI HAR Dataset",
    stand_in="--task digits, bundled; nothing bundled has people as groups",
    npz=read_har_npz,
)
