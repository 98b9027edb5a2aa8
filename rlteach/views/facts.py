"""A step of a run in numbers: what its groups and answers came to, counted once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from rlteach.config import Config
from rlteach.judger.failures import UNAVAILABLE
from rlteach.types import Group, StepRecord

LARGER = 4  # "with groups of four times the size"


class Answer(NamedTuple):
    """One member of a group. `said` is equal for equal answers to the same question."""

    said: Hashable
    score: float | None
    reason: str
    source: str
    cut: bool


@dataclass
class Facts:
    """One step in numbers, or several together.

    groups seen, with only right or only wrong answers, with fewer than two scorable ones (few), with one and
    the same answer (same), with equal answers (twins). answers seen, unscorable, without a judge (away),
    scored by a coin, cut off, whole, without a final answer. pairs of equal answers, and those that got
    different scores. expected: sum over groups of p^G + (1 - p)^G, expected_larger with groups of 4 G;
    known: groups whose p is the question's pass rate (else p is the measured share). size: the largest G.
    """

    groups: int = 0
    all_right: int = 0
    all_wrong: int = 0
    few: int = 0
    same: int = 0
    same_wrong: int = 0
    answers: int = 0
    unscorable: int = 0
    away: int = 0
    coins: int = 0
    cut: int = 0
    cut_right: int = 0
    whole: int = 0
    whole_right: int = 0
    no_answer: int = 0
    twins: int = 0
    pairs: int = 0
    contradicted: int = 0
    expected: float = 0.0
    expected_larger: float = 0.0
    known: int = 0
    size: int = 0  # the largest group
    scores: set[float] = field(default_factory=set)
    away_because: str = ""
    unscorable_because: str = ""

    @property
    def scored(self) -> int:
        return self.answers - self.unscorable

    @property
    def right(self) -> int:
        return self.cut_right + self.whole_right

    @property
    def wrong(self) -> int:
        return self.scored - self.right

    @property
    def flat(self) -> int:
        """Groups without contrast."""
        return self.all_right + self.all_wrong

    def __iadd__(self, other: Facts) -> Facts:
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            joined = max(mine, theirs) if f.name == "size" else (mine or theirs) if f.type == "str" else (
                mine | theirs if f.name == "scores" else mine + theirs)
            setattr(self, f.name, joined)
        return self


def together(parts: Iterable[Facts]) -> Facts:
    """The sum over steps."""
    out = Facts()
    for part in parts:
        out += part
    return out


def facts_of(record: StepRecord, config: Config) -> Facts:
    """A step of a trainer; one whose answers were not kept is told by its metrics."""
    if not record.groups:
        return from_metrics(record.metrics, config)
    return count([(g.sample.pass_rate, answers_of(g)) for g in record.groups], config)


def answers_of(group: Group) -> list[Answer]:
    return [Answer((t.response, t.token_ids or tuple(m.content for m in t.messages)), j.score, j.reason,
                   j.source, t.finish_reason == "length")
            for t, j in zip(group.trajectories, group.judgements or (), strict=False)]


def count(groups: Sequence[tuple[float | None, Sequence[Answer]]], config: Config) -> Facts:
    """(pass rate before training, answers) of each group -> numbers."""
    out, limit = Facts(), config.positive_threshold
    for _, members in groups:
        scored = [m for m in members if m.score is not None]
        right = sum(m.score >= limit for m in scored)
        out.groups += 1
        out.all_right += len(scored) >= 2 and right == len(scored)
        out.all_wrong += len(scored) >= 2 and right == 0
        out.few += len(scored) < 2
        out.size = max(out.size, len(members))
        _count_answers(out, members, limit)
        _count_twins(out, scored, right)
    measured = out.right / out.scored if out.scored else 0.0
    for rate, members in groups:
        p = measured if rate is None else rate
        out.known += rate is not None
        out.expected += uniform(p, len(members))
        out.expected_larger += uniform(p, LARGER * len(members))
    return out


def uniform(p: float, size: int) -> float:
    """How often all answers of a group are right, or all wrong, when each is right with probability p."""
    return p**size + (1 - p) ** size


def _count_answers(out: Facts, members: Sequence[Answer], limit: float) -> None:
    out.answers += len(members)
    for m in members:
        out.cut += m.cut
        out.coins += m.source == "random"
        out.no_answer += m.reason.startswith("no final answer")
        if m.score is None:
            away = m.reason.startswith(UNAVAILABLE)
            out.unscorable += 1
            out.away += away
            out.away_because = out.away_because or (m.reason if away else "")
            out.unscorable_because = out.unscorable_because or ("" if away else m.reason)
            continue
        out.scores.add(m.score)
        out.whole += not m.cut
        out.whole_right += m.score >= limit and not m.cut
        out.cut_right += m.score >= limit and m.cut


def _count_twins(out: Facts, scored: Sequence[Answer], right: int) -> None:
    alike: dict[Hashable, list[float]] = defaultdict(list)
    for m in scored:
        alike[m.said].append(m.score)
    several = [scores for scores in alike.values() if len(scores) > 1]
    out.twins += bool(several)
    for scores in several:
        n, of_each = len(scores), [scores.count(s) for s in set(scores)]
        out.pairs += n * (n - 1) // 2
        out.contradicted += (n * n - sum(k * k for k in of_each)) // 2
    if len(alike) == 1 and len(scored) > 1:
        out.same += 1
        out.same_wrong += right == 0


def from_metrics(metrics: Mapping[str, Any], config: Config) -> Facts:
    """What a line of metrics.jsonl tells when the answers themselves are gone (a resumed run)."""
    def known(name: str, most: float = 1.0) -> float:
        """A number from 0 to `most`; 0.0 for anything else."""
        value = metrics.get(name)
        return value if isinstance(value, int | float) and 0 <= value <= most else 0.0

    size, length, tokens = config.group_size, known("response/length", 1e7), known("tokens/rollout", 1e9)
    n = round(tokens / length) if tokens >= length > 0 else config.batch_size * size
    rate, groups = known("pass_rate"), max(round(n / size), 1)
    unscorable, cut = round(n * known("judge/unscorable")), round(n * known("response/truncated"))
    scored = n - unscorable
    right = round(scored * rate)
    cut_right = min(max(cut - (scored - right), 0), right)  # as few as there can be
    flat = min(round(known("groups/zero_std", 1e9)), groups)
    few = 0 if scored else flat
    return Facts(
        groups=groups, all_right=(flat - few) * (rate >= 0.5), all_wrong=(flat - few) * (rate < 0.5), few=few,
        answers=n, unscorable=unscorable, away=round(min(known("judge/unavailable", 1e9), unscorable)),
        cut=cut, cut_right=cut_right, whole=max(scored - cut, 0), whole_right=right - cut_right,
        no_answer=round(n * known("response/no_answer")), size=size, expected=groups * uniform(rate, size),
        expected_larger=groups * uniform(rate, LARGER * size),
        scores=set() if not scored else {0.0, 1.0} if 0 < rate < 1 else {float(rate)})
