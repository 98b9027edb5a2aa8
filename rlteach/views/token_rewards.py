"""The token-level reward model at one answer: what it says of every token, and the weights that follow.

    token_table(trainer, group, member=2)          numbers
    token_heatmap(trainer, group, member=2)        colours over the text

`first_wrong` marks where an answer goes wrong, when that is known: a place in the response, or a function
of the trajectory such as rlteach.course.addition.first_wrong_of.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from rlteach.config import Config
from rlteach.oreal.token_weights import running_mean, sequence_score, token_weights
from rlteach.policy.token_reward_model import TokenRewardModel, token_scores
from rlteach.training.batch import collate
from rlteach.training.trainer import OrealTrainer, positives
from rlteach.types import Group, Trajectory
from rlteach.views.inside import ViewError, trainer_of
from rlteach.views.painting import Panel, text_panels
from rlteach.views.tokens import FirstWrong, answer_places, first_wrong_place, pieces

Model = OrealTrainer | TokenRewardModel | Any  # or what has a .trainer


def token_table(
    model: Model, answer: Trajectory | Group, *, member: int = 0, positive: bool | None = None,
    config: Config | None = None, tokenizer: Any = None, first_wrong: FirstWrong = None,
) -> pd.DataFrame:
    """One row a sampled token: position, token, score, running_mean, weight, first_wrong.

    Args:
        model: a trainer, a run, or a TokenRewardModel (then config and tokenizer are needed).
        answer: a group (with `member`), or a trajectory with `positive`.
        positive: was the answer right? Its weights depend on it (eq. 10). A graded group knows.
        config: how scores become weights; a trainer's own by default.

    score is w, the logit that the answer up to this token gets (eq. 12); running_mean its mean over the
    sampled tokens so far; weight omega+ or omega-, in [0, 1]. first_wrong is True in one row at most.

    Raises:
        ViewError: there is no token-level model, or it is not known whether the answer is right.
    """
    model, config, tokenizer = _parts(model, config, tokenizer)
    trajectory, positive = chosen(answer, member, positive, config)
    return table_of(scores_of(model, trajectory), trajectory, positive, config, tokenizer, first_wrong)


def token_heatmap(
    model: Model, answer: Trajectory | Group, *, member: int = 0, positive: bool | None = None,
    config: Config | None = None, tokenizer: Any = None, first_wrong: FirstWrong = None, title: str = "",
) -> Figure:
    """The text of an answer twice: coloured by sigma(running mean), and by the weight of every token.

    Arguments and errors as those of `token_table`. The first wrong token has a black frame; tokens that a
    tool wrote are grey.
    """
    model, config, tokenizer = _parts(model, config, tokenizer)
    trajectory, positive = chosen(answer, member, positive, config)
    scores = scores_of(model, trajectory)
    return heatmap_of(scores, trajectory, positive, config, tokenizer, first_wrong, title)


@torch.no_grad()
def scores_of(model: Any, trajectory: Trajectory) -> Tensor:
    """w of every token of one trajectory, 0 outside the action mask. [1, T], on the CPU"""
    device = next(model.parameters()).device
    return token_scores(model, collate([(trajectory, True, 0.0, 0.0)], device)).cpu()


def table_of(scores: Tensor, trajectory: Trajectory, positive: bool, config: Config, tokenizer: Any,
             first_wrong: FirstWrong = None) -> pd.DataFrame:
    """`token_table` of scores [1, T] that were taken before."""
    places = answer_places(trajectory)
    mask = torch.tensor([trajectory.action_mask])
    weights = token_weights(
        scores, mask, torch.tensor([positive]), weighting=config.token_weighting, score=config.token_score,
        positive_threshold=config.correct_threshold, negative_threshold=config.incorrect_threshold,
        topk_ratio=config.topk_ratio)
    wrong = first_wrong_place(tokenizer, trajectory, first_wrong)
    return pd.DataFrame({
        "position": places, "token": pieces(tokenizer, [trajectory.token_ids[at] for at in places]),
        "score": scores[0, places].double().numpy(),
        "running_mean": running_mean(scores, mask)[0, places].double().numpy(),
        "weight": weights[0, places].double().numpy(), "first_wrong": [at == wrong for at in places]})


def heatmap_of(scores: Tensor, trajectory: Trajectory, positive: bool, config: Config, tokenizer: Any,
               first_wrong: FirstWrong = None, title: str = "") -> Figure:
    """`token_heatmap` of scores [1, T] that were taken before."""
    table = table_of(scores, trajectory, positive, config, tokenizer, first_wrong)
    begin = answer_places(trajectory)[:1]
    places = range(begin[0] if begin else 0, len(trajectory.token_ids) if begin else 0)
    columns = table.set_index("position").reindex(places)
    good = torch.sigmoid(torch.tensor(columns["running_mean"].to_numpy()))
    believed = float(torch.sigmoid(sequence_score(scores, torch.tensor([trajectory.action_mask])))[0])
    marked = table["position"][table["first_wrong"]]
    framed = None if marked.empty else int(marked.iloc[0]) - places[0]
    sign = "right" if positive else "wrong"
    return text_panels(
        pieces(tokenizer, [trajectory.token_ids[at] for at in places]),
        [Panel("how right the answer looks so far: sigma(mean of w)", good.tolist(), "RdBu", 0, 1),
         Panel(f"weight of the token in the loss ({config.token_weighting}, {config.token_score})",
               columns["weight"].tolist(), "Oranges", 0, 1)],
        framed=framed, note="" if framed is None else "black frame: the first wrong token",
        title=title or f"a {sign} answer; the model says {believed:.1%} right")


def chosen(answer: Trajectory | Group, member: int, positive: bool | None, config: Config
           ) -> tuple[Trajectory, bool]:
    """The trajectory that is meant, and whether it counts as right.

    Raises:
        ViewError: there is no such member, or nobody said whether it is right.
    """
    trajectory = answer
    if isinstance(answer, Group):
        trajectory = member_of(answer, member)
        if positive is None and answer.judgements is not None:
            positive = positives(answer, config.positive_threshold)[member]
    if positive is None:
        raise ViewError("weights depend on whether the answer is right, and no judgement says so: "
                        "say positive=True or positive=False")
    return trajectory, positive


def member_of(group: Group, member: int) -> Trajectory:
    """Raises ViewError: the group has no such member."""
    if not 0 <= member < len(group.trajectories):
        raise ViewError(f"this group has members 0 to {len(group.trajectories) - 1}; got {member}")
    return group.trajectories[member]


def _parts(model: Any, config: Config | None, tokenizer: Any) -> tuple[Any, Config, Any]:
    """(token-level model, config, tokenizer)"""
    if (trainer := trainer_of(model)) is not None:
        if trainer.token_reward_model is None:
            raise ViewError("this trainer has no token-level reward model: train with "
                            "Config(token_reward_model='policy', ...) or the preset 'tiny-oreal'")
        return (trainer.token_reward_model, config or trainer.config, tokenizer or trainer.policy.tokenizer)
    if config is None or tokenizer is None:
        raise ViewError("a token-level reward model alone knows neither config nor tokenizer: give both")
    return model, config, tokenizer
