"""What the doctor asks the models themselves: are they two, did one move, are sampled tokens scored alike?

Weights are read and a few answers are sampled; nothing is trained, and no generator is touched.
"""

from __future__ import annotations

import math

import torch

from rlteach.judger.compose import RandomJudger
from rlteach.training.batch import collate
from rlteach.training.keys import noise_key
from rlteach.training.plugins import walk
from rlteach.training.trainer import OrealTrainer, sample_groups
from rlteach.types import Trajectory
from rlteach.views.case import Case, Finding
from rlteach.views.facts import LARGER, uniform
from rlteach.views.symptoms import FLAT, FLAT_SMALL, pct

QUESTIONS, ANSWERS = 4, 2  # sampled to be scored again: the cost of a small part of a step


def shared(trainer: OrealTrainer) -> str:
    """What policy and reference have in common that they must not; empty when they are two models."""
    policy, reference = trainer.policy.model, getattr(trainer.reference, "model", None)
    if reference is None:  # somebody's own kind of reference
        return ""
    if policy is reference:
        return "trainer.reference has the very model of trainer.policy"
    own = {p.data_ptr() for p in policy.parameters() if p.numel()}
    common = [name for name, p in reference.named_parameters() if p.numel() and p.data_ptr() in own]
    return f"{len(common)} of its weights are the policy's, {common[0]} first" if common else ""


def examine(case: Case, trainer: OrealTrainer, *, busy: bool) -> None:
    """Fill in what the models say. busy: a thread may be training them, so no answer is sampled."""
    if not case.shared and any(m.get("grad_norm/policy") is not None for m in case.metrics.values()):
        case.moved = distance(trainer)
        if case.moved == 0:
            case.unmoved = "all of them equal the reference's, bit for bit"
    answers: list[Trajectory] = []
    try:
        if not busy:
            answers = _sampled(trainer)
            case.rescored = deviation(trainer, answers)
        if not case.steps:
            case.waiting = case.waiting or _away(trainer)
    except Exception as error:  # whatever a model that is ill, or somebody's judger, may raise
        case.notes.append(f"not everything could be tried: {type(error).__name__}: {error}")
    if not case.steps:
        case.beforehand = [f for f in (_coin(trainer), _cut(trainer, answers), _contrast(trainer)) if f]


@torch.no_grad()
def distance(trainer: OrealTrainer) -> float | None:
    """|policy - reference| / |reference| over all weights; None when they are not of one kind."""
    mine, theirs = trainer.policy.model.state_dict(), trainer.reference.model.state_dict()
    if {n: v.shape for n, v in mine.items()} != {n: v.shape for n, v in theirs.items()}:
        return None
    apart = sum(float((mine[n].float() - theirs[n].to(mine[n].device).float()).square().sum()) for n in mine)
    return math.sqrt(apart / max(sum(float(v.float().square().sum()) for v in theirs.values()), 1e-30))


def _sampled(trainer: OrealTrainer) -> list[Trajectory]:
    samples = list({s.id: s for s in trainer.samples[:100]}.values())[:QUESTIONS]
    keys = [[noise_key("doctor", s.id, i) for i in range(ANSWERS)] for s in samples]
    return [t for group in trainer.policy.sample(samples, keys) for t in group]


@torch.no_grad()
def deviation(trainer: OrealTrainer, answers: list[Trajectory]) -> float:
    """The largest |ratio - 1| of answers that the policy has just given; -1 when there are none."""
    rows = collate([(t, True, 0.0, 0.0) for t in answers], trainer.policy.model.device)
    if not bool(rows.action_mask.any()):
        return -1.0
    scored = trainer.policy.logprobs(rows, trainer.config.temperature).sampling
    off = float((torch.exp(scored - rows.sampled_logprobs) - 1).abs()[rows.action_mask].max())
    return math.inf if math.isnan(off) else off


def _away(trainer: OrealTrainer) -> str | None:
    """Why a judge of the trainer cannot be reached, if there is one that can be asked."""
    causes = (part.alive() for part in walk(trainer.judger) if hasattr(part, "alive"))
    return next((str(cause) for cause in causes if cause is not None), None)


def _coin(trainer: OrealTrainer) -> Finding | None:
    if not isinstance(trainer.judger, RandomJudger):
        return None
    return Finding("random_reward", "the reward does not depend on the answer: a coin gives the scores",
                   "the judger is a RandomJudger", "take a judger that looks at the answer: rl.RuleJudger()")


def _cut(trainer: OrealTrainer, answers: list[Trajectory]) -> Finding | None:
    cut = sum(t.finish_reason == "length" for t in answers)
    if trainer.rollouts is not sample_groups or len(answers) < QUESTIONS * ANSWERS or cut < len(answers):
        return None
    limit = trainer.config.max_new_tokens
    return Finding("truncated", "answers are cut off before they end",
                   f"all {cut} answers that were tried reached max_new_tokens={limit}",
                   "raise max_new_tokens, or see whether stop_tokens and the chat template fit the model")


def _contrast(trainer: OrealTrainer) -> Finding | None:
    """What the pass rates of the questions let expect."""
    rates, size = [s.pass_rate for s in trainer.samples], trainer.config.group_size
    if not rates or any(p is None for p in rates):
        return None
    flat, larger = (sum(uniform(p, n) for p in rates) / len(rates) for n in (size, LARGER * size))
    seen = f"by the pass rates of the {len(rates)} questions, {pct(flat)} of the groups have no contrast"
    if flat >= FLAT:
        cause, how, other = ("all_right", "easy", "harder") if sum(rates) > len(rates) / 2 else (
            "all_wrong", "hard", "easier")
        return Finding(cause, f"the questions are too {how} for groups with right and wrong answers", seen,
                       f"take {other} questions (difficulty_bins chooses by pass rate)")
    if flat >= FLAT_SMALL and larger <= 0.6 * flat:
        return Finding("group_too_small", "the groups are too small to hold right and wrong answers",
                       f"{seen}, with {LARGER * size} answers {pct(larger)}",
                       f"raise group_size (it is {size})")
    return None
