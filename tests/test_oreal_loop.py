# ruff: noqa: N802  (T5 ... are the names of design page 2D)
"""T5, T6 and T9 to T17: the same equations where a model, a sampler and an optimiser meet them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from fakes import (
    EARLY_STOPS,
    TableModel,
    even_first,
    first_token,
    group,
    pad_right,
    policy_update,
    question,
    ragged_rows,
    random_answers,
    same,
    samples,
    small_config,
    small_trainer,
    state,
    tiny_model,
    tiny_policy,
    tokenizer,
    trajectory,
)
from torch import Tensor

from rlteach.config import Config
from rlteach.oreal.token_weights import sequence_score, token_reward_loss, token_weights
from rlteach.policy.policy import Policy
from rlteach.policy.sampler import SamplingParams, sample
from rlteach.policy.token_reward_model import TokenRewardModel, token_scores
from rlteach.training.batch import collate
from rlteach.training.trainer import OrealTrainer
from rlteach.training.update import Learner
from rlteach.types import Group, Sample, Trajectory

TIMES = ("seconds/", "judge/seconds", "tokens_per_second", "memory/")  # what differs between equal runs


def by_hand(policy: Policy, answer: Trajectory, temperature: float) -> list[float]:
    """log pi(token t) of each sampled token: the row alone, no padding, one position at a time."""
    with torch.no_grad():
        logits = policy.model(torch.tensor([answer.token_ids])).logits[0] / temperature
    return [float(logits[t - 1].log_softmax(-1)[answer.token_ids[t]])
            for t, sampled in enumerate(answer.action_mask) if sampled]


# T5: position t - 1 speaks of token t -------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_T05_logprobs_are_those_gathered_by_hand(temperature: float) -> None:
    """Ragged rows with the padding id and the stop id inside prompt and answer, and a tool's tokens."""
    answers = [*random_answers(7, seed=5), trajectory([5, 6], [7, 8, 9, 10], forced=[1, 2])]
    policy = tiny_policy()
    rows = collate([(a, True, 1.0, 0.5) for a in answers])
    with torch.no_grad():
        given = policy.logprobs(rows, temperature)
    for i, a in enumerate(answers):
        hand = by_hand(policy, a, temperature)
        assert given.full[i][rows.action_mask[i]].tolist() == pytest.approx(hand, abs=1e-5)
    assert torch.equal(rows.action_mask.sum(-1), torch.tensor([sum(a.action_mask) for a in answers]))
    assert not given.full[~rows.action_mask].any()


def test_T05_loss_is_the_sum_of_hand_gathered_logprobs() -> None:
    """L+ of the released code with all weights 1: -(1/N+) sum A log pi, from the rows alone."""
    answers = random_answers(5, seed=50)
    policy = tiny_policy()
    advantages = [0.5, 1.0, 1.5, 2.0, 0.1]
    rows = collate([(a, True, x, 0.5) for a, x in zip(answers, advantages, strict=True)])
    rows = rows.with_(coefficient=rows.advantages, weights=rows.action_mask.float(),
                      reference=torch.zeros_like(rows.sampled_logprobs))
    metrics, _ = policy_update(policy, rows, small_config(kl_coefficient=0))
    total = sum(-x * sum(by_hand(policy, a, 1.0)) for a, x in zip(answers, advantages, strict=True))
    tokens = sum(sum(a.action_mask) for a in answers)
    assert metrics["loss/positive"] == pytest.approx(total / tokens, rel=1e-5)


def test_T05_double_shift_canary() -> None:
    """A model that is certain of the next token: log pi = 0 with the shift done once; labels shifted a
    second time would give about -30 a token, which is what this canary sings at."""
    ids = [0, 4, 2, 7, 1, 5, 3]  # no two alike
    table = torch.zeros(1, len(ids), 8)
    for t in range(len(ids) - 1):
        table[0, t, ids[t + 1]] = 30.0
    policy = Policy(TableModel(table), tokenizer())
    rows = collate([(trajectory(ids[:2], ids[2:]), True, 1.0, 0.5)])
    with torch.no_grad():
        once = policy.logprobs(rows).full[rows.action_mask]
        twice = policy.logprobs(rows.with_(token_ids=torch.tensor([[ids[0], *ids[2:], ids[0]]]))).full
    assert torch.allclose(once, torch.zeros(5), atol=1e-5)
    assert float(twice[rows.action_mask].max()) < -25


# T6: only sampled tokens learn; padding and cutting change nothing ---------------------------------


def test_T06_prompt_and_padding_get_no_gradient() -> None:
    """With respect to the logits themselves: exactly 0 wherever the next token was not sampled."""
    rows = ragged_rows(6, seed=6)
    rows.token_ids[:, 0] = torch.arange(6)  # names the row of the table
    table = torch.randn(*rows.token_ids.shape, 259, generator=torch.Generator().manual_seed(0))
    policy = Policy(TableModel(table), tokenizer())
    _, gradients = policy_update(policy, rows, small_config(kl_coefficient=0.1))
    touched = gradients["table"].abs().sum(-1) > 0
    assert torch.equal(touched[:, :-1], rows.action_mask[:, 1:])
    assert not touched[:, -1].any()


def equal_updates(one: tuple[dict[str, Any], dict[str, Tensor]], two: tuple[Any, Any]) -> bool:
    """The same losses and gradients, up to the order of a sum."""
    numbers = all(a == pytest.approx(two[0][n], rel=1e-4, abs=1e-6) for n, a in one[0].items())
    slopes = all(torch.allclose(g, two[1][n], rtol=1e-3, atol=1e-5) for n, g in one[1].items())
    return numbers and slopes and one[1].keys() == two[1].keys()


@pytest.mark.parametrize("loss_norm", ["token_class", "sequence"])
def test_T06_padding_on_the_right_changes_nothing(loss_norm: str) -> None:
    """More columns, and any token id in them."""
    rows, policy = ragged_rows(5, seed=61), tiny_policy()
    config = small_config(loss_norm=loss_norm)
    plain = policy_update(policy, rows, config)
    for token in (0, 2, 100):
        padded = pad_right(rows, 7, token)
        assert equal_updates(plain, policy_update(policy, padded, config))
        with torch.no_grad():  # not only because micro-batches are cut to their longest row
            long, short = policy.logprobs(padded), policy.logprobs(rows)
        width = rows.token_ids.shape[1]
        assert torch.allclose(long.full[:, :width], short.full, atol=1e-5)
        assert torch.allclose(long.entropy[:, :width], short.entropy, atol=1e-5)
        assert not long.full[:, width:].any()


@pytest.mark.parametrize("loss_norm", ["token_class", "sequence"])
def test_T06_micro_batches_and_chunks_change_nothing(loss_norm: str) -> None:
    """D7: one row at a time or all at once, seven tokens' logits or all."""
    rows, policy = ragged_rows(7, seed=62), tiny_policy()
    whole = policy_update(policy, rows, small_config(loss_norm=loss_norm, micro_batch=64))
    for size, chunk in ((1, 4096), (2, 7), (3, 1), (64, 7)):
        config = small_config(loss_norm=loss_norm, micro_batch=size, logits_chunk=chunk)
        assert equal_updates(whole, policy_update(policy, rows, config))


def test_T06_micro_batches_change_nothing_in_shape_or_for_the_token_model() -> None:
    """Weights, reference and the token-level model's step, all with one row at a time."""
    states = []
    for size in (1, 64):
        config = small_config(micro_batch=size, token_reward_model="policy", token_weighting="threshold",
                              head_init="normal", selection="mixed", policy_freeze_steps=1)
        trainer = small_trainer(config, even_first)
        batch = trainer.shape(trainer.select(trainer.grade(trainer.rollout(trainer.draw()))))
        trainer.update(batch)
        head = trainer.token_reward_model.head.weight.detach().clone()
        states.append((batch.policy_rows.weights, batch.policy_rows.reference, head))
    for one, all_at_once in zip(*states, strict=True):
        assert torch.allclose(one, all_at_once, atol=1e-4)


def test_T06_padding_on_the_left_changes_no_answer() -> None:
    """Ragged prompts sampled together give what each gives alone."""
    config = small_config(max_new_tokens=8)
    policy = tiny_policy(config)
    questions = samples(5)
    keys = [[100 * i + g for g in range(3)] for i in range(5)]
    assert len({len(policy.encode(s)) for s in questions}) > 3
    together = policy.sample(questions, keys)
    for s, group_keys, answers in zip(questions, keys, together, strict=True):
        alone, = policy.sample([s], [group_keys])
        for mine, theirs in zip(alone, answers, strict=True):
            assert mine.token_ids == theirs.token_ids
            assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


# T9: the token-level reward model ------------------------------------------------------------------


def pair() -> Any:
    """A right and a wrong answer that share their first tokens."""
    shared = [50, 51, 52]
    right, wrong = trajectory([10, 11], [*shared, 60, 61]), trajectory([10, 11], [*shared, 70])
    return collate([(right, True, 1.0, 0.5), (wrong, False, -1.0, 0.5)])


def test_T09_zero_head_weighs_nothing_and_still_learns() -> None:
    """D5: with a zero head every weight is 0, but the gradient of eq. 12 to the head is
    mean over rows of (1/2 - label) * (mean hidden state of the answer): not 0."""
    rows, body = pair(), tiny_model().model
    model = TokenRewardModel(body)
    scores = model(rows)
    assert not scores.any()
    for score in ("per_token", "running_mean"):
        weights = token_weights(scores, rows.action_mask, rows.positive, weighting="threshold", score=score)
        assert not weights.any()
    token_reward_loss(scores, rows.action_mask, rows.positive).mean().backward()
    with torch.no_grad():
        hidden = body(input_ids=rows.token_ids, attention_mask=rows.attention_mask).last_hidden_state
    means = [hidden[i][rows.action_mask[i]].mean(0) for i in range(2)]
    wanted = (-0.5 * means[0] + 0.5 * means[1]) / 2
    assert torch.allclose(model.head.weight.grad[0], wanted, atol=1e-6)
    assert float(wanted.norm()) > 0.01


def test_T09_loss_is_of_the_mean_over_the_answer() -> None:
    """Eq. 12 with p = sigma((1/T) sum w): w = 3, -1, 4 has the mean 2; padding of 99 counts nothing."""
    scores = torch.tensor([[99.0, 3.0, -1.0, 4.0, 99.0]] * 2, dtype=torch.float64)
    mask = torch.tensor([[False, True, True, True, False]] * 2)
    assert sequence_score(scores, mask).tolist() == [2.0, 2.0]
    p = 1 / (1 + math.exp(-2))
    loss = token_reward_loss(scores, mask, torch.tensor([True, False]))
    assert loss.tolist() == pytest.approx([-math.log(p), -math.log(1 - p)])


def test_T09_separates_a_pair_with_a_common_beginning() -> None:
    """After a hundred steps it knows which is which, and a shared token has one score in both rows:
    w of a token depends on nothing that comes after it."""
    rows, policy = pair(), tiny_policy()
    model = TokenRewardModel(policy.model.base_model)
    learner = Learner(policy, model, small_config(total_steps=100, token_reward_lr=1e-3))
    for step in range(100):
        learner.update_token_model(rows, step)
    scores = token_scores(model, rows)
    right, wrong = torch.sigmoid(sequence_score(scores, rows.action_mask)).tolist()
    assert right > 0.9
    assert wrong < 0.1
    assert torch.allclose(scores[0, :5], scores[1, :5], atol=1e-5)
    weights = token_weights(scores, rows.action_mask, rows.positive, weighting="threshold", score="per_token")
    assert weights[0, 5:7].min() > 0
    assert weights[1, 5] > 0


# T10: nothing to learn from ------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["all_right", "all_wrong", "unjudged", "empty"])
@pytest.mark.parametrize("selection", ["one_pair", "mixed"])
def test_T10_no_contrast_no_step(case: str, selection: str) -> None:
    """Weights bit for bit, no loss, no optimiser state, counted, and the next step goes on."""
    score = {"all_right": 1.0, "all_wrong": 0.0, "unjudged": None, "empty": 1.0}[case]
    trainer = small_trainer(small_config(selection=selection, weight_decay=0.5), lambda *_: score)
    before = state(trainer.policy.model)
    groups = [] if case == "empty" else trainer.select(trainer.grade(trainer.rollout(trainer.draw())))
    batch = trainer.shape(groups)
    assert len(batch.policy_rows) == 0
    record = trainer.update(batch)
    assert same(before, state(trainer.policy.model))
    for name in ("total", "positive", "negative", "kl"):
        assert record.metrics[f"loss/{name}"] is None
    assert record.metrics["kl/reference"] is None
    assert record.metrics["groups/kept"] == 0
    assert not trainer.learner.optimizer.state
    assert trainer.policy.version == 0
    assert all(x is None or math.isfinite(x) for x in record.metrics.values())
    trainer.judger.function = even_first
    assert trainer.step().metrics["loss/total"] is not None


@pytest.mark.parametrize("sampled", [0, 1])
def test_T10_an_answer_without_a_sampled_token_is_no_crash(sampled: int) -> None:
    """A turn that only a tool wrote: such a row gives no term; the others are trained on as ever."""
    silent = trajectory([1], [5, 6], forced=[0, 1])
    other = trajectory([1], [7]) if sampled else silent
    trainer = small_trainer(small_config(micro_batch=1), even_first)
    record = trainer.update(trainer.shape(trainer.select([group([other, silent], [1.0, 0.0])])))
    assert all(x is None or math.isfinite(x) for x in record.metrics.values())


# T11: freeze ---------------------------------------------------------------------------------------


def test_T11_frozen_policy_rests_while_the_token_model_learns() -> None:
    """Two frozen steps: policy bit for bit the same, at learning rate 0; the third one moves it."""
    config = small_config(policy_freeze_steps=2, token_reward_model="policy", token_weighting="threshold",
                          head_init="normal", kl_coefficient=1.0)
    trainer = small_trainer(config, even_first)
    policy, tokens = state(trainer.policy.model), state(trainer.token_reward_model)
    for _ in range(2):
        metrics = trainer.step().metrics
        assert metrics["lr/policy"] == 0
        assert metrics["grad_norm/policy"] is None
        assert metrics["loss/total"] is not None
        assert same(policy, state(trainer.policy.model))
        assert not same(tokens, state(trainer.token_reward_model))
        tokens = state(trainer.token_reward_model)
    assert trainer.policy.version == 0
    assert trainer.step().metrics["lr/policy"] > 0
    assert not same(policy, state(trainer.policy.model))
    assert trainer.policy.version == 1


# T12: the reference is another model ---------------------------------------------------------------


def test_T12_reference_has_its_own_weights_and_keeps_them() -> None:
    config = small_config(token_reward_model="policy", token_weighting="threshold", head_init="normal")
    trainer = small_trainer(config, even_first)
    models = (trainer.policy.model, trainer.reference.model, trainer.token_reward_model)
    storages = [{p.data_ptr() for p in m.parameters()} for m in models]
    assert not storages[0] & storages[1]
    assert not storages[0] & storages[2]
    assert same(state(trainer.policy.model), state(trainer.reference.model))
    before = state(trainer.reference.model)
    records = [trainer.step() for _ in range(3)]
    assert same(before, state(trainer.reference.model))
    assert not same(before, state(trainer.policy.model))
    assert not any(p.requires_grad for p in trainer.reference.model.parameters())
    assert records[0].metrics["kl/reference"] == pytest.approx(0, abs=1e-9)
    assert records[-1].metrics["kl/reference"] > 0
    with pytest.raises(TypeError, match="never answers"):
        trainer.reference.sample([question()], [[0]])


# T13: what nobody judged ---------------------------------------------------------------------------


def selected(
    config: Config, answers: list[Trajectory], scores: list[float | None]
) -> tuple[OrealTrainer, Group]:
    trainer = small_trainer(config, even_first)
    return trainer, trainer.select([group(answers, scores)])[0]


def test_T13_unscorable_is_no_number() -> None:
    """Score None: no advantage, no part in the baseline, no row, no label; but counted."""
    config = small_config(selection="mixed", token_reward_model="policy", token_weighting="threshold",
                          head_init="normal", negative_shaping="one_minus_p")
    answers = random_answers(4, seed=13)
    trainer, chosen = selected(config, answers, [1.0, None, 0.0, 0.0])
    assert chosen.advantages == (2.0, None, -1.0, -1.0)  # r = 1, -1, -1: the baseline of three
    assert chosen.kept == (0, 2, 3)
    batch = trainer.shape([chosen])
    for rows in (batch.policy_rows, batch.reward_rows):
        assert len(rows) == 3
        assert rows.positive.tolist() == [True, False, False]
        assert rows.pass_rates.tolist() == pytest.approx([1 / 3] * 3)
    assert batch.policy_rows.coefficient.tolist() == pytest.approx([2.0, -2 / 3, -2 / 3])
    metrics = trainer.update(batch).metrics
    assert metrics["judge/unscorable"] == 0.25
    assert metrics["reward/mean"] == pytest.approx(1 / 3)
    assert metrics["pass_rate"] == pytest.approx(1 / 3)
    assert metrics["groups/kept"] == 1


def test_T13_what_an_unscorable_answer_says_changes_nothing() -> None:
    """Any other text there, or no such member at all: the same weights afterwards, bit for bit."""
    config = small_config(selection="mixed", token_reward_model="policy", token_weighting="threshold",
                          head_init="normal")
    answers, others = random_answers(4, seed=13), random_answers(4, seed=14)
    cases = [
        (answers, [1.0, None, 0.0, 0.0]),
        ([answers[0], others[1], *answers[2:]], [1.0, None, 0.0, 0.0]),
        ([answers[0], *answers[2:]], [1.0, 0.0, 0.0]),
    ]
    after = []
    for trajectories, scores in cases:
        trainer, chosen = selected(config, trajectories, scores)
        trainer.update(trainer.shape([chosen]))
        after.append((state(trainer.policy.model), state(trainer.token_reward_model)))
    assert all(same(a, b) for other in after[1:] for a, b in zip(after[0], other, strict=True))


@pytest.mark.parametrize("scores", [[None, None, None], [1.0, None, None], [None, 0.0, None]])
@pytest.mark.parametrize("selection", ["one_pair", "mixed", "all"])
def test_T13_fewer_than_two_judged_is_not_kept(scores: list[float | None], selection: str) -> None:
    _, chosen = selected(small_config(selection=selection), random_answers(3, seed=15), scores)
    assert chosen.kept == ()
    assert chosen.advantages == (None, None, None)


# T14: the sampler and the scorer are one distribution ----------------------------------------------


def in_one_batch(policy: Policy, answers: list[Trajectory]) -> list[list[float]]:
    rows = collate([(a, True, 1.0, 0.5) for a in answers])
    with torch.no_grad():
        given = policy.logprobs(rows, policy.config.temperature).sampling
    return [given[i][rows.action_mask[i]].tolist() for i in range(len(answers))]


def check_support(policy: Policy, answer: Trajectory) -> list[float]:
    """The recorded set is the most likely tokens, no more than top_k, and as many as top_p needs; returns
    the log-probability of each sampled token, renormalised over its set by hand."""
    c, out = policy.config, []
    with torch.no_grad():
        logits = policy.model(torch.tensor([answer.token_ids])).logits[0].double() / c.temperature
    actions = [t for t, sampled in enumerate(answer.action_mask) if sampled]
    for t, left in zip(actions, answer.support, strict=True):
        law = logits[t - 1].softmax(-1)
        cut = [v for v in range(len(law)) if v not in left]
        assert answer.token_ids[t] in left
        assert float(law[list(left)].min()) >= float(law[cut].max()) - 1e-6
        if c.top_k:
            assert len(left) <= c.top_k
            law = law / law.topk(c.top_k).values.sum()
        if c.top_p < 1:
            mass = float(law[list(left)].sum())
            assert mass >= c.top_p - 1e-5
            assert mass - float(law[list(left)].min()) < c.top_p + 1e-5
        out.append(float(logits[t - 1][answer.token_ids[t]] - logits[t - 1][list(left)].logsumexp(-1)))
    return out


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.9, 0), (1.0, 5), (0.9, 5)])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_T14_recorded_logprobs_are_the_recomputed_ones(
    temperature: float, top_p: float, top_k: int
) -> None:
    """Ragged prompts, early ends, five rows at a time: to 1e-5, from a padded batch and by hand alone."""
    config = small_config(temperature=temperature, top_p=top_p, top_k=top_k, max_new_tokens=8, row_cap=5)
    policy = tiny_policy(config)
    drawn = policy.sample(samples(4), [[10 * i + g for g in range(4)] for i in range(4)])
    answers = [a for group_of in drawn for a in group_of]
    for a, again in zip(answers, in_one_batch(policy, answers), strict=True):
        recorded = [x for x, sampled in zip(a.logprobs, a.action_mask, strict=True) if sampled]
        assert recorded == pytest.approx(again, abs=1e-5)
        alone = by_hand(policy, a, temperature) if a.support is None else check_support(policy, a)
        assert recorded == pytest.approx(alone, abs=1e-5)
        assert all(x == 0 for x, sampled in zip(a.logprobs, a.action_mask, strict=True) if not sampled)
        assert (a.support is None) == (top_p == 1 and top_k == 0)


def test_T14_ends_are_kept_and_counted_by_position() -> None:
    """Both ends occur; a stop token is sampled, belongs to the answer and is its last."""
    config = small_config(max_new_tokens=8, row_cap=5)
    policy = tiny_policy(config)
    drawn = policy.sample(samples(4), [[10 * i + g for g in range(4)] for i in range(4)])
    stops = {tokenizer().convert_tokens_to_ids(s) for s in EARLY_STOPS}
    ends = set()
    for a in (a for group_of in drawn for a in group_of):
        ids = [i for i, sampled in zip(a.token_ids, a.action_mask, strict=True) if sampled]
        assert not stops & set(ids[:-1])
        assert a.finish_reason == ("stop" if ids[-1] in stops else "length")
        assert len(ids) == 8 or a.finish_reason == "stop"
        assert a.usage["completion_tokens"] == len(ids)
        ends.add(a.finish_reason)
    assert ends == {"stop", "length"}


@pytest.mark.parametrize(
    "changes", [{}, {"temperature": 0.3}, {"top_p": 0.9, "top_k": 5, "temperature": 1.7}])
def test_T14_first_ratio_is_one(changes: dict[str, Any]) -> None:
    """What follows for training: before the first update, pi/pi_old = 1 to 1e-5."""
    metrics = small_trainer(small_config(selection="all", **changes), even_first).step().metrics
    assert metrics["ratio/max_deviation"] < 1e-5


def test_T14_the_trainers_stop_tokens_end_an_answer() -> None:
    """A policy that was made without a config samples as the trainer's config says."""
    config = small_config(max_new_tokens=8)
    trainer = OrealTrainer(Policy(tiny_model(), tokenizer()), even_first, samples(4), config)
    stops = {tokenizer().convert_tokens_to_ids(s) for s in EARLY_STOPS}
    answers = [t for g in trainer.rollout(trainer.draw()) for t in g.trajectories]
    assert not any(stops & {i for i, own in zip(t.token_ids, t.action_mask, strict=True) if own} and
                   t.finish_reason == "length" for t in answers)
    assert trainer.policy.logits_chunk == config.logits_chunk


# T15: one seed, one run ----------------------------------------------------------------------------


def history(seed: int, disturb: int = 0) -> tuple[list[dict[str, Any]], dict[str, Tensor], list[Any]]:
    """Metrics of three steps, the weights after them, all answers; between the steps somebody else
    draws `disturb` numbers from the global generators."""
    config = small_config(seed=seed, token_reward_model="policy", token_weighting="threshold",
                          head_init="normal", policy_freeze_steps=1)
    trainer = small_trainer(config, even_first)
    records = []
    for _ in range(3):
        torch.rand(disturb)
        random.random()
        records.append(trainer.step())
    numbers = [{k: v for k, v in r.metrics.items() if not k.startswith(TIMES)} for r in records]
    return numbers, state(trainer.policy.model), [g.trajectories for r in records for g in r.groups]


def test_T15_same_seed_same_run() -> None:
    """Metrics, answers and weights bit for bit, whatever the global generators did in between."""
    one, two = history(0), history(0, disturb=7)
    assert one[0] == two[0]
    assert one[2] == two[2]
    assert same(one[1], two[1])


def test_T15_another_seed_is_another_run() -> None:
    one, two = history(0), history(1)
    assert not same(one[1], two[1])
    assert one[0] != two[0]


def test_T15_noise_belongs_to_the_key() -> None:
    """An answer is decided by its key: alone, in any order, in any batch, at any cap; another key is
    another answer. Members of a group, questions and steps all have keys of their own."""
    model = tiny_model()
    prompts = [[5, 6, 7], [9], [30, 31, 32, 33, 34]]
    rows = [(i % 3, 1000 + i) for i in range(12)]

    def drawn(chosen: list[tuple[int, int]], cap: int) -> list[tuple[int, ...]]:
        params = SamplingParams(1.0, 1.0, 0, 10, (2, 40, 50, 60, 70, 80, 90), cap)
        return [c.token_ids for c in sample(model, prompts, chosen, params)]

    together = drawn(rows, 512)
    assert together == [drawn([row], 512)[0] for row in rows]
    assert together == drawn(rows[::-1], 512)[::-1]
    assert together == drawn(rows, 5)
    assert len({t[:3] for t in together}) == len(rows)
    trainer = small_trainer(small_config(batch_size=4, max_new_tokens=6), even_first)
    keys: list[int] = []
    trainer.rollouts = lambda policy, questions, given: keys.extend(k for few in given for k in few)
    for step in range(3):
        trainer.step_index = step
        trainer.rollout(trainer.draw())
    assert len(set(keys)) == 3 * 4 * 4


# T16: a reward that says nothing -------------------------------------------------------------------


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_T16_constant_reward_is_a_loud_warning(score: float) -> None:
    """Three steps without one group that has both signs: the learner is told, not left to wonder."""
    trainer = small_trainer(small_config(), lambda *_: score)
    trainer.step()
    trainer.step()
    with pytest.warns(RuntimeWarning, match="no group has both right and wrong answers"):
        trainer.step()


def test_T16_a_reward_that_differs_is_no_reason_to_warn() -> None:
    """Two empty steps, one with contrast, two empty ones: warnings are errors here, and none comes."""
    trainer = small_trainer(small_config(batch_size=4, group_size=8), lambda *_: 0.0)
    for judge in (None, None, even_first, None, None):
        trainer.judger.function = judge or (lambda *_: 0.0)
        trainer.step()


def test_T16_partial_scores_without_one_right_answer_warn_too() -> None:
    """Scores of 0 and 0.5 differ, but none reaches positive_threshold: nothing is kept, nothing learned."""
    trainer = small_trainer(small_config(), lambda s, a: 0.5 * even_first(s, a))
    trainer.step()
    trainer.step()
    with pytest.warns(RuntimeWarning, match="no group has both right and wrong answers"):
        trainer.step()


# T17: it learns ------------------------------------------------------------------------------------


def in_favour(_: Sample, answer: Trajectory) -> float:
    """Right: the first sampled id is divisible by four (chance is one in four)."""
    return float(first_token(answer) % 4 == 0)


def chance_of_right(policy: Policy) -> float:
    """Exact: the probability of all right first tokens, a mean over the questions."""
    total = 0.0
    for s in samples(8):
        with torch.no_grad():
            law = policy.model(torch.tensor([policy.encode(s)])).logits[0, -1].softmax(-1)
        total += float(law[::4].sum()) / 8
    return total


def trained(seed: int, control: str) -> tuple[float, float]:
    config = small_config(batch_size=8, group_size=8, max_new_tokens=2, policy_lr=1e-2, policy_lr_end=1e-2,
                          total_steps=30, seed=seed, control=control)
    policy = tiny_policy(config, seed, spread=0.1)
    trainer = OrealTrainer(policy, in_favour, samples(8), config)
    before = chance_of_right(policy)
    assert len(list(trainer)) == 30
    return before, chance_of_right(policy)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_T17_accuracy_rises_and_a_coin_teaches_nothing(seed: int) -> None:
    """From a quarter to well over half in thirty steps; with coin-flip scores it stays where it was."""
    before, after = trained(seed, "none")
    assert before == pytest.approx(0.25, abs=0.05)
    assert after > 0.6
    assert trained(seed, "random")[1] == pytest.approx(before, abs=0.1)


def test_a_group_is_judged_before_it_is_trained_on() -> None:
    """A stage that is called too early names the one that is missing."""
    trainer = small_trainer(small_config(), even_first)
    bare = Group(question(), tuple(random_answers(4, seed=1)))
    with pytest.raises(ValueError, match=r"call trainer\.grade"):
        trainer.select([bare])
    with pytest.raises(ValueError, match=r"call trainer\.select"):
        trainer.shape(trainer.grade([bare]))
    stale = trainer.select(trainer.grade([bare.with_(
        trajectories=tuple(replace(t, policy_version=3) for t in bare.trajectories))]))
    with pytest.raises(ValueError, match=r"call trainer\.rollout"):
        trainer.shape([stale[0].with_(kept=(0,))])
