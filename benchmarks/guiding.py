"""python -m benchmarks.guiding TOKENIZER: what it takes to look ahead and to guide.

A random HMM of dense states on the vocabulary of a tokenizer, or a model with `--guide FOLDER`;
five keywords in any order, another five for each row. A line for compiling the automata, for making
the tables, and for a token of the batch; `table_bytes` are those of all rows. It is checked that
p(met) is the sum over next tokens.
"""

import argparse
import json
import random
import time
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median

import torch

from benchmarks.machine import describe
from hmmlm.data.spelling import Spelling
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.generate import Guide, Lookahead, contains
from hmmlm.hmm import HMM
from hmmlm.model import Model
from hmmlm.support import Support
from hmmlm.transitions import Dense

AGREES = 1e-5
WORDS = [
    "rain", "park", "umbrella", "child", "yellow", "dog", "house", "water", "light", "morning",
    "winter", "bread", "street", "garden", "school", "friend", "river", "stone", "music", "paper",
]  # fmt: skip


def random_hmm(states: int, words: int, device: str) -> HMM:
    generator = torch.Generator(device).manual_seed(0)

    def noise(*size: int) -> torch.Tensor:
        return 2 * torch.randn(*size, generator=generator, device=device)

    return HMM(
        noise(states).log_softmax(0),
        Dense(noise(states, states).log_softmax(1)),
        noise(words, states).log_softmax(0),
        Support.dense(words, states).to(device),
    )


def measure(
    tokenizer: Tokenizer, hmm: HMM, rows: int, budget: int, device: str
) -> tuple[dict[str, float], dict[str, object]]:
    """Milliseconds, and what else is known."""
    is_gpu = device == "cuda"

    def now() -> float:
        if is_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    choose, began = random.Random(0), now()
    spelling = Spelling.of(tokenizer)
    automata = [contains(*choose.sample(WORDS, 5)).compile(spelling) for _ in range(rows)]
    times = {"compile": 1e3 * (now() - began)}
    began = now()
    looks = [Lookahead.build(hmm, one, eos_id=tokenizer.eos_id, budget=budget) for one in automata]
    times["look ahead"] = 1e3 * (now() - began)
    guide, numbers, each = Guide(looks), list(range(rows)), []
    texts: list[list[int]] = [[] for _ in numbers]
    for _ in range(budget // 2):
        began = now()
        factors = guide.log_factors([[20, 21, 22]] * rows, texts, numbers)
        each.append(1e3 * (now() - began))
        chosen = factors.softmax(1).multinomial(1)[:, 0].tolist()
        texts = [
            [*text, token] if tokenizer.eos_id not in text else text
            for text, token in zip(texts, chosen, strict=True)
        ]
    times["token"] = median(each[2:])
    place, start = torch.zeros(1, dtype=torch.long, device=device), hmm.log_init[None]
    whole = looks[0].log_met(start, place, budget)
    parts = torch.logsumexp(looks[0].next_log_met(start, place, budget), 1)
    sizes = [one.num_states for one in automata]
    peak = torch.cuda.max_memory_allocated() if is_gpu else 1024 * getrusage(RUSAGE_SELF).ru_maxrss
    made = sum(table.nbytes for look in looks for table in look.tables)
    facts = {"automaton_states": [min(sizes), max(sizes)], "table_bytes": made, "peak_bytes": peak}
    return times, {**facts, "sum_error": float((whole - parts).abs())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path, help="a tokenizer.json or SentencePiece .model")
    parser.add_argument("--states", type=int, default=4096, help="of the random HMM")
    parser.add_argument("--guide", type=Path, help="a model's folder, instead of a random HMM")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--budget", type=int, default=32)
    parser.add_argument("--commit", help="what to write where git does not know it")
    parser.add_argument("--out", type=Path, help="append the lines to this file as JSON")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    about, tokenizer = describe(), Tokenizer.load(given.tokenizer)
    place = torch.cuda.get_device_name() if device == "cuda" else about["device"]
    if given.guide is None:
        hmm = random_hmm(given.states, tokenizer.vocab_size, device)
    else:
        model = Model.load(given.guide, device=device)
        hmm, tokenizer = model.hmm, model.tokenizer
    times, facts = measure(tokenizer, hmm, given.rows, given.budget, device)
    case = "guide" if given.guide is None else "trained-guide"
    case += f"-z{hmm.num_states}-v{tokenizer.vocab_size}-b{given.rows}-t{given.budget}"
    for what, ms in times.items():
        line = {"case": case, "what": what, "ms": round(ms, 3), **facts, "device": place}
        line |= {"torch": torch.__version__, "commit": given.commit or about["commit"]}
        print(json.dumps(line), flush=True)
        if given.out:
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    is_right = facts["sum_error"] <= AGREES
    print(json.dumps({"ok": is_right}))
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
