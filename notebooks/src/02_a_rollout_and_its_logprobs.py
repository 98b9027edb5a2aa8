# %% [markdown]
# # 02 · A rollout and its log-probs
#
# **Where does an answer come from, and how probable was it?**
#
# Training pushes probabilities up and down, so it has to know them exactly: of which token,
# in which place, under which distribution. You will sample an answer by hand, get the
# library's numbers to the fifth digit, and see four ways to get them wrong without any error.

# %% tags=["nbval-ignore-output"]
try:
    import rlteach as rl
except ModuleNotFoundError:
    raise ModuleNotFoundError("no rlteach here: lesson 01 says what to do") from None
import inspect
import math

import torch
from IPython.display import Image
from matplotlib.figure import Figure
from rlteach.views.plots import png

torch.set_num_threads(1)  # steady numbers

# %% [markdown]
# ## 1. By hand
#
# A toy model with three tokens: `a`, `b`, and `.`, which ends an answer. For each place it
# gives three numbers, the **logits**. The softmax makes probabilities of them:
#
# $$\pi(v) = \frac{e^{z_v}}{\sum_u e^{z_u}}$$

# %%
def softmax(logits):
    powers = [math.exp(z) for z in logits]
    return [power / sum(powers) for power in powers]


first = softmax([1.0, 0.0, -1.0])
print("first token:", dict(zip("ab.", [round(p, 3) for p in first])))

# %% [markdown]
# To draw a token, roll one number $u$ between 0 and 1. Lay the probabilities side by side,
# and see where $u$ falls.

# %%
def draw_by_hand(probs, u):
    total = 0.0
    for token, p in enumerate(probs):
        total += p
        if u < total:
            return token
    return len(probs) - 1


for u in [0.1, 0.66, 0.67, 0.95]:
    print(u, "->", "ab."[draw_by_hand(first, u)])

# %% [markdown]
# The next token depends on what was drawn. So the probability of a whole answer is a product,
# by the **chain rule** (链式法则). Its logarithm is a sum, and that is what one keeps: products
# of many small numbers end at zero.
#
# $$\log \pi(y \mid x) = \sum_t \log \pi(y_t \mid x, y_{<t})$$

# %%
LOGITS = {"": [1, 0, -1], "a": [0, 1, 1], "b": [-1, 0, 2], "aa": [0, 0, 3]}


def logprob_by_hand(answer):
    total = 0.0
    for t, token in enumerate(answer):
        probs = softmax(LOGITS[answer[:t]])
        total += math.log(probs["ab.".index(token)])
    return total


for answer in [".", "a.", "b.", "aa."]:
    lp = logprob_by_hand(answer)
    print(f"{answer:<4} log-prob {lp:+.3f}   probability {math.exp(lp):.3f}")

# %% [markdown]
# ## 2. The model
#
# The real policy has 291 tokens, and its logits come out of a transformer. It reads the whole
# prompt at once, and gives one line of logits for *every* token in it. The last line is about
# the token that comes next.

# %%
policy = rl.Policy.load("tiny-math")
sample = rl.Sample("q", (rl.Message("user", "What is 57 + 38?"),), gold=("95",))
prompt = policy.encode(sample)
with torch.no_grad():
    logits = policy.model(torch.tensor([prompt])).logits[0]  # [T, V]
print("tokens of the prompt:", len(prompt), "  logits:", list(logits.shape))
best = logits[-1].softmax(-1).topk(4)
for p, token in zip(best.values.tolist(), best.indices.tolist()):
    print(f"{policy.tokenizer.decode([token])!r:<6} {p:.4f}")

# %% [markdown]
# The question ends in 57 + 38, and the model wants to begin with the 7. Now roll a number for
# each place and go on until `<|im_end|>`. The rolls come from a **key** (种子): the same key,
# the same answer.

# %%
from rlteach.policy.sampler import noise_of


@torch.no_grad()
def sample_by_hand(key, most=80):
    ids, logprobs = list(prompt), []
    for u in noise_of(key, most).tolist():
        line = policy.model(torch.tensor([ids])).logits[0, -1]
        token = draw_by_hand(line.double().softmax(-1).tolist(), u)
        ids.append(token)
        logprobs.append(line.log_softmax(-1)[token].item())
        if token in policy.stop_ids:
            break
    return ids[len(prompt) :], logprobs

# %%
ids, logprobs = sample_by_hand(key=1)
print(policy.tokenizer.decode(ids))
print("tokens:", len(ids), "  log-prob of the answer:", round(sum(logprobs), 4))

# %% [markdown]
# Does the library agree? It gets the same keys, and has to give the same ids and the same
# log-probabilities.

# %%
[trajectories] = policy.sample([sample], [range(6)])
for key, t in enumerate(trajectories):
    ids, logprobs = sample_by_hand(key)
    p = t.usage["prompt_tokens"]
    assert list(t.token_ids[p:]) == ids
    off = max(abs(a - b) for a, b in zip(t.logprobs[p:], logprobs))
    assert off < 1e-5
    print(f"{key}  {t.response:<30} log-prob {sum(t.logprobs):+.4f}")

# %% [markdown]
# Here is the library's draw. It does for many rows at once what `draw_by_hand` does for one.

# %%
from rlteach.policy.sampler import draw

print(inspect.getsource(draw))

# %% [markdown]
# Where was the model sure, and where did it hesitate? A bar is the probability of one chosen
# token. This answer began with a 6 that nobody had asked for, and then missed a sum.

# %%
t = trajectories[1]
p = t.usage["prompt_tokens"]
shown = [policy.tokenizer.decode([i]) for i in t.token_ids[p:]]
chances = [math.exp(lp) for lp in t.logprobs[p:]]
figure = Figure(figsize=(8, 2.4), dpi=80, layout="constrained")
ax = figure.subplots()
ax.bar(range(len(shown)), chances)
ax.set_xticks(range(len(shown)), shown, rotation=60)
ax.set(ylabel="probability")
Image(data=png(figure))

# %%
for token, chance in zip(shown, chances):
    if chance < 0.95:
        print(f"{token!r:<5} {chance:.3f}")

# %% [markdown]
# ## 3. The cache
#
# `sample_by_hand` reads everything again for each token. A transformer need not: what it
# computed for earlier tokens, their keys and values, does not change. The **KV cache** (键值缓存)
# keeps it, so that each step reads one token. Same logits, less work:

# %%
from rlteach.policy.sampler import forward
from transformers import DynamicCache

cache, lines = DynamicCache(config=policy.model.config), []
with torch.no_grad():
    whole = policy.model(torch.tensor([t.token_ids])).logits[0]
    for i, token in enumerate(t.token_ids):
        mask = torch.ones(1, i + 1, dtype=torch.long)
        lines.append(forward(policy.model, torch.tensor([[token]]), mask, cache)[0])
assert (torch.stack(lines) - whole).abs().max() < 1e-4
n, a = len(prompt), len(shown)
print("tokens read without a cache:", sum(n + i for i in range(a)))
print("tokens read with one:       ", n + a - 1)

# %% [markdown]
# ## 4. Whose tokens?
#
# A trajectory keeps prompt and answer in one line of ids. The **action mask** (动作掩码) is true
# where the policy chose. Only there is anything to reward.

# %%
print(" id  mine   log-prob  text")
for i in [0, 1, 6, 16, 17, 18, 19, 20, 21, 22]:
    text = policy.tokenizer.decode([t.token_ids[i]])
    mine, lp = t.action_mask[i], t.logprobs[i]
    print(f"{t.token_ids[i]:3d}  {mine!s:<5} {lp:9.4f}  {text!r}")
print("of", len(t.token_ids), "tokens the policy chose", sum(t.action_mask))

# %% [markdown]
# Training computes the log-probabilities once more, with gradients: it **scores** (打分) the ids.
# Before the first update both must agree, or the policy would be trained on something that
# it did not do.

# %%
from rlteach.training.batch import collate

rows = collate([(t, True, 1.0, 0.5) for t in trajectories])
with torch.no_grad():
    scored = policy.logprobs(rows, temperature=1.0).sampling  # [N, T]
assert (scored - rows.sampled_logprobs).abs().max() < 1e-5
print(rows)
print("scored :", [round(x, 4) for x in scored.sum(-1).tolist()])
print("sampled:", [round(sum(t.logprobs), 4) for t in trajectories])

# %% [markdown]
# ## 5. Four ways to get it wrong
#
# None of them raises an error. All were found in public code.
#
# **One: the wrong shift.** The logits of place $t-1$ speak about token $t$. Somebody has to
# shift by one, once. `transformers` does it inside, when it is given labels. A tutorial
# shifted before, too: its model learned to say the token *after* the next.

# %%
def loss_of(labels):
    ids = torch.tensor([t.token_ids])
    return policy.model(ids, labels=torch.tensor([labels])).loss.item()


labels = [i if mine else -100 for i, mine in zip(t.token_ids, t.action_mask)]
shifted = [*labels[1:], -100]
with torch.no_grad():
    once, twice = loss_of(labels), loss_of(shifted)
print(f"shifted once : {once:7.4f} a token, probability {math.exp(-once):.3f}")
print(f"shifted twice: {twice:7.4f} a token, probability {math.exp(-twice):.6f}")
assert abs(once + sum(t.logprobs) / sum(t.action_mask)) < 1e-5

# %% [markdown]
# Shifted once, the loss is minus the mean of our log-probabilities, as it should be. Shifted
# twice, the model seems to find its own answer absurd. The shapes fit, the loss falls in
# training, and the model is ruined.
#
# **Two: the prompt twice.** `generate` of transformers returns prompt *and* answer. Whoever
# puts the prompt before that trains on it as if the policy had said it.

# %%
returned = list(t.token_ids)
doubled = prompt + returned
taken = len(doubled) - len(prompt)
print("tokens of the answer:", sum(t.action_mask), "  taken for it:", taken)
with torch.no_grad():
    line = policy.model(torch.tensor([doubled])).logits[0].log_softmax(-1)
lp = [line[i - 1, doubled[i]].item() for i in range(len(prompt), len(doubled))]
print(f"log-prob with the prompt twice {sum(lp):.1f}")
print(f"log-prob of what was sampled   {sum(t.logprobs):.1f}")

# %% [markdown]
# **Three: text in place of ids.** A text can be spelt in several ways. The tokenizer always
# picks the same one, the policy need not. Here it wrote the box letter by letter:

# %%
spelt = [policy.tokenizer.convert_tokens_to_ids(c) for c in r"\boxed{95}"]
again = policy.tokenizer.encode(r"\boxed{95}")
assert policy.tokenizer.decode(spelt) == policy.tokenizer.decode(again)
print("written:", spelt)
print("encoded:", again)

# %% [markdown]
# The same text, other ids: the log-probability of one says nothing about the other. How often
# does it happen? Encode what the policy wrote, and compare with what it had chosen.

# %%
questions = rl.load_samples("prompts/dev.jsonl")[:30]
tokenizer = policy.tokenizer
for temperature in [1.0, 1.5]:
    warm = rl.Policy(policy.model, tokenizer, config=rl.Config(temperature=temperature))
    groups = warm.sample(questions, [range(8)] * len(questions))
    answers = [t.token_ids[t.usage["prompt_tokens"] :] for g in groups for t in g]
    changed = sum(tokenizer.encode(tokenizer.decode(a)) != list(a) for a in answers)
    print(f"temperature {temperature}: {changed} of {len(answers)} came back changed")

# %% [markdown]
# Rare, so nobody notices; and it hits just the odd answers that training should learn from.
# The library never encodes an answer: ids go from the sampler to the update.
#
# **Four: another distribution.** The **temperature** (温度) divides the logits before the softmax.
#
# $$\pi_T(v) \propto e^{z_v / T}$$

# %%
for temperature in [0.25, 1.0, 2.0]:
    probs = softmax([z / temperature for z in [1.0, 0.0, -1.0]])
    entropy = -sum(p * math.log(p) for p in probs)
    print(temperature, [round(p, 3) for p in probs], f"entropy {entropy:.3f}")

# %% [markdown]
# Cold, the first token takes all; warm, they come closer. The **entropy** (熵) says how open the
# choice is. Whoever samples at 0.6 and scores at 1 compares two different policies:

# %%
cool = rl.Policy(policy.model, tokenizer, config=rl.Config(temperature=0.6))
[found] = cool.sample([sample], [range(4)])
rows = collate([(t, True, 1.0, 0.5) for t in found])
with torch.no_grad():
    for temperature in [0.6, 1.0]:
        scored = cool.logprobs(rows, temperature=temperature).sampling.sum(-1)
        ratio = (scored - rows.sampled_logprobs.sum(-1)).exp()
        print(f"scored at {temperature}: ratio", [round(r, 3) for r in ratio.tolist()])

# %% [markdown]
# The ratio of new to old probability must be 1 before the first update.
#
# **Top-p** (核采样) changes the distribution, too. It keeps the smallest set of most probable
# tokens whose mass reaches $p$, and divides by that mass. The token that crosses $p$ stays.

# %%
from rlteach.policy.truncation import truncate

probs = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
for top_p in [1.0, 0.9, 0.7, 0.4]:
    left = truncate(probs.log(), top_k=0, top_p=top_p).softmax(-1)[0]
    print(f"top-p {top_p}:", [round(x, 3) for x in left.tolist()])

# %% [markdown]
# So an answer under top-p can be scored only over the tokens that were left in each place. The
# sampler keeps their ids as `support`. Without them, every answer looks less probable than it was:

# %%
narrow = rl.Policy(policy.model, tokenizer, config=rl.Config(top_p=0.8))
[found] = narrow.sample([sample], [range(4)])
print("tokens left in each place:", [len(ids) for ids in found[2].support])
rows = collate([(t, True, 1.0, 0.5) for t in found])
with torch.no_grad():
    scored = narrow.logprobs(rows)
assert (scored.sampling - rows.sampled_logprobs).abs().max() < 1e-5
print("over what was left :", [round(x, 3) for x in scored.sampling.sum(-1).tolist()])
print("over the vocabulary:", [round(x, 3) for x in scored.full.sum(-1).tolist()])

# %% [markdown]
# ## 6. Cut off
#
# An answer ends with `<|im_end|>`, or at the limit `max_new_tokens`. Then its **finish
# reason** (结束原因) is `length`. It has no end, so it counts as wrong. A limit that is too low
# turns every answer into a wrong one, and no message tells you.

# %%
judger = rl.RuleJudger()
for limit in [10, 20, 30, 40, 80]:
    short = rl.Policy(policy.model, tokenizer, config=rl.Config(max_new_tokens=limit))
    found = rl.evaluate(short, judger, questions, greedy=False, k=4)
    ends = [t.finish_reason for g in found.groups for t in g.trajectories]
    cut = ends.count("length") / len(ends)
    print(f"limit {limit:2d}: cut off {cut:4.0%}   right {found.accuracy:4.0%}")

# %%
short = rl.Policy(policy.model, tokenizer, config=rl.Config(max_new_tokens=15))
[[t]] = short.sample([sample], [[0]])
print(t.response, "|", t.finish_reason, "|", judger.judge(sample, t).reason)

# %% [markdown]
# Whenever rewards stay at zero, look at the share of answers that were cut off first.

# %% [markdown]
# ## 7. Exercises
#
# **02.1** Write `sequence_logprob(logits, ids, start)`. `logits` is a tensor [T, V], one line
# for each token; `ids` is a list of T ids; the answer begins at place `start`. Give the
# log-probability of the answer, as a number.

# %%
def sequence_logprob(logits, ids, start):
    logp = logits.log_softmax(-1)
    return sum(logp[t, ids[t]].item() for t in range(start, len(ids)))


rl.check("02.1", sequence_logprob)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def sequence_logprob(logits, ids, start):
#     logp = logits.log_softmax(-1)
#     return sum(logp[t - 1, ids[t]].item() for t in range(start, len(ids)))
# ```
#
# </details>

# %% [markdown]
# **02.2** Write `nucleus(probs, p)`: the sorted list of the ids that top-p keeps. `probs` is a
# list of probabilities, in any order.

# %%
def nucleus(probs, p):
    return list(range(len(probs)))


rl.check("02.2", nucleus)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def nucleus(probs, p):
#     order = sorted(range(len(probs)), key=lambda i: -probs[i])
#     kept, mass = [], 0.0
#     for i in order:
#         if mass >= p:
#             break
#         kept.append(i)
#         mass += probs[i]
#     return sorted(kept)
# ```
#
# </details>

# %% [markdown]
# **02.3** Two tokens have the logits 2 and 0. At which temperature is the first one drawn with
# probability 0.95? At temperature 1 it is 0.88.

# %%
T = 1.0
rl.check("02.3", T)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# import math
#
# T = 2 / math.log(19)
# ```
#
# </details>

# %% [markdown]
# **To break it.** In section 4, change one id of a trajectory to another and score again.
# Which log-probabilities change: only that one's, or those after it as well? Why not those
# before it?
