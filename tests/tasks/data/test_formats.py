"""Every named set, in every form it is distributed in: pixels, labels, orientation and groups as they were written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tarry.tasks.data import ArrayDataset, catalog, load
from tarry.tasks.data.sets import collect_notices
from tests.tasks.data.file_writers import (
    SHAPES,
    Made,
    batches,
    binary,
    har,
    leaf,
    made,
    picture,
    rejected,
    save,
    stl10,
    write,
    write_idx,
    write_svhn,
    write_tar,
    zipped,
)

RNG = np.random.default_rng(3)


def same(a: ArrayDataset, m: Made) -> None:
    assert np.array_equal(a.x_train, m.x_train)
    assert np.array_equal(a.x_test, m.x_test)
    assert a.y_train.tolist() == m.y_train.tolist()
    assert a.y_test.tolist() == m.y_test.tolist()
    assert (a.y_train.dtype, a.y_test.dtype) == (np.int64, np.int64)
    assert (a.groups is None) == (m.groups is None)
    if a.groups is not None:
        assert a.groups.tolist() == m.groups.tolist()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("mnist", "."),
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion_mnist", "fashion_mnist"),
        ("fashion_mnist", "FashionMNIST/raw"),
        ("fashion_mnist", "fashion-mnist/data/fashion"),
    ],
)
def test_idx_files_are_read_packed_or_not_from_their_folders(folder: Path, name: str, where: str, packed: bool) -> None:
    m = made(28, 28)
    write_idx(folder / where, m, packed=packed)
    same(load(name), m)


def test_idx_files_in_the_folder_itself_are_mnist_and_never_fashion_mnist(folder: Path) -> None:
    write_idx(folder, made(28, 28))
    assert catalog()["mnist"].find() is not None
    assert catalog()["fashion_mnist"].find() is None


PICKLES = [{"python": 2}, {"python": 3, "protocol": 2}, {"python": 3, "protocol": 4}, {"python": 3, "protocol": 5}]


@pytest.mark.parametrize("how", PICKLES)
@pytest.mark.parametrize(
    ("name", "fine", "at"),
    [
        ("cifar10", False, "cifar-10-batches-py"),
        ("cifar10", False, "cifar10/cifar-10-batches-py"),
        ("cifar100", True, "cifar-100-python"),
    ],
)
def test_cifar_pickles_are_read_whoever_wrote_them(
    folder: Path, name: str, fine: bool, at: str, how: dict[str, int]
) -> None:
    m = made(32, 32, 3, classes=100 if fine else 10)
    write(folder / at, batches(m, fine=fine, **how))
    same(load(name), m)


@pytest.mark.parametrize(("name", "fine"), [("cifar10", False), ("cifar100", True)])
@pytest.mark.parametrize(("end", "kind"), [("tar.gz", "w:gz"), ("tgz", "w:gz"), ("tar", "w")])
def test_cifar_archives_are_read_as_they_are(folder: Path, name: str, fine: bool, end: str, kind: str) -> None:
    m = made(32, 32, 3, classes=100 if fine else 10)
    base = "cifar-100-python" if fine else "cifar-10-batches-py"
    archive = folder / f"{'cifar-100-python' if fine else 'cifar-10-python'}.{end}"
    write_tar(archive, {**batches(m, fine=fine), "readme.html": b"<html>"}, under=f"{base}/", kind=kind)
    same(load(name), m)
    assert [p.name for p in folder.iterdir()] == [archive.name]


@pytest.mark.parametrize(("name", "fine"), [("cifar10", False), ("cifar100", True)])
@pytest.mark.parametrize("packed", [True, False])
def test_cifars_binary_version_is_read_as_folder_and_archive(folder: Path, name: str, fine: bool, packed: bool) -> None:
    m = made(32, 32, 3, classes=100 if fine else 10)
    base = "cifar-100-binary" if fine else "cifar-10-batches-bin"
    if packed:
        file = "cifar-100-binary.tar.gz" if fine else "cifar-10-binary.tar.gz"
        write_tar(folder / file, binary(m, fine=fine), under=f"{base}/")
    else:
        write(folder / base, binary(m, fine=fine))
    same(load(name), m)


@pytest.mark.parametrize("where", [".", "svhn", "SVHN"])
def test_svhn_comes_image_by_image_and_its_ten_is_a_zero(folder: Path, where: str) -> None:
    m = made(32, 32, 3)
    assert 0 in m.y_train
    write_svhn(folder / where, m)
    same(load("svhn"), m)


@pytest.mark.parametrize("packed", [True, False])
def test_stl10_is_turned_upright_and_counted_from_zero(folder: Path, packed: bool) -> None:
    m = made(96, 96, 3, n=3, tested=2)
    m.x_train[0] = 0
    m.x_train[0, :10, :, 0] = 255  # a red band along the top
    if packed:
        write_tar(folder / "stl10_binary.tar.gz", stl10(m), under="stl10_binary/")
    else:
        write(folder / "stl10" / "stl10_binary", stl10(m))
    a = load("stl10")
    same(a, m)
    assert (a.x_train[0, :10, :, 0] == 255).all()
    assert not a.x_train[0, 10:].any()


def femnist() -> tuple[dict[str, bytes], Made]:
    """Two writers in two files; test examples of both."""

    def some(n: int) -> tuple[Any, list[Any], list[int]]:
        pixels = RNG.integers(0, 256, (n, 28, 28), np.uint8)
        return pixels, [[round(v / 255, 6) for v in row] for row in pixels.reshape(n, 784).tolist()], [61, 0, 7, 35][:n]

    (a, xa, ya), (b, xb, yb), (t, xt, yt) = some(3), some(4), some(2)
    contents = {
        "train/all_data_0_niid_0_keep_0_train_9.json": leaf({"f0001_41": (xa, ya)}),
        "train/all_data_1_niid_0_keep_0_train_9.json": leaf({"f0002_08": (xb, yb)}),
        "test/all_data_0_niid_0_keep_0_test_9.json": leaf({"f0002_08": (xt[:1], yt[:1]), "f0001_41": (xt[1:], yt[1:])}),
    }
    m = Made(np.concatenate([a, b]), np.array(ya + yb), t, np.array(yt), np.array([0] * 3 + [1] * 4))
    return contents, m


@pytest.mark.parametrize("where", ["femnist", "femnist/data", "leaf/data/femnist/data"])
def test_leafs_files_are_read_with_the_writer_as_group(folder: Path, where: str) -> None:
    contents, m = femnist()
    write(folder / where, contents)
    same(load("femnist"), m)


def test_leaf_without_a_split_holds_out_a_fifth_and_keeps_the_writers(folder: Path) -> None:
    pixels = [[0.0] * 783 + [i / 10] for i in range(10)]
    users = {"a": (pixels[:6], [0, 1, 0, 1, 0, 1]), "b": (pixels[6:], [1, 0, 1, 0])}
    write(folder / "femnist" / "all_data", {"all_data_0.json": leaf(users)})
    a = load("femnist")
    assert (len(a.x_train), len(a.x_test)) == (8, 2)
    assert sorted(a.y_test.tolist()) == [0, 1]
    assert a.groups is not None
    number = np.rint(a.x_train[:, 27, 27] / 25.5)
    assert a.groups.tolist() == [0 if n < 6 else 1 for n in number]


def tiny() -> tuple[dict[str, bytes], Made]:
    """Three classes; PNG, so that no pixel is lost; class numbers follow the sorted names, images class and name."""
    m = made(64, 64, 3, classes=3, n=6, tested=3)
    m.y_train, m.y_test = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 2])
    names = ["n01443537", "n01629819", "n09256479"]
    contents = {"wnids.txt": "\n".join(reversed(names)).encode()}
    for i, (image, label) in enumerate(zip(m.x_train, m.y_train, strict=True)):
        contents[f"train/{names[label]}/images/{names[label]}_{i}.JPEG"] = picture(image, "png")
    for i, (image, label) in enumerate(zip(m.x_test, m.y_test, strict=True)):
        contents[f"val/images/val_{9 - i}.JPEG"] = picture(image, "png")
        contents["val/val_annotations.txt"] = (
            contents.get("val/val_annotations.txt", b"") + f"val_{9 - i}.JPEG\t{names[label]}\t0\t0\t62\t62\n".encode()
        )
    contents["test/images/test_0.JPEG"] = picture(m.x_test[0], "png")
    return contents, m


@pytest.mark.parametrize("how", ["folder", "zip", "sorted val"])
def test_tiny_imagenet_is_read_with_its_annotations(folder: Path, how: str) -> None:
    contents, m = tiny()
    if how == "zip":
        (folder / "tiny-imagenet-200.zip").write_bytes(zipped(contents, under="tiny-imagenet-200/"))
    else:
        if how == "sorted val":
            told = dict(line.split("\t")[:2] for line in contents.pop("val/val_annotations.txt").decode().splitlines())
            for name in [n for n in contents if n.startswith("val/images/")]:
                file = name.rpartition("/")[2]
                contents[f"val/{told[file]}/images/{file}"] = contents.pop(name)
        write(folder / "tiny-imagenet-200", contents)
    same(load("tiny_imagenet"), m)


def test_jpeg_and_grey_pictures_become_colour(folder: Path) -> None:
    contents, m = tiny()
    gray = np.full((64, 64), 90, np.uint8)
    first = next(n for n in contents if n.startswith("train/"))
    contents[first] = picture(gray, "jpeg")
    write(folder / "tiny-imagenet-200", contents)
    a = load("tiny_imagenet")
    assert np.abs(a.x_train[0].astype(int) - 90).max() <= 2
    assert np.array_equal(a.x_train[1:], m.x_train[1:])


@pytest.mark.parametrize("how", ["CINIC-10", "cinic10", "CINIC-10.tar.gz"])
def test_cinic10_takes_train_and_test_and_leaves_valid(folder: Path, how: str) -> None:
    m = made(32, 32, 3, classes=2, n=4, tested=2)
    m.y_train, m.y_test = np.array([0, 0, 9, 9]), np.array([0, 9])
    contents = {"valid/airplane/x.png": picture(m.x_test[0], "png"), "README": b"text"}
    for part, x, y in (("train", m.x_train, m.y_train), ("test", m.x_test, m.y_test)):
        for i, (image, label) in enumerate(zip(x, y, strict=True)):
            contents[f"{part}/{'truck' if label else 'airplane'}/cifar10-{part}-{i}.png"] = picture(image, "png")
    if how.endswith("gz"):
        write_tar(folder / how, contents, under="./")  # as its authors packed it: no folder around
    else:
        write(folder / how, contents)
    same(load("cinic10"), m)


def activities() -> Made:
    x, xt = (RNG.normal(0, 1, (n, 9, 128)).astype(np.float32) for n in (5, 3))
    return Made(x, np.array([0, 5, 2, 2, 1]), xt, np.array([3, 0, 5]), np.array([1, 1, 7, 7, 29]))


def nested(contents: dict[str, bytes]) -> bytes:
    inner = zipped(contents, under="UCI HAR Dataset/")
    return zipped({"UCI HAR Dataset.names": b"", "UCI HAR Dataset.zip": inner})


WAYS: dict[str, Callable[[Path, dict[str, bytes]], Any]] = {
    "folder": lambda f, c: write(f / "UCI HAR Dataset", c),
    "sub-folder": lambda f, c: write(f / "har" / "UCI HAR Dataset", c),
    "folder of its name": lambda f, c: write(f / "har", c),
    "zip": lambda f, c: (f / "UCI HAR Dataset.zip").write_bytes(zipped(c, under="UCI HAR Dataset/")),
    "zip in zip": lambda f, c: (f / "human+activity+recognition+using+smartphones.zip").write_bytes(nested(c)),
}


@pytest.mark.parametrize("way", WAYS)
def test_har_is_channels_first_with_the_person_as_group(folder: Path, way: str) -> None:
    m = activities()
    WAYS[way](folder, har(m))
    a = load("har")
    assert a.x_train.shape == (5, 9, 128)
    assert np.allclose(a.x_train, m.x_train, atol=1e-6)
    assert np.allclose(a.x_test, m.x_test, atol=1e-6)
    m.x_train, m.x_test = a.x_train, a.x_test
    same(a, m)


@pytest.mark.parametrize("turned", [True, False])
def test_har_npz_is_turned_channels_first(folder: Path, turned: bool) -> None:
    x = RNG.normal(0, 1, (6, 6, 128)).astype(np.float32)
    stored = x.transpose(0, 2, 1) if turned else x
    np.savez(folder / "har.npz", x=stored, y=np.arange(6), subject=np.arange(6) + 3, is_test=np.arange(6) > 3)
    a = load("har")
    same(a, Made(x[:4], np.arange(4), x[4:], np.array([4, 5]), np.arange(4) + 3))


def medmnist(m: Made, val: Made) -> dict[str, Any]:
    parts = {"train": (m.x_train, m.y_train), "val": (val.x_train, val.y_train), "test": (m.x_test, m.y_test)}
    out = {f"{part}_images": x for part, (x, _) in parts.items()}
    return out | {f"{part}_labels": y[:, None].astype(np.uint8) for part, (_, y) in parts.items()}


@pytest.mark.parametrize(("name", "shape"), [("pathmnist", (28, 28, 3)), ("tissuemnist", (28, 28))])
@pytest.mark.parametrize("where", [".", "medmnist"])
def test_medmnist_files_are_read_and_validation_joins_training(
    folder: Path, name: str, shape: tuple[int, ...], where: str
) -> None:
    m, val = made(*shape, classes=8), made(*shape, classes=8, n=4)
    (folder / where).mkdir(exist_ok=True)
    np.savez_compressed(folder / where / f"{name}.npz", **medmnist(m, val))
    both = Made(np.concatenate([m.x_train, val.x_train]), np.concatenate([m.y_train, val.y_train]), m.x_test, m.y_test)
    same(load(name), both)


@pytest.mark.parametrize("name", SHAPES)
def test_the_npz_form_comes_before_every_other(folder: Path, name: str) -> None:
    m = made(*SHAPES[name], classes=8)
    save(folder, name, m)
    write(folder / "cifar-10-batches-py", {"data_batch_1": b"broken"})
    same(load(name), m)


COPIES: dict[str, tuple[str, Callable[[], tuple[dict[str, bytes], Made]]]] = {
    "cifar10": ("cifar-10-batches-py", lambda: (lambda m: (batches(m, fine=False), m))(made(32, 32, 3))),
    "stl10": ("stl10_binary", lambda: (lambda m: (stl10(m), m))(made(96, 96, 3, n=2, tested=1))),
    "har": ("UCI HAR Dataset", lambda: (lambda m: (har(m), m))(activities())),
    "femnist": ("femnist", femnist),
    "tiny_imagenet": ("tiny-imagenet-200", tiny),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("below", ["a copy", "zz"])
def test_a_copy_in_a_sub_folder_is_passed_over(folder: Path, name: str, below: str) -> None:
    at, make = COPIES[name]
    (contents, m), (others, _) = make(), make()
    write(folder / at, contents)
    write(folder / at / below, others)
    a = load(name)
    assert np.allclose(a.x_train, m.x_train, atol=1e-6)
    assert np.allclose(a.x_test, m.x_test, atol=1e-6)
    assert a.y_train.tolist() == m.y_train.tolist()


@pytest.mark.parametrize("name", [n for n in COPIES if n != "femnist"])  # its train/ must lie at the top
def test_two_copies_side_by_side_are_refused(folder: Path, name: str) -> None:
    at, make = COPIES[name]
    for below in ("one", "two"):
        write(folder / at / below, make()[0])
    rejected(name, rf"{at}: its files are in both one/ and two/; delete one of these copies$")


def test_batches_that_are_missing_are_not_taken_from_a_copy(folder: Path) -> None:
    contents = batches(made(32, 32, 3), fine=False)
    write(folder / "cifar-10-batches-py" / "old", contents)
    del contents["data_batch_4"]
    write(folder / "cifar-10-batches-py", contents)
    rejected("cifar10", r"cifar-10-batches-py: lacks data_batch_4$")


@pytest.mark.parametrize("below", ["a copy", "zz"])
def test_a_copy_in_an_archive_is_passed_over_or_refused_where_it_comes_first(folder: Path, below: str) -> None:
    (contents, m), (others, _) = tiny(), tiny()
    both = {**contents, **{f"{below}/{name}": content for name, content in others.items()}}
    (folder / "tiny-imagenet-200.zip").write_bytes(zipped(dict(sorted(both.items())), under="tiny-imagenet-200/"))
    same(load("tiny_imagenet"), m)
    m = made(32, 32, 3)
    files = batches(m, fine=False)
    both = {**files, **{f"{below}/{name}": c for name, c in batches(made(32, 32, 3), fine=False).items()}}
    write_tar(folder / "cifar-10-python.tar.gz", dict(sorted(both.items())), under="cifar-10-batches-py/")
    if below == "zz":
        same(load("cifar10"), m)
    else:
        rejected("cifar10", "are in both cifar-10-batches-py/ and cifar-10-batches-py/a copy/; delete one")


def test_femnist_at_the_top_comes_before_femnist_further_down(folder: Path) -> None:
    (contents, m), (others, _) = femnist(), femnist()
    write(folder / "femnist", contents)
    write(folder / "femnist" / "data", others)
    same(load("femnist"), m)


def test_what_macos_leaves_beside_a_file_is_passed_over(folder: Path) -> None:
    contents, m = femnist()
    write(folder / "femnist", {**contents, "train/._all_data_0.json": b"\0\5\26\7", "test/._x.json": b""})
    same(load("femnist"), m)


def pictures_of(names: list[str], side: int, kind: str = "{part}/{name}/{i}.png") -> dict[str, bytes]:
    black = picture(np.zeros((side, side, 3), np.uint8), "png")
    parts = ("train", "test") if side == 32 else ("train", "val")
    return {kind.format(part=part, name=name, i=i): black for part in parts for i, name in enumerate(names)}


def test_a_class_of_cinic10_keeps_its_number_where_others_are_missing(folder: Path) -> None:
    write(folder / "CINIC-10", pictures_of(["bird", "truck"], 32))
    (folder / "CINIC-10" / "train" / "airplane").mkdir()
    with collect_notices() as said:
        a = load("cinic10")
    assert (a.y_train.tolist(), a.y_test.tolist()) == ([2, 9], [2, 9])
    gone = "airplane, automobile, cat, deer, dog, frog, horse, ship"
    assert said[:2] == [f"CINIC-10: train/ has no images of {gone}", f"CINIC-10: test/ has no images of {gone}"]
    write(folder / "CINIC-10", pictures_of(["zebra"], 32))
    rejected("cinic10", r"the class of zebra/0.png is not among the 10: airplane, automobile, .*, truck$")


@pytest.mark.parametrize("listed", [True, False])
def test_the_classes_of_tiny_imagenet_are_those_of_its_list(folder: Path, listed: bool) -> None:
    contents = pictures_of(["n2", "n5"], 64)
    write(folder / "tiny-imagenet-200", {**contents, **({"wnids.txt": b"n5\nn1\nn2\n"} if listed else {})})
    with collect_notices() as said:
        assert load("tiny_imagenet").y_train.tolist() == ([1, 2] if listed else [0, 1])
    assert ("tiny-imagenet-200: train/ has no images of n1" in said) == listed
    write(folder / "tiny-imagenet-200", pictures_of(["n9"], 64))
    if listed:
        rejected("tiny_imagenet", r"the class of n9/0.png is not among the 3: n1, n2, n5$")
    else:
        assert load("tiny_imagenet").y_train.tolist() == [0, 1, 2]


@pytest.mark.parametrize("where", ["cifar10", "CIFAR10"])
@pytest.mark.parametrize("form", [batches, binary])
def test_cifar_is_read_where_it_lies_in_the_sets_folder_itself(
    folder: Path, where: str, form: Callable[..., dict[str, bytes]]
) -> None:
    for name, fine in ((where, False), (f"{where}0", True)):
        m = made(32, 32, 3)
        write(folder / name, form(m, fine=fine))
        same(load(name.lower()), m)


@pytest.mark.parametrize(("name", "where"), [("stl10", "stl10"), ("tiny_imagenet", "tiny_imagenet"), ("har", "HAR")])
def test_a_set_is_read_where_it_lies_in_its_folder_itself(folder: Path, name: str, where: str) -> None:
    contents, m = COPIES[name][1]()
    write(folder / where, contents)
    assert np.allclose(load(name).x_train, m.x_train, atol=1e-6)


@pytest.mark.parametrize("packed", [True, False])
def test_an_idx_file_is_unpacked_by_what_is_in_it_whatever_its_name(folder: Path, packed: bool) -> None:
    m = made(28, 28)
    write_idx(folder, m, packed=packed)
    for path in list(folder.iterdir()):
        path.rename(path.with_suffix("") if packed else f"{path}.gz")
    same(load("mnist"), m)
