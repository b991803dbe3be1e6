"""Bootstrap over documents: intervals that cover the truth, and paired differences sharper than their parts."""

from __future__ import annotations

import numpy as np
import pytest

from silo.evaluation.intervals import Estimate, Resamples, gap_closed, perplexity


def test_the_first_draw_is_the_documents_themselves() -> None:
    per_document = np.array([1.0, 2.0, 4.0])
    totals = Resamples(3).total(per_document)
    assert totals[0] == 7.0
    assert len(totals) == 1001
    assert set(np.unique(totals)) <= {sum(draw) for draw in _all_draws([1.0, 2.0, 4.0])}


def _all_draws(values: list[float]) -> list[tuple[float, ...]]:
    return [(a, b, c) for a in values for b in values for c in values]


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        values = rng.normal(3.0, 1.0, size=60)
        found = Estimate.of(Resamples(60, seed=trial).total(values) / 60)
        covered += found.low <= 3.0 <= found.high
    assert 180 <= covered <= 199


def test_a_paired_difference_is_sharper_than_its_parts() -> None:
    rng = np.random.default_rng(2)
    tokens = np.full(80, 100.0)
    plain = -100 * rng.normal(5.0, 1.0, size=80)
    better = plain + 100 * rng.normal(0.1, 0.01, size=80)
    draws = Resamples(80)
    a, b = (perplexity(draws.total(logs), draws.total(tokens)) for logs in (plain, better))
    ratio, alone = Estimate.of(b / a), Estimate.of(b)
    assert ratio.high < 1 < alone.high / alone.value
    assert (ratio.high - ratio.low) / ratio.value < 0.1 * (alone.high - alone.low) / alone.value


def test_what_is_not_defined_is_null_and_resamples_without_it_are_left_out() -> None:
    nothing = perplexity(np.zeros(1001), np.zeros(1001))
    assert Estimate.of(nothing).as_json() == {"value": None, "low": None, "high": None}
    draws = Resamples(3)
    tokens, logs = draws.total(np.array([0.0, 5.0, 5.0])), draws.total(np.array([0.0, -5.0, -10.0]))
    found = Estimate.of(perplexity(logs, tokens))
    assert found.low == pytest.approx(np.e) and found.high == pytest.approx(np.e**2)


def test_draws_that_agree_give_no_interval() -> None:
    found = Estimate.of(Resamples(1).mean(np.array([5.0])))
    assert found.as_json() == {"value": 5.0, "low": None, "high": None}


def test_the_share_of_a_gap() -> None:
    plain, method, reference = (np.array([value]) for value in (19.0, 12.0, 11.3))
    assert gap_closed(plain, method, reference)[0] == pytest.approx(0.909, abs=0.001)


def test_mean_and_quantile_of_the_documents_themselves() -> None:
    values = np.array([4.0, 1.0, 3.0, 2.0])
    draws = Resamples(4)
    assert draws.mean(values)[0] == 2.5
    assert [draws.quantile(values, share)[0] for share in (0.25, 0.5, 0.95, 1.0)] == [1.0, 2.0, 4.0, 4.0]
    assert set(np.unique(draws.quantile(values, 0.5))) <= set(values)


def test_the_area_under_the_curve_is_that_of_all_pairs() -> None:
    mine, others = np.array([3.0, 1.0, 5.0]), np.array([1.0, 2.0])
    found = Resamples(3).auc(mine, others, Resamples(2, seed=1))
    assert found[0] == (2 + 0.5 + 0 + 2) / 6
    assert found.min() >= 0 and found.max() <= 1
    same = np.random.default_rng(0).normal(size=(2, 80))
    estimate = Estimate.of(Resamples(80).auc(same[0], same[1], Resamples(80, seed=1)))
    assert estimate.low <= 0.5 <= estimate.high
