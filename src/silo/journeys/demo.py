"""`silo demo`: the whole idea on the Python packages of this machine, in minutes.

Permissive code becomes a small language model; code under PSF, MPL, LGPL or unclear terms goes into a store. Held-out
restricted files show what each method is worth, a generation shows whom it is owed to, and one owner opts out. All of
it lies in one folder; what is there already is used again, and who opted out in an earlier run is put back first.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silo.corpus.build import build
from silo.corpus.corpus import Corpus
from silo.evaluation.tune import tune
from silo.files import read_json, write_json
from silo.inference.answer import Answer
from silo.inference.predict import open_predictor
from silo.inference.score import score_text
from silo.inference.session import open_session
from silo.inference.settings import Settings, save_settings
from silo.lm.audit import verify_model
from silo.lm.codec import learn_codec
from silo.lm.training.train import train
from silo.pairing import create_store, open_store
from silo.progress import Advance, Talk
from silo.recipe import CorpusRecipe, SourceRecipe, TrainRecipe
from silo.records import Document, Tier
from silo.search.knn.codec import CodecSettings
from silo.store.erasure.receipt import check_receipt, read_receipt
from silo.store.paths import StorePaths
from silo.store.selector import Selector
from silo.store.store import Store
from silo.text.stream import TokenStream, first_tokens, merged_stream
from silo.text.tokenizer import load_tokenizer

METHODS = ("lm", "ric", "knn", "ngram", "knn+ngram")
EXCLUDED = ("torch", "transformers", "sympy", "numpy", "matplotlib", "mypy", "fonttools", "pyarrow")
"""Distributions that are too large for a few minutes."""

_EXCERPT = 4_000
"""Characters of a held-out file that are scored, so that many files have a part in a figure."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything; the defaults take about six minutes on two cores."""

    vocabulary: int = 4096
    context: int = 256
    train_tokens: int = 460_000
    codec_keys: int = 60_000
    codec_lists: int = 1024
    store_tokens: int = 350_000
    owner_tokens: int = 120_000
    tuning_tokens: int = 10_000
    test_tokens: int = 9_000
    written_tokens: int = 90


@dataclass(slots=True)
class Findings:
    """What a run found, as plain values for the report and for `--json`; `answers` are the two generations."""

    facts: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Split:
    """Restricted documents: those for the store, and those kept out of it for tuning and testing."""

    stored: list[Document]
    tuning: list[Document]
    testing: list[Document]


def run_demo(
    home: Path,
    *,
    sizes: Sizes | None = None,
    reference: bool = False,
    source: SourceRecipe | None = None,
    talk: Talk = lambda _: None,
    advance: Advance = lambda *_: None,
) -> Findings:
    """Run every stage; `reference` also trains a model on everything, to compare with."""
    return _Demo(home, sizes or Sizes(), source or _packages(), talk, advance).run(reference=reference)


def _packages() -> SourceRecipe:
    return SourceRecipe("distributions", ("*",), exclude=EXCLUDED)


class _Demo:
    def __init__(self, home: Path, sizes: Sizes, source: SourceRecipe, talk: Talk, advance: Advance) -> None:
        self._home, self._sizes, self._source = home, sizes, source
        self._talk, self._advance = talk, advance
        self._findings = Findings()
        self._model = home / "models" / "demo"
        self._store = home / "stores" / "demo"

    def run(self, *, reference: bool) -> Findings:
        home = self._home
        home.mkdir(parents=True, exist_ok=True)
        with self._stage("corpus", "1/7 A corpus from the Python packages of this machine, licence by licence"):
            corpus = self._corpus()
        with self._stage("model", "2/7 A language model, from code that anyone may train on"):
            self._train("demo", corpus, ("pd", "sw"))
            if reference:
                self._train("reference", corpus, tuple(Tier))
        with self._stage("store", "3/7 A store, for everything that nobody may train on"):
            split = self._split(corpus)
            self._fill(split)
        with self._stage("methods", "4/7 Perplexity on restricted files that neither has seen"):
            settings = self._tune(split)
            self._table(split, settings, reference=reference)
        with self._stage("generate", "5/7 A continuation, and whom it is owed to"):
            prompt = self._prompt(split)
            before = self._write("before", prompt, settings)
        with self._stage("opt-out", "6/7 An owner opts out"):
            self._opt_out(before, prompt, split, settings)
        with self._stage("proof", "7/7 Proof"):
            self._prove(corpus)
        self._findings.facts["seconds"] = self._findings.seconds
        write_json(home / "demo.json", self._findings.facts)
        return self._findings

    @contextmanager
    def _stage(self, name: str, title: str) -> Iterator[None]:
        self._talk(title)
        begin = time.perf_counter()
        yield
        self._findings.seconds[name] = round(time.perf_counter() - begin, 1)

    def _corpus(self) -> Corpus:
        place = self._home / "corpora" / "demo"
        if not (place / "manifest.json").exists():
            recipe = CorpusRecipe(source=(self._source,), shard_mb=16)
            build(recipe, place, base=self._home, advance=self._advance)
        corpus = Corpus.open(place)
        sizes: Counter[str] = Counter()
        licences: dict[str, Counter[str]] = {str(tier): Counter() for tier in Tier}
        for document in corpus.documents():
            sizes[str(document.tier)] += len(document.text)
            licences[str(document.tier)][document.license] += len(document.text)
        self._findings.facts["corpus"] = {
            "characters": dict(sizes),
            "licences": {tier: dict(counts.most_common(5)) for tier, counts in licences.items() if counts},
        }
        return corpus

    def _train(self, name: str, corpus: Corpus, tiers: Sequence[str]) -> None:
        place, sizes = self._home / "models" / name, self._sizes
        if not (place / "manifest.json").exists():
            recipe = TrainRecipe(
                corpus=str(corpus.root.absolute()),
                tiers=tuple(map(str, tiers)),
                tokenizer_tiers=("pd", "sw"),
                reference=name == "reference",
                vocabulary=sizes.vocabulary,
                context=sizes.context,
                max_tokens=sizes.train_tokens,
                batch_tokens=2048,
                micro_batch=8,
                learning_rate=2e-3,
                checkpoint_every=200_000,
            )
            train(recipe, place, base=self._home, talk=self._talk, advance=self._advance)
        if name == "demo" and not (place / "codec").exists():
            settings = CodecSettings(lists=sizes.codec_lists)
            learn_codec(place, corpus, settings, keys=sizes.codec_keys, advance=self._advance)
        self._findings.facts.setdefault("models", {})[name] = {"curve": read_json(place / "curve.json")}

    def _split(self, corpus: Corpus) -> _Split:
        """Restricted documents of as many owners as fit, some of each kept out."""
        sizes, spent = self._sizes, Counter[str]()
        stored: list[Document] = []
        tuning: list[Document] = []
        testing: list[Document] = []
        usable = (item for item in corpus.documents(tiers=[Tier.restricted]) if item.rights.store)
        for document in sorted(usable, key=_draw):
            characters = len(document.text)
            if not 500 <= characters <= 60_000 or spent[document.owner] + characters > 4 * sizes.owner_tokens:
                continue
            if sum(spent.values()) > 4 * sizes.store_tokens:
                break
            spent[document.owner] += characters
            turn = int(_draw(document)[:2], 16) % 10
            (tuning if turn == 0 else testing if turn == 1 else stored).append(document)
        return _Split(stored, tuning, testing)

    def _fill(self, split: _Split) -> None:
        place = self._store
        store = open_store(place, encoding=True) if (place / "data").exists() else create_store(place, self._model)
        store.add(split.stored, advance=self._advance)
        stats = store.stats()
        owners = Counter(document.owner for document in split.stored)
        kept_out = len(split.tuning) + len(split.testing)
        self._findings.facts["store"] = {
            "documents": stats["documents"],
            "tokens": stats["tokens"],
            "bytes": stats["bytes"],
            "owners": dict(owners.most_common(12)),
            "held_out": kept_out,
            "digest": store.digest(),
        }
        store.close()

    def _text(self, documents: Sequence[Document], most: int) -> TokenStream:
        tokenizer = load_tokenizer(str(self._model))
        return first_tokens(merged_stream((item.text[:_EXCERPT] for item in documents), tokenizer), most)

    def _tune(self, split: _Split) -> dict[str, Settings]:
        predictor = open_predictor(self._model, [self._store], method="knn+ngram")
        tuned = tune(predictor, self._text(split.tuning, self._sizes.tuning_tokens), advance=self._advance)
        save_settings(self._home, "demo", tuned.settings, {"figures": tuned.figures})
        return dict(tuned.settings)

    def _table(self, split: _Split, settings: dict[str, Settings], *, reference: bool) -> None:
        text = self._text(split.testing, self._sizes.test_tokens)
        perplexities = {method: self._score(method, settings, text) for method in METHODS}
        if reference:
            perplexities["trained on everything"] = self._score(
                "lm", settings, text, model=self._home / "models" / "reference"
            )
        self._findings.facts["methods"] = perplexities
        self._findings.facts["tokens_scored"] = int(text.scored.sum())

    def _score(self, method: str, settings: dict[str, Settings], text: TokenStream, model: Path | None = None) -> float:
        stores = [] if method == "lm" else [self._store]
        chosen = settings.get(method, Settings())
        predictor = open_predictor(model or self._model, stores, method=method, settings=chosen)
        return round(score_text(predictor, text, advance=self._advance).total.perplexity, 2)

    def _prompt(self, split: _Split) -> str:
        """The beginning of a held-out file of the owner with most documents."""
        owner = Counter(document.owner for document in split.stored).most_common(1)[0][0]
        mine = [document for document in split.testing if document.owner == owner] or split.testing
        lines = max(mine, key=lambda item: len(item.text)).text.splitlines(keepends=True)
        middle = len(lines) // 3
        return "".join(lines[middle : middle + 12]).rstrip("\n")[-600:]

    def _write(self, name: str, prompt: str, settings: dict[str, Settings]) -> Answer:
        session = open_session(self._model, self._store, method="knn+ngram", settings=settings["knn+ngram"], threads=1)
        answer = session.answer(prompt, max_tokens=self._sizes.written_tokens)
        self._findings.answers[name] = answer
        self._findings.facts[name] = {
            "prompt": prompt,
            "text": answer.text,
            "lm_share": answer.lm_share,
            "owners": dict(answer.shares("owner")),
            "licences": dict(answer.shares("license")),
            "notices": list(answer.notices),
        }
        for store in session.predictor.stores:
            store.close()
        return answer

    def _opt_out(self, before: Answer, prompt: str, split: _Split, settings: dict[str, Settings]) -> None:
        owners = before.shares("owner")
        owner = owners[0][0] if owners else split.stored[0].owner
        theirs = self._text([item for item in split.testing if item.owner == owner], self._sizes.test_tokens)
        perplexities = {"lm": self._score("lm", settings, theirs), "before": self._score("knn+ngram", settings, theirs)}
        store = open_store(self._store)
        done = store.erase(Selector(owner=owner), suppress=False)
        digest = store.digest()
        store.close()
        perplexities["after"] = self._score("knn+ngram", settings, theirs)
        self._findings.facts["opt_out"] = {
            "owner": owner,
            "documents": len(done.documents),
            "accepted_ms": done.accepted_ms,
            "done_ms": done.done_ms,
            "receipt": str(done.receipt),
            "digest": digest,
            "perplexity_on_their_files": perplexities,
        }
        self._write("after", prompt, settings)

    def _prove(self, corpus: Corpus) -> None:
        receipt = Path(self._findings.facts["opt_out"]["receipt"])
        paths = StorePaths(self._store)
        key = paths.public_key.read_bytes()
        checked = check_receipt(read_receipt(receipt), key=key, log=paths.log)
        audit = verify_model(self._model, corpus=str(corpus.root))
        store: Store = open_store(self._store)
        verified = store.verify(advance=self._advance)
        store.close()
        left = self._findings.facts["after"]["owners"].get(self._findings.facts["opt_out"]["owner"], 0.0)
        self._findings.facts["proof"] = {
            "receipt": str(receipt),
            "receipt_checks": checked["checks"],
            "failed_checks": checked["failed_checks"] + checked["not_checked"],
            "not_covered": checked["exclusions"],
            "store_problems": list(verified.problems),
            "documents_the_model_saw": audit["documents"],
            "documents_it_should_not_have_seen": len(audit["violations"]),
            "share_of_the_owner_after": left,
        }


def _draw(document: Document) -> str:
    """An order and a lot that depend on the document alone."""
    return hashlib.sha256(document.id.encode()).hexdigest()
