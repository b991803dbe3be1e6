"""`silo lm train`: permitted text -> a LLaMA-style model, resumable to the bit, with a list of every document it saw.

The run grows in `<out>.building/`: `tokenizer/`, `tokens/` (packed streams), `checkpoint/` and `best/`. A run that is
stopped goes on from its checkpoint and ends with the weights of an uninterrupted run.
"""

from __future__ import annotations

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
from silo.files import MANIFEST, exclusive, fingerprint, read_json, remove_tree, write_json
from silo.lm.firewall import DOCUMENTS, SKETCHES, TOKENIZER, WEIGHTS, Permit, merge_seen, seen_file, seen_rows
from silo.lm.hardware import find_device
from silo.lm.manifest import model_fingerprint, open_manifest
from silo.lm.model import save_model
from silo.lm.network import choose_dtype, make_network, parameter_count
from silo.lm.tokenizer import TokenizerOrigin, find_origin, train_tokenizer
from silo.lm.training.checkpoint import State, load_checkpoint, load_weights, save_checkpoint, save_weights
from silo.lm.training.curve import curve_json, curve_png
from silo.lm.training.data import Plan, Stream, make_plan, prepare_streams
from silo.lm.training.distributed import Batch, ProcessGroup
from silo.lm.training.loss import Objective
from silo.lm.training.optimiser import Optimiser, learning_rate
from silo.lm.training.presets import find_preset
from silo.lm.training.request import Shape, check_request, sequence_length, tokenizer_file, validation_files
from silo.lm.training.validation import mean_losses, validation_streams
from silo.placement import asked
from silo.progress import Advance, Talk, duration
from silo.recipe import TrainRecipe
from silo.records import Tier
from silo.text.sketch import Sketches
from silo.text.stream import TokenStream
from silo.text.tokenizer import load_tokenizer

_FORMAT = "silo-training-3"
_MEASURED_STEPS = 2
"""The first step waits for memory and caches, the second is like all others."""


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be done, by whom, and with which permit."""

    recipe: TrainRecipe
    out: Path
    permit: Permit
    corpus: Corpus
    group: ProcessGroup
    device: str
    shape: Shape
    talk: Talk
    advance: Advance

    @property
    def building(self) -> Path:
        """Where the run grows until its model is whole."""
        return _building(self.out)


@dataclass(frozen=True, slots=True)
class _Data:
    """What a run reads: permitted text as tokens, the order of its sequences, and validation text by domain."""

    tokenizer: Path
    origin: TokenizerOrigin
    streams: dict[str, Stream]
    plan: Plan
    validation: dict[str, TokenStream]


def train(
    recipe: TrainRecipe,
    out: Path,
    *,
    base: Path,
    talk: Talk = lambda _: None,
    advance: Advance = lambda *_: None,
    stop_after: int | None = None,
) -> dict[str, Any]:
    """Train a model at `out`, or go on with a run that was stopped. `stop_after` ends early after so many steps.

    `talk` is told how long it will take, as soon as two steps were measured.
    """
    out = out.absolute()
    _remove_what_a_finished_run_left(out)
    permit, corpus = check_request(recipe, out, base)
    device = find_device(asked())
    group = ProcessGroup(shard=recipe.shard, device=device)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    shape = Shape.of(recipe, sequence_length(recipe), group.world_size, group.cores)
    job = _Job(recipe, out, permit, corpus, group, device, shape, talk, advance)
    job.building.mkdir(parents=True, exist_ok=True)
    with exclusive(job.building / f"lock-{group.rank}"):
        data = _prepare_data(job, base)
        run = _Run.start(job, data)
        if not run.loop(stop_after):
            return {"finished": False, "step": run.state.step, "steps": shape.steps}
        summary = run.finish()
        group.wait()
    if group.is_leader:
        remove_tree(job.building)
    return summary


def _building(out: Path) -> Path:
    return out.with_name(out.name + ".building")


def _remove_what_a_finished_run_left(out: Path) -> None:
    """A run that was killed after its model was in place is over: what it grew in goes."""
    if (out / MANIFEST).exists() and _building(out).exists():
        remove_tree(_building(out))


def _prepare_data(job: _Job, base: Path) -> _Data:
    """Learn the tokenizer, tokenise and plan, or take up what an earlier start of the run left behind."""
    recipe, shape, corpus, group = job.recipe, job.shape, job.corpus, job.group
    with group.leader_first():
        _continue_or_restart(recipe, shape, corpus, job.building)
    file, origin = _find_or_learn_tokenizer(job, base)
    tokenizer = load_tokenizer(str(file))
    with group.leader_first():
        workers = len(os.sched_getaffinity(0))
        folder = job.building / "tokens"
        streams = prepare_streams(corpus, job.permit, str(file), folder, advance=job.advance, workers=workers)
        streams = {domain: stream for domain, stream in streams.items() if domain not in recipe.exclude}
        if group.is_leader:
            corpus.verify()
    sequences, weights = shape.steps * shape.per_step, _domain_weights(recipe, corpus)
    plan = make_plan(
        streams,
        sequences=sequences,
        length=shape.length,
        weights=weights,
        seed=recipe.seed,
        balance=recipe.balance,
    )
    validation = validation_streams(validation_files(recipe, base), recipe.validation_tokens, tokenizer)
    return _Data(file, origin, streams, plan, validation)


def _continue_or_restart(recipe: TrainRecipe, shape: Shape, corpus: Corpus, building: Path) -> None:
    """Go on with a run that takes the same steps, by however many processes and however they share the weights."""
    settings = asdict(replace(recipe, batch_tokens=shape.step_tokens))
    del settings["shard"]
    if not recipe.exclude:
        del settings["exclude"]  # a run begun before there was such a key goes on
    key = fingerprint([_FORMAT, settings, corpus.fingerprint, sorted(corpus.opted_out())])
    file = building / "key.json"
    if not file.exists() or read_json(file) != key:
        for name in ("tokens", "tokenizer", "checkpoint", "checkpoint.old", "best"):
            remove_tree(building / name)
        write_json(file, key)


def _find_or_learn_tokenizer(job: _Job, base: Path) -> tuple[Path, TokenizerOrigin]:
    """The tokenizer of the recipe, or one learned from the permitted part of the corpus, and where it comes from."""
    recipe = job.recipe
    if recipe.tokenizer:
        file = tokenizer_file(recipe, base)
        return file, _permitted_origin(job, find_origin(file, recipe.tokenizer_provenance))
    tiers = recipe.tokenizer_tiers or recipe.tiers
    folder = job.building / "tokenizer"
    with job.group.leader_first():
        if not (folder / DOCUMENTS).exists():
            remove_tree(folder)
            trained = train_tokenizer(
                job.corpus,
                tiers=tiers,
                vocabulary=recipe.vocabulary or find_preset(recipe.preset).vocabulary,
                out=folder,
                advance=job.advance,
                reference=job.permit.reference and Tier.restricted in tiers,
            )
            (folder / SKETCHES).write_bytes(trained.sketches.as_bytes())
            np.save(folder / DOCUMENTS, seen_rows(trained.documents, TOKENIZER), allow_pickle=False)
    sketches = Sketches.from_bytes((folder / SKETCHES).read_bytes())
    origin = TokenizerOrigin("learned here", np.load(folder / DOCUMENTS), sketches, tuple(tiers))
    return folder / "tokenizer.json", origin


def _permitted_origin(job: _Job, origin: TokenizerOrigin) -> TokenizerOrigin:
    """Refuse a tokenizer that is known to be learned from what this run may not use."""
    permitted = set(map(str, job.permit.tiers))
    if not job.permit.reference and not permitted >= set(origin.tiers):
        raise SiloError("training-refused", f"the tokenizer was learned from {', '.join(sorted(origin.tiers))}")
    gone = job.corpus.opted_out() & {row["id"].tobytes().hex() for row in origin.documents}
    if gone:
        raise SiloError("training-refused", f"document {min(gone)}, which shaped the tokenizer, has opted out")
    return origin


def _domain_weights(recipe: TrainRecipe, corpus: Corpus) -> dict[str, float]:
    """The corpus manifest's domain weights for the training set these tiers make."""
    if not recipe.reweigh:
        return {}
    tiers = set(recipe.tiers)
    name = next((name for name, members in SETS.items() if set(map(str, members)) == tiers), "pdswby")
    return dict(corpus.manifest["weights"][name])


@dataclass(frozen=True, slots=True)
class _Run:
    """A network that learns from prepared data."""

    job: _Job
    data: _Data
    network: Any
    objective: Any
    optimiser: Optimiser
    state: State

    @classmethod
    def start(cls, job: _Job, data: _Data) -> _Run:
        """A fresh network, or the one of the last checkpoint."""
        recipe, tokenizer = job.recipe, load_tokenizer(str(data.tokenizer))
        network: Any = make_network(
            recipe.preset,
            vocabulary=tokenizer.vocabulary,
            begin=tokenizer.begin,
            seed=recipe.seed,
            context=job.shape.length,
        )
        if recipe.gradient_checkpointing:
            network.gradient_checkpointing_enable()
        network.to(job.device).train()
        optimiser = Optimiser(network, recipe)
        objective, optimiser.parts = job.group.wrap(
            Objective(network, _choose_dtype(recipe, job.device)), optimiser.parts
        )
        state = load_checkpoint(job.building / "checkpoint", network, optimiser)
        return cls(job, data, network, objective, optimiser, state)

    def loop(self, stop_after: int | None) -> bool:
        """Steps until the end, or until patience runs out; False if `stop_after` came first."""
        job, state, steps = self.job, self.state, self.job.shape.steps
        first, begun = state.step, time.perf_counter()
        last = begun
        job.advance("train", first, steps)
        evaluate_every = self._count_steps(job.recipe.evaluate_every)
        checkpoint_every = self._count_steps(job.recipe.checkpoint_every)
        while state.step < steps:
            loss = self.step()
            state.losses.append([self.tokens, loss])
            now = time.perf_counter()
            if state.step - first == _MEASURED_STEPS:
                job.talk(_forecast(job.shape, first, (now - last)))
            last, rate = now, (state.step - first) * job.shape.step_tokens / (now - begun)
            job.advance(f"train\tloss {loss:.3f} at {rate:,.0f} tokens/s", state.step, steps)
            if self.data.validation and (state.step % evaluate_every == 0 or state.step == steps):
                self.validate()
                if job.recipe.patience and state.worse >= job.recipe.patience:
                    return True
            if state.step % checkpoint_every == 0:
                save_checkpoint(job.building / "checkpoint", self.network, self.optimiser, state, job.group)
            if stop_after is not None and state.step - first >= stop_after and state.step < steps:
                return False
        return True

    def step(self) -> float:
        """One optimiser step; a loss that is not finite ends the run before it can spoil the weights."""
        recipe, state, group = self.job.recipe, self.state, self.job.group
        self.optimiser.clear()
        try:
            total = group.add_gradients(self.objective, list(self._batches()))
            norm = group.clip_gradients(self.network, recipe.clip)
        except RuntimeError as error:
            if "allocate" in str(error) or "out of memory" in str(error):
                hint = "lower micro_batch or context"
                raise SiloError("out-of-memory", "not enough memory for a step", hint) from None
            raise
        loss = float(group.mean(total))
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise SiloError("training-diverged", f"the loss is {loss} at step {state.step}")
        self.optimiser.step(learning_rate(recipe, state.step, self.job.shape.steps))
        state.step += 1
        return loss

    def _batches(self) -> Iterator[Batch]:
        """The rows of this process in this step, in small batches, each with its share of the whole."""
        shape, group = self.job.shape, self.job.group
        rows = shape.per_step // group.world_size
        start = self.state.step * shape.per_step + group.rank * rows
        for first in range(start, start + rows, shape.micro):
            places = range(first, min(first + shape.micro, start + rows))
            ids = self.data.plan.batch(self.data.streams, places, shape.length).astype(np.int64)
            yield torch.from_numpy(ids).to(self.network.device), len(places) / rows

    def validate(self) -> None:
        """Score the validation text and keep the weights if they are the best so far."""
        job = self.job
        with job.group.unshard_outer(self.objective):
            losses = mean_losses(self.network, self.data.validation, job.shape.length)
        if self.state.note_validation(losses, self.tokens, choosing=set(self.data.streams)):
            save_weights(job.building / "best", self.network, job.group)

    @property
    def tokens(self) -> int:
        """How many tokens were trained on so far."""
        return self.state.step * self.job.shape.step_tokens

    def _count_steps(self, tokens: int) -> int:
        return max(1, round(tokens / self.job.shape.step_tokens))

    def finish(self) -> dict[str, Any]:
        """Save the best weights (the last ones without validation) as a model that says what shaped it.

        Every process takes part; the leader writes and returns the summary.
        """
        job, state = self.job, self.state
        network = job.group.unsharded(self.network)
        if not job.group.is_leader:
            return {}
        if self.data.validation:
            load_weights(job.building / "best", network)
        else:
            state.best_step = state.step
        seen = self._documents_seen(state.best_step)
        summary = {
            "finished": True,
            "steps": state.step,
            "chosen_step": state.best_step,
            "tokens": self.tokens,
            "parameters": parameter_count(network),
            "loss": state.losses[-1][1],
            "validation": min(state.validations, key=lambda item: float(item["loss"]), default=None),
            "documents": len(seen),
        }
        training = {
            "corpus": job.corpus.fingerprint,
            "tiers": sorted(job.permit.tiers),
            "reference": job.permit.reference,
            "permitted": not job.permit.reference and self.data.origin.known,
            "permitted_weights": not job.permit.reference,
            "tokenizer": self.data.origin.as_json(self.data.tokenizer),
            "domains": self.data.plan.tokens_by_domain(state.best_step * job.shape.per_step, job.shape.length),
            "groups": job.corpus.manifest["recipe"].get("groups", {}),
            "recipe": asdict(replace(job.recipe, corpus="", validation=(), tokenizer="")),
            "summary": summary,
        }
        title = f"{job.out.name}: {parameter_count(network) / 1e6:.1f}M parameters"
        extra = {
            DOCUMENTS: seen_file(seen),
            SKETCHES: self._sketches(seen).as_bytes(),
            "curve.json": curve_json(state),
            "curve.png": curve_png(state, title),
        }
        save_model(network, self.data.tokenizer, job.out, {"origin": "trained", "training": training}, extra=extra)
        return {**summary, "out": str(job.out), "fingerprint": model_fingerprint(open_manifest(job.out))}

    def _documents_seen(self, steps: int) -> NDArray[np.void]:
        """Every document that shaped the tokenizer or the weights after so many steps."""
        shape = self.job.shape
        visited = self.data.plan.visited_documents(self.data.streams, steps * shape.per_step, shape.length)
        return merge_seen(seen_rows(visited, WEIGHTS), self.data.origin.documents)

    def _sketches(self, seen: NDArray[np.void]) -> Sketches:
        """The sketches of all texts that shaped the model."""
        marks = {row["text"].tobytes() for row in seen}
        sources = [self.data.origin.sketches, *(stream.sketches for stream in self.data.streams.values())]
        return Sketches.of(item for source in sources for item in source.items() if item[0] in marks)


def _forecast(shape: Shape, first: int, seconds: float) -> str:
    """How long a run takes from its first step on, by the time of one step."""
    begun = f"going on after step {first:,} of {shape.steps:,}" if first else f"{shape.steps:,} steps"
    pace = f"{shape.step_tokens / seconds:,.0f} tokens/s"
    whole = duration(seconds * (shape.steps - first))
    return f"training takes about {whole}, validation aside: {begun}, {shape.step_tokens:,} tokens each at {pace}"


def _choose_dtype(recipe: TrainRecipe, device: str) -> torch.dtype:
    """What matrices are multiplied in; weights, gradients and moments are always float32."""
    dtype: torch.dtype = choose_dtype(device) if recipe.dtype == "auto" else getattr(torch, recipe.dtype)
    return dtype
