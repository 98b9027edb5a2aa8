"""The task of tiny-judge: does a candidate give one of the gold numbers, and only that?

    {"question": "What is 478 + 391?", "gold": ["869"], "candidate": "not 869 but 896"}
    {"rationale": "the answer says 896; beside gold: 88 69 differ", "judgement": "incorrect"}

The rationale writes out what the candidate says and then puts its digits beside those of the gold
number, up to the first difference. Every label follows from how its pair was made
(judge_pairs.py); nobody judged it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from rlteach.judger.verdicts import VERDICTS

SEVERAL_SAID = "several"
# says, beside, beside the next gold, equal, unequal, no number, several numbers
RATIONALE = {
    "en": ("the answer says ", "; beside gold:", "; beside other gold:", " same", " differ",
           "the answer gives no number", "the answer gives several numbers"),
    "zh": ("答案写的是", "；与标准逐位对照：", "；与另一标准对照：", " 相同", " 不同",
           "答案里没有数", "答案写了几个数"),
}
END = "_"  # stands beside the last digit of the longer number, and closes two equal ones
WIDTHS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 3}  # digits of a gold number, and how often
SLIPS = {"off_by_one": 3, "swapped_digits": 3, "changed_digit": 3, "dropped_digit": 2, "added_digit": 2,
         "sign": 2, "decimal": 1, "other_answer": 2}  # ways to a number that is not the gold one


@dataclass(frozen=True)
class Pair:
    """One candidate and its label. `says`: its number in plain digits, SEVERAL_SAID, or None for none.

    language is that of the texts; template names them (`u` marks one that only the held-out split has).
    """

    question: str
    gold: tuple[str, ...]
    candidate: str
    label: str
    kind: str
    template: str
    language: str
    says: str | None


def reply(pair: Pair, language: str) -> str:
    """What tiny-judge should write about this pair when its rubric is in `language` (en, zh)."""
    right, wrong = VERDICTS[language]
    return json.dumps({"rationale": rationale(pair.says, pair.gold, language),
                       "judgement": right if pair.label == "correct" else wrong}, ensure_ascii=False)


def rationale(says: str | None, gold: Sequence[str], language: str) -> str:
    """The digits of what was said beside those of each gold number, up to the first difference.

    >>> rationale("896", ["869", "89"], "en")
    'the answer says 896; beside gold: 88 96 differ; beside other gold: 88 99 6_ differ'
    >>> rationale("-5", ["-5"], "en")
    'the answer says -5; beside gold: -- 55 __ same'
    """
    said, beside, again, same, differ, nothing, several = RATIONALE[language]
    if says is None or says == SEVERAL_SAID:
        return nothing if says is None else several
    text = said + says
    for i, number in enumerate(gold):
        text += again if i else beside
        for x, y in zip(says + END, number + END, strict=False):
            text += f" {x}{y}"
            if x != y:
                break
        else:
            return text + same
        text += differ
    return text


def held(number: int) -> bool:
    """Is this number kept for the held-out split? One in eight, whatever its sign."""
    return sha256(str(abs(number)).encode()).digest()[0] % 8 == 0


def slip(kind: str, number: int, rng: random.Random) -> str | None:
    """A number that is nearly `number`, by one of SLIPS; None where there is none of that kind.

    >>> slip("swapped_digits", 12, random.Random(0)), slip("swapped_digits", 77, random.Random(0))
    ('21', None)
    """
    sign, digits = "-" * (number < 0), str(abs(number))
    at = rng.randrange(len(digits))
    if kind == "off_by_one":
        out = str(number + rng.choice((-1, 1)))
    elif kind == "swapped_digits":
        pairs = [i for i in range(len(digits) - 1) if digits[i] != digits[i + 1]]
        if not pairs:
            return None
        i = rng.choice(pairs)
        out = sign + digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :]
    elif kind == "changed_digit":
        out = sign + digits[:at] + rng.choice("0123456789") + digits[at + 1 :]
    elif kind == "dropped_digit":
        out = sign + digits[:at] + digits[at + 1 :]
    elif kind == "added_digit":
        at = rng.randrange(len(digits) + 1)
        out = sign + digits[:at] + rng.choice("0123456789") + digits[at:]
    elif kind == "sign":
        out = str(-number)
    elif kind == "decimal":
        out = f"{number}.{rng.randrange(1, 10)}"
    else:
        out = str(draw(rng) * rng.choice((1, 1, 1, -1)))
    plain = out.lstrip("-").split(".")[0]
    return out if plain and str(int(plain)) == plain and out != "-0" and out != str(number) else None


def draw(rng: random.Random) -> int:
    """A positive number; WIDTHS says how long."""
    width = rng.choices(list(WIDTHS), list(WIDTHS.values()))[0]
    return rng.randrange(10 ** (width - 1), 10**width)
