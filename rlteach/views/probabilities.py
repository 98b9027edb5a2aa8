"""How probable was each token that was sampled, under the policy and under the reference?

    token_probabilities(trainer, group)                  numbers, every member
    probability_heatmap(trainer, group, member=2)        colours over the text
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from rlteach.training.batch import collate
from rlteach.training.trainer import OrealTrainer
from rlteach.types import Group, Trajectory
from rlteach.views.inside import ViewError, trainer_of
from rlteach.views.painting import Panel, text_panels
from rlteach.views.token_rewards import member_of
from rlteach.views.tokens import answer_places, pieces


@torch.no_grad()
def token_probabilities(
    trainer: OrealTrainer, answer: Group | Trajectory, *, member: int | None = None
) -> pd.DataFrame:
    """One row a sampled token: member, position, token, p_sampled, p_policy, p_reference, log_ratio, kl_k3.

    Args:
        trainer: or a run. While a run is under way, the policy may be between two versions: pause it first.
        answer: a trajectory, or a group (every member, or the one that `member` names).

    p_sampled is what the sampler wrote down when it drew the token: over the top-p or top-k set, by the
    policy of that time. p_policy and p_reference are over the whole vocabulary at the same temperature, by
    the policy as it is now. log_ratio = log p_policy - log p_reference (its mean over samples is the KL);
    kl_k3 = p_reference / p_policy - 1 + log_ratio, never negative: the estimate of the loss by default.

    Raises:
        ViewError: this is no trainer, or the group has no such member.
    """
    trainer = _trainer(trainer)
    members = dict(enumerate(answer.trajectories)) if isinstance(answer, Group) else {0: answer}
    if member is not None and isinstance(answer, Group):
        members = {member: member_of(answer, member)}
    c, tables = trainer.config, []
    for i, trajectory in members.items():
        rows = collate([(trajectory, True, 0.0, 0.0)], trainer.policy.model.device)
        places = answer_places(trajectory)
        policy = trainer.policy.logprobs(rows, c.temperature).full[0, places].double().cpu().numpy()
        reference = trainer.reference.logprobs(rows, c.temperature).full[0, places].double().cpu().numpy()
        ratio = policy - reference
        tables.append(pd.DataFrame({
            "member": i, "position": places,
            "token": pieces(trainer.policy.tokenizer, [trajectory.token_ids[at] for at in places]),
            "p_sampled": np.exp([trajectory.logprobs[at] for at in places]),
            "p_policy": np.exp(policy), "p_reference": np.exp(reference),
            "log_ratio": ratio, "kl_k3": np.exp(-ratio) - 1 + ratio}))
    return pd.concat(tables, ignore_index=True)


def probability_heatmap(
    trainer: OrealTrainer, answer: Group | Trajectory, *, member: int = 0, title: str = ""
) -> Figure:
    """The text of one answer three times: coloured by p_policy, by p_reference, and by their log-ratio.

    Arguments and errors as those of `token_probabilities`. Tokens that a tool wrote are grey.
    """
    trainer = _trainer(trainer)
    trajectory = member_of(answer, member) if isinstance(answer, Group) else answer
    table = token_probabilities(trainer, trajectory).set_index("position")
    places = range(table.index.min(), len(trajectory.token_ids)) if len(table) else range(0)
    table = table.reindex(places)
    far = max(0.1, float(table["log_ratio"].abs().max())) if len(table) else 0.1
    return text_panels(
        pieces(trainer.policy.tokenizer, [trajectory.token_ids[at] for at in places]),
        [Panel("probability of the token under the policy, now", table["p_policy"].tolist(), "Blues", 0, 1),
         Panel("under the reference", table["p_reference"].tolist(), "Blues", 0, 1),
         Panel("log p_policy - log p_reference: training made the green more probable, the purple less",
               table["log_ratio"].tolist(), "PRGn", -far, far)],
        title=title or f"sampled by policy version {trajectory.policy_version}, scored by "
                       f"version {trainer.policy.version}")


def _trainer(source: OrealTrainer) -> OrealTrainer:
    trainer = trainer_of(source)
    if trainer is None:
        raise ViewError("probabilities need a trainer with its policy and reference, or a run of one; "
                        f"got a {type(source).__name__}")
    return trainer
