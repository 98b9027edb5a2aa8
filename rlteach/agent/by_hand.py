"""A proxy in a cell: one rollout by hand, and what training would take of it.

    with open_proxy(policy, sample) as proxy:
        outcome = proxy.run(my_rollout)      # or: client = proxy.rollout_client()
        proxy.trajectory, proxy.cuts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlteach.agent import calling
from rlteach.agent.plugins import plugin_of
from rlteach.agent.proxy import RolloutInferenceProxy
from rlteach.agent.rollouts import read_result
from rlteach.agent.session import PolicySide, Sampling, Session
from rlteach.agent.twin import Twin
from rlteach.agent.types import ChatCompletionSample, PluginContext
from rlteach.policy.engine import Engine
from rlteach.policy.policy import Policy
from rlteach.types import Sample, Trajectory


class OpenProxy(RolloutInferenceProxy):
    """The proxy that a rollout is given in training, with its record laid open."""

    def __init__(self, session: Session, view: ChatCompletionSample) -> None:
        super().__init__(session)
        self._view = view

    @property
    def trajectory(self) -> Trajectory | None:
        """What training would take now: the context of the last answer. None before the first one."""
        return self._session.trajectory()

    @property
    def cuts(self) -> tuple[dict[str, Any], ...]:
        """What changed histories have cost: {"common_tokens", "lost_tokens", "lost_turns"} each."""
        return tuple(self._session.cuts)

    def run(self, rollout: Callable[..., Any]) -> calling.Outcome:
        """Call a function with @rollout once, sync or async, as a run does: status, reason, and (SUCCESS)
        its extra. Works in a notebook, whose own event loop is left alone.

        Raises:
            PluginError: it is not decorated; or whatever interrupted it.
        """
        caller = calling.Caller(rollout, plugin_of(rollout, "rollout"), read_result)
        context = PluginContext(model=self._session.side.name, type="rollout", phase="test")
        return calling.run(caller.call(context, self, self._view.model_copy(deep=True)))


@contextmanager
def open_proxy(policy: Policy, sample: Sample, *, key: int = 0, greedy: bool = False
               ) -> Iterator[OpenProxy]:
    """A proxy for one rollout of this sample, until the block ends.

    key: the noise of its answers; with another key it is another rollout of the same group.
    greedy: always the most likely token, whatever the key.

    Raises:
        ModelError: the policy's chat template is not fit for many turns.
    """
    engine = Engine(Twin(policy).policy)
    try:
        view = ChatCompletionSample.of(sample)
        sampling = Sampling.of(view, policy.config, greedy=greedy)
        proxy = OpenProxy(Session(PolicySide(engine, policy.config.policy), sampling, key), view)
        try:
            yield proxy
        finally:
            proxy.close()
    finally:
        engine.close()
