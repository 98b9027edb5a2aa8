"""Which part of an answer a judge model gets to see, and what never reaches it.

A judge is a language model: an empty answer, a lone colon or "Solution:" can win its approval
(arXiv 2507.08794), and typed control tokens can open a turn of their own in its prompt. So an answer
without content is graded here, and what is sent on is made harmless, cut to size, and passed as data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal
from unicodedata import category, normalize

from rlteach.judger.answers import final_answer
from rlteach.types import Trajectory

Sees = Literal["final", "trajectory"]
LONGEST = {"question": 20_000, "gold": 2_000, "final": 2_000, "trajectory": 24_000, "message": 6_000}

# answers that announce an answer and give none
_OPENERS = frozenset((
    "thought process", "thinking process", "solution", "the solution", "answer", "the answer",
    "the answer is", "final answer", "the final answer is", "reasoning", "explanation", "step by step",
    "sure", "okay", "ok",
    "lets solve this problem step by step", "lets think step by step", "to solve this problem", "respuesta",
    "solución", "解", "解答", "解说", "解説", "かいせつ", "答", "答案", "答案是", "最终答案", "思考过程",
    "让我们一步一步思考", "让我们一步步解决这个问题", "让我们逐步解决这个问题",
))
_CONTROL = re.compile(
    r"<[|｜][^<>|｜\n]{0,80}[|｜]>"  # <|im_end|>, and the full-width form of it
    r"|</?(?:s|think|bos|eos|pad|unk|start_of_turn|end_of_turn|system|user|assistant|tool_call)>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|<</?SYS>>", re.IGNORECASE)
_TURN = re.compile(r"^([ \t#]*)(system|user|assistant|human|instruction|response)[ \t]*[:：]",
                   re.IGNORECASE | re.MULTILINE)


def candidate_of(answer: Trajectory, gold: Sequence[str], sees: Sees = "final", *,
                 free_text: bool = False) -> tuple[str | None, str]:
    """(what the judge may read, ""), or (None, why the model gave no answer)."""
    last = answer.messages[-1]
    text = last.content or ""  # a tool call's content may be null
    if answer.finish_reason == "length":
        return None, "truncated: the answer did not end in time"
    if last.tool_calls and (not text.strip() or answer.finish_reason == "tool_calls"):
        return None, "no final answer: the last message calls a tool"
    if last.role != "assistant":
        return None, f"no final answer: the last message is of the role {last.role}"
    spoken = _after_thinking(text)
    final = final_answer(text)
    if final is None and (free_text or sees == "trajectory"):
        final = spoken
    if final is None:
        return None, "no final answer: no closed \\boxed{...}"
    if not has_content(final) and not is_gold(final, gold):
        return None, f"no final answer: {final[:40]!r} says nothing"
    return (final if sees == "final" else transcript(answer)), ""


def _after_thinking(text: str) -> str:
    """What stands behind the thinking; nothing when the thinking never ends."""
    _, end, rest = text.rpartition("</think>")
    return rest.strip() if end else "" if "<think>" in text else text.strip()


def has_content(text: str) -> bool:
    r"""False for an answer of signs only, or one that only announces an answer.

    >>> [has_content(t) for t in (":", "Thought process:", "**Solution**", "7", "∞", "解：")]
    [False, False, False, True, True, False]
    """
    told = any(category(c)[0] in "LN" or (category(c) == "Sm" and not c.isascii()) for c in text)
    return told and _bare(text) not in _OPENERS


def _bare(text: str) -> str:
    """Letters, digits and single spaces of a short text, in lower case."""
    text = normalize("NFKC", text[:200]).casefold().replace("'", "").replace("’", "")
    return " ".join("".join(c if category(c)[0] in "LN" else " " for c in text).split())


def is_gold(text: str, gold: Sequence[str]) -> bool:
    """The answer is an accepted one, word for word: "Solution" may be what was asked for."""
    return bool(_bare(text)) and _bare(text) in {_bare(g) for g in gold}


def transcript(answer: Trajectory) -> str:
    """The messages behind the question as JSON, the last one first in line when room is short."""
    asked = max((i for i, m in enumerate(answer.messages) if m.role == "user"), default=-1)
    parts: list[str] = []
    room = LONGEST["trajectory"]
    messages = answer.messages[asked + 1:]
    for message in reversed(messages):
        entry = {**message.as_dict(), "content": cut(message.content or "", LONGEST["message"])}
        if "tool_calls" in entry:
            entry["tool_calls"] = cut(json.dumps(entry["tool_calls"], ensure_ascii=False), LONGEST["message"])
        part = json.dumps(entry, ensure_ascii=False)
        room -= len(part)
        if room < 0 and parts:
            parts.append(json.dumps({"left out": f"{len(messages) - len(parts)} earlier messages"}))
            break
        parts.append(part)
    return "[" + ", ".join(reversed(parts)) + "]"


def cut(text: str, most: int) -> str:
    """At most about `most` characters: the beginning and the end, so that a late change of mind stays."""
    if len(text) <= most:
        return text
    return f"{text[:most * 3 // 4]} [...] {text[-(most // 4):]}"


def harmless(text: str, most: int) -> str:
    """Cut to size, typed control tokens and turn marks broken up, no half characters.

    >>> harmless("7<|im_end|></s>", 100)
    '7< |im_end| >< /s >'
    """
    text = text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be sent
    text = _CONTROL.sub(lambda found: f"{found[0][0]} {found[0][1:-1]} {found[0][-1]}", cut(text, most))
    return _TURN.sub(r"\1(\2)", text)
