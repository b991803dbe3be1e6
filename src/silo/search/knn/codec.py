"""The frozen quantiser of a store: a key becomes a list number and a few bytes, by arrays that never change again.

On disk a directory: `manifest.json` (settings, samples, note, SHA-256 and shape of each file, fingerprints) and
`mean.npy`, `matrix.npy`, `centroids.npy`, `codebooks.npy`, all float32. It is written whole or not at all, and every
byte is checked on opening. A codec is learned from the model's own training text, never from a store, and a row's code
depends on that row alone: no document leaves a trace in the code of another.

Dimensions that do not divide by the code bytes are padded with zeros after the rotation.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from silo.errors import SiloError
from silo.files import (
    commit,
    disk_errors,
    fingerprint,
    read_manifest,
    remove_tree,
    sync_directory,
    sync_file,
    write_manifest,
)
from silo.progress import Advance
from silo.search.dtypes import Float32s, Int32s, Multiply, UInt8s
from silo.search.knn.arrays import CODEWORDS, CodecArrays

if TYPE_CHECKING:
    from silo.search.knn.quantise import Quantiser

FORMAT = "silo-codec-1"
Rotation = Literal["none", "pca", "opq"]
SAMPLES_PER_LIST = 39
"""Fewer samples per centroid than this and the centroids follow single samples (the bound faiss warns at)."""

_ARRAYS = ("mean", "matrix", "centroids", "codebooks")
_LARGEST = 1e15
"""No key has larger entries: squared distances between such keys still fit float32."""


@dataclass(frozen=True, slots=True)
class CodecSettings:
    """What shapes a codec. The paper's setting is 4,096 lists and 64 bytes.

    `rotation`: "pca" spreads the variance evenly over the code bytes in closed form, "opq" refines that by iteration,
    "none" keeps the axes. `dimensions`: how many directions of largest variance are kept, 0 for all.
    """

    rotation: Rotation = "pca"
    dimensions: int = 0
    lists: int = 4096
    code_bytes: int = 32
    iterations: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.rotation in ("none", "pca", "opq"), f"rotation is {self.rotation!r}, not none, pca or opq")
        _require(self.dimensions >= 0, "dimensions is negative")
        _require(self.rotation != "none" or not self.dimensions, "fewer dimensions need a rotation: pca or opq")
        _require(1 <= self.lists <= 1 << 20, f"lists is {self.lists}, not 1 to 1,048,576")
        _require(1 <= self.code_bytes <= 1024, f"code_bytes is {self.code_bytes}, not 1 to 1,024")
        _require(1 <= self.iterations <= 1000, f"iterations is {self.iterations}, not 1 to 1,000")
        _require(0 <= self.seed < 1 << 30, f"seed is {self.seed}, not 0 to {(1 << 30) - 1:,}")


@dataclass(frozen=True, slots=True)
class Fit:
    """Settings that a number of samples can bear, and what was changed in words ("" for nothing)."""

    settings: CodecSettings
    note: str


@dataclass(frozen=True, slots=True)
class Encoded:
    """Quantised keys, row by row: the list (int32) and the code (uint8 [rows, code bytes])."""

    lists: Int32s
    codes: UInt8s

    def __len__(self) -> int:
        return len(self.lists)


def fit(settings: CodecSettings, samples: int) -> Fit:
    """Lower the number of lists to what the samples can teach."""
    if samples < CODEWORDS:
        raise SiloError("input-empty", f"a codec needs {CODEWORDS} sample keys, not {samples}", "give more text")
    bearable = max(1, samples // SAMPLES_PER_LIST)
    if settings.lists <= bearable:
        return Fit(settings, "")
    note = f"lists lowered from {settings.lists:,} to {bearable:,}: {samples:,} samples, {SAMPLES_PER_LIST} per list"
    return Fit(replace(settings, lists=bearable), note)


@dataclass(frozen=True, eq=False)
class Codec:
    """Learned once, then read only; two codecs with one fingerprint give the same codes."""

    settings: CodecSettings
    arrays: CodecArrays
    samples: int
    note: str = ""
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            getattr(self.arrays, name).setflags(write=False)
        object.__setattr__(self, "fingerprint", _fingerprint(self.settings, self.arrays))

    @property
    def spread(self) -> float:
        """The mean square of what codes say beyond the list: how far apart keys of a list are."""
        return float(np.square(self.arrays.codebooks.astype(np.float64)).sum(axis=2).mean(axis=1).sum())

    @classmethod
    def learn(cls, keys: ArrayLike, settings: CodecSettings, *, advance: Advance = lambda *_: None) -> Self:
        """Learn from sample keys [rows, width]; the settings are first fitted to the number of samples."""
        from silo.search.knn.learn import learn_arrays  # faiss: only learning needs it

        samples = _check_keys(keys)
        fitted = fit(settings, len(samples))
        chosen = fitted.settings
        dimensions = chosen.dimensions or samples.shape[1]
        _require(dimensions <= samples.shape[1], f"dimensions is {dimensions}, but keys have {samples.shape[1]}")
        _require(chosen.code_bytes <= dimensions, f"code_bytes is {chosen.code_bytes}, above {dimensions} dimensions")
        arrays = learn_arrays(
            samples,
            rotation=chosen.rotation,
            dimensions=dimensions,
            lists=chosen.lists,
            code_bytes=chosen.code_bytes,
            iterations=chosen.iterations,
            seed=chosen.seed,
            advance=advance,
        )
        return cls(chosen, arrays, len(samples), fitted.note)

    @cached_property
    def _quantiser(self) -> Quantiser:
        """Made for the first key, so that opening a codec does not import numba."""
        from silo.search.knn.quantise import Quantiser

        return Quantiser.of(self.arrays)

    @property
    def width(self) -> int:
        """Dimensions of a key."""
        return int(self.arrays.matrix.shape[1])

    @property
    def rotated_width(self) -> int:
        """Dimensions after the rotation, padding included."""
        return int(self.arrays.matrix.shape[0])

    def transform(self, keys: ArrayLike) -> Float32s:
        """Keys in rotated space [rows, rotated width]; distances are kept, save for dropped dimensions."""
        return self._quantiser.rotate(_check_keys(keys, self.width))

    def encode(self, keys: ArrayLike) -> Encoded:
        """Quantise keys [rows, width]; each row's result is the same in any batch, order and thread."""
        return Encoded(*self.quantise(keys))

    def quantise(self, keys: ArrayLike, multiply: Multiply = np.matmul) -> tuple[Int32s, UInt8s]:
        """Int32s and codes of keys, as in `encode`, with any matrix product of float32."""
        return self._quantiser.quantise(self.transform(keys), multiply)

    def reconstruct(self, encoded: Encoded) -> Float32s:
        """What the codes stand for, in rotated space: asymmetric distances are distances to these rows."""
        parts = self.arrays.codebooks[np.arange(self.settings.code_bytes), encoded.codes]
        rows: Float32s = self.arrays.centroids[encoded.lists] + parts.reshape(len(encoded), self.rotated_width)
        return rows

    def decode(self, encoded: Encoded) -> Float32s:
        """What the codes stand for, as keys [rows, width]; the last bits may depend on the batch."""
        keys: Float32s = np.matmul(self.reconstruct(encoded), self.arrays.matrix, dtype=np.float32) + self.arrays.mean
        return keys

    def save(self, path: Path) -> None:
        """Write the directory; it must not be there yet."""
        if path.exists():
            raise SiloError("out-exists", f"{path} is already there")
        partial = path.with_name(path.name + ".partial")
        remove_tree(partial)
        with disk_errors(path):
            partial.mkdir(parents=True)
            files = {f"{name}.npy": _write(partial / f"{name}.npy", getattr(self.arrays, name)) for name in _ARRAYS}
            content = {"format": FORMAT, "settings": asdict(self.settings), "codec": self.fingerprint, "files": files}
            write_manifest(partial, {**content, "samples": self.samples, "note": self.note})
            sync_directory(partial)
        commit(partial, path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read a directory that `save` wrote; any changed byte is the error `codec-invalid`."""
        content = _manifest(path)
        try:
            arrays = CodecArrays(**{name: _read(path / f"{name}.npy", content["files"]) for name in _ARRAYS})
            codec = cls(CodecSettings(**content["settings"]), arrays, content["samples"], content["note"])
            _require_shapes(codec)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise SiloError("codec-invalid", f"{path} cannot be read as a codec: {error}") from None
        if content["format"] != FORMAT or content["codec"] != codec.fingerprint:
            raise SiloError("codec-invalid", f"{path} does not match its fingerprint")
        return codec


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise SiloError("recipe-value", message)


def _check_keys(keys: ArrayLike, width: int = 0) -> Float32s:
    """Keys as float32 [rows, width] in C order; NaN, infinite and absurdly large values are refused."""
    with np.errstate(over="ignore", invalid="ignore"):
        rows = np.ascontiguousarray(keys, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != (width or max(1, rows.shape[1])):
            wanted = width or "width"
            raise SiloError("codec-invalid", f"keys have shape {rows.shape}, not (rows, {wanted})", _WRONG_KEYS)
        if rows.size and not max(-rows.min(), rows.max()) <= _LARGEST:
            raise SiloError("codec-invalid", "keys hold NaN, infinite or far too large values", _WRONG_KEYS)
    return rows


_WRONG_KEYS = "the keys do not come from the model this codec was made for"


def _fingerprint(settings: CodecSettings, arrays: CodecArrays) -> str:
    """SHA-256 over the settings and the shape and bytes of every array."""
    content: dict[str, Any] = {"format": FORMAT, "settings": asdict(settings)}
    for name in _ARRAYS:
        array: Float32s = getattr(arrays, name)
        content[name] = [list(array.shape), hashlib.sha256(array.astype("<f4").tobytes()).hexdigest()]
    return fingerprint(content)


def _write(path: Path, array: Float32s) -> str:
    """Write one array durably and return its SHA-256."""
    stream = io.BytesIO()
    np.save(stream, np.ascontiguousarray(array, dtype="<f4"), allow_pickle=False)
    path.write_bytes(stream.getvalue())
    sync_file(path)
    return hashlib.sha256(stream.getvalue()).hexdigest()


def _read(path: Path, files: Mapping[str, str]) -> Float32s:
    """Read one array whose bytes have the recorded SHA-256."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SiloError("codec-invalid", f"{path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != files[path.name]:
        raise SiloError("codec-invalid", f"{path} differs from its manifest")
    array = np.load(io.BytesIO(data), allow_pickle=False)
    if array.dtype != np.dtype("<f4"):
        raise ValueError(f"{path.name} is not float32")
    return np.ascontiguousarray(array, dtype=np.float32)


def _manifest(path: Path) -> dict[str, Any]:
    return read_manifest(path, missing="codec-invalid", damaged="codec-invalid")


def _require_shapes(codec: Codec) -> None:
    """The arrays fit the settings and each other."""
    out, bytes_ = codec.rotated_width, codec.settings.code_bytes
    expected = {
        "mean": (codec.width,),
        "centroids": (codec.settings.lists, out),
        "codebooks": (bytes_, CODEWORDS, out // bytes_),
    }
    for name, shape in expected.items():
        if getattr(codec.arrays, name).shape != shape:
            raise ValueError(f"{name} has the wrong shape")
