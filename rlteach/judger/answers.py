"""Find the final answer in a text, and read it as an exact number.

Exact means rational: no floating point, no tolerance, nothing executed. What cannot be read is
None, and the judger decides whose fault that is.
"""

from __future__ import annotations

import re
from fractions import Fraction
from unicodedata import category

LONGEST = 200  # characters of an answer that are looked at: int() of a longer text costs seconds

_BRACE = re.compile(r"(\\boxed\s*)?\{|\}")
_INTEGER = r"\d+|\d{1,3}(?:,\d{3})+"
_NUMBER = re.compile(rf"([+-]?)(?:({_INTEGER})(?:\.(\d+))?|\.(\d+))")
_FRACTION = re.compile(r"([+-]?)(?:\\[dt]?frac\{(\d+)\}\{(\d+)\}|(\d+)/(\d+))")
_MIXED = re.compile(r"([+-]?)(\d+) +(\d+)/(\d+)")
_OTHER = re.compile(r"[+-]?[\d.,]+ ?([eE][+-]?\d+|%)|[+-] +[\d.,/]+|[+-]?\d+/[+-]\d+")


def final_answer(text: str) -> str | None:
    r"""Content of the last \boxed{...} that is closed, or None.

    >>> final_answer(r"so \boxed{1} or rather \boxed{\frac{1}{2}}")
    '\\frac{1}{2}'
    >>> final_answer(r"\boxed{1} and then \boxed{2")
    '1'
    """
    opened: list[tuple[bool, int]] = []  # of each brace that is open: is it a box, where does it begin
    last, end = -1, 0
    for brace in _BRACE.finditer(text):
        if brace.group() != "}":
            opened.append((brace.group(1) is not None, brace.end()))
        elif opened:
            is_box, begin = opened.pop()
            if is_box and begin > last:
                last, end = begin, brace.start()
    return None if last < 0 else text[last:end].strip()


def parse_number(text: str) -> Fraction | None:
    r"""An integer, decimal or fraction, exactly; None when it is none of these.

    >>> parse_number("1,234.50"), parse_number(r"-\frac{3}{4}"), parse_number("6/8")
    (Fraction(2469, 2), Fraction(-3, 4), Fraction(3, 4))
    >>> parse_number("12 candles") is None and parse_number("1/0") is None
    True
    """
    text = text.strip().strip("$").strip().removesuffix(".").replace("\u2212", "-")
    if len(text) > LONGEST or not text.isascii():
        return None
    if match := _FRACTION.fullmatch(text):
        sign, *parts = match.groups()
        top, bottom = (int(p) for p in parts if p is not None)
        return None if bottom == 0 else Fraction(-top if sign == "-" else top, bottom)
    if match := _MIXED.fullmatch(text):
        whole, top, bottom = (int(part) for part in match.groups()[1:])
        value = Fraction(whole * bottom + top, bottom) if top < bottom else None
        return -value if value is not None and match[1] == "-" else value
    if match := _NUMBER.fullmatch(text):
        sign, whole, decimals, bare = match.groups()
        digits = decimals or bare or ""
        value = Fraction(int((whole or "0").replace(",", "") + digits), 10 ** len(digits))
        return -value if sign == "-" else value
    return None


def other_notation(text: str) -> bool:
    """True for a number that is written in a way which `parse_number` does not read.

    >>> other_notation("50%"), other_notation("1e5"), other_notation("½"), other_notation("five")
    (True, True, True, False)
    """
    odd = any(category(c)[0] == "N" and not c.isascii() for c in text)
    return odd or _OTHER.fullmatch(text.strip().strip("$").replace("\u2212", "-")) is not None


def several_numbers(text: str) -> bool:
    """True when the text offers two or more different numbers, as in "3 or 4".

    >>> several_numbers("3 or 4"), several_numbers("1,234"), several_numbers("3, 3.0")
    (True, False, False)
    """
    if parse_number(text) is not None:
        return False
    parts = [parse_number(p) for p in re.split(r",|;|\bor\b|\band\b|或|和", text[:LONGEST])]
    return len({p for p in parts if p is not None}) > 1
