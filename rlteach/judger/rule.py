"""The rule judger: right when the boxed number equals the gold number, exactly.

What the model caused (no answer, cut off, not a number) is `incorrect`, because it must be
unlearned. What it did not cause (a gold answer that cannot be read, an answer beyond these rules)
is `unscorable`, which is not a number and trains nothing.
"""

from __future__ import annotations

from rlteach.judger.answers import final_answer, other_notation, parse_number, several_numbers
from rlteach.types import Group, Judgement, Sample, Trajectory

_BEYOND = ("\\", "^", "*", "(", "[", "=")  # signs of mathematics that exact numbers do not cover


class RuleJudger:
    """Integers, decimals and fractions by exact rationals; any gold answer of the sample will do."""

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        """One judgement a trajectory, in their order."""
        return tuple(self.judge(group.sample, t) for t in group.trajectories)

    def judge(self, sample: Sample, trajectory: Trajectory) -> Judgement:
        """One answer; finish_reason `length` means it was cut off."""
        golds = [parse_number(g) for g in sample.gold]
        if not golds or None in golds:
            shown = ", ".join(repr(g) for g in sample.gold) or "missing"
            return Judgement(None, "unscorable", f"the gold answer is not a number: {shown}")
        if trajectory.finish_reason == "length":
            return Judgement(0.0, "incorrect", "truncated: the answer did not end in time")
        text = final_answer(trajectory.response)
        if not text:
            return Judgement(0.0, "incorrect", "no final answer: no closed \\boxed{...}")
        value, text = parse_number(text), text if len(text) <= 200 else text[:200] + "..."
        if value is not None:
            right = value in golds
            return Judgement(float(right), "correct" if right else "incorrect", f"answered {text}")
        if several_numbers(text):
            return Judgement(0.0, "incorrect", f"two different answers: {text}")
        if any(sign in text for sign in _BEYOND) or other_notation(text):
            return Judgement(None, "unscorable", f"beyond the exact rules: {text}")
        return Judgement(0.0, "incorrect", f"not a number: {text}")
