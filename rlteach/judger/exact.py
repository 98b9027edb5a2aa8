r"""Compare two forms without an algebra system: equal, different, or not known here.

    same(read("0.5"), read(r"\frac12"))   True
    same(read("20250"), read("20251"))    False: there is no tolerance
    same(read(r"\sqrt2"), read("1.414"))  None: left to the symbolic check

True and False are certain. Whatever is not certain is None, and None is never a reward. `leaf`
decides two parts that are not known here; the symbolic check hands its own one in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from rlteach.judger.forms import Form, Items, Limit, Named, Opaque, Word, is_interval, squeezed
from rlteach.judger.numerals import has_chinese_digit
from rlteach.judger.quantity import Based, Number
from rlteach.judger.units import LETTERS, Unit

Verdict = bool | None
Leaf = Callable[[Form, Form], Verdict]
MOST_ITEMS = 60
_ANY_ORDER = ("list", "set", "union", "and")
_OPPOSITES = ({"yes", "no"}, {"true", "false"}, {"even", "odd"}, {"是", "否"}, {"对", "错"}, {"正确", "错误"},
              {"奇数", "偶数"})


def unknown(gold: Form, answer: Form) -> Verdict:
    """The leaf of the exact core: it knows only what it can read."""
    return None


def same(gold: Form, answer: Form, lenient: bool = False, leaf: Leaf = unknown) -> Verdict:
    """Whether an answer is the gold answer; `lenient` as docs/grading.md says.

    >>> from rlteach.judger.reading import read
    >>> same(read("[2,7]"), read("(2,7)")), same(read("1, 2"), read("2 and 1")), same(read("2"), read("x"))
    (False, True, None)
    """
    if isinstance(gold, Named) or isinstance(answer, Named):
        return same_named(gold, answer, lenient, leaf)
    if isinstance(gold, Number) and isinstance(answer, Number):
        return same_number(gold, answer, lenient)
    if isinstance(gold, Based) or isinstance(answer, Based):
        return same_based(gold, answer, lenient)
    if isinstance(gold, Items) or isinstance(answer, Items):
        return same_items(gold, answer, lenient, leaf)
    if isinstance(gold, Opaque) or isinstance(answer, Opaque):
        if different_units(gold, answer) or one_in_degrees(gold, answer):
            return None
        if isinstance(gold, Opaque) and isinstance(answer, Opaque) \
                and squeezed(gold.text) == squeezed(answer.text):
            return True
        prose = any(isinstance(form, Opaque) and form.prose for form in (gold, answer))
        return None if prose or isinstance(gold, Word) or isinstance(answer, Word) else leaf(gold, answer)
    if isinstance(gold, Word) and isinstance(answer, Word):
        both = {gold.text, answer.text}
        return True if len(both) == 1 else False if both in _OPPOSITES else None
    if isinstance(gold, Limit) and isinstance(answer, Limit):
        return gold.sign == answer.sign
    if any(isinstance(form, Word) and has_chinese_digit(form.text) for form in (gold, answer)):
        return None  # 一百二个 may mean a number
    return False  # a number, a word and infinity are never the same


def different_units(gold: Form, answer: Form) -> bool:
    units = [form.unit for form in (gold, answer) if isinstance(form, Opaque | Number) and form.unit]
    return len(units) == 2 and units[0] != units[1] and "count" not in (units[0][0], units[1][0])


def one_in_degrees(gold: Form, answer: Form) -> bool:
    r"""45^\circ against \frac{\pi}{4}: whether that is an angle in radians is not said."""
    units = [form.unit for form in (gold, answer) if isinstance(form, Opaque | Number)]
    return len(units) == 2 and None in units and any(unit and unit[0] == "angle" for unit in units)


def same_number(gold: Number, answer: Number, lenient: bool) -> Verdict:
    """Values exactly; a unit on one side only is left out, two units are converted."""
    gold, answer = with_unit_letter(gold, answer.unit), with_unit_letter(answer, gold.unit)
    left, right = gold.value, answer.value
    if gold.unit and answer.unit and "count" not in (gold.unit[0], answer.unit[0]):
        if gold.unit[0] != answer.unit[0]:
            return False
        left, right = left * gold.unit[1], right * answer.unit[1]
    equal = left == right
    if lenient and not equal:
        if gold.percent != answer.percent:
            factors = (100 if gold.percent else 1, 100 if answer.percent else 1)
            equal = left * factors[0] == right * factors[1]
        equal |= near(left, right)
    if not answer.noun or lenient or same_noun(gold.noun, answer.noun):
        return equal
    return None  # who knows what a "gross" is


def with_unit_letter(number: Number, other: Unit | None) -> Number:
    """5 m is read as meters where the other side has a unit, too; else m may be a variable."""
    if number.noun in LETTERS and other is not None:
        return replace(number, noun="", unit=LETTERS[number.noun])
    return number


def same_noun(one: str, other: str) -> bool:
    """candle is candles."""
    return one.casefold().rstrip("s") == other.casefold().rstrip("s")


def near(left: Fraction, right: Fraction) -> bool:
    """Only for `lenient`: a decimal that was rounded, within one part in a million; never two integers."""
    rounded = left.denominator != 1 and right.denominator != 1
    return rounded and left != 0 and abs(left - right) <= abs(left) / 1_000_000


def same_based(gold: Form, answer: Form, lenient: bool) -> Verdict:
    """52_8 equals 52_8; whether 52 was meant in base 8 is not known."""
    if isinstance(gold, Based) and isinstance(answer, Based):
        return True if gold == answer else False if gold.base == answer.base else None
    based, other = (gold, answer) if isinstance(gold, Based) else (answer, gold)
    if not isinstance(based, Based) or not isinstance(other, Number):
        return None if isinstance(other, Opaque) else False
    if other.value == Fraction(int(based.digits)) if based.digits.isdecimal() else False:
        return True if lenient and based is gold else None
    return None if other.value == in_ten(based) else False


def in_ten(number: Based) -> int | None:
    try:
        return int(number.digits[:200], number.base)
    except ValueError:  # a digit that the base lacks, or a base beyond 36
        return None


def same_named(gold: Form, answer: Form, lenient: bool, leaf: Leaf) -> Verdict:
    """x = 5 is 5; whether it is y = 5 is not known. Other equations are left to the symbolic check."""
    if isinstance(gold, Named) and isinstance(answer, Named):
        if gold.name == answer.name:
            return same(gold.item, answer.item, lenient, leaf)
        value = same(gold.item, answer.item, lenient, leaf)
        return None if value else value if value is False else leaf(gold, answer)
    named, other = (gold, answer) if isinstance(gold, Named) else (answer, gold)
    assert isinstance(named, Named)
    if isinstance(other, Opaque) and not other.prose and any(sign in other.text for sign in "=<>"):
        return leaf(gold, answer)
    inner = named.item
    return same(inner, other, lenient, leaf) if named is gold else same(other, inner, lenient, leaf)


def same_items(gold: Form, answer: Form, lenient: bool, leaf: Leaf) -> Verdict:
    """Lists and sets in any order; tuples, intervals and matrices in theirs, with their brackets."""
    if not isinstance(gold, Items) or not isinstance(answer, Items):
        return same_as_single(gold, answer, lenient, leaf)
    if len(gold.items) > MOST_ITEMS or len(answer.items) > MOST_ITEMS:
        return None
    if gold.kind in _ANY_ORDER and answer.kind in _ANY_ORDER:
        if "and" in (gold.kind, answer.kind):
            return same_by_name(gold, answer, lenient, leaf)
        return same_in_any_order(distinct(gold), distinct(answer), lenient, leaf)
    in_order = same_in_order(gold.items, answer.items, lenient, leaf)
    if gold.kind == answer.kind:
        return in_order
    if is_interval(gold) and is_interval(answer):
        return False  # open and closed ends matter
    kinds = {gold.kind, answer.kind}
    if kinds == {"()", "list"} and lenient and in_order:
        return True
    return None if in_order is not False else False


def same_by_name(gold: Items, answer: Items, lenient: bool, leaf: Leaf) -> Verdict:
    """x = 1, y = 2 in any order, as long as both sides name the same things."""
    named = [{item.name: item for item in side.items if isinstance(item, Named)} for side in (gold, answer)]
    if gold.kind != answer.kind or named[0].keys() != named[1].keys() \
            or any(len(n) != len(side.items) for n, side in zip(named, (gold, answer), strict=True)):
        return None
    names = sorted(named[0])
    return same_in_order(tuple(named[0][n] for n in names), tuple(named[1][n] for n in names), lenient, leaf)


def same_as_single(gold: Form, answer: Form, lenient: bool, leaf: Leaf) -> Verdict:
    """One thing and several: equal only when each of the several is that one thing."""
    items, one = (gold, answer) if isinstance(gold, Items) else (answer, gold)
    assert isinstance(items, Items)
    if items.kind not in ("list", "set"):
        if isinstance(one, Opaque) and not one.prose:
            return leaf(gold, answer)
        return None if isinstance(one, Opaque) else False
    verdicts = [same(item, one, lenient, leaf) for item in items.items[:MOST_ITEMS]]
    if False in verdicts or not verdicts:
        return False if verdicts else None
    if None in verdicts:  # two parts that are known to differ cannot both be that one thing
        apart = any(same(a, b, lenient) is False for a, b in pairwise(items.items[:MOST_ITEMS]))
        return False if apart else None
    return True


def distinct(items: Items) -> list[Form]:
    """The items without those that are known to repeat another one; 1, 1, 2 is 1, 2."""
    out: list[Form] = []
    for item in items.items:
        if not any(same(item, other) for other in out):
            out.append(item)
    return out


def same_in_order(gold: tuple[Form, ...], answer: tuple[Form, ...], lenient: bool, leaf: Leaf) -> Verdict:
    if len(gold) != len(answer):
        return False
    verdicts = [same(g, a, lenient, leaf) for g, a in zip(gold, answer, strict=True)]
    return False if False in verdicts else None if None in verdicts else True


def same_in_any_order(gold: list[Form], answer: list[Form], lenient: bool, leaf: Leaf) -> Verdict:
    """Pair them off: equal when all pairs can be equal, different when not even 'not known' helps."""
    table = [[same(g, a, lenient, leaf) for a in answer] for g in gold]
    if len(gold) != len(answer):
        known = all(v is not None for row in table for v in row)
        return False if known else None
    if pairs_off([[v is True for v in row] for row in table]):
        return True
    return None if pairs_off([[v is not False for v in row] for row in table]) else False


def pairs_off(possible: list[list[bool]]) -> bool:
    """Whether each row can have a column of its own (augmenting paths)."""
    taken: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, fits in enumerate(possible[row]):
            if fits and column not in seen:
                seen.add(column)
                if column not in taken or place(taken[column], seen):
                    taken[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(possible)))
