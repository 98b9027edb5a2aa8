"""The weights that rollouts sample from: of a small model a copy in double precision.

Which rollouts are sampled together depends on how long their tools take. In single precision a row
rounds differently in another company, and now and then that is another token; in double precision a
row is the same in any batch, so a run can be repeated. The copy also keeps a rollout that was given
up, and still samples its last token, out of the way of the update.
"""

from __future__ import annotations

import copy

import torch

from rlteach.policy.engine import wants_double
from rlteach.policy.policy import Policy


class Twin:
    """`policy` is what an engine samples from; `sync()` gives it the weights as they are now."""

    def __init__(self, original: Policy) -> None:
        self.original, self.policy = original, original
        network = original.model
        if wants_double(network):
            double = copy.deepcopy(network).double().requires_grad_(False)
            self.policy = Policy(double, original.tokenizer, config=original.config)
            self.sync()

    @torch.no_grad()
    def sync(self) -> None:
        """Weights, version and config of the original. Costs a copy of the weights."""
        if self.policy is self.original:
            return
        self.policy.model.load_state_dict(self.original.model.state_dict())
        self.policy.version = self.original.version
        self.policy.use(self.original.config)
