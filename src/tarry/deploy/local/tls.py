"""Certificates and node keys that `up` generates. Larger federations use those of their own authority.

FOLDER/ca.crt, ca.key            a certificate authority for this federation only
FOLDER/server.crt, server.key    for localhost, 127.0.0.1 and the names under which others reach the server
FOLDER/node-N, node-N.pub        P-384 keys by which SuperNodes prove who they are
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ...core.storage import storage_errors
from ...record.storage import write_atomic

__all__ = ["authority", "node_key"]

_LASTS = timedelta(days=365)


def authority(folder: Path, names: Iterable[str] = ()) -> None:
    """Write a certificate authority and a server certificate for this machine, also under `names` (or addresses)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    with storage_errors(folder, "made"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    now = datetime.now(UTC) - timedelta(minutes=5)
    keys = {who: ec.generate_private_key(ec.SECP256R1()) for who in ("ca", "server")}
    owners = {who: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"tarry {who}")]) for who in keys}
    for who, key in keys.items():
        made: Any = (
            x509.CertificateBuilder()
            .subject_name(owners[who])
            .issuer_name(owners["ca"])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + _LASTS)
            .add_extension(x509.BasicConstraints(ca=who == "ca", path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["ca"].public_key()), critical=False)
        )
        if who == "ca":
            made = made.add_extension(_signs(x509), critical=True)
        else:
            everywhere = [_general_name(x509, name) for name in dict.fromkeys(("localhost", "127.0.0.1", *names))]
            made = made.add_extension(x509.SubjectAlternativeName(everywhere), critical=False)
        _write(folder / f"{who}.key", _private(key))
        certificate = made.sign(keys["ca"], hashes.SHA256())
        write_atomic(folder / f"{who}.crt", certificate.public_bytes(_pem()))


def node_key(folder: Path, node: int) -> tuple[Path, Path]:
    """Write the private and the public key of a SuperNode in the formats that Flower reads; return their paths."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec

    private, public = folder / f"node-{node}", folder / f"node-{node}.pub"
    if not private.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        ssh = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
        _write(private, ssh)
        write_atomic(public, key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH) + b"\n")
    return private, public


def _general_name(x509: Any, name: str) -> Any:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _signs(x509: Any) -> Any:
    uses = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "encipher_only", "decipher_only"), False,
    )  # fmt: skip
    return x509.KeyUsage(**uses, key_cert_sign=True, crl_sign=True)


def _pem() -> Any:
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.PEM


def _private(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as s

    return bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))


def _write(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, from the first byte on."""
    with storage_errors(path), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
        f.write(data)
