"""Muon turns matrices as torch's own does, in the precision of the hardware."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from silo.lm.network import choose_dtype
from silo.lm.training import muon
from silo.lm.training.muon import Muon, orthogonalise

ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""What vectors may be off by in the precision that this processor is fast in."""
SHAPES = ((8, 8), (8, 24), (24, 8), (8, 24))


def random_matrices(seed: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=source) for shape in SHAPES]


@pytest.mark.parametrize("shape", [(16, 16), (16, 48), (48, 16)])
def test_singular_vectors_stay_and_singular_values_come_near_one(shape: tuple[int, int]) -> None:
    matrix = random_matrix(shape)
    turned = orthogonalise(matrix[None])[0].double()
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    along = left.mT @ turned @ right.mT
    assert torch.allclose(along, torch.diag(along.diagonal()), atol=ROUNDING[choose_dtype("cpu")])
    assert float(along.diagonal().min()) > 0.3 and float(along.diagonal().max()) < 1.3


def test_a_matrix_is_turned_alike_alone_and_beside_others() -> None:
    matrices = torch.stack([random_matrix((8, 24), seed) for seed in range(5)])
    together = orthogonalise(matrices)
    for alone, beside in zip(matrices, together, strict=True):
        np.testing.assert_allclose(orthogonalise(alone[None])[0], beside, atol=1e-5)


def test_the_weights_are_those_of_torch_within_the_rounding_of_bf16() -> None:
    ours, theirs = ([torch.nn.Parameter(item.clone()) for item in random_matrices(0)] for _ in range(2))
    optimisers = (
        Muon(ours, weight_decay=0.1),
        torch.optim.Muon(theirs, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    )
    for step in range(5):
        for parameters, optimiser in zip((ours, theirs), optimisers, strict=True):
            optimiser.param_groups[0]["lr"] = 0.01
            for parameter, gradient in zip(parameters, random_matrices(step + 1), strict=True):
                parameter.grad = gradient
            optimiser.step()
    moved, apart = (_distance(ours, other) for other in (random_matrices(0), theirs))
    assert apart < 0.02 * moved


def test_matrices_without_a_gradient_stay() -> None:
    kept, moved = (torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    optimiser = Muon([kept, moved], weight_decay=0.1)
    moved.grad = torch.eye(4)
    optimiser.step()
    assert torch.equal(kept.detach(), torch.ones(4, 4)) and not torch.equal(moved.detach(), torch.ones(4, 4))


def test_matrices_are_turned_in_the_precision_that_the_hardware_is_fast_in(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = random_matrix((16, 16))[None]
    results = {}
    for dtype in (torch.float32, torch.bfloat16):
        monkeypatch.setattr(muon, "choose_dtype", lambda _, dtype=dtype: dtype)
        results[dtype] = orthogonalise(matrix)
    assert results[torch.float32].dtype == results[torch.bfloat16].dtype == torch.float32
    assert not torch.equal(results[torch.float32], results[torch.bfloat16])
    np.testing.assert_allclose(results[torch.float32], results[torch.bfloat16], atol=0.1)


def random_matrix(shape: tuple[int, int], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _distance(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    return max(float((one - other).detach().abs().max()) for one, other in zip(ones, others, strict=True))
