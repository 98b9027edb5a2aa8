"""Stand-ins for the tests of plug-ins: a tokenizer with tools in its template, a tiny model with room for
a conversation, and an engine that says what a script tells it, with the model's true log-probabilities."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from fakes import SPECIAL, tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rlteach.agent.rollouts import PluginRollout
from rlteach.agent.session import PolicySide, Sampling, Session
from rlteach.config import Config
from rlteach.policy.decode import Row, RowParams
from rlteach.policy.detokenize import text_of
from rlteach.policy.engine import Engine, row_key
from rlteach.policy.policy import Policy
from rlteach.training.batch import collate
from rlteach.types import Message, Sample, Trajectory

# the form of Qwen's: tools in the system turn, neighbouring tool replies in one user turn
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "Write <tool_call>{...}</tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n' }}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "{{ '\n' if m.content or not loop.first else '' }}<tool_call>\n{\"name\": \"{{ c.function.name }}\", "
    "\"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SEARCH = {"type": "function", "function": {"name": "web_search", "description": "search", "parameters": {
    "type": "object", "properties": {"Query": {"type": "string"}, "Count": {"type": "integer"}},
    "required": ["Query"]}}}
END = SPECIAL[2]


def tool_tokenizer(template: str = TOOL_TEMPLATE) -> Any:
    made = copy.deepcopy(tokenizer())
    made.chat_template = template
    return made


def merging_tokenizer(template: str = TOOL_TEMPLATE, *, bos: bool = False) -> Any:
    """Like the others, with one merge more: "a" "b" -> "ab"; bos: it puts <|endoftext|> before a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet, "ab"])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL))
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], 0)])
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token=SPECIAL[0], eos_token=SPECIAL[2],
                                   chat_template=template, clean_up_tokenization_spaces=False)


def agent_policy(config: Config | None = None, *, seed: int = 0, positions: int = 2048,
                 template: str = TOOL_TEMPLATE, double: bool = False, **parts: Any) -> Policy:
    made = parts.get("tokenizer") or tool_tokenizer(template)
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(made), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=positions,
        tie_word_embeddings=True, initializer_range=0.3, bos_token_id=None, eos_token_id=2, pad_token_id=0))
    return Policy(model.double() if double else model, made, config=config or agent_config())


def agent_config(**changes: Any) -> Config:
    return Config(**{"batch_size": 2, "group_size": 2, "max_new_tokens": 150, "total_steps": 3,
                     "warmup_steps": 0, **changes})


def talk(side: PolicySide, key: int = 1, **changes: Any) -> Session:
    """A session without a plug-in."""
    config = side.engine.policy.config
    sampling = Sampling(config.temperature, config.top_p, config.top_k, config.max_new_tokens)
    return Session(side, replace(sampling, **changes), key)


class ScriptedEngine(Engine):
    """Says what `script` makes of the prompt's text: a text, ids, or (text, "length")."""

    def __init__(self, policy: Policy, script: Callable[[str], Any]) -> None:
        super().__init__(policy)
        self.script, self.prompts, self.said = script, [], []

    def submit(self, prompt: Sequence[int], params: RowParams, seed: int, count: int = 1, **more: Any
               ) -> list[Row]:
        self.prompts.append(tuple(prompt))
        said = self.script(text_of(self, prompt))
        said, finish = said if isinstance(said, tuple) else (said, "stop")
        ids = list(said) if isinstance(said, list) else self.tokenizer.encode(said, add_special_tokens=False)
        if finish == "stop" and ids[-1:] != [self.policy.stop_ids[0]]:
            ids.append(self.policy.stop_ids[0])
        row = Row(prompt, params, row_key(seed, 0), stop_ids=self.policy.stop_ids)
        row.ids = ids[: params.max_tokens]
        finish = finish if len(row.ids) == len(ids) else "length"
        row.logprobs = self._logprobs(prompt, row.ids, params.temperature) if row.ids else []
        row.text = text_of(self, row.ids[:-1] if finish == "stop" else row.ids)
        row.finish = finish
        row.done.set_result(row)
        self.said.append(tuple(row.ids))
        return [row]

    @torch.no_grad()
    def _logprobs(self, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> list[float]:
        logits = self.policy.model(torch.tensor([[*prompt, *ids]])).logits[0].float() / temperature
        shown = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        return shown.gather(-1, torch.tensor(ids)[:, None])[:, 0].tolist()


class QuietEngine(ScriptedEngine):
    """Without log-probabilities, for tests that do not look at them."""

    def _logprobs(self, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> list[float]:
        return [0.0] * len(ids)


def scripted(function: Any, script: Callable[[str], Any], policy: Policy | None = None, **parts: Any
             ) -> tuple[PluginRollout, Policy]:
    """A rollout over an engine that follows the script."""
    policy = policy or agent_policy()
    return PluginRollout(function, policy, engine=lambda p: ScriptedEngine(p, script), **parts), policy


def call_text(name: str = "web_search", **arguments: Any) -> str:
    told = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{told}\n</tool_call>"


def ask(text: str = "who?", *, name: str = "s0", **extra: Any) -> Sample:
    return Sample(name, (Message("user", text),), ("Ann",), extra=extra)


def turns_so_far(prompt: str) -> int:
    """How many answers stand in this prompt already."""
    return prompt.count("<|im_start|>assistant") - 1


def check_record(policy: Policy, trajectory: Trajectory, said: Sequence[Sequence[int]] | None = None) -> None:
    """T12 and promise 3: the masked ids are runs of sampled ids (`said`, if it is known), and the policy
    gives each of them the log-probability that was recorded: ratio 1 to 1e-5."""
    runs, mask = [], trajectory.action_mask
    for i, acted in enumerate(mask):
        if acted and (i == 0 or not mask[i - 1]):
            runs.append([])
        if acted:
            runs[-1].append(trajectory.token_ids[i])
    if said is not None:
        assert runs == [list(ids) for ids in said]
    rows = collate([(trajectory, True, 1.0, 1.0)])
    with torch.no_grad():
        scored = policy.logprobs(rows, policy.config.temperature).sampling
    ratio = (scored - rows.sampled_logprobs).exp()[rows.action_mask]
    assert len(ratio) == sum(mask) > 0
    assert (ratio - 1).abs().max() <= 1e-5
    assert all(value == 0 for value, acted in zip(trajectory.logprobs, mask, strict=True) if not acted)


def spelt(policy: Policy, trajectory: Trajectory) -> str:
    return policy.tokenizer.decode(trajectory.token_ids, skip_special_tokens=False)


def plain_text(rendered: str) -> str:
    """A conversation with runs of white space made one, to compare what two templates wrote."""
    return re.sub(r"\s+", " ", rendered)
