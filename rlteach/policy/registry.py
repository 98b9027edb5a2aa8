"""From a name to a folder: embedded models, local directories, hub ids.

An embedded name never touches the network; a hub id is the only thing that may.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from rlteach.config import Config, data_path


class ModelError(ValueError):
    """A model that cannot be loaded; the message says what is missing and what to do."""


def embedded_models() -> dict[str, Path]:
    """Name -> folder of each model that ships with rlteach."""
    root = data_path("models")
    folders = sorted(root.iterdir()) if root.is_dir() else []
    return {folder.name: folder for folder in folders if (folder / "config.json").is_file()}


def resolve(name: str) -> str:
    """The folder (or hub id) to load `name` from; RUN/checkpoints/best for a run directory.

    Raises:
        ModelError: a folder that holds no complete model, or a name that is nothing at all.
    """
    if name in embedded_models():
        return str(embedded_models()[name])
    path = Path(name).expanduser()
    if not path.exists():
        if "/" in name and not name.startswith((".", "/", "~")) and name.count("/") == 1:
            return name  # owner/model on the hub
        known = ", ".join(embedded_models()) or "none"
        raise ModelError(f"there is no model {name!r}: give an embedded one ({known}), a directory, "
                         "or a hub id (owner/model)")
    if (path / "summary.json").is_file() or (path / "checkpoints").is_dir():
        return str(_best_of_run(path))
    for needed, what in (("config.json", "a model's config"), ("tokenizer.json", "its tokenizer")):
        if not (path / needed).is_file():
            raise ModelError(f"{path} holds no {needed} ({what}): save the model there with "
                             "save_pretrained, model and tokenizer both")
    return str(path)


def run_config(name: str) -> Config | None:
    """The config that a run directory was made with; None where `name` is no run."""
    folder = Path(name).expanduser()
    is_run = (folder / "config.json").is_file() and (folder / "checkpoints").is_dir()
    return Config.load(str(folder / "config.json")) if is_run else None


def _best_of_run(run: Path) -> Path:
    best = run / "checkpoints" / "best"
    if not (best / "config.json").is_file():
        raise ModelError(f"{run} is a run without a finished checkpoint (checkpoints/best): let it "
                         "finish, or resume it")
    return best


def describe(folder: Path) -> dict[str, object]:
    """name, parameters, size in bytes and the accuracy its card states (None: not stated)."""
    card = folder / "card.json"
    facts = json.loads(card.read_text(encoding="utf-8")) if card.is_file() else {}
    size = sum(f.stat().st_size for f in folder.iterdir() if f.is_file())
    return {"name": folder.name, "parameters": facts.get("parameters"), "bytes": size,
            "greedy_dev": facts.get("greedy_dev"), "purpose": facts.get("purpose")}


def load_model(name: str, config: Config) -> tuple[torch.nn.Module, Any]:
    """Model and tokenizer on config.device in config.dtype, sampling defaults left aside.

    Raises:
        ModelError: a part is missing, broken, or a pickle (only safetensors are read).
    """
    folder = resolve(name)
    disable_progress_bar()  # on stderr, and for a moment only: noise in a notebook
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.mps.is_available() else "cpu"
    try:
        tokenizer = load_tokenizer(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=config.dtype, use_safetensors=True)
        return model.to(device), tokenizer
    except Exception as error:  # whatever the libraries raise for a damaged file or a missing device
        why = " ".join(str(error).split())[:200]
        raise ModelError(f"{name} cannot be loaded on {device} ({why}): save model and tokenizer there "
                         "again with save_pretrained, or name another device") from error


def load_tokenizer(folder: str) -> Any:
    """The tokenizer as the folder describes it.

    For some families (Qwen2 is one) AutoTokenizer takes the family's own class even where the folder
    names the plain one, and that class cuts and normalises text by its own rules. The embedded models
    are of another family: for them AutoTokenizer gives the same.
    """
    file = Path(folder) / "tokenizer_config.json"
    named = json.loads(file.read_text(encoding="utf-8")).get("tokenizer_class") if file.is_file() else None
    plain = named in ("TokenizersBackend", "PreTrainedTokenizerFast")
    return (PreTrainedTokenizerFast if plain else AutoTokenizer).from_pretrained(folder)
