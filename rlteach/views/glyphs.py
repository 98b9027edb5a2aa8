"""Fonts of a figure: Chinese text is drawn when the system has a font for it, and named when it has none."""

from __future__ import annotations

import unicodedata
from functools import cache

from matplotlib import font_manager

BUNDLED = ("DejaVu Sans Mono", "DejaVu Sans")  # come with matplotlib
CJK = ("Noto Sans Mono CJK SC", "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC",
       "Source Han Sans CN", "Sarasa Mono SC", "WenQuanYi Zen Hei Mono", "WenQuanYi Micro Hei",
       "WenQuanYi Zen Hei", "Droid Sans Fallback", "PingFang SC", "PingFang HK", "Hiragino Sans GB",
       "Heiti SC", "Heiti TC", "STHeiti", "Songti SC", "Microsoft YaHei", "SimHei", "SimSun", "DengXian",
       "Arial Unicode MS")
MISSING = "no font here has these characters, so U+ and their number stand for them"


def families() -> list[str]:
    """The bundled fonts, then those for Chinese that are installed; the first with a glyph is taken."""
    return list(_characters())


def drawable(text: str) -> tuple[str, bool]:
    """The text with a code point (U+4F60) for each character that no font has, and whether there was one."""
    fonts = _characters().values()
    out = "".join(c if any(c in font for font in fonts) else f"U+{ord(c):04X}" for c in text)
    return out, out != text


def columns(text: str) -> int:
    """How wide a text is in a monospaced font; Chinese characters take two columns.

    >>> columns("a"), columns("你好")
    (1, 4)
    """
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


@cache
def _characters() -> dict[str, frozenset[str]]:
    """Family -> the characters it has glyphs for."""
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    others = sorted(name for name in installed if "CJK" in name and name not in CJK)
    found = {}
    for name in (*BUNDLED, *(n for n in CJK if n in installed), *others):
        font = font_manager.get_font(font_manager.findfont(name))
        found[name] = frozenset(map(chr, font.get_charmap()))
    return found
