"""From what the caller names to a backend: a policy, an embedded model, a directory, a run, a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlteach.config import Config
from rlteach.policy.chat import encode_chat
from rlteach.policy.engine import Engine, wants_double
from rlteach.policy.policy import Policy
from rlteach.policy.registry import ModelError, embedded_models, load_model, run_config
from rlteach.serving.app import Backend
from rlteach.serving.backend import EngineBackend
from rlteach.types import Message


def load_backend(model: Any, *, name: str | None = None, device: str | None = None) -> Backend:
    """What will answer.

    Raises:
        ModelError: nothing is there, or a part of it is missing.
        ServeError: a GGUF file without the extra that serves it.
    """
    if isinstance(model, Policy):
        return EngineBackend(Engine(model), name or "policy")
    text = str(model)
    if text.lower().endswith(".gguf"):
        from rlteach.serving.gguf import GgufBackend

        return GgufBackend(text, name or Path(text).stem)
    return EngineBackend(Engine(load_policy(text, device)), name or served_name(text))


def served_name(model: str) -> str:
    """An embedded name or a hub id as it is; of a directory only its own name, not where it lies."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() and model not in embedded_models() else model


def load_policy(model: str, device: str | None = None) -> Policy:
    """The policy with a run's own config, or with the tokens that end answers as the model has them."""
    of_run = run_config(model)
    config = of_run or Config()
    if device is not None:
        config = config.replace(device=device)
    network, tokenizer = load_model(model, config)
    if wants_double(network):
        network = network.double()
    if of_run is None:
        config = config.replace(stop_tokens=end_tokens(network, tokenizer, model))
    policy = Policy(network, tokenizer, config=config)
    encode_chat(tokenizer, [Message("user", "?")])  # a template that fails shall fail here
    return policy


def end_tokens(network: Any, tokenizer: Any, model: str) -> tuple[str, ...]:
    """Tokens that end an answer: of the settings that come with a model only these are taken."""
    stated = getattr(getattr(network, "generation_config", None), "eos_token_id", None)
    ids = stated if isinstance(stated, list) else [stated]
    others = (tokenizer.convert_ids_to_tokens(i) for i in ids if i is not None)
    names = ["<|im_end|>", tokenizer.eos_token, *others]
    vocabulary = tokenizer.get_vocab()
    found = tuple(dict.fromkeys(token for token in names if token in vocabulary))
    if not found:
        raise ModelError(f"{model} names no token that ends an answer: set eos_token in its tokenizer")
    return found
