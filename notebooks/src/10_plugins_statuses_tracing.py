# %% [markdown]
# # 10 · Plug-ins, statuses and tracing
#
# **Your own code is part of a training run now. What may it do, and what happens when it
# goes wrong?**
#
# You write a rollout and a grader, break them in every way there is, and look at what the run
# makes of it. In the end the same files go into a workspace, and from there to a cloud.

# %% tags=["nbval-ignore-output"]
try:
    import rlteach as rl
except ModuleNotFoundError:
    raise ModuleNotFoundError("no rlteach here: lesson 01 says what to do") from None

# %%
import asyncio
import inspect
import json
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from IPython.display import Image
from rich.console import Console

torch.set_num_threads(1)  # steady numbers
page = Console(width=130, force_jupyter=False, color_system=None, highlight=False)

# %% [markdown]
# ## 1. A plug-in is a function
#
# A **decorator** (装饰器) is a function that takes a function. This one pins a note to it, and
# changes nothing else:

# %%
def note(text):
    def attach(function):
        function.note = text
        return function
    return attach


@note("mine, to try things")
def double(x):
    return 2 * x


print(double(3), "-", double.note)

# %% [markdown]
# That is all there is to a **plug-in** (插件). `@rollout` pins a description to a function that
# plays one rollout: its name, how long a call may take, how many may run at the same time.
# Here is one that searches, as in lesson 09. It talks to the model through an ordinary client.

# %%
from rlteach.agent import (RolloutResult, Runtime, ToolCallError, check_call,
                           observe, rollout)
from rlteach.agent.search import SEARCH_TOOL, SearchIndex

pages = SearchIndex()


@observe
def look_up(call):
    _, given = check_call(call, [SEARCH_TOOL])
    return pages.search(given["Query"], given.get("Count", 10))

# %%
@rollout(runtime=Runtime(timeout=60, max_concurrency=8))
def searcher(context, proxy, sample):
    client = proxy.rollout_client()
    messages = [m.model_dump(exclude_none=True) for m in sample.messages]
    for _ in range(4):
        said = client.chat.completions.create(
            model="any", messages=messages, tools=[SEARCH_TOOL]).choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        for call in said.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": call.id,
                             "content": json.dumps(look_up(call), ensure_ascii=False)})
        if not said.tool_calls:
            break

# %% [markdown]
# `context` says which run it is, `proxy` is the way to the model, `sample` is the question.
# Nothing of it is hidden: the function is still the function. Change the cell and run it again,
# and the new one counts.

# %%
from rlteach.agent.plugins import plugin_of

found = plugin_of(searcher, "rollout")
print(type(searcher).__name__, searcher.__name__)
print(found.kind, found.name, "async:", found.is_async)
print("timeout", found.runtime.timeout, " at once", found.runtime.max_concurrency)

# %%
print(inspect.getsource(plugin_of))

# %% [markdown]
# ## 2. Call it in a cell
#
# Before anything trains, try it on one question. `open_proxy` makes a proxy for one rollout,
# and `run` calls the plug-in as a run would: a plain function on a thread of its own, an
# `async` function on one **event loop** (事件循环) that all plug-ins share. A notebook has a loop
# of its own, and that one is left alone.

# %%
from rlteach.agent import open_proxy

config = rl.Config.preset("tiny-agent", group_size=4, batch_size=4)
policy = rl.Policy.load("tiny-agent", config)
exam = [s for s in rl.load_samples(config.test_data) if s.extra["language"] == "en"]
sample = next(s for s in exam if s.question == "Where was Pofodu born?")
for key in (1, 5, 0):
    with open_proxy(policy, sample, key=key) as proxy:
        outcome = proxy.run(searcher)
    print(outcome.status.value, "-", outcome.reason)
    print("    it said:", proxy.trajectory.messages[-1].content or "(a call)")

# %% [markdown]
# The third rollout ended in an exception: the model's call had no `Query`, and `check_call`
# raised. A run takes an exception for a bug in *your* code, and a bug stops it. But this was
# the model's doing! It has to become a penalty, or the model never learns:

# %%
@rollout(runtime=Runtime(timeout=60, max_concurrency=8))
def strict(context, proxy, sample):
    try:
        return searcher(context, proxy, sample)
    except ToolCallError as error:
        return RolloutResult(extra={"reward": -1, "why": str(error)})


with open_proxy(policy, sample, key=0) as proxy:
    outcome = proxy.run(strict)
print(outcome.status.value, outcome.value)

# %% [markdown]
# ## 3. A grader
#
# A **grader** (打分器) plug-in gets all rollouts of one question, and returns one reward each. It
# sees messages, as you do: no ids, no mask. And it can give numbers for the curves. (A
# `@single_grader` gets one rollout at a time, and may return a plain number.)

# %%
from rlteach.agent import GroupGraderResult, group_grader
from rlteach.judger.answers import final_answer


@group_grader
def exact(context, sample, trajectories):
    golds = sample.extra["answer"]  # a list: a name may have two spellings
    said = [final_answer(t.messages[-1].content or "") for t in trajectories]
    silent = sum(answer is None for answer in said)
    return GroupGraderResult(rewards=[float(answer in golds) for answer in said],
                             metrics={"silent": silent})

# %% [markdown]
# To try it you need no model. The files that `rlteach init` writes have helpers for
# conversations by hand:

# %%
from rlteach.agent import PluginContext
from rlteach.templates.shared.plugins import test_utils as by_hand

asked = by_hand.sample("Who founded Guho?", ["Jupasi"])
answers = ["The answer is Jupasi.", "The answer is Jupa.", "Jupasi, I guess"]
tries = [by_hand.trajectory(by_hand.said(text)) for text in answers]
print(exact(PluginContext(), asked, tries))

# %% [markdown]
# ## 4. Both in a run
#
# `rl.graders` takes graders with their weights. The trainer is the one you know; only
# `rollout=` is new. One step of a fresh copy (`policy` itself shall stay as it is):

# %%
questions = [s for s in exam if s.extra["level"] == "single"]


def one_step(grader):
    fresh, judger = rl.Policy.load("tiny-agent", config), rl.graders((grader, 1.0))
    trainer = rl.OrealTrainer(fresh, judger, questions, config, rollout=strict)
    step = trainer.step()
    trainer.close()
    return step

# %%
step = one_step(exact)
for name, value in step.metrics.items():
    if name.startswith(("rollout/", "grader/")):
        print(f"{name:<24}{value:g}")

# %%
for group in step.groups[:2]:
    own = [t.extra.get("reward") for t in group.trajectories]
    print(group.sample.question, " rollout's own", own, " in the end", group.scores)

# %% [markdown]
# Where the rollout set `extra["reward"]`, that is the reward, whatever the grader said. (It
# still sees all rollouts; it may want to compare them.)

# %% [markdown]
# ## 5. Every way a rollout can end
#
# A call ends in one of four **statuses** (状态): `SUCCESS`, `RETRY`, `DISCARD`, `FAILURE`. Returning
# `None`, raising, taking too long or returning nonsense is turned into one of them. Here is
# each of them, on purpose. One question is good, the other is bad: its first calls end badly,
# `often` times.

# %%
from rlteach.agent import PluginStatus, RolloutRetryException


def told(status):
    return lambda: RolloutResult(status=PluginStatus[status], error="I say so")


def raises(error):
    def end():
        raise error
    return end

# %%
ENDS = {"SUCCESS": told("SUCCESS"), "None": lambda: None, "RETRY": told("RETRY"),
        "RolloutRetryException": raises(RolloutRetryException("the tool is away")),
        "timeout": lambda: asyncio.sleep(60), "DISCARD": told("DISCARD"),
        "FAILURE": told("FAILURE"), "an exception": raises(KeyError("a bug")),
        "a wrong type": lambda: "done"}

# %%
def rollout_that(ends, often):
    calls = Counter()

    @rollout(runtime=Runtime(timeout=3 if ends == "timeout" else 60))
    async def plugin(context, proxy, sample):
        client = proxy.async_rollout_client()
        messages = [m.model_dump(exclude_none=True) for m in sample.messages]
        await client.chat.completions.create(model="any", messages=messages)
        calls[sample.extra["id"]] += 1
        if sample.extra["id"] == "bad" and calls["bad"] <= often:
            result = ENDS[ends]()
            return await result if inspect.isawaitable(result) else result
    return plugin, calls

# %% [markdown]
# Two rollouts a question. A run that stops raises; the message is kept for later.

# %%
from rlteach.agent import PluginRollout, PluginStopError

two = [replace(sample, id=name, extra={"id": name}) for name in ("good", "bad")]
messages = {}

# %%
def play(ends, often):
    plugin, calls = rollout_that(ends, often)
    rollouts = PluginRollout(plugin, policy)
    try:
        rollouts(policy, two, [[1, 2], [3, 4]])
    except PluginStopError as error:
        messages[ends] = str(error)
    counted = rollouts.take_metrics()
    rollouts.close()
    return {name.removeprefix("rollout/"): int(v) for name, v in counted.items()} | {
        "calls": calls["bad"], "stopped": ends in messages and often > 1}

# %%
rows = {(ends, often): play(ends, often) for ends in ENDS for often in (1, 99)}
table = pd.DataFrame(rows).T.drop(columns="history_cuts")
table.index.names = ["the bad question's calls end with", "often"]
table

# %% [markdown]
# Read it row by row. `calls` counts the bad question's; two is what it takes without trouble.
#
# - SUCCESS and `None` are the same.
# - RETRY, its exception, and a timeout: **this rollout** is run again, up to three times. Then
#   the question is dropped. A tool that was away costs no more than that.
# - DISCARD: dropped at once, with all its rollouts. It changes no baseline.
# - FAILURE, an exception, a wrong type: **the question** is run again, all its rollouts; at the
#   fourth failure the run stops. A bug should not be trained around.
#
# What was started is kept, discarded or failed: nothing gets lost on the way. (When a run stops,
# it stops before the update. `rlteach train --resume RUN` does that step again.)

# %%
total = table["kept"] + table["discarded"] + table["failed"]
assert (total == table["started"]).all()
print("kept + discarded + failed = started, in all", len(table), "rows")
print(messages["an exception"])

# %% [markdown]
# One more way to end: an interrupt, such as Ctrl-C. It is no status: it is never a failure and
# never a reward, it goes through to the run. How a call becomes an outcome, in the library:

# %%
from rlteach.agent.calling import Caller

print(inspect.getsource(Caller._outcome))

# %% [markdown]
# ## 6. Every way a grader can end
#
# Take one group of three rollouts. A grader is judged by the same table, but for one thing:
# `None` is no result, a grader has to say something.

# %%
from rlteach.agent import PluginJudger

with open_proxy(policy, sample, key=1) as proxy:
    proxy.run(strict)
trio = rl.Group(sample, (proxy.trajectory,) * 3)
GRADES = {"three rewards": lambda: GroupGraderResult(rewards=[1, 0, 0.5]),
          "one is None": lambda: GroupGraderResult(rewards=[1, None, 0]),
          "DISCARD": lambda: GroupGraderResult(status=PluginStatus.DISCARD),
          "RETRY": lambda: GroupGraderResult(status=PluginStatus.RETRY),
          "timeout": lambda: asyncio.sleep(60),
          "FAILURE": lambda: GroupGraderResult(status=PluginStatus.FAILURE),
          "an exception": raises(KeyError("a bug")), "None": lambda: None,
          "two rewards": lambda: GroupGraderResult(rewards=[1, 0])}

# %%
def grader_that(ends):
    @group_grader(runtime=Runtime(timeout=1 if ends == "timeout" else 60))
    async def grader(context, sample, trajectories):
        grader_that.calls += 1
        result = GRADES[ends]()
        return await result if inspect.isawaitable(result) else result
    grader_that.calls = 0
    return grader

# %%
def grade_with(ends):
    try:
        found = PluginJudger(grader_that(ends)).grade(trio)
    except PluginStopError:
        return {"scores": "-", "calls": grader_that.calls, "and then": "the run stops"}
    reason = next((j.reason for j in found if j.score is None), "all are used")
    return {"scores": [j.score for j in found], "calls": grader_that.calls,
            "and then": reason.split(":")[0]}

# %%
pd.DataFrame({ends: grade_with(ends) for ends in GRADES}).T

# %% [markdown]
# A reward of `None` is one **unscorable** (不可判) member: the others of its group are used. It
# never becomes a 0. A discarded question has no group in the step any more:

# %%
@group_grader
def picky(context, sample, trajectories):
    if sample.messages[0].content.startswith("What did"):
        return GroupGraderResult(status=PluginStatus.DISCARD, error="not today")
    return exact(context, sample, trajectories)


step = one_step(picky)
for name in ("rollout/started", "rollout/kept", "grader/discarded", "groups/kept"):
    print(f"{name:<18}{step.metrics[name]:g}")
print("groups of the step:", [g.sample.question for g in step.groups])

# %% [markdown]
# ## 7. Weights, metrics
#
# Several graders are a weighted sum. `take_metrics` gives what each of them reported since the
# last time, as largest, smallest and mean over the groups: those are the curves of a run.

# %%
@group_grader
def short(context, sample, trajectories):
    lengths = [len(t.messages[-1].content or "") for t in trajectories]
    return GroupGraderResult(rewards=[float(n < 22) for n in lengths],
                             metrics={"shortest": min(lengths)})


both = rl.graders((exact, 0.75), (short, 0.25))
texts = ("The answer is Dika.", "The answer is Rivori, or so.", "Dika")
made = [rl.Trajectory((*sample.messages, rl.Message("assistant", text)), (), (), (), 0,
                      "stop") for text in texts]
groups = [rl.Group(sample, tuple(made)), rl.Group(sample, tuple(made[1:]))]
for judged in both.grade_all(groups):
    print([j.score for j in judged])

# %%
from rlteach.training.plugins import grader_metrics

for name, value in grader_metrics(both).items():
    print(f"{name:<24}{value:g}")

# %% [markdown]
# ## 8. Tracing
#
# What did a rollout do, and what took so long? Each call leaves a **span** (跨度): its kind, its
# beginning and length, what went in and out, and the span that it is part of. A **tracer**
# (追踪器) writes them into a file. In a run that is `trace.jsonl`; here is one for two rollouts.

# %%
from rlteach.agent import Tracer
from rlteach.views.trace import read_trace, rollout_table, trace_tree

folder = tempfile.TemporaryDirectory()
tracer = Tracer(Path(folder.name) / "trace.jsonl")
rollouts = PluginRollout(strict, policy, tracer=tracer)
groups = rollouts(policy, [replace(sample, id="q1")], [[0, 1]])
scores = [j.score for j in PluginJudger(exact, tracer=tracer).grade(groups[0])]
rollouts.close()
spans = read_trace(folder.name)
print("rewards", scores)
print(Counter(span["kind"] for span in spans))

# %% [markdown]
# Both rollouts as trees. `rlteach trace RUN` prints the same of a run on disk. The model spans are
# there by themselves, the tool is there because of `@observe` above `look_up`.

# %%
for member in (1, 0):
    page.print(trace_tree(spans, member=member))

# %% [markdown]
# And all of them as a list (`rlteach trace RUN --list`). The times are those of your machine,
# so nobody compares them.

# %% tags=["nbval-ignore-output"]
page.print(rollout_table(spans))

# %%
from matplotlib.figure import Figure
from rlteach.views.plots import png

figure = Figure(figsize=(8, 2.6), dpi=90, layout="constrained")
ax = figure.subplots()
colours = {"rollout": "tab:blue", "model": "tab:orange", "tool": "tab:green",
           "grade": "tab:red", "sample": "lightgrey"}
for row, span in enumerate(spans):
    begin = 1000 * (span["start"] - spans[0]["start"])
    ax.barh(row, max(span["ms"], 0.3), left=begin, color=colours[span["kind"]])
names = [f"{span['kind']} {span['name'][:16]}" for span in spans]
ax.set_yticks(range(len(spans)), names, size=7)
ax.set(xlabel="milliseconds since the first span began")
ax.invert_yaxis()
Image(data=png(figure))

# %% [markdown]
# Both rollouts run at once, and nearly all the time is the model's. If your tool is the slow
# one, you see it here first.

# %% [markdown]
# ## 9. Try it on any model
#
# `test_with_dataset` runs a rollout and a grader against **any** server with OpenAI's protocol,
# without training: to find mistakes, to compare models, to collect good conversations. Here the
# server is our own (in a terminal: `rlteach serve tiny-agent`).

# %% tags=["nbval-ignore-output"]
from rlteach.agent import test_with_dataset

with rl.serve("tiny-agent") as server:
    trial = test_with_dataset(
        rl.data_path(config.test_data), strict, exact, url=server.url,
        api_key=server.api_key, model=server.model, limit=6, n_sample=4)
print(trial)

# %%
print("statuses of the rollouts:", dict(trial.statuses))
print("questions:", len(trial.rewards), " each:", {len(row) for row in trial.rewards})
print("rewards seen:", {r for row in trial.rewards for r in row} <= {-1.0, 0.0, 1.0})

# %% [markdown]
# ## 10. From here to a workspace, and to a cloud
#
# Plug-ins of a cell are gone when the notebook is closed. `rlteach init my_weather --template
# weather` writes a folder with the same kinds of functions in files, data, a test and a job:

# %%
from rlteach.agent.workspace import create_workspace

workspace = Path(folder.name) / "my_weather"
for name in create_workspace(workspace, "weather"):
    print(name.as_posix())

# %% [markdown]
# There, `python -m pytest -q test_local.py` tries all of it without a model, and `python job.py`
# trains. A config can name plug-ins, too: `--set rollout=plugins.rollout:weather_rollout`.
#
# The names are those of the **Ark RL SDK** (火山方舟), so the files can go to that cloud. What
# has to be changed there are these lines (docs/ark.md says to what):

# %%
for file in sorted(workspace.glob("plugins/*rollout.py")):
    lines = file.read_text(encoding="utf-8").splitlines()
    print(f"{file.name:<26}", *(x for x in lines if x.startswith("from rlteach")))

# %% [markdown]
# | there | here |
# |---|---|
# | `Ark`, `AsyncArk` | `proxy.rollout_client()`, or any OpenAI client that was wrapped |
# | `GRPOPipeline(rollout=, graders=[...])` | `rl.OrealTrainer(..., rollout=)`, `rl.graders(...)` |
# | `num_generations`, `lr`, `num_steps` | `group_size`, `policy_lr`, `total_steps` |
# | the tracer of the cloud | `trace.jsonl`, `rlteach trace` |
#
# Two differences to keep in mind: a plug-in that sets a temperature is refused here, not
# ignored; and a verdict that is missing costs one member here, not the group.
#
# ## 11. Exercises
#
# **One.** Write a grader. 1 for a right final answer (`final_answer` finds it), 0 for a wrong
# one, and -1 for a rollout that never called a tool, right or not. `sample.extra["answer"]` is
# one text or a list of them; a sample without it is discarded. The metric `right` is the share
# of rewards that are 1.

# %%
@group_grader
def grade(context, sample, trajectories):
    return GroupGraderResult(rewards=[0.0 for t in trajectories])


rl.check("10.1", grade)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# from rlteach.agent import GroupGraderResult, PluginStatus, group_grader
# from rlteach.judger.answers import final_answer
#
#
# @group_grader
# def grade(context, sample, trajectories):
#     gold = (sample.extra or {}).get("answer")
#     if gold is None:
#         return GroupGraderResult(status=PluginStatus.DISCARD)
#     golds, rewards = gold if isinstance(gold, list) else [gold], []
#     for t in trajectories:
#         said = final_answer(t.messages[-1].content or "")
#         searched = any(m.tool_calls for m in t.messages)
#         rewards.append(float(said in golds) if searched else -1.0)
#     return GroupGraderResult(
#         rewards=rewards, metrics={"right": rewards.count(1.0) / len(rewards)})
# ```
#
# Why punish a right answer without a search? It was a guess, and a guess that pays is learned.
#
# </details>

# %% [markdown]
# **Two.** Write a rollout with another tool, the weather: offer `weather_tool`, answer every
# call with what `get_current_weather(**arguments)` says, and stop at an answer without a call,
# or after 4 answers of the model. A call that `check_call` refuses ends the rollout with the
# reward -1.

# %%
from rlteach.agent import weather_tool


@rollout
def ask_weather(context, proxy, sample):
    client = proxy.rollout_client()
    messages = [m.model_dump(exclude_none=True) for m in sample.messages]
    client.chat.completions.create(model="any", messages=messages, tools=[weather_tool])


rl.check("10.2", ask_weather)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# from rlteach.agent import (RolloutResult, ToolCallError, check_call,
#                            get_current_weather, rollout, weather_tool)
#
#
# @rollout
# def ask_weather(context, proxy, sample):
#     client = proxy.rollout_client()
#     messages = [m.model_dump(exclude_none=True) for m in sample.messages]
#     for _ in range(4):
#         said = client.chat.completions.create(
#             model="any", messages=messages, tools=[weather_tool])
#         message = said.choices[0].message
#         messages.append(message.model_dump(exclude_none=True))
#         if not message.tool_calls:
#             break
#         for call in message.tool_calls:
#             try:
#                 _, given = check_call(call, [weather_tool])
#             except ToolCallError:
#                 return RolloutResult(extra={"reward": -1})
#             messages.append({"role": "tool", "content": get_current_weather(**given),
#                              "tool_call_id": call.id})
# ```
#
# </details>

# %% [markdown]
# **Three.** One question, `n` rollouts. The first of them ends with `status` whenever it is
# called (`"SUCCESS"`, `"RETRY"`, `"timeout"`, `"DISCARD"`, `"FAILURE"` or `"exception"`), the
# others are well. How often is the plug-in called, all rollouts together?

# %%
def runs(status, n):
    return n


rl.check("10.3", runs)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def runs(status, n):
#     if status in ("RETRY", "timeout"):
#         return n + 3
#     if status in ("FAILURE", "exception"):
#         return 4 * n
#     return n
# ```
#
# </details>

# %% [markdown]
# **To break it.** Let `searcher` sleep for a second before every call of `look_up`, and draw the
# spans again. Then set `max_concurrency=1`. And what does the run say when `exact` gives `"1"` in
# place of `1.0`?
