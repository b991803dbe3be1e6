"""`silo store tune`: k, tau and the weights of all methods from validation text, in one pass over it.

The pass keeps for every token its probability under each (k, tau) of a grid and a few features. Lambda is solved for
each, not tried out; the adaptive gates are fitted on half of the documents and kept only where they win on the other.
A file that is a test split is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.evaluation.fitting import Floats, Use, fit_gates, solve_lambda
from silo.inference.gates import Gate
from silo.inference.observe import Observations, observe
from silo.inference.predict import Predictor
from silo.inference.settings import KINDS, PEAKS, Settings, ngram_gate
from silo.progress import Advance
from silo.sources.evaluation import read_scored
from silo.store.view import Neighbours
from silo.text.stream import TokenStream, first_tokens, merged_stream
from silo.text.tokenizer import Tokenizer

_FEWEST_NEIGHBOURS, _NEIGHBOUR_STEP = 16, 4
_TAUS = 9
_QUANTILES = (0.1, 0.5, 0.9)
_SKIPS = (0.5, 0.7, 0.9, 0.97)
_TEST = re.compile(r"(^|[^a-z])test([^a-z]|$)", re.IGNORECASE)

Method = frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """Settings for each method, and perplexities on the half of the text that the gates were not fitted on.

    `fixed` are the settings with one lambda for all tokens, for methods that have one.
    """

    settings: Mapping[str, Settings]
    fixed: Mapping[str, Settings]
    figures: Mapping[str, Any]


def validation_text(paths: Sequence[Path], tokenizer: Tokenizer, most: int) -> TokenStream:
    """The first tokens of some files. Settings chosen on a test split make its figures worthless: none is read."""
    return first_tokens(merged_stream(validation_documents(paths), tokenizer), most)


def validation_documents(paths: Sequence[Path]) -> Iterator[str]:
    """The texts of some files, one by one; a test split is refused."""
    for path in paths:
        for record in read_scored([path]):
            if _TEST.search(path.name) or record.split.lower() == "test":
                raise SiloError("tuning-refused", f"{path} is a test split")
            yield record.text


def tune(
    predictor: Predictor,
    text: TokenStream,
    *,
    neighbours: Sequence[int] = (),
    advance: Advance = lambda *_: None,
) -> Tuned:
    """Tune every method that the predictor has the searches for; `neighbours` are values of k to try, up to its own."""
    counted = text.scored.copy()
    counted[:1] = False
    half = _halves(text, predictor.tokenizer.begin)
    if not (counted & half).any() or not (counted & ~half).any():
        raise SiloError("input-empty", f"{counted.sum()} tokens of validation text are too few to tune on")
    most = predictor.settings.k
    grid = _Grid(text, tuple(k for k in sorted(neighbours) if k <= most) or neighbour_grid(most))
    observed = observe(predictor, text.ids, watch=grid.watch, advance=advance)
    return _Fit(predictor, observed, counted, half, grid).tuned()


def neighbour_grid(most: int) -> tuple[int, ...]:
    """Values of k to try: 16 and four times as many each, as long as they are fewer than the most, and the most."""
    steps = [_FEWEST_NEIGHBOURS]
    while steps[-1] < most:
        steps.append(steps[-1] * _NEIGHBOUR_STEP)
    return (*steps[:-1], most)


def _halves(text: TokenStream, begin: int) -> NDArray[np.bool_]:
    """True for the tokens of every other document; of every other stretch where there is one document only."""
    documents = np.cumsum(text.ids == begin)
    if documents.max(initial=0) < 2:
        documents = np.arange(len(text.ids)) // min(512, 1 + len(text.ids) // 2)
    half: NDArray[np.bool_] = documents % 2 == 0
    return half


@dataclass(slots=True, eq=False)
class _Grid:
    """P_kNN of each token for every k and tau: one exponential per neighbour, because each tau is half of the next."""

    text: TokenStream
    neighbours: tuple[int, ...]
    taus: Floats = field(default_factory=lambda: np.empty(0))
    mass: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))

    def watch(self, where: NDArray[np.int64], near: Neighbours) -> None:
        """Take the neighbours of some tokens."""
        if not len(self.taus):
            known = near.distances[np.isfinite(near.distances)]
            if not len(known):
                raise SiloError("input-empty", "no token of the text has a neighbour: is the store empty?")
            middle = float(np.median(known)) or 1.0
            self.taus = float(f"{2 * middle:.2g}") * 0.5 ** np.arange(_TAUS, dtype=np.float64)
            self.mass = np.zeros((len(self.text.ids), len(self.neighbours) * _TAUS), dtype=np.float32)
        hits = near.values == self.text.ids[where].astype(np.int64)[:, None]
        _fill(near.distances, hits, where, np.array(self.neighbours), self.taus, self.mass)

    def choice(self, column: int) -> tuple[int, float]:
        """k and tau of a column."""
        return self.neighbours[column // _TAUS], float(self.taus[column % _TAUS])


@numba.njit(cache=True, nogil=True, parallel=True)
def _fill(distances: Any, hits: Any, where: Any, neighbours: Any, taus: Any, mass: Any) -> None:
    for row in numba.prange(len(where)):
        right, total = np.zeros(len(taus)), np.zeros(len(taus))
        nearest, stage = distances[row, 0], 0
        for at in range(distances.shape[1] + 1):
            while stage < len(neighbours) and (at == neighbours[stage] or at == distances.shape[1]):
                for tau in range(len(taus)):
                    mass[where[row], stage * len(taus) + tau] = right[tau] / max(total[tau], 1e-300)
                stage += 1
            if at == distances.shape[1] or stage == len(neighbours):
                break
            if distances[row, at] == np.inf:
                continue
            weight = np.exp((nearest - distances[row, at]) / taus[0])
            for tau in range(len(taus)):
                total[tau] += weight
                if hits[row, at]:
                    right[tau] += weight
                weight *= weight


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """Fits every method on one pass."""

    predictor: Predictor
    observed: Observations
    counted: NDArray[np.bool_]
    half: NDArray[np.bool_]
    grid: _Grid

    def tuned(self) -> Tuned:
        base = self.predictor.settings
        settings: dict[str, Settings] = {}
        fixed: dict[str, Settings] = {}
        figures: dict[str, Any] = {"tokens": int(self.counted.sum()), "lm": self._perplexity(self.observed.lm)}
        observed, method = self.observed, self.predictor.method
        if "knn" in method:
            best = self._neighbours()
            k, tau = self.grid.choice(best)
            base = replace(base, k=k, tau=tau)
            observed = replace(self.observed, knn=self.grid.mass[:, best].astype(np.float64))
        for name in ("knn", "ngram", "knn+ngram"):
            if set(name.split("+")) <= method:
                method_parts = frozenset(name.split("+"))
                settings[name], figures[name] = self._method(observed, method_parts, base)
                if "knn" in method_parts:
                    fixed[name] = self._fixed(observed, method_parts, base, self.counted)
        if "knn" in method:
            figures["neighbours"] = list(self.grid.neighbours)
            figures["skip"] = [self._skipped(observed, settings["knn"], limit) for limit in _SKIPS]
        return Tuned(settings, fixed, figures)

    def _neighbours(self) -> int:
        """The column of the grid that does best with its own lambda."""
        _, means = solve_lambda(self.observed.lm[self.counted], self.grid.mass[self.counted])
        return int(means.argmax())

    def _method(self, observed: Observations, method: Method, base: Settings) -> tuple[Settings, dict[str, Any]]:
        """Fixed and adaptive weights; the better one on the other half is fitted again on everything."""
        here, there = self.counted & self.half, self.counted & ~self.half
        fixed = self._fixed(observed, method, base, here)
        adaptive = self._adaptive(observed, method, base, here)
        scores = {
            name: _perplexity(observed, method, chosen, there)
            for name, chosen in zip(("fixed", "adaptive"), (fixed, adaptive), strict=True)
        }
        fit = self._adaptive if scores["adaptive"] <= scores["fixed"] else self._fixed
        chosen = fit(observed, method, base, self.counted)
        report: dict[str, Any] = {"held_out": scores, "all": _perplexity(observed, method, chosen, self.counted)}
        if "knn" in method:
            report |= {"k": chosen.k, "tau": chosen.tau, "lambda": float(chosen.knn.weights.mean())}
        return chosen, report

    def _fixed(self, observed: Observations, method: Method, base: Settings, rows: NDArray[np.bool_]) -> Settings:
        """One lambda; matches are always weighed by what they are."""
        return fit_weights(observed, method, base, rows, Gate.constant(0.0), ngram_gate(np.zeros(1)))

    def _adaptive(self, observed: Observations, method: Method, base: Settings, rows: NDArray[np.bool_]) -> Settings:
        if "knn" not in method:
            return self._fixed(observed, method, base, rows)
        return fit_weights(observed, method, base, rows, neighbour_gate(observed, rows), ngram_gate(np.zeros(1)))

    def _perplexity(self, probabilities: Floats) -> float:
        return float(np.exp(-np.log(np.maximum(probabilities[self.counted], 1e-300)).mean()))

    def _skipped(self, observed: Observations, settings: Settings, limit: float) -> dict[str, float]:
        """What leaving out the search costs where the LM is sure."""
        sure = observed.features.peaks >= limit
        features = replace(observed.features, closest=np.where(sure, np.inf, observed.features.closest))
        cost = _perplexity(replace(observed, features=features), frozenset({"knn"}), settings, self.counted)
        return {"limit": limit, "skipped": float(sure[self.counted].mean()), "perplexity": cost}


def fit_matches(observed: Observations, counted: NDArray[np.bool_]) -> Settings:
    """The weights of exact matches over whatever stands in the LM's place."""
    gates = Gate.constant(0.0), ngram_gate(np.zeros(1))
    return fit_weights(observed, frozenset({"ngram"}), Settings(), counted, *gates)


def neighbour_gate(observed: Observations, rows: NDArray[np.bool_]) -> Gate:
    """A gate of neighbours that looks at all it can, with nodes for the distances that there are."""
    near = observed.features.closest[rows & np.isfinite(observed.features.closest)]
    lines = (_rising(np.quantile(near, _QUANTILES)), PEAKS, KINDS)
    return Gate(lines, np.zeros(tuple(map(len, lines))))


def fit_weights(
    observed: Observations, method: Method, base: Settings, rows: NDArray[np.bool_], knn: Gate, ngram: Gate
) -> Settings:
    """The settings with weights that make some tokens likely, at the nodes of these gates."""
    uses: list[Use] = []
    if "knn" in method:
        features = observed.features
        active = np.isfinite(features.closest[rows])
        corners = knn.corners(
            np.where(active, features.closest[rows], 0.0), features.peaks[rows], features.near_kinds[rows]
        )
        uses.append(Use(0, *corners, active))
    if "ngram" in method:
        levels = [feature[rows] for feature in observed.features.of_levels()]
        for column, totals in enumerate(observed.features.totals[rows].T):
            uses.append(Use(1, *ngram.corners(*(feature[:, column] for feature in levels)), totals > 0))
    fitted = fit_gates(observed.components(method)[rows], uses, [knn, ngram])
    return replace(
        base,
        knn=fitted[0] if "knn" in method else base.knn,
        ngram=fitted[1] if "ngram" in method else base.ngram,
    )


def _perplexity(observed: Observations, method: Method, settings: Settings, rows: NDArray[np.bool_]) -> float:
    probabilities = observed.probabilities(method, settings)[rows]
    return float(np.exp(-np.log(np.maximum(probabilities, 1e-300)).mean()))


def _rising(values: Floats) -> tuple[float, ...]:
    """Distinct values, ascending."""
    return tuple(np.unique(values).tolist())
