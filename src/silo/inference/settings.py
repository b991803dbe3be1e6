"""How stores are read and mixed: settings with a name, tuned on validation text, kept in the home and never in a store.

On disk: `settings/<name>.json` with the settings, where they come from (model, text and its tiers, figures) and the
fingerprint of all that: a file that was changed is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError, did_you_mean
from silo.files import fingerprint, read_marked, write_marked
from silo.inference.gates import Floats, Gate, log_counts, log_nodes
from silo.store.view import PROBES

FORMAT = "silo-settings-3"
FOLDER = "settings"
METHODS = ("knn", "ngram", "ric")
VARIANTS = ("basic", "ensemble", "concat", "concat-next")
ORDERS = (1, 2, 3, 4, 5, 6)
"""Context lengths that the n-gram model always looks at; above them only the longest match counts."""

MATCH_LENGTHS = (1, 2, 4, 10, 30)
MATCH_COUNTS = (1, 4, 32, 512)
VARIETIES = (0.05, 0.3, 0.6, 1.0)
PEAKS = (0.05, 0.35, 0.75, 0.97)
"""Nodes of the gate of exact matches: tokens of the context, how often anything followed it, what part of that was
different tokens, and the LM's peak."""
KINDS = (1.0, 2.0, 4.0, 8.0)
"""Nodes of the gate of neighbours, besides the LM's peak: different tokens among the nearest."""
SPREAD_SHARE = 0.125
"""A tau that nobody chose is such a part of the codec's spread: it then suits keys of any length."""


@dataclass(frozen=True, slots=True)
class Ric:
    """Retrieval in context. Numbers that are 0 follow the model: half of its context for passages, stride a quarter.

    Of the tokens for passages, `basic` gives all to the best block, `concat` equal parts to several (best last),
    `concat-next` half to the best and half to what follows it in its document; `ensemble` averages over inputs with
    one block each (`weighting` uniform or score).
    """

    variant: str = "basic"
    passages: int = 1
    weighting: str = "uniform"
    passage_tokens: int = 0
    query_tokens: int = 0
    stride: int = 0

    def __post_init__(self) -> None:
        _require(self.variant in VARIANTS, f"a RIC variant is one of {', '.join(VARIANTS)}")
        _require(self.weighting in ("uniform", "score"), "RIC weighting is uniform or score")
        _require(1 <= self.passages <= 64, "RIC takes 1 to 64 passages")
        sizes = (self.passage_tokens, self.query_tokens, self.stride)
        _require(min(sizes) >= 0, "numbers of tokens are not negative")


def _knn_guess() -> Gate:
    """Untuned: trust grows with the sameness of what followed the nearest, and with the doubt of the LM."""
    peaks, kinds = np.array(PEAKS), np.array(KINDS)
    odds = np.outer(1.0 - peaks, 4.0 / kinds**1.5)
    return Gate(((0.0,), PEAKS, KINDS), (odds / (1.0 + odds))[None])


def _ngram_guess() -> Gate:
    """Untuned: trust grows with the length of the match, the sameness of what followed, and the doubt of the LM."""
    lengths, varieties, peaks = np.array(MATCH_LENGTHS), np.array(VARIETIES), np.array(PEAKS)
    odds = np.square(lengths[:, None, None, None]) * (1.0 - peaks) / (20.0 * (1.0 + 8.0 * varieties[:, None]))
    return ngram_gate(odds / (1.0 + odds))


def ngram_gate(weights: Floats) -> Gate:
    """The gate of exact matches with these weights [lengths, counts, varieties, peaks]; axes of one are repeated."""
    nodes = (log_nodes(MATCH_LENGTHS), log_nodes(MATCH_COUNTS), VARIETIES, PEAKS)
    return Gate(nodes, np.broadcast_to(weights, tuple(map(len, nodes))).copy())


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """`knn` is lambda, a constant or a gate over (nearest distance, LM peak, kinds of the nearest); `ngram` one over
    (match length, count, variety, LM peak). `skip`: no token search where the LM gives one token at least this much;
    off at 1. `tau` 0 follows the codec of the stores.
    """

    k: int = 1024
    tau: float = 0.0
    probes: int = PROBES
    knn: Gate = field(default_factory=_knn_guess)
    ngram: Gate = field(default_factory=_ngram_guess)
    skip: float = 1.0
    ric: Ric = field(default_factory=Ric)

    def __post_init__(self) -> None:
        _require(isinstance(self.k, int) and 1 <= self.k <= 32_768, "k is 1 to 32,768")
        _require(self.tau >= 0 and np.isfinite(self.tau), "tau is a positive number, or 0 for one that suits the codec")
        _require(isinstance(self.probes, int) and self.probes >= 1, "at least one list is probed")
        _require(0 < self.skip <= 1, "skip is a probability")

    @staticmethod
    def path(home: Path, name: str) -> Path:
        """Where settings of that name are kept, if it is one that a file can have."""
        _require(bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name)), f"'{name}' cannot name settings")
        return home / FOLDER / f"{name}.json"

    @staticmethod
    def saved(home: Path) -> list[str]:
        """The names of the settings that a home folder has."""
        return sorted(file.stem for file in (home / FOLDER).glob("*.json"))

    def with_values(self, **values: Any) -> Settings:
        """These settings with some replaced; None leaves a value as it is, `lam` is a fixed lambda."""
        given = {name: value for name, value in values.items() if value is not None}
        _require(given.get("tau", 1) > 0, "a given tau is above 0")
        if (weight := given.pop("lam", None)) is not None:
            _require(0 <= weight <= 1, "lambda is between 0 and 1")
            given["knn"] = Gate.constant(weight)
        return replace(self, **given)

    def asks_neighbours(self, peaks: Any) -> Any:
        """Where the LM, given its peak probability, is not sure enough to go without a token search."""
        return peaks < (self.skip if self.skip < 1 else np.inf)

    def gates(self, method: frozenset[str], features: Features) -> Floats:
        """The gates of all components but the LM [positions, components - 1]; 0 where a component found nothing."""
        columns = []
        if "knn" in method:
            gate = self.knn.of(features.closest, features.peaks, features.near_kinds)
            columns.append(np.where(np.isfinite(features.closest), gate, 0.0)[:, None])
        if "ngram" in method:
            counts = features.totals.ravel()
            gate = self.ngram.of(*(feature.ravel() for feature in features.of_levels()))
            columns.append(np.where(counts > 0, gate, 0.0).reshape(features.totals.shape))
        return np.concatenate(columns, axis=1) if columns else np.empty((len(features.peaks), 0))

    @property
    def mark(self) -> str:
        """Equal for settings that say the same."""
        return fingerprint(self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        plain = {name: getattr(self, name) for name in ("k", "tau", "probes", "skip")}
        return {**plain, "knn": self.knn.as_json(), "ngram": self.ngram.as_json(), "ric": asdict(self.ric)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Settings:
        """The inverse of `as_json`."""
        gates = {name: Gate.from_json(content[name]) for name in ("knn", "ngram")}
        return cls(**{**content, **gates, "ric": Ric(**content["ric"])})


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """What is known of each position before its token: the LM's peak probability, the distance of the nearest neighbour
    (inf without one), how many different tokens followed the nearest ones, the length of the longest match, and of each
    level (orders, then the longest) how often anything followed and how many different tokens that were."""

    peaks: Floats
    closest: Floats
    near_kinds: NDArray[np.integer[Any]]
    lengths: NDArray[np.integer[Any]]
    totals: NDArray[np.int64]
    kinds: NDArray[np.int64]

    def of_levels(self) -> tuple[Floats, Floats, Floats, Floats]:
        """What the gate of exact matches looks at, for every level [positions, levels]."""
        lengths = np.empty((len(self.lengths), len(ORDERS) + 1))
        lengths[:, :-1], lengths[:, -1] = ORDERS, self.lengths
        peaks = np.broadcast_to(self.peaks[:, None], lengths.shape)
        return log_counts(lengths), log_counts(self.totals), self.kinds / np.maximum(self.totals, 1), peaks


def level_column(length: int) -> int:
    """Which level a context of some length is: an order, or the last one, for the longest match."""
    return ORDERS.index(length) if length in ORDERS else len(ORDERS)


def parse_method(text: str) -> frozenset[str]:
    """`lm`, or some of knn, ngram and ric joined by +."""
    names = frozenset(text.split("+")) if text != "lm" else frozenset[str]()
    if unknown := names - set(METHODS):
        hint = " ".join(
            filter(None, [did_you_mean(min(unknown), METHODS), "use lm, or knn, ngram and ric joined by +"])
        )
        raise SiloError("usage", f"there is no method '{min(unknown)}'", hint)
    return names


def save_settings(home: Path, name: str, settings: Mapping[str, Settings], origin: Mapping[str, Any]) -> Path:
    """Keep the settings of some methods under a name; earlier ones of that name are replaced."""
    path = Settings.path(home, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    methods = {method: chosen.as_json() for method, chosen in settings.items()}
    write_marked(path, {"format": FORMAT, "methods": methods, "origin": dict(origin)})
    return path


def load_settings(home: Path, name: str, method: frozenset[str]) -> Settings:
    """The settings of that name for a method; ric adds nothing to what is tuned."""
    path = Settings.path(home, name)
    if not path.is_file():
        known = Settings.saved(home)
        hint = did_you_mean(name, known) or (f"known are {', '.join(known)}" if known else "")
        raise SiloError("settings-missing", f"there are no settings '{name}' in {path.parent}", hint)
    wanted = "+".join(part for part in ("knn", "ngram") if part in method)
    try:
        content = read_marked(path, damaged="settings-invalid")
        _require(content["format"] == FORMAT, f"{path} is not a {FORMAT} file")
        if not wanted:
            return Settings()
        _require(wanted in content["methods"], f"{path} has settings for {', '.join(content['methods'])} only")
        return Settings.from_json(content["methods"][wanted])
    except (KeyError, TypeError, ValueError) as error:
        raise SiloError("settings-invalid", f"{path}: {error}") from None


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise SiloError("settings-invalid", message)
