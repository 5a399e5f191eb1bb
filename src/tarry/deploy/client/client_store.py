"""What a client keeps on its own machine: its key, and what its method remembers from visit to visit.

HOME/key                        Ed25519, readable by its owner alone
HOME/FEDERATION/VISIT.safetensors

What a visit leaves is kept under the visit's number. The server says with the next ticket which visit counts: one whose
answer was lost on the way never does, as under the virtual clock.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from ...record import checkpoint

__all__ = ["Home"]


class Home:
    """A folder of one client."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def sign(self, what: bytes) -> tuple[str, str]:
        """The public key and a signature, both in hex; the key is made when there is none."""
        from cryptography.hazmat.primitives import serialization as s
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        path = self.folder / "key"
        if not path.exists():
            raw = Ed25519PrivateKey.generate().private_bytes(
                s.Encoding.Raw, s.PrivateFormat.Raw, s.NoEncryption()
            )  # fmt: skip
            fresh = path.with_name(f"key.{os.getpid()}")
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
                f.write(raw)
                f.flush()
                os.fsync(f.fileno())
            with suppress(FileExistsError):  # whoever is second uses the first one's
                os.link(fresh, path)
            fresh.unlink()
        key = Ed25519PrivateKey.from_private_bytes(path.read_bytes())
        public = key.public_key().public_bytes(s.Encoding.Raw, s.PublicFormat.Raw)
        return public.hex(), key.sign(what).hex()

    def recall(self, federation: str, visit: int) -> Mapping[str, Tensor] | None:
        """What that visit left; None where it is gone. What others left is forgotten."""
        folder = self._of(federation)
        kept = folder / f"{visit}.safetensors"
        for other in folder.glob("*.safetensors"):
            if other != kept:
                other.unlink(missing_ok=True)
        if not kept.is_file():
            return None
        found: Mapping[str, Tensor] = checkpoint.load(kept)
        return found

    def keep(self, federation: str, visit: int, memory: Mapping[str, Tensor]) -> None:
        folder = self._of(federation)
        folder.mkdir(exist_ok=True)
        checkpoint.write(folder / f"{visit}.safetensors", dict(memory))

    def _of(self, federation: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{1,64}", federation):  # it becomes the name of a folder
            raise ValueError("a federation is named in hex")
        return self.folder / federation
