from __future__ import annotations

import json
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import save as serialize
from torch import Tensor

from tarry.core.errors import DamagedFile
from tarry.record import checkpoint


def plain(tree: Any) -> Any:
    """A record with its tensors spelt out, types of containers included."""
    if isinstance(tree, Tensor):
        return ("tensor", str(tree.dtype), tuple(tree.shape), tree.tolist())
    if isinstance(tree, dict):
        return {k: plain(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(plain(v) for v in tree)
    return tree


def round_trip(tmp_path: Path, tree: Any) -> Any:
    return checkpoint.load(checkpoint.Checkpoints(tmp_path / "c").save(1, tree))


NESTED = {
    "numbers": [1, -2.5, True, False, None, "text", "", inf, -inf, 2**60, 1e-300, 0.1],
    "pairs": [(1, 2.0), (), [], {}, (("a",), [("b", None)])],
    7: {0: "zero", -3: [0], "7": "text key beside a number key"},
    "tensors": {
        "f32": torch.tensor([[1.5, -0.0], [inf, 3e-39]]),
        "f64": torch.tensor([0.1, 1e300], dtype=torch.float64),
        "scalar": torch.tensor(0.25, dtype=torch.float64),
        "i64": torch.tensor([2**62, -1]),
        "i32": torch.tensor([1], dtype=torch.int32),
        "bool": torch.tensor([True, False]),
        "bytes": torch.tensor([0, 255], dtype=torch.uint8),
        "empty": torch.zeros(0, 3),
    },
    "words": 'quotes " and \\ and newline \n and ü 😀',
    "looks like ours": {"tensor": "t0", "tuple": [1], "dict": {"a": 1}},
}


def test_a_nested_record_comes_back_as_it_was(tmp_path):
    assert plain(round_trip(tmp_path, NESTED)) == plain(NESTED)


def test_nan_comes_back_as_nan(tmp_path):
    got = round_trip(tmp_path, {"x": nan, "t": torch.tensor([nan, 1.0])})
    assert isnan(got["x"])
    assert got["t"].isnan().tolist() == [True, False]


@pytest.mark.parametrize("tree", [None, 3, [], {}, (), torch.tensor(1.0), [torch.zeros(2)]])
def test_the_smallest_records_come_back_too(tmp_path, tree):
    assert plain(round_trip(tmp_path, tree)) == plain(tree)


def test_tensors_that_were_shared_come_back_shared_and_others_do_not(tmp_path):
    a, b = torch.zeros(3), torch.zeros(3)
    got = round_trip(tmp_path, {"x": a, "y": [a, (b, a)], "z": b})
    assert got["x"] is got["y"][0] is got["y"][1][1]
    assert got["z"] is got["y"][1][0]
    assert got["x"] is not got["z"]


def test_views_and_strided_tensors_are_saved_by_value(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    got = round_trip(
        tmp_path, {"column": base[:, 1], "turned": base.T, "row": base[2], "grad": base[0].requires_grad_()}
    )
    assert got["column"].tolist() == [1, 5, 9]
    assert torch.equal(got["turned"], base.T)
    assert got["row"].tolist() == [8, 9, 10, 11]
    assert not got["grad"].requires_grad


def test_what_comes_back_can_be_written_to(tmp_path):
    got = round_trip(tmp_path, {"x": torch.zeros(2)})
    got["x"] += 1
    assert got["x"].tolist() == [1, 1]


def test_a_record_may_hold_nothing_else(tmp_path):
    with pytest.raises(AssertionError, match="may not hold set"):
        checkpoint.Checkpoints(tmp_path / "c").save(1, {"x": {1, 2}})
    assert not list(tmp_path.rglob("*.safetensors"))


def test_only_the_last_two_are_kept_and_the_newest_is_found(tmp_path):
    folder = tmp_path / "c"
    assert checkpoint.latest(folder) is None
    for count in (1, 2, 3, 9, 10, 11):
        checkpoint.Checkpoints(folder).save(count, {"count": count})
    assert [p.name for p in sorted(folder.iterdir())] == ["00000010.safetensors", "00000011.safetensors"]
    newest = checkpoint.latest(folder)
    assert newest is not None
    assert checkpoint.load(newest) == {"count": 11}


def test_a_half_written_file_left_by_a_kill_is_ignored(tmp_path):
    folder = tmp_path / "c"
    first = checkpoint.Checkpoints(folder).save(1, {"count": 1})
    (folder / "00000002.safetensors.part").write_bytes(b"\0" * 100)
    assert checkpoint.latest(folder) == first
    second = checkpoint.Checkpoints(folder).save(2, {"count": 2})
    assert checkpoint.load(second) == {"count": 2}
    assert not list(folder.glob("*.part"))


def test_a_file_cut_short_anywhere_is_damaged(tmp_path):
    path = checkpoint.Checkpoints(tmp_path / "c").save(1, {"x": torch.arange(5.0), "n": 3})
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 9, len(whole) // 3, len(whole) // 2, len(whole) - 4, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFile, match="is damaged"):
            checkpoint.load(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(DamagedFile):
        checkpoint.load(path)


@pytest.mark.parametrize("mask", [0x01, 0x02, 0x10, 0x80, 0xFF])
def test_one_wrong_byte_anywhere_is_damaged_or_changes_nothing(tmp_path, mask):
    tree = {"x": torch.arange(3.0), "y": torch.tensor([1, 2]), 5: [(1, inf), None, "w"]}
    path = checkpoint.Checkpoints(tmp_path / "c").save(1, tree)
    whole, want = path.read_bytes(), plain(tree)
    wrong = []
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= mask
        path.write_bytes(bytes(flipped))
        try:
            got = plain(checkpoint.load(path))
        except DamagedFile:
            continue
        except Exception as e:
            wrong.append((place, whole[max(place - 8, 0) : place + 8], repr(e)))
        else:
            if got != want:
                wrong.append((place, whole[max(place - 8, 0) : place + 8], "read as something else"))
    assert wrong == []


def test_damage_is_told_with_the_file_and_the_way_out(tmp_path):
    folder = tmp_path / "c"
    paths = [checkpoint.Checkpoints(folder).save(count, {"x": torch.zeros(4)}) for count in (1, 2)]
    content = bytearray(paths[1].read_bytes())
    content[-1] ^= 1
    paths[1].write_bytes(bytes(content))
    with pytest.raises(DamagedFile) as e:
        checkpoint.load(paths[1])
    assert str(e.value) == (
        f"checkpoint {paths[1]} is damaged: its content is not what was written; "
        "delete it to go on from 00000001.safetensors"
    )
    paths[0].unlink()
    with pytest.raises(DamagedFile, match="delete it to begin again from the start"):
        checkpoint.load(paths[1])


def test_another_format_is_refused(tmp_path):
    path = tmp_path / "00000001.safetensors"
    array = torch.zeros(2).numpy()
    for metadata in (None, {"format": "tarry-checkpoint-0", "record": "{}", "sha256": ""}):
        path.write_bytes(serialize({"t0": array}, metadata=metadata))
        with pytest.raises(DamagedFile, match="it is not a tarry-checkpoint-2 file"):
            checkpoint.load(path)
    path.write_text("not at all")
    with pytest.raises(DamagedFile):
        checkpoint.load(path)


def test_a_checkpoint_that_is_gone_is_damaged_not_a_crash(tmp_path):
    with pytest.raises(DamagedFile):
        checkpoint.load(tmp_path / "00000001.safetensors")


def test_the_file_is_plain_safetensors_with_the_rest_as_json(tmp_path):
    from safetensors import safe_open

    x = torch.arange(3.0)
    path = checkpoint.Checkpoints(tmp_path / "c").save(1, {"x": x, "again": x, "n": 1})
    with safe_open(path, framework="np") as f:
        assert f.get_tensor("t0").tolist() == [0, 1, 2]
        assert list(f.keys()) == ["t0"]
        assert json.loads(f.metadata()["record"]) == {
            "dict": [["x", {"tensor": "t0"}], ["again", {"tensor": "t0"}], ["n", 1]]
        }
