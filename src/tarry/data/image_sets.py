"""The sets of images and series in the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from .arrays import Arrays, check_classes
from .cifar import read_binary, read_pickles
from .folders import read_cinic10, read_tiny_imagenet
from .har import read_har, read_har_npz
from .hub import pictures
from .idx import MARKS, read_idx
from .leaf import read_femnist
from .npz import read_pictures
from .sets import DataSet, Form, Hub, add
from .stl10 import read_stl10
from .svhn import FILES as SVHN_FILES
from .svhn import read_svhn

__all__: list[str] = []

Read = Callable[[Path, str], Arrays]


def _checked(read: Read, name: str, classes: int) -> Read:
    return lambda path, flag: check_classes(read(path, flag), classes, flag, name)


def _add(
    name: str,
    what: str,
    classes: int,
    *forms: Form,
    get: str,
    stand_in: str,
    folders: tuple[str, ...] = (),
    hub: Hub | None = None,
    npz: Read = read_pictures,
) -> None:
    every = (Form((f"{name}.npz",), npz), *forms)
    checked = tuple(Form(f.at, _checked(f.read, name, classes), f.marks) for f in every)
    add(DataSet(name, what, checked, get, stand_in, folders, None if hub is None else _from_hub(hub, name, classes)))


def _from_hub(hub: Hub, name: str, classes: int) -> Hub:
    return Hub(hub.id, lambda flag: check_classes(hub.read(flag), classes, flag, name))


_add(
    "mnist",
    "handwritten digits, 28×28 grey, 10 classes: 60,000 / 10,000",
    10,
    Form(("./",), read_idx, MARKS),
    folders=("mnist", "MNIST/raw", "MNIST"),
    get="the four files train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz,"
    " t10k-labels-idx1-ubyte.gz of yann.lecun.com/exdb/mnist, or Keras's mnist.npz",
    stand_in="--task digits, bundled: smaller handwritten digits",
    hub=pictures("ylecun/mnist", rgb=False),
)
_add(
    "fashion_mnist",
    "pieces of clothing, 28×28 grey, 10 classes: 60,000 / 10,000",
    10,
    Form(
        ("fashion_mnist/", "fashion-mnist/", "FashionMNIST/raw/", "FashionMNIST/", "fashion-mnist/data/fashion/"),
        read_idx,
        MARKS,
    ),
    get="the four *-ubyte.gz files of github.com/zalandoresearch/fashion-mnist; they have the names of MNIST's, so put"
    " them into a folder fashion_mnist of their own",
    stand_in="--task mnist, or --task digits, bundled",
    hub=pictures("zalando-datasets/fashion_mnist", rgb=False),
)
_add(
    "cifar10",
    "photographs, 32×32 colour, 10 classes: 50,000 / 10,000",
    10,
    Form(("cifar-10-batches-py", "cifar-10-python.tar.gz"), read_pickles),
    Form(("cifar-10-batches-bin", "cifar-10-binary.tar.gz"), read_binary),
    folders=("cifar10", "CIFAR10"),
    get="cifar-10-python.tar.gz from www.cs.toronto.edu/~kriz/cifar.html, as it is or unpacked",
    stand_in="--task digits, bundled, for a first try; svhn or cinic10 for a task of this size",
    hub=pictures("uoft-cs/cifar10", x="img"),
)
_add(
    "cifar100",
    "photographs, 32×32 colour, 100 classes: 50,000 / 10,000",
    100,
    Form(("cifar-100-python", "cifar-100-python.tar.gz"), partial(read_pickles, fine=True)),
    Form(("cifar-100-binary", "cifar-100-binary.tar.gz"), partial(read_binary, fine=True)),
    folders=("cifar100", "CIFAR100"),
    get="cifar-100-python.tar.gz from www.cs.toronto.edu/~kriz/cifar.html, as it is or unpacked",
    stand_in="--task cifar10; as unlabelled set --unlabelled noise or mixup",
    hub=pictures("uoft-cs/cifar100", x="img", y="fine_label"),
)
_add(
    "svhn",
    "digits of house numbers, 32×32 colour, 10 classes: 73,257 / 26,032",
    10,
    Form(("./",), read_svhn, SVHN_FILES),
    folders=("svhn", "SVHN"),
    get="train_32x32.mat and test_32x32.mat from ufldl.stanford.edu/housenumbers",
    stand_in="--task cifar10 (same shape) or mnist (same classes)",
    hub=pictures("ufldl-stanford/svhn", config="cropped_digits"),
)
_add(
    "cinic10",
    "photographs of CIFAR-10 and ImageNet, 32×32 colour, 10 classes: 90,000 / 90,000 (valid/ is not used)",
    10,
    Form(("CINIC-10", "CINIC-10.tar.gz", "cinic-10", "CINIC10", "cinic10/"), read_cinic10, ("train",)),
    folders=("cinic10",),
    get="CINIC-10.tar.gz from datashare.ed.ac.uk/handle/10283/3192, as it is or unpacked into a folder CINIC-10",
    stand_in="--task cifar10 (same classes and size)",
    hub=pictures("flwrlabs/cinic10"),
)
_add(
    "pathmnist",
    "stained tissue of the colon, 28×28 colour, 9 classes: 100,000 (training and validation) / 7,180",
    9,
    folders=("medmnist", "MedMNIST"),
    get="pathmnist.npz (28×28) of MedMNIST v2 from zenodo.org/records/10519652",
    stand_in="--task cifar10",
)
_add(
    "tissuemnist",
    "kidney cortex cells, 28×28 grey, 8 classes: 189,106 (training and validation) / 47,280",
    8,
    folders=("medmnist", "MedMNIST"),
    get="tissuemnist.npz (28×28) of MedMNIST v2 from zenodo.org/records/10519652",
    stand_in="--task mnist",
)
_add(
    "femnist",
    "handwritten characters by writer, 28×28 grey, 62 classes, about 3,500 writers: 805,263 in all",
    62,
    Form(("femnist/data/", "femnist/", "leaf/data/femnist/data/", "FEMNIST/"), read_femnist, ("train", "all_data")),
    get="LEAF (github.com/TalwalkarLab/leaf): in data/femnist run ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample and"
    " put the folders train and test, as they are, into a folder femnist",
    stand_in="--task mnist with a Dirichlet partition; --task har has natural groups",
    hub=pictures("flwrlabs/femnist", y="character", group="writer_id", test=None, rgb=False),
)
_add(
    "stl10",
    "photographs, 96×96 colour, 10 classes: 5,000 / 8,000, and 100,000 without labels (--unlabelled stl10)",
    10,
    Form(("stl10_binary", "stl10_binary.tar.gz"), read_stl10),
    folders=("stl10", "STL10"),
    get="stl10_binary.tar.gz from cs.stanford.edu/~acoates/stl10, as it is or unpacked",
    stand_in="--task cifar10; as unlabelled set --unlabelled task --unlabelled.of cifar100",
    hub=pictures("tanganke/stl10"),
)
_add(
    "tiny_imagenet",
    "photographs, 64×64 colour, 200 classes: 100,000 / 10,000",
    200,
    Form(("tiny-imagenet-200", "tiny-imagenet-200.zip"), read_tiny_imagenet),
    folders=("tiny_imagenet", "tiny-imagenet"),
    get="tiny-imagenet-200.zip from cs231n.stanford.edu, as it is or unpacked",
    stand_in="--task cifar100",
    hub=pictures("zh-plus/tiny-imagenet", test="valid"),
)
_add(
    "har",
    "movements of 30 people recorded by a phone, windows of 128 readings, 6 activities: 7,352 / 2,947",
    6,
    Form(
        ("UCI HAR Dataset", "UCI HAR Dataset.zip", "human+activity+recognition+using+smartphones.zip", "har/"),
        read_har,
        ("train/Inertial Signals",),
    ),
    folders=("har", "HAR"),
    get="Human Activity Recognition Using Smartphones from archive.ics.uci.edu/dataset/240, the .zip as it is or the"
    " folder UCI HAR Dataset",
    stand_in="--task digits, bundled; nothing bundled has people as groups",
    npz=read_har_npz,
)
