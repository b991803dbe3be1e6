"""`silo eval ppl`: from directories and files to figures; which test text was used is kept in the home folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo.errors import SiloError
from silo.evaluation.figures import DomainFigures, DomainSums, average_gap_closed
from silo.evaluation.scoring import METHODS, PLAIN, REFERENCE, Contestants, score_domain
from silo.evaluation.texts import DomainText, TextLimits, first_of_each, read_domains
from silo.evaluation.tune import validation_documents
from silo.files import append_line, canonical_json, disk_errors, file_sha256, whole_lines
from silo.inference.settings import Settings, load_settings, parse_method
from silo.lm.manifest import open_tokenizer
from silo.pairing import find_key_encoder, locate_key_encoder, open_store, require_fit
from silo.progress import Advance
from silo.store.store import Store
from silo.text.stream import TokenStream
from silo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from silo.lm.engine.decoder import DecodingModel
    from silo.lm.training.finetune import FineTuning

USES = "evaluations.jsonl"
_CHEAP = 3e13
"""Multiplications that `auto` spends on fine-tuning: a few minutes on two cores."""


@dataclass(frozen=True, slots=True)
class PplOptions:
    """What is compared on which text; see `silo eval ppl --help`. The first reference is the one gaps are closed to."""

    stores: tuple[Path, ...] = ()
    references: tuple[Path, ...] = ()
    methods: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    validation: tuple[Path, ...] = ()
    settings: str = ""
    tokens: int = 0
    document_tokens: int = 0
    validation_tokens: int = 40_000
    neighbours: int = 1024
    fine_tune: str = "auto"
    encoder: Path | None = None
    seed: int = 0
    verify: bool = False


def evaluate_perplexity(
    model: Path, home: Path, options: PplOptions, *, advance: Advance = lambda *_: None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All figures by domain and row, and those of every document.

    All that is wrong with the input is said before a network is loaded.
    """
    for places in (options.stores, options.references, options.files, options.validation):
        _require_different(places)
    tokenizer = open_tokenizer(model)
    _require_same_tokenizer(options.references, tokenizer)
    stores = [open_store(path) for path in options.stores]
    require_fit(model, stores)
    methods = _choose_methods(stores, options.methods)
    settings = _named_settings(home, options.settings, methods)
    token_search = any("knn" in name for name in methods)
    if token_search:
        locate_key_encoder(model, stores, options.encoder)
    limits, uses = TextLimits(options.tokens, options.document_tokens), _Uses.open(home, options.files)
    _require_no_test(options.validation, uses)
    texts = read_domains(options.files, tokenizer, limits)
    validation = read_domains(
        options.validation, tokenizer, TextLimits(options.validation_tokens, options.document_tokens)
    )

    from silo.lm.engine.decoder import DecodingModel

    opened = DecodingModel.open(model, verify=options.verify)
    references = _open_references(options.references, options.verify)
    notes: list[str] = []
    contestants = Contestants(
        opened,
        stores,
        find_key_encoder(opened, stores, options.encoder) if token_search else None,
        methods,
        references,
        settings,
        options.neighbours,
        _fine_tuning(options, opened, stores, notes),
    )
    if not options.validation and not settings and stores:
        notes.append("no --validation and no --settings: the defaults were used, which suit no store in particular")
    if lacking := sorted(texts.keys() - validation.keys()) if validation else []:
        notes.append(f"no validation text of {', '.join(lacking)}: settings were chosen on {', '.join(validation)}")
    notes += uses.note(opened.fingerprint, methods)
    figures = []
    for text in texts.values():
        chosen = _validation_of(text, validation, options.validation_tokens)
        scores = score_domain(contestants, text, chosen, advance=advance)
        figures.append(DomainFigures(DomainSums.of(scores), seed=options.seed))
    return _report(figures, notes), [
        {"domain": item.sums.domain, **document} for item in figures for document in item.by_document()
    ]


def _choose_methods(stores: Sequence[Store], asked: Sequence[str]) -> tuple[str, ...]:
    """Those asked for, else all that the stores offer; the language model alone is always the first."""
    offered = {"ric" if search == "bm25" else search for store in stores for search in store.config.searches}
    for name in asked:
        if lacking := parse_method(name) - offered:
            raise SiloError("search-missing", f"no store offers what {min(lacking)} needs", "give one with --store")
    names = asked or [name for name in METHODS if parse_method(name) <= offered]
    return tuple(dict.fromkeys([PLAIN, *names]))


def _require_different(places: Sequence[Path]) -> None:
    """Refuse what is named twice, which would count twice."""
    known = [place.resolve() for place in places]
    if again := next((place for place in places if known.count(place.resolve()) > 1), None):
        raise SiloError("usage", f"{again} is named twice")


def _named_settings(home: Path, name: str, methods: Sequence[str]) -> dict[str, Settings]:
    if not name:
        return {}
    searched = [method for method in methods if parse_method(method) - {"ric"}]
    return {method: load_settings(home, name, parse_method(method)) for method in searched}


def _require_same_tokenizer(references: Sequence[Path], tokenizer: Tokenizer) -> None:
    for place in references:
        if open_tokenizer(place).fingerprint != tokenizer.fingerprint:
            raise SiloError("store-mismatch", f"{place} has another tokenizer: perplexities per token do not compare")


def _open_references(places: Sequence[Path], verify: bool) -> dict[str, DecodingModel]:
    from silo.lm.engine.decoder import DecodingModel

    known = [place.name for place in places]
    others = [f"{REFERENCE} {place.name if known.count(place.name) == 1 else place}" for place in places[1:]]
    names = [REFERENCE, *others][: len(places)]
    return {name: DecodingModel.open(place, verify=verify) for name, place in zip(names, places, strict=True)}


def _fine_tuning(
    options: PplOptions, model: DecodingModel, stores: Sequence[Store], notes: list[str]
) -> FineTuning | None:
    """How to adapt the weights, if it is asked for or cheap; where it is not done the notes say so."""
    if not stores:
        return None
    from silo.lm.training.finetune import FineTuning

    how = FineTuning(seed=options.seed)
    tokens = sum(int(store.stats()["tokens"]) for store in stores)
    cost = 6.0 * model.parameters * tokens * how.epochs
    wanted = options.fine_tune == "yes" or (options.fine_tune == "auto" and cost <= _CHEAP)
    if wanted and options.validation:
        return how
    reason = "it needs --validation" if not options.validation else f"{cost:.0e} operations; --fine-tune yes does it"
    notes.append(f"not run: the model fine-tuned on the stores' {tokens:,} tokens ({reason})")
    return None


def _validation_of(text: DomainText, validation: Mapping[str, DomainText], most: int) -> TokenStream | None:
    """Validation text of the same domain, or of all domains if there is none."""
    if not validation:
        return None
    same = validation.get(text.domain)
    return first_of_each([same] if same else list(validation.values()), most)


@dataclass(frozen=True, slots=True)
class _Uses:
    """Which text was scored before, as a home folder keeps it; `marks` are those of the files that are scored now."""

    path: Path
    marks: Mapping[Path, str]
    earlier: Sequence[str]

    @classmethod
    def open(cls, home: Path, files: Sequence[Path]) -> _Uses:
        """Refuse a home that cannot be written, or whose notes are damaged, before anything takes long."""
        path = home / USES
        try:
            with disk_errors(home):
                home.mkdir(parents=True, exist_ok=True)
            if not os.access(home, os.W_OK):
                raise SiloError("not-writable", f"not allowed to write {path}")
            earlier = [json.loads(line)["text"] for line in whole_lines(path)] if path.exists() else []
        except OSError as error:
            raise SiloError("not-writable", f"{home} cannot be a home folder: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            hint = "move it away: which text was used is not known then"
            raise SiloError("settings-invalid", f"{path} is not as it was written", hint) from error
        return cls(path, {file: file_sha256(file) for file in files}, earlier)

    def note(self, model: str, methods: Sequence[str]) -> list[str]:
        """Write down what is scored now, and say what had been before: settings chosen after that are suspect."""
        notes = []
        for file, mark in self.marks.items():
            times = self.earlier.count(mark)
            if times:
                notes.append(f"{file.name} was scored before, {times} time{'s' if times > 1 else ''} ({self.path})")
            use = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "file": file.name, "text": mark}
            append_line(self.path, canonical_json({**use, "model": model, "methods": list(methods)}) + b"\n")
        return notes


def _require_no_test(files: Sequence[Path], uses: _Uses) -> None:
    """Refuse to choose settings on what is scored, or on what calls itself test text."""
    for _ in validation_documents(files):
        pass
    if same := next((file for file in files if file_sha256(file) in uses.marks.values()), None):
        raise SiloError("tuning-refused", f"{same} is scored: settings are chosen on other text")


def _report(figures: Sequence[DomainFigures], notes: list[str]) -> dict[str, Any]:
    rows = [row for row in figures[0].rows if row not in (PLAIN, REFERENCE)] if figures else []
    with_reference = bool(figures) and all(REFERENCE in item.rows for item in figures)
    averages = {
        row: {
            "all": average_gap_closed(figures, row).as_json(),
            "clean": average_gap_closed(figures, row, clean=True).as_json(),
        }
        for row in (rows if with_reference else [])
        if all(row in item.rows for item in figures)
    }
    domains = {item.sums.domain: item.as_json() for item in figures}
    return {"domains": domains, "average_gap_closed": averages, "notes": notes}
