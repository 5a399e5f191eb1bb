"""Client store: a client's key, and the memory its method keeps from visit to visit, on the client's own disk.

HOME/key                        Ed25519, readable by its owner alone
HOME/FEDERATION/VISIT.safetensors

The memory of a visit is saved under the visit's number. With the next ticket the server names the visit whose memory
counts: a visit whose reply was lost never does, as in a simulation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from ...core.errors import DamagedFile
from ...record import checkpoint
from ...record.storage import read_bytes

__all__ = ["ClientStore"]


class ClientStore:
    """The folder of one client."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def sign(self, what: bytes) -> tuple[str, str]:
        """Return the public key and a signature, both in hex; the first call makes the key."""
        from cryptography.hazmat.primitives import serialization as s
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        path = self.folder / "key"
        if not path.exists():
            raw = Ed25519PrivateKey.generate().private_bytes(
                s.Encoding.Raw, s.PrivateFormat.Raw, s.NoEncryption()
            )  # fmt: skip
            new = path.with_name(f"key.{os.getpid()}")
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
                f.write(raw)
                f.flush()
                os.fsync(f.fileno())
            with suppress(FileExistsError):  # another process was first: use its key
                os.link(new, path)
            new.unlink()
        try:
            key = Ed25519PrivateKey.from_private_bytes(read_bytes(path, 4096))
        except ValueError as e:
            raise DamagedFile(f"{path}: it is not the key of a client ({e}); restore it from a copy") from e
        public = key.public_key().public_bytes(s.Encoding.Raw, s.PublicFormat.Raw)
        return public.hex(), key.sign(what).hex()

    def load_memory(self, federation: str, visit: int) -> Mapping[str, Tensor] | None:
        """Return the memory of a visit, None if it is lost. The memories of other visits are deleted."""
        folder = self._folder_of(federation)
        path = folder / f"{visit}.safetensors"
        for other in folder.glob("*.safetensors"):
            if other != path:
                other.unlink(missing_ok=True)
        if not path.is_file():
            return None
        memory: Mapping[str, Tensor] = checkpoint.load(path)
        return memory

    def save_memory(self, federation: str, visit: int, memory: Mapping[str, Tensor]) -> None:
        folder = self._folder_of(federation)
        folder.mkdir(exist_ok=True)
        checkpoint.write(folder / f"{visit}.safetensors", dict(memory))

    def _folder_of(self, federation: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{1,64}", federation):  # it becomes the name of a folder
            raise ValueError("a federation is named in hex")
        return self.folder / federation
