# %% [markdown]
# # 00 · Three roles, one loop, a minute
#
# **Can a model learn to add when all it ever hears is "right" or "wrong"?**
#
# A small language model lives in this repository. It gets about every second addition
# right. You will train it for less than a minute, on this machine, without a network or
# a GPU. Nobody shows it a solution in that minute. First you will see how it is done.

# %% [markdown]
# Run the cells from top to bottom with Shift + Enter. If the first one fails, rlteach is
# not in this kernel. Jupyter: run `%pip install -e ..` in a new cell, then restart the
# kernel. VS Code: *Select Kernel*, at the top right, and take the environment you
# installed into. Colab: clone the repository first, and give `%pip install -e` its folder.

# %% tags=["nbval-ignore-output"]
try:
    import rlteach as rl
except ModuleNotFoundError:
    raise ModuleNotFoundError("no rlteach here: read the lines above") from None
import inspect
import math
import tempfile

import torch
from IPython.display import display
from transformers.utils import logging

logging.disable_progress_bar()
torch.set_num_threads(1)  # steady numbers; so small a model gains nothing from two

# %% [markdown]
# ## 1. Three roles
#
# | role | does | never does |
# |---|---|---|
# | **policy** (策略, 被训练模型) | answers; the only one that learns | marks answers |
# | **reference** (参考模型) | says how probable an answer was before training | answers |
# | **judger** (判别器) | marks one answer: right or wrong | compares two answers |
#
# Many diagrams draw the reference as a second player that answers too, and a judger that
# compares the two. That is another method. Here the reference is a leash, nothing more.

# %% [markdown]
# ## 2. By hand
#
# Take one question, and play the policy yourself. The model writes column addition, last
# digits first, and puts its result into `\boxed{}`. One answer is one **rollout** (采样).
# All the answers to one question are a **group** (一组).

# %%
question = rl.Message("user", "What is 47 + 38?")
sample = rl.Sample(id="by-hand", messages=(question,), gold=("85",))
answers = [
    r"7+8=14 no, 7+8=15, 4+3+1=8, \boxed{85}",
    r"7+8=15, 4+3=7, \boxed{75}",
    r"7+8=15, 4+3+1=8, so it is 85",
    r"7+8=15, 4+3+1=8, \boxed{85 or 75}",
]


def rollout(text):
    messages = (question, rl.Message("assistant", text))
    return rl.Trajectory(messages, (), (), (), policy_version=0, finish_reason="stop")


# %% [markdown]
# The first answer slips, says ` no,` and writes the step again. The second forgets the
# carry. The third forgets the box. The fourth wants it both ways. Guess the four marks
# before you run the cell.

# %%
judger = rl.RuleJudger()
group = rl.Group(sample, tuple(rollout(text) for text in answers))
judgements = judger.grade(group)
for text, j in zip(answers, judgements):
    print(f"{j.score:.0f}  {j.status:<10} {text:<42} {j.reason}")

# %% [markdown]
# The judger reads the final answer, here the box. A slip that was mended costs nothing. Good
# working without a box is wrong, because the model must learn to finish. And the judger
# marks one answer at a time: turn the group round, and each answer keeps its mark.

# %%
turned = group.with_(trajectories=group.trajectories[::-1])
print("as before  :", [j.score for j in judgements])
print("turned     :", [j.score for j in judger.grade(turned)])

# %% [markdown]
# ### From marks to advantages
#
# The **reward** (奖励) is +1 for a right answer, -1 for a wrong one. Rewards alone are not
# enough: +1 on an easy question is no news. So an answer is measured against the *other*
# answers of its group. The difference is its **advantage** (优势):
#
# $$A_i = r_i - \frac{1}{G-1}\sum_{j \neq i} r_j$$

# %%
rewards = [1.0 if j.score == 1 else -1.0 for j in judgements]
advantages = []
for i, reward in enumerate(rewards):
    others = rewards[:i] + rewards[i + 1 :]
    advantages.append(reward - sum(others) / len(others))
for r, a in zip(rewards, advantages):
    print(f"reward {r:+.0f}   advantage {a:+.3f}")

# %% [markdown]
# An answer with a positive advantage will be made more probable, one with a negative
# advantage less. The method is called RLOO, "leave one out". The library has it, too. Does
# it agree?

# %%
from rlteach.oreal.advantage import rloo

assert all(abs(mine - its) < 1e-12 for mine, its in zip(advantages, rloo(rewards)))
print("the group:", [round(a, 3) for a in rloo(rewards)])
print("all right:", rloo([1.0, 1.0, 1.0, 1.0]))
print("all wrong:", rloo([-1.0, -1.0, -1.0, -1.0]))

# %% [markdown]
# The last two lines matter. When all answers are right, or all are wrong, there is
# nothing to compare, and every advantage is 0. Only questions that the model *sometimes*
# gets right teach it something.

# %% [markdown]
# ## 3. The loop
#
# Training is six lines, over and over. This is the library's own source, not a copy.

# %%
print(inspect.getsource(rl.OrealTrainer.step))

# %% [markdown]
# ## 4. One step, slowly
#
# Now the real policy. A config holds every number of a run. The preset `tiny` asks 32
# questions a step and wants 16 answers to each. To keep an eye on it, we take 4 and 4.

# %%
config = rl.Config.preset("tiny", batch_size=4, group_size=4)
policy = rl.Policy.load("tiny-math", config)
questions = rl.load_samples(config.train_data)
trainer = rl.OrealTrainer(policy, judger, questions, config)
print(f"{sum(p.numel() for p in policy.model.parameters()):,} weights in the policy")
print(f"{len(questions)} questions in the file")
print(f"{len({s.id for s in trainer.samples})} of them neither too easy nor too hard")

# %% [markdown]
# The trainer made the reference itself: a frozen copy of the policy as it is now. Ask it
# for an answer, and it refuses.

# %%
try:
    trainer.reference.sample(questions[:1])
except TypeError as refusal:
    print(refusal)

# %% [markdown]
# **draw.** Four questions. The pass rate says how often the untrained policy was right
# when each question was asked 16 times. Questions it mostly gets right are left out.

# %%
drawn = trainer.draw()
for s in drawn:
    print(f"{s.id}   {s.question:<24} gold {s.gold[0]:<6} pass rate {s.pass_rate:.2f}")

# %% [markdown]
# **rollout.** The policy answers each question four times. It rolls a die for every
# token, so the four differ. Look for slips, and for ` no,`.

# %% tags=["nbval-ignore-output"]
groups = trainer.rollout(drawn)
for g in groups[:2]:
    print(g.sample.question)
    for t in g.trajectories:
        print("   ", t.response)

# %% [markdown]
# A rollout is more than its text. It keeps the token ids, a mask that is `True` where the
# policy wrote the token itself, and the log-probability of each of those choices. The
# question's tokens are not the policy's work: they will never be trained on.

# %%
t = groups[0].trajectories[0]
prompt, answer = t.usage["prompt_tokens"], t.usage["completion_tokens"]
print("tokens of the question:", prompt, " of the answer:", answer)
print("written by the policy :", sum(t.action_mask[:prompt]), "and", sum(t.action_mask))
print("probability of the answer's first token:", f"{math.exp(t.logprobs[prompt]):.3f}")

# %% [markdown]
# **grade.** The judger marks each of the sixteen answers.

# %%
groups = trainer.grade(groups)
groups

# %% [markdown]
# **select.** Advantages from the whole group. Then one right and one wrong answer of each
# group are kept for training, drawn at random. A group without both is not kept.

# %%
groups = trainer.select(groups)
for g in groups:
    shown = "  ".join(f"{a:+.2f}" for a in g.advantages)
    print(f"{g.sample.id}   advantages {shown}   kept {list(g.kept)}")

# %% [markdown]
# **shape.** The kept answers become tensors: N rows of T tokens. Here the reference does
# its one job, and says how probable each token was before training.

# %%
batch = trainer.shape(groups)
print(batch.policy_rows)
print("the reference's log-probabilities:", list(batch.policy_rows.reference.shape))

# %% [markdown]
# **update.** One step of the optimiser, and the policy's version goes from 0 to 1. No
# other stage changes anything: until here, each cell could be run again with the same
# result. Do not read the loss as progress: it is made of answers the policy has just
# given, so its target moves with every step. Watch the reward.

# %%
print("policy version", policy.version)
step = trainer.update(batch)
print("policy version", policy.version)
step

# %% [markdown]
# ## 5. A minute
#
# Now the real thing: a fresh policy, the preset as it stands, 20 steps. First an exam:
# 200 questions that are used nowhere else. The policy gives its most probable answer to
# each. Square brackets hold the 95 % interval: 200 questions are a sample, too.

# %% tags=["nbval-ignore-output"]
config = rl.Config.preset("tiny", total_steps=20)
policy = rl.Policy.load("tiny-math", config)
exam = rl.load_samples(config.test_data)[:200]
before = rl.evaluate(policy, judger, exam)
before

# %% [markdown]
# And train. The loop is a plain `for`, and its body is yours. Here it draws a picture
# every four steps, in place. Top left is the curve to watch.

# %%
trainer = rl.OrealTrainer(policy, judger, questions, config)


def picture():
    return rl.curves(rl.table(trainer.history))


trainer.step()
live = display(picture(), display_id=True)
for step in trainer:
    if step.index % 4 == 0:
        live.update(picture())

# %% [markdown]
# *Right answers* climbs. It starts below the exam and stays below it: training takes the
# hard questions, and rolls the die. *KL to the reference* says how far the policy has
# walked; it is estimated from few tokens, so it jumps. *Entropy* falls: the policy gets
# sure of itself. The same as a table:

# %% tags=["nbval-ignore-output"]
columns = ["reward/mean", "groups/kept", "kl/reference", "entropy", "response/length"]
rl.table(trainer.history)[columns].iloc[[0, 4, 9, 14, 19]].round(3)

# %% [markdown]
# ## 6. Before and after
#
# The same exam again. Its questions were never trained on, so this is no memory.

# %% tags=["nbval-ignore-output"]
after = rl.evaluate(policy, judger, exam)
print("before", before)
print("after ", after)

# %% [markdown]
# Sampling is discontinuous. On another processor the last bit of a number may differ, one
# token flips, and the rest of the run with it. So your figures may differ a little from
# mine, except those of the first step. What must hold everywhere:

# %%
first, last = trainer.history[0], trainer.history[-1]
right = [r.metrics["reward/mean"] for r in trainer.history]
print(first)
print("right answers have doubled:", sum(right[-4:]) / 4 > 2 * right[0])
print("the exam is at least 20 points better:", after.accuracy - before.accuracy > 0.2)
print("and not by luck:", after.ci95[0] > before.ci95[1])

# %% [markdown]
# ### A habit that fades
#
# The untrained policy sometimes writes ` no,` and mends a slip. Nobody marked that habit.
# How often does it show in the rollouts, step by step?

# %% tags=["nbval-ignore-output"]
def mended(record):
    texts = [t.response for g in record.groups for t in g.trajectories]
    return sum(" no," in text for text in texts) / len(texts)


for record in trainer.history[::4]:
    share = mended(record)
    print(f"step {record.index:2d}   {share:5.1%}  " + "#" * round(100 * share))

# %% [markdown]
# The marks are for the box alone, and a mended slip costs nothing. But an answer with a
# slip in it is wrong more often than its neighbours, so the habit is pushed down with the
# wrong answers. Reinforcement changes more than you asked for.

# %%
print("the habit is rarer than at the start:", mended(last) < mended(first))

# %% [markdown]
# ## 7. Take it with you
#
# A trained policy is a plain Hugging Face folder. Save it, forget rlteach, and load it
# with `transformers`. Put three questions to it that it missed in the first exam.

# %%
from transformers import AutoModelForCausalLM, AutoTokenizer


def ask(folder, question):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": question}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=80, do_sample=False)
    start = ids["input_ids"].shape[1]
    return tokenizer.decode(out[0, start:], skip_special_tokens=True)


# %% tags=["nbval-ignore-output"]
missed = [g.sample for g in before.groups if g.scores[0] == 0][:3]
with tempfile.TemporaryDirectory() as folder:
    policy.save(folder)
    for s in missed:
        print(s.question, " gold", s.gold[0])
        print("   before:", ask(rl.data_path("models/tiny-math"), s.question))
        print("   after: ", ask(folder, s.question))

# %% [markdown]
# ## 8. Two exercises
#
# **One.** In a group of 8, `right` answers are right. Change the number until a right
# answer is pushed up three times as hard as a wrong one is pushed down. Guess first: must
# right answers be rare for that, or common?

# %%
right = 4

a = rloo([1.0] * right + [-1.0] * (8 - right))
print(f"a right answer {a[0]:+.2f}   a wrong one {a[-1]:+.2f}")
print("three times as hard:", abs(a[0] + 3 * a[-1]) < 1e-9)

# %% [markdown]
# <details><summary>Solution</summary>
#
# `right = 2`. With $c$ of $G$ answers right, a right one gets $2(G-c)/(G-1)$ and a wrong
# one $-2c/(G-1)$. The first is three times the second when $G-c = 3c$. What is rare in a
# group is pushed hardest: a rare success up, or a rare failure down.
#
# </details>

# %% [markdown]
# **Two.** Sixteen answers to each question take time. Would fewer do? Change `G`, and see
# in how many groups of the first step a right answer still meets a wrong one. The other
# groups teach nothing. What is the smallest `G` that keeps half of the 32?

# %%
G = 16

scores = [g.scores[:G] for g in trainer.history[0].groups]
both = sum(1.0 in s and 0.0 in s for s in scores)
print(f"a right and a wrong answer: {both} of {len(scores)} groups")

# %% [markdown]
# <details><summary>Solution</summary>
#
# Try 4, 5 and 6: it is one of them. A question with pass rate $p$ has answers of both
# kinds with probability $1 - p^G - (1-p)^G$. At $p = 0.2$ that is 32 % with two answers,
# 59 % with four, 83 % with eight and 97 % with sixteen. A larger group wastes fewer
# questions, and costs more answers.
#
# </details>

# %% [markdown]
# **To break it.** In section 5, add `control="random"` to the preset. The judger's marks
# become coin flips. Run sections 5 and 6 again. What should the exam say now? If it said
# "better", would you still believe the first run?
