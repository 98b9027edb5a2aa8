"""A judger with documented weaknesses, each of which can be mended: what lesson 11 trains against.

    weak = HastyJudger()                              # as it was reported
    mended = HastyJudger(guard=True, reasons=True)    # as rlteach asks a judge

It works in the order of OREAL's released code (SEEDS row 62): the rule first, and a judge model for all that
the rule does not call right. Two things stand open in it, as in the judges that were fooled by a lone ":",
by "Solution" or "Thought process:" (B06, arXiv 2507.08794): any text at all is put to the model, and the
model has to name its verdict at once, without a word of reasoning before it (O3, B18).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlteach.judger.answers import final_answer
from rlteach.judger.candidates import candidate_of
from rlteach.judger.compose import grade_all
from rlteach.judger.rule import RuleJudger
from rlteach.judger.verdicts import VERDICTS, Language, NoVerdictError, Rubric, read_verdict
from rlteach.policy.policy import Policy
from rlteach.policy.sampler import prefill
from rlteach.types import Group, Judgement, Message, Sample, Trajectory

AT_ONCE = '{"judgement": "'  # how a reply begins under a schema whose only field is the verdict
Question = tuple[str, tuple[str, ...], str]  # question, gold, candidate
BATCH = 64  # questions at the same time


class HastyJudger:
    """The rule, then a judge model in this process that is asked for the first word of its verdict.

    Args:
        model: a judge, or the name of one.
        guard: answers without content are wrong, and the model is not asked (judger/candidates.py).
        language: of the rules that the model is given, and of its verdict.
        reasons: the model writes its rationale first, and the verdict after it (judger/verdicts.py).

    Equal questions are asked once. A reply that is no verdict is `unscorable`.
    """

    def __init__(self, model: Policy | str = "tiny-judge", *, guard: bool = False, reasons: bool = False,
                 language: Language = "en") -> None:
        self.model = Policy.load(model) if isinstance(model, str) else model
        self.guard, self.reasons, self.rubric = guard, reasons, Rubric.of(language)
        self.rule = RuleJudger()
        self.asked = 0  # questions that the model has read
        self._known: dict[Question, Judgement] = {}

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        """One judgement a trajectory, in their order."""
        return self.grade_all([group])[0]

    def grade_all(self, groups: Sequence[Group]) -> list[tuple[Judgement, ...]]:
        """Many groups at once."""
        prepared = [[self._prepare(g.sample, t, first) for t, first in zip(g.trajectories, js, strict=True)]
                    for g, js in zip(groups, grade_all(self.rule, groups), strict=True)]
        self._ask([q for row in prepared for q in row if not isinstance(q, Judgement)])
        return [tuple(q if isinstance(q, Judgement) else self._known[q] for q in row) for row in prepared]

    def _prepare(self, sample: Sample, answer: Trajectory, first: Judgement) -> Question | Judgement:
        """What the model is shown: the final answer, and without one the whole text."""
        if first.status == "correct" or answer.finish_reason == "length":
            return first
        if self.guard:
            candidate, why = candidate_of(answer, sample.gold)
            if candidate is None:
                return Judgement(0.0, "incorrect", why, "llm", attempts=0)
            return sample.question, sample.gold, candidate
        final = final_answer(answer.response)
        return sample.question, sample.gold, answer.response if final is None else final

    def _ask(self, questions: Sequence[Question]) -> None:
        new = sorted((q for q in dict.fromkeys(questions) if q not in self._known), key=lambda q: len(str(q)))
        self.asked += len(new)
        for at in range(0, len(new), BATCH):
            part = new[at : at + BATCH]
            samples = [Sample(str(i), self._request(q), ()) for i, q in enumerate(part)]
            judged = self._in_words(part, samples) if self.reasons else self._at_once(samples)
            self._known |= zip(part, judged, strict=True)

    def _request(self, question: Question) -> tuple[Message, ...]:
        return tuple(Message(**message) for message in self.rubric.messages(*question))

    @torch.no_grad()
    def _at_once(self, samples: Sequence[Sample]) -> list[Judgement]:
        """The likelier of the two verdicts, as the first thing that the model says."""
        right, wrong = (self._ids(word)[0] for word in VERDICTS[self.rubric.language])
        prompts = [self.model.encode(sample) + self._ids(AT_ONCE) for sample in samples]
        _, logits, _ = prefill(self.model.model, prompts, list(range(len(prompts))))  # [N, V]
        return [verdict(bool(row[right] > row[wrong]), "said at once") for row in logits]

    def _in_words(self, questions: Sequence[Question], samples: Sequence[Sample]) -> list[Judgement]:
        """The verdict at the end of a whole reply."""
        replies = self.model.sample(samples, [[0]] * len(samples), greedy=True)
        return [read(reply.response, candidate, self.rubric.language)
                for (_, _, candidate), (reply,) in zip(questions, replies, strict=True)]

    def _ids(self, text: str) -> list[int]:
        return self.model.tokenizer(text, add_special_tokens=False)["input_ids"]


def verdict(correct: bool, reason: str) -> Judgement:
    return Judgement(float(correct), "correct" if correct else "incorrect", reason, "llm")


def read(reply: str, candidate: str, language: Language) -> Judgement:
    """A whole reply as a judgement; one that is not exactly a verdict is none."""
    try:
        correct, reason = read_verdict(reply, language, candidate, schema=True)
    except NoVerdictError as why:
        return Judgement(None, "unscorable", f"no verdict: {why}", "llm", reply)
    return verdict(correct, reason)
