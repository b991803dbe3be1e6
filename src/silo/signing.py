"""Ed25519 keys as files, and signatures of JSON objects: for receipts of stores and manifests of models.

A signing key is a PEM file of mode 0600 with the public key beside it in `<name>.pub`. A signature is base64 over the
canonical JSON of an object.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from silo.errors import SiloError
from silo.files import canonical_json, write_atomic, write_private

SigningKey = Ed25519PrivateKey
_RAW = serialization.Encoding.Raw, serialization.PublicFormat.Raw
_NOT_A_KEY = ValueError, TypeError, UnsupportedAlgorithm, InternalError
"""What is raised for bytes that are no key; the last one if they claim to be of a kind that they are too short for."""


def load_or_make_key(path: Path) -> SigningKey:
    """The signing key of a file, made on first use; the public key lies beside it."""
    if not path.exists():
        write_private(path, _pem(Ed25519PrivateKey.generate()))
    if path.stat().st_mode & 0o077:
        raise SiloError("input-unreadable", f"others may read the signing key {path}", f"run `chmod 600 {path}`")
    key = _private_key(path)
    _keep_public_key(key, path.with_name(path.name + ".pub"))
    return key


def require_key_pair(path: Path) -> None:
    """Refuse a signing key that is missing, or that its public key does not belong to."""
    if not path.exists():
        raise SiloError("store-damaged", f"the signing key {path} is missing", "restore the key from a copy")
    key = _private_key(path)
    if path.read_bytes() != _pem(key):
        raise SiloError("store-damaged", f"{path} is not as it was written", "restore the key from a copy")
    _keep_public_key(key, path.with_name(path.name + ".pub"))


def public_bytes(key: SigningKey) -> bytes:
    """The 32 bytes of a signing key's public key."""
    return key.public_key().public_bytes(*_RAW)


def parse_public_key(data: bytes) -> bytes | None:
    """The 32 bytes of a public key that is given as such or in PEM; None if it is none."""
    if len(data) == 32:
        return data
    try:
        key = serialization.load_pem_public_key(data)
    except _NOT_A_KEY:
        return None
    return key.public_bytes(*_RAW) if isinstance(key, Ed25519PublicKey) else None


def sign(content: Mapping[str, Any], key: SigningKey) -> str:
    """The signature of an object."""
    return encode(key.sign(canonical_json(content)))


def signature_fits(content: Mapping[str, Any], signature: bytes, public: bytes) -> bool:
    """True if the signature is of this object, by this key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, canonical_json(content))
    except (InvalidSignature, ValueError):
        return False
    return True


def encode(data: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(data).decode()


def decode(text: Any, length: int) -> bytes | None:
    """Bytes from the one base64 form that `encode` gives them; None if it is not that."""
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        return None
    return data if len(data) == length and encode(data) == text else None


def _pem(key: SigningKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _private_key(path: Path) -> SigningKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise SiloError("input-unreadable", f"{path} cannot be read: {error.strerror}") from None
    except _NOT_A_KEY:
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise SiloError("store-damaged", f"{path} is not an Ed25519 signing key", "restore the key from a copy")
    return key


def _keep_public_key(key: SigningKey, path: Path) -> None:
    """Write the public key, or check that the one which is there belongs to the private key."""
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    public = key.public_key().public_bytes(encoding, form)
    if not path.exists():
        write_atomic(path, public)
    elif path.read_bytes() != public:
        raise SiloError("store-damaged", f"{path} belongs to another key", "one of the two files was replaced")
