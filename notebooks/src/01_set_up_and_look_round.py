# %% [markdown]
# # 01 · Set up and look round
#
# **What lies here, and does it work on this machine?**
#
# You will load a language model from this repository, see what it really reads, and put a
# first question to it. You count how often it is right, and find out where everything is.
# Nothing is downloaded, and no GPU is needed.

# %% [markdown]
# If the first cell fails, rlteach is not in this kernel.
#
# | where | what to do |
# |---|---|
# | Jupyter | run `%pip install -e ..` in a new cell, then *Kernel*, *Restart* |
# | VS Code | *Select Kernel*, top right, and take the environment you installed into |
# | Colab | `!git clone` the repository, `%pip install -e` its folder, then *Restart session* |

# %% tags=["nbval-ignore-output"]
try:
    import rlteach as rl
except ModuleNotFoundError:
    raise ModuleNotFoundError("no rlteach here: read the table above") from None
import inspect
import platform
from importlib.metadata import PackageNotFoundError, version
import pandas as pd
import psutil
import torch
from IPython.display import Image
from matplotlib.figure import Figure
from rlteach.views.plots import png

torch.set_num_threads(1)  # steady numbers

# %% [markdown]
# ## 1. This machine
#
# Packages first. *missing* is fine for the two at the bottom: `mcp` shares the search tool
# with other programs, `xllamacpp` runs large judges. `pip install "rlteach[mcp]"` and
# `"rlteach[judger]"` bring them.

# %% tags=["nbval-ignore-output"]
def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


print("python", platform.python_version(), "on", platform.system(), platform.machine())
for name in ["rlteach", "torch", "transformers", "ipywidgets", "mcp", "xllamacpp"]:
    print(f"{name:<13} {installed(name)}")

# %% [markdown]
# Then the **device** (设备) that computes. The lessons take the CPU, so that your numbers
# are like mine. Four gigabytes of free memory are plenty.

# %% tags=["nbval-ignore-output"]
print("cuda:", torch.cuda.is_available(), "  mps:", torch.mps.is_available())
print("cpu cores:", psutil.cpu_count(logical=False))
print(f"memory free:   {psutil.virtual_memory().available / 1e9:.1f} GB")
print(f"this notebook: {psutil.Process().memory_info().rss / 1e9:.2f} GB")

# %% [markdown]
# ## 2. The models
#
# Some models lie in the repository. Each is a real transformer, only very small. In a
# terminal, `rlteach models` prints the same table.

# %%
from rlteach.policy.registry import describe

rows = [describe(folder) for folder in rl.embedded_models().values()]
table = pd.DataFrame(rows).set_index("name")
table[["parameters", "bytes", "greedy_dev"]]

# %% [markdown]
# `greedy_dev` is the share of right answers on questions the model had not seen. `tiny-math`
# is the one you will train: it adds, and errs half of the time. `tiny-judge` marks answers.
# `tiny-checker` finds wrong steps in lesson 07.

# %%
policy = rl.Policy.load("tiny-math")
weights = list(policy.model.parameters())
count = sum(w.numel() for w in weights)
size = weights[0].element_size()
print(f"{count:,} weights of {size} bytes: {size * count / 1e6:.1f} MB")
print("device", policy.model.device, "  kind", weights[0].dtype)
shape = policy.model.config
print("layers", shape.num_hidden_layers, "  width", shape.hidden_size)

# %% [markdown]
# A model with seven billion weights (7B) needs 9,000 times as much. What you learn here is
# the same at that size; only the wait is not.
#
# ## 3. What the model reads
#
# A model reads no letters. The **tokenizer** (分词器) cuts a text into **tokens** (词元), and
# gives each a number, its id.

# %%
tokenizer = policy.tokenizer


def show(text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    print(ids, [tokenizer.decode([i]) for i in ids])


show("What is 57 + 38?")
show(r"7+8=15 no, \boxed{95}")

# %% [markdown]
# Digits stay apart, so 57 is two tokens. Frequent pieces of text, such as `\boxed{`, are one.
# There are few ids: 256 for the single bytes, and 35 for longer pieces. Because every byte
# has an id, every text can be written, Chinese and emoji too. Count the tokens:

# %%
for text in ["a", "é", "你", "🙂"]:
    ids = tokenizer.encode(text)
    print(f"{text}  {len(text.encode())} bytes  {len(ids)} tokens  {ids}")
print("ids in all:", len(tokenizer))

# %% [markdown]
# And nothing is lost on the way back. Here are a thousand texts of random characters.

# %%
import random

rng = random.Random(0)
blocks = [(32, 127), (0x4E00, 0x9FFF), (0x1F300, 0x1F64F)]
signs = [chr(rng.randrange(*rng.choice(blocks))) for _ in range(20_000)]
texts = ["".join(signs[at : at + 20]) for at in range(0, 20_000, 20)]
back = [tokenizer.decode(tokenizer.encode(t)) for t in texts]
same = sum(a == b for a, b in zip(texts, back))
tokens = sum(len(tokenizer.encode(t)) for t in texts)
print("came back unchanged:", same, "of", len(texts))
print("tokens for a character:", round(tokens / 20_000, 2))

# %% [markdown]
# ### The chat template
#
# Your question is not all the model reads. A **chat template** (对话模板) writes around it
# who speaks, and where the answer begins. The signs for that are **control tokens** (控制词元).

# %%
question = rl.Sample("q", (rl.Message("user", "What is 57 + 38?"),), gold=("95",))
prompt = policy.encode(question)
print(len(prompt), "tokens:", prompt)
print(tokenizer.decode(prompt))

# %% [markdown]
# `<|im_end|>` is one token, id 2, and it ends a turn. What if somebody types it into a
# question? Then it must stay text, or a question could end itself and speak for others. In
# the library it is spelt out:

# %%
typed = rl.Sample("t", (rl.Message("user", "Hi <|im_end|>"),), gold=())
print("as a control token:", tokenizer.encode("<|im_end|>"))
print("typed by somebody :", policy.encode(typed)[4:-5])
print("times id 2 is in the prompt:", policy.encode(typed).count(2))

# %% [markdown]
# This is the library's own source. `typed` is true where somebody wrote the text, and false
# where the template did.

# %%
from rlteach.policy.chat import encode_pieces

print(inspect.getsource(encode_pieces))

# %% [markdown]
# ## 4. A first question
#
# `policy.sample` takes questions and, for each, a list of keys: one answer for each key.
# **Greedy** (贪心) means: always take the most probable token. Then the key does not matter.

# %%
[[answer]] = policy.sample([question], [[0]], greedy=True)
print(answer.response)
print("why it ended:", answer.finish_reason)
print("tokens:", answer.usage["completion_tokens"])

# %% [markdown]
# The model adds the last digits first: `7+8=15`. Then it carries the one, `5+3+1`, and slips:
# that is 9. Now let it roll a die for each token. The **temperature** (温度) says how much the
# die decides; 1 takes the model's own probabilities.

# %%
for t in policy.sample([question], [range(6)])[0]:
    print(t.response)

# %%
for temperature in [0.1, 0.5, 1.0, 1.5]:
    warm = rl.Policy(policy.model, tokenizer, config=rl.Config(temperature=temperature))
    answers = [t.response for t in warm.sample([question], [range(16)])[0]]
    right = sum(r"\boxed{95}" in a for a in answers)
    different = len(set(answers))
    print(f"temperature {temperature}: {different:2d} different, {right:2d} right")

# %% [markdown]
# Cold, the model mostly repeats itself, and with it its mistake. At 1 it tries things out, and
# half of them are right. Too warm, nearly everything is noise. Training lives on the middle: it
# can only reinforce what was tried.

# %% [markdown]
# ## 5. How often is it right?
#
# One answer says little. Ask 16 times, mark each answer, and take the share of right ones:
# the **pass rate** (通过率) of the question.
#
# $$\hat p = \frac{1}{16} \sum_{i=1}^{16} [\text{answer } i \text{ is right}]$$

# %%
answers = policy.sample([question], [range(16)])[0]
group = rl.Group(question, answers)
scores = [j.score for j in rl.RuleJudger().grade(group)]
for score in sorted(set(scores), key=str):
    print("score", score, ":", scores.count(score), "answers")
known = [score for score in scores if score is not None]
print(f"pass rate: {sum(known) / len(known):.2f}")

# %% [markdown]
# `rl.evaluate` does this for many questions. With `k=16` it asks each 16 times, and `greedy=False` rolls the
# die. The square
# brackets hold a 95 % interval; lesson 03 explains it. `pass_at_k` is the share of questions
# with at least one right answer among the 16.

# %%
dev = rl.load_samples("prompts/dev.jsonl")[:12]
found = rl.evaluate(policy, rl.RuleJudger(), dev, greedy=False, k=16)
known = [score for g in found.groups for score in g.scores if score is not None]
assert found.accuracy == sum(known) / len(known)
print(found)
print(f"at least one right of 16: {found.pass_at_k:.0%} of the questions")
print("answers that nobody could judge:", found.unscorable)

# %%
for g in found.groups[:6]:
    known = [score for score in g.scores if score is not None]
    rate, filed = sum(known) / len(known), g.sample.pass_rate
    print(f"{g.sample.question:<24} now {rate:.2f} of {len(known)}   filed {filed:.2f}")

# %% [markdown]
# Fewer than 16 were counted for one question: there the judger could not say. Lesson 03 looks
# into that. The file holds pass rates as well, measured with other dice. Two measurements of 16 answers
# differ: that is chance, and you have just seen how much. Here are all 4,200 training
# questions. Far left nothing is ever right, far right everything is.

# %%
train = rl.load_samples("prompts/train.jsonl")
figure = Figure(figsize=(7, 2.6), dpi=80, layout="constrained")
ax = figure.subplots()
for level in [2, 3, 4]:
    rates = [s.pass_rate for s in train if s.extra["level"] == level]
    edges = [(i - 0.5) / 16 for i in range(18)]
    ax.hist(rates, bins=edges, histtype="step", label=f"{level} digits")
ax.set(xlabel="pass rate of a question", ylabel="questions")
ax.legend()
Image(data=png(figure))

# %%
for level in [2, 3, 4]:
    rates = [s.pass_rate for s in train if s.extra["level"] == level]
    never, mean = sum(r == 0 for r in rates), sum(rates) / len(rates)
    print(f"{level} digits: {len(rates)} questions, mean {mean:.3f}, never {never}")

# %% [markdown]
# ## 6. Where things are
#
# `rl.data_path` finds what ships with rlteach, in a clone of the repository as well as in an
# installed package. The questions are plain JSON, one a line.

# %%
with open(rl.data_path("prompts/train.jsonl"), encoding="utf-8") as file:
    print(file.readline().strip())
print(*sorted(path.name for path in rl.data_path("prompts").iterdir()))
for name in ["train", "dev", "test"]:
    print(f"{name:<5} {len(rl.load_samples(f'prompts/{name}.jsonl'))} questions")

# %% [markdown]
# Every number of a run stands in one place, the **config** (配置). Each field says what it is
# for, and a preset is a named set of them.

# %%
config = rl.Config.preset("tiny")
for name in ["policy", "train_data", "batch_size", "group_size", "policy_lr"]:
    field = rl.Config.model_fields[name]
    print(f"{name:<12} {getattr(config, name)!s:<20} {field.description}")

# %% [markdown]
# ## 7. When something is missing
#
# A mistake should cost you one sentence, not an evening. Here are three of the usual ones.
# Read what each sentence asks you to do.

# %%
def attempt(action):
    try:
        action()
    except Exception as error:
        print(f"{type(error).__name__}: {error}\n")


attempt(lambda: rl.Policy.load("tiny-maths"))
attempt(lambda: rl.Config.preset("tiny", group_sise=4))
attempt(lambda: rl.Config.preset("tiny", group_size=1))

# %% [markdown]
# | what you see | what it is | what to do |
# |---|---|---|
# | `No module named ...` | another kernel than the one you installed into | the table at the top |
# | Colab forgets everything | its machine is new each day | clone and install again; keep runs on Drive |
# | VS Code shows no picture | the notebook is not trusted | *Trust* in the bar above it |
# | a cell takes minutes | other programs hold the cores | close them; pause other notebooks |
# | the kernel dies | memory ran out | restart it, and run one notebook at a time |

# %% [markdown]
# ## 8. Exercises
#
# `rl.check` tells you whether an answer is right. It tries out what your answer does. Until
# you have one, it says *not yet*.
#
# **01.1** Write `prompt_length(question)`: how many tokens does the model read before its
# answer begins? Think of everything that stands around the question.

# %%
def prompt_length(question):
    return len(question)


rl.check("01.1", prompt_length)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# policy = rl.Policy.load("tiny-math")
#
#
# def prompt_length(question):
#     message = rl.Message("user", question)
#     return len(policy.encode(rl.Sample("q", (message,), ())))
# ```
#
# </details>

# %% [markdown]
# **01.2** An answer is right with probability $p$. Write `at_least_one(p, k)`: how probable
# is a right answer among $k$? Is one in four, asked four times, certain?

# %%
def at_least_one(p, k):
    return p * k


rl.check("01.2", at_least_one)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def at_least_one(p, k):
#     return 1 - (1 - p) ** k
# ```
#
# </details>

# %% [markdown]
# **01.3** Find a text of exactly five characters that costs as many tokens as five characters
# can.

# %%
text = "hello"
rl.check("01.3", text)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# text = "🙂" * 5
# ```
#
# </details>

# %% [markdown]
# **To break it.** Set `warm`'s temperature to 5 and look at the answers. Then set it to 0.01.
# With which of the two could a model ever learn something new?
