# %% [markdown]
# # 06 · The OREAL loss, term by term
#
# **What exactly does a step make smaller, and why these three terms?**
#
# Equation numbers are those of the paper (OREAL, arXiv 2502.06781). What it claims is
# checked here by going through every case, on a policy of five answers; then each term is
# computed in a slow loop on a real batch, and compared with the library.

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
from rlteach.oreal import losses
from rlteach.views.plots import png

torch.set_num_threads(1)

# %% [markdown]
# ## 1. The best of n
#
# A policy with five answers, two of them right. It is right with probability $p = 0.15$.
# Now ask it $n$ times and hand in a right answer, if there is one: **best of n**
# (N 选优). What does that new policy look like? Go through all $5^n$ ways to draw.

# %%
pi = torch.tensor([0.10, 0.25, 0.05, 0.40, 0.20], dtype=torch.float64)
right = torch.tensor([True, False, True, False, False])
p = float(pi[right].sum())


def best_of(n):
    law = torch.zeros(5, dtype=torch.float64)
    for draw in itertools.product(range(5), repeat=n):
        chance = float(pi[list(draw)].prod())
        for s in (best := [s for s in draw if right[s]] or draw):
            law[s] += chance / len(best)
    return law

# %%
print("answer       ", [f"{i}{'*' if good else ' '}" for i, good in enumerate(right)])
for n in (1, 2, 4, 7):
    law = best_of(n)
    shown = [f"{x:.2f}" for x in law.tolist()]
    print(f"best of {n}    ", shown, f"right {law[right].sum():.2f}")

# %% [markdown]
# Equation 5 says the same without a loop: right answers are multiplied by one number,
# wrong ones by another.
#
# $$\pi_{\text{bon}}(s) = \pi(s)\cdot
# \begin{cases}\big(1-(1-p)^n\big)/p & s \text{ right}\\ (1-p)^{n-1} & s \text{ wrong}\end{cases}$$
#
# So among the right answers nothing changes but the scale: each keeps its share
# $\pi(s)/p$, whatever $n$ is. That is **Lemma 2.1**.

# %%
for n in range(1, 8):
    law = best_of(n)
    factor = torch.where(right, (1 - (1 - p) ** n) / p, (1 - p) ** (n - 1))
    assert torch.allclose(law, pi * factor)
    assert torch.allclose(law[right] / law[right].sum(), pi[right] / p)
print("shares of the right answers:", [round(x, 3) for x in (pi[right] / p).tolist()])

# %% [markdown]
# ## 2. Right answers: cloning
#
# The lemma is a gift: to become the best of infinitely many, take the policy's own right
# answers and imitate them: **behaviour cloning** (行为克隆),
# $L_+ = \mathbb{E}_{s \sim D_+}[-\log\pi_\theta(s)]$. No best-of-n has to be run.

# %%
target = torch.where(right, pi / p, 0)  # how often each answer is among the right ones


def cloning(z):
    return -(target * z.log_softmax(0)).sum()


z = pi.log().requires_grad_()
cloning(z).backward()
assert torch.allclose(z.grad, pi - target)
print("gradient = pi - pi/p on right:", [round(x, 3) for x in z.grad.tolist()])

# %% [markdown]
# The gradient is zero exactly where the policy *is* the best of infinitely many. Compare
# it with the last lesson: it is the gradient of the pass rate, divided by the pass rate.
# And it is the library's `positive_term`:

# %%
y = pi.log().requires_grad_()
pass_rate = y.softmax(0)[right].sum()
assert torch.allclose(-torch.autograd.grad(pass_rate, y)[0] / p, z.grad)

x = pi.log().requires_grad_()
rows = x.log_softmax(0)[:, None]  # five rows of one token
losses.positive_term(rows, torch.ones_like(rows), target, right).backward()
assert torch.allclose(x.grad, z.grad)
print(inspect.getsource(losses.positive_term))

# %%
z, path = pi.log().requires_grad_(), []
for _ in range(60):
    path.append(z.detach().softmax(0))
    (slope,) = torch.autograd.grad(cloning(z), z)
    z = (z - slope).detach().requires_grad_()

# %%
figure = Figure(figsize=(9, 3), dpi=90, layout="constrained")
left, after = figure.subplots(1, 2)
for i in range(5):
    left.plot([q[i] for q in path], color="tab:green" if right[i] else "tab:red")
left.set(xlabel="steps of cloning", ylabel="probability of an answer", ylim=(0, 1))
for at, law in enumerate((pi, best_of(4), path[-1], target)):
    after.bar([at + 0.16 * i for i in range(5)], law, 0.14, color=[
        "tab:green" if good else "tab:red" for good in right])
after.set_xticks([0.3, 1.3, 2.3, 3.3],
                 ["policy", "best of 4", "cloned", "best of many"])
Image(data=png(figure))

# %% [markdown]
# Green answers are right. After a few steps the clone is right more often than the best
# of 4, and in the end its two right answers stand two to one, as they did at first.

# %% [markdown]
# ## 3. Wrong answers: pushed down, but how hard?
#
# Cloning throws the wrong answers away, and most of what the model writes is wrong. How
# much do they tell about the best of n? Take the gradient of its share of right answers,
# $1-(1-p)^n$, and write it twice: over the right answers, and over the wrong ones.

# %%
n = 4
z = pi.log().requires_grad_()
share = 1 - (1 - z.softmax(0)[right].sum()) ** n
(slope,) = torch.autograd.grad(share, z)

grad_log = torch.eye(5, dtype=torch.float64) - pi  # [answer, logit]
over_right = n * (1 - p) ** (n - 1) * (pi[right, None] * grad_log[right]).sum(0)
mean_wrong = (pi[~right, None] * grad_log[~right]).sum(0) / (1 - p)
over_wrong = -n * (1 - p) ** n * mean_wrong
assert torch.allclose(slope, over_right)
assert torch.allclose(slope, over_wrong)
print([round(x, 3) for x in slope.tolist()])

# %% [markdown]
# Right answers come with $n(1-p)^{n-1}$, wrong ones with $n(1-p)^n$: the ratio is $1-p$
# for every $n$. The paper (equation 6) takes that for its rule: a wrong answer shall
# weigh $-(1-p)$ where a right one weighs 1. That is **reward shaping** (奖励重塑).
#
# Look closely, though. The first line is a sum over the right answers, the second a mean
# over the wrong ones. Compare two sums, and the ratio is 1; two means, and it is
# $(1-p)/p$. So take $1-p$ for a choice of the paper, not for a law.
#
# But its released code does something else. Both signs get the RLOO advantage of their
# group of $G$, in which $c$ answers are right: $2(G-c)/(G-1)$ and $-2c/(G-1)$.

# %%
def factors(c, size, **switches):
    positive = torch.tensor([True] * c + [False] * (size - c))
    up, down = 2 * (size - c) / (size - 1), -2 * c / (size - 1)
    advantages = torch.where(positive, up, down)
    rates = torch.full((size,), c / size)
    found = losses.coefficients(advantages, positive, rates, **switches)
    return found[[0, -1]].tolist()


paper = {"positive_weight": "one", "negative_shaping": "one_minus_p"}
released = {"positive_weight": "advantage", "negative_shaping": "rloo"}
print("right of 16   paper: right  wrong   released: right  wrong")
for c in (1, 4, 8, 12, 15):
    (a, b), (x, y) = factors(c, 16, **paper), factors(c, 16, **released)
    print(f"{c:>11}   {a:>12.2f}  {b:>5.2f}   {x:>15.2f}  {y:>5.2f}")

# %%
figure = Figure(figsize=(6, 3.2), dpi=90, layout="constrained")
ax = figure.subplots()
cs = range(1, 16)
for name, switches, style in (("paper", paper, "--"), ("released", released, "-")):
    both = [factors(c, 16, **switches) for c in cs]
    for k, color in ((0, "tab:green"), (1, "tab:red")):
        ax.plot([c / 16 for c in cs], [f[k] for f in both], style, color=color,
                label=f"{name}, {'wrong' if k else 'right'}")
ax.axhline(0, color="gray", linewidth=0.8)
ax.set(xlabel="share of right answers in the group", ylabel="factor of an answer")
_ = ax.legend(fontsize=8, loc="upper right")
Image(data=png(figure))

# %% [markdown]
# The red lines cross: the paper pushes wrong answers hardest on **hard** questions, the
# code on **easy** ones. Both are called OREAL. So the library has switches instead of one
# formula: `positive_weight` and `negative_shaping`.
#
# The library's negative term holds the ratio $\pi_\theta/\pi_{\text{old}}$. With one
# update a batch it is 1: a number that says nothing, with the gradient of
# $\log\pi_\theta$.

# %%
print(inspect.getsource(losses.negative_term))

# %% [markdown]
# ## 4. The KL term: a leash
#
# The **KL divergence** (KL 散度) says how far the policy has gone from the reference. It
# is estimated at the sampled tokens only, from $d = \log\pi_{\text{ref}} - \log\pi$, in
# three ways:
#
# | | value | |
# |---|---|---|
# | k1 | $-d$ | can be negative |
# | k2 | $d^2/2$ | never negative |
# | k3 | $e^d - d - 1$ | never negative |

# %%
def k(d, name):
    mask = torch.ones_like(d, dtype=torch.bool)
    zero = torch.zeros(())
    return torch.stack([losses.kl_term(-x, zero, m, name) for x, m in zip(d, mask)])


d = torch.linspace(-2, 2, 81)
assert torch.allclose(k(d, "k1"), -d)
assert torch.allclose(k(d, "k2"), d * d / 2)
assert torch.allclose(k(d, "k3"), d.exp() - d - 1, atol=1e-6)

# %%
figure = Figure(figsize=(5, 3), dpi=90, layout="constrained")
ax = figure.subplots()
for name in ("k1", "k2", "k3"):
    ax.plot(d, k(d, name), label=name)
ax.set(xlabel="d = log ref - log pi", ylabel="k")
_ = ax.legend()
Image(data=png(figure))

# %% [markdown]
# Is the mean of $k$ the divergence? A policy and a reference of five tokens, and every
# token with its probability: exact means, and the noise of a single token.

# %%
reference = torch.tensor([0.30, 0.20, 0.20, 0.20, 0.10], dtype=torch.float64)
mine = pi.log().requires_grad_()
logp = mine.log_softmax(0)
kl = (pi * (pi.log() - reference.log())).sum()
estimates = {}
for name in ("k1", "k2", "k3"):
    mask = torch.ones((), dtype=torch.bool)
    both = zip(logp, reference.log())
    each = torch.stack([losses.kl_term(a, b, mask, name) for a, b in both])
    estimates[name] = (pi * each).sum()  # the draw itself carries no gradient
    noise = float((pi * (each - estimates[name]) ** 2).sum().sqrt().detach())
    print(f"{name}   mean {float(estimates[name].detach()):.4f}   noise {noise:.3f}")
print(f"KL   mean {float(kl):.4f}")

# %% [markdown]
# k1 and k3 are unbiased, and k3 has less noise. So far everybody agrees. But a loss is
# not read, it is **differentiated**, and that is another question. To where does each
# pull?

# %%
def divergence(a, b):
    return (a.exp() * (a - b)).sum()


fixed = reference.log()
pulls = {name: torch.autograd.grad(value, mine, retain_graph=True)[0]
         for name, value in estimates.items()}
reverse = torch.autograd.grad(divergence(logp, fixed), mine, retain_graph=True)[0]
forward = torch.autograd.grad(divergence(fixed, logp), mine)[0]
for name, pull in {**pulls, "KL(pi, ref)": reverse, "KL(ref, pi)": forward}.items():
    print(f"{name:<12}", [f"{round(x, 3) + 0:+.3f}" for x in pull.tolist()])
assert torch.allclose(pulls["k1"], torch.zeros(5, dtype=torch.float64), atol=1e-12)
assert torch.allclose(pulls["k2"], reverse)
assert torch.allclose(pulls["k3"], forward)

# %% [markdown]
# As a loss, k1 pulls **nowhere** on average: it only adds noise. k2, whose value was
# off, has exactly the gradient of $KL(\pi\,\|\,\text{ref})$. k3 has that of the other
# direction, $KL(\text{ref}\,\|\,\pi)$. A good estimate of a number need not have a good
# gradient.
#
# One more trap. The paper's KL is to $\pi_{\text{old}}$, the policy that sampled. With
# one update a batch that is the policy itself: $d = 0$, and there k2 and k3 are flat.

# %%
for name in ("k1", "k2", "k3"):
    same = torch.tensor([-1.3], requires_grad=True)
    mask = torch.tensor([True])
    losses.kl_term(same, same.detach(), mask, name).backward()
    print(f"{name} to the sampler itself: gradient {float(same.grad) + 0:+.1f}")

# %% [markdown]
# So `kl_target="old"` does nothing under k2 and k3, and the released code takes the
# initial policy instead (`"initial"`, the default here).

# %% [markdown]
# ## 5. A real batch
#
# Equation 11 puts the three together. First train for two steps, so that policy and
# reference differ; then stop before the third update.

# %%
config = rl.Config.preset("tiny", batch_size=16, group_size=8)
policy = rl.Policy.load("tiny-math", config)
questions = rl.load_samples(config.train_data)
trainer = rl.OrealTrainer(policy, rl.RuleJudger(), questions, config)
trainer.step(), trainer.step()
groups = trainer.select(trainer.grade(trainer.rollout(trainer.draw())))
rows = trainer.shape(groups).policy_rows
rows

# %% [markdown]
# Now slowly: one row after the other, one token after the other. `c` is the factor of the
# row, `w` the weight of the token (1 until lesson 07).

# %%
def by_hand(rows, logp):
    up, down, kl = 0.0, 0.0, 0.0
    for i in range(len(rows)):
        c = float(rows.coefficient[i])
        for t in rows.action_mask[i].nonzero()[:, 0].tolist():
            w, lp = float(rows.weights[i, t]), float(logp[i, t])
            if rows.positive[i]:
                up += c * w * -lp
            else:
                down += -c * w * 1.0  # the ratio
            d = float(rows.reference[i, t]) - lp
            kl += math.exp(d) - d - 1
    return up, down, kl

# %%
with torch.no_grad():
    logp = policy.logprobs(rows).full
sums = by_hand(rows, logp)
print("sums by hand  positive {:.3f}   negative {:.3f}   KL {:.3f}".format(*sums))
tokens = rows.action_mask.sum(-1)
right_rows = rows.positive
print("tokens: of right answers", int(tokens[right_rows].sum()), " of wrong ones",
      int(tokens[~right_rows].sum()), " of all", int(tokens.sum()))
count = losses.Normalizers.count(rows.action_mask, rows.positive, config.loss_norm)
count

# %% [markdown]
# Each term is divided by **its own** tokens: right ones, wrong ones, all. So a step with
# few right answers does not whisper. Then come three factors, and that is the loss:

# %%
with torch.no_grad():
    terms = losses.policy_loss(logp, logp, rows, count, config)
mine = torch.tensor([config.positive_factor * sums[0] / count.positive,
                     config.negative_factor * sums[1] / count.negative,
                     config.kl_coefficient * sums[2] / count.kl])
assert torch.allclose(terms, mine, rtol=1e-4)
print("factors", config.positive_factor, config.negative_factor, config.kl_coefficient)
print("terms  ", [round(x, 4) for x in terms.tolist()])
print(inspect.getsource(losses.policy_loss))

# %% [markdown]
# The negative term is the mean of $-c$: it does not move when the policy gets better.
# This is one more reason not to read the loss as progress.

# %% [markdown]
# ## 6. Two readings of one paper
#
# `Config.paper()` does what the paper says, `Config.released()` what its code does. In
# which fields do they differ?

# %%
both = rl.Config.paper(), rl.Config.released()
for field in rl.Config.model_fields:
    a, b = (getattr(c, field) for c in both)
    if a != b and field != "name":
        print(f"{field:<22} {a!s:<14} {b}")

# %% [markdown]
# Two of them concern the token-level reward model of the next lesson. Leave it out, and
# give both readings the same groups. How different are their steps?

# %%
plain = {"token_reward_model": None, "token_weighting": "none",
         "policy_freeze_steps": 0}
judger, fixed_model = rl.RuleJudger(), trainer.reference


def gradient(config):
    config = config.replace(**plain)
    trainer = rl.OrealTrainer(policy, judger, questions, config, fixed_model)
    rows = trainer.shape(groups).policy_rows
    logp = policy.logprobs(rows)
    count = losses.Normalizers.count(rows.action_mask, rows.positive, config.loss_norm)
    terms = losses.policy_loss(logp.sampling, logp.full, rows, count, config)
    found = torch.autograd.grad(terms.sum(), list(policy.model.parameters()))
    return torch.cat([g.flatten() for g in found]), count, terms.detach()

# %%
found = [gradient(c) for c in both]
for c, (slope, count, terms) in zip(both, found):
    print(f"{c.name:<9} {count}")
    print(f"          terms {[round(x, 4) for x in terms.tolist()]}"
          f"   length of the gradient {float(slope.norm()):.3f}")
cosine = torch.nn.functional.cosine_similarity(found[0][0], found[1][0], dim=0)
print(f"cosine between the two: {float(cosine):.2f}")

# %% [markdown]
# The numbers differ by orders, because one divides by answers and the other by tokens.
# The directions are much closer (1 would be the same). Every gradient is clipped to
# length 1, and AdamW forgets the rest.

# %% [markdown]
# ## 7. The cliff
#
# Of all the numbers of a run, which one hurts most when it is wrong? The first five
# steps with three learning rates (学习率), each step 32 questions with 4 answers.

# %%
def train(**changes):
    config = rl.Config.preset("tiny", batch_size=32, group_size=4, **changes)
    policy = rl.Policy.load("tiny-math", config)
    trainer = rl.OrealTrainer(policy, rl.RuleJudger(), questions, config)
    for _ in range(5):
        trainer.step()
    return rl.table(trainer.history)


rates = (5e-5, 4e-4, 2e-3)
tables = {rate: train(policy_lr=rate) for rate in rates}
first = {table["reward/mean"].iloc[0] for table in tables.values()}
print("right answers in the first step:", [round(float(x), 3) for x in first])

# %%
figure = Figure(figsize=(9, 3), dpi=90, layout="constrained")
left, after = figure.subplots(1, 2)
for rate, table in tables.items():
    left.plot(table.index, table["reward/mean"], label=f"{rate:g}")
    after.semilogy(table.index[1:], table["kl/reference"].iloc[1:], label=f"{rate:g}")
left.set(xlabel="step", ylabel="right answers", ylim=(0, 1), xticks=range(1, 6))
after.set(xlabel="step", ylabel="KL to the reference", xticks=range(2, 6))
_ = left.legend(title="learning rate")
Image(data=png(figure))

# %%
last = {rate: table["reward/mean"].iloc[-3:].mean() for rate, table in tables.items()}
start = first.pop()
print("4e-4 learns            :", last[4e-4] > start + 0.1)
print("5e-5 learns less       :", last[5e-5] < last[4e-4])
print("2e-3 destroys the model:", last[2e-3] < start / 2)

# %% [markdown]
# The middle one is the preset's. An eighth of it wastes your time; five times as much
# destroys the model within a few steps, and nothing brings it back: where every answer
# is wrong, no group is mixed. (Where a line of the right picture ends, there was
# nothing left to measure.) The KL shows it first. If a run of yours falls to zero, look
# there before you look anywhere else.

# %% [markdown]
# ## 8. Exercises
#
# **One.** Equation 5 from memory: the law of the best of `n`. `pi` holds probabilities,
# `right` says which answers are right.

# %%
def best_of(pi, right, n):
    return pi


rl.check("06.1", best_of)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def best_of(pi, right, n):
#     p = sum(q for q, good in zip(pi, right) if good)
#     up, down = (1 - (1 - p) ** n) / p, (1 - p) ** (n - 1)
#     return [q * (up if good else down) for q, good in zip(pi, right)]
# ```
#
# </details>

# %% [markdown]
# **Two.** A batch has answers of these `lengths` (in tokens), and `right` says which
# are right. By what are the positive, the negative and the KL term divided under
# `token_class`? Think of a batch without a right answer, too.

# %%
def divisors(lengths, right):
    return [len(lengths)] * 3


rl.check("06.2", divisors)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def divisors(lengths, right):
#     up = sum(n for n, good in zip(lengths, right) if good)
#     down = sum(n for n, good in zip(lengths, right) if not good)
#     return [max(up, 1), max(down, 1), max(up + down, 1)]
# ```
#
# </details>

# %% [markdown]
# **Three.** k3 pulls like $KL(\text{ref}\,\|\,\pi) = \sum_s
# \text{ref}(s)\log\frac{\text{ref}(s)}{\pi(s)}$. What is its gradient with respect to
# the logits of $\pi$? It is shorter than you expect. (Only one part depends on $\pi$,
# and section 2 had one like it.)

# %%
def pull(pi, reference):
    return [0.0 for _ in pi]


rl.check("06.3", pull)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def pull(pi, reference):
#     return [p - r for p, r in zip(pi, reference)]
# ```
#
# Up to a constant it is $-\sum_s \text{ref}(s)\log\pi(s)$: cloning the reference.
# Section 2 had the same gradient, with the right answers in the place of the reference.
#
# </details>

# %% [markdown]
# **To break it.** In section 7, sweep `kl_coefficient` at the rate `2e-3` instead:
# 0.01, 0.1, 1. Does the leash save the model? What does it cost?
