"""Let a policy search, without plug-ins or a server: sample, look up, append, sample again.

The short form of what rlteach.agent does; scripts and tests measure tiny-agent with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlteach.agent.search import SEARCH_TOOL, SearchError, check, index_of
from rlteach.config import data_path
from rlteach.judger.answers import final_answer
from rlteach.policy import sampler
from rlteach.policy.chat import encode_chat
from rlteach.policy.policy import Policy
from rlteach.serving.tool_calls import split_calls
from rlteach.types import Message, Sample

TURNS = 6  # answers at most, as in the search plug-in
NEW_TOKENS = 48  # of one answer
Search = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Episode:
    """One rollout: its texts in order, and what became of it."""

    sample: Sample
    token_ids: tuple[int, ...]
    said: tuple[str, ...] = ()
    calls: int = 0
    malformed: bool = False
    done: bool = False
    marks: tuple[bool, ...] = field(default=(), repr=False)  # of token_ids: was it sampled?

    @property
    def correct(self) -> bool:
        return self.done and not self.malformed and right_answer(self.said[-1], self.sample.gold)


def right_answer(text: str, golds: Sequence[str]) -> bool:
    """Is the announced name exactly one of the gold ones? A made-up name has no other spelling.

    >>> right_answer("The answer is Kalumo.", ["Kalumo"]), right_answer("Kalumo or Kalu.", ["Kalumo"])
    (True, False)
    """
    return final_answer(text) in golds


def web(query: str, count: int = 10) -> dict[str, Any]:
    """The embedded encyclopaedia."""
    return index_of(str(data_path("search/corpus.jsonl"))).search(query, count)


def no_pages(query: str, count: int = 10) -> dict[str, Any]:
    """A search tool that never finds anything: who succeeds with it knew or guessed the answer."""
    return {"Result": {"ResultCount": 0, "WebResults": []}}


def play(policy: Policy, samples: Sequence[Sample], keys: Sequence[int], search: Search = web, *,
         greedy: bool = False) -> list[Episode]:
    """One rollout for each sample, with its noise key; ids are kept, nothing is tokenised twice.

    A malformed call ends a rollout at once, as in the search plug-in.
    """
    episodes = []
    for sample in samples:
        ids = tuple(policy.encode(replace(sample, tools=(SEARCH_TOOL,))))
        episodes.append(Episode(sample, ids, marks=(False,) * len(ids)))
    params = sampler.SamplingParams(
        temperature=0.0 if greedy else 1.0, top_p=1.0, top_k=0, max_new_tokens=NEW_TOKENS,
        stop_ids=policy.stop_ids, row_cap=policy.config.row_cap)
    for turn in range(TURNS):
        going = [i for i, e in enumerate(episodes) if not e.done]
        if not going:
            break
        rows = [(at, keys[i] * 31 + turn) for at, i in enumerate(going)]
        prompts = [episodes[i].token_ids for i in going]
        for i, answer in zip(going, sampler.sample(policy.model, prompts, rows, params), strict=True):
            episodes[i] = _go_on(policy, episodes[i], answer, search, last=turn == TURNS - 1)
    return episodes


def _go_on(policy: Policy, episode: Episode, answer: sampler.Completion, search: Search, last: bool
           ) -> Episode:
    ended = answer.finish_reason == "stop"
    text = policy.tokenizer.decode(answer.token_ids[: -1 if ended else None], skip_special_tokens=False)
    episode = replace(episode, token_ids=episode.token_ids + answer.token_ids, said=(*episode.said, text),
                      marks=episode.marks + (True,) * len(answer.token_ids))
    if "tool_call>" not in text:
        return replace(episode, done=True)
    results = [_result(call, search) for call in split_calls(text)[1]]
    episode = replace(episode, calls=episode.calls + 1)
    if not ended or not results or None in results:
        return replace(episode, malformed=True, done=True)
    if last:
        return replace(episode, done=True)
    more = encode_chat(policy.tokenizer, [Message("tool", str(result)) for result in results])
    return replace(episode, token_ids=(*episode.token_ids, *more), marks=episode.marks + (False,) * len(more))


def _result(call: dict[str, Any], search: Search) -> str | None:
    """The tool message, or None for a call that breaks the tool's schema."""
    name, given = call["function"]["name"], json.loads(call["function"]["arguments"])
    if name != SEARCH_TOOL["function"]["name"] or not {"Query"} <= set(given) <= {"Query", "Count"}:
        return None
    try:
        check(given["Query"], given.get("Count", 10))
        return json.dumps(search(given["Query"], given.get("Count", 10)), ensure_ascii=False)
    except SearchError:
        return None


def shares(episodes: Sequence[Episode]) -> dict[str, float]:
    """Shares of the rollouts: right, with a malformed call, answered without a search."""
    n, calls = len(episodes), sum(e.calls for e in episodes)
    bad = sum(e.malformed for e in episodes)
    return {"pass_rate": sum(e.correct for e in episodes) / n, "malformed": bad / n,
            "malformed_of_calls": bad / max(calls, 1), "no_search": sum(not e.calls for e in episodes) / n}


def pass_at_k(episodes: Sequence[Episode]) -> float:
    """Share of the questions with at least one right rollout among all that were played."""
    right: dict[str, bool] = {}
    for episode in episodes:
        right[episode.sample.id] = right.get(episode.sample.id, False) or episode.correct
    return sum(right.values()) / len(right)
