"""Chinese numerals by a strict grammar, and the English names of small numbers.

A numeral counts only in its full form, which is checked by writing its value again: 一百零二 is 102,
一百二 (which a speaker uses for 120) is not read.
"""

from __future__ import annotations

import re
from fractions import Fraction

_DIGITS = "零一二三四五六七八九"
_VALUE = {c: i for i, c in enumerate(_DIGITS)} | {"〇": 0, "两": 2}
_PLACES = {"十": 10, "百": 100, "千": 1000}
_CHARACTERS = frozenset("零一二三四五六七八九〇两十百千万亿负点分之又半")
_ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
         "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_ENGLISH = {name: i for i, name in enumerate(_ONES)} | {name: 20 + 10 * i for i, name in enumerate(_TENS)}
_ENGLISH_NAME = re.compile(rf"({'|'.join(_TENS)})[- ]({'|'.join(_ONES[1:10])})|([a-z]+)")
LONGEST = 40  # characters of a numeral that is read


def english(text: str) -> Fraction | None:
    """The value of zero, one, ... ninety-nine; None for any other word.

    >>> english("Twenty-one"), english("four"), english("many")
    (Fraction(21, 1), Fraction(4, 1), None)
    """
    match = _ENGLISH_NAME.fullmatch(text.lower())
    if match is None:
        return None
    if match[1]:
        return Fraction(_ENGLISH[match[1]] + _ENGLISH[match[2]])
    value = _ENGLISH.get(match[3])
    return None if value is None else Fraction(value)


def is_chinese_numeral(text: str) -> bool:
    """Whether every character is one of a numeral's."""
    return 0 < len(text) <= LONGEST and _CHARACTERS.issuperset(text)


def has_chinese_digit(text: str) -> bool:
    """Whether any character could be part of a numeral."""
    return not text.isascii() and not _CHARACTERS.isdisjoint(text)


def chinese(text: str) -> Fraction | None:
    """The value of a numeral, None when it is none or not in its full form.

    >>> [str(chinese(t)) for t in ("三十五", "一百零二", "负三", "三分之二", "三点一四", "一又二分之一")]
    ['35', '102', '-3', '2/3', '157/50', '3/2']
    >>> chinese("一百二") is None and chinese("十百") is None
    True
    """
    if not is_chinese_numeral(text):
        return None
    if text[0] == "负":
        value = chinese(text[1:]) if text[1:2] != "负" else None
        return None if value is None else -value
    if text in ("半", "一半"):
        return Fraction(1, 2)
    whole, again, part = text.rpartition("又")
    if "分之" in part:
        bottom, _, top = (_integer_or_decimal(p) for p in part.partition("分之"))
        front = _integer_or_decimal(whole) if again else Fraction(0)
        if top is None or not bottom or front is None or (again and top >= bottom):
            return None
        return front + top / bottom
    return None if again else _integer_or_decimal(text)


def _integer_or_decimal(text: str) -> Fraction | None:
    whole, point, decimals = text.partition("点")
    value = _integer(whole)
    if value is None or not point:
        return None if value is None else Fraction(value)
    if not decimals or any(c not in _VALUE or c == "两" for c in decimals):
        return None
    digits = "".join(str(_VALUE[c]) for c in decimals)
    return value + Fraction(int(digits), 10 ** len(digits))


def _integer(text: str) -> int | None:
    if not text or any(c in "负点分之又半" for c in text):
        return None
    if len(text) > 1 and all(c in _VALUE for c in text):  # 二〇二四: digit by digit
        return None if "两" in text else int("".join(str(_VALUE[c]) for c in text))
    total = section = digit = 0
    for c in text:
        if c in _VALUE:
            digit = _VALUE[c]
        elif c in _PLACES:
            section, digit = section + (digit or (1 if c == "十" else 0)) * _PLACES[c], 0
        elif c == "万":
            total, section, digit = total + (section + digit) * 10**4, 0, 0
        else:
            total, section, digit = (total + section + digit) * 10**8, 0, 0
    value = total + section + digit
    spelt = text.replace("两", "二").replace("〇", "零")
    full = written(value)
    return value if spelt in (full, full.removeprefix("一") if full.startswith("一十") else full) else None


def written(value: int) -> str:
    """A whole number from 0 to below 10**16 in its full form.

    >>> written(10203), written(20_000_050), written(100)
    ('一万零二百零三', '二千万零五十', '一百')
    """
    if value >= 10**8:
        return _joined(written(value // 10**8) + "亿", value % 10**8, 10**7)
    if value >= 10**4:
        return _joined(written(value // 10**4) + "万", value % 10**4, 10**3)
    for name, place in (("千", 1000), ("百", 100), ("十", 10)):
        if value >= place:
            return _joined(_DIGITS[value // place] + name, value % place, place // 10)
    return _DIGITS[value]


def _joined(front: str, rest: int, next_place: int) -> str:
    if rest == 0:
        return front
    return front + ("零" if rest < next_place else "") + written(rest)
