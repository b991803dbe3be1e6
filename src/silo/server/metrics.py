"""Numbers for Prometheus, in its text format: requests, tokens, waiting, latencies, and whose the tokens are."""

from __future__ import annotations

from collections import defaultdict
from threading import Lock

from silo.inference.generate import Step

_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_HELP = {
    "silo_requests_total": "HTTP requests by route and status.",
    "silo_tokens_total": "Tokens that were written.",
    "silo_share_total": "Tokens by whose share they are: the language model's or the documents'.",
    "silo_request_seconds": "Time from the request to the end of its answer.",
    "silo_first_token_seconds": "Time from a text's request to its first token, waiting included.",
    "silo_search_seconds": "Time of the searches that all texts of a step asked for together.",
    "silo_network_seconds": "Time of a pass of the networks, for all texts of a step together.",
    "silo_running": "Texts that are being written.",
    "silo_waiting": "Texts that wait for a slot.",
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counts and histograms; any thread may add to them."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._counts: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._times: dict[str, list[float]] = defaultdict(lambda: [0.0] * (len(_BOUNDS) + 2))

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        with self._guard:
            self._counts[name][tuple(sorted(labels.items()))] += amount

    def time(self, name: str, seconds: float) -> None:
        """Note a duration; the last two numbers of a histogram are its sum and its count."""
        with self._guard:
            histogram = self._times[name]
            for at, bound in enumerate(_BOUNDS):
                histogram[at] += seconds <= bound
            histogram[-2] += seconds
            histogram[-1] += 1

    def note_step(self, step: Step) -> None:
        """Count a token that was written, and whose it is."""
        if step.token >= 0:
            with self._guard:
                self._counts["silo_tokens_total"][()] += 1.0
                shares = self._counts["silo_share_total"]
                shares[("part", "model"),] += step.lm_share
                shares[("part", "documents"),] += 1.0 - step.lm_share

    def text(self, **gauges: float) -> str:
        """Everything in the exposition format; `gauges` are values of this moment."""
        lines: list[str] = []
        with self._guard:
            for name, values in sorted(self._counts.items()):
                lines += _head(name, "counter")
                lines += [f"{name}{_labels(labels)} {value:g}" for labels, value in sorted(values.items())]
            for name, histogram in sorted(self._times.items()):
                lines += _head(name, "histogram")
                ends = [*map(str, _BOUNDS), "+Inf"]
                counts = [*histogram[: len(_BOUNDS)], histogram[-1]]
                lines += [f'{name}_bucket{{le="{end}"}} {count:g}' for end, count in zip(ends, counts, strict=True)]
                lines += [f"{name}_sum {histogram[-2]:g}", f"{name}_count {histogram[-1]:g}"]
        for name, value in sorted(gauges.items()):
            lines += [*_head(name, "gauge"), f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str) -> list[str]:
    return [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} {kind}"]


def _labels(labels: Labels) -> str:
    shown = ",".join(f'{name}="{value}"' for name, value in labels)
    return f"{{{shown}}}" if shown else ""
