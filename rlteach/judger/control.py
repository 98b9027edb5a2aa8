"""Null experiments: what a run must NOT gain when the scores carry no information.

random deals a fair coin to every answer; shuffled deals the real scores to other answers of the
batch, so that their number is unchanged. own_samples keeps the scores and is applied in select.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from rlteach.types import Group, Judgement


def control_judgements(groups: Sequence[Group], control: str, rng: random.Random) -> list[Group]:
    """The groups with their judgements replaced as `control` says; unscorable ones stay as they are."""
    if control not in ("random", "shuffled"):
        return list(groups)
    scores = [j.score for g in groups for j in g.judgements or () if j.score is not None]
    if control == "random":
        scores = [float(rng.random() < 0.5) for _ in scores]
    else:
        rng.shuffle(scores)
    dealt = iter(scores)

    def deal(judgement: Judgement) -> Judgement:
        if judgement.score is None:
            return judgement
        score = next(dealt)
        return Judgement(score, "correct" if score >= 1 else "incorrect", f"control: {control}", "random")

    return [g.with_(judgements=tuple(deal(j) for j in g.judgements or ())) for g in groups]
