"""What a client stores: its key and its memory."""

from __future__ import annotations

import stat

import torch

from tarry.deploy.client.client_store import ClientStore
from tarry.deploy.server.registration import is_signed_by, statement


def test_a_key_proves_who_one_is_and_stays(tmp_path):
    what = statement("f", "nonce", 3, "a")
    key, signature = ClientStore(tmp_path).sign(what)
    assert is_signed_by(key, signature, what)
    assert not is_signed_by(key, signature, statement("f", "nonce", 4, "a"))
    assert not is_signed_by(ClientStore(tmp_path / "b").sign(what)[0], signature, what)
    assert not is_signed_by("no hex", signature, what)
    assert ClientStore(tmp_path).sign(what)[0] == key
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_only_the_visit_that_counts_is_remembered(tmp_path):
    home = ClientStore(tmp_path)
    for visit in (0, 1, 2):
        home.save_memory("ab", visit, {"v": torch.tensor([float(visit)])})
    kept = home.load_memory("ab", 1)
    assert kept is not None
    assert kept["v"].tolist() == [1.0]
    assert home.load_memory("ab", 2) is None
    assert home.load_memory("cd", 1) is None
