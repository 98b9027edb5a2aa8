"""An honest measurement: accuracy with a 95 % Wilson interval, by level, and pass@k."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from rlteach.config import Config, ConfigError
from rlteach.judger.compose import grade_all
from rlteach.judger.rule import RuleJudger
from rlteach.policy.policy import Policy
from rlteach.training import plugins
from rlteach.training.judges import Judges
from rlteach.training.keys import noise_key
from rlteach.types import Group, Judger, Message, Sample, Trajectory


@dataclass(frozen=True)
class Evaluation:
    """accuracy: share of right answers among those judged (None: none was judged).

    n: questions with a judged answer; unscorable: answers that nobody could judge, left out.
    groups: one a question; one that a rollout discarded has no trajectories.
    pass_at_k: share of questions with a right answer among the k (equal to accuracy at k = 1).
    """

    accuracy: float | None
    ci95: tuple[float, float] | None
    n: int
    k: int
    pass_at_k: float | None
    by_level: dict[str, float]
    unscorable: int
    groups: tuple[Group, ...]

    def __repr__(self) -> str:
        if self.accuracy is None:
            return f"Evaluation(nothing judged, unscorable={self.unscorable})"
        low, high = self.ci95
        return f"Evaluation({self.accuracy:.1%} [{low:.1%}, {high:.1%}], n={self.n}, k={self.k})"

    def as_dict(self) -> dict[str, object]:
        """The plain numbers, as summary.json and `--json` hold them."""
        names = ("accuracy", "ci95", "n", "k", "pass_at_k", "by_level", "unscorable")
        return {name: getattr(self, name) for name in names}


def evaluate(
    policy: Policy, judger: Judger, samples: Sequence[Sample], *,
    greedy: bool = True, k: int = 1, seed: int = 0, rollout: Callable[..., list[Group]] | None = None,
) -> Evaluation:
    """Ask every question (k times when sampling), grade, count.

    rollout: a function with @rollout, or one like PluginRollout, in place of one answer a question. The
    k answers of a sample that it discards are unscorable: neither right nor wrong, and counted.

    Raises:
        ConfigError: k is below 1, or above 1 with greedy answers, which would all be the same.
        PluginStopError: a plug-in failed for good.
    """
    if k < 1 or (greedy and k > 1):
        raise ConfigError(f"k must be at least 1, and 1 for greedy answers; got {k}: leave out greedy "
                          "to sample k answers")
    keys = [[noise_key("evaluate", seed, s.id, member) for member in range(k)] for s in samples]
    asked = _asked(policy, samples, keys, greedy, rollout)
    answered = [group for group in asked if group.trajectories]
    found = iter(grade_all(judger, answered))
    plugins.grader_metrics(judger)  # taken: what happens here is no part of the next step's numbers
    groups = [g.with_(judgements=tuple(next(found)) if g.trajectories else ()) for g in asked]
    scores = [[s >= 1 for s in g.scores if s is not None] for g in groups]
    judged = [s for s in scores if s]
    flat = [s for group in judged for s in group]
    levels: dict[str, list[bool]] = {}
    for group, right in zip(groups, scores, strict=True):
        levels.setdefault(str(group.sample.extra.get("level", "all")), []).extend(right)
    return Evaluation(
        accuracy=sum(flat) / len(flat) if flat else None,
        ci95=wilson(sum(flat), len(flat)) if flat else None,
        n=len(judged), k=k,
        pass_at_k=sum(any(s) for s in judged) / len(judged) if judged else None,
        by_level={name: sum(s) / len(s) for name, s in sorted(levels.items()) if s},
        unscorable=sum(s is None for g in groups for s in g.scores or (None,) * k), groups=tuple(groups),
    )


def evaluate_model(model: str, config: Config, samples: Sequence[Sample], *, greedy: bool, k: int, seed: int
                   ) -> Evaluation:
    """A saved model, asked with config.rollout and judged by config.graders; without graders by the rule."""
    with ExitStack() as stack:
        judger: Judger = RuleJudger()
        if config.graders:
            judger = stack.enter_context(closing(Judges(config))).examiner
        rollout = plugins.rollout_of(config)
        policy = Policy.load(model, config)
        return evaluate(policy, judger, samples, greedy=greedy, k=k, seed=seed, rollout=rollout)


def ask_model(model: str, config: Config, question: str) -> Trajectory:
    """The greedy answer of a saved model to one question, with all turns of config.rollout.

    Raises:
        ConfigError: the rollout discarded the question.
    """
    rollout = plugins.rollout_of(config)
    sample = Sample("question", (Message("user", question),), ())
    [group] = _asked(Policy.load(model, config), [sample], [[0]], True, rollout)
    if not group.trajectories:
        raise ConfigError(f"rollout: {config.rollout} discarded the question; its trace says why in a run")
    return group.trajectories[0]


def _asked(policy: Policy, samples: Sequence[Sample], keys: Sequence[Sequence[int]], greedy: bool,
           rollout: Callable[..., list[Group]] | None) -> list[Group]:
    """One group a sample; one without trajectories where the rollout discarded the sample."""
    if rollout is None:
        answers = policy.sample(samples, keys, greedy=greedy)
        return [Group(s, trajectories) for s, trajectories in zip(samples, answers, strict=True)]
    with plugins.opened(rollout, policy) as made:
        found = made(policy, samples, keys, phase="test", greedy=greedy)
        plugins.take_metrics(made)  # nor is this
    return [Group(sample, ()) if group is None else group
            for sample, group in zip(samples, plugins.by_sample(samples, found), strict=True)]


def wilson(right: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of a share: right of n.

    >>> [round(x, 4) for x in wilson(8, 10)]
    [0.4902, 0.9433]
    """
    if n < 1:
        raise ValueError("an interval needs at least one answer")
    share = right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(middle - half, 0.0), min(middle + half, 1.0)
