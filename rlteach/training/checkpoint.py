"""A checkpoint: everything that the next step depends on, without pickle.

    step-00010/            the policy in Hugging Face layout, tokenizer included
    step-00010/training/   token model, both optimisers (safetensors) and state.json

Random numbers come from coordinates and the data order from the step, so there is no generator to
keep.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rlteach.training.files import new_folder, write_json
from rlteach.training.trainer import OrealTrainer

FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint that does not fit or is not whole."""


def save_checkpoint(trainer: OrealTrainer, folder: Path, **more: Any) -> None:
    """Write `folder` anew; `more` goes into state.json."""
    learner = trainer.learner
    state = {"format": FORMAT, "step": trainer.step_index, "policy_version": trainer.policy.version, **more}
    with new_folder(folder) as part:
        trainer.policy.save(part)
        inner = part / "training"
        inner.mkdir()
        save_file(_optimizer_tensors(learner.optimizer), inner / "optimizer.safetensors")
        if trainer.token_reward_model is not None:
            weights = {k: v.contiguous() for k, v in trainer.token_reward_model.state_dict().items()}
            save_file(weights, inner / "token_reward_model.safetensors")
            save_file(_optimizer_tensors(learner.token_optimizer), inner / "token_optimizer.safetensors")
            memory = {"states": learner.memory.states, "positive": learner.memory.positive}
            save_file({k: v.contiguous() for k, v in memory.items()}, inner / "head_memory.safetensors")
        write_json(inner / "state.json", state)


def load_checkpoint(trainer: OrealTrainer, folder: Path) -> dict[str, Any]:
    """Put a trainer made from the same config back to where the checkpoint was taken.

    Raises:
        CheckpointError: a part is missing, or belongs to another model or config.
    """
    inner = folder / "training"
    try:
        state = json.loads((inner / "state.json").read_text(encoding="utf-8"))
        step, version = state["step"], state["policy_version"]
        if state["format"] != FORMAT:
            raise ValueError(f"it has format {state['format']}, this rlteach reads {FORMAT}")
        _load_policy(trainer, folder)
        _load_optimizer(trainer.learner.optimizer, inner / "optimizer.safetensors")
        if trainer.token_reward_model is not None:
            trainer.token_reward_model.load_state_dict(load_file(inner / "token_reward_model.safetensors"))
            _load_optimizer(trainer.learner.token_optimizer, inner / "token_optimizer.safetensors")
            for name, value in load_file(inner / "head_memory.safetensors").items():
                setattr(trainer.learner.memory, name, value)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, SafetensorError) as error:
        why = " ".join(str(error).split())[:300]  # torch writes several lines
        raise CheckpointError(f"{folder} cannot be resumed from ({why}): remove it, and an older one is "
                              "taken; or start again with another --out") from None
    trainer.step_index, trainer.policy.version = step, version
    return state


def _load_policy(trainer: OrealTrainer, folder: Path) -> None:
    """Weights only, into the model that is there: a damaged config.json can build nothing."""
    model = trainer.policy.model
    weights = {k: v for part in sorted(folder.glob("model*.safetensors")) for k, v in load_file(part).items()}
    own = model.state_dict()
    loaded = {own[name].data_ptr() for name in weights if name in own}
    lost = [name for name, value in own.items() if name not in weights and value.data_ptr() not in loaded]
    if lost or (unknown := set(weights) - set(own)):
        raise KeyError(f"weights missing: {lost[0]}" if lost else f"unknown weights: {min(unknown)}")
    model.load_state_dict(weights, strict=False)  # tied weights are saved once


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": value.contiguous() for i, s in state.items() for name, value in s.items()}


def _load_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in load_file(path).items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
