# %% [markdown]
# # 12 · Find the bug
#
# **The run looks odd. Is it the method, the settings, or a mistake in the code?**
#
# Training code rarely crashes when it is wrong. It trains something else, and the loss falls.
# Here you meet faults that published code really had. You will see their curves, guess, and
# run the check that catches each of them.

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
# ## 1. A fault by hand
#
# A model reads `A B C D` and should say `B C D E`. The label of each position is the next
# token: the labels are the tokens, **shifted** (移位) by one. Take a model that is certain of
# every next token. Its loss, the mean of $-\log \pi(s_t \mid s_{<t})$, must be 0.

# %%
tokens = torch.tensor([0, 4, 2, 7, 1, 5, 3])
logits = torch.zeros(len(tokens), 8)
for t in range(len(tokens) - 1):
    logits[t, tokens[t + 1]] = 30.0  # at position t it is sure of token t + 1


def loss(labels):
    there = labels >= 0
    logp = logits.log_softmax(-1)[there]
    return abs(float(logp.gather(-1, labels[there][:, None]).mean()))

# %%
nothing = torch.tensor([-100])  # no label here
shifted = torch.cat([tokens[1:], nothing])
twice = torch.cat([shifted[1:], nothing])
print(f"shifted once : loss {loss(shifted):5.2f}")
print(f"shifted twice: loss {loss(twice):5.2f}")
print("the same shape:", shifted.shape == twice.shape)

# %% [markdown]
# A tutorial for OREAL did just this. Its data set shifted the labels, and the model shifted
# them again, so position $t$ learned token $t+2$. Nothing raised. And a model that is trained
# so will get better at it: the loss falls.
#
# A real model is never certain, so a loss of 3 tells you nothing. What would? The sampler knew
# the probability of each token when it drew it. Before any update, training must find the same
# one. Their **ratio** (比值) is
#
# $$\rho_t = \frac{\pi_\theta(s_t \mid s_{<t})}{\pi_{\text{sampler}}(s_t \mid s_{<t})} = 1$$
#
# Such a statement, which is true whatever the weights are, is an **invariant** (不变量). Does
# the library keep it? Take one answer of the real model, and read every token's
# log-probability at the position before it, by hand.

# %%
from rlteach.course.short_run import short_trainer

trainer = short_trainer(batch_size=1, group_size=2)
answer = trainer.rollout(trainer.draw())[0].trajectories[0]
ids = torch.tensor([answer.token_ids])
with torch.no_grad():
    law = trainer.policy.model(ids).logits[0].log_softmax(-1)
by_hand = [float(law[t - 1, token]) for t, token in enumerate(answer.token_ids)]
pairs = zip(by_hand, answer.logprobs, answer.action_mask)
ratios = [math.exp(mine - its) for mine, its, sampled in pairs if sampled]
assert all(abs(ratio - 1) < 1e-3 for ratio in ratios)
print(len(ratios), "tokens were sampled, and the ratio is 1 at each of them")

# %% [markdown]
# ## 2. The museum
#
# `rl.museum` has such faults behind names. Each comes from a line of published code or from a
# public report; the rows say which. Some show in a curve, some do not.

# %%
catalogue = rl.museum.bugs()
print(catalogue["kind"].value_counts().to_dict())
catalogue[["row", "kind"]].head(3)

# %% [markdown]
# `with rl.museum.bug(name)` puts one back, and takes it away at the end of the block. The
# library has no switch for it: functions are replaced from outside.

# %%
from rlteach.course import planting

print(inspect.getsource(planting.planted))
print(inspect.getsource(rl.museum.catalogue()["double_shift"].plant))

# %% [markdown]
# Now the invariant of this fault, with it and without it:

# %%
rl.museum.invariant("double_shift")
with rl.museum.bug("double_shift"):
    try:
        rl.museum.invariant("double_shift")
    except AssertionError as error:
        print("caught:", error)

# %% [markdown]
# ## 3. A healthy run
#
# You cannot see what is ill before you know what is healthy. This run is short: 4 steps, 8
# questions a step, 8 answers each. It learns nothing yet, and that does not matter here.

# %%
healthy = rl.museum.run("double_shift")
columns = ["reward/mean", "kl/reference", "response/length", "response/truncated"]
healthy[columns].iloc[:1].round(2)

# %% [markdown]
# Before the first update much is known. The policy *is* the reference, so their distance is
# 0, and it is the sampler, so the ratio is 1. After it, the distance must be above 0: an
# update that changes nothing is none.

# %%
first, later = healthy.iloc[0], healthy.iloc[1:]
print("ratio is 1 at first   :", first["ratio/max_deviation"] < 1e-3)
print("and in every step     :", (later["ratio/max_deviation"] < 1e-3).all())
print("distance 0 at first   :", abs(first["kl/reference"]) < 1e-6)
print("and above 0 afterwards:", (later["kl/reference"] > 1e-5).all())
print("advantages sum to 0   :", (healthy["advantage/mean"].abs() < 1e-6).all())

# %% [markdown]
# The ratio stays 1 in *every* step here, because there is one update a batch.
#
# ## 4. Mystery 11
#
# `rl.museum.mystery(11)` is one of the faults; you do not know which. This runs the short run
# under it, and draws it beside the healthy one.

# %%
def ill_run(number):
    with rl.museum.mystery(number):
        return rl.museum.run(number)


def beside(ill, names):
    figure = Figure(figsize=(10, 2.5), dpi=80, layout="constrained")
    for ax, name in zip(figure.subplots(1, len(names)), names):
        ax.plot(healthy[name], "o-", label="healthy")
        ax.plot(ill[name], "x--", label="ill")
        ax.set(title=name, xlabel="step")
    ax.legend()
    return Image(data=png(figure))

# %% tags=["nbval-ignore-output"]
names = ["reward/mean", "loss/total", "kl/reference", "response/length"]
eleven = ill_run(11)
beside(eleven, names)

# %% [markdown]
# Look for what cannot be, not for what is a little different. A reward that differs by 0.1 is
# luck. A number that is *exactly* 0 is never luck. Which columns stand still here, and move in
# the healthy run?

# %%
def stands_still(ill):
    others = ("seconds", "memory", "judge")
    names = [n for n in healthy.columns if not n.startswith(others)]
    still = [n for n in names if ill[n].fillna(0).abs().max() < 1e-7]
    return [n for n in still if healthy[n].abs().median() > 1e-5]


print(stands_still(eleven))

# %% [markdown]
# The distance to the reference is 0 for ever, though the weights change. Who could be at
# distance 0 from a policy that moves? Put your guess in place of this one:

# %%
rl.museum.guess(11, "kl_pushes_away")

# %%
rl.museum.explain(11)
with rl.museum.mystery(11):
    try:
        rl.museum.invariant(11)
    except AssertionError as error:
        print("caught:", error)

# %% [markdown]
# Here is the check that caught it. It compares addresses in memory, because two models that
# are equal are fine, and two that are the same are not.

# %%
print(inspect.getsource(rl.museum.catalogue()["reference_is_the_policy"].invariant))

# %% [markdown]
# ## 5. Mystery 40
#
# Which of these four says it plainly?

# %% tags=["nbval-ignore-output"]
names = ["reward/mean", "entropy", "loss/total", "ratio/max_deviation"]
forty = ill_run(40)
beside(forty, names)

# %%
print("stands still  :", stands_still(forty))
print("reward, step 1:", forty["reward/mean"].iloc[0] == healthy["reward/mean"].iloc[0])
print("ratio is 1    :", forty["ratio/max_deviation"].iloc[0] < 1e-3)

# %% [markdown]
# In the first step the reward is what it should be: the answers are good. It is the scoring of
# the same answers that is off. Several faults do that: a shift, a forgotten temperature, a
# mask in the wrong place, padding that is read. The ratio says *that*; a closer look says
# which. You know this one already.

# %%
rl.museum.guess(40, "temperature_forgotten")
rl.museum.guess(40, "double_shift")
rl.museum.explain(40)

# %% [markdown]
# ## 6. Two faults, one curve: 38 and 39

# %%
both = {number: ill_run(number) for number in (38, 39)}
for number, ill in both.items():
    reward, kept = ill["reward/mean"].tolist(), ill["groups/kept"].tolist()
    print(number, "reward", reward, "kept", kept)

# %% [markdown]
# No answer is right, no group is kept, and nothing is trained. The curves are equal, so they
# cannot help any more. Now look at single answers: what was said, and why is it wrong? That
# is the **reason** (理由) of its judgement.

# %%
for number in (38, 39):
    with rl.museum.mystery(number):
        trainer = short_trainer(batch_size=2, group_size=4)
        groups = trainer.grade(trainer.rollout(trainer.draw()))
    for t, j in list(zip(groups[0].trajectories, groups[0].judgements))[:2]:
        tail = t.response[-12:]
        print(number, groups[0].sample.gold, f"...{tail!r}", j.status, "|", j.reason)

# %% [markdown]
# Read the end of the answers beside the gold answer: some of the "incorrect" ones are right.
# So the policy is innocent, and the judgement is at fault. One of the two gives a reason; the
# other gives none, as if nobody had looked.

# %%
for number in (38, 39):
    rl.museum.explain(number)

# %% [markdown]
# ## 7. Mystery 24: the first step is right

# %% tags=["nbval-ignore-output"]
names = ["reward/mean", "loss/total", "kl/reference", "ratio/max_deviation"]
unseen = ill_run(24)
beside(unseen, names)

# %%
same = ["reward/mean", "pass_rate", "response/length", "groups/kept"]
print("stands still:", stands_still(unseen))
print("ratio is 1  :", (unseen["ratio/max_deviation"].dropna() < 1e-3).all())
for name in same:
    equal = unseen[name].iloc[0] == healthy[name].iloc[0]
    print(f"{name:<16} as healthy in step 1:", equal)

# %% [markdown]
# Everything that is known of step 1 is right. Later the reward falls and the distance grows,
# as with a learning rate that is too high (lesson 08). Who would look for a fault?
#
# What do the numbers of step 1 have in common? They are means over the batch, and a mean does
# not know who is who:
#
# $$\frac1N\sum_i r_i = \frac1N\sum_i r_{\sigma(i)} \qquad \text{for every order } \sigma$$
#
# If the scores came back in another order, no mean would notice. So ask one answer at a time:
# judged again, alone, does it get the score that it has?

# %%
with rl.museum.mystery(24):
    try:
        rl.museum.invariant(24)
    except AssertionError as error:
        print("caught:", error)
rl.museum.invariant(24)
rl.museum.explain(24)

# %% [markdown]
# ## 8. Mystery 41: every curve is fine
#
# This one cannot be seen at all: no number of the run differs from the healthy one.

# %%
perfect = ill_run(41)
timed = ("seconds", "memory", "judge/seconds", "tokens_per_second")
names = [n for n in healthy.columns if not n.startswith(timed)]
print(len(names), "columns, all equal:", healthy[names].equals(perfect[names]))

# %% [markdown]
# It is a grader that is too kind, and these questions give it no chance to be. Judged again,
# an answer gets the same score, and that is wrong both times. Only pairs whose truth you know
# can tell, the wrong ones above all. Here it is with a relative of it, on five pairs:

# %%
judger = rl.RuleJudger()
pairs = [("1", "100"), ("1", "0.01"), ("7", "7"), ("1/2", "0.5"), ("20250", "20251")]


def taken_for_right():
    said = [judger.grade_text((gold,), answer).status for gold, answer in pairs]
    return [f"{g} = {a}" for (g, a), status in zip(pairs, said) if status == "correct"]


print("healthy             ", taken_for_right())
for name in ("percent_both_ways", "integers_nearly_equal"):
    with rl.museum.bug(name):
        print(f"{name:<21}", taken_for_right())

# %%
rl.museum.explain(41)

# %% [markdown]
# ## 9. What to check first
#
# In this order, because the first ones cost a minute and find most:
#
# 1. **Read ten answers**, with gold answer, verdict and reason beside them.
# 2. **Look at step 1.** Ratio 1, distance to the reference 0, reward that of the untrained
#    policy. All of it is known before anything is learned.
# 3. **Look for exact numbers.** Exactly 0, exactly 1, a column that stands still.
# 4. **Turn a knob to its end.** With `negative_factor=0` the negative term must be 0. A knob
#    that changes nothing is not read.
# 5. **Change what must not matter**: cut the batch otherwise, pad more, shuffle the rows, run
#    the same seed twice.
# 6. **Feed it what you know**: a model that is certain, a judge that always says 1, a pair of
#    answers that differ.
# 7. **Take the information out** (lesson 08): coin flips must teach nothing.
#
# Try number 4 on a fault that you have not met:

# %%
with rl.museum.bug("factors_ignored"):
    trainer = short_trainer(negative_factor=0.0)
    term = trainer.step().metrics["loss/negative"]
print("the negative term is 0 with factor 0:", term == 0)
term = short_trainer(negative_factor=0.0).step().metrics["loss/negative"]
print("without the fault                   :", term == 0)

# %% [markdown]
# ## 10. Do the tests notice?
#
# A test that never fails proves nothing. So plant faults on purpose and count how many the
# tests find: a **mutation test** (变异测试). rlteach does it with every fault of the museum,
# with the tests that knew nothing of it (`docs/museum.md`).
#
# Your turn, with a guess for every number from 1 on:

# %%
number = 4  # yours
rl.museum.guess(number, "judge_never_asked")

# %% [markdown]
# ## 11. Exercises
#
# **12.1** Write `first_step_ok(m)`: `m` is a dict of the first step's numbers. Give `True` when
# they can be those of a healthy run: the ratio deviates from 1 by less than 0.001, and the
# distance to the reference is 0 up to a rounding error of 0.000001.

# %%
def first_step_ok(m):
    return m["ratio/max_deviation"] == 0


rl.check("12.1", first_step_ok)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def first_step_ok(m):
#     return m["ratio/max_deviation"] < 1e-3 and abs(m["kl/reference"]) < 1e-6
# ```
#
# Never ask for exact equality of two numbers that were computed in different ways.
#
# </details>

# %% [markdown]
# **12.2** The canary of section 1 with 100 in place of 30, and a vocabulary of 8: what is the
# log-probability of a label that was shifted twice, to one decimal?

# %%
logprob = 0.0
rl.check("12.2", logprob)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# import math
#
# logprob = 0 - math.log(math.exp(100) + 7)
# ```
#
# The wrong label has logit 0, and the sum under the logarithm is the right one's.
#
# </details>

# %% [markdown]
# **12.3** Write `dealt_right(answers, scores, judge)`: is every score the one that
# `judge(answer)` gives to the answer in the same place?

# %%
def dealt_right(answers, scores, judge):
    return sum(map(judge, answers)) == sum(scores)


rl.check("12.3", dealt_right)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def dealt_right(answers, scores, judge):
#     return [judge(answer) for answer in answers] == list(scores)
# ```
#
# Sums, means and sorted lists forget who is who.
#
# </details>

# %% [markdown]
# **To break it.** Write a fault of your own: `planting.planted(lambda patch: patch.around(...))`.
# Which of the checks of section 9 finds it first? Then find one that none of them finds.
