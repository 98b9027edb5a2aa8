r"""Answers by grammar: pairs whose truth is known from how they were made, and noise.

kept(rng, text)     the same answer, written otherwise
pair(rng)           (gold, [other answers, all of them different in value])
noise(rng, canary)  anything at all: what a model, a cat or an attacker may write
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable
from fractions import Fraction

Rewrite = Callable[[random.Random, str], str]
FULL_WIDTH = str.maketrans("0123456789", "０１２３４５６７８９")


def decimal_text(cents: int, places: int) -> str:
    sign, cents = "-" if cents < 0 else "", abs(cents)
    return f"{sign}{cents // 10**places}.{cents % 10**places:0{places}d}"


def fraction_text(value: Fraction) -> str:
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


# true pairs, each with answers that differ ------------------------------------------------------------


def integer(rng: random.Random) -> tuple[str, list[str]]:
    n = rng.choice([1, -1]) * rng.randrange(1, 10 ** rng.randint(1, 7))
    others = [-n, n + 1, n - 1, 100 * n, Fraction(n, 100), 10 * n, n + 10, 2 * n]
    texts = [str(o) if Fraction(o).denominator == 1 else fraction_text(Fraction(o)) for o in others]
    return str(n), [
        *texts,
        f"{n}%",
        f"{n}_8",
        f"{n} or {n + 1}",
        f"{n}, {-n}",
        f"({n}, {n})",
        f"{n}.5",
        f"{n}!1",
        f"{n}^2" if abs(n) > 1 else "17",
        rf"\sqrt{{{abs(n) + 1}}}",
        f"{n}x",
    ]


def decimal(rng: random.Random) -> tuple[str, list[str]]:
    places = rng.randint(1, 5)
    n = rng.choice([1, -1]) * (rng.randrange(1, 10**7) // 10 * 10 + rng.randrange(1, 10))
    return decimal_text(n, places), [
        decimal_text(-n, places),
        decimal_text(n + 1, places),
        decimal_text(n - 1, places),
        decimal_text(100 * n, places),
        decimal_text(n, places + 2),
        decimal_text(n, places) + "1",
        str(n),
        f"{decimal_text(n, places)}%",
        f"{decimal_text(n, places)}, 1",
    ]


def fraction(rng: random.Random) -> tuple[str, list[str]]:
    value = Fraction(rng.choice([1, -1]) * rng.randrange(1, 99), rng.randrange(2, 99))
    if abs(value.numerator) in (0, value.denominator) or value.denominator == 1:
        value = Fraction(2, 7)
    a, b = value.numerator, value.denominator
    others = [
        -value,
        1 / value,
        value + 1,
        value + Fraction(1, b),
        100 * value,
        value / 100,
        Fraction(a, b + 1),
    ]
    return fraction_text(value), [
        *map(fraction_text, others),
        str(a),
        str(b),
        f"{a}, {b}",
        f"({a}, {b})",
        f"{abs(a)}{b}",
        f"{fraction_text(value)}%",
    ]


def mixed(rng: random.Random) -> tuple[str, list[str]]:
    b = rng.randrange(2, 20)
    w, a = rng.randrange(1, 50), rng.randrange(1, b)
    value = w + Fraction(a, b)
    return rf"{w}\frac{{{a}}}{{{b}}}", [
        str(w),
        fraction_text(Fraction(a, b)),
        fraction_text(Fraction(w * a, b)) + "0",
        fraction_text(value + 1),
        rf"-{w}\frac{{{a}}}{{{b}}}",
        rf"{w}\frac{{{a + b}}}{{{b}}}",
        f"{w} {a + b}/{b}",
        f"{w}, {a}/{b}",
    ]


def pair_of_numbers(rng: random.Random) -> tuple[str, list[str]]:
    a, b = rng.sample(range(-50, 50), 2)
    return f"({a}, {b})", [
        f"({b}, {a})",
        f"({a}, {b}]",
        f"[{a}, {b}]",
        f"({a}, {b + 1})",
        f"({-a - 1}, {b})",
        f"({a})",
        f"({a}, {b}, {b})",
        f"{a}",
        rf"\{{{a}, {b}\}}",
    ]


def interval(rng: random.Random) -> tuple[str, list[str]]:
    a = rng.randrange(-50, 50)
    b = a + rng.randrange(1, 50)
    return f"[{a}, {b})", [
        f"[{a}, {b}]",
        f"({a}, {b})",
        f"({a}, {b}]",
        f"[{a + 1}, {b})",
        f"[{a}, {b + 1})",
        f"[{a - 1}, {b})",
        rf"[{a}, \infty)",
        f"{a} < x < {b}",
        rf"{a} \le x \le {b}",
    ]


def several(rng: random.Random) -> tuple[str, list[str]]:
    a, b, c = rng.sample(range(-99, 99), 3)
    return f"{a}, {b}, {c}", [
        f"{a}, {b}",
        f"{b}, {c}",
        f"{a}",
        f"{a}, {b}, {c + 200}",
        f"{-a - 200}, {b}, {c}",
        f"{a}, {b}, {c}, {c + 200}",
        f"{a} and {b}",
        f"{a + 100 * b}",
    ]


def a_set(rng: random.Random) -> tuple[str, list[str]]:
    a, b = rng.sample(range(-99, 99), 2)
    return rf"\{{{a}, {b}\}}", [
        rf"\{{{a}\}}",
        rf"\{{{a}, {b + 200}\}}",
        rf"\{{{a}, {b}, {b + 200}\}}",
        f"{b}",
        r"\{\}",
    ]


def surd(rng: random.Random) -> tuple[str, list[str]]:
    a, b = rng.randrange(2, 20), rng.choice([2, 3, 5, 6, 7, 10, 11])
    return rf"{a}\sqrt{{{b}}}", [
        rf"-{a}\sqrt{{{b}}}",
        rf"{a}\sqrt{{{b + 1}}}",
        rf"{a + 1}\sqrt{{{b}}}",
        f"{a}",
        rf"\sqrt{{{a * b}}}",
        f"{(a * a * b) ** 0.5:.4f}",
        rf"{a}+\sqrt{{{b}}}",
        rf"{a}\sqrt{{{b}}}, {a}",
        rf"{100 * a}\sqrt{{{b}}}",
    ]


def linear(rng: random.Random) -> tuple[str, list[str]]:
    a, b = rng.randrange(2, 20), rng.randrange(1, 20)
    return f"{a}x+{b}", [
        f"{a}x-{b}",
        f"{a}(x+{b})",
        f"{a + 1}x+{b}",
        f"{a}x+{b + 1}",
        f"{a}x",
        f"{a}y+{b}",
        f"-{a}x+{b}",
        f"{a}x^2+{b}",
        f"{a + b}x",
    ]


def measure(rng: random.Random) -> tuple[str, list[str]]:
    n, (unit, other) = rng.randrange(2, 500), rng.choice([("cm", "m"), ("kg", "g"), ("hours", "minutes")])
    return rf"{n}\text{{ {unit}}}", [
        str(n + 1),
        rf"{n}\text{{ {other}}}",
        str(-n),
        str(100 * n),
        rf"{n + 1}\text{{ {unit}}}",
        rf"{n}\text{{ {unit}}}^2",
        rf"{n}\text{{ dollars}}",
    ]


def based(rng: random.Random) -> tuple[str, list[str]]:
    n = "".join(rng.choice("1234567") for _ in range(rng.randint(2, 5)))
    return f"{n}_8", [n + "8", f"{n}1_8", f"{n}_9", str(int(n, 8)), n[::-1] + "1_8", f"-{n}"]


KINDS = (
    integer,
    integer,
    decimal,
    fraction,
    mixed,
    pair_of_numbers,
    interval,
    several,
    a_set,
    surd,
    linear,
    measure,
    based,
)


def pair(rng: random.Random) -> tuple[str, list[str]]:
    """A gold answer, and answers that differ from it."""
    return rng.choice(KINDS)(rng)


# rewrites that keep the value -------------------------------------------------------------------------


def wide(_: random.Random, text: str) -> str:
    """Full-width digits; not inside a command's braces, where nobody writes them."""
    return text if "\\" in text else text.translate(FULL_WIDTH)


def thousands(_: random.Random, text: str) -> str:
    return f"{int(text):,}" if re.fullmatch(r"-?\d{4,}", text) else text


def same_fraction(rng: random.Random, text: str) -> str:
    """Another fraction of the same value, or a/b for \\frac."""
    match = re.fullmatch(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", text)
    if match is None:
        return text
    k = rng.randrange(1, 5)
    a, b = int(match[2]) * k, int(match[3]) * k
    return rng.choice(
        [f"{match[1]}{a}/{b}", rf"{match[1]}\frac{{{a}}}{{{b}}}", rf"{match[1]}\tfrac{{{a}}}{{{b}}}"]
    )


def number_only(change: Callable[[str], str]) -> Rewrite:
    return lambda _, text: change(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else text


REWRITES: dict[str, Rewrite] = {
    "as it is": lambda _, t: t,
    "dollars": lambda _, t: f"${t}$",
    "parentheses of LaTeX": lambda _, t: rf"\({t}\)",
    "full stop": lambda _, t: f"{t}.",
    "spaces": lambda _, t: f"  {t} ",
    "CRLF": lambda _, t: f"\r\n{t}\r\n",
    "spaces after commas": lambda _, t: t.replace(", ", ",  "),
    "dfrac": lambda _, t: t.replace(r"\frac", r"\dfrac"),
    "tfrac": lambda _, t: t.replace(r"\frac", r"\tfrac"),
    "braces": lambda _, t: f"{{{t}}}",
    "box in the box": lambda _, t: rf"\boxed{{{t}}}",
    "fbox": lambda _, t: rf"\fbox{{{t}}}",
    "full-width digits": wide,
    "U+2212": lambda _, t: t.replace("-", "\u2212"),
    "left and right": lambda _, t: t if r"\(" in t else t.replace("(", r"\left(").replace(")", r"\right)"),
    "displaystyle": lambda _, t: rf"\displaystyle {t}",
    "thin spaces": lambda _, t: t.replace(", ", r",\, ").replace("+", r"\,+\,"),
    "bold": lambda _, t: f"**{t}**",
    "a name": lambda _, t: f"S = {t}" if "x" not in t and "_" not in t else t,
    "answer is": lambda _, t: f"the answer is {t}",
    "Chinese words": lambda _, t: f"答案是{t}",
    "thousands": thousands,
    "another fraction": same_fraction,
    "trailing zeros": number_only(lambda t: t + "00" if "." in t else t + ".0"),
    "text": number_only(lambda t: rf"\text{{{t}}}"),
    "unit": number_only(lambda t: rf"{t}\text{{ cm}}"),
    "plus sign": number_only(lambda t: t if t[0] == "-" else f"+{t}"),
}


def kept(rng: random.Random, text: str) -> tuple[str, str]:
    """The name of a rewrite, or of two, and the answer it makes."""
    one, other = rng.choice(list(REWRITES)), rng.choice(list(REWRITES))
    if rng.random() < 0.6 or "box" in one + other:
        return one, REWRITES[one](rng, text)
    return f"{one} + {other}", REWRITES[other](rng, REWRITES[one](rng, text))


# noise ------------------------------------------------------------------------------------------------

PIECES = (
    "\\frac",
    "\\sqrt",
    "\\pm",
    "\\cup",
    "\\in",
    "\\text",
    "\\boxed",
    "\\fbox",
    "\\left",
    "\\right",
    "\\{",
    "\\}",
    "\\begin{pmatrix}",
    "\\end{pmatrix}",
    "\\\\",
    "&",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "^",
    "_",
    "!",
    "%",
    "$",
    ",",
    ";",
    " ",
    "=",
    "<",
    ">",
    "+",
    "-",
    "*",
    "/",
    ".",
    "x",
    "e",
    "i",
    "pi",
    "and",
    "or",
    "1",
    "2",
    "10",
    "3.5",
    "1/2",
    "1,000",
    "三",
    "百",
    "分之",
    "个",
    "或",
    "和",
    "是",
    "答案",
    "½",
    "²",
    "√",
    "∞",
    "−",
    "５",
    "٣",
    "\x00",
    "\n",
    "\r\n",
    "\t",
    "\\infty",
    "\\le",
    "\\overline",
    "\\circ",
    "cm",
    "million",
    "th",
    "e5",
    "0x",
    "\ud800",
    "\U0001f600",
    "\u202e",
    "the answer is",
    "</think>",
    "<think>",
    "<conclude>",
    "**Final Answer**",
    "Answer:",
    "<|im_end|>",
    "\\binom",
    "\\log",
)
HUGE = (
    "5^{5^{5^{5}}}",
    "9**9**9**9",
    "1000000!",
    "10^{10^{16}}",
    "123456^{7654321}",
    "2^{99999999}",
    "x^{10^{9}}",
    "1e999999999",
    "\\binom{10^9}{3}",
    "((9!)!)!",
    "\\sqrt[99999999]{2}",
    "1/10^{99999999}",
    "\\log 5^{5^{5^5}}",
)
PAYLOADS = (
    "__import__('os').getpid()",
    "__import__('pathlib').Path('{canary}').write_text('x')",
    "().__class__.__bases__[0].__subclasses__()",
    "open('{canary}','w')",
    'exec(\'open("{canary}","w")\')',
    "$(touch {canary})",
    "`touch {canary}`",
    "{canary}; import os",
    "\\input{{{canary}}}",
    "\\write18{{touch {canary}}}",
    'sympify(\'open("{canary}","w")\')',
    "x.subs(x, open('{canary}','w'))",
    "\\text{{__import__('os')}}",
    "lambda: 4",
    'S(\'open("{canary}", "w")\')',
    "\\frac{{open('{canary}','w')}}{{2}}",
)


def noise(rng: random.Random, canary: str) -> str:
    """One answer, of any sort: grammar, damaged grammar, pieces, bytes, nests, lengths, towers, code."""
    draw = rng.random()
    if draw < 0.35:
        gold, others = pair(rng)
        return kept(rng, rng.choice([gold, *others]))[1]
    if draw < 0.60:
        return damaged(rng, kept(rng, pair(rng)[0])[1])
    if draw < 0.80:
        return "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 12)))
    if draw < 0.88:
        return "".join(
            chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xD800), rng.randrange(0xE000, 0x11000)]))
            for _ in range(rng.randint(0, 40))
        )
    if draw < 0.94:
        return rng.choice(PAYLOADS).format(canary=canary)
    if draw < 0.98:
        return damaged(rng, rng.choice(HUGE)) if rng.random() < 0.3 else rng.choice(HUGE)
    left, right = rng.choice(
        [
            ("(", ")"),
            ("{", "}"),
            ("\\sqrt{", "}"),
            ("\\frac{1}{", "}"),
            ("[", "]"),
            ("-", ""),
            ("\\{", "\\}"),
        ]
    )
    depth = rng.choice([5, 50, 1000])
    return left * depth + "1" + right * depth


def damaged(rng: random.Random, text: str) -> str:
    """A character or two lost, doubled or put in."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        text = rng.choice(
            [
                text[:at] + text[at + 1 :],
                text[:at] + rng.choice(string.printable) + text[at:],
                text[:at] + text[at : at + 3] + text[at:],
            ]
        )
    return text
