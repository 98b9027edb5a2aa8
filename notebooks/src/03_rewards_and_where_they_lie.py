# %% [markdown]
# # 03 · Rewards: rules, and where they lie
#
# **Who says that an answer is right, and what if that is wrong?**
#
# A **reward** (奖励) is all the policy ever hears. Here a rule gives it: it reads an answer and
# compares it with the **gold answer** (标准答案). You will try the rule on answers made by hand,
# write three simpler rules, fool them, and learn how sure a share of right answers is.

# %% tags=["nbval-ignore-output"]
try:
    import rlteach as rl
except ModuleNotFoundError:
    raise ModuleNotFoundError("no rlteach here: lesson 01 says what to do") from None
import inspect
import math
import re

import pandas as pd
import torch
from IPython.display import Image
from matplotlib.figure import Figure
from rlteach.views.plots import png

torch.set_num_threads(1)  # steady numbers

# %% [markdown]
# ## 1. By hand
#
# First a helper: a gold answer and a text become a question and a rollout. The judger gives a
# `Judgement`: a status, a score, and a reason.

# %%
judger = rl.RuleJudger()
asked = rl.Message("user", "What is 47 + 38?")


def made(gold, text, ended="stop"):
    messages = (asked, rl.Message("assistant", text))
    sample = rl.Sample("made", (asked,), (gold,))
    return sample, rl.Trajectory(messages, (), (), (), 0, ended)


judger.judge(*made("85", r"7+8=15, 4+3+1=8, \boxed{85}"))

# %% [markdown]
# Where does an answer stand? Guess each status before you run the cell.

# %%
texts = [
    r"\boxed{75} no, \boxed{85}",
    r"\boxed{85} no, \boxed{75}",
    "So it is 85.",
    "The answer is 85.",
    r"\boxed{85",
    r"\boxed{85 or 75}",
    r"\boxed{60+25}",
    "",
]
for text in texts:
    j = judger.judge(*made("85", text))
    print(f"{text or '(nothing)':<28} {j.status:<10} {j.reason}")

# %% [markdown]
# The last box that is closed counts; without a box, what "the answer is" announces. A number
# that only stands somewhere is no answer. Two answers are no answer, and sums are to be worked
# out. This is the library's own source:

# %%
print(inspect.getsource(rl.RuleJudger.judge))

# %% [markdown]
# ### One value, many spellings
#
# Half is `1/2`, `0.5`, `50 %`. The rule compares values, as exact fractions, without any
# tolerance. What is equal and what only looks alike?

# %%
pairs = [
    ("1/2", r"\frac12"), ("1/2", "0.5"), ("1/2", r"50\%"), ("1/2", "50"),
    ("3/2", "1 1/2"), ("10080", r"10,\!080"), ("1/3", "0.33"), ("20250", "20251"),
    ("1331 and 1728", "1728, 1331"), ("1331 and 1728", "1728"),
    ("x^{10}", "x^10"), ("2x+1", "2(x+1)"), ("35", "三十五"),
]
for gold, answer in pairs:
    print(f"{gold:<14} {answer:<12} {judger.grade_text([gold], answer).status}")

# %% [markdown]
# `docs/grading.md` in the repository lists every such decision. Some can be argued about: is
# 0.33 a third? What matters is that they are written down, and the same for everybody.

# %% [markdown]
# ## 2. Wrong, or nobody knows
#
# There is a third status. **Unscorable** (不可判) means: nobody can say. Then there is no score
# at all. Look whose fault it is:

# %%
cases = [
    ("see solution", r"\boxed{85}"),
    ("x^2+C", r"\boxed{x^2+c}"),
    ("12", r"\boxed{12 candles}"),
    ("1579", r"\boxed{1579 no, }"),
    ("85", r"\boxed{?}"),
    ("85", "no idea"),
]
for gold, text in cases:
    j = judger.judge(*made(gold, text))
    print(f"{gold:<13} {text:<18} {j.status:<10} {j.score!s:<5} {j.reason}")

# %% [markdown]
# The model's fault is wrong, because the model has to unlearn it. An unreadable gold answer,
# or a form that the rule does not know, is not the model's fault. The fourth one was really
# written by `tiny-math`. Is it 1579 or not? The rule does not guess.
#
# Why not simply give 0? Because a reward of 0 teaches. Here are three answers, the third
# unscorable, and their advantages, with +1 for right and -1 for wrong:

# %%
from rlteach.oreal.advantage import rloo

print("left out:", rloo([1.0, -1.0, None]))
print("as wrong:", rloo([1.0, -1.0, -1.0]))
print("as right:", rloo([1.0, -1.0, 1.0]))

# %% [markdown]
# Called wrong, it is pushed down, and the others are measured against it. Nobody knew anything
# about this answer, and still it would move the policy. The same happens when a judge's server
# is away and its silence counts as "wrong": public code does that.

# %% [markdown]
# ## 3. Three naive rules
#
# Simple rules are found in many scripts. Here are three, each from a real program. The first
# takes the last number, the second looks for the gold answer anywhere. The third reads the
# box, but forgives rounding and the percent sign.

# %%
def last_number(gold, text):
    found = re.findall(r"-?\d+(?:\.\d+)?", text)
    return bool(found) and found[-1] == gold


def contains(gold, text):
    return gold in text


def about(gold, text):
    box = re.search(r"\\boxed\{(-?[\d.]+)\}", text)
    near = [float(gold) * factor for factor in (1, 100, 0.01)] if box else []
    return any(abs(float(box[1]) - x) <= 1e-4 * abs(x) for x in near)

# %% [markdown]
# And a table with the truth in it. You can check each line yourself.

# %%
table = [
    ("85", r"7+8=15, 4+3+1=8, \boxed{85}", True),
    ("85", r"\boxed{85}, in 2 steps", True),
    ("0.5", r"\boxed{\frac{1}{2}}", True),
    ("0.5", r"\boxed{50\%}", True),
    ("85", r"\boxed{75}. Check: 75+10=85", False),
    ("85", r"84? 85? 86? \boxed{86}", False),
    ("5", r"7+8=15, \boxed{15}", False),
    ("2", "The answer is 2/3.", False),
    ("0.5", r"\boxed{50}", False),
    ("20250", r"\boxed{20251}", False),
]

# %% [markdown]
# A **false positive** (误判为对) is a wrong answer that is called right: it is rewarded. A **false
# negative** (误判为错) is a right one that is called wrong: it is punished.

# %%
def rule(gold, text):
    return judger.judge(*made(gold, text)).score == 1


def errors(check):
    found = [(check(gold, text), truth) for gold, text, truth in table]
    return found.count((True, False)), found.count((False, True))


counts = {f.__name__: errors(f) for f in (last_number, contains, about, rule)}
assert counts["rule"] == (0, 0)
pd.DataFrame(counts, index=["false positives", "false negatives"]).T

# %%
checks = (last_number, contains, about, rule)
for gold, text, truth in table:
    marks = ["+" if check(gold, text) else "-" for check in checks]
    print(f"{gold:<6} {text:<30}", "right" if truth else "wrong", " ", *marks)

# %% [markdown]
# Each naive rule errs, in both directions. But are these not invented cases? Take real
# rollouts: the untrained policy, 60 questions, 8 answers to each.

# %%
policy = rl.Policy.load("tiny-math")
questions = rl.load_samples("prompts/dev.jsonl")[:60]
found = rl.evaluate(policy, judger, questions, greedy=False, k=8)
graded = [(g.sample.gold[0], t.response, j.score) for g in found.groups
          for t, j in zip(g.trajectories, g.judgements) if j.score is not None]
for check in (last_number, contains):
    agree = [check(gold, text) == (score == 1) for gold, text, score in graded]
    print(f"{check.__name__:<12} agrees with the rule on {sum(agree)} of {len(agree)}")
print("unscorable:", found.unscorable)

# %% [markdown]
# On these answers the naive rules look nearly perfect. The policy does not know them yet, so it does not
# play to them. But training searches for whatever the reward pays for. Here is one text that
# `contains` calls right, whatever the question:

# %%
text = " ".join(str(n) for n in range(20_000))
for check in checks:
    won = sum(check(s.gold[0], text) for s in questions)
    print(f"{check.__name__:<12} {won:2d} of {len(questions)} questions won")

# %% [markdown]
# **You get what you measure, not what you mean.** A rule is tested on today's answers; the
# policy of tomorrow writes others. So a false positive that no answer shows yet is an open
# door. Lesson 11 lets a policy find it. This is called **reward hacking** (奖励作弊).

# %%
shown = pd.DataFrame(counts, index=["rewarded, but wrong", "right, but punished"]).T
figure = Figure(figsize=(6, 2.4), dpi=80, layout="constrained")
ax = figure.subplots()
shown.plot.barh(ax=ax, color=["#d62728", "#7f7f7f"])
ax.set(xlabel=f"answers of {len(table)}")
Image(data=png(figure))

# %% [markdown]
# ## 4. Your own judger
#
# Any function `(sample, trajectory)` that returns a number from 0 to 1 is a judger; `None`
# means unscorable. `rl.graders` adds several up, with weights. Here a right answer is worth
# 0.9, and a short one 0.1.

# %%
def is_right(sample, trajectory):
    return judger.judge(sample, trajectory).score


def is_short(sample, trajectory):
    return len(trajectory.response) <= 30


both = rl.graders((is_right, 0.9), (is_short, 0.1))
right = r"7+8=15, 4+3+1=8, \boxed{85}"
for text in [right, "7+8=14 no, " + right, "5"]:
    sample, trajectory = made("85", text)
    [j] = both.grade(rl.Group(sample, (trajectory,)))
    print(f"{j.score:.1f}  {text}")

# %% [markdown]
# A mended slip costs 0.1, because it makes the answer long. Look at the last line: 0.1 for a
# wrong answer of one sign. Where right answers are rare, a
# policy can live on that. A score that is no score is refused, with the name of the function:

# %%
def generous(sample, trajectory):
    return 2


try:
    rl.graders((generous, 1.0)).grade(rl.Group(sample, (trajectory,)))
except ValueError as error:
    print(error)

# %% [markdown]
# ## 5. How sure is a share?
#
# 8 of 10 answers were right. Is the policy right 80 % of the time? Perhaps it is 60 %, and
# lucky. The textbook's interval is $\hat p \pm 1.96 \sqrt{\hat p (1 - \hat p) / n}$. For 0 of 10
# it says: surely zero. The **Wilson interval** (威尔逊区间) asks instead which $p$ would make
# what was seen no great surprise:
#
# $$\frac{\hat p + \frac{z^2}{2n}}{1 + \frac{z^2}{n}} \;\pm\;
# \frac{z}{1 + \frac{z^2}{n}} \sqrt{\frac{\hat p (1 - \hat p)}{n} + \frac{z^2}{4 n^2}}$$

# %%
def textbook(right, n, z=1.959964):
    p = right / n
    half = z * math.sqrt(p * (1 - p) / n)
    return p - half, p + half


def wilson_by_hand(right, n, z=1.959964):
    p, scale = right / n, 1 + z * z / n
    middle = (p + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return middle - half, middle + half

# %%
from rlteach.training.evaluate import wilson

for right, n in [(0, 10), (8, 10), (80, 100), (800, 1000)]:
    mine, its = wilson_by_hand(right, n), wilson(right, n)
    assert all(abs(a - b) < 1e-9 for a, b in zip(mine, its))
    its, other = ([f"{x:6.3f}" for x in pair] for pair in (its, textbook(right, n)))
    print(f"{right:3d} of {n:4d}   Wilson", *its, "  textbook", *other)

# %% [markdown]
# Ten times as many answers make the interval about a third as wide. Does a 95 % interval
# deserve its name? Take a policy that is right with probability $p$, ask it 20 times, and add
# up the probability of all outcomes whose interval holds $p$.

# %%
def covered(interval, p, n=20):
    total = 0.0
    for right in range(n + 1):
        low, high = interval(right, n)
        if low <= p <= high:
            total += math.comb(n, right) * p**right * (1 - p) ** (n - right)
    return total


for p in [0.05, 0.2, 0.5, 0.9, 0.98]:
    ours, theirs = covered(wilson, p), covered(textbook, p)
    print(f"p = {p:<4}  Wilson {ours:.3f}  textbook {theirs:.3f}")

# %%
figure = Figure(figsize=(7, 2.6), dpi=80, layout="constrained")
ax = figure.subplots()
ps = [i / 200 for i in range(1, 200)]
ax.plot(ps, [covered(textbook, p) for p in ps], label="textbook", color="#d62728")
ax.plot(ps, [covered(wilson, p) for p in ps], label="Wilson", color="#1f77b4")
ax.axhline(0.95, color="#7f7f7f", linestyle=":")
ax.set(xlabel="p", ylabel="interval holds p", ylim=(0.5, 1.02))
ax.legend()
Image(data=png(figure))

# %% [markdown]
# Near 0 and 1 the textbook's interval misses often, and that is where a trained policy lives.
# So every accuracy in these lessons stands beside a Wilson interval.

# %%
right = sum(score for _, _, score in graded)
low, high = wilson(int(right), len(graded))
print(found)
assert (low, high) == found.ci95

# %% [markdown]
# ## 6. Exercises
#
# **03.1** Write a judger for whole numbers, without the library's: `judge(sample, trajectory)`
# gives 1.0 when the last `\boxed{}` holds the gold answer letter for letter, else 0.0. An
# answer with finish reason `length` gets 0.0. A gold answer that is no whole number: `None`.

# %%
def judge(sample, trajectory):
    return 1.0 if sample.gold[0] in trajectory.response else 0.0


rl.check("03.1", judge)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# import re
#
#
# def judge(sample, trajectory):
#     [gold] = sample.gold
#     if not re.fullmatch(r"-?\d+", gold):
#         return None
#     if trajectory.finish_reason == "length":
#         return 0.0
#     boxes = re.findall(r"\\boxed\{([^{}]*)\}", trajectory.response)
#     return 1.0 if boxes and boxes[-1] == gold else 0.0
# ```
#
# </details>

# %% [markdown]
# **03.2** A policy is right about half of the time. How many answers must you judge until the
# Wilson interval is at most 10 points wide, so about 5 to each side? Find the smallest even
# number.

# %%
n = 100
rl.check("03.2", n)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# from rlteach.training.evaluate import wilson
#
#
# def width(n):
#     low, high = wilson(n // 2, n)
#     return high - low
#
#
# n = next(n for n in range(2, 10_000, 2) if width(n) <= 0.10)
# ```
#
# </details>

# %% [markdown]
# **03.3** Be the policy. Write one short text that `contains` calls right for every dev
# question with two digits, and that `RuleJudger` calls right for none. How large can the sum of
# two such numbers be?

# %%
text = "85"
rl.check("03.3", text)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# text = " ".join(str(n) for n in range(199))
# ```
#
# </details>

# %% [markdown]
# **To break it.** Repair `contains`: let it look only into the box. Then write a text that wins
# again. How many repairs does it take until your rule is as long as the library's?
