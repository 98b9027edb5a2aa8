"""README.md and README.zh-CN.md say the same: code, figures, links."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("README.md", "README.zh-CN.md")
ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in NAMES)
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"(^|[ \t]+)#( .*)?$", re.MULTILINE)
NUMBER = re.compile(r"(?<![A-Za-z0-9_.])(\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?)"
                    r"(?: ?(%|(?:seconds?|GB|s)(?![A-Za-z])|秒))?")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def code(text: str) -> list[str]:
    """The fenced blocks; their comments may be translated."""
    return [COMMENT.sub("", block) for block in BLOCK.findall(text)]


def sections(text: str) -> list[str]:
    """The prose from one second-level heading to the next, without the fenced blocks."""
    return re.split(r"^## ", BLOCK.sub("", text), flags=re.MULTILINE)


def figures(text: str) -> list[tuple[str, str]]:
    """(number, unit) of every number written in digits; the unit is %, s, GB or nothing."""
    units = {"second": "s", "seconds": "s", "秒": "s"}
    return [(number, units.get(unit, unit)) for number, unit in NUMBER.findall(text)]


def links(text: str) -> list[str]:
    return LINK.findall(BLOCK.sub("", text))


def test_figures_are_read_with_their_units() -> None:
    said = "98.1 % [97.1, 98.8], 50 steps in 45 s or 60 seconds, 1.2 GB, 1,000 of fp32, 1e-5."
    assert figures(said) == [("98.1", "%"), ("97.1", ""), ("98.8", ""), ("50", ""), ("45", "s"), ("60", "s"),
                             ("1.2", "GB"), ("1,000", ""), ("1e-5", "")]
    assert figures("约50秒，0.5GB的内存，40 s内") == [("50", "s"), ("0.5", "GB"), ("40", "s")]


def test_only_comments_are_taken_out_of_code() -> None:
    block = "```\n# all\na = '#1'  # why\nb\n```"
    assert code(f"text\n\n{block}\n") == ["```\n\na = '#1'\nb\n```"]


def test_the_code_blocks_are_the_same() -> None:
    assert code(ENGLISH), "no code at all"
    assert code(CHINESE) == code(ENGLISH)


def test_the_figures_of_each_section_are_the_same() -> None:
    english, chinese = sections(ENGLISH), sections(CHINESE)
    assert len(chinese) == len(english)
    for one, other in zip(english, chinese, strict=True):
        title, counted = one.partition("\n")[0], [Counter(figures(text)) for text in (one, other)]
        assert counted[0] == counted[1], (f"{title}: only in English {counted[0] - counted[1]}, "
                                          f"only in Chinese {counted[1] - counted[0]}")


def test_the_tables_have_the_same_figures_row_by_row() -> None:
    english, chinese = ([figures(line) for line in BLOCK.sub("", text).splitlines() if line.startswith("|")]
                        for text in (ENGLISH, CHINESE))
    assert chinese == english


@pytest.mark.parametrize(("name", "other"), [NAMES, NAMES[::-1]])
def test_links(name: str, other: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert f"]({other})" in "\n".join(text.splitlines()[:4]), f"{name} does not begin with a link to {other}"
    for target in links(text):
        if "://" not in target:
            assert (ROOT / target.partition("#")[0]).exists(), f"{name}: {target} does not exist"


def test_both_link_to_the_same_pages() -> None:
    english, chinese = (Counter(links(text)) for text in (ENGLISH, CHINESE))
    assert english - Counter(NAMES) == chinese - Counter(NAMES)
