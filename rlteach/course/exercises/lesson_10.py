"""Lesson 10: a grader and a rollout of one's own, and how often a plug-in is called."""

from __future__ import annotations

from typing import Any

from rlteach.agent.calling import Outcome
from rlteach.agent.plugins import PluginError, group_grader, rollout
from rlteach.agent.tools import ToolCallError, check_call, get_current_weather, weather_tool
from rlteach.agent.types import (
    ChatCompletionSample,
    GroupGraderResult,
    PluginStatus,
    RolloutResult,
    Trajectory,
)
from rlteach.course.checking import Exercise, NotYetError, call, number
from rlteach.course.plugin_cases import GROUPS, MOST_ANSWERS, RIGHT, SCRIPTS, sample, talk, talk_trouble
from rlteach.course.scripted import ScriptedProxy, outcome_of
from rlteach.judger.answers import final_answer

RETRIES = 3


def in_a_line(text: str) -> str:
    return " ".join(text.split())[:300]


def outcome(function: Any, kind: Any, about: str, *arguments: Any) -> Outcome:
    """SUCCESS or DISCARD of a learner's plug-in. Raises NotYetError for everything else."""
    if not callable(function):
        raise NotYetError(f"a function with @{kind} is asked for, and this is a {type(function).__name__}")
    try:
        found = outcome_of(function, kind, *arguments)
    except PluginError as error:
        raise NotYetError(in_a_line(str(error))) from None
    if found.status in (PluginStatus.FAILURE, PluginStatus.RETRY):
        raise NotYetError(f"{about}: it ended with {found.status.value} ({in_a_line(found.reason)})")
    return found


def own_grader(answer: Any) -> str | None:
    for gold, members in GROUPS:
        about = f"gold answer {gold!r}, {len(members)} rollouts"
        found = outcome(answer, "group_grader", about, sample(gold), [talk(*m[:2]) for m in members])
        if found.status is PluginStatus.DISCARD:
            return f"{about}: it discards the sample, which has a gold answer"
        rewards, metrics = found.value.rewards, found.value.metrics
        if len(rewards) != len(members):
            return f"{about}: it gave {len(rewards)} rewards"
        for mine, (text, _, reward, what) in zip(rewards, members, strict=True):
            if mine != reward:
                return f"{about}: {what} ({text!r}) is worth {reward:g}, and it gave {mine}"
        share = sum(m[2] == 1 for m in members) / len(members)
        if abs(number(metrics.get("right"), "the metric 'right'") - share) > 1e-6:
            return f"{about}: the metric 'right' is {metrics['right']:g}: it is the share of rewards 1"
    found = outcome(answer, "group_grader", "a sample without a gold answer", sample(None), [talk(RIGHT)])
    if found.status is not PluginStatus.DISCARD:
        return f"a sample without a gold answer: it gave {found.value.rewards}, and nobody can know"
    return None


def grader_by(reward: Any, *, discards: bool = True, metric: str = "right") -> Any:
    """A group grader; reward(trajectory, gold answers as they stand) -> number."""
    @group_grader
    def grade(context: Any, sample: Any, trajectories: Any) -> GroupGraderResult:
        gold = (sample.extra or {}).get("answer")
        if gold is None and discards:
            return GroupGraderResult(status=PluginStatus.DISCARD)
        rewards = [reward(t, gold) for t in trajectories]
        share = sum(r == 1 for r in rewards) / len(rewards)
        return GroupGraderResult(rewards=rewards, metrics={metric: share})
    return grade


def fair(trajectory: Trajectory, gold: Any) -> float:
    said = final_answer(trajectory.messages[-1].content or "")
    right = said is not None and said in (gold if isinstance(gold, list) else [gold])
    return float(right) if any(m.tool_calls for m in trajectory.messages) else -1.0


def ungated(trajectory: Trajectory, gold: Any) -> float:
    return max(fair(trajectory, gold), float(final_answer(trajectory.messages[-1].content or "") == gold))


def in_passing(trajectory: Trajectory, gold: Any) -> float:
    said, golds = trajectory.messages[-1].content or "", gold if isinstance(gold, list) else [gold]
    found = fair(trajectory, gold)
    return found if found < 0 else float(any(g in said for g in golds))


@group_grader
def forgets_one(context: Any, sample: Any, trajectories: Any) -> GroupGraderResult:
    rewards = [fair(t, (sample.extra or {}).get("answer")) for t in trajectories]
    return GroupGraderResult(rewards=rewards[1:], metrics={"right": 0.0})


def own_rollout(answer: Any) -> str | None:
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Oslo?"}]
    for about, script, answers, reward in SCRIPTS:
        proxy = ScriptedProxy(script)
        try:
            found = outcome(answer, "rollout", about, proxy, ChatCompletionSample(messages=asked))
        except NotYetError:
            if len(proxy.requests) <= MOST_ANSWERS:
                raise
            return f"{about}: it asked {len(proxy.requests)} times, and {MOST_ANSWERS} are the most"
        if found.status is PluginStatus.DISCARD:
            return f"{about}: it discards the sample, and the model learns nothing from that"
        if len(proxy.requests) != answers:
            return f"{about}: it asked {len(proxy.requests)} times, and {answers} were to be expected"
        got = found.value.get("reward")
        if got != reward:
            wanted = "be left alone" if reward is None else "be -1"
            return f"{about}: extra['reward'] is {got}, and should {wanted}"
        if trouble := talk_trouble(proxy, asked):
            return f"{about}: {trouble}"
    return None


def rollout_with(*, steps: int = MOST_ANSWERS, broken: Any = lambda: RolloutResult(extra={"reward": -1}),
                 calls: int = 9, reply: Any = get_current_weather, **fields: Any) -> Any:
    """The solution with one thing changed."""
    @rollout
    def plugin(context: Any, proxy: Any, sample: Any) -> RolloutResult | None:
        messages = [m.model_dump(exclude_none=True) for m in sample.messages]
        for _ in range(steps):
            said = proxy.rollout_client().chat.completions.create(
                model="any", messages=messages, **{"tools": [weather_tool], **fields})
            message = said.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for one in (message.tool_calls or ())[:calls]:
                try:
                    _, arguments = check_call(one, [weather_tool])
                except ToolCallError:
                    return broken()
                messages.append({"role": "tool", "content": reply(**arguments), "tool_call_id": one.id})
            if not message.tool_calls:
                break
        return None
    return plugin


def runs_of(status: str, n: int) -> int:
    """Of one question with n rollouts, the first of which always ends so: how often is the plug-in called?"""
    return {"SUCCESS": n, "DISCARD": n, "RETRY": n + RETRIES, "timeout": n + RETRIES,
            "FAILURE": n * (1 + RETRIES), "exception": n * (1 + RETRIES)}[status]


def runs(answer: Any) -> str | None:
    for status in ("SUCCESS", "RETRY", "timeout", "DISCARD", "FAILURE", "exception"):
        for n in (1, 2, 8):
            found = number(call(answer, status, n), f"the number of calls for {status}, n={n}")
            if found != runs_of(status, n):
                return f"{status}, n={n}: this is {found:g}; what is run again, this rollout or the sample?"
    return None


EXERCISES = (
    Exercise("10.1", own_grader, r'''
from rlteach.agent import GroupGraderResult, PluginStatus, group_grader
from rlteach.judger.answers import final_answer


@group_grader
def grade(context, sample, trajectories):
    gold = (sample.extra or {}).get("answer")
    if gold is None:
        return GroupGraderResult(status=PluginStatus.DISCARD)
    golds, rewards = gold if isinstance(gold, list) else [gold], []
    for t in trajectories:
        said = final_answer(t.messages[-1].content or "")
        searched = any(m.tool_calls for m in t.messages)
        rewards.append(float(said in golds) if searched else -1.0)
    return GroupGraderResult(
        rewards=rewards, metrics={"right": rewards.count(1.0) / len(rewards)})
''', {
        "not decorated": lambda context, sample, trajectories: None,
        "right without a search": grader_by(ungated),
        "the gold answer anywhere in the text": grader_by(in_passing),
        "one gold answer only": grader_by(lambda t, gold: fair(t, [gold] if isinstance(gold, str) else [])),
        "a text as a list of answers": grader_by(lambda t, gold: fair(t, list(gold or ""))),
        "no gold answer is wrong": grader_by(fair, discards=False),
        "another metric": grader_by(fair, metric="share"),
        "everybody is right": grader_by(lambda t, gold: 1.0),
        "one reward is missing": forgets_one,
        "a single number": group_grader(lambda context, sample, trajectories: 1.0),
    }),
    Exercise("10.2", own_rollout, r'''
from rlteach.agent import (RolloutResult, ToolCallError, check_call,
                           get_current_weather, rollout, weather_tool)


@rollout
def ask_weather(context, proxy, sample):
    client = proxy.rollout_client()
    messages = [m.model_dump(exclude_none=True) for m in sample.messages]
    for _ in range(4):
        said = client.chat.completions.create(
            model="any", messages=messages, tools=[weather_tool])
        message = said.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            try:
                _, given = check_call(call, [weather_tool])
            except ToolCallError:
                return RolloutResult(extra={"reward": -1})
            messages.append({"role": "tool", "content": get_current_weather(**given),
                             "tool_call_id": call.id})
''', {
        "not decorated": lambda context, proxy, sample: None,
        "one answer only": rollout_with(steps=1),
        "no end": rollout_with(steps=10**6),
        "no tool": rollout_with(tools=None),
        "its own temperature": rollout_with(temperature=0.5),
        "one reply for two calls": rollout_with(calls=1),
        "the same weather everywhere": rollout_with(reply=lambda location, unit="celsius": "snow"),
        "a wrong call without a penalty": rollout_with(broken=lambda: None),
        "a wrong call is tried again": rollout_with(broken=lambda: RolloutResult(status=PluginStatus.RETRY)),
        "a wrong call drops the sample": rollout_with(
            broken=lambda: RolloutResult(status=PluginStatus.DISCARD)),
    }),
    Exercise("10.3", runs, r'''
def runs(status, n):
    if status in ("RETRY", "timeout"):
        return n + 3
    if status in ("FAILURE", "exception"):
        return 4 * n
    return n
''', {
        "nothing is run again": lambda status, n: n,
        "everything is run again": lambda status, n: n if status in ("SUCCESS", "DISCARD") else 4 * n,
        "only one rollout is run again": lambda status, n: n if status in ("SUCCESS", "DISCARD") else n + 3,
        "three runs in all": lambda status, n: {"RETRY": n + 2, "timeout": n + 2, "FAILURE": 3 * n,
                                                "exception": 3 * n}.get(status, n),
        "a discard is tried, too": lambda status, n: 4 * n if status == "DISCARD" else runs_of(status, n),
        "an exception stops at once": lambda status, n: n if status == "exception" else runs_of(status, n),
    }),
)
