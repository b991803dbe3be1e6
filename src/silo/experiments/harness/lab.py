"""Where experiments work: a folder with the data, the corpus, the models and the stores they share, each made once.

    data/  corpus/  models/NAME/  stores/...        large, made again from recipes
    cells/  results/NAME/                           small, kept in the same folder or in another

A cell is one measurement. It is kept as JSON under a fingerprint of all that it depends on, so that a killed run goes
on with the cell it was at, and a changed recipe measures only what has changed. What a model and a store are is such a
measurement too: where it is known, neither is made again for figures that are known.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from silo.corpus.build import build
from silo.corpus.corpus import Corpus
from silo.corpus.decontaminate import EvaluationText
from silo.errors import SiloError
from silo.evaluation.texts import TextLimits, read_domains
from silo.evaluation.tune import tune
from silo.experiments.harness.data import DataRecipe, find_domains, prepare_data
from silo.files import file_sha256, fingerprint, read_json, remove_tree, write_json
from silo.inference.predict import open_predictor
from silo.inference.settings import Settings
from silo.lm.codec import learn_codec
from silo.lm.engine.decoder import DecodingModel
from silo.lm.manifest import CODEC_FOLDER, Key, model_fingerprint, open_manifest
from silo.lm.training.train import train
from silo.pairing import create_store, open_store
from silo.placement import CPU, NOT_ASKED, Placement, asked
from silo.progress import Advance
from silo.recipe import CorpusRecipe, DecontaminationRecipe, SourceRecipe, TrainRecipe, parse_recipe, read_toml
from silo.records import Document, Tier
from silo.search.knn.codec import CodecSettings
from silo.text.tokenizer import load_tokenizer

RECIPES = Path(__file__).parents[1] / "recipes"
DEFAULT_CODEC = CodecSettings()
_ALL: Mapping[str, Sequence[str]] = {}
_ANY = Placement("cpu", "auto")
_FILLED = "filled"
"""An empty file beside the data of a store that holds all it should."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class LabModel:
    """A model of an experiment, known by what its training left on paper; `train` gives its directory.

    `fingerprint` names it in measurements. `training` is the part of its manifest, `curve` the losses, `config` the
    shape of its network; empty for a model that was brought along.
    """

    fingerprint: str
    training: Mapping[str, Any]
    curve: Mapping[str, Any]
    config: Mapping[str, Any]
    train: Callable[[], Path]


@dataclass(frozen=True, slots=True, eq=False)
class LabStore:
    """A store of an experiment, known by what it holds; `fill` gives its directory, and makes it if it is not there."""

    name: str
    digest: str
    tokens: int
    fill: Callable[[], Path]


class Lab:
    """One folder of experiments over one folder of data; keys in a recipe of `changes` replace those of `recipes`.

    `kept` is where measurements and results are, if not in the same folder. `workers` build the corpus (0: one for each
    core), `codec` is how codecs are learned; both are for small labs. `only` names what an experiment is cut down to:
    some of the `models` of its recipe, or domains of the data instead of its `domains`. `named` is how a command line
    names the data, where it has to.
    """

    def __init__(
        self,
        folder: Path,
        data: Path,
        *,
        recipes: Path = RECIPES,
        changes: Path | None = None,
        kept: Path | None = None,
        workers: int = 0,
        codec: CodecSettings = DEFAULT_CODEC,
        only: Mapping[str, Sequence[str]] = _ALL,
        named: str = "",
        talk: Callable[[str], None] = lambda _: None,
        advance: Advance = lambda *_: None,
    ) -> None:
        self.folder, self.data, self.recipes, self.changes = folder.absolute(), data, recipes, changes
        self.kept = (kept or folder).absolute()
        self.workers, self.codec_settings, self.only, self.named = workers, codec, only, named
        self.talk, self.advance = talk, advance
        self.placements: dict[Path, str] = {}
        """Of every cell that was asked for: where networks computed, "" for the processor in float32."""

    def recipe(self, name: str, kind: type[T]) -> T:
        """The recipe of that name, with the chosen ones of its models and domains."""
        content = self._recipe_content(name)
        for kind_of_list, chosen in self.only.items():
            if kind_of_list in content:
                named = [item for item in content[kind_of_list] if item in chosen]
                content[kind_of_list] = [*named, *sorted({*chosen} - {*named})]
        return parse_recipe(content, kind, where=f"{name}.toml")

    def require_known(self, name: str) -> None:
        """Refuse to cut an experiment down to models that it does not have, or domains that the data do not have."""
        for kind_of_list, chosen in self.only.items():
            content = self._recipe_content(name)
            known: Iterable[str] = content.get(kind_of_list, ())
            if kind_of_list == "domains" and kind_of_list in content:
                known = find_domains(self.data)
            missing = sorted(set(chosen) - set(known))
            if missing:
                hint = f"it has {', '.join(known)}" if known else f"it has no list of {kind_of_list} to choose from"
                raise SiloError("usage", f"{name} has no {kind_of_list[:-1]} {', '.join(missing)}", hint)

    def _recipe_content(self, name: str) -> dict[str, Any]:
        content = read_toml(self.recipes / f"{name}.toml")
        if self.changes and (self.changes / f"{name}.toml").exists():
            content |= read_toml(self.changes / f"{name}.toml")
        return content

    def cell(self, kind: str, key: Mapping[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What was measured under this key, now or in an earlier run."""
        path = self._cell_file(kind, key)
        if not path.exists():
            self.talk(f"{kind}: {', '.join(f'{name} {value}' for name, value in key.items())}")
            self._keep_cell(kind, key, measure())
        content = read_json(path)
        self.placements[path] = content.get("placement", "")
        found: dict[str, Any] = content["found"]
        return found

    def _cell_file(self, kind: str, key: Mapping[str, Any]) -> Path:
        return self.kept / "cells" / f"{kind}-{fingerprint([kind, key])[:24]}.json"

    def _keep_cell(self, kind: str, key: Mapping[str, Any], found: dict[str, Any]) -> None:
        path = self._cell_file(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        placement = {} if asked() in (NOT_ASKED, CPU) else {"placement": str(asked().over(_ANY))}
        write_json(path, {"key": dict(key), "found": found, **placement})

    @cached_property
    def sizes(self) -> dict[str, Any]:
        """Documents and bytes by domain and split; makes fair splits of the data, and the corpus of all train text."""
        recipe = self.recipe("data", DataRecipe)
        counts = prepare_data(self.data, self.folder / "data", recipe)
        if not (self.folder / "corpus" / "manifest.json").exists():
            self.talk("corpus: licences, near duplicates, evaluation text kept out")
            corpus = replace(_corpus_recipe(recipe, list(counts)), workers=self.workers)
            build(corpus, self.folder / "corpus", base=self.folder, advance=self.advance)
        return counts

    def corpus(self) -> Corpus:
        """The corpus of all train text."""
        assert self.sizes
        return Corpus.open(self.folder / "corpus")

    def text_file(self, domain: str, split: str) -> Path:
        """The prepared file of a domain."""
        assert self.sizes
        path = self.folder / "data" / f"{domain}.{split}.jsonl.zst"
        if not path.exists():
            raise SiloError("input-missing", f"the data has no {split} text of the domain {domain}")
        return path

    def model(self, name: str, *, key: Key = "ffn", codec: bool = True) -> Path:
        """A model with its codec: trained by `lm-NAME.toml`, or brought along (`silo lm import` into `models/NAME`)."""
        place = self.folder / "models" / name
        if not (place / "manifest.json").exists():
            if not (self.recipes / f"lm-{name}.toml").exists():
                hint = f"bring it along: silo lm import PATH --out {place}"
                raise SiloError("input-missing", f"there is no model {name} in {place.parent}", hint)
            self.train(place, self.recipe(f"lm-{name}", TrainRecipe))
        if codec and not (place / CODEC_FOLDER).exists():
            self.talk(f"model {name}: learn the codec of its keys from permitted text")
            learn_codec(place, self.corpus(), self.codec_settings, key=key, advance=self.advance)
        return place

    def open_model(self, name: str, *, codec: bool = True) -> DecodingModel:
        """The model, with what it has read before: experiments put the same text to many stores."""
        opened = DecodingModel.open(self.model(name, codec=codec))
        opened.kept_scores = self.folder / "scores"
        return opened

    def train(self, place: Path, recipe: TrainRecipe) -> Path:
        """A model of the corpus, unless it is there; a killed run goes on."""
        if not (place / "manifest.json").exists():
            if self._trainable_tiers().isdisjoint(recipe.tiers):
                message = f"the data have no text that {place.name} may learn from ({', '.join(recipe.tiers)})"
                raise SiloError("input-empty", message, "leave this model out: --models names those that are compared")
            self.talk(f"model {place.name}: train")
            place.parent.mkdir(parents=True, exist_ok=True)
            train(self._with_tokenizer(recipe), place, base=self.folder, talk=self.talk, advance=self.advance)
            self._keep_cell("trained", self._trained_key(recipe), _model_facts(place))
        return place

    def trained(self, place: Path, recipe: TrainRecipe) -> LabModel:
        """The model that is there, else what is known of one trained before by the same recipe, else a new one.

        Measurements know it by recipe and corpus. The same training on another kind of processor ends with slightly
        other weights; figures of both stand side by side as those of one model.
        """
        make, key = partial(self.train, place, recipe), self._trained_key(recipe)
        if not (place / "manifest.json").exists():
            facts = self.cell("trained", key, lambda: _model_facts(make()))
        else:
            facts = _model_facts(place)
            if not self._cell_file("trained", key).exists():
                self._keep_cell("trained", key, facts)
        return LabModel(**{**facts, "fingerprint": fingerprint(key)}, train=make)

    def _trained_key(self, recipe: TrainRecipe) -> dict[str, Any]:
        return {"recipe": asdict(self._with_tokenizer(recipe)), "corpus": self.corpus().fingerprint}

    def _with_tokenizer(self, recipe: TrainRecipe) -> TrainRecipe:
        """A recipe whose tokenizer learns from text that is there: data may have none in the public domain.

        It is then the text of the lowest tier of the corpus, so that all models still share a tokenizer.
        """
        held = self._trainable_tiers()
        lowest = str(min(held, default=Tier.pd))
        if not recipe.tokenizer_tiers or held & set(map(Tier, recipe.tokenizer_tiers)) or lowest not in recipe.tiers:
            return recipe
        return replace(recipe, tokenizer_tiers=(lowest,))

    def _trainable_tiers(self) -> set[Tier]:
        return {Tier(row["tier"]) for row in self.corpus().manifest["table"] if row["train_tokens"]}

    def find_model(self, name: str) -> LabModel:
        """What is known of a model by its name; no weights are read."""
        place = self.folder / "models" / name
        if (self.recipes / f"lm-{name}.toml").exists():
            return self.trained(place, self.recipe(f"lm-{name}", TrainRecipe))
        return LabModel(**_model_facts(self.model(name, codec=False)), train=lambda: place)

    def fingerprint(self, model: str) -> str:
        """What a measurement depends on of a model."""
        return self.find_model(model).fingerprint

    def store(
        self,
        model: str,
        domain: str | Sequence[str],
        tokens: int = 0,
        *,
        variant: str = "",
        keep_out: Sequence[Path] = (),
        grown_from: LabStore | None = None,
    ) -> LabStore:
        """A store of about so many tokens (0: all) of a domain's train text, as the corpus holds it; or of several.

        `keep_out` are more files whose text it must not give away; such a store is a `variant`. `grown_from` is a store
        that holds the beginning of the same text, which then need not be encoded again: the bytes are the same.
        """
        domains = [domain] if isinstance(domain, str) else list(domain)
        name = "-".join(str(part) for part in (model, "+".join(domains), tokens or "all", variant) if part)
        fill = partial(self._fill_store, name, model, domains, tokens, keep_out, grown_from)
        key = {
            "model": self.fingerprint(model),
            "corpus": self.corpus().fingerprint,
            "codec": asdict(self.codec_settings),
            "domains": domains,
            "tokens": tokens,
            "keep_out": [file_sha256(file) for file in keep_out],
        }
        facts = self.cell("store", key, lambda: _store_facts(fill()))
        return LabStore(name, facts["digest"], facts["tokens"], fill)

    def _fill_store(
        self,
        name: str,
        model: str,
        domains: Sequence[str],
        tokens: int,
        keep_out: Sequence[Path],
        grown_from: LabStore | None,
    ) -> Path:
        place = self.folder / "stores" / name
        done = place / _FILLED
        if not done.exists():
            self.talk(f"store {name}: fill")
            place.parent.mkdir(parents=True, exist_ok=True)
            source = self.model(model)
            if grown_from is not None and not place.exists():
                _copy_store(grown_from.fill(), place)
            store = open_store(place, encoding=True) if (place / "data").exists() else create_store(place, source)
            evaluation = EvaluationText.read(DecontaminationRecipe(), keep_out) if keep_out else None
            for one in domains:
                documents = self.documents(one, tokens, source)
                store.add(documents, decontaminate=evaluation, advance=self.advance)
            store.close()
            done.touch()
        return place

    def settings(
        self, model: str, domain: str, store: LabStore, *, neighbours: int, limits: TextLimits
    ) -> dict[str, Settings]:
        """Settings of knn, ngram and both for a store, chosen on validation text of a domain."""
        key = {
            "model": self.fingerprint(model),
            "store": store.digest,
            "domain": domain,
            "neighbours": neighbours,
            "limits": asdict(limits),
        }

        def choose() -> dict[str, Any]:
            searched = Settings(k=neighbours)
            predictor = open_predictor(self.model(model), [store.fill()], method="knn+ngram", settings=searched)
            text = read_domains([self.text_file(domain, "validation")], predictor.tokenizer, limits)[domain]
            tuned = tune(predictor, text.stream, advance=self.advance)
            return {method: settings.as_json() for method, settings in tuned.settings.items()}

        return {method: Settings.from_json(found) for method, found in self.cell("settings", key, choose).items()}

    def documents(self, domain: str, tokens: int, model: Path) -> Iterator[Document]:
        """The first documents of a domain's train text that have about so many tokens of the model (0: all)."""
        tokenizer, size = load_tokenizer(str(model / "tokenizer.json")), 0
        for document in self.corpus().documents(domains=[domain]):
            if tokens and size >= tokens:
                return
            size += len(tokenizer.encode([document.text])[0]) if tokens else 0
            yield document


def _model_facts(place: Path) -> dict[str, Any]:
    """What `LabModel` says of a model directory."""
    manifest, curve = open_manifest(place), place / "curve.json"
    return {
        "fingerprint": model_fingerprint(manifest),
        "training": manifest.get("training", {}),
        "curve": read_json(curve) if curve.exists() else {"training": [], "validation": []},
        "config": read_json(place / "config.json"),
    }


def _copy_store(store: Path, place: Path) -> None:
    """A copy that is not known to be full yet."""
    partial = place.with_name(place.name + ".partial")
    remove_tree(partial)
    shutil.copytree(store, partial, ignore=shutil.ignore_patterns(_FILLED))
    partial.rename(place)


def _store_facts(place: Path) -> dict[str, Any]:
    store = open_store(place)
    return {"digest": store.digest(), "tokens": int(store.stats()["tokens"])}


def _corpus_recipe(recipe: DataRecipe, domains: list[str]) -> CorpusRecipe:
    """All train files, without evaluation text; some without the train right."""
    denied = [domain for domain in recipe.deny_training if domain in domains]
    usual = tuple(f"data/{domain}.train.jsonl.zst" for domain in domains if domain not in denied)
    sources = [SourceRecipe("jsonl", usual)]
    if denied:
        paths = tuple(f"data/{domain}.train.jsonl.zst" for domain in denied)
        sources.append(SourceRecipe("jsonl", paths, deny=("train",)))
    held_out = tuple(f"data/{domain}.{split}.jsonl.zst" for domain in domains for split in ("validation", "test"))
    groups = {
        name: kept
        for name, members in recipe.groups.items()
        if (kept := tuple(member for member in members if member in domains))
    }
    return CorpusRecipe(tuple(sources), groups=groups, decontaminate=DecontaminationRecipe(files=held_out))
