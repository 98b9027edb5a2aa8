r"""Read the form of an answer from its text, from the outside in.

Nothing is judged here. A text that is not understood is no error; its form is Opaque.
"""

from __future__ import annotations

import re

from rlteach.judger.arithmetic import TooLargeError
from rlteach.judger.forms import Form, Items, Limit, Named, Opaque, Word, is_interval, squeezed
from rlteach.judger.guards import LONGEST
from rlteach.judger.notation import closes, plain, split
from rlteach.judger.numerals import is_chinese_numeral
from rlteach.judger.quantity import Number, read_number
from rlteach.judger.units import Unit, read_unit

DEEPEST = 8  # tuples of sets of ...

_PREFIX = re.compile(r"(?:the |my )?(?:final )?answer(?: is\b| ?:) ?:? ?"
                     r"|(?:所以|因此)?(?:最终)?(?:答案|结果)(?:[是为]|等于)? ?:? ?"
                     r"|一?共有|[是为共] ?|等于", re.IGNORECASE)
_CONNECTOR = re.compile(r"(?:\s*[,;]\s*|\s+)(?:and|or)\s+|\s*;\s*|,\s+|\s*,?(?:或者|或|和|与|及|以及)\s*")
_BEFORE_UNIT = re.compile(r"(?<=[\w})]) (?=[A-Za-z])")
_COMMA = re.compile(r"\s*,\s*")
_COMMA_OR_SEMICOLON = re.compile(r"\s*[,;]\s*")
_THOUSANDS = re.compile(r"[+-]? ?(?:dollars |[¥€])? ?\d{1,3}(?:,\d{3})+(?!\d|,).*")
_AMBIGUOUS = re.compile(r"[(\[]\d{1,3}(?:,\d{3})+[)\]]")
_CUP = re.compile(r"\s*\\cup(?![a-zA-Z])\s*")
_EQUALS = re.compile(r"\s*(?<![<>=!:])=(?![=])\s*")
_IN = re.compile(r"\s*\\in(?![a-zA-Z])\s*")
_RELATION = re.compile(r"\s*(\\[lg]e(?![a-zA-Z])|<=|>=|<|>)\s*")
_NAME = re.compile(r"(?:\\(?:angle|triangle|overline|vec|measuredangle) ?)?\{?(?:[A-Za-z]{1,3}|\\[a-z]+)\}?"
                   r"(?: ?_ ?(?:\{[^{}]{1,8}\}|\w))?'?(?: ?\([a-z](?:, ?[a-z])*\))?|[\u4e00-\u9fff]{1,6}")
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_INFINITY = re.compile(r"([+-]?) ?(?:\\infty|infinity|inf)", re.IGNORECASE)
_MATRIX = re.compile(r"\\begin ?\{ ?([pbB]?matrix|array) ?\}(?: ?\{[lcr| ]*\})?(.*)\\end ?\{ ?\1 ?\}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end) ?\{[^{}]*\}|\\[a-zA-Z]+")
_PROSE = re.compile(r"[A-Za-z]{4,}|[^\x00-\x7f]|(?<![A-Za-z])[A-Za-z]{2,3} +[A-Za-z]{2,}|[?!:;'\"`#@&~]{2}")


def read(text: str) -> Form:
    r"""What an answer is. Raises TooLargeError or NoValueError for a number that cannot be made.

    >>> read(r"$x = \frac12$").item.value, read("{3, 4}").kind, read("1331 和 1728").kind
    (Fraction(1, 2), 'list', 'list')
    >>> read("(C)").text, read("see solution").prose
    ('C', True)
    """
    if len(text) > LONGEST:
        raise TooLargeError(f"a text of {len(text)} characters")
    text = plain(text)
    if (prefix := _PREFIX.match(text)) and prefix.end() < len(text):
        text = plain(text[prefix.end():])
    return structure(text, 0)


def structure(text: str, depth: int) -> Form:
    """A plain text, from the outside in: list, name, relation, bracket, number, word."""
    if not text or depth > DEEPEST:
        return Opaque(text, prose=True)
    if text.isdecimal():
        return read_number(text) or Opaque(text)
    for reader in (read_plus_minus, read_list, read_equation, read_inequality, read_union, read_bracket,
                   read_matrix):
        found = reader(text, depth)
        if found is not None:
            return found
    found = read_number(text)
    if found is not None:
        return found
    if match := _INFINITY.fullmatch(text):
        return Limit(-1 if match[1] == "-" else 1)
    if _LETTERS.fullmatch(text) and not is_chinese_numeral(text):
        return Word(text.casefold())
    front, unit = without_unit(text)
    return Opaque(front, prose=is_prose(front), unit=unit)


def without_unit(text: str) -> tuple[str, Unit | None]:
    r"""18\pi cm^2 -> 18\pi and its unit; what is no unit stays."""
    for match in list(_BEFORE_UNIT.finditer(text))[-4:]:  # the longest tail that is one
        tail = text[match.end():]
        unit = read_unit(tail.replace(" ^", "^"))
        if unit is not None:
            return text[:match.start()], unit
    return text, None


def is_prose(text: str) -> bool:
    """Words between the signs: text for a reader, not for an algebra system."""
    return _PROSE.search(_ENVIRONMENT.sub(" ", text)) is not None


def read_plus_minus(text: str, depth: int) -> Form | None:
    r"""1 \pm 2 is two answers."""
    if text.count(r"\pm") != 1 or r"\mp" in text:
        return None
    front, _, back = text.partition(r"\pm")
    if not front.strip() and front.count("{") == 0:
        both = [back, "-" + back]
    else:
        both = [f"{front}+{back}", f"{front}-{back}"]
    return joined("list", [structure(" ".join(t.split()), depth + 1) for t in both], text)


def read_list(text: str, depth: int) -> Form | None:
    """Parts with commas, semicolons, and/or, 和/或 between them; a thousands comma is none."""
    parts = split(text, _CONNECTOR)
    pieces: list[str] = []
    for part in parts:
        pieces += [part] if _THOUSANDS.fullmatch(part) and len(split(part, _COMMA)) > 1 \
            else split(part, _COMMA)
    if len(pieces) < 2:
        return None
    if not all(pieces):
        return Opaque(text, prose=True)
    items = [structure(piece, depth + 1) for piece in pieces]
    if any(isinstance(item, Opaque) and item.prose for item in items):
        return Opaque(text, prose=True)
    relations = [item for item in items if isinstance(item, Named) and is_interval(item.item)]
    if len(relations) == len(items):  # x < 1 or x > 3
        either = re.search(r"\bor\b|或", text) is not None
        return joined("union", items, text) if either else Opaque(text)
    return joined("list", items, text)


def joined(kind: str, items: list[Form], text: str) -> Form:
    """Items; where all have one name, the name once; where they have several, each with its own."""
    names = {item.name for item in items if isinstance(item, Named)}
    if len(names) == 1 and all(isinstance(item, Named) for item in items):
        inner = tuple(item.item for item in items if isinstance(item, Named))
        return Named(names.pop(), Items(kind, inner, text), text)
    if names and kind == "list":
        first_only = len(names) == 1 and isinstance(items[0], Named) and len(items) > 1
        if first_only and isinstance(items[0], Named):  # x = 1, 2
            return Named(items[0].name, Items(kind, (items[0].item, *items[1:]), text), text)
        return Items("and", tuple(items), text)
    return Items(kind, tuple(items), text)


def read_equation(text: str, depth: int) -> Form | None:
    r"""x = 5, x \in [2,7], and chains of equal numbers such as 25+50 = 75."""
    sides = split(text, _IN)
    if len(sides) == 2 and all(sides) and _NAME.fullmatch(sides[0]):
        return Named(squeezed(sides[0]), structure(sides[1], depth + 1), text)
    sides = split(text, _EQUALS)
    if len(sides) < 2 or not all(sides):
        return None
    if _NAME.fullmatch(sides[0]) and read_number(sides[0]) is None:
        return Named(squeezed(sides[0]), structure("=".join(sides[1:]), depth + 1), text)
    if len(sides) == 2 and re.fullmatch("[A-Za-z]", sides[1]):  # 5 = x
        return Named(sides[1], structure(sides[0], depth + 1), text)
    numbers = [read_number(side) for side in sides]
    if all(isinstance(number, Number) for number in numbers):
        values = [number for number in numbers if isinstance(number, Number)]
        if len({number.value for number in values}) > 1:
            return Items("list", tuple(values), text)
        return next((number for number in values if number.worked), values[-1])
    return Opaque(text, prose=is_prose(text))


def read_inequality(text: str, depth: int) -> Form | None:
    r"""x < 3, 2 \le x < 5: the interval it describes."""
    marks = list(_RELATION.finditer(text))
    sides = split(text, _RELATION)
    if not marks or len(sides) != len(marks) + 1 or len(marks) > 2 or not all(sides):
        return None
    signs = [mark[1].replace("<=", r"\le").replace(">=", r"\ge") for mark in marks]
    if signs[0] in (">", r"\ge"):  # read it from right to left
        sides = sides[::-1]
        signs = [{">": "<", r"\ge": r"\le"}.get(sign, "") for sign in signs[::-1]]
    if any(sign not in ("<", r"\le") for sign in signs):
        return Opaque(text, prose=is_prose(text))
    if len(signs) == 2:
        low, name, high = sides
        left, right = ("(" if signs[0] == "<" else "["), (")" if signs[1] == "<" else "]")
    elif _NAME.fullmatch(sides[0]):
        low, name, high = r"-\infty", *sides
        left, right = "(", (")" if signs[0] == "<" else "]")
    else:
        low, name, high = *sides, r"\infty"
        left, right = ("(" if signs[0] == "<" else "["), ")"
    if not _NAME.fullmatch(name):
        return Opaque(text, prose=is_prose(text))
    ends = (structure(low, depth + 1), structure(high, depth + 1))
    return Named(squeezed(name), Items(left + right, ends, text), text)


def read_union(text: str, depth: int) -> Form | None:
    parts = split(text, _CUP)
    if len(parts) < 2 or not all(parts):
        return None
    return Items("union", tuple(structure(part, depth + 1) for part in parts), text)


def read_bracket(text: str, depth: int) -> Form | None:
    """A set, a tuple, an interval, or a bracket around one thing."""
    if squeezed(text) in (r"\{\}", r"\emptyset"):
        return Items("set", (), text)
    if text.startswith(r"\{") and text.endswith(r"\}") and closes(text, 1) == len(text) - 1:
        pieces = split(text[2:-2].strip(), _COMMA_OR_SEMICOLON)
        if not all(pieces):
            return Opaque(text, prose=True)
        return Items("set", tuple(structure(piece, depth + 1) for piece in pieces), text)
    if text[0] not in "([" or text[-1] not in ")]" or closes(text, 0) != len(text) - 1:
        return None
    pieces = split(text[1:-1].strip(), _COMMA_OR_SEMICOLON)
    if not all(pieces) or _AMBIGUOUS.fullmatch(text):
        return Opaque(text, prose=True)
    if len(pieces) == 1:
        inner = structure(pieces[0], depth + 1)
        return inner if text[0] + text[-1] == "()" else Opaque(text, prose=is_prose(text))
    return Items(text[0] + text[-1], tuple(structure(piece, depth + 1) for piece in pieces), text)


def read_matrix(text: str, depth: int) -> Form | None:
    match = _MATRIX.fullmatch(text)
    if match is None or r"\begin" in match[2]:
        return None
    rows = [row for row in match[2].split(r"\\") if row.strip()]
    cells = [tuple(structure(cell.strip(), depth + 1) for cell in row.split("&")) for row in rows]
    return Items("matrix", tuple(Items("row", row) for row in cells), text)
