"""What a training run is asked for, checked before torch is loaded: permit, corpus, sizes, names and files."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from silo.corpus.corpus import Corpus
from silo.errors import SiloError, did_you_mean
from silo.files import MANIFEST, nearest_path
from silo.lm.firewall import Permit, permitted_shards
from silo.lm.training.presets import find_preset
from silo.recipe import TrainRecipe
from silo.remote.place import placed
from silo.sources.reader.plan import expand

OPTIMISERS = ("adamw", "muon")
DTYPES = ("auto", "float32", "bfloat16")


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


def check_request(recipe: TrainRecipe, out: Path, base: Path) -> tuple[Permit, Corpus]:
    """What the run may use and reads, if all that is asked for is there and makes sense."""
    if (out / MANIFEST).exists():
        raise SiloError("out-exists", f"{out} holds a model already", "choose another --out")
    _require_among("optimiser", recipe.optimiser, OPTIMISERS)
    _require_among("dtype", recipe.dtype, DTYPES)
    if recipe.shard and recipe.optimiser == "muon":
        raise SiloError("recipe-value", "muon turns whole matrices: it cannot be used with shard")
    permit = Permit.of(recipe.tiers, reference=recipe.reference)
    if beyond := set(recipe.tokenizer_tiers) - set(recipe.tiers):
        raise SiloError("training-refused", f"tokenizer_tiers: {', '.join(sorted(beyond))} is not among the tiers")
    Shape.of(recipe, sequence_length(recipe), int(os.environ.get("WORLD_SIZE", "1")), cores=1)
    corpus = Corpus.open(placed(recipe.corpus, base))
    permitted_shards(corpus, permit)
    if recipe.tokenizer:
        tokenizer_file(recipe, base)
    validation_files(recipe, base)
    return permit, corpus


def _require_among(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        hint = did_you_mean(value, known, most=1)
        raise SiloError("recipe-value", f"{key} '{value}' is not one of {', '.join(known)}", hint)


def sequence_length(recipe: TrainRecipe) -> int:
    """Tokens of a sequence: the context of the network."""
    return recipe.context or find_preset(recipe.preset).context


def tokenizer_file(recipe: TrainRecipe, base: Path) -> Path:
    """The tokenizer that the recipe names."""
    file = base / Path(recipe.tokenizer).expanduser()
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise SiloError("input-missing", f"there is no tokenizer at {file}", nearest_path(file))
    return file


def validation_files(recipe: TrainRecipe, base: Path) -> list[Path]:
    """The files of validation text."""
    return sorted({path for pattern in recipe.validation for path in expand(pattern, base)})
