r"""What is refused before anything looks at it: program code, text without end, numbers without end.

An algebra system that is given 5^{5^{5^{5}}} is lost in one call into C, which no signal ends. The
time limit of the worker process is the last line of defence; this is the first one.
"""

from __future__ import annotations

import re

from rlteach.judger.notation import closes

LONGEST = 1_000  # characters of an answer
DEEPEST = 8  # brackets in brackets: the parser's time grows steeply with them
LARGEST_EXPONENT = 4_000
LARGEST_FACTORIAL = 300

_CODE = re.compile(
    r"__|\bimport\b|\blambda\b|\beval\b|\bexec\b|\bgetattr\b|\bglobals\b|\bopen ?\("
    r"|[A-Za-z_)\]]\.[A-Za-z_]{2,}|;\s*(?:rm|import)\b"
    r"|\\(?:input|include|write|read|def|csname|catcode|openin|immediate)(?![a-zA-Z])")
_COMMANDS = frozenset((
    "frac", "sqrt", "binom", "pi", "alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu",
    "nu", "rho", "sigma", "tau", "phi", "varphi", "omega", "Delta", "Omega", "Phi", "sin", "cos", "tan",
    "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "exp", "cdot",
    "times", "div", "le", "ge", "ne", "infty", "lfloor", "rfloor", "lceil", "rceil"))
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_STRANGE = re.compile(r"[\"'`;,@#&%?:~]|\\[^a-zA-Z{}|]|\d ?_|\d +\d|\d ?\\frac|[+*/^] ?[+*/^]|\^ ?-"
                      r"|[^\x00-\x7f]")
# What the parser takes for a mixed number or for a longer denominator: 2(3) is 5 to it, 1/2x is 1/(2x).
_MISREAD = re.compile(r"\d ?\{|(?:^|[^a-zA-Z^_\]} ]) ?\{|[\^_] ?\{[^{}]*\} ?\{|/ ?\d+ ?[a-zA-Z\\(]|! ?\d")
_PRODUCT = re.compile(r"[\d)}] ?\(")
_INTEGER = re.compile(r"\d+")
_FACTORIAL = re.compile(r"(\d*)\s*!")
_BINOMIAL = re.compile(r"\\binom ?\{([^{}]*)\} ?\{([^{}]*)\}")


def is_code(text: str) -> bool:
    """Whether a text reads as a program; no mathematics is written like that.

    >>> is_code("().__class__"), is_code("__import__('os')"), is_code(r"3.5\\text{ m}")
    (True, True, False)
    """
    return _CODE.search(text) is not None


def too_heavy(text: str) -> str:
    r"""Why a text must not reach the algebra system; empty when it may.

    >>> too_heavy("5^{5^{5^{5}}}"), too_heavy("1000000!"), too_heavy(r"\frac{11+9a}{20}")
    ('a tower of powers', 'a factorial beyond 300!', '')
    """
    if len(text) > LONGEST:
        return f"longer than {LONGEST} characters"
    depth = deepest = 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        return f"brackets deeper than {DEEPEST}"
    if any(len(number) > 60 for number in _INTEGER.findall(text)):
        return "an integer of more than 60 digits"
    return heavy_powers(text) or heavy_factorials(text)


def not_algebra(text: str) -> str:
    r"""Why one part is not what the parser reads in full; empty when it may be.

    >>> not_algebra("4 10/3"), not_algebra(r"\int x"), not_algebra("52_8"), not_algebra("2(3)")
    ("'4 1' is not read", '\\int is not read', "'2_' is not read", "'2(3)' is not read")
    """
    unknown = [name for name in _COMMAND.findall(text) if name not in _COMMANDS]
    if unknown:
        return f"\\{unknown[0]} is not read"
    strange = _STRANGE.search(text) or _MISREAD.search(text)
    if strange is not None:
        return f"{strange.group()!r} is not read"
    for found in _PRODUCT.finditer(text):
        inner = text[found.end():closes(text, found.end() - 1)]
        if not any(c.isalpha() for c in inner.replace(r"\frac", "")):
            return f"'{found.group()}{inner})' is not read"
    return ""


def heavy_powers(text: str) -> str:
    """Exponents whose value alone fills the memory."""
    if text.count("^") > 30:
        return "more than 30 powers"
    for i, c in enumerate(text):
        if c != "^":
            continue
        rest = text[i + 1:].lstrip()
        end = closes(rest, 0) if rest[:1] == "{" else 0
        exponent = rest[:end + 1] if end > 0 else rest[:12].split(" ")[0]
        numbers = [int(number) for number in _INTEGER.findall(exponent)]
        if "^" in exponent and (exponent.count("^") > 1 or not _is_small(text)):
            return "a tower of powers"
        if max(numbers, default=0) > LARGEST_EXPONENT or (len(numbers) > 1 and product(numbers) > 10**6):
            return f"a power beyond {LARGEST_EXPONENT}"
    return ""


def _is_small(text: str) -> bool:
    return max((int(number) for number in _INTEGER.findall(text)), default=0) <= 9 and text.count("^") <= 4


def product(numbers: list[int]) -> int:
    value = 1
    for number in numbers:
        value *= max(number, 1)
    return value


def heavy_factorials(text: str) -> str:
    for found in _FACTORIAL.finditer(text):
        if found[1] == "" and (found.start() == 0 or not text[found.start() - 1].isalpha()):
            return "a factorial of something that is not a plain number"
        if found[1] and int(found[1]) > LARGEST_FACTORIAL:
            return f"a factorial beyond {LARGEST_FACTORIAL}!"
    for top, bottom in _BINOMIAL.findall(text):
        if any(int(n) > 1_000 for n in _INTEGER.findall(f"{top} {bottom}")) or "!" in top + bottom:
            return "a binomial coefficient beyond 1000"
    return ""
