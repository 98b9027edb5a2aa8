"""OREAL a second time, slowly: plain Python numbers, one token after the other, nothing of rlteach.

Written from the paper (arXiv 2502.06781v1: eq. 8-12) and from the arithmetic of the code released
with it; where the two differ, a switch chooses. Gradients are closed forms with respect to every
single logit; `numeric_gradient` checks those by differences.

`s` is the mapping of switches, by the names of the config fields. A member is one answer:
logits[t][v] at position t speak of the token at t + 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Switches = Mapping[str, Any]
Table = list[list[float]]


@dataclass
class Member:
    score: float | None
    tokens: list[int]
    sampled: list[bool]  # True where the policy drew the token
    support: list[list[int] | None]  # ids that truncation had left there; None: all
    logits: Table
    reference: Table
    w: list[float]  # the token-level model's number for each token
    drawn_with: list[float]  # log-probability that the sampler wrote down

    @property
    def actions(self) -> list[int]:
        return [t for t, own in enumerate(self.sampled) if own]


def is_positive(score: float | None, s: Switches) -> bool | None:
    return None if score is None else score >= s["positive_threshold"]


def rewards(scores: Sequence[float | None], s: Switches) -> list[float | None]:
    """Released code: +1 / -1. Paper, eq. 3: 1 / 0. An answer that nobody judged has no reward."""
    wrong = -1.0 if s["reward_coding"] == "plus_minus" else 0.0
    out: list[float | None] = []
    for score in scores:
        positive = is_positive(score, s)
        out.append(None if positive is None else 1.0 if positive else wrong)
    return out


def advantages(scores: Sequence[float | None], s: Switches) -> list[float | None]:
    """Of every member of the whole group. rloo: r_i - mean of the others; grpo: standardised."""
    given = rewards(scores, s)
    known = [r for r in given if r is not None]
    if len(known) < 2:
        return [None] * len(given)
    out: list[float | None] = []
    for i, r in enumerate(given):
        if r is None:
            out.append(None)
        elif s["advantage"] == "rloo":
            others = [q for j, q in enumerate(given) if j != i and q is not None]
            out.append(r - sum(others) / len(others))
        else:
            mean = sum(known) / len(known)
            variance = sum((q - mean) ** 2 for q in known) / (len(known) - 1)
            out.append((r - mean) / (math.sqrt(variance) + 1e-8))
    return out


def pass_rate(scores: Sequence[float | None], s: Switches) -> float:
    known = [is_positive(x, s) for x in scores if x is not None]
    return sum(known) / len(known) if known else 0.0


def is_allowed_selection(kept: Sequence[int], scores: Sequence[float | None], s: Switches) -> bool:
    """Alg. 1 keeps a question with 0 < p < 1 and one answer of each sign; mixed keeps all answers of
    such a question, all every answer of every question, as far as somebody judged them."""
    positive = [is_positive(x, s) for x in scores]
    scorable = [i for i, p in enumerate(positive) if p is not None]
    both = len({positive[i] for i in scorable}) == 2
    if s["selection"] == "one_pair":
        signs = sorted(bool(positive[i]) for i in kept if positive[i] is not None)
        return signs == [False, True] and len(kept) == 2 if both else not kept
    if s["selection"] == "mixed":
        return list(kept) == (scorable if both else [])
    return list(kept) == (scorable if len(scorable) >= 2 else [])


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def token_weights(w: Sequence[float], positive: bool, s: Switches) -> list[float]:
    """omega of the answer's own tokens (w holds only these). Eq. 10 at threshold 0.5 per token."""
    if s["token_weighting"] == "none":
        return [1.0 for _ in w]
    believed = []
    for t in range(len(w)):
        x = sum(w[: t + 1]) / (t + 1) if s["token_score"] == "running_mean" else w[t]
        believed.append(sigma(x) if positive else sigma(-x))
    if s["token_weighting"] == "threshold":
        tau = s["correct_threshold"] if positive else s["incorrect_threshold"]
        return [min(max((x - tau) / (1 - tau), 0.0), 1.0) for x in believed]
    count = math.floor(Fraction(str(s["topk_ratio"])) * len(w))
    best = sorted(range(len(w)), key=lambda t: -believed[t])[:count]
    out = [0.0] * len(w)
    for t in best:
        low, high = (pick(believed[i] for i in best) for pick in (min, max))
        out[t] = 1.0 if high == low else (believed[t] - low) / (high - low)
    return out


def log_softmax(logits: Sequence[float], temperature: float, among: Sequence[int]) -> dict[int, float]:
    """log-probability of each id in `among`, renormalised over just these."""
    highest = max(logits[v] / temperature for v in among)
    total = math.fsum(math.exp(logits[v] / temperature - highest) for v in among)
    return {v: logits[v] / temperature - highest - math.log(total) for v in among}


def distributions(
    m: Member, t: int, s: Switches
) -> tuple[dict[int, float], dict[int, float], float, float]:
    """(law the token at t was drawn from, law over the whole vocabulary, what the KL term compares
    with, the initial reference's log-probability)"""
    size = range(len(m.logits[0]))
    left = m.support[t]
    drawn = log_softmax(m.logits[t - 1], s["temperature"], size if left is None else left)
    full = log_softmax(m.logits[t - 1], s["temperature"], size)
    fixed = log_softmax(m.reference[t - 1], s["temperature"], size)[m.tokens[t]]
    return drawn, full, full[m.tokens[t]] if s["kl_target"] == "old" else fixed, fixed


def kl_of_token(logp: float, reference: float, estimator: str) -> tuple[float, float]:
    """(k, dk/dlogp) with d = log ref - log pi."""
    d = reference - logp
    if estimator == "k1":
        return -d, 1.0
    if estimator == "k2":
        return d * d / 2, -d
    return math.exp(d) - d - 1, 1 - math.exp(d)


@dataclass
class Loss:
    positive: float
    negative: float
    kl: float
    gradients: list[Table]  # one table a kept member: d total / d logits
    entropy: float  # mean over the action tokens, as k3 and the largest |ratio - 1| are
    k3: float  # against the initial reference, whatever kl_target says
    deviation: float

    @property
    def total(self) -> float:
        return self.positive + self.negative + self.kl


def row_factor(advantage: float, p: float, positive: bool, s: Switches) -> float:
    """What multiplies the row: D1 and D2 of the comparison of paper and code."""
    if positive:
        return advantage if s["positive_weight"] == "advantage" else 1.0
    return {"rloo": advantage, "one_minus_p": -(1 - p), "none": -1.0}[s["negative_shaping"]]


def loss(
    kept: Sequence[tuple[Member, float, float]], s: Switches, old: Sequence[Table] | None = None
) -> Loss | None:
    """Eq. 11 (and its released form) over the kept (member, advantage, pass rate); None when there is none.

    old: the sampling policy's logits; None: the policy has not moved since, as in a first update.
    """
    if not kept:
        return None
    out = Loss(0.0, 0.0, 0.0, [], 0.0, 0.0, 0.0)
    norm_positive, norm_negative, norm_kl = normalizers([m for m, *_ in kept], s)
    tokens = sum(len(m.actions) for m, *_ in kept)
    for row, (m, advantage, p) in enumerate(kept):
        positive = bool(is_positive(m.score, s))
        factor = row_factor(advantage, p, positive, s)
        omega = token_weights([m.w[t] for t in m.actions], positive, s)
        gradient = [[0.0] * len(line) for line in m.logits]
        for weight, t in zip(omega, m.actions, strict=True):
            drawn, full, reference, initial = distributions(m, t, s)
            token = m.tokens[t]
            if positive:  # cross-entropy of the token
                scale = s["positive_factor"] / norm_positive * factor * weight
                out.positive += scale * -drawn[token]
                slope = -scale
            else:  # the ratio pi/pi_old; its slope is the ratio times that of log pi
                before = drawn[token]
                if old is not None:
                    before = log_softmax(old[row][t - 1], s["temperature"], list(drawn))[token]
                scale = s["negative_factor"] / norm_negative * -factor * weight
                slope = scale * math.exp(drawn[token] - before)
                out.negative += slope
            k, dk = kl_of_token(full[token], reference, s["kl_estimator"])
            out.kl += s["kl_coefficient"] / norm_kl * k
            add_slope(gradient[t - 1], drawn, token, slope, s)
            add_slope(gradient[t - 1], full, token, s["kl_coefficient"] / norm_kl * dk, s)
            out.entropy += -math.fsum(math.exp(x) * x for x in full.values()) / tokens
            out.k3 += kl_of_token(full[token], initial, "k3")[0] / tokens
            out.deviation = max(out.deviation, abs(math.exp(drawn[token] - m.drawn_with[t]) - 1))
        out.gradients.append(gradient)
    return out


def add_slope(line: list[float], law: Mapping[int, float], token: int, slope: float, s: Switches) -> None:
    """d log pi(token) / d logit_v = ([v is the token] - pi(v)) / temperature"""
    for v, logp in law.items():
        line[v] += slope * ((v == token) - math.exp(logp)) / s["temperature"]


def normalizers(members: Sequence[Member], s: Switches) -> tuple[float, float, float]:
    """Released code: action tokens of right, of wrong, of all rows. Paper: the number of answers."""
    if s["loss_norm"] == "sequence":
        return (float(len(members)),) * 3
    right = sum(len(m.actions) for m in members if is_positive(m.score, s))
    wrong = sum(len(m.actions) for m in members if not is_positive(m.score, s))
    return float(max(right, 1)), float(max(wrong, 1)), float(max(right + wrong, 1))


def token_model_loss(members: Sequence[Member], s: Switches) -> tuple[float, list[list[float]]] | None:
    """Eq. 12: cross-entropy of sigma(mean w) against 'right', a mean over answers (or over the two
    classes), and its gradient with respect to every w."""
    if not members:
        return None
    labels = [bool(is_positive(m.score, s)) for m in members]
    total, gradients = 0.0, []
    for m, right in zip(members, labels, strict=True):
        share = 1 / len(members)
        if s["token_reward_balance"] and len(set(labels)) == 2:
            share = 0.5 / labels.count(right)
        mean = sum(m.w[t] for t in m.actions) / len(m.actions)
        p = sigma(mean)
        total += share * -math.log(p if right else 1 - p)
        line = [0.0] * len(m.w)
        for t in m.actions:
            line[t] = share * (p - right) / len(m.actions)
        gradients.append(line)
    return total, gradients


def numeric_gradient(value: Callable[[], float], cell: list[float], at: int, step: float = 1e-5) -> float:
    """(value(x + h) - value(x - h)) / 2h at one number of a table."""
    middle = cell[at]
    cell[at] = middle + step
    above = value()
    cell[at] = middle - step
    below = value()
    cell[at] = middle
    return (above - below) / (2 * step)
