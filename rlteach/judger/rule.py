"""The rule judger: right when the final answer equals a gold answer, by the rules of docs/grading.md.

What the model caused (no answer, cut off, two answers) is `incorrect`, because it must be unlearned. What
it did not cause (a gold answer that cannot be read, a check that timed out) is `unscorable`: no number.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlteach.judger.answers import final_answer
from rlteach.judger.grading import Mode, gold_problem, grade_answer
from rlteach.judger.verifier import Verifier
from rlteach.types import Group, Judgement, Sample, Trajectory

GRADER_VERSION = 2  # a rule that decides one answer differently is a new version


class RuleJudger:
    """`strict` is for rewards, `lenient` for display; any gold answer of the sample will do."""

    def __init__(self, mode: Mode = "strict", verifier: Verifier | None = None) -> None:
        if mode not in ("strict", "lenient"):
            raise ValueError(f"mode must be 'strict' or 'lenient'; got {mode!r}")
        self.mode, self.verifier, self.version = mode, verifier, f"rule-{GRADER_VERSION}-{mode}"

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        """One judgement a trajectory, in their order."""
        return tuple(self.judge(group.sample, t) for t in group.trajectories)

    def judge(self, sample: Sample, trajectory: Trajectory) -> Judgement:
        """One response; finish_reason `length` means it was cut off."""
        if problem := gold_problem(sample.gold):
            return problem
        if trajectory.finish_reason == "length":
            return Judgement(0.0, "incorrect", "truncated: the answer did not end in time")
        return self.grade_text(sample.gold, final_answer(trajectory.response) or "", sample.question)

    def grade_text(self, golds: Sequence[str], answer: str, question: str = "") -> Judgement:
        """One final answer, out of its box already."""
        return grade_answer(golds, answer, question, self.mode, self.verifier)
