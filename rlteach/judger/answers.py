r"""Find the final answer in a response: the last closed box, or what "the answer is" announces.

A final answer stands where the response says so. Numbers of the working are never taken for one,
and nothing here depends on the stop word: a server that strips it changes no verdict.
"""

from __future__ import annotations

import re

# What a response writes between its working and its answer; only what follows the last one counts.
_MARKERS = (re.compile(r"</think>"), re.compile(r"<conclude>"),
            re.compile(r"\*\*[ \t]?final answer[ \t]?:?[ \t]?\*\*", re.IGNORECASE))
_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|[{}]")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_PHRASE = re.compile(
    r"(?:^|(?<![a-z]))answer(?:\s{1,3}is\b|\*{0,2}\s?[:：])|答案(?:\s?[是为]|\s?[:：])", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=[\s*<]|$)|[。！？\n]|,?\s(?:because|since)\s")
_TAIL = re.compile(r"(?:\s|<[^<>\s]{1,40}>)+$")  # white space, and stop words such as <|im_end|>
_LONGEST = 5_000  # characters
_LEAD = re.compile(r"[\s:：*=]*")


def final_answer(text: str) -> str | None:
    r"""The final answer of a response, or None when it has none.

    Content of the last closed \boxed{...} or \fbox{...}; where no box was opened, what follows the
    last "answer is", "Answer:", 答案是, 答案为 up to the end of that sentence.

    >>> final_answer(r"so \boxed{1} or rather \boxed{\frac{1}{2}}")
    '\\frac{1}{2}'
    >>> final_answer(r"\boxed{1} and then \boxed{2")
    '1'
    >>> final_answer("The answer is 7. But maybe 8."), final_answer("so we get 12")
    ('7', None)
    """
    for marker in _MARKERS:
        *_, last = 0, *(found.end() for found in marker.finditer(text))
        text = text[last:]
    if "<think>" in text:  # the thinking has not ended, so nothing was answered yet
        text = text[:text.index("<think>")]
    return last_box(text) if _BOX.search(text) else announced(text)


def last_box(text: str) -> str | None:
    r"""Content of the box that begins last among those that are closed; linear in the text.

    >>> last_box(r"\fbox{42") is None
    True
    """
    opened: list[tuple[bool, int]] = []  # of each brace that is open: is it a box, where does it begin
    first, last, end = _BOX.search(text), -1, 0
    for brace in _BRACE.finditer(text, len(text) if first is None else first.start()):
        if brace.group() != "}":
            opened.append((brace.group() != "{", brace.end()))
        elif opened:
            is_box, begin = opened.pop()
            if is_box and begin > last:
                last, end = begin, brace.start()
    return None if last < 0 else text[last:end].strip()


def announced(text: str) -> str | None:
    """What the last "answer is" announces, or None.

    >>> announced("**Answer:** 4."), announced("所以答案是 12。"), announced("no idea")
    ('4', '12', None)
    """
    *_, last = None, *(found.end() for found in _PHRASE.finditer(text))
    if last is None:
        return None
    begin = _LEAD.match(text, last).end()  # type: ignore[union-attr]
    text = text[begin:begin + _LONGEST]  # more than that is no answer, and is cut before it costs time
    end = _SENTENCE_END.search(text)
    found = text if end is None else text[:end.start()]
    found = _TAIL.sub("", found.rstrip("*_` \t\r")).strip("*_` \t\r")
    return found or None
