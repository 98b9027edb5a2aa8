"""The token record of a rollout, laid open: which tokens the policy sampled, and which it was given.

    record_table(policy, trajectory)        one row a token
    record_picture(policy, trajectory)      the text, the policy's own tokens in colour
"""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from rlteach.policy.policy import Policy
from rlteach.types import Trajectory
from rlteach.views.painting import Panel, text_panels
from rlteach.views.tokens import pieces


def record_table(policy: Policy, trajectory: Trajectory) -> pd.DataFrame:
    """One row a token: part, sampled, id, token, logprob.

    part: 0 for the question, 1 for the first answer, 2 for what was given after it (a tool's reply, and what
    the chat template writes around it), 3 for the next answer, and so on. sampled: the action mask, the only
    tokens that a loss may touch. logprob: as the sampler wrote it down; NaN for a token that was given.
    """
    mask = trajectory.action_mask
    changes = [int(i > 0 and mask[i] != mask[i - 1]) for i in range(len(mask))]
    return pd.DataFrame({
        "part": pd.Series(changes, dtype=int).cumsum(), "sampled": pd.Series(mask, dtype=bool),
        "id": pd.Series(trajectory.token_ids, dtype=int),
        "token": pieces(policy.tokenizer, trajectory.token_ids),
        "logprob": pd.Series([value if own else math.nan for value, own in
                              zip(trajectory.logprobs, mask, strict=True)], dtype=float)})


def record_picture(policy: Policy, trajectory: Trajectory, *, title: str = "") -> Figure:
    """The whole record as text: tokens that the policy sampled on the colour of the probability that they
    were drawn with, those that it was given in grey."""
    table = record_table(policy, trajectory)
    drawn = [math.exp(value) for value in table["logprob"]]  # NaN stays NaN
    return text_panels(
        table["token"].tolist(),
        [Panel("probability of the token when it was sampled; grey: given to the policy, never trained",
               drawn, "Wistia", 0, 1)], title=title)
