r"""Read one number with what stands around it: sign of money, percent, scale, unit, ordinal, base.

A unit that the table knows is kept; any other word after the number is kept as `noun`, and the
comparison decides what that is worth. What is not a number in full is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from rlteach.judger.arithmetic import arithmetic, checked, decimal
from rlteach.judger.numerals import chinese, english, is_chinese_numeral
from rlteach.judger.units import Unit, read_scale, read_unit

_REPEATING = re.compile(r"([+-]?) ?(\d*)\.(\d*) ?\\overline ?\{ ?(\d+) ?\}")
_ORDINAL = re.compile(r"\^? ?\{? ?(?:st|nd|rd|th) ?\}?")
_CURRENCY = re.compile(r"([+-]?) ?(?:dollars |([¥€])) ?(?=[\d.])")
_MONEY = {None: "dollar", "¥": "yuan", "€": "euro"}
_BASED = re.compile(r"([0-9A-Za-z]+) ?_ ?(?:\{ ?(\d{1,2}) ?\}|(\d{1,2}))")
_NOUN = re.compile(r"[^\W\d_]{2,}(?:[ -][^\W\d_]{2,}){0,3}|[mgshL]")
_CHANGES_THE_VALUE = frozenset((
    "or", "and", "more", "less", "fewer", "times", "squared", "cubed", "factorial", "over", "mod",
    "base", "if", "when", "but", "not", "than", "half", "halves", "third", "thirds", "fourths",
    "quarters", "fifths", "tenths", "hundredths", "pair", "pairs", "is", "to", "plus", "minus", "by",
    "of", "about", "approximately", "remainder", "with", "without", "each", "per", "score"))


@dataclass(frozen=True)
class Number:
    """An exact value; `unit` is one of the table, `noun` a word after the number that is none.

    worked is False where arithmetic was left standing: 2+2 rather than 4.
    """

    value: Fraction
    unit: Unit | None = None
    noun: str = ""
    percent: bool = False
    worked: bool = True


@dataclass(frozen=True)
class Based:
    """Digits in a stated base: 52_8 is neither 52 nor 528."""

    digits: str
    base: int


def read_number(text: str) -> Number | Based | None:
    r"""The number that a plain text is as a whole, else None.

    >>> read_number("1 1/2").value, read_number("50%").value, read_number("三十五个").value
    (Fraction(3, 2), Fraction(1, 2), Fraction(35, 1))
    >>> read_number("4 10/3") is None and read_number("2(3)") is None and read_number("5x") is None
    True
    >>> read_number("52_8"), read_number("12 candles").noun
    (Based(digits='52', base=8), 'candles')
    """
    if text.isdecimal() and len(text) < 20:
        return Number(Fraction(int(text)))
    if (match := _BASED.fullmatch(text)) and text[0].isalnum() and not text[0].isalpha():
        return Based(match[1].lower(), int(match[2] or match[3]))
    if match := _REPEATING.fullmatch(text):
        return Number(repeating(*match.groups()))
    if not text.isascii() and (found := in_chinese(text)) is not None:
        return found
    if text.isascii() and text[:1].isalpha() and (value := english(text)) is not None:
        return Number(value)
    if match := _CURRENCY.match(text):
        found = read_number(match[1] + text[match.end():])
        plain_amount = isinstance(found, Number) and not found.unit and not found.percent
        return replace(found, unit=read_unit(_MONEY[match[2]])) if plain_amount else None
    found_value = arithmetic(text)
    if found_value is None:
        return None
    value, tail, worked = found_value
    return with_tail(Number(value, worked=worked), tail)


def with_tail(number: Number, tail: str) -> Number | None:
    """The number with what follows it, or None when that is no unit, scale, percent or noun."""
    spaced, tail = tail[:1] == " ", tail.strip()
    if not tail or (_ORDINAL.fullmatch(tail) and number.value.denominator == 1 and not spaced):
        return number
    if tail in ("%", "percent", "per cent", "percentage", "pct"):
        return replace(number, value=number.value / 100, percent=True)
    scale, tail = read_scale(tail)
    number = replace(number, value=checked(number.value * scale))
    if tail[:1] == "^":
        tail = tail.replace(" ", "")
    if not tail or (unit := read_unit(tail)) is not None:
        return replace(number, unit=unit if tail else None)
    if _NOUN.fullmatch(tail) and (spaced or len(tail) > 3 or not tail.isascii()):
        words = set(re.split("[ -]", tail.lower()))
        return None if words & _CHANGES_THE_VALUE else replace(number, noun=tail)
    return None


def in_chinese(text: str) -> Number | None:
    """三十五个, 百分之五十, 百分之50, 负3: a numeral with its unit."""
    if text.startswith("百分之"):
        rest = read_number(text[3:])
        plain_amount = isinstance(rest, Number) and not rest.unit and not rest.noun and not rest.percent
        return replace(rest, value=rest.value / 100, percent=True) if plain_amount else None
    if text.startswith("负") and text[1:2].isdecimal():
        rest = read_number("-" + text[1:])
        return rest if isinstance(rest, Number) else None
    for end in range(min(len(text), 40), 0, -1):
        if is_chinese_numeral(text[:end]) and (value := chinese(text[:end])) is not None:
            found = with_tail(Number(value), text[end:])
            if found is not None and not found.noun:
                return found
    return None


def repeating(sign: str, whole: str, decimals: str, period: str) -> Fraction:
    """0.1\\overline{6}: one sixth."""
    front = decimal(f"{whole or '0'}.{decimals}")
    cycle = Fraction(decimal(period), 10 ** len(decimals) * (10 ** len(period) - 1))
    return -(front + cycle) if sign == "-" else front + cycle
