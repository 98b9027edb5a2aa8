# %% [markdown]
# # 05 · From REINFORCE to groups and advantages
#
# **The judger says "right" or "wrong". How does that become a push on the weights?**
#
# First on a policy so small that everything can be computed exactly, then on the real
# one. At the end the same number of answers is spent in two ways, and one learns faster.

# %% tags=["nbval-ignore-output"]
try:
    import rlteach as rl
except ModuleNotFoundError:
    raise ModuleNotFoundError("no rlteach here: read lesson 00") from None
import inspect
import itertools
import math

import torch
from IPython.display import Image
from matplotlib.figure import Figure
from rlteach.oreal import advantage
from rlteach.views.plots import png

torch.set_num_threads(1)

# %% [markdown]
# ## 1. A policy of four answers
#
# Take one question, `What is 47 + 38?`, and a policy that knows four answers. A softmax
# over four numbers, the **logits**, says how probable each one is. One answer is right:
# its reward (奖励) is +1, that of the others -1. The policy rarely gives it.

# %%
names = ["85", "75", "815", "84"]
logits = torch.tensor([-1.0, 0.9, 0.2, 0.5], dtype=torch.float64)
reward = torch.tensor([1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
pi = logits.softmax(0)
for name, probability, r in zip(names, pi, reward):
    print(f"{name:>4}   probability {probability:.3f}   reward {r:+.0f}")

# %% [markdown]
# What should grow is the expected reward (期望奖励), the mean over all answers that the
# policy may give:
#
# $$J = \sum_s \pi(s)\,r(s), \qquad
# \frac{\partial J}{\partial z_k} = \pi_k\,(r_k - J)$$
#
# The right side is its exact gradient (梯度) with respect to logit $z_k$. Let torch check
# it.

# %%
def expected_reward(z):
    return (z.softmax(0) * reward).sum()


z = logits.clone().requires_grad_()
J = expected_reward(z)
J.backward()
exact, J = z.grad, float(J.detach())
assert torch.allclose(exact, pi * (reward - J))
print("J       ", round(J, 3))
print("gradient", [round(x, 3) for x in exact.tolist()])

# %% [markdown]
# Read the signs: the right answer's logit goes up, every other one goes down, the most
# probable wrong answer most of all.

# %% [markdown]
# ## 2. REINFORCE
#
# A real model has more answers than anyone can add up. But a mean can be estimated from
# draws, and this identity makes the gradient a mean:
#
# $$\nabla J = \sum_s \pi(s)\,r(s)\,\nabla\log\pi(s)
# = \mathbb{E}_{s\sim\pi}\big[r(s)\,\nabla\log\pi(s)\big]$$
#
# Draw an answer, look at its reward, multiply. For a softmax, $\nabla\log\pi(s)$ is 1 at
# the drawn answer minus the probabilities.

# %%
score = torch.eye(4, dtype=torch.float64) - pi  # [answer, logit]
estimate = reward[:, None] * score  # what each single answer would say
assert torch.allclose(pi @ estimate, exact)
for name, row in zip(names, estimate):
    print(f"if {name:>3} is drawn:", [round(x, 2) for x in row.tolist()])
print("mean over all :", [round(x, 3) for x in (pi @ estimate).tolist()])

# %% [markdown]
# The mean is the exact gradient: the estimate is **unbiased** (无偏). But no single row
# looks like it: nearly every draw just says "not this one". How many draws until the
# noise is gone?

# %%
dice = torch.Generator().manual_seed(0)
draws = torch.multinomial(pi, 100_000, replacement=True, generator=dice)
for n in (1, 10, 100, 1000, 10_000, 100_000):
    mean = estimate[draws[:n]].mean(0)
    error = float((mean - exact).norm() / exact.norm())
    print(f"{n:>6} draws   {[round(x, 2) for x in mean.tolist()]}   error {error:6.1%}")

# %% [markdown]
# A hundred times as many draws make the error about ten times smaller. That is dear: each
# draw is an answer that a model has to write. Can the same answers say more?

# %% [markdown]
# ## 3. A baseline
#
# Take a number $b$ off every reward. It is called a **baseline** (基线). The mean does
# not notice, because $\sum_s \pi(s)\,\nabla\log\pi(s)$ is the gradient of $\sum_s
# \pi(s) = 1$, which is zero. The noise does notice.

# %%
def noise(b):
    each = (reward[:, None] - b) * score
    return float((pi @ (each - exact).square().sum(-1)).sqrt())


print("sum of pi * grad log pi is zero:", bool((pi @ score).abs().max() < 1e-12))
for b in (1.0, 0.0, J, -1.0):
    mean = pi @ ((reward[:, None] - b) * score)
    assert torch.allclose(mean, exact)
    shown = [round(x, 3) for x in mean.tolist()]
    print(f"b {b:+.2f}   mean {shown}   noise {noise(b):.3f}")

# %% [markdown]
# The noise is the standard deviation of one draw. The expected reward itself is a good
# baseline here: then "wrong" is no news on a question where most answers are wrong, and
# "right" is. The same holds for the error that is measured, on the very same draws:

# %%
n = torch.logspace(0.5, 3.5, 40).long()
figure = Figure(figsize=(9, 3.2), dpi=90, layout="constrained")
left, right = figure.subplots(1, 2)
bs = torch.linspace(-1.2, 1.2, 60).tolist()
left.plot(bs, [noise(b) for b in bs])
left.scatter([0, J], [noise(0), noise(J)], color=["gray", "tab:green"])
left.set(xlabel="baseline b", ylabel="noise of one draw")
for b, name in ((0, "no baseline"), (J, "expected reward")):
    each = ((reward[:, None] - b) * score)[draws].view(25, 4000, 4)
    error = each.cumsum(1)[:, n - 1] / n[:, None] - exact
    right.loglog(n, error.square().sum(-1).mean(0).sqrt(), label=name)
right.set(xlabel="draws", ylabel="error of the mean")
right.legend()
Image(data=png(figure))

# %% [markdown]
# Left: the exact noise of one draw for every baseline; the grey dot is none, the green
# one the expected reward. Right: the error that was measured, over 25 series of draws. It
# is lower by the same factor everywhere: as if each answer counted for two and a half.

# %% [markdown]
# ## 4. The group is the baseline
#
# Nobody knows the expected reward of a question. But ask it $G$ times, and the rewards of
# the **group** (一组) tell. Three ways to use them:
#
# | name | advantage (优势) of answer $i$ |
# |---|---|
# | own mean | $r_i - \frac1G\sum_j r_j$ |
# | RLOO | $r_i - \frac{1}{G-1}\sum_{j\ne i} r_j$ |
# | GRPO | $(r_i - \text{mean}) / \text{std}$ |

# %%
def own_mean(rewards):
    return [r - sum(rewards) / len(rewards) for r in rewards]


def leave_one_out(rewards):
    total, others = sum(rewards), len(rewards) - 1
    return [r - (total - r) / others for r in rewards]


group = [1.0, -1.0, -1.0, -1.0]
print("own mean", own_mean(group))
print("RLOO    ", [round(a, 3) for a in leave_one_out(group)])
print("GRPO    ", [round(a, 3) for a in advantage.grpo(group)])

# %% [markdown]
# Which one is right on average? There are $4^4 = 256$ groups of four answers. Go through
# all of them, each with its probability: no dice, no doubt.

# %%
def over_all_groups(advantages, size=4):
    mean, square = torch.zeros(4, dtype=torch.float64), 0.0
    for members in itertools.product(range(4), repeat=size):
        at = list(members)
        chance = float(pi[at].prod())
        a = torch.tensor(advantages(reward[at].tolist()), dtype=torch.float64)
        push = a @ score[at] / size
        mean, square = mean + chance * push, square + chance * float(push @ push)
    return mean, math.sqrt(square - float(mean @ mean))

# %%
for f in (list, own_mean, leave_one_out, advantage.grpo):
    mean, spread = over_all_groups(f)
    ratio = mean / exact
    print(f"{f.__name__:<14} mean / exact {ratio.min():.3f} to {ratio.max():.3f}"
          f"   noise {spread:.3f}   noise / mean {spread / float(mean.norm()):.2f}")

# %% [markdown]
# `list` leaves the rewards as they are: no baseline. It and RLOO give the exact gradient
# on average. An answer that is part of its own baseline takes away from itself: the mean
# shrinks by $1 - 1/G$. GRPO points the same way, with a length that depends on how hard
# the question is. Measured by its own length, each of the three has less noise than none.
#
# Own mean and RLOO differ by a factor only. Is the library's RLOO ours?

# %%
for size in range(2, 9):
    for right in range(size + 1):
        r = [1.0] * right + [-1.0] * (size - right)
        ours, its = leave_one_out(r), advantage.rloo(r)
        assert all(abs(a - b) < 1e-12 for a, b in zip(ours, its))
        scaled = [a * size / (size - 1) for a in own_mean(r)]
        assert all(abs(a - b) < 1e-12 for a, b in zip(ours, scaled))
print(inspect.getsource(advantage.rloo))

# %% [markdown]
# The library's takes `None`, too. That is an answer nobody could judge: it gets no
# advantage, and it is nobody's baseline. Now all groups of eight, from none right to all:

# %%
print("right of 8     RLOO right  wrong     GRPO right  wrong")
for right in range(9):
    r = [1.0] * right + [-1.0] * (8 - right)
    cells = []
    for a in (advantage.rloo(r), advantage.grpo(r)):
        cells += [f"{a[0]:+.2f}" if right else "-"]
        cells += [f"{a[-1]:+.2f}" if right < 8 else "-"]
    print("{:>10}     {:>10}  {:>5}     {:>10}  {:>5}".format(right, *cells))

# %% [markdown]
# Two things to see. What is rare in its group is pushed hardest. And in the first and
# the last row all advantages are 0: a group of one kind says **nothing**. The model
# wrote eight answers for it in vain.

# %% [markdown]
# ## 5. How large a group?
#
# A step may cost 48 answers to our toy question. Are many small groups better, or few
# large ones? The noise of the step, from 20,000 simulated groups of each size:

# %%
sizes, rloo_noise = (2, 3, 4, 6, 8, 12, 16, 24), []
for G in sizes:
    dice = torch.Generator().manual_seed(G)
    members = torch.multinomial(pi, 20_000 * G, replacement=True, generator=dice)
    members = members.view(-1, G)
    r = reward[members]
    a = (r - r.mean(-1, keepdim=True)) * G / (G - 1)  # RLOO, all groups at once
    push = (a[..., None] * score[members]).mean(1)
    spread = (push - exact).square().sum(-1).mean().sqrt()
    rloo_noise.append(float(spread * (G / 48) ** 0.5))
print("without a baseline      ", round(noise(0) / 48**0.5, 3))
for G, spread in zip(sizes, rloo_noise):
    print(f"{48 // G:>3} groups of {G:<2}         ", round(spread, 3))
print("the expected reward as b", round(noise(J) / 48**0.5, 3))

# %% [markdown]
# A group of two has a baseline of a single answer, and that is poor. From eight on there
# is little left to gain: the baseline is nearly the expected reward.

# %% [markdown]
# ### The other side: groups that say nothing
#
# A group needs a right and a wrong answer. If an answer is right with probability $p$,
# the **pass rate** (通过率), then $G$ of them are mixed with probability
#
# $$1 - p^G - (1-p)^G$$

# %%
def mixed(p, size):
    return 1 - p**size - (1 - p) ** size

# %%
p = torch.linspace(0, 1, 101)
figure = Figure(figsize=(9, 3.2), dpi=90, layout="constrained")
left, right = figure.subplots(1, 2)
left.plot(sizes, rloo_noise, marker="o", label="RLOO")
left.axhline(noise(0) / 48**0.5, color="gray", label="no baseline")
left.axhline(noise(J) / 48**0.5, color="tab:green", label="expected reward")
left.set(xlabel="group size", ylabel="noise of 48 answers", ylim=(0, 0.15))
for G in (2, 4, 8, 16):
    right.plot(p, mixed(p, G), label=f"G = {G}")
right.set(xlabel="pass rate", ylabel="share of mixed groups")
_ = left.legend(), right.legend()
Image(data=png(figure))

# %% [markdown]
# Does the real model keep to the formula? The training file says how often the untrained
# model was right, for each question, of 16 answers. Ask 96 questions anew, 16 times each,
# and count the mixed groups among the first $G$ answers.

# %%
config = rl.Config.preset("tiny", total_steps=12)
policy = rl.Policy.load("tiny-math", config)
questions = rl.load_samples(config.train_data)
asked = [s for s in questions if 0 < s.pass_rate < 1][:96]
keys = [[1000 * i + g for g in range(16)] for i in range(len(asked))]
answers = policy.sample(asked, keys)
judger = rl.RuleJudger()
judged = [judger.grade(rl.Group(s, t)) for s, t in zip(asked, answers)]
scores = [[j.score for j in row] for row in judged]
known = [x for row in scores for x in row if x is not None]
print(f"right then {sum(s.pass_rate for s in asked) / 96:.3f}, "
      f"now {sum(known) / len(known):.3f};", 96 * 16 - len(known), "without a score")

# %%
for G in (2, 4, 8, 16):
    expected = sum(mixed(s.pass_rate, G) for s in asked) / len(asked)
    counted = sum({0.0, 1.0} <= set(row[:G]) for row in scores) / len(asked)
    print(f"G {G:>2}   mixed groups: formula {expected:.2f}   counted {counted:.2f}")

# %% [markdown]
# Near, not equal: 96 questions are a sample, and each pass rate is itself a guess from 16
# answers. Questions that were right 0 or 16 times of 16 were left out here, because the
# formula would say "never mixed" of them, though their true pass rate is small, not zero.
# An answer without a score has a box like `134 no,`, which the rule cannot read.
#
# This is why the preset draws its questions by difficulty. How many groups of four would
# be mixed, by pass rate?

# %%
for low, high, repeat in config.difficulty_bins:
    inside = [s.pass_rate for s in questions if low <= s.pass_rate < high]
    share = sum(mixed(q, 4) for q in inside) / len(inside)
    print(f"pass rate {low:.1f} to {high:.1f}: {len(inside):>4} questions, "
          f"drawn {repeat} times, mixed {share:.2f}")
easy = [s.pass_rate for s in questions if s.pass_rate >= 0.8]
share = sum(mixed(q, 4) for q in easy) / len(easy)
print(f"pass rate 0.8 to 1.0: {len(easy):>4} questions, "
      f"drawn 0 times, mixed {share:.2f}")

# %% [markdown]
# ## 6. The same answers, spent in two ways
#
# Both runs sample 256 answers a step, for 12 steps. One asks 16 questions 16 times
# each, the other 64 questions 4 times each. `one_pair` keeps one right and one wrong
# answer of every mixed group. Guess which one learns faster.

# %%
def train(**changes):
    config = rl.Config.preset("tiny", total_steps=12, **changes)
    policy = rl.Policy.load("tiny-math", config)
    trainer = rl.OrealTrainer(policy, judger, questions, config)
    for _ in trainer:
        pass
    return rl.evaluate(policy, judger, exam), rl.table(trainer.history)


exam = rl.load_samples(config.test_data)[:200]
few_large = train(batch_size=16, group_size=16)
many_small = train(batch_size=64, group_size=4)
for name, (_, table) in (("16 x 16", few_large), ("64 x 4 ", many_small)):
    print(name, " groups kept in the first step:", int(table["groups/kept"].iloc[0]))

# %% tags=["nbval-ignore-output"]
figure = Figure(figsize=(6, 3.2), dpi=90, layout="constrained")
ax = figure.subplots()
for name, (result, table) in (("16 questions x 16", few_large), ("64 x 4", many_small)):
    ax.plot(table.index, table["reward/mean"], label=name)
    print(f"{name:<18} exam {result}")
ax.set(xlabel="step", ylabel="right answers in the rollouts", ylim=(0, 1))
_ = ax.legend(loc="lower right")
Image(data=png(figure))

# %%
print("64 x 4 is better by more than luck:",
      many_small[0].ci95[0] > few_large[0].ci95[1])

# %% [markdown]
# Of the same 256 answers the large groups keep at most 16 pairs, the small ones two to
# three times as many, from other questions each. That outweighs a slightly better
# baseline.
#
# Do not take it for a law: it is one task, one seed, and a model that is right every
# third time. Where it is right once in a hundred times, a group of four is hardly ever
# mixed, and only large groups speak. (The preset's 32 x 16 takes twice the answers a
# step.)

# %% [markdown]
# ## 7. Exercises
#
# `rl.check` says whether an answer is right. If it is not, it says what is off, as often
# as you like.
#
# **One.** Write the advantages yourself. `scores` holds 1 (right), 0 (wrong) or `None`
# (nobody could judge); the rewards are +1 and -1. Leave one out; an answer without a
# score gets `None`, and is in nobody's baseline.

# %%
def advantages(scores):
    return scores


rl.check("05.1", advantages)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def advantages(scores):
#     rewards = [None if s is None else 2 * s - 1 for s in scores]
#     known = [r for r in rewards if r is not None]
#     total, others = sum(known), len(known) - 1
#     return [None if r is None else r - (total - r) / others for r in rewards]
# ```
#
# </details>

# %% [markdown]
# **Two.** How large must a group be, so that at least `share` of the groups are mixed?
# Return the smallest `G` for a pass rate `p`. Guess first for `p = 0.1` and 90 %.

# %%
def smallest_group(p, share):
    return 16


rl.check("05.2", smallest_group)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def smallest_group(p, share):
#     G = 2
#     while 1 - p**G - (1 - p) ** G < share:
#         G += 1
#     return G
# ```
#
# For `p = 0.1` and 90 % it takes 22 answers, for `p = 0.02` and 95 % already 149: hard
# questions need large groups.
#
# </details>

# %% [markdown]
# **Three.** The expected reward is a good baseline, not the best one. Look at the left
# picture of section 3 again. For probabilities `pi` and rewards `reward`, which `b`
# makes the noise least? Set the derivative of $\sum_s
# \pi(s)\,(r(s)-b)^2\,|\nabla\log\pi(s)|^2$ to zero, or try many values.

# %%
def best_baseline(pi, reward):
    return sum(p * r for p, r in zip(pi, reward))


rl.check("05.3", best_baseline)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def best_baseline(pi, reward):
#     length = sum(p * p for p in pi)
#     weights = [p * (length + 1 - 2 * p) for p in pi]  # pi(s) |grad log pi(s)|^2
#     return sum(w * r for w, r in zip(weights, reward)) / sum(weights)
# ```
#
# It is a mean of the rewards, weighed by how hard each answer would push. On a hard
# question it is near the expected reward. On an easy one it is not: a common right answer
# hardly pushes, so the best baseline lies near the reward of the wrong ones. There the
# expected reward can even be worse than no baseline: try `pi = [0.65, 0.16, 0.08, 0.11]`.
#
# </details>

# %% [markdown]
# **To break it.** In section 6, add `selection="mixed"` to both runs: then all members
# of a mixed group are kept, not one pair. What happens to the difference? And with
# `advantage="grpo"`?
