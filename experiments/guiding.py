"""Five keywords in at most 32 tokens: a language model guided by its HMM, a mask, and rejection.

    python -m experiments.guiding prompts --out prompts.txt
    hmmlm distill --llm FOLDER --prompts prompts.txt --states 4096 --tokens 50000000 --out GUIDE
    python -m experiments.guiding run --llm FOLDER --guide GUIDE --out lines.jsonl
    python -m experiments.guiding page --lines lines.jsonl

`prompts` writes what the guide's text begins with: requests for a sentence with five words, as the
language model is asked later, of other words together. `run` asks for 100 sentences, each with five
words of one topic, 16 times by each method, and scores every text by the language model alone:

- *guided*: its next-token distribution, times the guide's factor;
- *mask*: the same automaton and budget, but the language model alone chooses among what is legal;
- *rejection*: the language model alone; texts that do not meet the constraint are thrown away.

A line has the 16 texts of a prompt and method. `page` writes the texts and what follows from them.
Stopped, `run` goes on with the prompts that have no lines yet. `experiments.guiding_stages` does
all of this unattended.
"""

import argparse
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import add_lines, read_lines

RESULTS = Path(__file__).parent / "results/guiding.jsonl"
PAGE = Path(__file__).parents[1] / "docs/guided.md"
REQUEST = "Write one short sentence that uses all of these words: {}."
CHAT = "user\n{}<|im_end|>\n<|im_start|>assistant\n"
"""What follows the first token, `<|im_start|>`, in a talk with a model of the SmolLM2 family."""

BUDGET, NUMBER, TOGETHER = 32, 16, 16
METHODS = ("guided", "mask", "rejection")
RESAMPLED = 10_000
SHOWN = 12
"""Prompts of which the page has the texts."""

TOPICS = {
    "weather": "rain umbrella street cloud wind storm cold sky",
    "dog": "dog ball park run tail happy grass walk",
    "kitchen": "bread kitchen oven flour morning butter table smell",
    "school": "teacher school book child question desk lesson paper",
    "river": "boat river fish water sun bridge summer swim",
    "winter": "snow winter fire house night coat ice warm",
    "city": "bus city people station train street late wait",
    "music": "song piano music stage voice play evening crowd",
    "garden": "garden flower tree bird spring seed green soil",
    "sea": "beach sand wave ship wind shell island blue",
    "work": "office phone letter meeting friend coffee desk time",
    "health": "doctor nurse hospital patient medicine heart sleep day",
    "farm": "farm horse field milk barn cow morning hay",
    "forest": "forest path bear tent lake mountain camp trail",
    "family": "mother father sister baby home dinner story bed",
    "sport": "team game goal player ball win field coach",
    "shop": "shop money market apple price bag buy street",
    "space": "moon star planet rocket light earth night sky",
    "art": "artist paint picture wall color museum brush hand",
    "war": "king soldier castle sword army battle horse gate",
}


def keyword_sets() -> list[tuple[str, ...]]:
    """A hundred: five words of a topic, five times each."""
    draw = random.Random(0)
    found = []
    for words in TOPICS.values():
        mine: set[tuple[str, ...]] = set()
        while len(mine) < 5:
            mine.add(tuple(draw.sample(words.split(), 5)))
        found += sorted(mine)
    return found


def write_prompts(number: int, out: Path) -> None:
    """Requests with five words of two topics each, one to a line."""
    draw = random.Random(1)
    with out.open("w") as file:
        for _ in range(number):
            one, other = draw.sample(list(TOPICS.values()), 2)
            words = [*draw.sample(one.split(), 3), *draw.sample(other.split(), 2)]
            draw.shuffle(words)
            told = CHAT.format(REQUEST.format(", ".join(words)))
            file.write(told.replace("\n", "\\n") + "\n")


def run(given: argparse.Namespace) -> int:
    import torch

    from hmmlm.distill.causal import CausalTeacher
    from hmmlm.generate import Guide, contains
    from hmmlm.hf.writing import Writer
    from hmmlm.model import Model

    device = "cuda" if torch.cuda.is_available() else "cpu"
    llm = CausalTeacher(given.llm, dtype=given.dtype, device=device, gguf_file=given.gguf_file)
    writer = Writer(llm, Model.load(given.guide, device=device))
    tokenizer = writer.hmm.tokenizer
    sets = keyword_sets()[: given.prompts]
    done = {(line["prompt"], line["method"]) for line in read_lines(given.out)}
    for first in range(0, len(sets), TOGETHER):
        some = sets[first : first + TOGETHER]
        numbers = range(first, first + len(some))
        methods = [m for m in METHODS if any((number, m) not in done for number in numbers)]
        if not methods:
            continue
        asked = [CHAT.format(REQUEST.format(", ".join(words))) for words in some]
        prompts = [tokenizer.encode(text) for text in asked]
        began = time.perf_counter()
        looks = [writer.hmm.look_ahead(contains(*words), length=BUDGET) for words in some]
        _wait(device)
        facts = {"prepare_s": time.perf_counter() - began}
        facts |= {"bytes": sum(table.nbytes for look in looks for table in look.tables)}
        for method in methods:
            strength = {"guided": 1.0, "mask": 0.0}.get(method)
            guide = None if strength is None else Guide(looks, strength=strength)
            began = time.perf_counter()
            rows = writer.go_on(prompts, guide, length=BUDGET, count=given.count, seed=first)
            _wait(device)
            facts["write_s"] = time.perf_counter() - began
            lines = []
            for number, words in enumerate(some):
                texts = rows[number * given.count : (number + 1) * given.count]
                met = [len(t) < BUDGET and looks[number].automaton.accepts(t) for t in texts]
                scores = score(llm, prompts[number], texts)
                lines.append({
                    "experiment": "guiding", "prompt": first + number, "keywords": words,
                    "method": method, "texts": [tokenizer.decode(text) for text in texts],
                    "tokens": [len(text) + 1 for text in texts], "met": met, "log_probs": scores,
                    "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
                    "states": writer.hmm.hmm.num_states, "commit": given.commit, **facts,
                })  # fmt: skip
            add_lines(given.out, lines)
            share = np.mean([line["met"] for line in lines])
            print(
                f"prompts {first} to {numbers[-1]}, {method}: {share:.1%} met, "
                f"{facts['prepare_s']:.1f} s to look ahead, {facts['write_s']:.1f} s to write",
                flush=True,
            )
    return 0


def score(llm: Any, prompt: Sequence[int], texts: Sequence[Sequence[int]]) -> list[float]:
    """log p of each text after a prompt, its end included, by the language model alone."""
    import torch

    end = llm.tokenizer.eos_id
    rows = [[llm.first_id, *prompt, *text, end] for text in texts]
    width, size = max(map(len, rows)), len(prompt)
    ids = torch.tensor([[*row, *[end] * (width - len(row))] for row in rows], device=llm.device)
    with torch.no_grad():  # what pads comes after a text, which does not see it
        logits = llm.model(input_ids=ids).logits[:, size:-1, : llm.tokenizer.vocab_size]
    log_probs = torch.log_softmax(logits.float(), 2)
    found = log_probs.gather(2, ids[:, size + 1 :, None])[:, :, 0]
    lengths = torch.tensor([len(text) + 1 for text in texts], device=llm.device)
    is_there = torch.arange(found.shape[1], device=llm.device) < lengths[:, None]
    return torch.where(is_there, found.double(), 0.0).sum(1).tolist()


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


class Difference:
    """The mean of paired differences, with a bootstrap interval of 95%."""

    def __init__(self, ours: Sequence[float], theirs: Sequence[float]) -> None:
        differences = np.subtract(ours, theirs)
        self.number = len(differences)
        if self.number:
            draw = np.random.default_rng(0).integers(self.number, size=(RESAMPLED, self.number))
            means = differences[draw].mean(1)
            self.mean = float(differences.mean())
            self.low, self.high = np.quantile(means, [0.025, 0.975]).tolist()

    def __str__(self) -> str:
        if not self.number:
            return "no prompt to compare"
        told = f"{self.mean:+.1f} nats ({self.low:+.1f} to {self.high:+.1f}, {self.number} prompts)"
        return f"{told}: {'better' if self.low > 0 else 'not shown to be better'}"


Lines = dict[str, dict[int, Mapping[str, Any]]]


def compare(lines: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What is claimed, and what the texts say of it."""
    held: Lines = {method: {} for method in METHODS}
    for line in lines:
        held[line["method"]][line["prompt"]] = line
    told = {}
    for method, mine in held.items():
        texts = [met for line in mine.values() for met in line["met"]]
        some = sum(any(line["met"]) for line in mine.values())
        share = f"{sum(texts):,} of {len(texts):,} texts, on {some} of {len(mine)} prompts"
        told[f"{method}: meets the constraint"] = share
    guided, mask, rejection = (held[method] for method in METHODS)
    pairs = [number for number in guided if number in mask]
    firsts = [[of[number]["log_probs"][0] for number in pairs] for of in (guided, mask)]
    told["one text each, guided against mask"] = str(Difference(*firsts))
    bests = [[max(of[number]["log_probs"]) for number in pairs] for of in (guided, mask)]
    told["the best of 16, guided against mask"] = str(Difference(*bests))
    there = [number for number in guided if number in rejection and any(rejection[number]["met"])]
    kept = [_best_met(rejection[number]) for number in there]
    best = [max(guided[number]["log_probs"]) for number in there]
    one = [guided[number]["log_probs"][0] for number in there]
    told["the best of 16, guided against rejection"] = str(Difference(best, kept))
    told["one guided text against the best of 16 of rejection"] = str(Difference(one, kept))
    return told


def _best_met(line: Mapping[str, Any]) -> float:
    return max(s for s, met in zip(line["log_probs"], line["met"], strict=True) if met)


def page(lines: Sequence[Mapping[str, Any]]) -> str:
    """The comparison, and texts as they came."""
    if not lines:
        raise SystemExit("There are no lines; run it first.")
    about = lines[0]
    parts = [
        "# Guided texts",
        "Made by `python -m experiments.guiding page` of "
        "[lines](../experiments/results/guiding.jsonl). A language model is asked to "
        f'"{REQUEST.format("rain, park, ...")}", in at most {BUDGET} tokens, '
        f"{len(about['texts'])} times for each prompt and method. The guide has "
        f"{about['states']:,} states; {about['device']}, commit {about['commit']}. "
        "Log-likelihoods are those of the language model alone.",
        "| | |\n|---|---|",
        *(f"| {claim} | {told} |" for claim, told in compare(lines).items()),
        "",
    ]
    numbers = sorted({line["prompt"] for line in lines})[:: max(1, len(TOPICS) * 5 // SHOWN)]
    for number in numbers[:SHOWN]:
        mine = {line["method"]: line for line in lines if line["prompt"] == number}
        parts.append(f"\n## {', '.join(mine['guided']['keywords'])}")
        parts += [f"- *{method}* {_first(line)}" for method, line in mine.items()]
    return "\n".join(parts) + "\n"


def _first(line: Mapping[str, Any]) -> str:
    """The first text, as it came; of rejection the first that is kept."""
    places = [n for n, met in enumerate(line["met"]) if met]
    if not places:
        return f"(none of {len(line['met'])} meets it)"
    text = line["texts"][places[0]].strip().replace("\n", " / ")
    return f"({line['log_probs'][places[0]]:.1f}): {text}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    calls = parser.add_subparsers(dest="call", required=True)
    made = calls.add_parser("prompts", help="what the guide's text begins with")
    made.add_argument("--number", type=int, default=20_000)
    made.add_argument("--out", type=Path, required=True)
    tried = calls.add_parser("run", help="write and score the texts")
    tried.add_argument("--llm", required=True, help="the language model's folder")
    tried.add_argument("--gguf-file", help="a GGUF file in it")
    tried.add_argument("--dtype", default="float32")
    tried.add_argument("--guide", type=Path, required=True, help="the HMM's folder")
    tried.add_argument("--prompts", type=int, default=100, help="how many")
    tried.add_argument("--count", type=int, default=NUMBER, help="texts of each")
    tried.add_argument("--commit", required=True, help="what the code is")
    tried.add_argument("--out", type=Path, default=RESULTS)
    shown = calls.add_parser("page", help="write the page")
    shown.add_argument("--lines", type=Path, default=RESULTS)
    shown.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args(words)
    if given.call == "prompts":
        write_prompts(given.number, given.out)
    elif given.call == "run":
        return run(given)
    else:
        given.out.write_text(page(read_lines(given.lines)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
