"""How well does the token-level reward model know right from wrong, and where the wrong begins?

    python benchmarks/token_reward.py [RECIPE ...] [--seed N] [--group-size G] [--out FILE]

Each recipe trains the token-level model for its freeze steps on rollouts of the untrained policy,
then new answers to unseen questions (dev) are sampled and scored:
  auc         within each level: P(score of a right answer > score of a wrong one)
  found       how often the first wrong token is among the 10 % lowest scores of its answer
  chance      how often a token picked at random would be
Docs: docs/token-reward.md.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from rlteach.config import Config
from rlteach.course.addition import first_wrong, operands
from rlteach.data import load_samples
from rlteach.judger.rule import RuleJudger
from rlteach.oreal.token_weights import running_mean, sequence_score
from rlteach.policy.policy import Policy
from rlteach.policy.token_reward_model import token_scores
from rlteach.training.batch import collate
from rlteach.training.trainer import OrealTrainer
from rlteach.types import Group, Trajectory

SLOW_BODY = {"token_reward_lr": 1e-4, "token_reward_lr_end": 5e-5, "head_lr_factor": 500.0}
PLAIN = {"token_reward_refit": False, "token_reward_lr": 5e-4, "token_reward_lr_end": 1e-4, "head_lr_factor": 10.0}
OWN = {"token_reward_model": "policy"}
RECIPES: dict[str, dict[str, Any]] = {
    # the body is a copy of the untrained policy, as in the paper
    "own-paper": {**PLAIN, **OWN, "token_reward_lr": 1e-4, "head_lr_factor": 1.0, "token_reward_rows": "kept",
                  "token_reward_balance": False},
    "own-all-rows": {**PLAIN, **OWN, "token_reward_lr": 1e-4, "head_lr_factor": 1.0},
    "own-fast-head": {**PLAIN, **OWN},
    "own-slow-body": {**PLAIN, **OWN, **SLOW_BODY},
    "own-refit": OWN,
    # warm start: the body is tiny-checker, the same model trained on
    "checker-fast-head": PLAIN,
    "checker-lr-1e-3": {**PLAIN, "token_reward_lr": 1e-3},
    "checker-lr-3e-3": {**PLAIN, "token_reward_lr": 3e-3},
    "checker-head-100": {**PLAIN, "head_lr_factor": 100.0},
    "checker-slow-body": {**PLAIN, **SLOW_BODY},
    "checker-three-passes": {**PLAIN, **SLOW_BODY, "token_reward_epochs": 3},
    "checker-refit": {},  # the preset tiny-oreal
}


def measure(recipe: str, seed: int, group_size: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    changes = {"seed": seed, "eval_interval": 0, "group_size": group_size, **RECIPES[recipe]}
    config = Config.preset("tiny-oreal", **changes)
    policy = Policy.load(config=config)
    trainer = OrealTrainer(policy, RuleJudger(), load_samples(config.train_data), config)
    began = time.perf_counter()
    for step in trainer:
        if step.index == config.policy_freeze_steps:
            break
    seconds = time.perf_counter() - began
    last = trainer.history[-5:]
    return {"recipe": recipe, "seed": seed, "steps": config.policy_freeze_steps, "seconds": round(seconds, 1),
            "rollouts": config.policy_freeze_steps * config.batch_size * config.group_size,
            "bce": round(sum(r.metrics["loss/token_reward"] for r in last) / len(last), 3),
            **quality(trainer)}


def quality(trainer: OrealTrainer, answers: int = 8) -> dict[str, Any]:
    """auc by level, found and chance, on dev questions that were never trained on."""
    samples = load_samples(trainer.config.dev_data)
    keys = [[10**9 + i * answers + k for k in range(answers)] for i in range(len(samples))]
    members, levels = [], []
    for sample, trajectories in zip(samples, trainer.policy.sample(samples, keys), strict=True):
        for t, j in zip(trajectories, RuleJudger().grade(Group(sample, trajectories)), strict=True):
            members.append((t, j.score == 1.0, 0.0, 0.0))
            levels.append(sample.extra["level"])
    rows = collate(members)
    scores = torch.cat([_pad(token_scores(trainer.token_reward_model, part), rows.token_ids.shape[1])
                        for part in rows.micro_batches(256)])
    whole = sequence_score(scores, rows.action_mask)
    level = torch.tensor(levels)
    out: dict[str, Any] = {"auc": {}, "pass_rate": {}}
    for value in sorted(set(levels)):
        at = level == value
        out["auc"][value] = round(auc(whole[at], rows.positive[at]), 3)
        out["pass_rate"][value] = round(float(rows.positive[at].float().mean()), 3)
    found = {"per_token": [], "running_mean": []}
    chance = []
    mean = running_mean(scores, rows.action_mask)
    for i, (trajectory, right, *_) in enumerate(members):
        at = None if right else first_wrong_token(trajectory, trainer.policy.tokenizer)
        if at is None:
            continue
        acted = rows.action_mask[i].nonzero()[:, 0]
        lowest = max(1, len(acted) // 10)
        chance.append(lowest / len(acted))
        for name, values in (("per_token", scores), ("running_mean", mean)):
            order = values[i, acted].argsort()[:lowest].tolist()
            found[name].append(at in order)
    out["wrong_answers"] = len(chance)
    out["chance"] = round(sum(chance) / len(chance), 3)
    out["found"] = {name: round(sum(hits) / len(hits), 3) for name, hits in found.items()}
    return out


def first_wrong_token(trajectory: Trajectory, tokenizer: Any) -> int | None:
    """Index, among the action tokens, of the token that holds the first wrong character."""
    wrong = first_wrong(*operands(trajectory.messages[0].content), trajectory.response)
    if wrong is None:
        return None
    ids = [i for i, acted in zip(trajectory.token_ids, trajectory.action_mask, strict=True) if acted]
    end = 0
    for at, token in enumerate(ids):
        end += len(tokenizer.decode([token]))
        if end > wrong:
            return at
    return len(ids) - 1


def auc(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """Share of (right, wrong) pairs in the right order; ties count half."""
    right, wrong = scores[positive], scores[~positive]
    if not len(right) or not len(wrong):
        return float("nan")
    difference = right[:, None] - wrong[None, :]
    return float(((difference > 0).float() + 0.5 * (difference == 0).float()).mean())


def _pad(values: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(RECIPES), help=", ".join(RECIPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--group-size", type=int, default=16, help="answers a question in the freeze steps")
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    arguments = parser.parse_args()
    for name in arguments.recipes:
        line = json.dumps(measure(name, arguments.seed, arguments.group_size))
        print(line, flush=True)
        if arguments.out:
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
