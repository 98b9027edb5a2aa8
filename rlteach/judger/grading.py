"""One answer against the gold answers: exact core first, symbolic check only for what it leaves open.

What the model caused (no answer, two different ones, arithmetic left standing, program code) is
`incorrect`. What it did not cause (a gold answer that cannot be read, a form beyond the rules, a
check that timed out) is `unscorable`, which is not a number and trains nothing. docs/grading.md has
every decision with an example.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal
from unicodedata import category

from rlteach.judger.answers import last_box
from rlteach.judger.arithmetic import NoValueError, TooLargeError
from rlteach.judger.exact import Verdict, same
from rlteach.judger.forms import Based, Form, Items, Named, Number, Opaque, Word, leaves, squeezed
from rlteach.judger.guards import LONGEST, is_code, too_heavy
from rlteach.judger.notation import plain
from rlteach.judger.reading import read
from rlteach.judger.verifier import Verifier, shared_verifier
from rlteach.types import Judgement

Mode = Literal["strict", "lenient"]

_OPERATION = re.compile(r"[\w})\]!] ?(?:[+*-]|\\times|\\cdot|\\div) ?[\w({\\]")
_SOME_NUMBER = re.compile(r"\d|[零一二三四五六七八九十百千万亿两半]"
                          r"|\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty(?:-\w+)?|hundred|half|none|no)\b")


def grade_answer(golds: Sequence[str], answer: str, question: str = "", mode: Mode = "strict",
                 verifier: Verifier | None = None) -> Judgement:
    """Grade one final answer, which is already out of its box; any of the gold answers will do."""
    answer, golds = unboxed(answer), [unboxed(gold) for gold in golds]
    shown = answer if len(answer) <= 200 else answer[:200] + "..."
    shown = " ".join(shown.split())
    read_golds = [read_gold(gold) for gold in golds]
    if (problem := gold_problem(golds)) is not None:
        return problem
    if not has_content(answer):
        return incorrect("no final answer: no closed \\boxed{...}" if not answer.strip() else
                         f"no final answer: nothing in {shown!r} could be one")
    if len(answer) > LONGEST:
        return incorrect(f"not an answer: {len(answer)} characters")
    if is_code(answer):
        return incorrect(f"program code is no answer: {shown}")
    try:
        form = read(answer)
    except NoValueError:
        return incorrect(f"not a number: {shown}")
    except (TooLargeError, RecursionError) as error:
        return unscorable(f"too large to work out ({error}): {shown}")
    if isinstance(form, Number) and len(form.noun) > 1 and has_word(question, form.noun):
        form = replace(form, noun="")  # a noun of the question is what is counted
    case = Case(answer, form, question, mode, shown)
    return case.judge(golds, read_golds, verifier)


class Case:
    """One answer that could be read, on its way to a judgement."""

    def __init__(self, answer: str, form: Form, question: str, mode: Mode, shown: str) -> None:
        self.answer, self.form, self.question, self.shown = answer, form, question, shown
        self.lenient = mode == "lenient"

    def judge(self, golds: Sequence[str], forms: Sequence[Form | None],
              verifier: Verifier | None) -> Judgement:
        verdicts: list[Verdict] = []
        for form in forms:
            verdicts.append(None if form is None else same(form, self.form, self.lenient))
            if verdicts[-1] and form is not None:
                return self.equal(form, symbolic=False)
        reason = "beyond the rules"
        for i, form in enumerate(forms):
            if verdicts[i] is not None or form is None:
                continue
            if numbers_only(form) and self.is_no_number():
                verdicts[i] = False
            elif opaque(form) or opaque(self.form):
                verdicts[i], why = self.symbolic(golds[i], verifier)
                reason = why or reason
            if verdicts[i]:
                return self.equal(form, symbolic=True)
        if None in verdicts:
            return unscorable(f"{reason}: {self.shown}")
        return incorrect(self.why_different([form for form in forms if form is not None]))

    def symbolic(self, gold: str, verifier: Verifier | None) -> tuple[Verdict, str]:
        """What the worker process says, and why it says nothing."""
        if reason := too_heavy(plain(gold)) or too_heavy(plain(self.answer)):
            return None, f"too large to work out ({reason})"
        outcome = (verifier or shared_verifier()).check(gold, self.answer, self.lenient)
        return outcome.verdict, outcome.reason

    def equal(self, gold: Form, symbolic: bool) -> Judgement:
        """Equal in value; a number that was asked for must also be worked out (strict)."""
        if not self.lenient and numbers_only(gold):
            text = plain(self.answer)
            left = _OPERATION.search(text) is not None if symbolic else unworked(self.form)
            if left and unworked(gold) is False:
                return incorrect(f"not worked out: {self.shown}")
            if symbolic and squeezed(text) in squeezed(plain(self.question)):
                return incorrect(f"copied from the question, not worked out: {self.shown}")
        return Judgement(1.0, "correct", f"answered {self.shown}")

    def is_no_number(self) -> bool:
        """Words without any number in them, where a number was asked for."""
        wordy = isinstance(self.form, Word) or (isinstance(self.form, Opaque) and self.form.prose)
        return wordy and _SOME_NUMBER.search(plain(self.answer).lower()) is None

    def why_different(self, golds: Sequence[Form]) -> str:
        form = self.form.item if isinstance(self.form, Named) else self.form
        several = isinstance(form, Items) and form.kind in ("list", "and")
        if several and not any(isinstance(gold, Items | Named) for gold in golds):
            return f"two different answers: {self.shown}"
        wordy = isinstance(form, Word) or (isinstance(form, Opaque) and form.prose)
        if wordy and any(numbers_only(gold) for gold in golds):
            return f"not a number: {self.shown}"
        return f"answered {self.shown}"


def gold_problem(golds: Sequence[str]) -> Judgement | None:
    """What is said of every answer when no gold answer can be read."""
    if any(read_gold(unboxed(gold)) is not None for gold in golds):
        return None
    named = ", ".join(repr(gold[:80]) for gold in golds) or "missing"
    return unscorable(f"the gold answer cannot be read: {named}")


@lru_cache(maxsize=8192)
def read_gold(gold: str) -> Form | None:
    """The form of a gold answer; None when nobody could be held to it."""
    if len(gold) > LONGEST or is_code(gold):
        return None
    try:
        form = read(gold)
    except (NoValueError, TooLargeError, RecursionError):
        return None
    return form if readable(form) else None


def readable(form: Form) -> bool:
    return all(not isinstance(leaf, Opaque) or (not leaf.prose and any(c.isalnum() for c in leaf.text))
               for leaf in leaves(form))


def numbers_only(form: Form) -> bool:
    """A number, or numbers in a list, set, tuple."""
    return all(isinstance(leaf, Number | Based) for leaf in leaves(form))


def unworked(form: Form) -> bool:
    """Whether arithmetic was left standing in some number."""
    return any(isinstance(leaf, Number) and not leaf.worked for leaf in leaves(form))


def opaque(form: Form) -> bool:
    """Whether some part is left to the symbolic check (running text never is)."""
    return any(isinstance(leaf, Opaque) and not leaf.prose for leaf in leaves(form))


def has_word(text: str, word: str) -> bool:
    """Whole words, in any case; a word of Chinese has no blanks around it."""
    edge = r"\b" if word.isascii() else ""
    return re.search(f"{edge}{re.escape(word)}{edge}", text, re.IGNORECASE) is not None


def unboxed(text: str) -> str:
    """An answer that still is in its box, out of it (A11: and one that is not, as it is)."""
    inside = last_box(text) if "\\boxed" in text or "\\fbox" in text else None
    return text if inside is None else inside


def has_content(text: str) -> bool:
    r"""More than punctuation and blanks: a letter, a digit, a picture, or an empty set."""
    return any(category(c)[0] in "LN" or category(c) == "So" or c in "∅∞" for c in text[:LONGEST]) \
        or squeezed(text) == r"\{\}"


def incorrect(reason: str) -> Judgement:
    return Judgement(0.0, "incorrect", reason)


def unscorable(reason: str) -> Judgement:
    return Judgement(None, "unscorable", " ".join(reason.split())[:500])
