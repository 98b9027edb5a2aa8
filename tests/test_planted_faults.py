"""Can the tests fail? Faults that systems of this kind really had, planted from outside one at a time:
the test that is named for it must notice. A test that no fault can break proves nothing.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import test_oreal_loop as loop
import test_oreal_mathematics as mathematics
import test_oreal_oracle as against_oracle
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from rlteach.judger.control import control_judgements
from rlteach.oreal import advantage, losses, selection, token_weights
from rlteach.policy import sampler, token_reward_model, truncation
from rlteach.policy.policy import Policy, _Scorer
from rlteach.training import batch, metrics, trainer, update
from rlteach.training.trainer import OrealTrainer
from rlteach.training.update import Learner

NOTICED = (AssertionError, pytest.fail.Exception)  # the second is what pytest.raises and pytest.warns raise
Patch = pytest.MonkeyPatch
TESTS = (loop, mathematics, against_oracle)


def everywhere(patch: Patch, original: Any, fault: Any) -> None:
    """In every module that imported it by name, the library's and the tests'."""
    for name, module in list(sys.modules.items()):
        if name.startswith("rlteach") or module in TESTS or name == "fakes":
            for attribute in [a for a, value in vars(module).items() if value is original]:
                patch.setattr(module, attribute, fault)


def instead(patch: Patch, owner: type | ModuleType, name: str, fault: Callable[..., Any]) -> None:
    """Replace owner.name by fault(original, *arguments)."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *a, **k: fault(original, *a, **k))


# scoring ------------------------------------------------------------------------------------------


def labels_shifted_twice(patch: Patch) -> None:
    instead(patch, _Scorer, "_chunk", lambda original, self, states, targets, *rest: original(
        self, states, targets.roll(-1), *rest))


def temperature_forgotten(patch: Patch) -> None:
    instead(patch, _Scorer, "logprobs", lambda original, self, rows, temperature=1.0: original(self, rows))


def kl_over_the_truncated_set(patch: Patch) -> None:
    def fault(original: Any, *arguments: Any) -> Any:
        given = original(*arguments)
        return replace(given, full=given.sampling)

    instead(patch, _Scorer, "logprobs", fault)


def support_ignored(patch: Patch) -> None:
    everywhere(patch, truncation.support_tensor, lambda *_: None)


def mask_from_token_values(patch: Patch) -> None:
    original = batch.collate

    def fault(*arguments: Any) -> Any:
        rows = original(*arguments)
        return rows.with_(action_mask=rows.action_mask & (rows.token_ids != 0) & (rows.token_ids != 2))

    everywhere(patch, original, fault)


def loss_over_the_whole_sequence(patch: Patch) -> None:
    def fault(original: Any, self: Learner, part: Any, count: Any) -> Any:
        mask = part.attention_mask.bool()
        mask[:, 0] = False
        return original(self, part.with_(action_mask=mask, weights=mask.float()), count)

    instead(patch, Learner, "_terms", fault)


def padding_attended_in_prefill(patch: Patch) -> None:
    instead(patch, sampler, "forward", lambda original, model, ids, mask, cache: original(
        model, ids, torch.ones_like(mask), cache))


def stop_token_not_trained(patch: Patch) -> None:
    def fault(original: Any, *arguments: Any) -> Any:
        answer = original(*arguments)
        last = answer.finish_reason != "stop"
        return replace(answer, action_mask=(*answer.action_mask[:-1], last))

    instead(patch, Policy, "_trajectory", fault)


def noise_from_a_shared_stream(patch: Patch) -> None:
    patch.setattr(sampler, "noise_of", lambda key, count: torch.rand(count, dtype=torch.float64))


def keys_from_the_clock(patch: Patch) -> None:
    patch.setattr(OrealTrainer, "_key", lambda self, *_: random.getrandbits(62))


# advantages and selection -------------------------------------------------------------------------


def baseline_with_oneself(patch: Patch) -> None:
    patch.setattr(advantage, "rloo", lambda r: [x - sum(r) / len(r) for x in r])


def biased_standard_deviation(patch: Patch) -> None:
    instead(patch, advantage, "grpo", lambda original, r: [
        a * ((len(r)) / (len(r) - 1)) ** 0.5 for a in original(r)])


def lone_member_gets_zero(patch: Patch) -> None:
    original = advantage.rloo
    patch.setitem(advantage.ESTIMATORS, "rloo", lambda r: [0.0] if len(r) == 1 else original(r))


def advantage_after_selection(patch: Patch) -> None:
    def fault(original: Any, self: OrealTrainer, group: Any, place: int) -> Any:
        chosen = original(self, group, place)
        few = [1.0 if group.scores[i] == 1 else -1.0 for i in chosen.kept]
        values = dict(zip(chosen.kept, advantage.rloo(few), strict=True))
        return chosen.with_(advantages=tuple(values.get(i) for i in range(len(group.trajectories))))

    instead(patch, OrealTrainer, "_select_one", fault)


def unscorable_counted_as_wrong(patch: Patch) -> None:
    everywhere(patch, trainer.positives, lambda group, threshold: [
        s is not None and s >= threshold for s in group.scores])


def groups_without_contrast_kept(patch: Patch) -> None:
    instead(patch, selection, "select", lambda original, positive, rule, rng: original(positive, "all", rng))


def step_with_nothing_kept(patch: Patch) -> None:
    def fault(original: Any, self: Learner, rows: Any, *rest: Any, **more: Any) -> Any:
        if not len(rows):
            for p in self.policy.model.parameters():
                p.grad = torch.zeros_like(p)
            self.optimizer.step()
        return original(self, rows, *rest, **more)

    instead(patch, Learner, "update_policy", fault)


# the terms ----------------------------------------------------------------------------------------


def shaped_by_p(patch: Patch) -> None:
    instead(patch, losses, "coefficients", lambda original, a, positive, rates, **switches: original(
        a, positive, 1 - rates, **switches))


def probability_instead_of_its_log(patch: Patch) -> None:
    instead(patch, losses, "positive_term", lambda original, logp, *rest: original(logp.exp(), *rest))


def negatives_pushed_up(patch: Patch) -> None:
    instead(patch, losses, "negative_term", lambda original, *arguments: -original(*arguments))


def negative_ratio_without_gradient(patch: Patch) -> None:
    instead(patch, losses, "negative_term", lambda original, logp, *rest: original(logp.detach(), *rest))


def kl_with_the_wrong_sign(patch: Patch) -> None:
    instead(patch, losses, "kl_term", lambda original, *arguments: -original(*arguments))


def kl_term_subtracted(patch: Patch) -> None:
    instead(patch, losses, "policy_loss", lambda original, *arguments: original(*arguments) * torch.tensor(
        [1.0, 1.0, -1.0]))


def kl_with_exchanged_roles(patch: Patch) -> None:
    instead(patch, losses, "kl_term", lambda original, mine, theirs, *rest: original(theirs, mine, *rest))


def k3_without_minus_one(patch: Patch) -> None:
    instead(patch, losses, "kl_term", lambda original, mine, theirs, mask, estimator: original(
        mine, theirs, mask, estimator) + (mask.sum() if estimator == "k3" else 0))


def padding_counted_as_tokens(patch: Patch) -> None:
    instead(patch, losses.Normalizers, "count", lambda original, mask, *rest: original(
        torch.ones_like(mask), *rest))


def mean_of_micro_batch_means(patch: Patch) -> None:
    sizes = [1]

    def remember(original: Any, self: Learner, rows: Any, *rest: Any, **more: Any) -> Any:
        sizes.append(-(-len(rows) // self.config.micro_batch))
        return original(self, rows, *rest, **more)

    def fault(original: Any, self: Learner, part: Any, count: Any) -> Any:
        own = losses.Normalizers.count(part.action_mask, part.positive, self.config.loss_norm)
        terms, measured = original(self, part, own)
        return terms / sizes[-1], measured

    instead(patch, Learner, "update_policy", remember)
    instead(patch, Learner, "_terms", fault)


# token weights and their model ----------------------------------------------------------------------


def weights_of_the_other_class(patch: Patch) -> None:
    original = token_weights.token_weights
    everywhere(patch, original, lambda scores, mask, positive, **switches: original(
        scores, mask, ~positive, **switches))


def weights_not_clamped(patch: Patch) -> None:
    patch.setattr(token_weights, "threshold_rescale", lambda x, threshold: (x - threshold) / (1 - threshold))


def top_k_rounded_up(patch: Patch) -> None:
    original = token_weights.topk_rescale
    patch.setattr(token_weights, "topk_rescale", lambda x, mask, ratio: original(
        x, mask, -(-ratio * x.shape[1] // 1) / x.shape[1]))


def running_mean_over_padding(patch: Patch) -> None:
    patch.setattr(token_weights, "running_mean", lambda scores, mask: scores.cumsum(-1) * mask / (
        torch.arange(scores.shape[1]) + 1))


def cross_entropy_of_each_token(patch: Patch) -> None:
    def fault(scores: Any, mask: Any, positive: Any) -> Any:
        labels = positive[:, None].to(scores.dtype).expand_as(scores)
        each = binary_cross_entropy_with_logits(scores, labels, reduction="none")
        return (each * mask).sum(-1) / mask.sum(-1)

    everywhere(patch, token_weights.token_reward_loss, fault)


def labels_of_the_token_model_turned_round(patch: Patch) -> None:
    original = token_weights.token_reward_loss
    everywhere(patch, original, lambda scores, mask, positive: original(scores, mask, ~positive))


def classes_not_balanced(patch: Patch) -> None:
    original = update.class_weights
    everywhere(patch, original, lambda positive, balance: original(positive, False))


# models and loop ------------------------------------------------------------------------------------


def reference_is_the_policy(patch: Patch) -> None:
    patch.setattr(Policy, "frozen_copy", lambda self: self)


def token_model_shares_the_policys_body(patch: Patch) -> None:
    patch.setattr(token_reward_model, "copy", SimpleNamespace(deepcopy=lambda body: body))


def policy_trained_while_frozen(patch: Patch) -> None:
    def fault(original: Any, self: Learner, *arguments: Any) -> Any:
        self.config = self.config.replace(policy_freeze_steps=0)
        return original(self, *arguments)

    instead(patch, Learner, "update", fault)


def step_never_taken(patch: Patch) -> None:
    patch.setattr(Learner, "_step", lambda *_: 0.0)


def warning_swallowed(patch: Patch) -> None:
    everywhere(patch, metrics.warn_if_flat, lambda *_: None)


def scores_dealt_to_other_answers(patch: Patch) -> None:
    everywhere(patch, control_judgements, lambda groups, control, rng: control_judgements(
        copy.copy(groups), "shuffled", rng))


FAULTS: list[tuple[Callable[[Patch], None], Callable[..., None], tuple[Any, ...]]] = [
    (labels_shifted_twice, loop.test_T05_logprobs_are_those_gathered_by_hand, (1.0,)),
    (labels_shifted_twice, loop.test_T05_double_shift_canary, ()),
    (labels_shifted_twice, loop.test_T05_loss_is_the_sum_of_hand_gathered_logprobs, ()),
    (temperature_forgotten, loop.test_T14_recorded_logprobs_are_the_recomputed_ones, (0.3, 1.0, 0)),
    (temperature_forgotten, loop.test_T14_first_ratio_is_one, ({"temperature": 0.3},)),
    (temperature_forgotten, against_oracle.test_random_batches_agree_with_the_oracle, (0,)),
    (support_ignored, loop.test_T14_recorded_logprobs_are_the_recomputed_ones, (1.0, 0.9, 0)),
    (support_ignored, loop.test_T14_recorded_logprobs_are_the_recomputed_ones, (1.0, 1.0, 5)),
    (kl_over_the_truncated_set, against_oracle.test_random_batches_agree_with_the_oracle, (0,)),
    (mask_from_token_values, loop.test_T05_logprobs_are_those_gathered_by_hand, (1.0,)),
    (loss_over_the_whole_sequence, loop.test_T06_prompt_and_padding_get_no_gradient, ()),
    (padding_attended_in_prefill, loop.test_T06_padding_on_the_left_changes_no_answer, ()),
    (stop_token_not_trained, loop.test_T14_ends_are_kept_and_counted_by_position, ()),
    (noise_from_a_shared_stream, loop.test_T15_noise_belongs_to_the_key, ()),
    (noise_from_a_shared_stream, loop.test_T15_same_seed_same_run, ()),
    (keys_from_the_clock, loop.test_T15_same_seed_same_run, ()),
    (baseline_with_oneself, mathematics.test_T02_rloo_closed_form, (4,)),
    (biased_standard_deviation, mathematics.test_T02_grpo_by_hand, ()),
    (lone_member_gets_zero, mathematics.test_T02_a_baseline_needs_another_member, ("rloo",)),
    (advantage_after_selection, mathematics.test_T02_baseline_is_the_whole_groups, ()),
    (advantage_after_selection, against_oracle.test_random_batches_agree_with_the_oracle, (0,)),
    (unscorable_counted_as_wrong, loop.test_T13_unscorable_is_no_number, ()),
    (unscorable_counted_as_wrong, loop.test_T13_what_an_unscorable_answer_says_changes_nothing, ()),
    (unscorable_counted_as_wrong, against_oracle.test_random_batches_agree_with_the_oracle, (0,)),
    (groups_without_contrast_kept, loop.test_T10_no_contrast_no_step, ("all_wrong", "one_pair")),
    (step_with_nothing_kept, loop.test_T10_no_contrast_no_step, ("all_right", "one_pair")),
    (shaped_by_p, mathematics.test_T01_wrong_answers_are_shaped_by_one_minus_p, ()),
    (probability_instead_of_its_log, mathematics.test_T01_cloning_right_answers_ends_at_the_best_of_n, ()),
    (negatives_pushed_up, mathematics.test_T07_gradient_of_weighted_cross_entropy_is_the_policy_gradient, ()),
    (negatives_pushed_up, mathematics.test_T07_a_step_makes_right_answers_likelier_and_wrong_ones_less, ()),
    (negative_ratio_without_gradient, against_oracle.test_random_batches_agree_with_the_oracle, (0,)),
    (kl_with_the_wrong_sign, mathematics.test_T08_values_of_the_estimators, ()),
    (kl_term_subtracted,
     mathematics.test_T08_a_run_of_nothing_but_kl_comes_back_to_the_reference, ("k3",)),
    (kl_with_the_wrong_sign, mathematics.test_T08_a_step_down_the_kl_reduces_it, ("k2",)),
    (kl_with_exchanged_roles, mathematics.test_T08_what_each_estimator_pulls_towards,
     ("k3", mathematics.forward_kl)),
    (k3_without_minus_one, mathematics.test_T08_values_of_the_estimators, ()),
    (padding_counted_as_tokens, loop.test_T06_padding_on_the_right_changes_nothing, ("token_class",)),
    (mean_of_micro_batch_means, loop.test_T06_micro_batches_and_chunks_change_nothing, ("token_class",)),
    (weights_of_the_other_class, mathematics.test_T03_limits_of_the_token_weights, ()),
    (weights_not_clamped, mathematics.test_T03_threshold_one_half_is_equation_10, ()),
    (top_k_rounded_up, mathematics.test_T03_top_k_keeps_the_floor_and_stretches_it, ()),
    (running_mean_over_padding, mathematics.test_T04_running_mean_is_a_loop, ()),
    (cross_entropy_of_each_token, loop.test_T09_loss_is_of_the_mean_over_the_answer, ()),
    (labels_of_the_token_model_turned_round, loop.test_T09_separates_a_pair_with_a_common_beginning, ()),
    (classes_not_balanced, against_oracle.test_random_batches_agree_with_the_oracle, (0,)),
    (reference_is_the_policy, loop.test_T12_reference_has_its_own_weights_and_keeps_them, ()),
    (token_model_shares_the_policys_body, loop.test_T11_frozen_policy_rests_while_the_token_model_learns, ()),
    (policy_trained_while_frozen, loop.test_T11_frozen_policy_rests_while_the_token_model_learns, ()),
    (warning_swallowed, loop.test_T16_constant_reward_is_a_loud_warning, (1.0,)),
    (scores_dealt_to_other_answers, loop.test_T17_accuracy_rises_and_a_coin_teaches_nothing, (0,)),
    (step_never_taken, loop.test_T17_accuracy_rises_and_a_coin_teaches_nothing, (0,)),
    (step_never_taken, loop.test_T11_frozen_policy_rests_while_the_token_model_learns, ()),
]


@pytest.mark.parametrize(
    ("plant", "test", "arguments"), FAULTS, ids=[f"{f.__name__}-{t.__name__[5:]}" for f, t, _ in FAULTS])
def test_the_fault_is_noticed(
    plant: Callable[[Patch], None], test: Callable[..., None], arguments: tuple[Any, ...],
    monkeypatch: Patch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(NOTICED):
        test(*arguments)


def test_every_test_of_the_design_has_noticed_a_fault() -> None:
    """T1 ... T17, each by a fault of its own kind."""
    names = {test.__name__[5:8] for _, test, _ in FAULTS}
    assert names >= {f"T{i:02}" for i in range(1, 18)}
