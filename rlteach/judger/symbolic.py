r"""The symbolic check: what the exact core does not know. It runs only in a worker process.

math-verify's LaTeX parser (latex2sympy2_extended) reads each part that is opaque to the core, and
values decide: two constants are equal when 50 digits agree, two expressions when they agree at six
points, two equations when one is a constant multiple of the other. So neither a prefix that was
parsed, nor a tiny value that was rounded, nor half of a mixed number can pass for the answer.
math-verify's own comparison is heard only in `lenient`, which is for display.

Nothing is evaluated as Python here: of the two parsers that math-verify has, the one for plain
expressions goes through eval and is never called.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify
from sympy.core.relational import Relational

from rlteach.judger.exact import Verdict, same
from rlteach.judger.forms import Form, Items, Limit, Named, Opaque
from rlteach.judger.guards import not_algebra, too_heavy
from rlteach.judger.quantity import Number
from rlteach.judger.reading import read

DIGITS = 60  # worked with; 45 of them have to agree
AGREE = sympy.Rational(1, 10**45)
_POSITIVE = ("17/13", "29/11", "5/23", "41/19", "7/31", "3/37", "43/47", "53/59")
_CONFIG = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")
_BARE_EXPONENT = re.compile(r"\^ ?(e(?![a-zA-Z])|\d{2,})")  # x^10: its writer means x^{10}
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


class UnreadableError(ValueError):
    """A part that the parser does not read, or that the guards keep from it."""


def check(gold: str, answer: str, lenient: bool = False) -> Verdict:
    """Whether two answers are equal; None when this cannot tell.

    Raises:
        UnreadableError: a part is beyond the parser.
    """
    return same(read(gold), read(answer), lenient, lambda g, a: same_value(g, a, lenient))


def self_test() -> None:
    """A parser that is there but does not fit its run time reads nothing, and says so nowhere."""
    half = parse(r"\frac{1}{2}")
    if half != sympy.Rational(1, 2) or check(r"\sqrt{8}", r"2\sqrt{2}") is not True:
        raise ImportError(rf"math-verify does not read \frac{{1}}{{2}} as 1/2 but as {half}")


def same_value(gold: Form, answer: Form, lenient: bool) -> Verdict:
    """The leaf of the comparison: two parts of which at least one is opaque to the exact core."""
    left, right = parse(latex(gold)), parse(latex(answer))
    verdict = compare(left, right)
    if verdict is False and two_logarithms(latex(gold), latex(answer)):
        return None
    if lenient and verdict is not True:
        return True if rounded(left, right) or verify(left, right, timeout_seconds=None) else verdict
    return verdict


def two_logarithms(one: str, other: str) -> bool:
    r"""\ln on one side and a \log without its base on the other: some authors mean the same by both."""
    return any(r"\ln" in a and re.search(r"\\log(?! ?_)", b) for a, b in ((one, other), (other, one)))


def rounded(left: Any, right: Any) -> bool:
    """Only for `lenient`: two constants within one part in a million, of which one is a decimal."""
    if not all(isinstance(side, sympy.Expr) and not side.free_symbols for side in (left, right)):
        return False
    values = [side.evalf(20) for side in (left, right)]
    decimal = any(side.is_Rational and not side.is_Integer for side in (left, right))
    return decimal and bool(abs(values[0] - values[1]) <= abs(values[0]) / 1_000_000)


def latex(form: Form) -> str:
    """The text of a part, for the parser."""
    if isinstance(form, Number):
        if form.noun:
            raise UnreadableError(f"a number with the word {form.noun}")
        return rf"\frac{{{form.value.numerator}}}{{{form.value.denominator}}}"
    if isinstance(form, Limit):
        return r"\infty" if form.sign > 0 else r"-\infty"
    if isinstance(form, Opaque | Items | Named):
        return form.text
    raise UnreadableError(f"{type(form).__name__} is not algebra")


@lru_cache(maxsize=512)
def parse(text: str) -> Any:
    """A sympy object of the whole text; the grammar ends in EOF, so a prefix is an error."""
    text = _BARE_EXPONENT.sub(r"^{\1}", _THOUSANDS.sub("", text))
    if reason := too_heavy(text) or not_algebra(text):
        raise UnreadableError(reason)
    exact = _DECIMAL.sub(lambda m: rf"\frac{{{int(m[1] + m[2])}}}{{{10 ** len(m[2])}}}", text)
    try:
        return latex2sympy(exact, is_real=False, normalization_config=None, conversion_config=_CONFIG)
    except Exception as error:  # the parser raises bare Exception for what it does not expect
        raise UnreadableError(str(error).splitlines()[0] if str(error) else type(error).__name__) from None


def compare(left: Any, right: Any) -> Verdict:
    """Two sympy objects by their values."""
    if isinstance(left, sympy.MatrixBase) and isinstance(right, sympy.MatrixBase):
        if left.shape != right.shape:
            return False
        verdicts = [compare(a, b) for a, b in zip(left, right, strict=True)]
        return False if False in verdicts else None if None in verdicts else True
    if isinstance(left, Relational) or isinstance(right, Relational):
        return compare_relations(left, right)
    if not isinstance(left, sympy.Expr) or not isinstance(right, sympy.Expr):
        return True if left == right else None
    if isinstance(left, sympy.Symbol) or isinstance(right, sympy.Symbol):
        return compare_symbols(left, right)
    left, right = (side.subs(sympy.Symbol("i", real=False), sympy.I) for side in (left, right))
    if not left.free_symbols and not right.free_symbols:
        return equal_constants(left, right)
    return equal_functions(left, right)


def compare_symbols(left: Any, right: Any) -> Verdict:
    """x is not y; whether 5 is what the choice C says, only the question knows."""
    if isinstance(left, sympy.Symbol) and isinstance(right, sympy.Symbol):
        return True if left == right else None if left.name.lower() == right.name.lower() else False
    choice, other = (left, right) if isinstance(left, sympy.Symbol) else (right, left)
    if choice.name in "ABCDEFGHIJ" and not other.free_symbols:
        return None
    return equal_functions(left, right)


def equal_constants(left: Any, right: Any) -> Verdict:
    if left.is_Rational and right.is_Rational:
        return bool(left == right)
    values = [side.evalf(DIGITS) for side in (left, right)]
    if not all(value.is_number and value.is_finite for value in values):
        return None
    size = max(abs(value) for value in values)
    if size < AGREE:  # all digits cancelled: nothing is known of the ones behind
        return True if left == right else None
    return bool(abs(values[0] - values[1]) <= AGREE * size)


def equal_functions(left: Any, right: Any) -> Verdict:
    """At three positive points and at three of mixed sign; the latter alone decide nothing."""
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    if left.atoms(sympy.core.function.AppliedUndef) or right.atoms(sympy.core.function.AppliedUndef):
        return True if left == right else None
    if left.free_symbols != right.free_symbols and renamed(left, right):
        return None  # x + C and x + c: perhaps the same, perhaps not
    at_positive = [at(point, left, right) for point in points(symbols, mixed=False)]
    if False in at_positive:
        return False
    at_mixed = [at(point, left, right) for point in points(symbols, mixed=True)]
    return True if at_positive.count(True) == 3 and False not in at_mixed else None


def renamed(left: Any, right: Any) -> bool:
    """Whether the two agree once the symbols of one are given the names of the other."""
    names = [sorted(side.free_symbols, key=str) for side in (left, right)]
    if len(names[0]) != len(names[1]):
        return False
    other = right.subs(dict(zip(names[1], names[0], strict=True)), simultaneous=True)
    return all(at(point, left, other) for point in points(names[0], mixed=False))


def points(symbols: list[Any], mixed: bool) -> list[dict[Any, Any]]:
    """Three points without special values: ratios of primes."""
    out = []
    for shift in range(3):
        values = [sympy.Rational(_POSITIVE[(3 * shift + k) % len(_POSITIVE)]) for k in range(len(symbols))]
        signs = [(-1) ** (k + shift + 1) if mixed else 1 for k in range(len(symbols))]
        out.append({s: v * sign for s, v, sign in zip(symbols, values, signs, strict=True)})
    return out


def at(point: dict[Any, Any], left: Any, right: Any) -> Verdict:
    return equal_constants(left.subs(point), right.subs(point))


def compare_relations(left: Any, right: Any) -> Verdict:
    """Equations and inequalities: equal when one is a constant multiple of the other."""
    if not all(isinstance(side, Relational) for side in (left, right)):
        return None
    differences = [side.lhs - side.rhs for side in (left, right)]
    symbols = sorted(differences[0].free_symbols | differences[1].free_symbols, key=str)
    ratios = []
    for point in points(symbols, mixed=False) + points(symbols, mixed=True):
        over, under = (side.subs(point).evalf(DIGITS) for side in differences)
        if not (over.is_number and under.is_number and over.is_finite and under.is_finite) or under == 0:
            return None
        ratios.append(over / under)
    spread = max(abs(ratio - ratios[0]) for ratio in ratios)
    if spread <= AGREE * abs(ratios[0]) and ratios[0] != 0:
        forward = type(left) is type(right) and (ratios[0].is_positive or isinstance(left, sympy.Eq))
        backward = left.reversed.func is right.func and ratios[0].is_negative
        return bool(forward or backward)
    linear = all(side.is_polynomial(*symbols) and sympy.Poly(side, *symbols).total_degree() == 1
                 for side in differences)
    return False if linear and type(left) is type(right) else None
