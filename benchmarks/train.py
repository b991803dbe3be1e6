"""Training and scoring speed: silo's own loop against plain PyTorch and transformers.Trainer, scoring against the net.

    python benchmarks/train.py [--rounds 5] [--steps 6] [--threads N] [--compile]

One network (preset demo, vocabulary 8,192), 4,096 tokens a step, fp32. Contestants take turns within every round; each
may cut a step into one or two micro-batches and counts with the better one. Ratios are medians over rounds, because a
machine that is slower for a minute is so for all. silo is timed inside the real `train()`.
Exits with 1 if a goal is missed. Writes docs/results/train.json.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch.nn import functional
from torch.utils.data import Dataset

from silo.corpus.build import build
from silo.lm.model import LanguageModel, has_plain_head
from silo.lm.network import make_network, parameter_count
from silo.lm.scoring import token_log_probabilities
from silo.lm.training.optimiser import learning_rate
from silo.lm.training.train import train
from silo.lm.windows import Windows
from silo.recipe import CorpusRecipe, DedupRecipe, SourceRecipe, TrainRecipe
from silo.text.tokenizer import ByteTokenizer

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "train.json"
VOCABULARY, STEP_TOKENS, CONTEXTS = 8192, 4096, (1024, 256)
PARTS = (1, 2)
GOALS = {"plain": 1.0, "trainer": 1.0, "scoring": 0.9}
PLANNED_STEPS = 1000
"""The schedule every contestant follows; only its first steps are run."""


@dataclass(frozen=True, slots=True)
class Job:
    """One timed stretch of training: `steps` steps, each of `sequences` rows of `length` tokens in `parts` parts."""

    length: int
    parts: int
    steps: int
    place: Path

    @property
    def sequences(self) -> int:
        return STEP_TOKENS // self.length

    @property
    def micro(self) -> int:
        return self.sequences // self.parts

    @property
    def recipe(self) -> TrainRecipe:
        return TrainRecipe(
            corpus="corpus",
            tiers=("pd",),
            vocabulary=VOCABULARY,
            context=self.length,
            batch_tokens=STEP_TOKENS,
            micro_batch=self.micro,
            max_tokens=PLANNED_STEPS * STEP_TOKENS,
            dtype="float32",
        )


@dataclass(frozen=True, slots=True)
class Timing:
    """Tokens a second after the first step, and the mean loss of all."""

    rate: float
    loss: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of every contestant")
    parser.add_argument("--steps", type=int, default=6, help="timed steps of a turn; one more warms up")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--compile", action="store_true", help="also time the plain loop with torch.compile (no goal)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        make_corpus(place)
        contests = {str(length): training(length, arguments, place) for length in CONTEXTS}
    result: dict[str, Any] = {
        "settings": {
            "preset": "demo",
            "parameters": parameter_count(fresh_network(CONTEXTS[0])),
            "vocabulary": VOCABULARY,
            "tokens_per_step": STEP_TOKENS,
            "rounds": arguments.rounds,
            "steps": arguments.steps,
        },
        "machine": machine(arguments.threads),
        "training": contests,
        "scoring": scoring(arguments.rounds),
        "goals": GOALS,
    }
    result["missed"] = missed(result)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    return 1 if result["missed"] else 0


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def machine(threads: int) -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"cpu": cpu, "threads": threads, "python": platform.python_version(), **versions}


def make_corpus(place: Path) -> None:
    """A corpus of made-up words, common and rare as in real text, with enough of them to learn 8,192 tokens from."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    words = np.array(["".join(rng.choice(letters, rng.integers(2, 11))) for _ in range(30_000)])
    chances = 1 / np.arange(1, len(words) + 1)
    with (place / "in.jsonl").open("w", encoding="utf-8") as out:
        for number in range(1500):
            text = " ".join(rng.choice(words, 400, p=chances / chances.sum()))
            record = {"id": str(number), "text": text, "source": "made-up", "domain": "words", "license": "CC0-1.0"}
            out.write(json.dumps(record) + "\n")
    source = SourceRecipe("jsonl", ("in.jsonl",))
    build(CorpusRecipe((source,), workers=1, dedup=DedupRecipe(enabled=False)), place / "corpus", base=place)


def training(length: int, arguments: argparse.Namespace, place: Path) -> dict[str, Any]:
    """All contestants in turn, round after round; medians, and silo's ratio to each."""
    contestants: dict[str, Callable[[Job], Timing]] = {"silo": silo, "plain": plain, "trainer": trainer}
    if arguments.compile:
        contestants["plain compiled"] = lambda job: plain(job, compiled=True)
    found: dict[str, list[Timing]] = {}
    for number in range(arguments.rounds):
        for parts in PARTS:
            for name, run in contestants.items():
                job = Job(length, parts, arguments.steps, place)
                timing = run(job)
                gc.collect()
                found.setdefault(f"{name} / {parts}", []).append(timing)
                say(f"context {length}, round {number + 1}, {name} in {parts}: {timing.rate:,.0f} tokens/s")
    rows: dict[str, dict[str, Any]] = {
        name: {
            "tokens_per_second": statistics.median(turn.rate for turn in turns),
            "rounds": [round(turn.rate, 1) for turn in turns],
            "mean_loss": turns[-1].loss,
        }
        for name, turns in found.items()
    }
    best = {name: best_rounds(rows, name) for name in contestants}
    ratios = {
        name: statistics.median(ours / theirs for ours, theirs in zip(best["silo"], rates, strict=True))
        for name, rates in best.items()
        if name != "silo"
    }
    medians = {name: statistics.median(rates) for name, rates in best.items()}
    return {"turns": rows, "tokens_per_second": medians, "silo_ratio_to": ratios}


def best_rounds(rows: dict[str, dict[str, Any]], name: str) -> list[float]:
    """In every round the better of the contestant's turns."""
    return [max(rates) for rates in zip(*(rows[f"{name} / {parts}"]["rounds"] for parts in PARTS), strict=True)]


def rate_of(stamps: Sequence[float]) -> float:
    """Tokens a second between the end of the first step and the end of the last."""
    return (len(stamps) - 1) * STEP_TOKENS / (stamps[-1] - stamps[0])


def fresh_network(length: int) -> Any:
    return make_network("demo", vocabulary=VOCABULARY, begin=0, seed=0, context=length)


def run_folder(job: Job) -> Path:
    return job.place / f"run-{job.length}-{job.micro}"


def silo(job: Job) -> Timing:
    """The real `train()`; the progress call that follows every step gives the time."""
    stamps: list[float] = []
    losses: list[float] = []

    def advance(stage: str, *_: int) -> None:
        if stage.startswith("train loss"):
            stamps.append(time.perf_counter())
            losses.append(float(stage.split()[2]))

    train(job.recipe, run_folder(job), base=job.place, advance=advance, stop_after=job.steps + 1)
    return Timing(rate_of(stamps), statistics.mean(losses))


def packed_tokens(job: Job) -> NDArray[np.uint16]:
    """The stream silo packed for itself: the others read the same bytes."""
    return np.memmap(run_folder(job).with_suffix(".building") / "tokens" / "0000.tokens", dtype="<u2", mode="r")


def decay_groups(network: Any, recipe: TrainRecipe) -> list[dict[str, Any]]:
    parameters = list(network.parameters())
    return [
        {"params": [item for item in parameters if item.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [item for item in parameters if item.dim() < 2], "weight_decay": 0.0},
    ]


def plain(job: Job, *, compiled: bool = False) -> Timing:
    """A loop by hand: random rows of a memory map, all logits, cross-entropy, clip, fused AdamW."""
    recipe, tokens = job.recipe, packed_tokens(job)
    source = fresh_network(job.length).train()
    network: Any = torch.compile(source) if compiled else source
    optimiser = torch.optim.AdamW(
        decay_groups(source, recipe), lr=recipe.learning_rate, betas=(0.9, recipe.beta2), fused=True
    )
    rng = np.random.default_rng(0)
    stamps: list[float] = []
    total = 0.0
    for step in range(job.steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, step, PLANNED_STEPS)
        for _ in range(job.parts):
            starts = rng.integers(0, len(tokens) - job.length - 1, job.micro)
            rows = np.stack([tokens[start : start + job.length + 1] for start in starts]).astype(np.int64)
            ids = torch.from_numpy(rows)
            logits = network(input_ids=ids[:, :-1], use_cache=False).logits
            loss = functional.cross_entropy(logits.view(-1, VOCABULARY), ids[:, 1:].reshape(-1)) / job.parts
            torch.autograd.backward(loss)
            total += float(loss)
        torch.nn.utils.clip_grad_norm_(source.parameters(), recipe.clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        stamps.append(time.perf_counter())
    return Timing(rate_of(stamps), total / len(stamps))


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows of the packed stream as the Trainer wants them."""

    def __init__(self, tokens: NDArray[np.uint16], length: int) -> None:
        self.tokens, self.length = tokens, length

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        row = self.tokens[number * self.length : (number + 1) * self.length].astype(np.int64)
        ids = torch.from_numpy(row)
        return {"input_ids": ids, "labels": ids}


class Stopwatch(transformers.TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Notes when each optimiser step ended."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.stamps.append(time.perf_counter())


def trainer(job: Job) -> Timing:
    """`transformers.Trainer`, with everything off that is not training."""
    recipe, watch = job.recipe, Stopwatch()
    network = fresh_network(job.length)
    settings = transformers.TrainingArguments(
        output_dir=str(job.place / "trainer"),
        per_device_train_batch_size=job.micro,
        gradient_accumulation_steps=job.parts,
        max_steps=job.steps + 1,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        adam_beta2=recipe.beta2,
        max_grad_norm=recipe.clip,
        optim="adamw_torch_fused",
        lr_scheduler_type="cosine",
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        seed=0,
    )
    rows = Rows(packed_tokens(job), job.length)
    loop = transformers.Trainer(model=network, args=settings, train_dataset=rows, callbacks=[watch])
    with contextlib.redirect_stdout(sys.stderr):
        outcome = loop.train()
    return Timing(rate_of(watch.stamps), float(outcome.training_loss))


def scoring(rounds: int, *, windows: Windows | None = None, count: int = 16) -> dict[str, Any]:
    """`token_log_probabilities` against the forward pass alone over the same windows, at its best batch size."""
    windows = windows or Windows()
    network = fresh_network(windows.length).eval()
    model = LanguageModel(Path(), network, ByteTokenizer(), {}, has_plain_head(network, 0), feed_forward_calls=0)
    tokens = windows.length + (count - 1) * windows.stride
    ids = np.random.default_rng(0).integers(0, VOCABULARY, tokens).astype(np.uint32)
    contestants: dict[str, Callable[[], Any]] = {
        "silo": lambda: token_log_probabilities(model, ids, windows),
        **{f"bare / {batch}": partial(bare, network, ids, windows, batch) for batch in (1, 2, 8)},
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(-1, rounds):
        for name, run in contestants.items():
            begun = time.perf_counter()
            run()
            if number >= 0:
                times[name].append(time.perf_counter() - begun)
    rates = {name: count * windows.length / statistics.median(spent) for name, spent in times.items()}
    bare_rate = max(rate for name, rate in rates.items() if name != "silo")
    say(f"scoring: silo {rates['silo']:,.0f}, the network alone {bare_rate:,.0f} window tokens/s")
    return {
        "length": windows.length,
        "stride": windows.stride,
        "window_tokens_per_second": rates,
        "scored_tokens_per_second": rates["silo"] * tokens / (count * windows.length),
        "ratio_to_bare": rates["silo"] / bare_rate,
    }


@torch.inference_mode()
def bare(network: Any, ids: NDArray[np.uint32], windows: Windows, batch: int) -> None:
    """The logits of every window and nothing else."""
    starts = [window.start for window in windows.over(len(ids))]
    for first in range(0, len(starts), batch):
        rows = np.stack([ids[start : start + windows.length] for start in starts[first : first + batch]])
        network(input_ids=torch.from_numpy(rows.astype(np.int64)), use_cache=False)


def missed(result: dict[str, Any]) -> list[str]:
    """The goals that were not reached."""
    found = []
    for length, contest in result["training"].items():
        for name in ("plain", "trainer"):
            if contest["silo_ratio_to"][name] < GOALS[name]:
                found.append(f"context {length}: {contest['silo_ratio_to'][name]:.3f} of {name}")
    ratio = result["scoring"]["ratio_to_bare"]
    return found + ([f"scoring: {ratio:.3f} of the network alone"] if ratio < GOALS["scoring"] else [])


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    lines = ["| context | contestant | tokens/s | silo is |", "|---:|---|---:|---:|"]
    for length, contest in result["training"].items():
        for name, rate in contest["tokens_per_second"].items():
            ratio = contest["silo_ratio_to"].get(name, math.nan)
            lines.append(f"| {length} | {name} | {rate:,.0f} | {'' if math.isnan(ratio) else f'{ratio:.2f} x'} |")
    lines.append(f"\nScoring: {result['scoring']['ratio_to_bare']:.2f} of the network's own forward pass.")
    return "\n".join(lines + [f"Missed: {problem}" for problem in result["missed"]])


if __name__ == "__main__":
    sys.exit(main())
