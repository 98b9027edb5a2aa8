# %% [markdown]
# # 09 · Tools, and many turns
#
# **The model asks a tool and reads the reply. Which of these tokens may be trained?**
#
# So far an answer was one piece of text. Now the model stops, a tool speaks, and the model
# goes on. First by hand, token by token. Then you will see who wrote what, why that matters
# to the gradient, and a small agent that learns to search.

# %% tags=["nbval-ignore-output"]
try:
    import rlteach as rl
except ModuleNotFoundError:
    raise ModuleNotFoundError("no rlteach here: lesson 01 says what to do") from None

# %%
import inspect
import json
from collections import Counter
from dataclasses import replace

import torch
from IPython.display import Image
from rich.console import Console
from rlteach.views.plots import png

torch.set_num_threads(1)  # steady numbers
page = Console(width=100, force_jupyter=False, color_system=None, highlight=False)

# %% [markdown]
# ## 1. One rollout by hand
#
# `tiny-agent` has 670,000 weights. It is asked about an encyclopaedia that was made up for
# it, and none of its training texts contains a page of it. So it cannot know an answer. It has
# to call a **tool** (工具): `web_search`, which finds pages in that encyclopaedia.

# %%
from rlteach.agent.search import SEARCH_TOOL, SearchIndex

config = rl.Config.preset("tiny-agent")
policy = rl.Policy.load("tiny-agent", config)
pages, exam = SearchIndex(), rl.load_samples(config.test_data)
sample = next(s for s in exam if s.question == "Where was Pofodu born?")
prompt = policy.encode(replace(sample, tools=(SEARCH_TOOL,)))
print(policy.tokenizer.decode(prompt))
print(len(prompt), "tokens; gold answer:", *sample.gold)

# %% [markdown]
# This is all that the model is given: a list of tools, the question, and the words "it is
# your turn". Let it go on, with the most probable token each time.

# %%
@torch.no_grad()
def go_on(ids):
    said = []
    while len(said) < 48:
        logits = policy.model(torch.tensor([[*ids, *said]])).logits[0, -1]
        said.append(int(logits.argmax()))
        if said[-1] in policy.stop_ids:
            break
    return said


call = go_on(prompt)
print(policy.tokenizer.decode(call))

# %% [markdown]
# Nothing was searched. **A tool call** (工具调用) **is text**: JSON between two marks, and a
# token that says "I stop here". Somebody outside has to read it, run the tool, and write the
# reply where the model can read it. That somebody is a few lines:

# %%
from rlteach.policy.chat import encode_chat


def use_tool(said):
    text = policy.tokenizer.decode(said)
    asked = json.loads(text.split("<tool_call>")[1].split("</tool_call>")[0])
    given = asked["arguments"]
    found = pages.search(given["Query"], given["Count"])
    told = rl.Message("tool", json.dumps(found, ensure_ascii=False))
    return encode_chat(policy.tokenizer, [told])


reply = use_tool(call)
print(policy.tokenizer.decode(reply))

# %% [markdown]
# And the model goes on behind it. One list of ids has grown all the time. Beside it, keep
# another list: was this token the model's choice?

# %%
answer = go_on(prompt + call + reply)
ids = prompt + call + reply + answer
mask = [False] * len(prompt) + [True] * len(call)
mask += [False] * len(reply) + [True] * len(answer)
print(policy.tokenizer.decode(answer))
print(len(ids), "tokens,", sum(mask), "of them chosen by the model")

# %% [markdown]
# ## 2. Whose token is it?
#
# In a run nobody does this by hand. A **plug-in** (插件) talks to the model in messages, through
# an ordinary client, and a **proxy** (代理) stands between them and keeps the list of ids. This
# is the plug-in that the run will use, and a proxy opened for one rollout:

# %%
from rlteach.agent import open_proxy, rollout
from rlteach.templates.search.plugins import rollout as search_plugin

with open_proxy(policy, sample, greedy=True) as proxy:
    outcome, trajectory = proxy.run(search_plugin.demo_rollout), proxy.trajectory
print(outcome.status.value)
for message in trajectory.messages:
    print(f"{message.role:<10}", message.content, *(
        c["function"]["arguments"] for c in message.tool_calls))
assert trajectory.token_ids == tuple(ids)
assert trajectory.action_mask == tuple(mask)

# %% [markdown]
# The asserts say: the proxy's list is ours, id for id. Our second list is its
# **action mask** (动作掩码). The loop of the plug-in, from the library:

# %%
print(inspect.getsource(search_plugin.search_and_answer))

# %% [markdown]
# The record in a table, one row a token. Here are the rows around the place where the model
# stops and the tool begins. A token that was given has no **log-probability** (对数概率):
# nobody drew it.

# %%
table = rl.record_table(policy, trajectory)
end = len(prompt) + len(call)
table.iloc[end - 5 : end + 4].round(3)

# %%
parts = table.groupby("part")
parts.agg(sampled=("sampled", "first"), tokens=("id", "size"), text=("token", "".join))

# %% [markdown]
# Four parts. In colour is what the model chose, and how probable it found that. What it was
# given is grey. The mark that ends its turn is coloured, too: to stop was a choice.

# %%
figure = rl.record_picture(policy, trajectory)
Image(data=png(figure))

# %% [markdown]
# ## 3. Why only its own?
#
# A rollout $\tau$ is probable when the model chooses so **and** the world replies so:
#
# $$p(\tau) = \prod_{\text{model's tokens}} \pi_\theta(x_t \mid x_{<t}) \cdot
# \prod_{\text{tool's tokens}} \text{world}(x_t \mid x_{<t})$$
#
# Our weights $\theta$ are in the first product only. So in $\nabla\log p(\tau)$ the second one
# is gone. A world of three words shows what happens otherwise: the policy says a word, the
# tool replies with a word, the policy says another. One of the nine rollouts is right.

# %%
z = torch.tensor([0.2, -0.3, 0.4], dtype=torch.float64)
replies = [2, 2, 0]  # what the tool says to word 0, 1, 2
rewarded = (0, 1)  # first and last word of the right rollout


def expected_reward(z):
    return z.softmax(0)[rewarded[0]] * z.softmax(0)[rewarded[1]]


pi = z.softmax(0)
exact = torch.func.grad(expected_reward)(z)
grad_log = torch.eye(3, dtype=torch.float64) - pi  # row k: gradient of log pi(k)
print("exact gradient", [round(x, 4) for x in exact.tolist()])

# %% [markdown]
# Now as in lesson 05: the mean over all rollouts of reward times $\nabla\log$, once with the
# model's tokens, once with the tool's token, too.

# %%
own = torch.zeros(3, dtype=torch.float64)
everything = torch.zeros(3, dtype=torch.float64)
for first in range(3):
    for last in range(3):
        weight = pi[first] * pi[last] * float((first, last) == rewarded)
        own += weight * (grad_log[first] + grad_log[last])
        tool = grad_log[replies[first]]
        everything += weight * (grad_log[first] + tool + grad_log[last])
assert torch.allclose(own, exact)
print("own tokens    ", [round(x, 4) for x in own.tolist()])
print("and the tool's", [round(x, 4) for x in everything.tolist()])

# %% [markdown]
# The first is exact. The second pushes word 0 down, and the right rollout begins with word 0!
# What it pushes up instead is word 2. No right rollout needs it from the model; the *tool* says
# it whenever the model has begun well. A model that is trained so learns to recite its tool.
#
# And how loud is the tool in our real rollout? Ask the model how surprised it is by each
# token, and how long the gradient is.

# %%
def of_the_tokens(which):
    given, marked = torch.tensor([ids]), torch.tensor(which)[1:]
    logp = policy.model(given).logits[0, :-1].log_softmax(-1)
    taken = logp.gather(-1, given[0, 1:, None])[:, 0][marked]
    slope = torch.autograd.grad(-taken.sum(), list(policy.model.parameters()))
    return -taken.mean().item(), torch.cat([g.flatten() for g in slope])


tools = [False] * end + [True] * len(reply) + [False] * len(answer)
for name, which in (("the model's", mask), ("the tool's", tools)):
    surprise, slope = of_the_tokens(which)
    print(f"{name:<12} {sum(which)} tokens   surprise {surprise:.2f} a token"
          f"   gradient {slope.norm():.0f}")

# %% [markdown]
# The tool tells something new: that is what it is for. So its tokens surprise the model
# much more than its own words do, and unmasked they would shout down everything else.
# Nothing in the loss would look wrong.

# %% [markdown]
# ## 4. A history that is edited
#
# A plug-in may do as it likes with its messages. It may drop a turn, or mend what the model
# said. Then the model sees another past than the one it lived through, and the record has to
# say so. Talk through the proxy, one request at a time:

# %%
question = {"role": "user", "content": sample.question}


def ask(proxy, messages):
    client = proxy.rollout_client()
    said = client.chat.completions.create(
        model="any", messages=messages, tools=[SEARCH_TOOL])
    return said.choices[0].message.model_dump(exclude_none=True)


def tool_says(call, text):
    used = call["tool_calls"][0]["id"]
    return {"role": "tool", "content": text, "tool_call_id": used}

# %% [markdown]
# Ask, let the tool reply, ask again. Then a plug-in that "helps": it asks once more, with a
# call that it has rewritten. It means the same, and it is not what the model said.

# %%
def mended(call):
    function = {"name": "web_search", "arguments": '{"Query": "Pofodu"}'}
    return {**call, "tool_calls": [{**call["tool_calls"][0], "function": function}]}


with open_proxy(policy, sample, greedy=True) as proxy:
    said = ask(proxy, [question])
    reply_message = tool_says(said, trajectory.messages[2].content)
    for call_message in (said, mended(said)):
        print(ask(proxy, [question, call_message, reply_message])["content"])
        edited = proxy.trajectory
        print("sampled", sum(edited.action_mask), "of", len(edited.token_ids), "tokens")
    print(proxy.cuts)

# %%
figure = rl.record_picture(policy, edited)
Image(data=png(figure))

# %% [markdown]
# The first time the history is what it was, and both turns of the model count. The second
# time the record is cut at the **longest common prefix** (最长公共前缀): 30 tokens are as they
# were. What the plug-in wrote behind them is text like any other: given, grey, not trained.
# `cuts` names what is lost (both turns: the old answer stood behind the cut, too), and a run
# counts it as `rollout/history_cuts`. Trained is always what the **last** request saw.

# %% [markdown]
# ## 5. Nothing is tokenised twice
#
# Why keep ids at all? The messages hold the text; could one not tokenise it again? Here is an
# answer that the model gives at temperature 1.3:

# %%
warm = rl.Sample("warm", (rl.Message("user", "Who founded Togi?"),), (),
                 extra={"temperature": 1.3})
with open_proxy(policy, warm) as proxy:
    ask(proxy, [{"role": "user", "content": warm.question}])
    record = rl.record_table(policy, proxy.trajectory)
sampled = list(record["id"][record["sampled"]])
text = policy.tokenizer.decode(sampled)
again = policy.tokenizer.encode(text)
print(text)
print(len(sampled), "tokens were sampled;", len(again), "tokens when it is read again")

# %%
from rlteach.views.tokens import pieces

at = next(i for i, (a, b) in enumerate(zip(sampled, again)) if a != b)
print("sampled", pieces(policy.tokenizer, sampled[at - 1 : at + 3]))
print("again  ", pieces(policy.tokenizer, again[at - 1 : at + 5]))

# %% [markdown]
# The model wrote half a character: one byte that is no text by itself. As text it became the
# replacement sign, and read again, three other tokens. How probable are they?

# %%
@torch.no_grad()
def logprob(said):
    given = policy.encode(replace(warm, tools=(SEARCH_TOOL,)))
    logits = policy.model(torch.tensor([[*given, *said]])).logits[0]
    logp = (logits[len(given) - 1 : -1] / 1.3).log_softmax(-1)
    return logp.gather(-1, torch.tensor(said)[:, None]).sum().item()


print(f"sampled {logprob(sampled):.0f}   again {logprob(again):.0f}")

# %% [markdown]
# A factor of $e^{38}$: trained would be an answer that the policy would never have
# given. With this small vocabulary it is rare, about one answer in a thousand at temperature
# 1. Large models can spell one word in many ways, and there it happens all the time. The
# proxy never has to think about it: what was sampled stays as it was sampled.

# %% [markdown]
# ## 6. A tool that finds nothing
#
# Can the model know the answers after all? Take the tool away: a search that never finds a
# page. A rollout at temperature 1, then the share of right answers on 60 questions.

# %%
async def finds_nothing(**arguments):
    return {"Result": {"ResultCount": 0, "WebResults": []}}


@rollout
async def blind_rollout(context, proxy, sample):
    return await search_plugin.search_and_answer(context, proxy, sample, finds_nothing)


with open_proxy(policy, sample, greedy=True) as proxy:
    proxy.run(blind_rollout)
    print(*(m.content or "(a call)" for m in proxy.trajectory.messages), sep="\n")

# %% [markdown]
# What is right? The judger here is the plug-in's own **grader** (打分器): 1 for the gold answer,
# 0 for another one, -1 for a call that the tool cannot read.

# %%
from rlteach.templates.search.plugins.llm_grader import search_grader

judger = rl.graders((search_grader, 1.0, {"OPENAI_BASE_URL": ""}))
one_hop = [s for s in exam if s.extra["level"] == "single"][:150]


def right(policy, rollout=search_plugin.demo_rollout, questions=one_hop, **how):
    return rl.evaluate(policy, judger, questions, rollout=rollout, **how)


blind = right(policy, blind_rollout, one_hop[:60])
print("right without pages:", round(blind.accuracy * blind.n), "of", blind.n)

# %% [markdown]
# ## 7. It learns to search
#
# With the real tool, and the dice of training (temperature 1): how often is it right before
# anything is trained? One question takes one search here; the exam has two-search questions,
# too, which are left out.

# %%
before = right(policy, greedy=False)
rewards = Counter(g.scores[0] for g in before.groups)
print("before:", before)
print("rewards:", dict(rewards))

# %% [markdown]
# Two thirds of the rollouts end at once: the call was **malformed** (格式错误). Here are four first
# calls to one question. (Without dice, in section 1, the call was well formed.)

# %%
for key in range(4):
    with open_proxy(policy, sample, key=key) as proxy:
        outcome = proxy.run(search_plugin.demo_rollout)
        said = rl.record_table(policy, proxy.trajectory).query("part == 1")["id"]
    print(policy.tokenizer.decode(list(said)[:-1]))
    print("   ", outcome.value.get("malformed", "well formed"))

# %% [markdown]
# The training here is **small**:
# 8 steps, 16 questions, 8 rollouts each. The preset has 30 steps with twice the questions, and
# takes minutes. `mixed` keeps all rollouts of every group that has both kinds.

# %%
short = config.replace(batch_size=16, total_steps=8, warmup_steps=2)
train_on = rl.load_samples(config.train_data)
train_on = [s for s in train_on if s.extra["level"] == "single"]
learner = rl.Policy.load("tiny-agent", short)
trainer = rl.OrealTrainer(learner, judger, train_on, short,
                          rollout=search_plugin.demo_rollout)
print({s.id for s in train_on} & {s.id for s in exam}, short.selection)

# %% [markdown]
# Rollouts and grades shall write what they do into one **trace** (轨迹记录); section 8 reads it.
# Then start, and watch.

# %%
from rlteach.agent import Tracer
from rlteach.training import plugins

tracer = Tracer(keep=10_000)
plugins.trace(tracer, trainer.rollouts, judger)

# %% tags=["nbval-ignore-output"]
run = trainer.start()
rl.view(run)

# %% tags=["nbval-ignore-output"]
steps = run.resume().wait().history
names = ["reward/mean", "groups/kept", "grader/malformed/mean", "grader/searches/mean"]
steps[names].round(2)

# %% [markdown]
# The reward climbs because the malformed calls vanish: nobody told the model what a good call
# looks like, only that some of its own were worth more than others. Now on questions that it
# was not trained on:

# %% tags=["nbval-ignore-output"]
after = right(learner, greedy=False)
print("before", before)
print("after ", after)
print("after, most probable token:", right(learner), "  before:", right(policy))

# %%
print("better by more than luck:", after.ci95[0] > before.ci95[1])
wrong = [sum(g.scores[0] == -1 for g in e.groups) for e in (before, after)]
print("fewer malformed calls   :", wrong[1] < wrong[0] / 2)
blind = right(learner, blind_rollout, one_hop[:60])
print("right without pages     :", round(blind.accuracy * blind.n), "of", blind.n)

# %% [markdown]
# Be careful with the claim. One seed, 150 questions, one kind of question. And look at the last
# line of the numbers: **asked without dice, the untrained model was nearly as good** (here 84 %
# against 91 %, and the intervals overlap). It could search from the start; it was only not sure
# of it. What was trained here is mostly certainty. It still knows nothing: without pages it is
# never right, and that is as it should be.

# %% [markdown]
# ## 8. Read one
#
# A curve is no proof that it searches. Read a rollout, as a tree: what was asked, what the tool
# was given, what came back. Every plug-in leaves **spans** (跨度) with the time they took, and
# `rlteach trace RUN` shows them for a run on disk.

# %%
from rlteach.views.trace import read_trace, trace_tree

spans = read_trace(tracer)
group = next(g for g in trainer.history[-1].groups
             if 1.0 in g.scores and g.sample.extra["language"] == "en")
good = group.trajectories[group.scores.index(1.0)]
print(sorted({s["kind"] for s in spans}), len(good.messages), "messages")

# %% tags=["nbval-ignore-output"]
page.print(trace_tree(spans, name=good.extra["rollout_span"]))
trainer.close()

# %% [markdown]
# ## 9. Exercises
#
# **One.** `parts` is a rollout as a list of pairs: who wrote it (`"prompt"`, `"model"`,
# `"tool"` or `"template"`) and its ids. Give the action mask, one `True` or `False` a token.

# %%
def action_mask(parts):
    return [True for who, ids in parts for i in ids]


rl.check("09.1", action_mask)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def action_mask(parts):
#     return [who == "model" for who, ids in parts for i in ids]
# ```
#
# </details>

# %% [markdown]
# **Two.** A record is a list of parts again, here pairs `(sampled, ids)`. The plug-in has edited
# its history, and the model is now shown the ids `now`. How many sampled tokens are still
# trained? A turn that is not there as a whole is no turn of the model any more.

# %%
def still_trained(record, now):
    return sum(len(ids) for sampled, ids in record if sampled)


rl.check("09.2", still_trained)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def still_trained(record, now):
#     at = kept = 0
#     for sampled, ids in record:
#         if list(now[at : at + len(ids)]) != list(ids):
#             break
#         at += len(ids)
#         kept += len(ids) if sampled else 0
#     return kept
# ```
#
# The first difference ends it, even when a later turn is there letter for letter: the model
# would have said it after another past.
#
# </details>

# %% [markdown]
# **Three.** A call is malformed with probability `bad`, and the first malformed call ends the
# rollout. A question takes `hops` calls. How probable is it that a group of `size` rollouts has
# at least one that gets through? Try two thirds, 8 rollouts, and one or two hops.

# %%
def one_gets_through(bad, hops, size):
    return 1 - bad


rl.check("09.3", one_gets_through)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def one_gets_through(bad, hops, size):
#     return 1 - (1 - (1 - bad) ** hops) ** size
# ```
#
# 96 % for one hop, 61 % for two: and where no rollout of a group gets through, nothing can be
# learned. That is why two hops are learned after one.
#
# </details>

# %% [markdown]
# **To break it.** In section 3, train on the wrong mask: take `trajectory` with
# `replace(trajectory, action_mask=(False,) * 20 + (True,) * (len(ids) - 20))`, and make 20 steps
# of gradient on it. Ask the model something else then. Who answers?
