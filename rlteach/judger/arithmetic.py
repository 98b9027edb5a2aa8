r"""The value of integers, decimals, fractions, mixed numbers, powers and written-out arithmetic.

Exact means rational: no floating point and no tolerance. Arithmetic that is left standing (2+2) is
worked out, too, and marked, because an answer that repeats the question is not an answer. Numbers
beyond LARGEST_BITS are refused before they are made.
"""

from __future__ import annotations

import re
from fractions import Fraction

LARGEST_BITS = 40_000  # about 12,000 decimal digits; the estimate is made before a power is taken
LONGEST_INTEGER = 1_000  # digits

_TOKEN = re.compile(
    r" *(?:(?P<number>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?P<e>[eE][+-]?\d{1,9}(?![\w.]))?"
    r"|(?P<word>\\[a-zA-Z]+)|(?P<sign>[-+*/^(){}!]))")
_TEN = re.compile(r" *(?:\\times|\\cdot|\*|x|X) *10 *\^ *(?:\{ *([+-]?\d{1,9}) *\}|(\d)(?!\d))")
_BARE_EXPONENT = re.compile(r" *([+-]?\d{1,9})(?!\d)")
_PLAIN_PART = re.compile(r" +(\d{1,9})/(\d{1,9})(?!\d)")
_FRAC_PART = re.compile(r" ?\\frac ?\{ ?\d+ ?\} ?\{ ?\d+ ?\}")
_DEGREES = re.compile(r"\^ ?(\\circ|\{\\circ\})")


class TooLargeError(ValueError):
    """A value that would take too much time or memory to write down."""


class NoValueError(ValueError):
    """Arithmetic without a result, as 1/0."""


class _Reader:
    """Recursive descent over one plain text; `at` is where it stands. None: no number here."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.worked, self.depth = text, 0, True, 0

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        return "" if match is None else match["word"] or match["sign"] or "0"

    def take(self) -> re.Match[str]:
        match = _TOKEN.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return match

    def sum(self) -> Fraction | None:
        self.depth += 1
        if self.depth > 20:
            raise TooLargeError("brackets nested deeper than 20")
        value = self.product()
        while value is not None and self.peek() in ("+", "-"):
            sign = self.take()["sign"]
            other = self.product()
            if other is None:
                return None
            self.worked = False
            value = checked(value + other if sign == "+" else value - other)
        self.depth -= 1
        return value

    def product(self) -> Fraction | None:
        sign = -1 if self.peek() == "-" else 1
        if self.peek() in ("+", "-"):
            self.take()
        value, slashes, first = self.power(), 0, self.at
        while value is not None and self.peek() in ("*", "/", r"\times", r"\cdot", r"\div"):
            if scientific := self.power_of_ten(plain_front=slashes == 0 and self.at == first):
                value = checked(value * scientific)
                continue
            operation, negative = self.peek(), False
            self.take()
            if operation == "/" and self.peek() == "-":
                self.take()
                negative = True
            other = self.power()
            if other is None:
                return None
            slashes += operation == "/"
            self.worked &= operation == "/" and slashes == 1
            value = checked(value * other if operation not in ("/", r"\div") else divided(value, other))
            value = -value if negative else value
        return None if value is None or slashes > 1 else sign * value

    def power_of_ten(self, plain_front: bool) -> Fraction | None:
        """The factor of 3 \\times 10^{8}, which is a way to write a number."""
        match = _TEN.match(self.text, self.at) if plain_front else None
        if match is None:
            return None
        self.at = match.end()
        return raised(Fraction(10), int(match[1] or match[2]))

    def power(self) -> Fraction | None:
        base = self.atom()
        if base is None or self.peek() != "^" or _DEGREES.match(self.text, self.at):
            return base
        before = self.at
        self.take()
        if self.peek() == "{":
            exponent = self.group()
        else:  # 2^10 without braces: LaTeX would take the 1 alone, its writer does not
            match = _BARE_EXPONENT.match(self.text, self.at)
            exponent = Fraction(int(match[1])) if match else None
            self.at = match.end() if match else self.at
        if exponent is None:
            self.at = before
            return base
        return None if exponent.denominator != 1 else raised(base, exponent.numerator)

    def atom(self) -> Fraction | None:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            return None
        if match["number"]:
            self.at = match.end()
            value = decimal(match["number"])
            if match["e"]:
                return raised(Fraction(10), int(match["e"][1:])) * value
            return self.mixed(value) if value.denominator == 1 and match["number"].isdigit() else value
        if match["word"] == r"\frac":
            self.take()
            top = self.group()
            bottom = None if top is None else self.group()
            return None if bottom is None or top is None else divided(top, bottom)
        return self.bracket() if match["sign"] == "(" else self.group() if match["sign"] == "{" else None

    def mixed(self, whole: Fraction) -> Fraction | None:
        """2 1/3 and 2\\frac{1}{3}: only a proper fraction makes a mixed number."""
        plain = _PLAIN_PART.match(self.text, self.at)
        if plain:
            self.at = plain.end()
            part = divided(Fraction(int(plain[1])), Fraction(int(plain[2])))
        elif self.peek() == r"\frac":
            begin = self.at
            found = self.atom()
            if found is None or not _FRAC_PART.fullmatch(self.text[begin:self.at]):
                return None
            part = found
        else:
            return whole
        return whole + part if 0 < part < 1 else None

    def group(self) -> Fraction | None:
        return self.enclosed("{", "}")

    def bracket(self) -> Fraction | None:
        return self.enclosed("(", ")")

    def enclosed(self, left: str, right: str) -> Fraction | None:
        if self.peek() != left:
            return None
        self.take()
        value = self.sum()
        if value is None or self.peek() != right:
            return None
        self.take()
        return value


def decimal(text: str) -> Fraction:
    """Digits, with thousands commas and a decimal point, exactly."""
    whole, _, decimals = text.replace(",", "").partition(".")
    if len(whole) + len(decimals) > LONGEST_INTEGER:
        raise TooLargeError(f"a number of more than {LONGEST_INTEGER} digits")
    return Fraction(int((whole or "0") + decimals), 10 ** len(decimals))


def divided(top: Fraction, bottom: Fraction) -> Fraction:
    if bottom == 0:
        raise NoValueError("division by zero")
    return top / bottom


def checked(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > LARGEST_BITS:
        raise TooLargeError("a number of more than 12,000 digits")
    return value


def raised(base: Fraction, exponent: int) -> Fraction:
    """base ** exponent, refused from its size before it is worked out."""
    if base == 0 and exponent <= 0:
        raise NoValueError("zero to a power that is not positive")
    bits = base.numerator.bit_length() + base.denominator.bit_length()
    if base not in (0, 1, -1) and abs(exponent) * bits > LARGEST_BITS:
        raise TooLargeError("a power of more than 12,000 digits")
    return base ** (exponent if base not in (1, -1) else exponent % 2)


def arithmetic(text: str) -> tuple[Fraction, str, bool] | None:
    """The value at the beginning of a text, what is left of it, and whether it was worked out."""
    reader = _Reader(text)
    value = reader.sum()
    return None if value is None else (value, text[reader.at:], reader.worked)
