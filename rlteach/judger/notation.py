r"""One spelling for what can be written in many ways, before anything is read.

Only spelling changes here: full-width digits, U+2212, \dfrac, \frac12, $...$, \left( ... , \text{13},
thin spaces. A superscript becomes ^{2}, never a digit, and a sign whose meaning is open stays as it is.
"""

from __future__ import annotations

import re

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n", strict=True))
_VULGAR = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5",
           "⅘": "4/5", "⅙": "1/6", "⅚": "5/6", "⅐": "1/7", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8",
           "⅑": "1/9", "⅒": "1/10"}
_SIGNS = {
    "\u2212": "-", "\ufe63": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ", "∗": "*",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ",
    "±": r"\pm ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "°": r"^\circ ",
    "θ": r"\theta ", "√": r"\sqrt ", "\u2044": "/", "∕": "/", "、": ",", "。": ".", "\u00a0": " ",
    "\u2009": " ", "\u202f": " ", "\u3000": " ", "\u200b": "", "\ufeff": "", "％": "%", "￥": "¥",
}
_SIGNS |= {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width forms
_SIGNS |= {sign: rf"\frac{{{form[0]}}}{{{form[2:]}}}" for sign, form in _VULGAR.items()}
_TABLE = str.maketrans(_SIGNS)
_SUPERSCRIPT = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")

_DROPPED = re.compile(
    r"(\\\\)(?:\[[^\]]{1,8}\])?|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|\\[bB]igg?[lrm]?(?![a-zA-Z])|\\displaystyle(?![a-zA-Z])|\\limits"
    r"(?![a-zA-Z])|\\!|\\[()\[\]]|\$|\*\*(?=\s*$)|^\s*\*\*|`")
_SPACES = re.compile(r"(\\\\)|\\[,;: >]|\\quad(?![a-zA-Z])|\\qquad(?![a-zA-Z])|~|\s")
_THOUSANDS = re.compile(r"(?<=\d)(?:,\\!| ?\{ ?, ?\} ?|\\,)(?=\d{3}(?!\d))")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textup|mathrm|mathbf|mathit|mbox|hbox|rm|bf|operatorname)"
                   r"\s*\{([^{}]*)\}")
_NAMES = re.compile(r"\\(d|t|c)frac(?![a-zA-Z])|\\(le|ge|ne)q(?![a-zA-Z])|\\(le|ge)qslant(?![a-zA-Z])"
                    r"|\\(varnothing)(?![a-zA-Z])|\\(lt)(?![a-zA-Z])|\\(gt)(?![a-zA-Z])|\\(degree)(?![a-zA-Z])")
_BARE_ARGUMENT = re.compile(r"\\(frac|sqrt)\s*(?![a-zA-Z{\[\s])(\d|[a-zA-Z])")
_SECOND_ARGUMENT = re.compile(r"(\\frac\s*\{[^{}]*\})\s*(\d|[a-zA-Z])")
_LOG = re.compile(r"\\log ?_ ?(\d|[a-z])")
_ROOT = re.compile(r"\\sqrt\s+(\d+|[a-zA-Z])")
_FUNCTION = re.compile(r"(?<![\\a-zA-Z])(sqrt|sin|cos|tan|log|ln|exp|pi|arcsin|arccos|arctan)(?![a-zA-Z])")
_UNIT_LETTERS = {"m": "meters", "g": "grams", "s": "seconds", "h": "hours", "L": "liters", "l": "liters"}


def plain(text: str) -> str:
    r"""The same answer in plain spelling: ASCII digits, \frac{a}{b}, no $ and no thin spaces.

    >>> plain(r"$-\dfrac12$"), plain("１０，５００"), plain(r"10,\!080"), plain("5²"), plain("1½")
    ('-\\frac{1}{2}', '10,500', '10080', '5^{2}', '1\\frac{1}{2}')
    """
    if not text.isascii():
        text = _SUPERSCRIPT.sub(lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m.group()) + "}", text)
        text = text.translate(_TABLE)
        text = "".join(str(int(c)) if c.isdecimal() and not c.isascii() else c for c in text)
    if "\\" in text or "{" in text:
        text = latex_spelling(text)
    text = text.replace("\\$", "dollars ")
    for pattern, instead in ((_DROPPED, ""), (_SPACES, " ")):
        text = pattern.sub(lambda m, instead=instead: m[1] or instead, text)  # \\ ends a row: it stays
    text = " ".join(text.split())
    if (end := text.rstrip(" .,;*")) != text and end:
        text = end
    while text[:1] == "{" and closes(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return _FUNCTION.sub(r"\\\1", text)


def latex_spelling(text: str) -> str:
    r"""\dfrac, \frac12, \text{...}, \leq and their relatives in one spelling."""
    text = _THOUSANDS.sub("", text)
    for _ in range(4):  # \text{\textbf{...}}; deeper ones stay, and are then not read
        text, count = _TEXT.subn(lambda m: f" {_UNIT_LETTERS.get(m[1].strip(), m[1])} ", text)
        if not count:
            break
    text = text.replace(r"\%", "%").replace(r"^{\circ}", r"^\circ").replace(r"^ \circ", r"^\circ")
    text = _NAMES.sub(_one_name, text)
    text = _LOG.sub(r"\\log_{\1} ", text)
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _BARE_ARGUMENT.sub(r"\\\1{\2}", text)
    return _SECOND_ARGUMENT.sub(r"\1{\2}", text)


def _one_name(match: re.Match[str]) -> str:
    if match[1]:
        return r"\frac"
    if match[4]:
        return r"\emptyset"
    if match[7]:
        return r"^\circ"
    if match[5] or match[6]:
        return "<" if match[5] else ">"
    return rf"\{match[2] or match[3]}"


def closes(text: str, at: int) -> int:
    r"""Where the bracket that opens at `at` is closed; -1 when it never is.

    >>> closes("(1,[2,3))", 0), closes("{a", 0)
    (8, -1)
    """
    depth = 0
    for i in range(at, len(text)):
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i
    return -1


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """Cut at every match of `separator` that stands in no bracket.

    >>> split("1,(2,3)", re.compile(","))
    ['1', '(2,3)']
    """
    if not separator.search(text):
        return [text]
    depths, depth = [], 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        depths.append(depth)
    parts, begin = [], 0
    for match in separator.finditer(text):
        if depths[match.start()] == 0 and match.end() > match.start():
            parts.append(text[begin:match.start()])
            begin = match.end()
    return [part.strip() for part in (*parts, text[begin:])]
