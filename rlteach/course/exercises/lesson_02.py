"""Lesson 02: log-probabilities of an answer, and the distribution it is drawn from."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rlteach.course.checking import Exercise, NotYetError, call, number

TABLES = ((0, 6, 5, 2), (1, 9, 4, 3), (2, 5, 7, 1))  # seed, tokens, vocabulary, first token of the answer
NUCLEI: tuple[tuple[list[float], float, list[int]], ...] = (
    ([0.5, 0.3, 0.15, 0.05], 0.9, [0, 1, 2]), ([0.05, 0.15, 0.3, 0.5], 0.6, [2, 3]),
    ([0.25, 0.5, 0.25], 0.4, [1]), ([0.4, 0.1, 0.5], 1.0, [0, 1, 2]), ([0.125, 0.75, 0.125], 0.75, [1]))


def table(seed: int, length: int, vocabulary: int) -> tuple[Tensor, list[int]]:
    """Logits [T, V] and ids [T], both random."""
    noise = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(length, vocabulary, generator=noise, dtype=torch.float64)
    return logits, torch.randint(vocabulary, (length,), generator=noise).tolist()


def summed(logits: Tensor, ids: list[int], start: int, shift: int = 1) -> float:
    """Log-probability of ids[start:], read `shift` positions earlier."""
    logp = logits.log_softmax(-1)
    return sum(logp[t - shift, ids[t]].item() for t in range(start, len(ids)) if t >= shift)


def sequence_logprob(answer: Any) -> str | None:
    for seed, length, vocabulary, start in TABLES:
        logits, ids = table(seed, length, vocabulary)
        found = number(call(answer, logits, ids, start), "the log-probability")
        if abs(found - summed(logits, ids, start)) < 1e-4:
            continue
        for off, what in ((0, "no shift: which line of the logits speaks about token t?"),
                          (2, "two shifts: the line that is read is one too early")):
            if abs(found - summed(logits, ids, start, off)) < 1e-4:
                return f"this is the sum with {what}"
        if abs(found - summed(logits, ids, 1)) < 1e-4:
            return "this counts the prompt's tokens, too: the policy did not choose them"
        if abs(found * (length - start) - summed(logits, ids, start)) < 1e-3:
            return "this is a mean: the logarithm of a product is the sum"
        return f"for logits {length} x {vocabulary} and start={start} this gives {found:.4f}, which is not it"
    return None


def nucleus(answer: Any) -> str | None:
    for probs, p, kept in NUCLEI:
        found = call(answer, probs, p)
        try:
            ids = sorted(int(i) for i in found)
        except (TypeError, ValueError):
            raise NotYetError("a list of ids is asked for, such as [0, 2]") from None
        if ids == kept:
            continue
        if any(not 0 <= i < len(probs) for i in ids):
            return f"for {probs} and p={p} it gives {ids}: these are not all ids of that list"
        mass = sum(probs[i] for i in set(ids))
        few = f"their mass, {mass:g}, is below p: the token that crosses p stays"
        return f"for {probs} and p={p} it keeps {ids}; " + (
            few if mass < p else "a smaller set of the most probable tokens has that mass, too")
    return None


def temperature(answer: Any) -> str | None:
    found = number(answer, "the temperature")
    if found <= 0:
        return f"a temperature is above 0, and this is {found:g}"
    chance = 1 / (1 + math.exp(max(-700.0, -2 / found)))
    return None if abs(chance - 0.95) < 1e-3 else (
        f"at temperature {found:.4g} the first token has probability {chance:.4f}")


def below_p(probs: list[float], p: float) -> list[int]:
    order = sorted(range(len(probs)), key=lambda i: -probs[i])
    return [i for at, i in enumerate(order) if sum(probs[j] for j in order[: at + 1]) < p]


EXERCISES = (
    Exercise("02.1", sequence_logprob, r'''
def sequence_logprob(logits, ids, start):
    logp = logits.log_softmax(-1)
    return sum(logp[t - 1, ids[t]].item() for t in range(start, len(ids)))
''', {
        "no shift": lambda logits, ids, start: summed(logits, ids, start, 0),
        "shifted twice": lambda logits, ids, start: summed(logits, ids, start, 2),
        "the prompt counted, too": lambda logits, ids, start: summed(logits, ids, 1),
        "a mean": lambda logits, ids, start: summed(logits, ids, start) / (len(ids) - start),
        "logits without a softmax": lambda logits, ids, start: sum(
            logits[t - 1, ids[t]].item() for t in range(start, len(ids))),
        "probabilities added": lambda logits, ids, start: sum(
            logits.softmax(-1)[t - 1, ids[t]].item() for t in range(start, len(ids))),
    }),
    Exercise("02.2", nucleus, r'''
def nucleus(probs, p):
    order = sorted(range(len(probs)), key=lambda i: -probs[i])
    kept, mass = [], 0.0
    for i in order:
        if mass >= p:
            break
        kept.append(i)
        mass += probs[i]
    return sorted(kept)
''', {
        "the token that crosses p is cut": below_p,
        "everything is kept": lambda probs, p: list(range(len(probs))),
        "tokens above p": lambda probs, p: [i for i, q in enumerate(probs) if q >= p],
        "the two best": lambda probs, p: sorted(range(len(probs)), key=lambda i: -probs[i])[:2],
        "the order of the list in place of that of the probabilities": lambda probs, p: [
            i for i in range(len(probs)) if sum(probs[:i]) < p],
    }),
    Exercise("02.3", temperature, r'''
import math

T = 2 / math.log(19)
''', {
        "upside down": math.log(19) / 2,
        "the probability in place of the temperature": 0.95,
        "the untouched distribution": 1.0,
        "warmer, not colder": 2.0,
        "multiplied, not divided": 1.4722,
    }),
)
