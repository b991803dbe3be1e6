"""Gradients of a step: the same sum whether batches are worked on one by one or side by side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from silo.lm.hardware import map_on_cores
from silo.lm.network import Preset, make_network
from silo.lm.training.distributed import Batch, ProcessGroup
from silo.lm.training.loss import Objective
from silo.lm.training.request import Shape
from silo.recipe import TrainRecipe


@pytest.fixture(params=[1, 2, 3])
def cores(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def objective() -> Objective:
    preset = Preset("tiny", 32, 2, 2, 64, vocabulary=64, context=32, tied=True)
    return Objective(make_network(preset, vocabulary=64, begin=0, seed=1).train())


def batches() -> list[Batch]:
    ids = torch.randint(0, 64, (5, 17), generator=torch.Generator().manual_seed(0))
    return [(ids[:2], 0.4), (ids[2:4], 0.4), (ids[4:], 0.2)]


def test_batches_side_by_side_give_the_gradient_of_all_rows(cores: int) -> None:
    together, apart = objective(), objective()
    whole = torch.cat([ids for ids, _ in batches()])
    loss = together(whole)
    torch.autograd.backward(loss)
    total = ProcessGroup().add_gradients(apart, batches())
    torch.testing.assert_close(total, loss.detach())
    for one, other in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_same_bits_every_time(cores: int) -> None:
    runs = [objective() for _ in range(4)]
    for run in runs:
        ProcessGroup().add_gradients(run, batches())
    for run in runs[1:]:
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(runs[0].parameters(), run.parameters(), strict=True))  # type: ignore[arg-type]


def test_threads_of_this_process_stay_as_they_were(cores: int) -> None:
    seen = map_on_cores(lambda _: torch.get_num_threads(), range(2 * cores))
    assert set(seen) == {1}
    assert torch.get_num_threads() == cores
    assert map_on_cores(lambda _: torch.get_num_threads(), [0]) == [cores]


@pytest.mark.parametrize(
    ("rows", "limit", "cores", "micro"), [(4, 8, 2, 2), (16, 8, 2, 8), (16, 6, 2, 4), (1, 8, 2, 1), (5, 8, 1, 5)]
)
def test_rows_are_shared_out_evenly(rows: int, limit: int, cores: int, micro: int) -> None:
    recipe = TrainRecipe(corpus="", batch_tokens=rows * 32, micro_batch=limit, max_tokens=10_000)
    assert Shape.of(recipe, 32, 1, cores).micro == micro
