"""Advantages: how much better one answer is than the others to the same question.

Both estimators look at the WHOLE group, before anything is selected from it. A member that nobody
could judge (reward None) is left out of every baseline and gets no advantage.
"""

from __future__ import annotations

from collections.abc import Sequence

Rewards = Sequence[float | None]


def code_rewards(positive: Sequence[bool | None], coding: str) -> list[float | None]:
    """Outcome to reward: +1/-1 (`plus_minus`, the released code) or 1/0 (`zero_one`, eq. 3).

    >>> code_rewards([True, False, None], "plus_minus")
    [1.0, -1.0, None]
    """
    wrong = {"plus_minus": -1.0, "zero_one": 0.0}[coding]
    return [None if p is None else (1.0 if p else wrong) for p in positive]


def rloo(rewards: Rewards) -> list[float | None]:
    """A_i = r_i - mean of the OTHER members' rewards (paper section 3.2). [G] -> [G]

    With rewards +1/-1 and c of K members right: A+ = 2(K-c)/(K-1) and A- = -2c/(K-1).

    >>> rloo([1.0, -1.0, -1.0])
    [2.0, -1.0, -1.0]
    >>> rloo([1.0, None, -1.0])
    [2.0, None, -2.0]

    Raises:
        ValueError: fewer than two members have a reward, so there is no other to compare with.
    """
    known = _known(rewards)
    total, others = sum(known), len(known) - 1
    return [None if r is None else r - (total - r) / others for r in rewards]


def grpo(rewards: Rewards, eps: float = 1e-8) -> list[float | None]:
    """A_i = (r_i - mean) / (std + eps), std unbiased, over the group. [G] -> [G]

    >>> [round(a, 3) for a in grpo([1.0, 1.0, -1.0, -1.0])]
    [0.866, 0.866, -0.866, -0.866]

    Raises:
        ValueError: fewer than two members have a reward.
    """
    known = _known(rewards)
    mean = sum(known) / len(known)
    std = (sum((r - mean) ** 2 for r in known) / (len(known) - 1)) ** 0.5
    return [None if r is None else (r - mean) / (std + eps) for r in rewards]


ESTIMATORS = {"rloo": rloo, "grpo": grpo}


def _known(rewards: Rewards) -> list[float]:
    known = [r for r in rewards if r is not None]
    if len(known) < 2:
        raise ValueError(
            f"an advantage needs at least two members with a reward, got {len(known)}: "
            "raise group_size, or leave this group out"
        )
    return known
