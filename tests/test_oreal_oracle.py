"""The whole way from scores to gradients, against the slow second implementation in oracle_oreal.py.

Each random batch draws every switch of the loss, ragged answers, members that nobody judged,
tokens that a tool wrote, truncated distributions, cuts into micro-batches and chunks. The model is
a table of logits, so the gradient of each single logit is compared.
"""

from __future__ import annotations

import copy
import math
import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import oracle_oreal as oracle
import pytest
import torch
from fakes import TableModel, TableTokenModel, group, question, tokenizer, trajectory

from rlteach.config import Config
from rlteach.oreal import advantage, losses, token_weights
from rlteach.policy.policy import Policy, Reference
from rlteach.training.trainer import OrealTrainer
from rlteach.types import Group

VOCABULARY = 24  # also the most rows a batch has: the first token names the row
CHOICES: dict[str, tuple[Any, ...]] = {
    "temperature": (0.2, 0.3, 0.7, 1.0, 1.3, 2.0),
    "positive_threshold": (1.0, 1.0, 0.5),
    "reward_coding": ("plus_minus", "zero_one"),
    "advantage": ("rloo", "grpo"),
    "selection": ("one_pair", "mixed", "all"),
    "positive_weight": ("advantage", "one"),
    "negative_shaping": ("rloo", "one_minus_p", "none"),
    "positive_factor": (0.0, 1.0, 2.5),
    "negative_factor": (0.0, 0.5, 1.0),
    "token_weighting": ("none", "threshold", "topk"),
    "token_score": ("running_mean", "per_token"),
    "correct_threshold": (0.0, 0.25, 0.5),
    "incorrect_threshold": (0.0, 0.5, 0.75),
    "topk_ratio": (0.125, 0.25, 0.5, 1.0),
    "token_reward_rows": ("all", "kept"),
    "token_reward_balance": (True, False),
    "kl_coefficient": (0.0, 0.01, 1.0),
    "kl_estimator": ("k1", "k2", "k3"),
    "kl_target": ("initial", "old"),
    "loss_norm": ("token_class", "sequence"),
    "micro_batch": (1, 2, 3, 64),
    "logits_chunk": (1, 5, 4096),
}


@dataclass
class Case:
    """One random batch, in the library's words and in the oracle's."""

    config: Config
    switches: dict[str, Any]
    groups: list[Group]
    members: list[list[oracle.Member]]
    first_row: list[int]  # of each group

    def table(self, name: str) -> torch.Tensor:
        """[R, T, ...] of every member's `name`, filled up with zeros."""
        values = [torch.tensor(getattr(m, name), dtype=torch.float64) for g in self.members for m in g]
        if not values:  # an empty batch still has a model
            return torch.zeros((1, 1) if name == "w" else (1, 1, VOCABULARY), dtype=torch.float64)
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True)


@cache
def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    switches = {name: rng.choice(values) for name, values in CHOICES.items()}
    config = Config(policy_lr=1e-3, warmup_steps=0, max_grad_norm=1000, token_reward_epochs=1,
                    token_reward_model="policy", **switches)
    truncated = rng.random() < 0.4
    groups, members, first_row = [], [], []
    row = 0
    for index in range(rng.randint(0, 3)):
        size = rng.randint(2, 8)
        first_row.append(row)
        members.append([random_member(rng, row + i, switches, truncated) for i in range(size)])
        row += size
        right = rng.choice((0.0, 0.5, 0.5, 0.5, 1.0))  # of the questions some are hopeless, some easy
        for m in members[-1]:
            m.score = None if rng.random() < 0.15 else 1.0 if rng.random() < right else rng.choice((0.0, 0.5))
        groups.append(as_group(members[-1], f"s{index}"))
    return Case(config, switches, groups, members, first_row)


def random_member(rng: random.Random, row: int, s: dict[str, Any], truncated: bool) -> oracle.Member:
    prompt, answer = rng.randint(1, 4), rng.randint(1, 9)
    length = prompt + answer
    tokens = [row, *(rng.randrange(VOCABULARY) for _ in range(length - 1))]
    sampled = [t >= prompt and rng.random() < 0.85 for t in range(length)]
    sampled[-1] = True
    support: list[list[int] | None] = [None] * length
    for t in range(length):
        if truncated and sampled[t]:
            support[t] = sorted({tokens[t], *rng.sample(range(VOCABULARY), rng.randint(0, 6))})
    logits = [[rng.gauss(0, 1.5) for _ in range(VOCABULARY)] for _ in range(length)]
    reference = [[x + 0.5 * s["temperature"] * rng.gauss(0, 1) for x in line] for line in logits]
    member = oracle.Member(None, tokens, sampled, support, logits, reference,
                           [rng.gauss(0, 2) for _ in range(length)], [0.0] * length)
    for t in member.actions:  # a sampler that is not quite the policy: the ratio has something to show
        member.drawn_with[t] = oracle.distributions(member, t, s)[0][tokens[t]] + rng.gauss(0, 0.01)
    return member


def as_group(members: list[oracle.Member], name: str) -> Group:
    trajectories = []
    for m in members:
        prompt = m.sampled.index(True)
        answer = range(prompt, len(m.tokens))
        truncated = any(left is not None for left in m.support)
        t = trajectory(m.tokens[:prompt], m.tokens[prompt:],
                       forced=[i - prompt for i in answer if not m.sampled[i]],
                       support=[m.support[i] for i in m.actions] if truncated else None)
        trajectories.append(replace(t, logprobs=tuple(m.drawn_with)))
    return group(trajectories, [m.score for m in members], name=name)


def trainer_of(case: Case) -> OrealTrainer:
    logits, fixed, scores = (case.table(name).float() for name in ("logits", "reference", "w"))
    policy = Policy(TableModel(logits), tokenizer(), config=case.config)
    return OrealTrainer(policy, lambda *_: None, [question()], case.config,
                        reference=Reference(TableModel(fixed)), token_reward_model=TableTokenModel(scores))


def expected(case: Case, selected: list[Group]) -> tuple[list[tuple[oracle.Member, float, float]], list[int]]:
    """Advantages of the whole group first, then the members that the library kept: (kept, their rows)."""
    kept, rows = [], []
    for members, chosen, first in zip(case.members, selected, case.first_row, strict=True):
        scores = [m.score for m in members]
        assert oracle.is_allowed_selection(chosen.kept, scores, case.switches)
        advantages = oracle.advantages(scores, case.switches)
        for mine, wanted in zip(chosen.advantages, advantages, strict=True):
            assert mine == (None if wanted is None else pytest.approx(wanted, rel=1e-12, abs=1e-12))
        for i in chosen.kept:
            kept.append((members[i], advantages[i], oracle.pass_rate(scores, case.switches)))
            rows.append(first + i)
    return kept, rows


def close(actual: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> bool:
    """Largest difference, measured by the largest number that is expected."""
    scale = float(wanted.abs().max()) if wanted.numel() else 0.0
    return bool(((actual.double() - wanted).abs() <= tolerance * scale + 1e-9).all())


def placed(shape: torch.Size, rows: list[int], tables: list[Any]) -> torch.Tensor:
    """The oracle's gradients in the place of the library's table."""
    out = torch.zeros(shape, dtype=torch.float64)
    for row, table in zip(rows, tables, strict=True):
        out[row, : len(table)] = torch.tensor(table, dtype=torch.float64)
    return out


def check_update(seed: int) -> None:
    """select -> shape -> update of the library, single precision, against the oracle."""
    case = random_case(seed)
    trainer = trainer_of(case)
    before = trainer.policy.model.table.detach().clone()
    selected = trainer.select(case.groups)
    kept, rows = expected(case, selected)
    wanted = oracle.loss(kept, case.switches)
    metrics = trainer.update(trainer.shape(selected)).metrics
    after = trainer.policy.model.table
    if wanted is None:
        assert metrics["loss/total"] is None, seed
        assert torch.equal(before, after.detach()), seed
    else:
        values = {name: getattr(wanted, name) for name in ("positive", "negative", "kl", "total")}
        scale = max(abs(x) for x in values.values())
        for name, value in values.items():
            assert metrics[f"loss/{name}"] == pytest.approx(value, rel=1e-5, abs=1e-5 * scale), (seed, name)
        gradient = placed(after.shape, rows, wanted.gradients)
        assert close(after.grad, gradient, 1e-5), seed
        assert metrics["grad_norm/policy"] == pytest.approx(float(gradient.norm()), rel=1e-5, abs=1e-9), seed
        assert metrics["entropy"] == pytest.approx(wanted.entropy, rel=1e-5), seed
        assert metrics["kl/reference"] == pytest.approx(wanted.k3, rel=1e-5, abs=1e-6), seed
        assert metrics["ratio/max_deviation"] == pytest.approx(wanted.deviation, abs=2e-5), seed
    check_token_model(case, trainer, [m for m, *_ in kept], rows, metrics, seed)


def check_token_model(
    case: Case, trainer: OrealTrainer, kept: list[oracle.Member], rows: list[int], metrics: Any, seed: int
) -> None:
    if case.switches["token_reward_rows"] == "all":
        everyone = list(enumerate(m for members in case.members for m in members))
        rows = [row for row, m in everyone if m.score is not None]
        kept = [m for _, m in everyone if m.score is not None]
    wanted = oracle.token_model_loss(kept, case.switches)
    if wanted is None:
        assert metrics["loss/token_reward"] is None, seed
        return
    table = trainer.token_reward_model.table
    assert metrics["loss/token_reward"] == pytest.approx(wanted[0], rel=1e-5), seed
    assert close(table.grad, placed(table.shape, rows, wanted[1]), 1e-5), seed


def check_functions(seed: int) -> None:
    """The library's pure functions in double precision, on the same batch, to 1e-10."""
    case = random_case(seed)
    s, c = case.switches, case.config
    kept, rows = expected(case, trainer_of(case).select(case.groups))
    if not kept:
        return
    logits = case.table("logits")[rows].requires_grad_()
    logp, full, reference, mask = double_logprobs(logits, [m for m, *_ in kept], s)
    positive = torch.tensor([oracle.is_positive(m.score, s) for m, *_ in kept])
    advantages, rates = (torch.tensor([k[i] for k in kept], dtype=torch.float64) for i in (1, 2))
    weights = token_weights.token_weights(
        case.table("w")[rows], mask, positive, weighting=c.token_weighting, score=c.token_score,
        positive_threshold=c.correct_threshold, negative_threshold=c.incorrect_threshold,
        topk_ratio=c.topk_ratio)
    factor = losses.coefficients(
        advantages, positive, rates, positive_weight=c.positive_weight, negative_shaping=c.negative_shaping)
    count = losses.Normalizers.count(mask, positive, c.loss_norm)
    row = (logp, weights, factor, positive)
    terms = {
        "positive": c.positive_factor * losses.positive_term(*row) / count.positive,
        "negative": c.negative_factor * losses.negative_term(*row) / count.negative,
        "kl": c.kl_coefficient * losses.kl_term(full, reference, mask, c.kl_estimator) / count.kl,
    }
    sum(terms.values()).backward()
    wanted = oracle.loss(kept, s)
    for name, term in terms.items():
        value = pytest.approx(getattr(wanted, name), rel=1e-10, abs=1e-10)
        assert float(term.detach()) == value, (seed, name)
    assert close(logits.grad, placed(logits.shape, list(range(len(rows))), wanted.gradients), 1e-10), seed


def double_logprobs(
    logits: torch.Tensor, members: list[oracle.Member], s: dict[str, Any]
) -> tuple[torch.Tensor, ...]:
    """Scoring written again: (drawn, full, reference, mask), each [N, T], in double precision."""
    out = [[[torch.zeros((), dtype=torch.float64)] * logits.shape[1] for _ in members] for _ in range(3)]
    mask = torch.zeros(logits.shape[:2], dtype=torch.bool)
    for i, m in enumerate(members):
        for t in m.actions:
            scaled, token = logits[i, t - 1] / s["temperature"], m.tokens[t]
            left = m.support[t] if m.support[t] is not None else list(range(VOCABULARY))
            full = scaled.log_softmax(-1)[token]
            other = torch.tensor(m.reference[t - 1], dtype=torch.float64) / s["temperature"]
            fixed = other.log_softmax(-1)[token]
            drawn = scaled[left].log_softmax(-1)[left.index(token)]
            values = (drawn, full, full.detach() if s["kl_target"] == "old" else fixed)
            for place, value in zip(out, values, strict=True):
                place[i][t] = value
            mask[i, t] = True
    return (*(torch.stack([torch.stack(line) for line in place]) for place in out), mask)


@pytest.mark.parametrize("block", range(12))
def test_random_batches_agree_with_the_oracle(block: int) -> None:
    """240 random batches through the trainer's own stages, values and gradients."""
    for seed in range(20 * block, 20 * block + 20):
        check_update(seed)


@pytest.mark.parametrize("block", range(12))
def test_pure_functions_agree_with_the_oracle_in_double_precision(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        check_functions(seed)


def test_the_random_batches_reach_every_corner() -> None:
    """Otherwise the agreement above would say little."""
    cases = [random_case(seed) for seed in range(240)]
    for name, values in CHOICES.items():
        assert {c.switches[name] for c in cases} == set(values), name
    sizes = {len(g.trajectories) for c in cases for g in c.groups}
    answers = {len(m.tokens) - m.sampled.index(True) for c in cases for ms in c.members for m in ms}
    assert sizes == set(range(2, 9))
    assert answers == set(range(1, 10))
    assert any(not c.groups for c in cases)
    some = [[m.score for m in ms] for c in cases for ms in c.members]
    assert any(None in scores for scores in some)
    assert any(set(scores) == {1.0} for scores in some)
    assert any(sum(x is not None for x in scores) < 2 for scores in some)


@pytest.mark.parametrize("seed", range(6))
def test_the_oracles_gradient_is_that_of_its_value(seed: int) -> None:
    """Closed form against differences: the oracle is not believed unseen."""
    rng = random.Random(seed)
    s = {**random_case(seed).switches, "kl_target": "initial", "kl_coefficient": 0.5, "positive_factor": 1.0,
         "negative_factor": 0.5, "token_weighting": "none"}
    members = [random_member(rng, i, s, truncated=seed % 2 == 0) for i in range(3)]
    for m, score in zip(members, (1.0, 0.0, 0.0), strict=True):
        m.score = score
    kept = [(m, a, 1 / 3) for m, a in zip(members, oracle.advantages([1.0, 0.0, 0.0], s), strict=True)]
    old = copy.deepcopy([m.logits for m in members])
    gradients = oracle.loss(kept, s).gradients
    for row, m in enumerate(members):
        for t in {0, m.actions[0] - 1, m.actions[-1] - 1}:
            for v in rng.sample(range(VOCABULARY), 4):
                numeric = oracle.numeric_gradient(lambda: oracle.loss(kept, s, old).total, m.logits[t], v)
                assert numeric == pytest.approx(gradients[row][t][v], rel=1e-5, abs=1e-8)


def test_the_oracle_knows_the_worked_numbers() -> None:
    """The table for K = 16 of the released code's advantages, by hand."""
    s = {"positive_threshold": 1.0, "reward_coding": "plus_minus", "advantage": "rloo"}
    for right, up, down in ((1, 2.0, -2 / 15), (4, 1.6, -8 / 15), (8, 16 / 15, -16 / 15), (15, 2 / 15, -2.0)):
        given = oracle.advantages([1.0] * right + [0.0] * (16 - right), s)
        assert given[0] == pytest.approx(up)
        assert given[-1] == pytest.approx(down)
    assert math.isclose(oracle.sigma(0.0), 0.5)


def test_library_and_oracle_share_no_code() -> None:
    """Not a line of rlteach is imported there, and not torch."""
    source = Path(oracle.__file__).read_text(encoding="utf-8")
    assert "import rlteach" not in source
    assert "from rlteach" not in source
    assert "torch" not in source


def test_grpo_in_the_library_is_the_unbiased_one() -> None:
    """Hand: rewards 1, 0, 0: mean 1/3, unbiased std sqrt(1/3)."""
    wanted = [2 / 3 / math.sqrt(1 / 3), *(-1 / 3 / math.sqrt(1 / 3),) * 2]
    assert advantage.grpo([1.0, 0.0, 0.0]) == pytest.approx(wanted)


