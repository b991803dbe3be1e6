"""What retrieval costs: scoring and generation with stores against the same language model alone, in one run.

    python benchmarks/generate.py [--store PATH ...] [--model DIR] [--large]
    python benchmarks/generate.py --decode --large-model DIR [--small DIR]

Contestants take turns; what one costs more than another is the median over rounds. Generation runs in one thread and is
timed by the processor's clock, which other programs disturb less; `credit` is what naming the documents adds to
generation with kNN and n-grams, in more rounds. `--store` are stores of the model, such as the one that
benchmarks/store.py (10M tokens) leaves in build/; without it, that of `--domain` among the stores of `silo experiment`,
which is made if it is not there. `--large` adds a network of the 100M
class with random weights and a store of random keys (time only). Writes docs/results/generate.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silo.experiments.harness.lab import Lab
from silo.files import write_json
from silo.inference.answer import Answer
from silo.inference.context import RicContext
from silo.inference.generate import GenerateOptions, generate
from silo.inference.predict import Predictor, open_predictor
from silo.inference.score import score_text
from silo.inference.settings import Settings
from silo.lm.encode import DocumentEncoder
from silo.lm.manifest import codec_key
from silo.lm.model import LanguageModel, save_model
from silo.lm.network import Preset, make_network, parameter_count
from silo.lm.windows import Windows
from silo.pairing import KeyEncoder, model_of
from silo.records import Candidate
from silo.search.knn.codec import Codec, CodecSettings
from silo.sources import judge
from silo.sources.evaluation import read_evaluation
from silo.store.encode import Quantise
from silo.store.store import Store
from silo.text.stream import first_tokens, merged_stream
from silo.text.tokenizer import Ids
from store import documents

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
Contest = dict[str, Callable[[], object]]
METHODS = ("lm", "knn", "ngram", "knn+ngram", "ric")
GOALS = {"generate knn 1M": 1.3, "generate knn 10M": 1.6, "score knn 1M": 2.0, "large": 1.1, "ric": 1.5, "credit": 1.05}
"""Times slower at most. A goal without a size holds for every store."""
LARGE = Preset("100m", 768, 12, 12, 2048, vocabulary=8192, context=1024, tied=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="the model the stores were made with, unless they know where it is")
    parser.add_argument("--store", type=Path, action="append", default=[])
    parser.add_argument("--domain", default="clinical_notes")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=100, help="generated per turn")
    parser.add_argument("--score-tokens", type=int, default=8_192, help="scored per turn")
    parser.add_argument("--large", action="store_true")
    parser.add_argument(
        "--decode", action="store_true", help="the decode engine against transformers, and nothing else"
    )
    parser.add_argument("--small", type=Path, help="for --decode: a model of about 4M parameters; made without it")
    parser.add_argument("--large-model", type=Path, help="for --decode: a model of about 135M parameters")
    parser.add_argument(
        "--sizes",
        nargs="+",
        choices=("small", "large"),
        help="for --decode: measure these, keep what is known of others",
    )
    parser.add_argument("--store-tokens", type=int, nargs="*", default=[1_000_000, 10_000_000], help="for --decode")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "generate.json")
    arguments = parser.parse_args()
    if arguments.decode:
        return compare_decoding(arguments)
    arguments.store = arguments.store or [Lab(ROOT / "build" / "experiments", DATA).store("pdsw", arguments.domain)]
    found: dict[str, Any] = {"goals": GOALS, "k": Settings().k, "stores": []}
    for place in arguments.store:
        found["stores"].append(compared(arguments, place))
        print(found["stores"][-1], flush=True)
    if arguments.large:
        found["large"] = large(arguments)
        print(found["large"], flush=True)
    found["missed"] = missed(found)
    write_json(arguments.out, found)
    arguments.out.with_suffix(".md").write_text(page(found), encoding="utf-8")
    return 1 if found["missed"] else 0


def compare_decoding(arguments: argparse.Namespace) -> int:
    """The part of the page about the decode engine, beside what the rest of this benchmark found before."""
    from decode import decode_page, measure_decoding, missed_goals

    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    found["decode"] = measure_decoding(arguments, found.get("decode", {}))
    found["decode"]["missed"] = missed_goals(found["decode"])
    write_json(arguments.out, found)
    lines = [
        *decode_page(found["decode"]),
        "",
        "Goals missed: " + (", ".join(found["decode"]["missed"]) or "none") + ".",
    ]
    print("\n".join(lines))
    if "stores" in found:
        arguments.out.with_suffix(".md").write_text(page(found), encoding="utf-8")
    return 1 if found["decode"]["missed"] else 0


def missed(found: dict[str, Any]) -> list[str]:
    """The goals that were not reached; those of 10M tokens are asked of all larger stores."""
    ratios: dict[str, float] = {}
    for item in found["stores"]:
        size, slower = "1M" if item["store_tokens"] < 5_000_000 else "10M", item["times_slower"]
        ratios |= {f"generate knn {size}": slower["generate knn"], f"score knn {size}": slower["score knn"]}
        ratios |= {f"ric {size}": slower["score ric, equal input"], f"credit {size}": slower["credit"]}
    ratios |= {"large": found["large"]["times_slower"]} if "large" in found else {}
    goals = {name: GOALS.get(name, GOALS.get(name.split()[0], float("inf"))) for name in ratios}
    return [f"{name}: {ratio}" for name, ratio in ratios.items() if ratio > goals[name]]


def page(found: dict[str, Any]) -> str:
    """The results as a page."""
    lines = [
        "# What retrieval costs",
        "",
        f"Times slower than the same language model alone, k {found['k']:,}; all in one run on a shared machine,",
        "without intervals. A figure below 1 shows how far they can be off: retrieval only adds work.",
        "",
    ]
    names = list(found["stores"][0]["times_slower"])
    sizes = [f"{item['store_tokens'] / 1e6:.1f}M tokens, {item['key']} keys" for item in found["stores"]]
    lines += [f"| | {' | '.join(sizes)} |", f"|---|{'---:|' * len(sizes)}"]
    for name in names:
        lines.append(f"| {name} | {' | '.join(str(item['times_slower'][name]) for item in found['stores'])} |")
    for item in found["stores"]:
        lines += [
            "",
            f"Tokens per second, {item['store_tokens']:,} tokens in the store:",
            "",
            "| | generating | scoring |",
            "|---|---:|---:|",
        ]
        written, read = item["generate_tokens_per_second"], item["score_tokens_per_second"]
        lines += [f"| {name} | {written.get(name, '')} | {read.get(name, '')} |" for name in {**written, **read}]
    if "large" in found:
        large = found["large"]
        lines += [
            "",
            f"A network of {large['parameters'] / 1e6:.0f}M parameters (random weights) with kNN, in a run of its own: "
            f"{large['times_slower']} times slower than without, {large['store_tokens']:,} tokens in the store.",
        ]
    if "decode" in found:
        from decode import decode_page

        lines += [
            *decode_page(found["decode"]),
            "",
            "Goals missed: " + (", ".join(found["decode"]["missed"]) or "none"),
        ]
    lines += [
        "",
        "Goals missed: " + (", ".join(found["missed"]) or "none") + ".",
        "",
        "Made by `benchmarks/generate.py`.",
        "",
    ]
    return "\n".join(lines)


def compared(arguments: argparse.Namespace, place: Path) -> dict[str, Any]:
    model = found_model(arguments, place)
    predictors = {method: opened(model, place, method) for method in METHODS}
    control = opened(model, place, "lm")
    ric = predictors["ric"].context
    assert isinstance(ric, RicContext)
    control.windows = Windows(control.opened.context, ric.windows.stride)
    lm = predictors["lm"]
    text = first_tokens(
        merged_stream((one.text for one in read_evaluation(DATA / f"{arguments.domain}.test.jsonl.zst")), lm.tokenizer),
        arguments.score_tokens,
    )
    prompt = lm.tokenizer.decode(text.ids[1:200])
    torch.set_num_threads(1)
    writers: Contest = {name: partial(write, one, prompt, arguments.tokens) for name, one in predictors.items()}
    written = Rounds.of(writers, arguments.rounds, arguments.tokens, time.process_time)
    both, tokens = predictors["knn+ngram"], arguments.tokens
    paid: Contest = {f"credit {said}": partial(write, both, prompt, tokens, credit=said) for said in (True, False)}
    credit = Rounds.of(paid, 3 * arguments.rounds, tokens, time.process_time)
    torch.set_num_threads(2)
    readers: Contest = {name: partial(score_text, one, text) for name, one in predictors.items()}
    readers["lm, input of ric"] = lambda: score_text(control, text)
    read = Rounds.of(readers, max(3, arguments.rounds // 2), arguments.score_tokens)
    slower = {f"generate {name}": written.slower(name, "lm") for name in writers}
    slower |= {f"score {name}": read.slower(name, "lm") for name in readers}
    slower["score ric, equal input"] = read.slower("ric", "lm, input of ric")
    slower["credit"] = credit.slower("credit True", "credit False")
    return {
        "store": place.name,
        "key": codec_key(model),
        "store_tokens": predictors["knn"].stores[0].stats()["tokens"],
        "parameters": lm.opened.parameters,
        "generate_tokens_per_second": written.rates(),
        "score_tokens_per_second": read.rates(),
        "times_slower": slower,
    }


def found_model(arguments: argparse.Namespace, place: Path) -> Path:
    model: Path | None = arguments.model or model_of(place)
    assert model is not None, "give --model"
    return model


def opened(model: Path, place: Path, method: str) -> Predictor:
    return open_predictor(model, [] if method == "lm" else [place], method=method, threads=1)


def write(predictor: Predictor, prompt: str, tokens: int, *, credit: bool = True) -> None:
    """Generate as `silo generate` does: each token with its main document, the answer with its notices."""
    steps = []
    for step in generate(predictor, prompt, GenerateOptions(tokens, credit=credit)):
        assert step.main_credit is None or credit
        steps.append(step)
    assert len(steps) == tokens, "the model ended the text: choose another prompt"
    Answer.of(predictor.stores, predictor.policy, prompt, steps)


PAUSE = 0.05
"""Seconds between contestants: the threads of some go on looking for work for a while and would slow down the next."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds of every contestant in every round."""

    seconds: dict[str, list[float]]
    tokens: int

    @classmethod
    def of(
        cls, contestants: Contest, rounds: int, tokens: int, clock: Callable[[], float] = time.perf_counter
    ) -> Rounds:
        """All take turns in every round, forwards and backwards; the first round warms up and is not counted."""
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(rounds + 1):
            order = list(contestants.items())
            for name, act in order if turn % 2 else reversed(order):
                time.sleep(PAUSE)
                begun = clock()
                act()
                if turn:
                    seconds[name].append(clock() - begun)
        return cls(seconds, tokens)

    def rates(self) -> dict[str, float]:
        """Tokens per second, medians over rounds."""
        return {name: round(self.tokens / statistics.median(found), 1) for name, found in self.seconds.items()}

    def slower(self, name: str, other: str) -> float:
        """How many times longer one takes than another in the same round; the median over rounds."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return round(statistics.median(one / two for one, two in pairs), 3)


class RandomKeys:
    """Stands in for a large encoder: keys near those of a sample, so that filling takes no time."""

    def __init__(self, encoder: DocumentEncoder, sample: NDArray[np.float32]) -> None:
        self.fingerprint, self.tokenizer, self.context = encoder.fingerprint, encoder.tokenizer, encoder.context
        self.mark = encoder.mark
        self._sample, self._rng = sample, np.random.default_rng(0)

    def keys(self, documents: Sequence[Ids]) -> Iterator[NDArray[np.float32]]:
        for ids in documents:
            rows = self._rng.integers(0, len(self._sample), len(ids) - 1)
            noise = self._rng.normal(0, 0.05, (len(rows), self._sample.shape[1])).astype(np.float32)
            yield self._sample[rows] + noise

    def codes(self, documents: Sequence[Ids], quantise: Quantise) -> Iterator[tuple[NDArray[Any], ...]]:
        return (quantise(keys, np.matmul) for keys in self.keys(documents))


def large(arguments: argparse.Namespace) -> dict[str, Any]:
    """Generation of a network of the 100M class, with a store of a million random keys."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tokenizer_file = found_model(arguments, arguments.store[0]) / "tokenizer.json"
        small = LanguageModel.open(tokenizer_file.parent)
        network = make_network(LARGE, vocabulary=small.vocabulary, begin=small.tokenizer.begin, seed=0)
        save_model(network, tokenizer_file, place / "model", {"origin": "random"})
        model = LanguageModel.open(place / "model")
        encoder = DocumentEncoder(model)
        texts = [document.text for document in documents([arguments.domain], 1_000_000)]
        sample = np.concatenate(list(encoder.keys([small.tokenizer.encode([" ".join(texts[:20])])[0][:8192]])))
        store = Store.create(
            place / "store",
            RandomKeys(encoder, sample),
            codec=Codec.learn(sample, CodecSettings(rotation="pca", dimensions=128, lists=512)),
            tokenizer_file=place / "model" / "tokenizer.json",
            searches=("knn", "ngram"),
        )
        store.add(judge(Candidate(str(at), text, "bench", "clinical", ())) for at, text in enumerate(texts))
        lm = open_predictor(place / "model", method="lm", threads=1)
        knn = Predictor(
            lm.opened,
            [store],
            method=frozenset({"knn"}),
            settings=Settings(),
            policy=lm.policy,
            encoder=KeyEncoder.of(lm.opened, "final"),
            context=None,
        )
        torch.set_num_threads(1)
        contest: Contest = {name: partial(write, one, "The patient", 20) for name, one in (("lm", lm), ("knn", knn))}
        found = Rounds.of(contest, 15, 20, time.process_time)
        tokens = store.stats()["tokens"]
    return {
        "parameters": parameter_count(network),
        "store_tokens": tokens,
        "generate_tokens_per_second": found.rates(),
        "times_slower": found.slower("knn", "lm"),
    }


if __name__ == "__main__":
    sys.exit(main())
