"""Serving measured: python benchmarks/serving.py [--model tiny-math] [--requests 1024] [--kind free]

The same server, the same requests, twice: one by one, and from 64 clients at once (the official openai
client in a process of its own). Written to results/serving.json under the model's name and temperature:
answers and tokens a second both ways and their ratio, the share of identical replies, the largest
difference between the log-probabilities of identical replies. Kinds: `free`, as the model answers
(tiny-math: 28 tokens on average); `80`, a JSON string that is cut off after 80 tokens; `verdict`, the
judge's JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openai

from rlteach.config import data_path

RESULTS = Path(__file__).parent / "results" / "serving.json"
CLIENTS = 64
SERVE = "from rlteach.serving.command import serve_command; import sys, typer; typer.run(serve_command)"
LONG = {"type": "json_schema", "json_schema": {"name": "long", "schema": {"type": "string", "minLength": 1000}}}
VERDICT = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": {
    "type": "object", "additionalProperties": False, "required": ["rationale", "judgement"],
    "properties": {"rationale": {"type": "string"},
                   "judgement": {"type": "string", "enum": ["correct", "incorrect"]}}}}}
RUBRIC = "You grade answers. Compare the candidate's final answer with the gold answers; reply in JSON."


def questions(model: str, count: int) -> list[list[dict[str, str]]]:
    """Addition questions of the training file; for a judge, each with a gold and a candidate answer."""
    lines = data_path("prompts/train.jsonl").read_text(encoding="utf-8").splitlines()
    samples = [json.loads(line) for line in (lines * (1 + count // len(lines)))[:count]]
    if "judge" not in model:
        return [[{"role": "user", "content": sample["question"]}] for sample in samples]
    out = []
    for i, sample in enumerate(samples):
        right = sample["gold_answer"]
        given = right if i % 2 else str(int(right) + 1)
        body = {"question": sample["question"], "gold": [right], "candidate": given}
        out.append([{"role": "system", "content": RUBRIC},
                    {"role": "user", "content": json.dumps(body, ensure_ascii=False)}])
    return out


def start(model: str) -> tuple[subprocess.Popen[str], str, str]:
    """The server as a process of its own: (process, url, key)."""
    process = subprocess.Popen([sys.executable, "-c", SERVE, model, "--port", "0"], stdout=subprocess.PIPE, text=True)
    url = re.search(r"http\S+", process.stdout.readline())[0]
    return process, url, process.stdout.readline().split()[1]


async def ask(client: openai.AsyncOpenAI, fields: dict[str, Any]) -> Any:
    return await client.chat.completions.create(**fields)


async def both_ways(url: str, key: str, requests: list[dict[str, Any]]) -> tuple[list[Any], float, list[Any], float]:
    """In rounds of 256, each both ways, so that a machine that slows down in between favours neither."""
    alone, together, one_by_one, at_once = [], [], 0.0, 0.0
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=600) as client:
        await asyncio.gather(*(ask(client, fields) for fields in requests[:CLIENTS]))  # connections, caches
        for at in range(0, len(requests), 256):
            part = requests[at : at + 256]
            began = time.perf_counter()
            alone += [await ask(client, fields) for fields in part]
            one_by_one += time.perf_counter() - began
            began = time.perf_counter()
            together += await at_the_same_time(client, part)
            at_once += time.perf_counter() - began
    return alone, one_by_one, together, at_once


async def at_the_same_time(client: openai.AsyncOpenAI, requests: list[dict[str, Any]]) -> list[Any]:
    """64 clients, each with its next request as soon as it has an answer."""
    waiting, found = list(enumerate(requests)), {}

    async def work() -> None:
        while waiting:
            i, fields = waiting.pop(0)
            found[i] = await ask(client, fields)

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return [found[i] for i in range(len(requests))]


def compare(alone: list[Any], together: list[Any]) -> dict[str, Any]:
    """Share of replies with the same token ids, and the largest log-probability difference among them."""
    same, difference = 0, 0.0
    for a, b in zip(alone, together, strict=True):
        first, second = a.choices[0], b.choices[0]
        if first.token_ids == second.token_ids:
            same += 1
            pairs = zip(first.logprobs.content, second.logprobs.content, strict=True)
            difference = max([difference, *(abs(x.logprob - y.logprob) for x, y in pairs)])
    return {"identical_replies": same, "identical_share": same / len(alone), "max_logprob_difference": difference}


KINDS: dict[str, dict[str, Any]] = {"free": {"max_tokens": 80}, "80": {"max_tokens": 80, "response_format": LONG},
                                    "verdict": {"max_tokens": 160, "response_format": VERDICT}}


def measure(model: str, temperature: float, count: int, kind: str) -> dict[str, Any]:
    requests = [{"model": model, "messages": messages, "temperature": temperature, "seed": i,
                 "logprobs": True, "extra_body": {"return_token_ids": True}} | KINDS[kind]
                for i, messages in enumerate(questions(model, count))]
    process, url, key = start(model)
    try:
        alone, one_by_one, together, at_once = asyncio.run(both_ways(url, key, requests))
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
    tokens = sum(reply.usage.completion_tokens for reply in alone)
    return {"model": model, "temperature": temperature, "kind": kind, "requests": count, "clients": CLIENTS,
            "tokens_a_reply": round(tokens / count, 1),
            "one_by_one": {"seconds": round(one_by_one, 2), "tokens_a_second": round(tokens / one_by_one)},
            "together": {"seconds": round(at_once, 2), "tokens_a_second": round(tokens / at_once)},
            "ratio": round(one_by_one / at_once, 2), **compare(alone, together)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-math")
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--kind", choices=KINDS, default="free")
    arguments = parser.parse_args()
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    for value in arguments.temperatures:
        row = measure(arguments.model, value, arguments.requests, arguments.kind)
        row |= {"cpus": os.cpu_count(), "threads": os.environ.get("OMP_NUM_THREADS"),
                "python": platform.python_version(), "load_average_after": round(os.getloadavg()[0], 1)}
        print(json.dumps(row), flush=True)
        found[f"{arguments.model}, {arguments.kind}, temperature {value:g}"] = row
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
