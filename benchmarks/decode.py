"""The decode engine against transformers: tokens, prompts, batches, stores, drafts and perplexity, in one run.

    python benchmarks/generate.py --decode --large-model DIR [--small DIR] [--store-tokens 1000000 10000000]

`--small` is a network of about 4M parameters (one of random weights is made without it: only time counts there),
`--large-model` one of 135M (SmolLM2). Contestants take turns in every round; a figure is the median over rounds of how
many times longer the other takes. One thread is timed by the processor's clock, two by the wall's. Stores hold real
text with keys drawn near those of a sample: searching them takes as long as searching real ones, and filling takes no
day.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from generate import DATA, Contest, RandomKeys, Rounds
from silo.files import write_json
from silo.inference.generate import GenerateOptions, generate
from silo.inference.predict import Predictor, open_predictor
from silo.inference.settings import Settings
from silo.lm.encode import DocumentEncoder
from silo.lm.engine.engine import Engine
from silo.lm.engine.weights import Storage
from silo.lm.manifest import Key, codec_key
from silo.lm.model import LanguageModel, save_model
from silo.lm.network import make_network
from silo.lm.tokenizer import BEGIN, save_tokenizer
from silo.records import Candidate
from silo.search.knn.codec import Codec, CodecSettings
from silo.sources import judge
from silo.sources.evaluation import read_evaluation
from silo.store.paths import StorePaths
from silo.store.store import Store
from silo.text.stream import first_tokens, merged_stream
from silo.text.tokenizer import Ids
from store import documents

SIZES = ("small", "large")
CONTEXTS = (64, 512, 2048)
BATCHES = (8, 32)
KEYS_LEARNED = 160_000
"""Enough for as many lists as a codec has by default."""
DRAFT_DOMAINS = ("code_copyleft", "enron_emails", "news")
STORE_DOMAINS = ["wikipedia", "pubmed_central", "code_copyleft"]
REPEATING = DRAFT_DOMAINS[:2]
"""Where a text that begins like a stored one goes on like it: drafts must pay there, and nowhere may they cost."""
EQUAL_DOMAINS = ("gutenberg", "enron_emails", "code_copyleft")
GOALS = {
    "small lm": 8.0,
    "large lm": 3.5,
    "large lm, as float32": 3.5,
    "small store": 4.0,
    "large store": 3.0,
    "large over lm": 1.15,
    "batch 8": 2.5,
    "batch 32": 1.6,
    "drafts": 1.3,
    "drafts never below": 0.97,
    "perplexity": 1e-5,
}

Clock = Callable[[], float]


def measure_decoding(arguments: argparse.Namespace, known: dict[str, Any]) -> dict[str, Any]:
    """Every part of the table that `arguments` name a model for; with `--sizes` those alone, beside what is known."""
    sizes = arguments.sizes or SIZES
    found: dict[str, Any] = {"goals": GOALS, **{size: known[size] for size in SIZES if size in known}}
    with tempfile.TemporaryDirectory() as folder:
        small = arguments.small
        if small is None and "small" in sizes:
            small = _make_small(Path(folder) / "demo-4M")
        for size, place in (("small", small), ("large", arguments.large_model)):
            if place is not None and size in sizes:
                found[size] = _Model(size, place, arguments).measure()
                print(found[size], flush=True)
    return found


def _make_small(place: Path) -> Path:
    """A network of the preset `demo` that has learned nothing, with a tokenizer of 8,192 for mail."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8192, special_tokens=[BEGIN], initial_alphabet=alphabet)
    texts = (document.text for document in documents(["enron_emails"], 500_000))
    tokenizer.train_from_iterator(texts, trainer)
    save_tokenizer(tokenizer, place.with_suffix(".tokenizer"), BEGIN)
    network = make_network("demo", vocabulary=8192, begin=0, seed=0, context=2 * max(CONTEXTS))
    save_model(network, place.with_suffix(".tokenizer") / "tokenizer.json", place, {"origin": "random"})
    return place


class _Model:
    """One network, opened by transformers and by the engine."""

    def __init__(self, size: str, place: Path, arguments: argparse.Namespace) -> None:
        self.size, self.place, self.arguments = size, place, arguments
        self.slow = LanguageModel.open(place)
        self.rounds, self.tokens = arguments.rounds, arguments.tokens if size == "small" else arguments.tokens // 4

    def measure(self) -> dict[str, Any]:
        kept = Engine.open(self.place).storage
        found: dict[str, Any] = {"place": self.place.name, "kept": kept, "tokens": {}, "prefill": {}, "widened": {}}
        for threads in (1, 2):
            for context in CONTEXTS:
                if context + self.tokens < self.slow.context:
                    name = f"{threads} threads, context {context}"
                    found["tokens"][name], found["prefill"][name] = self._against_transformers(threads, context)
                    if kept != "float32":
                        found["widened"][name], _ = self._against_transformers(threads, context, "float32")
        found["batches"] = {f"{count}": self._batch(count) for count in BATCHES} if self.size == "large" else {}
        found["perplexity"] = {domain: self._compare_perplexity(domain) for domain in EQUAL_DOMAINS}
        found["neighbours"] = {key: self._compare_neighbours(key) for key in get_args(Key)}
        with tempfile.TemporaryDirectory() as folder:
            sizes = self.arguments.store_tokens
            found["stores"] = {f"{count}": self._with_store(Path(folder) / str(count), count) for count in sizes}
            found["drafts"] = {domain: self._drafts(Path(folder) / domain, domain) for domain in DRAFT_DOMAINS}
        return found

    def _prompt(self, context: int) -> NDArray[np.int64]:
        return np.random.default_rng(0).integers(0, self.slow.tokenizer.vocabulary, context)

    def _against_transformers(self, threads: int, context: int, storage: Storage = "auto") -> tuple[float, float]:
        """How many times longer `transformers.generate` takes, for new tokens and for the prompt."""
        torch.set_num_threads(threads)
        engine, prompt = Engine.open(self.place, threads=threads, storage=storage), self._prompt(context)
        clock = _clock(threads)
        slot = engine.claim_slot()
        ours = partial(_decode, engine, [slot], prompt[None], self.tokens)
        contest: Contest = {
            "engine": ours,
            "transformers": partial(self._generate, prompt[None], self.tokens + 1),
            "engine, prompt": partial(_decode, engine, [slot], prompt[None], 0),
            "transformers, prompt": partial(self._generate, prompt[None], 1),
        }
        rounds = Rounds.of(contest, self.rounds, self.tokens, clock)
        seconds = {name: np.array(found) for name, found in rounds.seconds.items()}
        token = (seconds["transformers"] - seconds["transformers, prompt"]) / (
            seconds["engine"] - seconds["engine, prompt"]
        )
        return round(float(np.median(token)), 2), rounds.slower("transformers, prompt", "engine, prompt")

    def _generate(self, prompts: NDArray[np.int64], tokens: int) -> None:
        with torch.inference_mode():
            self.slow.network.generate(
                torch.from_numpy(prompts), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0
            )

    def _batch(self, count: int) -> dict[str, Any]:
        """Several texts at once on two threads, and whether each is as it is alone."""
        torch.set_num_threads(2)
        engine = Engine.open(self.place, threads=2)
        prompts = np.random.default_rng(1).integers(0, self.slow.tokenizer.vocabulary, (count, 64))
        slots = [engine.claim_slot() for _ in prompts]
        together = _decode(engine, slots, prompts, 8)
        alone = np.concatenate([_decode(engine, [slots[0]], row[None], 8) for row in prompts])
        contest: Contest = {
            "engine": partial(_decode, engine, slots, prompts, self.tokens),
            "transformers": partial(self._generate, prompts, self.tokens + 1),
        }
        rounds = Rounds.of(contest, max(3, self.rounds // 2), self.tokens)
        return {"times": rounds.slower("transformers", "engine"), "same_bits": bool(np.array_equal(together, alone))}

    def _compare_perplexity(self, domain: str) -> float:
        """The relative difference of the perplexities of real text."""
        texts = (one.text for one in islice(read_evaluation(DATA / f"{domain}.test.jsonl.zst"), 50))
        ids = first_tokens(merged_stream(texts, self.slow.tokenizer), 2048).ids.astype(np.int64)
        engine, losses = Engine.open(self.place), np.zeros(2)
        slot = engine.claim_slot()
        for first in range(0, len(ids) - 1, 512):
            rows, targets = ids[first : first + 512], ids[first + 1 : first + 513]
            rows = rows[: len(targets)]
            with torch.inference_mode():
                theirs = self.slow.forward(torch.from_numpy(rows)[None]).logits[0].numpy()
            ours = engine.forward(rows, range(len(rows)), [slot] * len(rows)).logits
            losses += [_loss(ours, targets), _loss(theirs, targets)]
        return abs(math.expm1(float(losses[0] - losses[1]) / (len(ids) - 1)))

    def _compare_neighbours(self, key: Key) -> dict[str, float]:
        """Queries by the engine among keys by transformers: the nearest 16 that stay, and how far a key moves."""
        encoder, engine = DocumentEncoder(self.slow, key), Engine.open(self.place)
        texts = [document.text for document in documents(["enron_emails"], 6_000)]
        held = np.concatenate(list(encoder.keys(self._with_begin(texts, 512)))).astype(np.float64)
        asked = islice(read_evaluation(DATA / "enron_emails.test.jsonl.zst"), 3)
        slot, kept, moved = engine.claim_slot(), [], []
        for ids in self._with_begin([one.text for one in asked], 257):
            (theirs,) = encoder.keys([ids])
            found = engine.forward(ids[:-1], range(len(ids) - 1), [slot] * (len(ids) - 1))
            ours = found.final if key == "final" else found.feed_forward
            pairs = zip(_nearest(held, theirs), _nearest(held, ours), strict=True)
            kept += [len(set(one) & set(other)) / len(one) for one, other in pairs]
            moved.append(float((np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)).max()))
        return {"kept": float(np.mean(kept)), "moved": max(moved), "queries": len(kept), "rows": len(held)}

    def _with_begin(self, texts: list[str], length: int) -> list[Ids]:
        tokenizer = self.slow.tokenizer
        begin = np.array([tokenizer.begin], dtype=np.uint32)
        return [np.concatenate([begin, ids])[:length] for ids in tokenizer.encode(texts)]

    def _with_store(self, folder: Path, tokens: int) -> dict[str, Any]:
        """kNN, n-grams and credit: against `transformers.generate` without any store, and against the engine alone."""
        fill_with_random_keys(folder, self.place, self.slow, STORE_DOMAINS, tokens)
        torch.set_num_threads(1)
        lm = open_predictor(self.place, threads=1)
        both = open_predictor(self.place, [folder], method="knn+ngram", threads=1)
        prompt = " ".join(next(both.stores[0].documents()).text.split()[:40])
        ids = np.concatenate([[lm.tokenizer.begin], lm.tokenizer.encode([prompt])[0].astype(np.int64)])
        contest: Contest = {
            "lm": partial(_write, lm, prompt, self.tokens),
            "knn+ngram": partial(_write, both, prompt, self.tokens),
            "transformers": partial(self._generate, ids[None], self.tokens),
        }
        rounds = Rounds.of(contest, self.rounds, self.tokens, time.process_time)
        return {
            "store_tokens": both.stores[0].stats()["tokens"],
            "faster_than_transformers_alone": rounds.slower("transformers", "knn+ngram"),
            "times_the_engine_alone": rounds.slower("knn+ngram", "lm"),
            "tokens_per_second": rounds.rates(),
        }

    def _drafts(self, folder: Path, domain: str) -> dict[str, Any]:
        """With and without drafts: texts that repeat the store, and texts that do not."""
        fill_with_random_keys(folder, self.place, self.slow, [domain], 300_000)
        on, off = (
            open_predictor(self.place, [folder], method="knn+ngram", settings=Settings(k=64), threads=1)
            for _ in range(2)
        )
        off.drafting = False
        held = [" ".join(one.text.split()[:40]) for one in islice(on.stores[0].documents(), 4)]
        others = islice(read_evaluation(DATA / f"{domain}.test.jsonl.zst"), 4)
        found: dict[str, Any] = {}
        for name, prompts in (("repeats", held), ("new", [" ".join(one.text.split()[:40]) for one in others])):
            before = on.opened.drafts.guessed, on.opened.drafts.accepted
            contest: Contest = {
                "on": partial(_write_all, on, prompts, self.tokens),
                "off": partial(_write_all, off, prompts, self.tokens),
            }
            rounds = Rounds.of(contest, self.rounds, self.tokens * len(prompts), time.process_time)
            guessed, accepted = on.opened.drafts.guessed - before[0], on.opened.drafts.accepted - before[1]
            share = round(accepted / guessed, 3) if guessed else 0.0
            found[name] = {"times_faster": rounds.slower("off", "on"), "accepted": share, "guessed": guessed}
        return found


def _clock(threads: int) -> Clock:
    return time.process_time if threads == 1 else time.perf_counter


def _decode(engine: Engine, slots: list[int], prompts: NDArray[np.int64], tokens: int) -> NDArray[np.float32]:
    """Read prompts and continue each greedily; the logits after the last tokens."""
    count, length = prompts.shape
    positions, rows = np.tile(np.arange(length), count), np.repeat(slots, length)
    logits = engine.forward(prompts.ravel(), positions, rows, wanted=np.arange(1, count + 1) * length - 1).logits
    for step in range(tokens):
        logits = engine.forward(logits.argmax(1), np.full(count, length + step), slots).logits
    return logits


def _loss(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> float:
    wide = logits.astype(np.float64)
    top = wide.max(1)
    total = np.log(np.exp(wide - top[:, None]).sum(1)) + top
    return float((total - wide[np.arange(len(targets)), targets]).sum())


def _nearest(held: NDArray[np.float64], keys: NDArray[np.float32]) -> list[list[int]]:
    distances = (held**2).sum(1) - 2 * keys.astype(np.float64) @ held.T
    nearest: list[list[int]] = np.argsort(distances, axis=1)[:, :16].tolist()
    return nearest


def _write(predictor: Predictor, prompt: str, tokens: int) -> None:
    for step in generate(predictor, prompt, GenerateOptions(tokens)):
        assert step.main_credit is None or step.credits


def _write_all(predictor: Predictor, prompts: list[str], tokens: int) -> None:
    for prompt in prompts:
        _write(predictor, prompt, tokens)


def fill_with_random_keys(folder: Path, place: Path, model: LanguageModel, domains: list[str], tokens: int) -> None:
    """A store of real text whose keys are drawn near those of a sample."""
    key = codec_key(place)
    encoder = DocumentEncoder(model, key)
    texts = [document.text for document in documents(domains, tokens)]
    sample = np.concatenate(list(encoder.keys([encoder.tokenizer.encode([" ".join(texts[:20])])[0][:8192]])))
    keys = RandomKeys(encoder, sample)
    (learned,) = keys.keys([np.zeros(KEYS_LEARNED + 1, dtype=np.uint32)])
    store = Store.create(
        folder,
        keys,
        codec=Codec.learn(learned, CodecSettings(dimensions=min(128, sample.shape[1]))),
        tokenizer_file=place / "tokenizer.json",
        searches=("knn", "ngram"),
    )
    store.add(judge(Candidate(str(at), text, "bench", "mixed", ())) for at, text in enumerate(texts))
    store.close()
    write_json(StorePaths(folder).model_place, {"model": str(place.absolute())})


def missed_goals(found: dict[str, Any]) -> list[str]:
    """The goals that were not reached."""
    missed = []

    def require(name: str, value: float, *, at_most: bool = False) -> None:
        if (value > GOALS[name]) if at_most else (value < GOALS[name]):
            missed.append(f"{name}: {value}")

    for size in ("small", "large"):
        part = found.get(size)
        if part is None:
            continue
        for value in part["tokens"].values():
            require(f"{size} lm", value)
        for value in part.get("widened", {}).values():
            require(f"{size} lm, as float32", value)
        for store in part["stores"].values():
            require(f"{size} store", store["faster_than_transformers_alone"])
            if size == "large":
                require("large over lm", store["times_the_engine_alone"], at_most=True)
        for count, batch in part["batches"].items():
            require(f"batch {count}", batch["times"])
        for domain, drafts in part["drafts"].items():
            require("drafts" if domain in REPEATING else "drafts never below", drafts["repeats"]["times_faster"])
            require("drafts never below", drafts["new"]["times_faster"])
        for value in part["perplexity"].values():
            require("perplexity", value, at_most=True)
    return missed


def decode_page(found: dict[str, Any]) -> list[str]:
    """The results as lines of a page."""
    lines = ["", "## The decode engine against `transformers.generate`", ""]
    lines += [
        "How many times faster, medians over paired rounds. All arithmetic is in float32; logits are the same to the "
        "bit however weights are kept: "
        + "; ".join(
            f"{found[size]['place']} as {found[size].get('kept', 'float32')}" for size in SIZES if size in found
        )
        + " (blocks: 10 bits for each weight of a 4-bit file, which give its float32).",
        "",
    ]
    sizes = [size for size in ("small", "large") if size in found]
    header = [f"{found[size]['place']} ({size})" for size in sizes]
    lines += [f"| | {' | '.join(header)} |", f"|---|{'---:|' * len(sizes)}"]

    def row(name: str, values: list[Any]) -> str:
        return f"| {name} | {' | '.join(str(value) for value in values)} |"

    for part, title in (("tokens", "a token"), ("prefill", "the prompt")):
        names = list(dict.fromkeys(name for size in sizes for name in found[size][part]))
        lines += [row(f"{title}, {name}", [found[size][part].get(name, "") for size in sizes]) for name in names]
    widened = [found[size].get("widened", {}) for size in sizes]
    lines += [
        row(f"a token, weights as float32 in memory, {name}", [one.get(name, "") for one in widened])
        for name in dict.fromkeys(name for one in widened for name in one)
    ]
    for count in BATCHES:
        batches = [found[size]["batches"].get(str(count), {}).get("times", "") for size in sizes]
        lines.append(row(f"batch of {count}, two threads, same bits as alone", batches))
    for tokens in dict.fromkeys(tokens for size in sizes for tokens in found[size]["stores"]):
        stores = [found[size]["stores"].get(tokens, {}) for size in sizes]
        for name in ("faster_than_transformers_alone", "times_the_engine_alone"):
            title = f"kNN + n-gram + credit, about {int(tokens):,} tokens: {name.replace('_', ' ')}"
            lines.append(row(title, [store.get(name, "") for store in stores]))
    for domain in DRAFT_DOMAINS:
        for kind in ("repeats", "new"):
            drafts = [found[size]["drafts"][domain][kind] for size in sizes]
            shown = [f"{one['times_faster']} ({one['accepted']:.0%} of {one['guessed']:,} came true)" for one in drafts]
            lines.append(row(f"drafts, {domain}, prompts {kind}", shown))
    for key in get_args(Key):
        near = [found[size]["neighbours"][key] for size in sizes]
        shown = [f"{one['kept']:.2%} of {one['queries']} queries, keys move by {one['moved']:.0e}" for one in near]
        lines.append(row(f"nearest 16 by {key} keys that stay", shown))
    for domain in EQUAL_DOMAINS:
        gaps = [f"{found[size]['perplexity'][domain]:.1e}" for size in sizes]
        lines.append(row(f"perplexity of {domain} differs by, relative", gaps))
    return lines
