"""`silo lm train`: permitted text -> a LLaMA-style model, resumable to the bit, with a list of every document it saw.

The run grows in `<out>.building/`: `tokenizer/`, `tokens/` (packed streams), `checkpoint/` and `best/`. A run that is
stopped goes on from its checkpoint and ends with the weights of an uninterrupted run.
"""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silo.corpus.corpus import Corpus
from silo.corpus.weights import SETS
from silo.errors import SiloError
from silo.files import exclusive, fingerprint, read_json, remove_tree, write_json
from silo.lm.firewall import DOCUMENTS, TOKENIZER, WEIGHTS, Permit, merge_seen, seen_rows
from silo.lm.manifest import model_fingerprint, open_manifest
from silo.lm.model import save_model
from silo.lm.network import choose_dtype, find_preset, make_network, parameter_count
from silo.lm.scoring import Text
from silo.lm.tokenizer import train_tokenizer
from silo.lm.training.checkpoint import State, load_checkpoint, load_weights, save_checkpoint, save_weights
from silo.lm.training.curve import curve_json, curve_png
from silo.lm.training.data import Plan, Stream, make_plan, prepare_streams
from silo.lm.training.distributed import Batch, ProcessGroup
from silo.lm.training.loss import Objective
from silo.lm.training.validation import mean_losses, validation_streams
from silo.progress import Advance
from silo.recipe import TrainRecipe
from silo.records import Tier
from silo.sources.reader.plan import expand
from silo.text.tokenizer import load_tokenizer

FORMAT = "silo-training-1"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a run in sequences of `length` tokens: `per_step` in an optimiser step, at most `micro` at a time."""

    length: int
    per_step: int
    micro: int
    steps: int

    @classmethod
    def of(cls, recipe: TrainRecipe, length: int, world: int, cores: int) -> Shape:
        """Steps of about `batch_tokens`. A process's rows are cut into equal parts, as many for each of its cores."""
        per_step = max(1, recipe.batch_tokens // length // world) * world
        steps = recipe.max_tokens // (per_step * length)
        if steps < 1:
            raise SiloError("recipe-value", f"max_tokens is less than one step of {per_step * length:,} tokens")
        mine = per_step // world
        parts = cores * math.ceil(mine / cores / recipe.micro_batch)
        return cls(length, per_step, math.ceil(mine / parts), steps)

    @property
    def step_tokens(self) -> int:
        return self.per_step * self.length


@dataclass(slots=True)
class _Run:
    """A run under way."""

    recipe: TrainRecipe
    out: Path
    advance: Advance
    shape: Shape
    network: Any
    objective: Any
    optimiser: Any
    streams: dict[str, Stream]
    plan: Plan
    validation: dict[str, Text]
    state: State
    group: ProcessGroup
    tokenizer: Path

    @property
    def place(self) -> Path:
        return _place(self.out)


def train(
    recipe: TrainRecipe, out: Path, *, base: Path, advance: Advance = lambda *_: None, stop_after: int | None = None
) -> dict[str, Any]:
    """Train a model at `out`, or go on with a run that was stopped. `stop_after` ends early after so many steps."""
    out = out.absolute()
    if (out / "manifest.json").exists():
        raise SiloError("out-exists", f"{out} holds a model already", "choose another --out")
    permit = Permit.of(recipe.tiers, reference=recipe.reference)
    corpus = Corpus.open(base / recipe.corpus)
    group = ProcessGroup(shard=recipe.shard)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    shape = Shape.of(recipe, recipe.context or find_preset(recipe.preset).context, group.world_size, group.cores)
    place = _place(out)
    place.mkdir(parents=True, exist_ok=True)
    with exclusive(place / f"lock-{group.rank}"):
        if group.is_leader:
            _continue_or_restart(recipe, shape, corpus, place)
        group.wait()
        run = _start(recipe, shape, out, base, advance, permit, corpus, group)
        done = _loop(run, stop_after)
        if not done:
            return {"finished": False, "step": run.state.step, "steps": run.shape.steps}
        run.network = group.unsharded(run.network)
        summary = _finish(run, corpus, permit) if group.is_leader else {}
        group.wait()
    if group.is_leader:
        remove_tree(place)
    return summary


def _place(out: Path) -> Path:
    return out.with_name(out.name + ".building")


def _continue_or_restart(recipe: TrainRecipe, shape: Shape, corpus: Corpus, place: Path) -> None:
    """Go on with a run that takes the same steps, by however many processes and however they share the weights."""
    settings = asdict(replace(recipe, batch_tokens=shape.step_tokens))
    del settings["shard"]
    key = fingerprint([FORMAT, settings, corpus.fingerprint, sorted(corpus.opted_out())])
    mark = place / "key.json"
    if not mark.exists() or read_json(mark) != key:
        for name in ("tokens", "tokenizer", "checkpoint", "checkpoint.old", "best"):
            remove_tree(place / name)
        write_json(mark, key)


def _start(
    recipe: TrainRecipe,
    shape: Shape,
    out: Path,
    base: Path,
    advance: Advance,
    permit: Permit,
    corpus: Corpus,
    group: ProcessGroup,
) -> _Run:
    place = _place(out)
    tokenizer_file = _tokenizer(recipe, base, permit, corpus, place, group, advance)
    tokenizer = load_tokenizer(str(tokenizer_file))
    if not group.is_leader:
        group.wait()
    workers = len(os.sched_getaffinity(0))
    streams = prepare_streams(corpus, permit, str(tokenizer_file), place / "tokens", advance=advance, workers=workers)
    if group.is_leader:
        corpus.verify()
        group.wait()
    weights = _weights(recipe, corpus)
    plan = make_plan(
        streams, sequences=shape.steps * shape.per_step, length=shape.length, weights=weights, seed=recipe.seed
    )
    network: Any = make_network(
        recipe.preset, vocabulary=tokenizer.vocabulary, begin=tokenizer.begin, seed=recipe.seed, context=shape.length
    )
    network = network.to(_dtype(recipe))
    if recipe.gradient_checkpointing:
        network.gradient_checkpointing_enable()
    network.train()
    objective, optimiser = group.wrap(Objective(network), _optimiser(network, recipe))
    state = load_checkpoint(place / "checkpoint", network, optimiser)
    files = sorted({path for pattern in recipe.validation for path in expand(pattern, base)})
    validation = validation_streams(files, recipe.validation_tokens, tokenizer)
    return _Run(
        recipe,
        out,
        advance,
        shape,
        network,
        objective,
        optimiser,
        streams,
        plan,
        validation,
        state,
        group,
        tokenizer_file,
    )


def _dtype(recipe: TrainRecipe) -> torch.dtype:
    kinds = {"auto": choose_dtype(), "float32": torch.float32, "bfloat16": torch.bfloat16}
    if recipe.dtype not in kinds:
        raise SiloError("recipe-value", f"dtype '{recipe.dtype}' is not one of {', '.join(kinds)}")
    return kinds[recipe.dtype]


def _weights(recipe: TrainRecipe, corpus: Corpus) -> dict[str, float]:
    """The corpus manifest's domain weights for the training set these tiers make."""
    if not recipe.reweigh:
        return {}
    tiers = set(recipe.tiers)
    name = next((name for name, members in SETS.items() if set(map(str, members)) == tiers), "pdswby")
    return dict(corpus.manifest["weights"][name])


def _tokenizer(
    recipe: TrainRecipe, base: Path, permit: Permit, corpus: Corpus, place: Path, group: ProcessGroup, advance: Advance
) -> Path:
    """The tokenizer of the recipe, or one learned from the permitted part of the corpus."""
    if recipe.tokenizer:
        file = (base / recipe.tokenizer).expanduser()
        return file / "tokenizer.json" if file.is_dir() else file
    tiers = recipe.tokenizer_tiers or recipe.tiers
    if beyond := set(tiers) - set(recipe.tiers):
        raise SiloError("training-refused", f"tokenizer_tiers: {', '.join(sorted(beyond))} is not among the tiers")
    folder = place / "tokenizer"
    if group.is_leader and not (folder / DOCUMENTS).exists():
        remove_tree(folder)
        learned = train_tokenizer(
            corpus,
            tiers=tiers,
            vocabulary=recipe.vocabulary or find_preset(recipe.preset).vocabulary,
            out=folder,
            advance=advance,
            reference=permit.reference and Tier.restricted in tiers,
        )
        np.save(folder / DOCUMENTS, seen_rows(learned.documents, TOKENIZER), allow_pickle=False)
    group.wait()
    return folder / "tokenizer.json"


def _optimiser(network: Any, recipe: TrainRecipe) -> torch.optim.AdamW:
    """AdamW; matrices decay, norms do not."""
    parameters = [item for item in network.parameters() if item.requires_grad]
    groups = [
        {"params": [item for item in parameters if item.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [item for item in parameters if item.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, recipe.beta2), eps=1e-8, fused=True)


def learning_rate(recipe: TrainRecipe, step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to `final_rate` of the peak."""
    warmup = max(1, round(recipe.warmup_share * steps))
    if step < warmup:
        return recipe.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    floor = recipe.final_rate
    return recipe.learning_rate * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def _loop(run: _Run, stop_after: int | None) -> bool:
    """Steps until the end, or until patience runs out; False if `stop_after` came first."""
    begun = time.perf_counter()
    first = run.state.step
    every = {name: _interval(getattr(run.recipe, name), run.shape) for name in ("evaluate_every", "checkpoint_every")}
    while run.state.step < run.shape.steps:
        loss = _step(run)
        run.state.step += 1
        step = run.state.step
        tokens = step * run.shape.step_tokens
        run.state.losses.append([tokens, loss])
        rate = (step - first) * run.shape.step_tokens / (time.perf_counter() - begun)
        run.advance(f"train loss {loss:.3f} at {rate:,.0f} tokens/s", step, run.shape.steps)
        if run.validation and (step % every["evaluate_every"] == 0 or step == run.shape.steps):
            with run.group.unshard_outer(run.objective):
                losses = mean_losses(run.network, run.validation, run.shape.length)
            if run.state.note_validation(losses, tokens, choosing=set(run.streams)):
                save_weights(run.place / "best", run.network, run.group)
            if run.recipe.patience and run.state.worse >= run.recipe.patience:
                return True
        if step % every["checkpoint_every"] == 0:
            save_checkpoint(run.place / "checkpoint", run.network, run.optimiser, run.state, run.group)
        if stop_after is not None and step - first >= stop_after and step < run.shape.steps:
            return False
    return True


def _interval(tokens: int, shape: Shape) -> int:
    return max(1, round(tokens / shape.step_tokens))


def _step(run: _Run) -> float:
    """One optimiser step; a loss that is not finite ends the run before it can spoil the weights."""
    shape, state = run.shape, run.state
    rate = learning_rate(run.recipe, state.step, shape.steps)
    for group in run.optimiser.param_groups:
        group["lr"] = rate
    run.optimiser.zero_grad(set_to_none=True)
    try:
        total = run.group.add_gradients(run.objective, list(_batches(run)))
        norm = run.group.clip_gradients(run.network, run.recipe.clip)
    except RuntimeError as error:
        if "allocate" in str(error) or "out of memory" in str(error):
            raise SiloError("out-of-memory", "not enough memory for a step", "lower micro_batch or context") from None
        raise
    mean = float(run.group.mean(total))
    if not math.isfinite(mean) or not math.isfinite(norm):
        raise SiloError("training-diverged", f"the loss is {mean} at step {state.step}")
    run.optimiser.step()
    return mean


def _batches(run: _Run) -> Iterator[Batch]:
    """The rows of this process in this step, in small batches, each with its share of the whole."""
    shape = run.shape
    mine = shape.per_step // run.group.world_size
    start = run.state.step * shape.per_step + run.group.rank * mine
    for first in range(start, start + mine, shape.micro):
        places = range(first, min(first + shape.micro, start + mine))
        ids = run.plan.batch(run.streams, places, shape.length).astype(np.int64)
        yield torch.from_numpy(ids), len(places) / mine


def _finish(run: _Run, corpus: Corpus, permit: Permit) -> dict[str, Any]:
    """Save the best weights (the last ones without validation) as a model directory that says what shaped it."""
    state = run.state
    if run.validation:
        load_weights(run.place / "best", run.network)
    else:
        state.best_step = state.step
    seen = _seen(run, state.best_step)
    parameters = parameter_count(run.network)
    summary = {
        "finished": True,
        "steps": state.step,
        "chosen_step": state.best_step,
        "tokens": state.step * run.shape.step_tokens,
        "parameters": parameters,
        "loss": state.losses[-1][1],
        "validation": min(state.validations, key=lambda item: float(item["loss"]), default=None),
        "documents": len(seen),
    }
    training = {
        "corpus": corpus.fingerprint,
        "tiers": sorted(permit.tiers),
        "reference": permit.reference,
        "permitted": not permit.reference,
        "recipe": asdict(replace(run.recipe, corpus="", validation=(), tokenizer="")),
        "summary": summary,
    }
    extra = {
        DOCUMENTS: _npy(seen),
        "curve.json": curve_json(state),
        "curve.png": curve_png(state, f"{run.out.name}: {parameters / 1e6:.1f}M parameters"),
    }
    save_model(run.network, run.tokenizer, run.out, {"origin": "trained", "training": training}, extra=extra)
    return {**summary, "out": str(run.out), "fingerprint": model_fingerprint(open_manifest(run.out))}


def _seen(run: _Run, steps: int) -> NDArray[np.void]:
    """Every document that shaped the tokenizer or the weights after so many steps."""
    visited = run.plan.visited_documents(run.streams, steps * run.shape.per_step, run.shape.length)
    learned = run.place / "tokenizer" / DOCUMENTS
    tokenizer = [np.load(learned)] if learned.exists() else []
    return merge_seen(seen_rows(visited, WEIGHTS), *tokenizer)


def _npy(rows: NDArray[np.void]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    return buffer.getvalue()
