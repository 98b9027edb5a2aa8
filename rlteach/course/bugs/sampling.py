"""Faults where answers are written: prompts, ends, padding, dice, the order of questions."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import torch

from rlteach import data
from rlteach.course.bugs.scoring import RATIO, SAYS, off, same_distribution
from rlteach.course.planting import Bug, Curve, Patch, hold
from rlteach.course.short_run import FEW, few_answers, short_trainer
from rlteach.policy import sampler
from rlteach.policy.policy import Policy
from rlteach.types import Trajectory

# B5


def prompt_twice(patch: Patch) -> None:
    def fault(original: Any, self: Policy, sample: Any, prompt: list[int], answer: Any) -> Trajectory:
        t, p, n = original(self, sample, prompt, answer), len(prompt), len(prompt) + len(answer.token_ids)
        return replace(
            t, token_ids=(*prompt, *t.token_ids), action_mask=(False,) * p + (True,) * n,
            logprobs=(0.0,) * p + t.logprobs, usage={"prompt_tokens": p, "completion_tokens": n})

    patch.around(Policy, "_trajectory", fault)


def prompt_once() -> None:
    """A trajectory is the prompt once and then the answer, and only the answer is trained."""
    trainer = short_trainer(**FEW)
    for group in trainer.rollout(trainer.draw()):
        prompt = trainer.policy.encode(group.sample)
        for t in group.trajectories:
            again = t.token_ids[len(prompt):][:len(prompt)] == tuple(prompt)
            hold(not again, f"the prompt of {len(prompt)} tokens stands there twice")
            hold(sum(t.action_mask) == len(t.token_ids) - len(prompt), "prompt tokens are trained as answer")


# B10, B17


def with_params(patch: Patch, change: Any) -> None:
    patch.around(sampler, "sample", lambda original, model, prompts, rows, params: original(
        model, prompts, rows, change(params)))


def stop_tokens_not_passed(patch: Patch) -> None:
    with_params(patch, lambda params: replace(params, stop_ids=()))


def nothing_after_the_end() -> None:
    """A stop token is the last token of its answer."""
    trainer = short_trainer(**FEW)
    for t in few_answers(trainer):
        own = [i for i, sampled in zip(t.token_ids, t.action_mask, strict=True) if sampled]
        ends = [k for k, i in enumerate(own) if i in trainer.policy.stop_ids]
        after = len(own) - 1 - ends[0] if ends else 0
        hold(not after, f"{after} tokens stand behind the one that ends the answer")


def budget_too_small(patch: Patch) -> None:
    with_params(patch, lambda params: replace(params, max_new_tokens=params.max_new_tokens // 8))


def answers_fit() -> None:
    """Most answers of the untrained policy end before max_new_tokens."""
    answers = few_answers(short_trainer(batch_size=8, group_size=2))
    cut = sum(t.finish_reason == "length" for t in answers)
    hold(cut < len(answers) / 2, f"{cut} of {len(answers)} answers were cut off")


def padding_attended(patch: Patch) -> None:
    patch.around(sampler, "forward", lambda original, model, ids, mask, cache: original(
        model, ids, torch.ones_like(mask), cache))


# B16


def test_without_template(patch: Patch) -> None:
    def fault(original: Any, self: Policy, samples: Any, keys: Any, *, greedy: bool = False) -> Any:
        asked = copy.copy(self)
        if greedy:
            asked.encode = lambda sample: self.tokenizer.encode(sample.question)
        return original(asked, samples, keys, greedy=greedy)

    patch.around(Policy, "sample", fault)


test_without_template.__test__ = False  # not one of pytest's


def same_prompt() -> None:
    """An exam asks with the same prompt as training does."""
    trainer = short_trainer(**FEW)
    sample = trainer.draw()[0]
    for greedy in (False, True):
        ((answer,),) = trainer.policy.sample([sample], [[0]], greedy=greedy)
        prompt = tuple(trainer.policy.encode(sample))
        hold(answer.token_ids[:len(prompt)] == prompt, f"greedy={greedy}: asked in another form")


# B15, E04, E05


def shared_dice(patch: Patch) -> None:
    patch.replace(sampler, "noise_of", lambda key, count: torch.rand(count, dtype=torch.float64))


def dice_of_its_own() -> None:
    """The same question with the same key gives the same answer."""
    trainer = short_trainer(**FEW, temperature=2.0)
    one, two = ([t.token_ids for t in few_answers(trainer)] for _ in range(2))
    hold(one == two, "the same stage was run twice, and the answers differ: no run can be repeated")


def order_not_seeded(patch: Patch) -> None:
    patch.replace(data, "batch_of", lambda samples, config, step: random.sample(samples, config.batch_size))


def order_from_the_seed() -> None:
    """Two runs with one seed are asked the same questions in the same order."""
    one, two = ([s.id for s in short_trainer(**FEW).draw()] for _ in range(2))
    hold(one == two, "one seed, and two orders of the questions")


def order_repeated(patch: Patch) -> None:
    patch.around(data, "batch_of", lambda original, samples, config, step: original(
        samples, config, step % max(len(samples) // config.batch_size, 1)))


def order_of_each_epoch() -> None:
    """Each epoch has an order of its own."""
    trainer = short_trainer(**FEW)
    samples, epochs = trainer.samples[:12], []
    for first in (0, 4):
        epochs.append([s.id for step in range(first, first + 4)
                       for s in data.batch_of(samples, trainer.config, step)])
    hold(epochs[0] != epochs[1], "the second epoch asks in the order of the first")


BUGS = (
    Bug("prompt_twice", ("B5", "S2.28"), prompt_twice, prompt_once, (
        "`generate` gives prompt and answer back; the prompt is put before it once more, and trained.",
        "The text of the answer is right in every log; only its length tells."),
        Curve("response/length", "is longer by the prompt", lambda h, i: i > h + 8)),
    Bug("stop_tokens_not_passed", ("B10",), stop_tokens_not_passed, nothing_after_the_end, (
        "The ids of the stop tokens are computed and never handed to the sampler.",
        "The right answer stands there, and behind it whatever comes; every answer counts as cut off."),
        Curve("response/truncated", "is 1: no answer ends", lambda h, i: h < 0.2 and i == 1)),
    Bug("budget_too_small", ("B17",), budget_too_small, answers_fit, (
        "The prompt promises 8,192 tokens, and the budget is 1,024 (here: an eighth of what is needed).",
        "Nearly all answers are cut off before they answer, and all of them are wrong."),
        Curve("response/truncated", "is nearly 1, and the answers are short",
              lambda h, i: h < 0.2 and i > 0.8)),
    Bug("padding_attended", ("B10", "S2.32"), padding_attended, same_distribution, (
        "Prompts of different length are padded on the left, and no attention mask says so.",
        "Padding has id 0, a real token: short questions are read with rubbish before them."),
        Curve(RATIO, SAYS, off, settings={"selection": "all"})),
    Bug("test_without_template", ("B16", "S2.35"), test_without_template, same_prompt, (
        "The exam asks with the bare question; training asked in the chat template.",
        "The policy has learned, and the exam says that it has not: nothing else shows it."),
        Curve("dev/accuracy", "is near 0 while the reward is not", lambda h, i: h > 0.25 and i < 0.1)),
    Bug("shared_dice", ("B15", "S2.33", "E04"), shared_dice, dice_of_its_own, (
        "Answers are drawn from one global stream of random numbers that nobody seeds.",
        "Each run looks fine; no two are alike, and what a resumed run does depends on who else drew.")),
    Bug("order_not_seeded", ("B15",), order_not_seeded, order_from_the_seed, (
        "The questions are shuffled, and the shuffle has no seed.",
        "Two settings are compared, and half of the difference is the questions.")),
    Bug("order_repeated", ("E05",), order_repeated, order_of_each_epoch, (
        "Every epoch, and every resumed run, goes through the questions in the order of the first.",
        "The same questions always follow each other, and no curve says so.")),
)
