"""Can the tests fail? Faults that systems of this kind really had, planted from outside one at a time:
the test that is named for it must notice. A test that no fault can break proves nothing.

Faults with a source row come from the museum by name; the others are planted here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import test_oreal_loop as loop
import test_oreal_mathematics as mathematics
import test_oreal_oracle as against_oracle
import torch

from rlteach.course import museum
from rlteach.course.planting import Patch, planted
from rlteach.oreal import advantage, losses, selection, token_weights
from rlteach.policy import token_reward_model
from rlteach.policy.policy import Policy, _Scorer
from rlteach.training import metrics, update
from rlteach.training.trainer import OrealTrainer
from rlteach.training.update import Learner

NOTICED = (AssertionError, pytest.fail.Exception)  # the second is what pytest.raises and pytest.warns raise

# scoring ------------------------------------------------------------------------------------------


def kl_over_the_truncated_set(patch: Patch) -> None:
    def fault(original: Any, *arguments: Any) -> Any:
        given = original(*arguments)
        return replace(given, full=given.sampling)

    patch.around(_Scorer, "logprobs", fault)


def loss_over_the_whole_sequence(patch: Patch) -> None:
    def fault(original: Any, self: Learner, part: Any, count: Any) -> Any:
        mask = part.attention_mask.bool()
        mask[:, 0] = False
        return original(self, part.with_(action_mask=mask, weights=mask.float()), count)

    patch.around(Learner, "_terms", fault)


def stop_token_not_trained(patch: Patch) -> None:
    def fault(original: Any, *arguments: Any) -> Any:
        answer = original(*arguments)
        last = answer.finish_reason != "stop"
        return replace(answer, action_mask=(*answer.action_mask[:-1], last))

    patch.around(Policy, "_trajectory", fault)


def keys_from_the_clock(patch: Patch) -> None:
    patch.replace(OrealTrainer, "_key", lambda self, *_: random.getrandbits(62))


# advantages and selection -------------------------------------------------------------------------


def baseline_with_oneself(patch: Patch) -> None:
    patch.replace(advantage, "rloo", lambda r: [x - sum(r) / len(r) for x in r])


def biased_standard_deviation(patch: Patch) -> None:
    patch.around(advantage, "grpo", lambda original, r: [
        a * ((len(r)) / (len(r) - 1)) ** 0.5 for a in original(r)])


def lone_member_gets_zero(patch: Patch) -> None:
    original = advantage.rloo
    patch.replace(advantage.ESTIMATORS, "rloo", lambda r: [0.0] if len(r) == 1 else original(r))


def advantage_after_selection(patch: Patch) -> None:
    def fault(original: Any, self: OrealTrainer, group: Any, place: int) -> Any:
        chosen = original(self, group, place)
        few = [1.0 if group.scores[i] == 1 else -1.0 for i in chosen.kept]
        values = dict(zip(chosen.kept, advantage.rloo(few), strict=True))
        return chosen.with_(advantages=tuple(values.get(i) for i in range(len(group.trajectories))))

    patch.around(OrealTrainer, "_select_one", fault)


def groups_without_contrast_kept(patch: Patch) -> None:
    patch.around(selection, "select", lambda original, positive, rule, rng: original(positive, "all", rng))


def step_with_nothing_kept(patch: Patch) -> None:
    def fault(original: Any, self: Learner, rows: Any, *rest: Any, **more: Any) -> Any:
        if not len(rows):
            for p in self.policy.model.parameters():
                p.grad = torch.zeros_like(p)
            self.optimizer.step()
        return original(self, rows, *rest, **more)

    patch.around(Learner, "update_policy", fault)


# the terms ----------------------------------------------------------------------------------------


def shaped_by_p(patch: Patch) -> None:
    patch.around(losses, "coefficients", lambda original, a, positive, rates, **switches: original(
        a, positive, 1 - rates, **switches))


def probability_instead_of_its_log(patch: Patch) -> None:
    patch.around(losses, "positive_term", lambda original, logp, *rest: original(logp.exp(), *rest))


def negatives_pushed_up(patch: Patch) -> None:
    patch.around(losses, "negative_term", lambda original, *arguments: -original(*arguments))


def negative_ratio_without_gradient(patch: Patch) -> None:
    patch.around(losses, "negative_term", lambda original, logp, *rest: original(logp.detach(), *rest))


def kl_with_the_wrong_sign(patch: Patch) -> None:
    patch.around(losses, "kl_term", lambda original, *arguments: -original(*arguments))


def kl_with_exchanged_roles(patch: Patch) -> None:
    patch.around(losses, "kl_term", lambda original, mine, theirs, *rest: original(theirs, mine, *rest))


def k3_without_minus_one(patch: Patch) -> None:
    patch.around(losses, "kl_term", lambda original, mine, theirs, mask, estimator: original(
        mine, theirs, mask, estimator) + (mask.sum() if estimator == "k3" else 0))


def padding_counted_as_tokens(patch: Patch) -> None:
    patch.around(losses.Normalizers, "count", lambda original, mask, *rest: original(
        torch.ones_like(mask), *rest))


# token weights and their model ----------------------------------------------------------------------


def weights_of_the_other_class(patch: Patch) -> None:
    patch.around(token_weights, "token_weights", lambda original, scores, mask, positive, **named: original(
        scores, mask, ~positive, **named))


def weights_not_clamped(patch: Patch) -> None:
    patch.replace(token_weights, "threshold_rescale", lambda x, threshold: (x - threshold) / (1 - threshold))


def top_k_rounded_up(patch: Patch) -> None:
    patch.around(token_weights, "topk_rescale", lambda original, x, mask, ratio: original(
        x, mask, -(-ratio * x.shape[1] // 1) / x.shape[1]))


def running_mean_over_padding(patch: Patch) -> None:
    patch.replace(token_weights, "running_mean", lambda scores, mask: scores.cumsum(-1) * mask / (
        torch.arange(scores.shape[1]) + 1))


def labels_of_the_token_model_turned_round(patch: Patch) -> None:
    patch.around(token_weights, "token_reward_loss", lambda original, scores, mask, positive: original(
        scores, mask, ~positive))


def classes_not_balanced(patch: Patch) -> None:
    patch.around(update, "class_weights", lambda original, positive, balance: original(positive, False))


# models and loop ------------------------------------------------------------------------------------


def token_model_shares_the_policys_body(patch: Patch) -> None:
    patch.replace(token_reward_model, "copy", SimpleNamespace(deepcopy=lambda body: body))


def policy_trained_while_frozen(patch: Patch) -> None:
    def fault(original: Any, self: Learner, *arguments: Any) -> Any:
        self.config = self.config.replace(policy_freeze_steps=0)
        return original(self, *arguments)

    patch.around(Learner, "update", fault)


def step_never_taken(patch: Patch) -> None:
    patch.replace(Learner, "_step", lambda *_: 0.0)


def warning_swallowed(patch: Patch) -> None:
    patch.replace(metrics, "warn_if_flat", lambda *_: None)


FAULTS: list[tuple[str | Callable[[Patch], None], Callable[..., None], tuple[Any, ...]]] = [
    ("double_shift", loop.test_T05_logprobs_are_those_gathered_by_hand, (1.0,)),
    ("double_shift", loop.test_T05_double_shift_canary, ()),
    ("double_shift", loop.test_T05_loss_is_the_sum_of_hand_gathered_logprobs, ()),
    ("temperature_forgotten", loop.test_T14_recorded_logprobs_are_the_recomputed_ones, (0.3, 1.0, 0)),
    ("temperature_forgotten", loop.test_T14_first_ratio_is_one, ({"temperature": 0.3},)),
    ("temperature_forgotten", against_oracle.test_random_batches_agree_with_the_oracle, (0,)),
    ("top_p_forgotten", loop.test_T14_recorded_logprobs_are_the_recomputed_ones, (1.0, 0.9, 0)),
    ("top_p_forgotten", loop.test_T14_recorded_logprobs_are_the_recomputed_ones, (1.0, 1.0, 5)),
    (kl_over_the_truncated_set, against_oracle.test_random_batches_agree_with_the_oracle, (0,)),
    ("mask_from_values", loop.test_T05_logprobs_are_those_gathered_by_hand, (1.0,)),
    (loss_over_the_whole_sequence, loop.test_T06_prompt_and_padding_get_no_gradient, ()),
    ("padding_attended", loop.test_T06_padding_on_the_left_changes_no_answer, ()),
    (stop_token_not_trained, loop.test_T14_ends_are_kept_and_counted_by_position, ()),
    ("shared_dice", loop.test_T15_noise_belongs_to_the_key, ()),
    ("shared_dice", loop.test_T15_same_seed_same_run, ()),
    (keys_from_the_clock, loop.test_T15_same_seed_same_run, ()),
    (baseline_with_oneself, mathematics.test_T02_rloo_closed_form, (4,)),
    (biased_standard_deviation, mathematics.test_T02_grpo_by_hand, ()),
    (lone_member_gets_zero, mathematics.test_T02_a_baseline_needs_another_member, ("rloo",)),
    (advantage_after_selection, mathematics.test_T02_baseline_is_the_whole_groups, ()),
    (advantage_after_selection, against_oracle.test_random_batches_agree_with_the_oracle, (0,)),
    ("unscorable_is_wrong", loop.test_T13_unscorable_is_no_number, ()),
    ("unscorable_is_wrong", loop.test_T13_what_an_unscorable_answer_says_changes_nothing, ()),
    ("unscorable_is_wrong", against_oracle.test_random_batches_agree_with_the_oracle, (0,)),
    (groups_without_contrast_kept, loop.test_T10_no_contrast_no_step, ("all_wrong", "one_pair")),
    (step_with_nothing_kept, loop.test_T10_no_contrast_no_step, ("all_right", "one_pair")),
    (shaped_by_p, mathematics.test_T01_wrong_answers_are_shaped_by_one_minus_p, ()),
    (probability_instead_of_its_log, mathematics.test_T01_cloning_right_answers_ends_at_the_best_of_n, ()),
    (negatives_pushed_up, mathematics.test_T07_gradient_of_weighted_cross_entropy_is_the_policy_gradient, ()),
    (negatives_pushed_up, mathematics.test_T07_a_step_makes_right_answers_likelier_and_wrong_ones_less, ()),
    (negative_ratio_without_gradient, against_oracle.test_random_batches_agree_with_the_oracle, (0,)),
    (kl_with_the_wrong_sign, mathematics.test_T08_values_of_the_estimators, ()),
    ("kl_pushes_away",
     mathematics.test_T08_a_run_of_nothing_but_kl_comes_back_to_the_reference, ("k3",)),
    (kl_with_the_wrong_sign, mathematics.test_T08_a_step_down_the_kl_reduces_it, ("k2",)),
    (kl_with_exchanged_roles, mathematics.test_T08_what_each_estimator_pulls_towards,
     ("k3", mathematics.forward_kl)),
    (k3_without_minus_one, mathematics.test_T08_values_of_the_estimators, ()),
    (padding_counted_as_tokens, loop.test_T06_padding_on_the_right_changes_nothing, ("token_class",)),
    ("mean_of_means", loop.test_T06_micro_batches_and_chunks_change_nothing, ("token_class",)),
    (weights_of_the_other_class, mathematics.test_T03_limits_of_the_token_weights, ()),
    (weights_not_clamped, mathematics.test_T03_threshold_one_half_is_equation_10, ()),
    (top_k_rounded_up, mathematics.test_T03_top_k_keeps_the_floor_and_stretches_it, ()),
    (running_mean_over_padding, mathematics.test_T04_running_mean_is_a_loop, ()),
    ("loss_of_each_token", loop.test_T09_loss_is_of_the_mean_over_the_answer, ()),
    (labels_of_the_token_model_turned_round, loop.test_T09_separates_a_pair_with_a_common_beginning, ()),
    (classes_not_balanced, against_oracle.test_random_batches_agree_with_the_oracle, (0,)),
    ("reference_is_the_policy", loop.test_T12_reference_has_its_own_weights_and_keeps_them, ()),
    (token_model_shares_the_policys_body, loop.test_T11_frozen_policy_rests_while_the_token_model_learns, ()),
    (policy_trained_while_frozen, loop.test_T11_frozen_policy_rests_while_the_token_model_learns, ()),
    (warning_swallowed, loop.test_T16_constant_reward_is_a_loud_warning, (1.0,)),
    ("rewards_reordered", loop.test_T17_accuracy_rises_and_a_coin_teaches_nothing, (0,)),
    (step_never_taken, loop.test_T17_accuracy_rises_and_a_coin_teaches_nothing, (0,)),
    (step_never_taken, loop.test_T11_frozen_policy_rests_while_the_token_model_learns, ()),
]


@pytest.mark.parametrize(
    ("plant", "test", "arguments"), FAULTS,
    ids=[f"{getattr(f, '__name__', f)}-{t.__name__[5:]}" for f, t, _ in FAULTS])
def test_the_fault_is_noticed(
    plant: str | Callable[[Patch], None], test: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    there = museum.bug(plant) if isinstance(plant, str) else planted(plant)
    with there, pytest.raises(NOTICED):
        test(*arguments)


def test_every_test_of_the_design_has_noticed_a_fault() -> None:
    """T1 ... T17, each by a fault of its own kind."""
    names = {test.__name__[5:8] for _, test, _ in FAULTS}
    assert names >= {f"T{i:02}" for i in range(1, 18)}
