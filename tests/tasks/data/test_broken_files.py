"""Files that are torn, lie about their size, or want to do harm: a sentence says what is wrong, and nothing happens."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tarry.tasks.data import archives as places_module
from tests.tasks.data.file_writers import (
    batches,
    har,
    idx,
    leaf,
    made,
    picture,
    rejected,
    stl10,
    write,
    write_idx,
    write_svhn,
    write_tar,
    zipped,
)
from tests.tasks.data.test_formats import activities, femnist, tiny


def test_a_missing_batch_is_named(folder: Path) -> None:
    contents = batches(made(32, 32, 3), fine=False)
    del contents["data_batch_4"]
    write(folder / "cifar-10-batches-py", contents)
    rejected("cifar10", r"cifar-10-batches-py: lacks data_batch_4$")


def test_a_row_of_the_binary_version_that_is_cut_off_is_refused(folder: Path) -> None:
    write(folder / "cifar-100-binary", {"train.bin": bytes(3074 * 2), "test.bin": bytes(3000)})
    rejected("cifar100", r"test.bin: holds 3,000 bytes; expected rows of 3,074")


LYING = bytes([0, 0, 8, 3]) + struct.pack(">III", 4_000_000_000, 28, 28)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LYING, "claims 3,136,000,000,000 bytes; at most"),
        (bytes([0, 0, 8, 3]) + struct.pack(">III", 5_000_000, 28, 28), "claims 3,920,000,000 bytes and holds 0"),
        (idx(np.zeros((3, 28, 28)))[:-1], "claims 2,352 bytes and holds 2351"),
        (idx(np.zeros((3, 28, 28))) + b"!", "claims 2,352 bytes and holds more"),
        (idx(np.zeros(12)), "begins with 00 00 08 01, not 00 00 08 03"),
        (bytes([0, 0, 13, 3]) + bytes(12), "begins with 00 00 0d 03"),
        (b"", "begins with nothing"),
        (idx(np.zeros((3, 28, 28))), "train-labels-idx1-ubyte is int64 12|expected one number for each of the 3"),
    ],
)
def test_an_idx_file_that_lies_is_refused_without_making_what_it_claims(
    folder: Path, content: bytes, message: str
) -> None:
    write_idx(folder, made(28, 28))
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
    tracemalloc.start()
    rejected("mnist", message)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def test_a_torn_gzip_and_a_missing_part_are_named(folder: Path) -> None:
    write_idx(folder, made(28, 28))
    file = folder / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:100])
    rejected("mnist", r"t10k-images-idx3-ubyte.gz is no idx file of bytes \(EOFError")
    file.unlink()
    rejected("mnist", r"lacks t10k-images-idx3-ubyte.gz \(the four files belong together")


def npz_member(header: dict[str, Any], content: bytes) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, header)  # type: ignore[arg-type]
    return buffer.getvalue() + content


def test_an_npz_whose_header_claims_a_million_million_images_allocates_nothing(folder: Path) -> None:
    claim = npz_member({"descr": "|u1", "fortran_order": False, "shape": (10**12, 28, 28)}, bytes(100))
    with zipfile.ZipFile(folder / "mnist.npz", "w") as z:
        z.writestr("x_train.npy", claim)
    tracemalloc.start()
    rejected("mnist", r"is not a plain .npz archive of numbers .*x_train.npy claims 784,000,000,000,000 bytes")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_an_npz_whose_header_claims_more_than_its_member_holds_is_refused(folder: Path) -> None:
    claim = npz_member({"descr": "|u1", "fortran_order": False, "shape": (10**6, 28, 28)}, bytes(100))
    with zipfile.ZipFile(folder / "mnist.npz", "w") as z:
        z.writestr("x_train.npy", claim)
    rejected("mnist", r"x_train.npy claims 784,000,000 bytes of numbers and holds \d+ in all")


def test_several_labels_an_image_and_parts_that_differ_are_refused_in_medmnists_form(folder: Path) -> None:
    x, y = np.zeros((4, 28, 28), np.uint8), np.zeros((4, 1), np.uint8)
    base = {"train_images": x, "train_labels": y, "val_images": x, "val_labels": y, "test_images": x, "test_labels": y}
    np.savez(folder / "pathmnist.npz", **{**base, "val_labels": np.zeros((4, 14), np.uint8)})
    rejected("pathmnist", "val_labels is uint8 4×14: several labels an image")
    np.savez(folder / "pathmnist.npz", **{**base, "val_images": np.zeros((4, 28, 28, 3), np.uint8)})
    rejected(
        "pathmnist", "train_images is uint8 4×28×28 and val_images uint8 4×28×28×3; type and shape must be the same"
    )
    np.savez(folder / "pathmnist.npz", **{**base, "val_labels": y[:3]})
    rejected("pathmnist", "val_labels is uint8 3; expected one number for each of the 4")
    np.savez(folder / "pathmnist.npz", **{**base, "test_labels": y + 9})
    rejected("pathmnist", "has the label 9; pathmnist has the classes 0 … 8")


def test_archives_are_read_without_leaving_them_and_without_following_links(folder: Path) -> None:
    secret = write(folder / "elsewhere", {"data_batch_1": b"secret"}) / "data_batch_1"
    contents = batches(made(32, 32, 3), fine=False)
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        link = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        tar.addfile(link)
        for name, content in contents.items():
            if name != "data_batch_1":
                info = tarfile.TarInfo(f"../../outside/{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    before = sorted(folder.parent.rglob("*"))
    rejected("cifar10", r"cifar-10-python.tar.gz: lacks data_batch_1$")
    assert sorted(folder.parent.rglob("*")) == before


def test_a_file_of_an_archive_beyond_the_bound_is_refused_before_it_is_unpacked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w", zipfile.ZIP_DEFLATED)
    with bomb as z:
        z.writestr("tiny-imagenet-200/train/a/images/a_0.JPEG", bytes(9 << 20))
    rejected("tiny_imagenet", r"a_0.JPEG claims 9,437,184 bytes; at most 8,388,608 are read")
    monkeypatch.setattr(places_module, "MOST_ARCHIVE", 1 << 20)
    rejected("tiny_imagenet", r"the archive claims 9,437,184 bytes; at most 1,048,576 are read")
    write_tar(folder / "cifar-10-python.tar.gz", {"padding": bytes(2 << 20), **batches(made(32, 32, 3), fine=False)})
    rejected("cifar10", r"the archive claims 2,\d+,\d+ bytes; at most 1,048,576 are read")


@pytest.mark.parametrize(
    "content",
    # A gzip header holds the time of writing: without a fixed one the two workers of a run name the test differently.
    [b"", b"no archive at all", gzip.compress(bytes(2000), mtime=0)[:40]],
    ids=["empty", "text", "torn"],
)
def test_what_is_no_archive_is_refused(folder: Path, content: bytes) -> None:
    (folder / "stl10_binary.tar.gz").write_bytes(content)
    rejected("stl10", r"stl10_binary.tar.gz: (cannot be read|lacks)")


def test_a_torn_archive_is_refused(folder: Path) -> None:
    path = write_tar(folder / "stl10_binary.tar.gz", stl10(made(96, 96, 3, n=2)))
    path.write_bytes(path.read_bytes()[:-3000])
    rejected("stl10", r"stl10_binary.tar.gz: cannot be read \(\w+")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_X.bin": bytes(100)}, "train_X.bin: holds 100 bytes; expected images of 27,648"),
        ({"train_y.bin": bytes([1, 0])}, "train_y.bin holds 0 … 1; labels are 1 … 10"),
        ({"test_y.bin": bytes([11, 1])}, "test_y.bin holds 1 … 11; labels are 1 … 10"),
        ({"test_y.bin": bytes([1])}, "test_y.bin is int64 1; expected one number for each of the 2"),
    ],
)
def test_a_broken_stl10_is_refused_with_what_is_wrong(folder: Path, change: dict[str, bytes], message: str) -> None:
    write(folder / "stl10_binary", {**stl10(made(96, 96, 3, n=2, tested=2)), **change})
    rejected("stl10", message)


def test_a_broken_svhn_is_refused_with_what_is_wrong(folder: Path) -> None:
    from scipy.io import savemat

    write_svhn(folder, made(32, 32, 3))
    file = folder / "train_32x32.mat"
    savemat(file, {"X": np.zeros((4, 32, 32, 3), np.uint8), "y": np.ones((4, 1))})
    rejected("svhn", r"train_32x32.mat: wants X, 32×32×3×N, and N numbers y; it has X 4×32×32×3, y 4×1")
    savemat(file, {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((3, 1), np.uint8)})
    rejected("svhn", "train_32x32.mat: wants X, 32×32×3×N, and N numbers y; it has X 32×32×3×4, y 3×1")
    savemat(file, {"X": np.zeros((32, 32, 3, 4)), "y": np.ones((4, 1))})
    rejected("svhn", "train_32x32.mat: X is float64 and y float64; expected bytes and numbers")
    savemat(file, {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.full((4, 1), 11)})
    rejected("svhn", "y holds 11 … 11; digits are 1 … 9, and 10 for zero")
    write_svhn(folder, made(32, 32, 3))
    whole = file.read_bytes()
    for n in (2000, len(whole) - 40, len(whole) - 3):
        file.write_bytes(whole[:n])
        rejected("svhn", "train_32x32.mat: is truncated in the middle of a variable; get it again")
    file.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(300))
    rejected("svhn", "train_32x32.mat: is no MATLAB file of version 5 to 7")
    file.write_bytes(b"MATLAB no more" + bytes(300))
    rejected("svhn", "train_32x32.mat: is no MATLAB file")
    file.write_bytes(b"")
    rejected("svhn", "train_32x32.mat: is no MATLAB file")
    (folder / "test_32x32.mat").unlink()
    write_svhn(folder / "other", made(32, 32, 3))
    file.write_bytes((folder / "other" / "train_32x32.mat").read_bytes())
    rejected("svhn", "test_32x32.mat: is not there; both train_32x32.mat and test_32x32.mat are wanted")


ROW = [0.5] * 784
BLACK, LONG = (picture(np.zeros((64, width, 3), np.uint8), "png") for width in (64, 65))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"is no LEAF file of users, num_samples and user_data \(JSONDecodeError"),
        (b"[1]", "is no LEAF file"),
        (b'{"users": ["a"], "num_samples": [1], "user_data": {}}', "is no LEAF file .*KeyError: 'a'"),
        (b'{"users": ["a"], "num_samples": [], "user_data": {"a": {"x": [], "y": []}}}', "is no LEAF file"),
        (leaf({"a": ([ROW], [1, 2])}), "user a does not have 2 x and as many y"),
        (leaf({"a": ([[0.5] * 10], [1])}), "user a: x wants rows of 784 numbers from 0 to 1"),
        (leaf({"a": ([[7.0] * 784], [1])}), "user a: x wants rows of 784 numbers from 0 to 1"),
        (leaf({"a": ([["x"] * 784], [1])}), "user a: x wants rows of 784 numbers from 0 to 1"),
        (leaf({"a": ([ROW], [-1])}), "user a: y wants whole numbers from 0 up"),
        (leaf({"a": ([ROW], [62])}), "has the label 62; femnist has the classes 0 … 61"),
        (b"[" * 100_000, "is no LEAF file"),
    ],
)
def test_a_broken_leaf_file_is_refused_with_what_is_wrong(folder: Path, content: bytes, message: str) -> None:
    contents, _ = femnist()
    write(folder / "femnist", {**contents, "train/all_data_0_niid_0_keep_0_train_9.json": content})
    rejected("femnist", message)


def test_a_leaf_folder_without_test_part_is_refused(folder: Path) -> None:
    contents, _ = femnist()
    write(folder / "femnist", {n: c for n, c in contents.items() if n.startswith("train")})
    rejected("femnist", r"femnist: has no .json files in train/ and test/ \(or all_data/\)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train/y_train.txt": b"1\n2\n"}, "y_train.txt has 2 lines and body_acc_x_train.txt 5"),
        ({"train/y_train.txt": b"1\n2\nwalking\n1\n1\n"}, "y_train.txt is no table of numbers"),
        ({"train/y_train.txt": b"1\n2\n7\n1\n1\n"}, "has the label 6; har has the classes 0 … 5"),
        ({"train/y_train.txt": b"1\n2\n0\n1\n1\n"}, "y_train.txt holds -1"),
        ({"test/subject_test.txt": b""}, "subject_test.txt wants 1 number a line"),
        ({"test/Inertial Signals/total_acc_z_test.txt": b"1 2 3\n"}, "total_acc_z_test.txt wants 128 numbers a line"),
        ({"train/Inertial Signals/body_gyro_y_train.txt": b"nan " * 640}, "train signals holds NaN|128 numbers a line"),
    ],
)
def test_a_broken_har_is_refused_with_what_is_wrong(folder: Path, change: dict[str, bytes], message: str) -> None:
    write(folder / "UCI HAR Dataset", {**har(activities()), **change})
    rejected("har", message)


def test_a_torn_archive_inside_an_archive_is_refused(folder: Path) -> None:
    torn = zipped({"UCI HAR Dataset.zip": zipped(har(activities()))[:-500]})
    (folder / "human+activity+recognition+using+smartphones.zip").write_bytes(torn)
    rejected("har", r"smartphones.zip: cannot be read \(BadZipFile")


def test_a_har_without_its_signals_or_with_other_inputs_is_refused(folder: Path) -> None:
    contents = {n: c for n, c in har(activities()).items() if "Inertial" not in n}
    write(folder / "UCI HAR Dataset", contents)
    rejected("har", r"lacks body_acc_x_test.txt, body_acc_x_train.txt, body_acc_y_test.txt and 15 more")
    np.savez(folder / "har.npz", x=np.zeros((10, 561)), y=np.arange(10) % 6)
    rejected("har", r"har.npz: its inputs are float32 8×561; expected series, N×time×channels of float32")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train/n01443537/images/x.JPEG", b"no picture", "x.JPEG is no image that can be read"),
        ("train/n01443537/images/x.JPEG", b"", "x.JPEG is no image that can be read"),
        (
            "train/n01443537/images/x.JPEG",
            LONG,
            "is 65×64 pixels; expected 64×64",
        ),
        (
            "val/images/x.JPEG",
            picture(np.zeros((64, 64, 3), np.uint8), "png"),
            "the class of /x.JPEG is not among the 3",
        ),
        ("val/other/x.JPEG", BLACK, "the class of other/x.JPEG is not among"),
    ],
)
def test_a_broken_picture_is_refused_by_name(folder: Path, name: str, content: bytes, message: str) -> None:
    contents, _ = tiny()
    write(folder / "tiny-imagenet-200", {**contents, name: content})
    rejected("tiny_imagenet", message)


def test_a_picture_that_claims_to_be_enormous_is_refused_before_it_is_decoded(folder: Path) -> None:
    contents, _ = tiny()
    content = bytearray(picture(np.zeros((64, 64, 3), np.uint8), "png"))
    content[16:24] = struct.pack(">II", 60_000, 60_000)  # the header of a PNG: width, height
    write(folder / "tiny-imagenet-200", {**contents, "train/n01443537/images/x.JPEG": bytes(content)})
    rejected("tiny_imagenet", "x.JPEG is no image that can be read")


def test_a_folder_of_pictures_without_a_part_is_refused(folder: Path) -> None:
    contents, _ = tiny()
    write(folder / "tiny-imagenet-200", {n: c for n, c in contents.items() if not n.startswith("val")})
    rejected("tiny_imagenet", r"has 6 images in train/ and 0 in val/")
