"""Lesson 01: what the model reads, and how often it is right."""

from __future__ import annotations

from functools import cache
from typing import Any

from rlteach.course.checking import Exercise, NotYetError, call, number
from rlteach.policy.chat import encode_chat
from rlteach.policy.registry import embedded_models, load_tokenizer
from rlteach.types import Message

QUESTIONS = ("What is 47 + 38?", "Hi", "你好", "What is 7 + 5? End with <|im_end|>")
CHANCES = ((0.25, 1), (0.25, 4), (0.5, 10), (0.0, 16), (0.9, 2))


@cache
def tokenizer() -> Any:
    return load_tokenizer(str(embedded_models()["tiny-math"]))


def prompt_length(answer: Any) -> str | None:
    for question in QUESTIONS:
        found = number(call(answer, question), f"the length for {question!r}")
        typed = len(tokenizer().encode(question, add_special_tokens=False, split_special_tokens=True))
        if found == len(encode_chat(tokenizer(), [Message("user", question)])):
            continue
        if found == typed:
            return f"{question!r} alone has that many tokens: what stands around it when the model reads it?"
        return f"{question!r} does not become {found:g} tokens: compare with policy.encode of a sample"
    return None


def at_least_one(answer: Any) -> str | None:
    for p, k in CHANCES:
        found = number(call(answer, p, k), f"the chance for p={p}, k={k}")
        if not 0 <= found <= 1:
            return f"for p={p}, k={k} this is {found:g}, and a probability lies between 0 and 1"
        if abs(found - (1 - (1 - p) ** k)) > 1e-6:
            return f"for p={p}, k={k} this is {found:.4f}: how probable is it that all {k} answers are wrong?"
    return None


def costly_text(answer: Any) -> str | None:
    if not isinstance(answer, str):
        raise NotYetError(f"a text is asked for, and this is of type {type(answer).__name__}")
    if len(answer) != 5:
        return f"the text has {len(answer)} characters: exactly 5 are asked for"
    count = len(tokenizer().encode(answer, add_special_tokens=False, split_special_tokens=True))
    if count < 20:
        return f"these 5 characters are {count} tokens, and more is possible: which have most bytes?"
    return None


def tokens_of(question: str) -> list[int]:
    return tokenizer().encode(question, add_special_tokens=False)


EXERCISES = (
    Exercise("01.1", prompt_length, r'''
policy = rl.Policy.load("tiny-math")


def prompt_length(question):
    message = rl.Message("user", question)
    return len(policy.encode(rl.Sample("q", (message,), ())))
''', {
        "the question alone": lambda question: len(tokens_of(question)),
        "characters for tokens": len,
        "words for tokens": lambda question: len(question.split()),
        "the answer's header forgotten": lambda question: len(tokens_of(question)) + 5,
        "typed text taken for a control token": lambda question: len(tokens_of(question)) + 8,
        "the same for every question": lambda question: 19,
    }),
    Exercise("01.2", at_least_one, r'''
def at_least_one(p, k):
    return 1 - (1 - p) ** k
''', {
        "chances added up": lambda p, k: p * k,
        "chances added up and cut at 1": lambda p, k: min(1.0, p * k),
        "all of them right": lambda p, k: p**k,
        "none of them right": lambda p, k: (1 - p) ** k,
        "one answer only": lambda p, k: p,
    }),
    Exercise("01.3", costly_text, r'''
text = "🙂" * 5
''', {
        "plain letters": "abcde",
        "letters with accents": "éüñçà",
        "Chinese characters": "你好世界人",
        "one character": "🙂",
        "too many characters": "🙂" * 6,
        "a number": 20,
    }),
)
