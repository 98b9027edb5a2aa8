"""Answers that somebody else's model gave, judged by rule: the work behind `rlteach grade`."""

from __future__ import annotations

from pathlib import Path

from rlteach.data import DataError, read_jsonl, to_sample
from rlteach.judger.rule import RuleJudger
from rlteach.judger.verifier import Verifier
from rlteach.types import Message, Trajectory


def grade_file(name: str | Path) -> list[dict[str, object]]:
    """One {verdict, score, source, reason} a line of {question, gold_answer, response}.

    Raises:
        DataError: a line cannot be read or lacks its response.
        VerifierError: an answer needs the symbolic check, and math-verify does not work here.
    """
    out = []
    with Verifier() as verifier:  # its processes start with the first answer that needs one, and end here
        judger = RuleJudger(verifier=verifier)
        for index, (at, entry) in enumerate(read_jsonl(name)):
            response = entry.get("response")
            if not isinstance(response, str):
                raise DataError(f"{at}: response must be a text; got {response!r}")
            sample = to_sample(at, entry, index)
            answer = (*sample.messages, Message("assistant", response))
            judged = judger.judge(sample, Trajectory(answer, (), (), (), 0, "stop"))
            out.append({"verdict": judged.status, "score": judged.score, "source": judged.source,
                        "reason": judged.reason})
    return out
