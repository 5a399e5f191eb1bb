"""What people do to data sets without meaning harm: other types, other names, links, half a download, no permission."""

from __future__ import annotations

import io
import os
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tarry.core.errors import BadInput
from tarry.tasks.data import catalog, load
from tarry.tasks.data.npz import read_npz
from tarry.tasks.data.sets import where_data_is
from tarry.tasks.data.text_sets import NEWSGROUPS
from tarry.tasks.data.texts import load_text
from tests.tasks.data.file_writers import har, made, picture, rejected, write, write_svhn
from tests.tasks.data.test_formats import activities


@pytest.mark.parametrize("shape", [(28, 28), (784,), (1, 28, 28)])
def test_numbers_in_the_place_of_images_are_refused_with_where_they_can_be_read(
    folder: Path, shape: tuple[int, ...]
) -> None:
    x, y = np.zeros((10, *shape)), np.arange(10)
    np.savez(folder / "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    rejected("mnist", r"inputs are float32 10×.*; expected images as uint8 .* --task npz --task.path .*mnist.npz")


def test_arrays_of_other_names_are_named(folder: Path) -> None:
    np.savez(folder / "a.npz", X_train=np.zeros((4, 2)), Labels=np.arange(4))
    with pytest.raises(BadInput, match=r"or x and y; it has X_train, Labels$"):
        read_npz(folder / "a.npz", "--task a")


@pytest.mark.parametrize("header", [b"{'shape': (4, 2 \n", b"{1: 2, 'a': 3}\n", b"'''\n"])
def test_a_header_that_numpy_stumbles_over_is_refused(folder: Path, header: bytes) -> None:
    with zipfile.ZipFile(folder / "mnist.npz", "w") as z:
        z.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    rejected("mnist", "is not a plain .npz archive of numbers")


def test_medmnists_arrays_without_an_axis_are_refused(folder: Path) -> None:
    x, y = np.zeros((4, 28, 28), np.uint8), np.zeros((4, 1), np.uint8)
    base = {"train_images": x, "train_labels": y, "val_images": x, "val_labels": y, "test_images": x, "test_labels": y}
    np.savez(folder / "pathmnist.npz", **{**base, "train_labels": y[:, :0]})
    rejected("pathmnist", "train_labels is uint8 0; expected one number for each of the 4")
    np.savez(folder / "pathmnist.npz", **{**base, "train_images": np.uint8(1), "val_images": np.uint8(1)})
    rejected("pathmnist", "train_images is uint8 ; expected one row or image an example")


def test_a_digit_and_a_half_is_refused(folder: Path) -> None:
    from scipy.io import savemat

    write_svhn(folder, made(32, 32, 3))
    savemat(folder / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1.0], [1.5]])})
    rejected("svhn", "train_32x32.mat: y must hold whole numbers")


def test_a_reading_too_large_is_refused_without_a_warning(folder: Path) -> None:
    contents = har(activities())
    name = "train/Inertial Signals/body_acc_x_train.txt"
    contents[name] = b" 1e99 " + contents[name].split(maxsplit=1)[1]
    write(folder / "UCI HAR Dataset", contents)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rejected("har", "train signals holds NaN, infinite or too large numbers")


def cinic() -> dict[str, bytes]:
    names = ("airplane", "bird", "cat")
    return {
        f"{part}/{name}/{i}.png": picture(np.full((32, 32, 3), 50 * i, np.uint8), "png")
        for part in ("train", "test")
        for i, name in enumerate(names)
    }


def test_linked_folders_are_read_and_a_link_that_leads_back_ends_there(folder: Path) -> None:
    write(folder / "CINIC-10", cinic())
    expected = load("cinic10")
    for part in ("train", "test"):
        (folder / "CINIC-10" / part / "bird").rename(folder / part)
        (folder / "CINIC-10" / part / "bird").symlink_to(folder / part)
    (folder / "CINIC-10" / "again").symlink_to(folder / "CINIC-10")
    found = load("cinic10")
    assert found.y_train.tolist() == found.y_test.tolist() == [0, 2, 3]
    assert (found.x_train == expected.x_train).all()


def test_a_picture_that_the_annotations_leave_out_is_said(folder: Path) -> None:
    image = picture(np.zeros((64, 64, 3), np.uint8), "png")
    contents = {"train/n1/images/a.JPEG": image, "val/images/b.JPEG": image}
    write(folder / "tiny-imagenet-200", contents)
    rejected("tiny_imagenet", "the class of /b.JPEG is not among the 1: n1; val_annotations.txt gives no class")


@pytest.mark.parametrize("cut", ["between files", "in a header", "changed header"])
def test_an_archive_that_breaks_off_between_its_files_is_refused(folder: Path, cut: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in (f"{part}/{group}/1" for part in ("train", "test") for group in NEWSGROUPS):
            info = tarfile.TarInfo(f"20news-bydate-{name}")
            info.size = 600
            tar.addfile(info, io.BytesIO(b"H: 1\n\n" + bytes(b"word " * 119)[:594]))
    whole, third = buffer.getvalue(), 2 * (512 + 1024)
    torn = {
        "between files": whole[:third],
        "in a header": whole[: third + 100],
        "changed header": whole[:third] + b"?" + whole[third + 1 :],
    }
    (folder / "20news-bydate.tar").write_bytes(whole)
    assert len(load_text("20newsgroups").train) == 20
    (folder / "20news-bydate.tar").write_bytes(torn[cut])
    with pytest.raises(
        BadInput, match=r"20news-bydate.tar: cannot be read \(ReadError: the archive is truncated or not an archive"
    ):
        load_text("20newsgroups")


def test_a_folder_that_may_not_be_read_is_no_set_and_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "MNIST").mkdir()
    stat, access = os.stat, os.access

    def forbidden(path: object) -> bool:
        return str(path).startswith(str(folder / "MNIST"))

    def no_stat(path: object, **how: object) -> os.stat_result:
        if str(path).startswith(f"{folder / 'MNIST'}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", no_stat)
    monkeypatch.setattr(os, "access", lambda path, mode: not forbidden(path) and access(path, mode))
    assert catalog()["mnist"].find() is None
    rejected("mnist", r"the data set is not there. .* holds MNIST/ \(may not be read\)\.")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert where_data_is() == f"TARRY_DATA={folder} may not be read: change its permissions."


def test_a_folder_in_the_place_of_a_text_file_is_said(folder: Path) -> None:
    (folder / "sst2.jsonl").mkdir()
    with pytest.raises(BadInput, match=r"--task sst2: .*sst2.jsonl: cannot be read: Is a directory"):
        load_text("sst2")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ag_news", '"5","t","d"', "line 2 of train.csv wants a class from 1 to 4, a title and a description"),
        ("ag_news", '"²","t","d"', "line 2 of train.csv wants a class from 1 to 4"),
        ("ag_news", '"1","t","' + "x" * 10_000_001, "train.csv: line 2: field larger than .*is a quote left open"),
        ("banking77", "hello, bank,age_limit", "line 3 of train.csv has 3 columns; expected text, category"),
        ("banking77", '"never closed,age_limit\nand,age_limit', "train.csv: line 4: .*; is a quote left open"),
    ],
)
def test_a_broken_row_of_a_table_is_said_with_its_line(folder: Path, name: str, content: str, message: str) -> None:
    good = '"1","t","d"\n' if name == "ag_news" else "text,category\nhello,age_limit\n"
    write(folder / name, {"train.csv": f"{good}{content}\n".encode(), "test.csv": good.encode()})
    with pytest.raises(BadInput, match=message):
        load_text(name)


def test_a_member_without_a_name_is_passed_over(folder: Path) -> None:
    table = "sentence\tlabel\nfine\t1\n"
    with zipfile.ZipFile(folder / "SST-2.zip", "w") as z:
        for name in ("", "SST-2/train.tsv", "SST-2/dev.tsv"):
            z.writestr(zipfile.ZipInfo(name), table)
    assert load_text("sst2").train == ("fine",)
