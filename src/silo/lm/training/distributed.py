"""The processes of a training run: one, or several started by `torchrun` and joined through accelerate.

Several processes hold copies of the network (DDP) or a part of every tensor each (FSDP2). A sharded tensor is a
DTensor with the shape of the whole; what gathers one is called by every process, in the same order.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from silo.lm.hardware import core_count, map_on_cores

Batch = tuple[torch.Tensor, float]
"""Rows of tokens, and the weight of their mean loss."""


class ProcessGroup:
    """The processes that train together, as one of them sees it, and what they must do at the same time."""

    def __init__(self, *, shard: bool = False, device: str = "cpu") -> None:
        self._device = device
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = rank()
        self._accelerator: Any = _join(shard) if self.world_size > 1 else None

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    @property
    def cores(self) -> int:
        """How many batches this process works on at a time; several processes, or another device, take one each."""
        return 1 if self._accelerator or self._device != "cpu" else core_count()

    def wait(self) -> None:
        if self._accelerator:
            self._accelerator.wait_for_everyone()

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        """The leader runs the block, then the others do, who find what it wrote."""
        if not self.is_leader:
            self.wait()
        yield
        if self.is_leader:
            self.wait()

    def wrap(self, network: Any, optimisers: list[Any]) -> tuple[Any, list[Any]]:
        if not self._accelerator:
            return network, optimisers
        network, *optimisers = self._accelerator.prepare(network, *optimisers)
        return network, optimisers

    def add_gradients(self, objective: Any, batches: Sequence[Batch]) -> torch.Tensor:
        """Give the parameters the gradients of the weighted sum of the batches' losses; returns that sum.

        One process works on a batch per core. Gradients are added in the order of the batches, so that the weights do
        not depend on which core was faster.
        """
        if self._accelerator:
            return torch.stack([self._backward(objective(ids) * share) for ids, share in batches]).sum()
        parameters = [item for item in objective.parameters() if item.requires_grad]

        def differentiate(batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
            loss = objective(batch[0]) * batch[1]
            return loss.detach().float().cpu(), torch.autograd.grad(loss, parameters)

        total = torch.zeros(())
        for first in range(0, len(batches), self.cores):
            for loss, gradients in map_on_cores(differentiate, batches[first : first + self.cores]):
                total += loss
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return total

    def _backward(self, loss: torch.Tensor) -> torch.Tensor:
        self._accelerator.backward(loss)
        return loss.detach().float()

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        return self._accelerator.reduce(value, "mean") if self._accelerator else value

    def clip_gradients(self, network: Any, norm: float) -> float:
        """Scale all gradients down to that norm together; returns the norm they had."""
        return float(_gather(torch.nn.utils.clip_grad_norm_(network.parameters(), norm)))

    @contextmanager
    def unshard_outer(self, objective: Any) -> Iterator[None]:
        """Meanwhile the network can be called by itself: a layer gathers its own weights, this the ones outside."""
        sharded = isinstance(objective, FSDPModule)
        if sharded:
            objective.unshard()
        yield
        if sharded:
            objective.reshard()

    def gather_full(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """All tensors in full for the leader, none for the others."""
        gathered = {}
        for name, tensor in tensors:
            full = _gather(tensor.detach())
            if self.is_leader:
                gathered[name] = full.contiguous()
        return gathered

    def unsharded(self, network: Any) -> Any:
        """The network as a single process would hold it, for the leader to save."""
        if not any(isinstance(item, DTensor) for item in network.parameters()):
            return network
        weights = self.gather_full(network.named_parameters())
        with torch.device("meta"):
            copy = type(network)(network.config)
        copy.load_state_dict(weights, assign=True, strict=False)  # tied weights have one name here and two there
        copy.tie_weights()
        return copy


def rank() -> int:
    """This process's number; 0 leads."""
    return int(os.environ.get("RANK", "0"))


def shard_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor laid out and placed as `like`: if that is sharded, the part of it that this process holds."""
    tensor = tensor.to(like.device)
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    part = distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
    return part.clone()  # a view would keep the whole tensor in memory


def _gather(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _join(shard: bool) -> Any:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.utils import DistributedType

    layers = {"fsdp_version": 2, "auto_wrap_policy": "transformer_based_wrap", "reshard_after_forward": True}
    plugin = FullyShardedDataParallelPlugin(**layers) if shard else None
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), fsdp_plugin=plugin)
    if shard:  # accelerate takes up the plugin on GPUs only, though all it does with it works on gloo too
        accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    atexit.register(_leave)
    return accelerator


def _leave() -> None:
    """Give up the process group in order: torn down with the process, its threads now and then abort it."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
