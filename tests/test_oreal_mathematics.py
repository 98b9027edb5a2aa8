# ruff: noqa: N802  (T1 ... are the names of design page 2D)
"""T1 to T4, T7 and T8: the equations of OREAL by enumeration, by hand and by closed form."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
import torch
from fakes import even_first, policy_update, ragged_rows, small_config, tiny_model, tiny_policy
from fakes import group as group_of
from fakes import samples as some_samples
from fakes import trajectory as answer
from torch import Tensor

from rlteach.config import Config, ConfigError
from rlteach.oreal import advantage, losses, selection, token_weights
from rlteach.policy.policy import Reference
from rlteach.training.trainer import OrealTrainer

PI = (0.1, 0.25, 0.05, 0.4, 0.2)  # a policy over five answers
RIGHT = (True, False, True, False, False)
P = sum(x for x, good in zip(PI, RIGHT, strict=True) if good)  # its pass rate
INFINITY = float("inf")


def best_of_n(pi: tuple[float, ...], right: tuple[bool, ...], n: int) -> list[float]:
    """Law of best-of-n, by looking at every possible draw: uniform among its right members, or
    among all of them when none is right."""
    law = [0.0] * len(pi)
    for draw in itertools.product(range(len(pi)), repeat=n):
        mass = math.prod(pi[s] for s in draw)
        best = [s for s in draw if right[s]] or draw
        for s in best:
            law[s] += mass / len(best)
    return law


def equation_5(n: int) -> list[float]:
    up, down = (1 - (1 - P) ** n) / P, (1 - P) ** (n - 1)
    return [x * (up if good else down) for x, good in zip(PI, RIGHT, strict=True)]


def coefficient(p: float, *, right: bool, **switches: str) -> float:
    """The library's factor of one answer; its advantage is a number that must not be looked at."""
    advantages, positive, rates = torch.tensor([9.0]), torch.tensor([right]), torch.tensor([p])
    return float(losses.coefficients(advantages, positive, rates, **switches))


def test_T01_best_of_n_by_exact_enumeration() -> None:
    """Eq. 5 for n = 1 ... 6; Lemma 2.1: among right answers its law is pi(s)/p whatever n is."""
    for n in range(1, 7):
        law = best_of_n(PI, RIGHT, n)
        assert law == pytest.approx(equation_5(n), abs=1e-12)
        mass = sum(x for x, good in zip(law, RIGHT, strict=True) if good)
        assert mass == pytest.approx(1 - (1 - P) ** n)
        for s, good in enumerate(RIGHT):
            if good:
                assert law[s] / mass == pytest.approx(PI[s] / P)
    assert best_of_n((0.5, 0.5), (True, False), 4)[1] == pytest.approx(0.0625)


def test_T01_cloning_right_answers_ends_at_the_best_of_n() -> None:
    """The library's positive term over right answers drawn from pi(s)/p has gradient pi_theta - pi(s)/p
    with respect to the logits: zero exactly where the policy IS the best of infinitely many."""
    target = [x / P if good else 0.0 for x, good in zip(PI, RIGHT, strict=True)]
    target = torch.tensor(target, dtype=torch.float64)
    logits = torch.randn(5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    logp = logits.log_softmax(-1)
    one = torch.ones(5, 1, dtype=torch.float64)
    losses.positive_term(logp[:, None], one, target, torch.tensor(RIGHT)).backward()
    assert torch.allclose(logits.grad, logp.exp().detach() - target, atol=1e-12)


def test_T01_wrong_answers_are_shaped_by_one_minus_p() -> None:
    """Eq. 6: wrong answers weigh n(1-p)^n where right ones weigh n(1-p)^(n-1): a ratio of 1 - p for
    every n; positive_weight=one with negative_shaping=one_minus_p is that ratio, downwards."""
    switches = {"positive_weight": "one", "negative_shaping": "one_minus_p"}
    for p in (0.125, 0.5, 0.9):
        up, down = (coefficient(p, right=right, **switches) for right in (True, False))
        for n in (1, 4, 16):
            ratio = (n * (1 - p) ** n) / (n * (1 - p) ** (n - 1))
            assert -down / up == pytest.approx(ratio, rel=1e-6)


def test_T01_other_factors_of_a_row() -> None:
    """advantage and rloo hand on the group's own number; one and none ignore it."""
    released = {"positive_weight": "advantage", "negative_shaping": "rloo"}
    plain = {"positive_weight": "one", "negative_shaping": "none"}
    assert [coefficient(0.25, right=r, **released) for r in (True, False)] == [9.0, 9.0]
    assert [coefficient(0.25, right=r, **plain) for r in (True, False)] == [1.0, -1.0]


@pytest.mark.parametrize("size", range(2, 17))
def test_T02_rloo_closed_form(size: int) -> None:
    """c of K right: A+ = 2(K-c)/(K-1), A- = -2c/(K-1), and the group sums to zero; half under 1/0."""
    for right in range(size + 1):
        outcome = [True] * right + [False] * (size - right)
        for coding, scale in (("plus_minus", 1.0), ("zero_one", 0.5)):
            given = advantage.rloo(advantage.code_rewards(outcome, coding))
            up, down = 2 * (size - right) / (size - 1), -2 * right / (size - 1)
            assert given == pytest.approx([scale * (up if good else down) for good in outcome], abs=1e-12)
            assert sum(given) == pytest.approx(0, abs=1e-12)


def test_T02_grpo_by_hand() -> None:
    """1, -1, -1, -1: mean -1/2, unbiased std 1; all equal: nothing to prefer, and no division by 0."""
    assert advantage.grpo([1.0, -1.0, -1.0, -1.0]) == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert advantage.grpo([-1.0, -1.0, -1.0]) == [0.0, 0.0, 0.0]


def test_T02_baseline_is_the_whole_groups() -> None:
    """One pair of eight is kept; its advantages are still those of all eight: 2*6/7 and -2*2/7."""
    config = small_config(group_size=8, selection="one_pair")
    trainer = OrealTrainer(tiny_policy(config), even_first, some_samples(2), config)
    chosen, = trainer.select([group_of([answer([1], [2])] * 8, [1, 0, 0, 0, 1, 0, 0, 0])])
    assert len(chosen.kept) == 2
    assert [chosen.advantages[i] for i in chosen.kept] in (pytest.approx([12 / 7, -4 / 7]),
                                                           pytest.approx([-4 / 7, 12 / 7]))
    rows = trainer.shape([chosen]).policy_rows
    assert sorted(rows.advantages.tolist()) == pytest.approx([-4 / 7, 12 / 7])


@pytest.mark.parametrize("estimator", ["rloo", "grpo"])
def test_T02_a_baseline_needs_another_member(estimator: str) -> None:
    """K = 1, nobody judged, one judged: a sentence, not a division by zero."""
    for rewards in ([1.0], [], [None, None], [None, 1.0]):
        with pytest.raises(ValueError, match="at least two members with a reward"):
            advantage.ESTIMATORS[estimator](rewards)
    with pytest.raises(ConfigError, match="group_size must be at least 2"):
        Config(group_size=1)


def omega(scores: list[float], right: bool, **switches: object) -> list[float]:
    """The library's weights of one answer without padding."""
    given = {"weighting": "threshold", "score": "per_token", **switches}
    row = torch.tensor([scores], dtype=torch.float64)
    mask = torch.ones_like(row, dtype=torch.bool)
    return token_weights.token_weights(row, mask, torch.tensor([right]), **given)[0].tolist()


def test_T03_limits_of_the_token_weights() -> None:
    """w = 0 weighs nothing (D5: a zero head teaches the policy nothing); w = +-inf weighs 1 or 0."""
    for right in (True, False):
        for score in ("per_token", "running_mean"):
            assert omega([0.0, 0.0, 0.0], right, score=score) == [0.0, 0.0, 0.0]
    assert omega([INFINITY, -INFINITY, 40.0, -40.0], True) == [1.0, 0.0, 1.0, 0.0]
    assert omega([INFINITY, -INFINITY, 40.0, -40.0], False) == [0.0, 1.0, 0.0, 1.0]
    assert omega([INFINITY, -3.0], True, weighting="none") == [1.0, 1.0]


def test_T03_threshold_one_half_is_equation_10() -> None:
    """omega+ = max(2 sigma(w) - 1, 0), omega- = max(1 - 2 sigma(w), 0)."""
    scores = [-3.0, -1.0, -0.1, 0.2, 0.7, 5.0]
    sigma = [1 / (1 + math.exp(-w)) for w in scores]
    assert omega(scores, True) == pytest.approx([max(2 * q - 1, 0) for q in sigma])
    assert omega(scores, False) == pytest.approx([max(1 - 2 * q, 0) for q in sigma])


def test_T03_each_class_has_its_own_threshold() -> None:
    """q = 3/4 on a threshold of 1/4 is 2/3 of the way; on 3/4 it is at the start."""
    high = math.log(3)  # sigma = 3/4
    own = {"positive_threshold": 0.25, "negative_threshold": 0.75}
    assert omega([high, 0.0], True, **own) == pytest.approx([2 / 3, 1 / 3], rel=1e-6)
    assert omega([-high, -math.log(7)], False, **own) == pytest.approx([0.0, 1 / 2], abs=1e-6)


def test_T03_top_k_keeps_the_floor_and_stretches_it() -> None:
    """5 tokens at 0.6: three are kept, the worst of them at 0, the best at 1; ties keep their count."""
    high = math.log(3)
    top = {"weighting": "topk", "topk_ratio": 0.6}
    weights = omega([-high, 0.0, high, -5.0, -6.0], True, **top)  # sigma 1/4, 1/2, 3/4, 0, 0
    assert weights == pytest.approx([0.0, 0.5, 1.0, 0.0, 0.0])
    assert omega([high, 0.0, -high, 5.0, 6.0], False, **top) == pytest.approx([0.0, 0.5, 1.0, 0.0, 0.0])
    assert sorted(omega([1.0] * 5, True, **top)) == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert sum(omega([2.0, 1.0, 1.0, 1.0, 1.0], True, **top)) == 1.0  # the ties are the lowest of the kept
    assert omega([1.0, 2.0, 3.0], True, weighting="topk", topk_ratio=0.25) == [0.0] * 3  # floor(0.75) = 0


def test_T03_the_floor_is_that_of_the_written_number() -> None:
    """floor(0.29 * 100) = 29."""
    assert sum(omega([1.0] * 100, True, weighting="topk", topk_ratio=0.29)) == 29


def test_T03_masked_tokens_weigh_nothing() -> None:
    """Padding and prompt are no candidates of top-k and get no weight under any rule."""
    scores = torch.tensor([[9.0, 1.0, 2.0, 9.0]])
    mask = torch.tensor([[False, True, True, False]])
    for weighting in ("none", "threshold", "topk"):
        for score in ("per_token", "running_mean"):
            weights = token_weights.token_weights(
                scores, mask, torch.tensor([True]), weighting=weighting, score=score, topk_ratio=0.5)
            assert weights[0, [0, 3]].tolist() == [0.0, 0.0]
            assert weights[0, 1:3].max() > 0


def test_T04_running_mean_is_a_loop() -> None:
    """The mean over the action tokens so far, with prompts, holes and padding of other numbers."""
    rng = random.Random(4)
    mask = torch.tensor([[rng.random() < 0.6 for _ in range(11)] for _ in range(20)])
    scores = torch.tensor([[rng.gauss(0, 3) for _ in range(11)] for _ in range(20)], dtype=torch.float64)
    given = token_weights.running_mean(scores, mask)
    for row in range(20):
        seen: list[float] = []
        for t in range(11):
            if mask[row, t]:
                seen.append(float(scores[row, t]))
                assert float(given[row, t]) == pytest.approx(sum(seen) / len(seen), abs=1e-12)
            else:
                assert float(given[row, t]) == 0.0


def test_T04_weights_of_the_released_code_use_the_running_mean() -> None:
    """w = 4, -4: the second token's own score speaks against it, the mean so far is neutral."""
    assert omega([4.0, -4.0, -9.0], False, score="running_mean")[:2] == [0.0, 0.0]
    assert omega([4.0, -4.0, -9.0], False, score="per_token")[1] > 0.9


def test_T07_gradient_of_weighted_cross_entropy_is_the_policy_gradient() -> None:
    """D1: A * CE and -A * pi/pi_old have one gradient, -A w d log pi: equal on right and wrong rows."""
    noise = torch.Generator().manual_seed(7)
    weights, mine = (torch.rand(4, 6, generator=noise, dtype=torch.float64) for _ in range(2))
    factors = torch.tensor([1.5, 0.3, -0.8, -2.0], dtype=torch.float64)
    everyone = torch.ones(4, dtype=torch.bool)
    logp = (-3 * mine).requires_grad_()
    cross_entropy, = torch.autograd.grad(losses.positive_term(logp, weights, factors, everyone), logp)
    ratio, = torch.autograd.grad(losses.negative_term(logp, weights, factors, ~everyone), logp)
    assert torch.equal(cross_entropy, -factors[:, None] * weights)
    assert torch.allclose(ratio, cross_entropy, atol=1e-15)


def test_T07_each_term_sees_its_own_class_only() -> None:
    """Values: sum of c w (-log pi) over right rows, of -c w (the ratio is 1) over wrong ones."""
    logp, weights = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]), torch.tensor([[1.0, 0.5], [0.25, 1.0]])
    factors, positive = torch.tensor([2.0, -0.5]), torch.tensor([True, False])
    assert float(losses.positive_term(logp, weights, factors, positive)) == pytest.approx(2 * (1 + 1))
    assert float(losses.negative_term(logp, weights, factors, positive)) == pytest.approx(0.5 * 1.25)


def test_T07_a_step_makes_right_answers_likelier_and_wrong_ones_less() -> None:
    """The two signs on a real model: along the gradient of each term, its own log-probability moves."""
    rows = ragged_rows(2, seed=3, longest=4)
    for right, other in ((0, "negative_factor"), (1, "positive_factor")):
        config = small_config(kl_coefficient=0, **{other: 0.0})
        _, gradients = policy_update(tiny_policy(), rows, config)
        policy = tiny_policy()
        before = (policy.logprobs(rows).full * rows.weights).sum(-1)[right]
        with torch.no_grad():
            for name, value in policy.model.named_parameters():
                value -= 1e-4 * gradients[name]
        after = (policy.logprobs(rows).full * rows.weights).sum(-1)[right]
        assert (after > before) if right == 0 else (after < before)


def expected_kl(logits: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """E over tokens drawn from the policy of the library's k, exactly: every token by its probability.

    The draw itself carries no gradient, as in training.
    """
    logp, fixed = logits.log_softmax(-1), reference.log_softmax(-1)
    mask = torch.ones(1, 1, dtype=torch.bool)
    each = torch.stack([losses.kl_term(mine.view(1, 1), theirs.view(1, 1), mask, estimator)
                        for mine, theirs in zip(logp, fixed, strict=True)])
    return (logp.detach().exp() * each).sum()


def reverse_kl(logits: Tensor, reference: Tensor) -> Tensor:
    """KL(pi || ref)"""
    logp = logits.log_softmax(-1)
    return (logp.exp() * (logp - reference.log_softmax(-1))).sum()


def forward_kl(logits: Tensor, reference: Tensor) -> Tensor:
    """KL(ref || pi)"""
    return reverse_kl(reference, logits)


def two_laws() -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(8)
    logits, reference = (1.5 * torch.randn(7, generator=noise, dtype=torch.float64) for _ in range(2))
    return logits.requires_grad_(), reference


def slope(value: Tensor, of: Tensor) -> Tensor:
    return torch.autograd.grad(value, of)[0]


@pytest.mark.parametrize(
    ("estimator", "gradient_of"),
    [("k1", lambda logits, _: (0 * logits).sum()), ("k2", reverse_kl), ("k3", forward_kl)])
def test_T08_what_each_estimator_pulls_towards(
    estimator: str, gradient_of: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """D6, in exact expectation: k1 pulls nowhere, k2 is the reverse KL, k3 the FORWARD KL(ref || pi)."""
    logits, reference = two_laws()
    pulled = slope(expected_kl(logits, reference, estimator), logits)
    assert torch.allclose(pulled, slope(gradient_of(logits, reference), logits), atol=1e-12)


def test_T08_values_of_the_estimators() -> None:
    """k1 and k3 are unbiased for KL(pi || ref), k3 >= 0 for every single token, k2 = d^2/2; all are 0
    when the two laws are one; tokens outside the mask count nothing."""
    logits, reference = two_laws()
    exact = float(reverse_kl(logits, reference).detach())
    assert exact > 0.1
    for estimator in ("k1", "k3"):
        assert float(expected_kl(logits, reference, estimator).detach()) == pytest.approx(exact)
    for estimator in ("k1", "k2", "k3"):
        assert float(expected_kl(logits, logits.detach(), estimator).detach()) == pytest.approx(0, abs=1e-12)
    yes, no = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.bool)
    for mine, theirs in ((-1.0, -3.0), (-3.0, -1.0), (-0.1, -9.0)):
        pair = torch.tensor([[mine]]), torch.tensor([[theirs]])
        assert float(losses.kl_term(*pair, yes, "k3")) >= 0
        assert float(losses.kl_term(*pair, yes, "k2")) == pytest.approx((theirs - mine) ** 2 / 2)
        assert float(losses.kl_term(*pair, no, "k3")) == 0


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_T08_a_step_down_the_kl_reduces_it(estimator: str) -> None:
    """A small step along the exact expectation's gradient makes both divergences smaller."""
    logits, reference = two_laws()
    moved = logits - 0.05 * slope(expected_kl(logits, reference, estimator), logits)
    for divergence in (reverse_kl, forward_kl):
        assert float(divergence(moved.detach(), reference)) < float(divergence(logits.detach(), reference))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_T08_a_run_of_nothing_but_kl_comes_back_to_the_reference(estimator: str) -> None:
    """The trainer with both other terms off: KL to the reference falls to less than 0.6 (k1, whose
    gradient is noise around zero, promises nothing), and the logged one is never negative."""
    config = small_config(
        batch_size=4, group_size=8, max_new_tokens=3, policy_lr=1e-2, policy_lr_end=1e-2, total_steps=25,
        selection="all", positive_factor=0, negative_factor=0, kl_coefficient=1.0, kl_estimator=estimator)
    trainer = OrealTrainer(tiny_policy(config, seed=5, spread=0.2), even_first, some_samples(4), config,
                           reference=Reference(tiny_model(seed=6, spread=0.2)))
    logged = [step.metrics["kl/reference"] for step in trainer]
    assert min(logged) >= 0
    if estimator != "k1":
        assert sum(logged[-5:]) / 5 < 0.6 * sum(logged[:5]) / 5


@pytest.mark.parametrize("rule", ["one_pair", "mixed", "all"])
def test_selection_only_marks(rule: str) -> None:
    """Alg. 1: a question with 0 < p < 1; nothing is dropped and nobody unjudged is marked."""
    scores = [1, None, 0, 0, 1]
    outcome = [None if s is None else s == 1 for s in scores]
    kept = selection.select(outcome, rule, random.Random(0))
    assert all(outcome[i] is not None for i in kept)
    assert len(kept) == (2 if rule == "one_pair" else 4)
    assert {outcome[i] for i in kept} == {True, False}
    assert selection.select([True, True], rule, random.Random(0)) == ((0, 1) if rule == "all" else ())
    assert selection.select([True, None], rule, random.Random(0)) == ()
