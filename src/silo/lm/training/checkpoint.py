"""Checkpoints: weights, optimiser and state of a run, replaced whole; a run put back goes on to the bit.

Every process calls these functions and the leader writes; nothing on disk depends on how many processes there are.

On disk: a folder of `weights.safetensors`, `optimiser.safetensors` and `state.json`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from silo.files import commit, read_json, remove_tree, sync_file, write_json
from silo.lm.training.distributed import ProcessGroup, shard_like
from silo.lm.training.optimiser import Optimiser


@dataclass(slots=True)
class State:
    """Where a run is: everything that must survive a stop besides weights and optimiser."""

    step: int = 0
    losses: list[list[float]] = field(default_factory=list)
    validations: list[dict[str, Any]] = field(default_factory=list)
    best_step: int = 0
    best_loss: float = math.inf
    worse: int = 0

    def note_validation(self, losses: dict[str, float], tokens: int, *, choosing: set[str]) -> bool:
        """Remember a validation; True if it is the best so far by the domains in `choosing` (all, if it has none).

        A run chooses by the domains it trains on: text that may not train it has no say in which weights are kept.
        """
        counted = [loss for domain, loss in losses.items() if domain in choosing] or list(losses.values())
        mean = sum(counted) / len(counted)
        self.validations.append({"tokens": tokens, "loss": mean, "domains": losses})
        if mean < self.best_loss:
            self.best_loss, self.best_step, self.worse = mean, self.step, 0
            return True
        self.worse += 1
        return False


def save_weights(folder: Path, network: Any, group: ProcessGroup) -> None:
    """Replace a folder that holds weights alone."""
    new_folder = _empty_folder(folder, group)
    _write_tensors(new_folder / "weights.safetensors", network.named_parameters(), group)
    if group.is_leader:
        _swap(new_folder, folder)


def load_weights(folder: Path, network: Any) -> None:
    """Put saved weights back."""
    with safe_open(folder / "weights.safetensors", "pt") as weights, torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(shard_like(weights.get_tensor(name), parameter))


def save_checkpoint(folder: Path, network: Any, optimiser: Optimiser, state: State, group: ProcessGroup) -> None:
    """Write everything a run needs to go on, then swap it with the last checkpoint."""
    new_folder = _empty_folder(folder, group)
    _write_tensors(new_folder / "weights.safetensors", network.named_parameters(), group)
    moments = (
        (f"{name}.{key}", value)
        for name, parameter in network.named_parameters()
        for key, value in optimiser.moments(parameter).items()
    )
    _write_tensors(new_folder / "optimiser.safetensors", moments, group)
    if group.is_leader:
        best = None if math.isinf(state.best_loss) else state.best_loss
        write_json(new_folder / "state.json", {**asdict(state), "best_loss": best})
        _swap(new_folder, folder)


def load_checkpoint(folder: Path, network: Any, optimiser: Optimiser) -> State:
    """The state of the last checkpoint, with weights and optimiser put back; a fresh state if there is none."""
    last = next((place for place in (folder, _old_folder(folder)) if (place / "state.json").exists()), None)
    if last is None:
        return State()
    load_weights(last, network)
    parameters = dict(network.named_parameters())
    with safe_open(last / "optimiser.safetensors", "pt") as moments:
        for name in moments.keys():  # noqa: SIM118
            owner, _, key = name.rpartition(".")
            optimiser.moments(parameters[owner])[key] = shard_like(moments.get_tensor(name), parameters[owner])
    plain = read_json(last / "state.json")
    plain["best_loss"] = math.inf if plain["best_loss"] is None else plain["best_loss"]
    return State(**plain)


def _old_folder(folder: Path) -> Path:
    return folder.with_name(folder.name + ".old")


def _empty_folder(folder: Path, group: ProcessGroup) -> Path:
    new_folder = folder.with_name(folder.name + ".fresh")
    if group.is_leader:
        remove_tree(new_folder)
        new_folder.mkdir(parents=True)
    return new_folder


def _write_tensors(path: Path, tensors: Iterable[tuple[str, torch.Tensor]], group: ProcessGroup) -> None:
    tensors_in_full = group.gather_full(tensors)
    if group.is_leader:
        save_file(tensors_in_full, path)
        sync_file(path)


def _swap(new_folder: Path, folder: Path) -> None:
    """At every instant the old or the new content lies under `folder` or `folder.old`."""
    remove_tree(_old_folder(folder))
    if folder.exists():
        commit(folder, _old_folder(folder))
    commit(new_folder, folder)
    remove_tree(_old_folder(folder))
