# %% [markdown]
# # 07 · The token-level reward model
#
# **The judger marks a whole answer. Which of its tokens earned the mark?**
#
# An addition of 35 tokens is wrong, and one digit is to blame. So far all 35 are pushed
# down. OREAL trains a second model that spreads the mark over the tokens. Here you see
# how, how well it finds the digit, and whether it was worth the trouble.

# %% tags=["nbval-ignore-output"]
try:
    import rlteach as rl
except ModuleNotFoundError:
    raise ModuleNotFoundError("no rlteach here: read lesson 00") from None

# %%
import inspect
import math

import torch
from IPython.display import Image
from matplotlib.figure import Figure
from rlteach.course.addition import first_wrong, operands
from rlteach.oreal import token_weights as tw
from rlteach.policy.token_reward_model import HeadMemory, token_scores
from rlteach.training.batch import collate
from rlteach.views.plots import png
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

torch.set_num_threads(1)

# %% [markdown]
# ## 1. By hand
#
# A wrong answer of six tokens: `7+8=14`. The fifth is right, too; the last one is the
# slip. Say a model gives every token a number $w$, positive for "this looks right".
# Make the numbers up:

# %%
tokens = ["7", "+", "8", "=", "1", "4"]
w = [0.4, 0.1, 0.3, 0.2, 0.5, -3.0]


def sigma(x):
    return 1 / (1 + math.exp(-x))


mean = sum(w) / len(w)
print("mean of w", round(mean, 3))
print("believed to be right with probability", round(sigma(mean), 3))

# %% [markdown]
# Equation 12 trains these numbers with nothing but the outcome (结果) $r$ of the whole
# answer:
#
# $$p(s) = \sigma\Big(\frac1T\sum_t w_t\Big), \qquad L = -r\log p - (1-r)\log(1-p)$$
#
# Nobody says which token is wrong. But many answers share their tokens, and only those
# that slip end wrong. Equation 10 then reads the numbers the other way round, as
# **weights** (权重):
#
# $$\omega^+_t = \max(2\sigma(w_t)-1,\,0), \qquad \omega^-_t = \max(1-2\sigma(w_t),\,0)$$

# %%
good = [max(2 * sigma(x) - 1, 0) for x in w]
bad = [max(1 - 2 * sigma(x), 0) for x in w]
print("token     ", "".join(f"{t:>7}" for t in tokens))
print("w         ", "".join(f"{x:7.2f}" for x in w))
print("if right  ", "".join(f"{x:7.2f}" for x in good))
print("if wrong  ", "".join(f"{x:7.2f}" for x in bad))

# %% [markdown]
# In a right answer, tokens that look good are pushed up. In a wrong one, only what looks
# bad is pushed down: here the slip, and not the five innocent tokens before it.
#
# The released code does not take $w_t$ itself. It takes the **running mean** (累积平均) up
# to token $t$.

# %%
running = [sum(w[: t + 1]) / (t + 1) for t in range(len(w))]
late = [max(1 - 2 * sigma(x), 0) for x in running]
print("running   ", "".join(f"{x:7.2f}" for x in running))
print("if wrong  ", "".join(f"{x:7.2f}" for x in late))

row, mask = torch.tensor([w]), torch.ones(1, 6, dtype=torch.bool)
for right, score, mine in ((True, "per_token", good), (False, "per_token", bad),
                           (False, "running_mean", late)):
    given = {"weighting": "threshold", "score": score}
    its = tw.token_weights(row, mask, torch.tensor([right]), **given)[0]
    assert torch.allclose(its, torch.tensor(mine), atol=1e-6)
assert abs(float(tw.token_reward_loss(row, mask, torch.tensor([False]))[0])
           + math.log(1 - sigma(mean))) < 1e-6

# %% [markdown]
# The library agrees (the asserts were silent). The running mean is a softer judge: it
# carries what came before. This is the library's own code for both:

# %%
print(inspect.getsource(tw.running_mean))
print(inspect.getsource(tw.threshold_rescale))

# %% [markdown]
# ## 2. A head of zeros says nothing
#
# The model is a body (a transformer) and a **head** (一个线性头): one number from each
# hidden state. In the paper the head starts at zero. Then all $w$ are 0, both weights
# are 0, and the policy learns nothing. This is what **freeze steps** (冻结步) are for: at
# first only this model learns.

# %%
config = rl.Config.preset("tiny-oreal")
policy = rl.Policy.load("tiny-math", config)
checker = rl.TokenRewardModel(rl.Policy.load("tiny-checker").model.base_model)
questions = rl.load_samples(config.train_data)


def answers_to(samples, count, first_key):
    keys = [range(first_key + i * count, first_key + (i + 1) * count)
            for i in range(len(samples))]
    groups = [rl.Group(s, t) for s, t in zip(samples, policy.sample(samples, keys))]
    judged = [(g, t, j) for g in groups
              for t, j in zip(g.trajectories, judger.grade(g))]
    kept = [(g.sample, t, j.score == 1) for g, t, j in judged if j.score is not None]
    return kept, collate([(t, right, 0.0, 0.0) for _, t, right in kept])

# %%
judger = rl.RuleJudger()
train, train_rows = answers_to(questions[:128], 16, 0)
first = next(train_rows.micro_batches(4))
scores = token_scores(checker, first)
weights = tw.token_weights(scores, first.action_mask, first.positive,
                           weighting="threshold", score="per_token")
print(len(train), "answers,", int(train_rows.positive.sum()), "of them right")
print("largest |w|", float(scores.abs().max()))
print("largest weight", float(weights.max()))

# %% [markdown]
# ## 3. Fit the head
#
# The head is linear, so the mean of $w$ is the head's value of the mean hidden state.
# With the body as it is, equation 12 is a plain logistic regression (逻辑回归): it can be
# solved in a second. We try two bodies: a copy of the policy, as in the paper, and
# `tiny-checker`, the same model trained further on solutions with slips that are
# noticed.

# %%
print(inspect.getsource(HeadMemory.fit))

# %%
@torch.no_grad()
def remember(model, rows):
    memory = HeadMemory()
    for part in rows.micro_batches(128):
        memory.add(model.states(part), part.action_mask, part.positive)
    return memory

# %%
own = rl.TokenRewardModel(policy.model.base_model)
for name, model in (("policy ", own), ("checker", checker)):
    memory = remember(model, train_rows)
    right = memory.positive
    row_weights = torch.where(right, 0.5 / right.sum(), 0.5 / (~right).sum())
    memory.fit(model.head, row_weights)
    each = cross_entropy(memory.states @ model.head.weight[0].detach(), right.float(),
                         weight=row_weights, reduction="sum")
    print(name, " loss at the start", round(math.log(2), 2),
          "  fitted", round(float(each), 2))

# %% [markdown]
# The loss of a coin is $\log 2$. Does it hold on answers to new questions? Take the
# **AUC**: the share of pairs (a right answer, a wrong one) in which the right one has
# the higher score. 0.5 is chance. And only within one level: over mixed levels it would
# just say that long numbers are harder.

# %%
def auc(scores, right):
    difference = scores[right][:, None] - scores[~right][None, :]
    return float(((difference > 0).float() + 0.5 * (difference == 0).float()).mean())


new, new_rows = answers_to(rl.load_samples(config.dev_data)[:120], 8, 10**6)
levels = torch.tensor([s.extra["level"] for s, _, _ in new])
found = {}
for name, model in (("policy ", own), ("checker", checker)):
    parts = new_rows.micro_batches(128)
    found[name] = w = torch.cat([token_scores(model, part) for part in parts])
    whole = tw.sequence_score(w, new_rows.action_mask)
    areas = [auc(whole[levels == n], new_rows.positive[levels == n]) for n in (2, 3, 4)]
    print(name, " AUC with 2, 3, 4 digits:", [round(a, 2) for a in areas])

# %% [markdown]
# The policy's own body hardly knows. That is no accident: a digit it knew to be wrong,
# it would rarely have written. The checker's body does know. This is a **warm start**,
# and a departure from the paper; docs/token-reward.md has every recipe that was tried.

# %% [markdown]
# ## 4. Where is the first wrong token?
#
# In this task the working is known exactly, and so is the first character that is
# wrong. How often is its token among the lowest tenth of its answer?

# %%
def wrong_token(sample, trajectory):
    at = first_wrong(*operands(sample.question), trajectory.response)
    acted = zip(trajectory.token_ids, trajectory.action_mask)
    end = 0
    for place, token in enumerate(i for i, mine in acted if mine):
        end += len(policy.tokenizer.decode([token]))
        if at is not None and end > at:
            return place
    return None

# %%
def hits(w):
    out = []
    for i, (sample, trajectory, right) in enumerate(new):
        place = None if right else wrong_token(sample, trajectory)
        if place is not None:
            own = w[i, new_rows.action_mask[i]]
            lowest = max(1, len(own) // 10)
            out.append((place in own.argsort()[:lowest].tolist(), lowest / len(own)))
    return [sum(column) / len(out) for column in zip(*out)] + [len(out)]

# %%
for name, w in found.items():
    mean = tw.running_mean(w, new_rows.action_mask)
    for kind, values in (("w itself    ", w), ("running mean", mean)):
        share, chance, count = hits(values)
        print(f"{name}  {kind}  found {share:.2f}  by chance {chance:.2f}  of {count}")

# %% [markdown]
# With the checker's body, $w$ points at the slip several times as often as chance
# would. The running mean does not: it is late by its nature. Look at one wrong answer:

# %%
w = found["checker"]
at = next(i for i, (s, t, right) in enumerate(new)
          if not right and (place := wrong_token(s, t)) and s.extra["level"] == 3
          and int(w[i, new_rows.action_mask[i]].argmin()) == place)
sample, trajectory, _ = new[at]
inside = new_rows.action_mask[at]
ids = new_rows.token_ids[at, inside].tolist()
text = [policy.tokenizer.decode([i]) for i in ids][:-1]
print(sample.question, " gold", sample.gold[0])
print(trajectory.response)
print("first wrong token: number", wrong_token(sample, trajectory))

# %%
mean = tw.running_mean(w, new_rows.action_mask)
figure = Figure(figsize=(9, 2.6), dpi=90, layout="constrained")
top, bottom = figure.subplots(2, 1, sharex=True)
for ax, values, name in ((top, w, "w"), (bottom, mean, "running mean")):
    shown = values[at, inside][: len(text)]
    colors = ["tab:red" if x < 0 else "tab:green" for x in shown]
    ax.bar(range(len(text)), shown, color=colors)
    ax.axvline(wrong_token(sample, trajectory), color="black", linestyle=":")
    ax.set_ylabel(name, fontsize=8)
bottom.set_xticks(range(len(text)), text, fontsize=8, rotation=60)
Image(data=png(figure))

# %% [markdown]
# The dotted line is the slip. Not every answer is as clear as this one: it was picked
# because the lowest $w$ of all stands where the error is.

# %% [markdown]
# ## 5. From scores to weights
#
# `threshold` is equation 10 with a threshold to choose: 0.5 is the paper's. `topk`
# keeps the largest share of the tokens, stretched to 0 to 1, and drops the rest. How
# many tokens keep a weight?

# %%
def kept(**switches):
    x = tw.token_weights(w, new_rows.action_mask, new_rows.positive, **switches)
    for right in (True, False):
        rows = new_rows.positive == right
        yield float(x[rows][new_rows.action_mask[rows]].gt(0).float().mean())


low = {"positive_threshold": 0.2, "negative_threshold": 0.2}
rules = (("threshold 0.5", {}), ("threshold 0.2", low), ("topk 0.25    ", {}))
for score in ("per_token", "running_mean"):
    for name, extra in rules:
        up, down = kept(weighting=name.split()[0], score=score, **extra)
        print(f"{score:<13} {name}   right answers {up:.2f}   wrong ones {down:.2f}")

# %% [markdown]
# ## 6. What does the policy make of it?
#
# Two runs of five steps, one without weights, one with. The head was fitted before, so
# there are no freeze steps. As in the preset `tiny-oreal`, the weights come from the
# running mean, and wrong answers are pushed more softly (`negative_factor` 0.1, not 0.5).

# %%
def train(preset, model=None, **changes):
    config = rl.Config.preset(preset, group_size=4, policy_lr=3e-4, **changes)
    policy = rl.Policy.load("tiny-math", config)
    trainer = rl.OrealTrainer(
        policy, judger, questions, config, token_reward_model=model)
    for _ in range(5):
        trainer.step()
    return rl.evaluate(policy, judger, exam), rl.table(trainer.history)

# %%
exam = rl.load_samples(config.test_data)[:200]
ready = {"policy_freeze_steps": 0, "token_reward_refit": False}
runs = {"without": train("tiny"), "with weights": train("tiny-oreal", checker, **ready)}
first = [table["reward/mean"].iloc[0] for _, table in runs.values()]
print("the same first rollouts:", first[0] == first[1], round(first[0], 3))

# %% tags=["nbval-ignore-output"]
figure = Figure(figsize=(6, 3), dpi=90, layout="constrained")
ax = figure.subplots()
for name, (result, table) in runs.items():
    ax.plot(table.index, table["reward/mean"], label=name)
    print(f"{name:<13} exam {result}")
ax.set(xlabel="step", ylabel="right in the rollouts", ylim=(0, 1), xticks=range(1, 6))
_ = ax.legend()
Image(data=png(figure))

# %% [markdown]
# Be honest about it. Five steps say little; compare the intervals. The long runs say
# more: `tiny-oreal` gets to 97.6 % in 182 s, and `tiny`, without any of this, to 98.2 %
# in 69 s with the same number of rollouts (README). On answers of 35 tokens, with a
# right and a wrong one to every question, the plain loss finds the guilty digit by
# itself. The paper's answers have thousands of tokens, and there it reports a gain. A
# part that does not pay on your task should be left out.

# %% [markdown]
# ## 7. Exercises
#
# **One.** Equation 10. `w` are the scores of an answer, `right` says how it ended.
# Return its weights.

# %%
def weights(w, right):
    return [1.0 for _ in w]


rl.check("07.1", weights)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# import math
#
#
# def weights(w, right):
#     sign = 1 if right else -1
#     return [max(2 / (1 + math.exp(-sign * x)) - 1, 0.0) for x in w]
# ```
#
# </details>

# %% [markdown]
# **Two.** An answer has `length` tokens. All are fine with $w = 1$, except one. How low
# must the $w$ of that one be, for $p(s)$ to be exactly a half? Guess first for 35.

# %%
def one_against_all(length):
    return -1.0


rl.check("07.2", one_against_all)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def one_against_all(length):
#     return -(length - 1)
# ```
#
# One token of 35 moves the mean by a 35th only. So its $w$ has to be large, a gradient
# gets there slowly, and solving for the head is such a help.
#
# </details>

# %% [markdown]
# **Three.** Write the AUC for two lists of scores. A tie counts half. What should it be
# when all scores are the same?

# %%
def area(right_scores, wrong_scores):
    return 0.0


rl.check("07.3", area)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def area(right_scores, wrong_scores):
#     pairs = [(a, b) for a in right_scores for b in wrong_scores]
#     return sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
# ```
#
# </details>

# %% [markdown]
# **To break it.** In section 6, add `token_score="per_token"` and `negative_factor=0.5`
# to the run with weights: it points at the slip better. What happens, and what do the
# answers look like then?
