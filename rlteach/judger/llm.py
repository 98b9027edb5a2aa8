"""A language model as judge, over the OpenAI protocol: LLMJudger.

    judger = LLMJudger("127.0.0.1:10003")
    judger.probe()                    # reachable, and what it can do? raises JudgeError
    judger.self_test()                # known pairs: raises JudgeError when it accepts nonsense
    judger.grade(group)               # one Judgement a trajectory, in their order

Every path that ends without a verdict is `unscorable` with its cause, never a number: `judge
unavailable: ` for an outage, `no verdict: ` for a reply that says nothing exactly.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from rlteach.judger.background import LoopThread, SharedWork
from rlteach.judger.cache import Remembered, VerdictCache, cache_key
from rlteach.judger.candidates import LONGEST, Sees, candidate_of, harmless
from rlteach.judger.failures import NO_VERDICT, UNAVAILABLE
from rlteach.judger.hosts import Host, JudgeError, Secret, base_urls
from rlteach.judger.judge_log import JudgeLog, Seen
from rlteach.judger.limits import Counts, Limits
from rlteach.judger.llm_client import JudgeClient
from rlteach.judger.probe import Capabilities, SelfTest, alive, probe, self_test
from rlteach.judger.verdicts import Language, Rubric
from rlteach.types import Group, Judgement, Sample, Trajectory

__all__ = ["NO_VERDICT", "UNAVAILABLE", "JudgeError", "LLMJudger"]

T = TypeVar("T")
Question = tuple[str, tuple[str, ...], str]  # question, gold, candidate: as they are sent


class LLMJudger:
    """Asks a judge model about one answer at a time; any number of equal servers may share the work.

    Args:
        urls: OpenAI-compatible base URLs (host:port, with or without /v1).
        model: its name there; none: the first one that the server lists.
        api_key: none: the environment variable RLTEACH_JUDGE_KEY, else "none". A key that was meant
            for another service (OPENAI_API_KEY) is never sent to a judge.
        sees: `final` sends the final answer, `trajectory` the whole transcript.
        timeout: seconds for one answer, retries included; `attempt_timeout`: for one request.
        in_flight: requests at the same time; rate: requests a second (none: no limit).
        cache: a file of verdicts; log: a JSONL file of judgements.
        free_text: without a box, the whole last message is the answer.
        rubric: your own rules instead of the built-in ones.
    """

    def __init__(self, urls: str | Sequence[str], *, model: str | None = None, api_key: str | None = None,
                 language: Language = "en", sees: Sees = "final", timeout: float = 60.0, in_flight: int = 32,
                 rate: float | None = None, cache: str | Path | None = None, max_tokens: int = 512,
                 free_text: bool = False, log: str | Path | None = None, rubric: str | None = None,
                 attempt_timeout: float | None = None, retries: int = 8,
                 backoff: tuple[float, float] = (0.5, 8.0)) -> None:
        if sees not in ("final", "trajectory"):
            raise ValueError(f"sees must be 'final' or 'trajectory'; got {sees!r}")
        self.urls, self.rubric = base_urls(urls), Rubric.of(language, rubric)
        self.sees, self.free_text = sees, free_text
        limits = Limits(timeout, min(timeout, attempt_timeout or timeout / 2), in_flight, rate, retries,
                        backoff, max_tokens).checked()
        key = Secret(api_key or os.environ.get("RLTEACH_JUDGE_KEY") or "none").checked()
        hosts = [Host(url, key) for url in self.urls]
        self._client = JudgeClient(hosts, self.rubric, limits, key)
        self._client.model = model
        self._caches: list[VerdictCache] = []  # the last one is in use
        self._log: JudgeLog | None = None
        self.keep(cache=cache, log=log)
        self._seen, self._lock = Seen(), threading.Lock()

        async def at_end() -> None:
            for host in hosts:
                await host.client.close()

        self._thread = LoopThread("rlteach-judge", at_end)
        self._shared: SharedWork[Judgement] = SharedWork(self._thread)
        self._shut = weakref.finalize(self, _shut, self._thread, self._caches)  # also at exit

    def keep(self, *, cache: str | Path | None = None, log: str | Path | None = None) -> None:
        """From now on remember verdicts in the file `cache`, and write judgements to the file `log`."""
        if cache is not None:
            self._caches.append(VerdictCache(cache))
        if log is not None:
            self._log = JudgeLog(log, self.rubric.id)

    @property
    def model(self) -> str | None:
        """The judge's model; None until the server was asked for it."""
        return self._client.model

    @property
    def prompt_id(self) -> str:
        return self.rubric.id

    def __repr__(self) -> str:
        return (f"LLMJudger({self.urls!r}, model={self.model!r}, language={self.rubric.language!r}, "
                f"sees={self.sees!r})")

    # grading

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        """One judgement a trajectory, in their order; waits, also inside a running event loop."""
        return self._thread.run(self._grade(group))

    async def agrade(self, group: Group) -> tuple[Judgement, ...]:
        """`grade` for a coroutine; cancelling it cancels the questions that nobody else waits for."""
        return await asyncio.wrap_future(self._thread.submit(self._grade(group)))

    def judge(self, sample: Sample, trajectory: Trajectory) -> Judgement:
        """One answer."""
        return self.grade(Group(sample, (trajectory,)))[0]

    def submit(self, groups: Group | Iterable[Group]) -> None:
        """Begin grading while other work goes on; a later `grade` of an equal group collects it."""
        batch = [groups] if isinstance(groups, Group) else list(groups)

        async def begin() -> None:
            for group in batch:
                for answer in group.trajectories:
                    asked = self._prepare(group.sample, answer)
                    if not isinstance(asked, Judgement):
                        self._shared.begin(asked, self._work(asked), keep=True)

        self._thread.run(begin())

    # the judge itself

    def alive(self) -> str | None:
        """None when a host answers, else the cause with its URL; at most 5 s."""
        return self._thread.run(alive(self._client))

    def probe(self) -> list[Capabilities]:
        """What each host can do. Raises JudgeError with URL and cause when one cannot be used."""
        return self._apart(probe(self._client))

    def self_test(self, least_known: float = 0.75) -> SelfTest:
        """Known pairs, right and wrong, tricks among them. Raises JudgeError when any wrong one is
        accepted, or fewer than `least_known` of the right ones are known."""
        return self._apart(self_test(self._client, least_known))

    def _apart(self, work: Coroutine[Any, Any, T]) -> T:
        """Its questions are not counted as those of the answers."""
        counts, self._client.counts = self._client.counts, Counts()
        try:
            return self._thread.run(work)
        finally:
            self._client.counts = counts

    def statistics(self) -> dict[str, float | int | None]:
        """Counts and seconds since the last call, as keys of metrics.jsonl."""
        with self._lock:
            seen, self._seen = self._seen, Seen()
        counts, self._client.counts = self._client.counts, Counts()
        seconds = counts.seconds
        return {
            "judge/answers": seen.answers, "judge/blocked": seen.blocked, "judge/cached": seen.cached,
            "judge/calls": counts.calls, "judge/retries": counts.retries, "judge/repairs": counts.repairs,
            "judge/unavailable": seen.unavailable, "judge/no_verdict": seen.no_verdict,
            "judge/seconds_mean": sum(seconds) / len(seconds) if seconds else None,
            "judge/seconds_max": max(seconds, default=None),
        }

    def close(self) -> None:
        """Cancel what runs and close every connection and file. Closing twice is allowed."""
        self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # in the judger's own loop

    async def _grade(self, group: Group) -> tuple[Judgement, ...]:
        """Blocked answers at once, the others side by side; equal answers are one question."""
        asked = [self._prepare(group.sample, answer) for answer in group.trajectories]
        if self.model is None and any(not isinstance(a, Judgement) for a in asked):
            await self._client.find_model()  # the cache is keyed by it
        try:
            judged = await asyncio.gather(*(self._one(a) for a in asked))
        finally:
            for question in asked:
                if not isinstance(question, Judgement):
                    self._shared.release(question)
        with self._lock:
            self._seen.add(asked, judged)
        if self._log is not None:
            self._log.write(group.sample.id, judged, self.model)
        return tuple(judged)

    def _prepare(self, sample: Sample, answer: Trajectory) -> Judgement | Question:
        """What to ask, or the judgement of an answer that never reaches the judge."""
        gold = tuple(harmless(g, LONGEST["gold"]) for g in sample.gold if g.strip())
        if not gold:
            return Judgement(None, "unscorable", f"{NO_VERDICT}the sample has no gold answer", "llm",
                             attempts=0)
        candidate, why = candidate_of(answer, gold, self.sees, free_text=self.free_text)
        if candidate is None:
            return Judgement(0.0, "incorrect", why, "llm", attempts=0)
        return harmless(sample.question, LONGEST["question"]), gold, harmless(candidate, LONGEST[self.sees])

    async def _one(self, asked: Judgement | Question) -> Judgement:
        return asked if isinstance(asked, Judgement) else await self._shared.result(asked, self._work(asked))

    def _work(self, asked: Question) -> Callable[[], Coroutine[Any, Any, Judgement]]:
        """From the cache, else from the judge; only real verdicts are remembered."""

        async def work() -> Judgement:
            if remembered := self._recall(asked):
                return verdict(*remembered)
            answer = await self._client.ask(*asked)
            if answer.correct is None:
                return Judgement(None, "unscorable", answer.reason, "llm", answer.raw, answer.attempts,
                                 answer.seconds)
            told = Remembered(answer.correct, answer.reason, answer.raw or "")
            if self._caches and self.model is not None:
                self._caches[-1].put(cache_key(*asked, self.rubric.id, self.model), told)
            return verdict(*told, answer.attempts, answer.seconds)

        return work

    def _recall(self, asked: Question) -> Remembered | None:
        if not self._caches or self.model is None:
            return None
        return self._caches[-1].get(cache_key(*asked, self.rubric.id, self.model))


def verdict(correct: bool, reason: str, raw: str, attempts: int = 0, seconds: float = 0.0) -> Judgement:
    return Judgement(float(correct), "correct" if correct else "incorrect", reason or "by the judge", "llm",
                     raw, attempts, seconds)


def _shut(thread: LoopThread, caches: Sequence[VerdictCache]) -> None:
    thread.close()
    for cache in caches:
        cache.close()
