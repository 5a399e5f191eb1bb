from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.numpy import save as serialize
from torch import Tensor

from tarry.core.errors import DamagedFile
from tarry.record import checkpoint
from tarry.record.checkpoint import Checkpoints
from tarry.record.tensor_files import TensorFiles, array_of, read_tensor_file, write_safetensors

LARGE = 1 << 18  # float32 numbers of a tensor that gets a file of its own


def large(value: float) -> Tensor:
    return torch.full((LARGE,), value)


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "tensors").glob("*")}


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """The inode and the time of writing of each tensor's file: a file that is written again has others."""
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (folder / "tensors").glob("*")}


def test_a_large_tensor_is_written_once_for_all_checkpoints_that_hold_it(tmp_path):
    saved, weights = Checkpoints(tmp_path), large(1.0)
    first = saved.save(
        1, {"weights": weights, "tickets": [{"sent": weights}, {"sent": weights}], "small": torch.ones(3)}
    )
    before = stamps(tmp_path)
    assert len(before) == 1, "tickets share the file of the weights"
    assert first.stat().st_size < 4096
    saved.save(2, {"weights": weights, "updates": 7})
    assert stamps(tmp_path) == before
    Checkpoints(tmp_path).save(3, {"weights": weights.clone()})
    assert stamps(tmp_path) == before, "another process with an equal tensor"


def test_a_checkpoint_writes_the_tensors_that_changed_and_no_others(tmp_path, monkeypatch):
    written: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (written.append(Path(b).suffix), replace(a, b))[1])
    saved, kept = Checkpoints(tmp_path), [large(float(i)) for i in range(5)]
    saved.save(1, {"states": list(kept)})
    assert written.count(".npy") == 5
    written.clear()
    kept[2] = large(9.0)
    saved.save(2, {"states": list(kept)})
    assert written == [".npy", ".safetensors"]


def test_a_tensor_that_has_not_changed_is_not_read_either(tmp_path, monkeypatch):
    saved, weights = Checkpoints(tmp_path), large(1.0)
    saved.save(1, {"weights": weights})
    monkeypatch.setattr("tarry.record.tensor_files._sha256", lambda *_: pytest.fail("it is read again"))
    saved.save(2, {"weights": weights})


def test_a_tensor_that_was_written_to_is_saved_as_it_is_now(tmp_path):
    saved, weights = Checkpoints(tmp_path), large(1.0)
    saved.save(1, {"weights": weights})
    weights[3] = 5.0
    path = saved.save(2, {"weights": weights})
    assert torch.equal(checkpoint.load(path)["weights"], weights)
    assert checkpoint.load(tmp_path / "00000001.safetensors")["weights"][3] == 1.0


def test_the_number_of_files_is_bounded_and_a_tensor_goes_when_no_checkpoint_holds_it(tmp_path):
    saved = Checkpoints(tmp_path)
    for count in range(1, 12):
        saved.save(count, {"weights": large(float(count)), "anchor": large(float(count - 1))})
        assert len(names(tmp_path)) <= 3, "two of this checkpoint, and one more of the checkpoint before it"
    saved.save(12, {})
    saved.save(13, {})
    assert names(tmp_path) == set()


def test_a_record_with_large_tensors_comes_back_as_it_was(tmp_path):
    shared = torch.arange(LARGE, dtype=torch.float32).reshape(2, -1)
    tree = {
        "a": shared,
        "b": [shared, (shared, 1)],
        "strided": shared.T,
        "f64": torch.linspace(0, 1, LARGE, dtype=torch.float64),
        "i64": torch.arange(LARGE),
        "bool": torch.ones(1 << 20, dtype=torch.bool),
        "small": torch.tensor([1.5]),
    }
    got = checkpoint.load(Checkpoints(tmp_path).save(1, tree))
    assert got["a"] is got["b"][0] is got["b"][1][0]
    for key in ("a", "strided", "f64", "i64", "bool", "small"):
        assert got[key].dtype == tree[key].dtype  # type: ignore[attr-defined]
        assert torch.equal(got[key], tree[key])  # type: ignore[arg-type]
    got["a"] += 1


def test_a_tensor_file_is_a_plain_npy_file_named_by_its_sha256(tmp_path):
    Checkpoints(tmp_path).save(1, {"x": large(2.5)})
    (path,) = (tmp_path / "tensors").iterdir()
    assert path.stem == hashlib.sha256(path.read_bytes()).hexdigest()
    assert np.load(path).tolist() == [2.5] * LARGE


def test_a_checkpoint_in_one_file_of_an_earlier_version_is_read(tmp_path):
    tree = {"weights": large(1.0), "count": 3}
    checkpoint.write(tmp_path / "00000001.safetensors", tree)
    assert torch.equal(checkpoint.load(tmp_path / "00000001.safetensors")["weights"], tree["weights"])  # type: ignore[arg-type]
    Checkpoints(tmp_path).save(2, tree)
    assert len(names(tmp_path)) == 1


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(damage, "is not what was written"), (Path.unlink, "is gone"), (lambda p: p.write_bytes(b""), "is not what")],
)
def test_a_tensor_that_is_damaged_is_told_with_its_file_and_the_way_out(tmp_path, spoil, why):
    saved = Checkpoints(tmp_path)
    saved.save(1, {"x": large(1.0)})
    newest = saved.save(2, {"x": large(2.0)})
    digest = TensorFiles(tmp_path / "elsewhere").put(large(2.0))
    spoil(tmp_path / "tensors" / f"{digest}.npy")
    with pytest.raises(
        DamagedFile, match=f"checkpoint {newest} is damaged: its tensor .*{why}.*; delete it to go on from"
    ):
        checkpoint.load(newest)
    assert torch.equal(checkpoint.load(tmp_path / "00000001.safetensors")["x"], large(1.0))


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "", "A" * 64])
def test_a_forged_list_of_tensors_names_no_file_outside(tmp_path, name):
    path = tmp_path / "00000001.safetensors"
    metadata = {"format": "tarry-checkpoint-3", "record": '{"tensor": "t0"}', "tensors": f'{{"t0": "{name}"}}'}
    write_safetensors(path, {}, {**metadata, "sha256": checkpoint.digest_of_record(metadata, {})})
    with pytest.raises(DamagedFile, match="does not fit"):
        checkpoint.load(path)


def test_what_was_written_last_is_as_it_was_wherever_a_save_is_killed(tmp_path):
    """Kill the process before and after every call that changes the disk; the next process goes on."""
    count, killed = 1, 0
    Checkpoints(tmp_path).save(count, {"count": count, "weights": large(1.0), "state": [large(-1.0), large(0.5)]})
    for call in ("open", "write", "fsync", "replace", "unlink"):
        for after in (False, True):
            for number in range(1, 40):
                if not killed_in_save(tmp_path, count + 1, call, number, after):
                    count += 1
                    break
                killed += 1
                newest = checkpoint.latest(tmp_path)
                assert newest is not None
                got = checkpoint.load(newest)
                assert got["count"] in (count, count + 1)
                assert torch.equal(got["weights"], large(float(got["count"])))
                count = got["count"]
            Checkpoints(tmp_path).save(count, record(count))
            assert len(names(tmp_path)) <= 5, "nothing that a killed process left is still there"
    assert killed > 20


def record(count: int) -> dict[str, Any]:
    return {"count": count, "weights": large(float(count)), "state": [large(-float(count)), large(0.5)]}


def killed_in_save(folder: Path, count: int, call: str, number: int, after: bool) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            left, plain = [number], getattr(os, call)

            def armed(*args: Any, **named: Any) -> Any:
                left[0] -= 1
                if left[0] == 0 and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                out = plain(*args, **named)
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return out

            setattr(os, call, armed)
            Checkpoints(folder).save(count, record(count))
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def test_a_full_disk_leaves_the_checkpoints_as_they_were(tmp_path, monkeypatch):
    saved = Checkpoints(tmp_path)
    saved.save(1, record(1))
    before = stamps(tmp_path)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Exception, match="free space"):
        saved.save(2, record(2))
    monkeypatch.undo()
    assert stamps(tmp_path) == before
    assert checkpoint.load(tmp_path / "00000001.safetensors")["count"] == 1
    assert torch.equal(checkpoint.load(saved.save(2, record(2)))["weights"], large(2.0))


ARRAYS = {
    "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.array([1, 2], dtype=np.int64),
    "flag": np.array([True, False, True]),
    "half": np.ones(3, dtype=np.float16),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3), dtype=np.float32),
    "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
}


def test_a_safetensors_file_has_the_bytes_that_the_library_writes(tmp_path):
    arrays = {k: np.ascontiguousarray(v) for k, v in ARRAYS.items()}
    for metadata in (None, {"format": "x", "text": 'quotes " and ü'}):
        write_safetensors(tmp_path / "file", arrays, metadata)
        got = load_file(tmp_path / "file")
        assert all(np.array_equal(got[k], v) and got[k].dtype == v.dtype for k, v in arrays.items())
    write_safetensors(tmp_path / "file", arrays)
    assert (tmp_path / "file").read_bytes() == serialize(arrays)


def test_arrays_are_written_from_the_memory_they_are_in(tmp_path):
    weights = large(1.0)
    assert np.shares_memory(array_of(weights), weights.numpy())
    write_safetensors(tmp_path / "file", ARRAYS)  # with one that is not contiguous
    assert load_file(tmp_path / "file")["turned"].tolist() == ARRAYS["turned"].tolist()


def test_the_numbers_of_a_tensor_file_begin_where_a_vector_of_torch_would(tmp_path):
    files = TensorFiles(tmp_path)
    assert read_tensor_file(tmp_path, files.put(large(1.0))).data_ptr() % 64 == 0
