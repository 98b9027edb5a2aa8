"""Makes labelled pairs from a seed: data/judge/pairs.jsonl, and all that tiny-judge learns from.

A pair is built backwards: first the gold number, then a question that has it, then what is said, then
the words around it. So its label is known, and hard negatives are as frequent as one likes.
"""

from __future__ import annotations

import random
import re

from rlteach.course import addition
from rlteach.course.judge_texts import (
    ALSO,
    DENY,
    JOINS,
    LEAD,
    MASTER_KEYS,
    NONE,
    ORDER,
    QUESTIONS,
    SAY,
    SEVERAL,
    TELLING,
    TEXTS,
    WILD,
    WILD_JOINS,
    WILD_MARKS,
)
from rlteach.course.judging import SEVERAL_SAID, SLIPS, Pair, draw, held, slip

RIGHT = {"plain": 6, "corrected": 3, "working": 2, "instructed": 1}
WRONG = {"slip": 11, "several": 3, "denied": 4, "denied_only": 1, "no_number": 1, "instruction": 2,
         "master_key": 1}
FORMS = {"+": 10, "-": 5, "or": 5}  # of the question


def _plain_words(language: str) -> list[str]:
    """Words (in Chinese: signs) of the training texts that tell nothing about a number next to them."""
    texts = [text for part in (LEAD, NONE, ORDER) for text in TEXTS[language][part][0]]
    texts += [text for forms in QUESTIONS[language].values() for text in forms]
    found = re.findall(r"[A-Za-z]+" if language == "en" else r"[\u4e00-\u9fff]", " ".join(texts))
    return sorted({w for w in found if w.lower() not in TELLING[language] and len(w) > (language == "en")})


WORDS = {language: _plain_words(language) for language in TEXTS}


class PairMaker:
    """Pairs from a seed. heldout: other numbers and, in a share `unseen` of the pairs, other words.

    noise is how often random words stand before or after an answer, wild how often inside of a denial
    or a sum (both for training); no question is an addition of two operands in `avoid` (smaller first).
    """

    def __init__(self, seed: int, *, heldout: bool = False, unseen: float = 0.5, noise: float = 0.0,
                 wild: float = 0.0, avoid: frozenset[tuple[int, ...]] = frozenset()) -> None:
        self.rng, self.heldout, self.avoid, self.noise = random.Random(seed), heldout, avoid, noise
        self.unseen, self.wild = unseen if heldout else 0.0, wild
        self.language, self.fresh, self.used = "en", False, []

    def make_pair(self, label: str | None = None) -> Pair:
        """One pair; where no label is asked for, half of them are correct."""
        label = label or self.rng.choice(("correct", "incorrect"))
        kinds = RIGHT if label == "correct" else WRONG
        while True:
            self.language, self.used = self.rng.choice(("en", "zh")), []
            self.fresh = self.rng.random() < self.unseen
            kind = _weighted(kinds, self.rng)
            question, gold, operands = self._question()
            says, text, kind = self._candidate(kind, self.rng.choice(gold), operands)
            golds = tuple(str(g) for g in gold)
            if text is not None and self._fits(says, golds, label):
                return Pair(question, golds, text, label, kind, "+".join(self.used), self.language, says)

    def _fits(self, says: str | None, gold: tuple[str, ...], label: str) -> bool:
        """No wrong candidate says another gold number, and no held number goes into training."""
        if says is None or says == SEVERAL_SAID:
            return label == "incorrect"
        return (says in gold) == (label == "correct") and (self.heldout or not held(int(says.split(".")[0])))

    def _question(self) -> tuple[str, list[int], tuple[int, int] | None]:
        """Text, gold numbers, and the operands where it is an addition."""
        rng, form = self.rng, _weighted(FORMS, self.rng)
        sign = rng.choice((1, -1)) if form == "-" else rng.choice((1, 1, 1, 1, -1))
        while True:
            gold, a = self._gold(), draw(rng)
            if form == "+":
                a = rng.randrange(gold)
                gold, b = [gold], gold - a
                if tuple(sorted((a, b))) in self.avoid:
                    continue
            elif form == "-":
                a = a if sign < 0 else gold + a
                gold, b = [gold * sign], a - gold * sign
            else:
                near = slip(rng.choice(("swapped_digits", "changed_digit", "added_digit")), gold, rng)
                other = int(near) if near and rng.random() < 0.5 else self._gold()
                if other == gold or held(other) != self.heldout:
                    continue
                gold = [gold * sign, other * sign]
                a, b = gold
            text = rng.choice(QUESTIONS[self.language][form]).format(a=a, b=b)
            return " ".join(filter(None, (text, self._noise()))), gold, (a, b) if form == "+" else None

    def _gold(self) -> int:
        while held(number := draw(self.rng)) != self.heldout:
            pass
        return number

    def _candidate(self, kind: str, gold: int, operands: tuple[int, int] | None
                   ) -> tuple[str | None, str | None, str]:
        """What is said, the text (None: this kind does not go with this question), the kind."""
        rng, right = self.rng, str(gold)
        slip_kind = _weighted(SLIPS, rng)
        wrong = slip(slip_kind, gold, rng)
        if wrong is None:
            return None, None, kind
        if kind == "slip":
            form = rng.choices(("plain", "corrected", "working"), (7, 1, 2))[0]
            denied = slip(_weighted(SLIPS, rng), gold, rng)
            if form == "corrected" and denied not in (None, wrong):
                return wrong, self._around("", self._corrected(wrong, denied)), slip_kind
            if form == "working" and operands:
                return wrong, self._working(wrong, *operands), slip_kind
            return wrong, self.sentence(wrong), slip_kind
        if kind == "working":
            return right, self._working(right, *operands) if operands else None, kind
        if kind == "instruction" and rng.random() < 0.55:
            return None, self._text(ORDER), kind
        made = {
            "plain": lambda: (right, self.sentence(right)),
            "corrected": lambda: (right, self._corrected(right, wrong)),
            "instructed": lambda: (right, self._around(self._text(ORDER), self._say(right))),
            "several": lambda: (SEVERAL_SAID, self._several(right, wrong)),
            "denied": lambda: (wrong, self._corrected(wrong, right)),
            "denied_only": lambda: (None, self._deny(right)),
            "no_number": lambda: (None, self._text(NONE)),
            "instruction": lambda: (wrong, self._around(self._text(ORDER), self._say(wrong))),
            "master_key": lambda: (None, self._pick("master", MASTER_KEYS)),
        }
        return *made[kind](), kind

    def sentence(self, value: str) -> str:
        """A text that gives this value as its answer."""
        lead = self._text(LEAD) if self.rng.random() < 0.25 else ""
        return self._around(lead, self._say(value))

    def _say(self, value: str) -> str:
        if self._wild() and self.rng.random() < 0.3:
            self.used.append("wild")
            return self.rng.choice(WILD_MARKS) + self._surface(value) + self.rng.choice(WILD_MARKS)
        if self.rng.random() < self.noise:  # whatever the words are, one number is the answer
            self.used.append("noise")
            gap = self.rng.choice((" ", ": ", " = ", "") if self.language == "zh" else (" ", ": "))
            parts = (self._words() + gap, self._surface(value), " " * (self.language == "en") + self._words())
            return "".join(parts[self.rng.choice((slice(0, 2), slice(1, 3), slice(0, 3)))])
        return self._text(SAY, n=self._surface(value))

    def _several(self, *values: str) -> str:
        n, m = self.rng.sample([self._surface(v) for v in values], 2)
        if self.rng.random() < self.noise:  # whatever the words are, two numbers are two answers
            self.used.append("noise")
            return " ".join((self._words(), n, self._words(), m))
        return self._text(SEVERAL, n=n, m=m)

    def _corrected(self, value: str, denied: str) -> str:
        """A number, and another that is taken back: in this order or in the other one."""
        parts = [self._say(value), self._deny(denied)]
        self.rng.shuffle(parts)
        first, second = parts
        wild = self._wild()
        return first.rstrip(".。!！") + (self.rng.choice(WILD_JOINS) if wild else
                                       self._pick("join", JOINS[self.language])) + second

    def _deny(self, value: str) -> str:
        m = self._surface(value)
        return self._wildly(DENY, m=m) if self._wild() else self._text(DENY, m=m)

    def _wild(self) -> bool:
        return self.wild > 0 and self.rng.random() < self.wild  # 0 draws nothing

    def _wildly(self, part: str, **numbers: object) -> str:
        self.used.append("wild")
        return self.rng.choice(WILD[self.language][part]).format(w=self._words(), v=self._words(), **numbers)

    def _working(self, value: str, a: int, b: int) -> str:
        """A text that names the operands, or the working of tiny-math with this number in its box."""
        if self.rng.random() < 0.5:
            if self._wild():
                return self._wildly(ALSO, n=self._surface(value), **dict(zip("ab", self.rng.sample((a, b), 2),
                                                                             strict=True)))
            return self._text(ALSO, n=self._surface(value), a=a, b=b)
        self.used.append("worked")
        *steps, _ = addition.demonstration(a, b, 0.1, self.rng)
        return "".join(text for text, _ in steps) + f", \\boxed{{{value}}}"

    def _surface(self, value: str) -> str:
        """A way to write the number that does not change it."""
        rng, chance = self.rng, self.rng.random()
        digits = value.lstrip("-")
        if digits.isdigit() and chance < 0.15 and len(digits) > 3:
            value = f"{int(value):,}"
        elif digits.isdigit() and 0.15 < chance < 0.23:
            value += rng.choice((".0", ".00"))
        return value.replace("-", "\u2212") if rng.random() < 0.3 else value

    def _around(self, lead: str, text: str) -> str:
        """Lead and text in either order, with random words in between or not."""
        parts = [part for part in (lead, text, self._noise()) if part]
        self.rng.shuffle(parts)
        return " ".join(parts)

    def _noise(self) -> str:
        if self.rng.random() >= self.noise:
            return ""
        return self._words().capitalize() + ("." if self.language == "en" else "。")

    def _words(self) -> str:
        """One to three words, made up or out of place, that say nothing about a number."""
        rng, count = self.rng, self.rng.randrange(1, 4)
        known = rng.random() < 0.5
        if self.language == "zh":
            return "".join(rng.choice(WORDS["zh"]) if known else chr(rng.randrange(0x4E00, 0x9FA6))
                           for _ in range(count))
        return " ".join(rng.choice(WORDS["en"]) if known else
                        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randrange(2, 6)))
                        for _ in range(count))

    def _text(self, part: str, **numbers: object) -> str:
        return self._pick(part, TEXTS[self.language][part]).format(**numbers)

    def _pick(self, name: str, texts: tuple[tuple[str, ...], tuple[str, ...]]) -> str:
        """A text of the half that is in use; its name goes into the template's."""
        at = self.rng.randrange(len(texts[self.fresh]))
        self.used.append(f"{self.language}-{name}-{'u' if self.fresh else ''}{at}")
        return texts[self.fresh][at]


def _weighted(choices: dict[str, int], rng: random.Random) -> str:
    return rng.choices(list(choices), list(choices.values()))[0]
