"""One measurement of perplexity: a model with stores on a domain's test text, settings from its validation text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.evaluation.figures import DomainFigures, DomainSums
from silo.evaluation.intervals import Estimate
from silo.evaluation.scoring import REFERENCE, Contestants, score_domain
from silo.evaluation.texts import DomainText, read_domain
from silo.experiments.harness.lab import Lab, LabStore
from silo.inference.settings import Settings, parse_method
from silo.lm.engine.decoder import DecodingModel
from silo.lm.training.finetune import FineTuning
from silo.lm.windows import Windows
from silo.pairing import KeyEncoder, find_key_encoder, open_store
from silo.store.store import Store
from silo.store.view import PROBES

NEIGHBOURS = WINDOW = 1024

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """How much text of a domain is scored and tuned on: whole documents, each cut to its first `document_tokens`."""

    test_tokens: int = 40_000
    validation_tokens: int = 40_000
    document_tokens: int = 2_000


@dataclass(frozen=True, slots=True)
class Setup:
    """What is scored. `neighbours` is the most of them that tuning may choose, `window` what the LM reads at once."""

    model: str
    stores: tuple[LabStore, ...]
    methods: tuple[str, ...]
    sample: Sample = field(default_factory=Sample)
    reference: str = ""
    neighbours: int = NEIGHBOURS
    probes: int = PROBES
    window: int = WINDOW
    fine_tuning_epochs: float = 0.0


def known_domains(lab: Lab, wanted: Iterable[str]) -> list[str]:
    """Those of the domains that the data has; all of its domains where it has none of them."""
    return [domain for domain in wanted if domain in lab.sizes] or list(lab.sizes)


def read_text(lab: Lab, domain: str, split: str, model: DecodingModel, sample: Sample) -> DomainText:
    """The text of a split that is scored or tuned on."""
    most = sample.test_tokens if split == "test" else sample.validation_tokens
    file = lab.text_file(domain, split)
    return read_domain(file, domain, model.tokenizer, tokens=most, document_tokens=sample.document_tokens)


def measure(lab: Lab, domain: str, setup: Setup) -> DomainSums:
    """All rows of one setup on one domain, now or in an earlier run; fine-tuning, which takes long, by itself."""
    rows = _measure(lab, domain, replace(setup, fine_tuning_epochs=0.0))
    if not setup.fine_tuning_epochs:
        return rows
    return join_rows([rows, _measure(lab, domain, replace(setup, methods=(), reference=""))])


def _measure(lab: Lab, domain: str, setup: Setup) -> DomainSums:
    reference = setup.reference
    key = {
        "model": lab.fingerprint(setup.model),
        "stores": [store.digest for store in setup.stores],
        "reference": lab.fingerprint(reference) if reference else "",
        "methods": list(setup.methods),
        "search": [setup.neighbours, setup.probes],
        "window": setup.window,
        "epochs": setup.fine_tuning_epochs,
        "sample": asdict(setup.sample),
        "domain": domain,
    }

    def score() -> dict[str, Any]:
        model, stores = lab.open_model(setup.model), [open_store(item.fill()) for item in setup.stores]
        windows = Windows(setup.window, setup.window // 2)
        contestants = Contestants(
            model,
            stores,
            key_encoder(model, stores, setup.methods, windows),
            setup.methods,
            {REFERENCE: lab.open_model(reference, codec=False)} if reference else {},
            {_searches(setup.methods): Settings(k=setup.neighbours, probes=setup.probes)},
            neighbours=setup.neighbours,
            fine_tuning=FineTuning(epochs=setup.fine_tuning_epochs) if setup.fine_tuning_epochs else None,
            windows=windows,
        )
        test, validation = (read_text(lab, domain, split, model, setup.sample) for split in ("test", "validation"))
        return DomainSums.of(score_domain(contestants, test, validation.stream, advance=lab.advance)).as_json()

    return DomainSums.from_json(lab.cell("perplexity", key, score))


def key_encoder(
    model: DecodingModel, stores: Sequence[Store], methods: Sequence[str], windows: Windows
) -> KeyEncoder | None:
    """What makes keys of a text in these windows, where a method asks for them."""
    if not any("knn" in parse_method(method) for method in methods):
        return None
    encoder = find_key_encoder(model, stores, None)
    return replace(encoder, windows=windows.within(encoder.opened.context))


def _searches(methods: Sequence[str]) -> str:
    """The name under which settings of all searches are given."""
    return "+".join(sorted({part for method in methods for part in parse_method(method)} - {"ric"}))


def join_rows(parts: Sequence[DomainSums]) -> DomainSums:
    """Rows that were measured one by one on the same text."""
    first = parts[0]
    for part in parts:
        require_same_text(first, part)
    return replace(
        first,
        logs={row: logs for part in parts for row, logs in part.logs.items()},
        notes={name: note for part in parts for name, note in part.notes.items()},
        seconds={name: seconds for part in parts for name, seconds in part.seconds.items()},
    )


def require_same_text(one: DomainSums, other: DomainSums) -> None:
    """Refuse to compare perplexities of different tokens."""
    if one.labels != other.labels or not np.array_equal(one.tokens.sum(axis=0), other.tokens.sum(axis=0)):
        raise SiloError("store-mismatch", f"{one.domain} was cut into other tokens: perplexities do not compare")


def ratio(one: DomainFigures, row: str, base: DomainFigures, base_row: str) -> Floats:
    """One perplexity as a multiple of another on the same text, draw by draw."""
    require_same_text(one.sums, base.sums)
    figure: Floats = one.perplexity(row) / base.perplexity(base_row)
    return figure


def mean_ratio(ratios: Sequence[Floats]) -> Floats:
    """The geometric mean over domains, whose draws are independent."""
    figure: Floats = np.exp(np.mean([np.log(item) for item in ratios], axis=0))
    return figure


def as_json(figure: Floats) -> dict[str, float | None]:
    """A figure's value and interval."""
    return Estimate.of(figure).as_json()
