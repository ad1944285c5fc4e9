"""Texts with keywords: what is asked, how texts are scored, and what is said of them."""

import json
from pathlib import Path

import pytest
import torch

from experiments import guiding
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.hmm import HMM
from hmmlm.model import Model
from hmmlm.support import Support
from hmmlm.transitions import Dense


def line(prompt: int, method: str, log_probs: list[float], met: list[bool]) -> dict:
    texts = [f"text {number}" for number in range(len(met))]
    about = {"keywords": ["a", "b"], "states": 7, "device": "cpu", "commit": "x"}
    return {
        "prompt": prompt,
        "method": method,
        "texts": texts,
        "met": met,
        "log_probs": log_probs,
    } | about


def test_a_hundred_sets_of_which_no_guide_was_told(tmp_path: Path) -> None:
    sets = guiding.keyword_sets()
    assert len({frozenset(words) for words in sets}) > 90 and len(sets) == 100
    assert all(len(set(words)) == 5 for words in sets)
    assert guiding.main(["prompts", "--number", "500", "--out", str(tmp_path / "prompts")]) == 0
    lines = (tmp_path / "prompts").read_text().splitlines()
    assert len(lines) == 500 and all(one.endswith("<|im_start|>assistant\\n") for one in lines)
    told = {frozenset(one.partition("words: ")[2].partition(".")[0].split(", ")) for one in lines}
    assert told.isdisjoint(map(frozenset, sets)) and {len(words) for words in told} <= {4, 5}


def test_what_is_said_of_texts() -> None:
    lines = []
    for number in range(20):
        lines.append(line(number, "guided", [-20.0 + number % 3, -30.0], [True, True]))
        lines.append(line(number, "mask", [-25.0, -40.0], [True, True]))
        lines.append(line(number, "rejection", [-5.0, -26.0], [False, number < 8]))
    told = guiding.compare(lines)
    assert told["guided: meets the constraint"] == "40 of 40 texts, on 20 of 20 prompts"
    assert told["rejection: meets the constraint"] == "8 of 40 texts, on 8 of 20 prompts"
    better = told["one text each, guided against mask"]
    assert better.startswith("+6.0 nats (+5.") and better.endswith("20 prompts): better")
    for claim in ("the best of 16, guided against", "one guided text against the best of 16 of"):
        assert told[f"{claim} rejection"].startswith("+6.9 nats")  # of the one that it keeps
        assert told[f"{claim} rejection"].endswith("8 prompts): better")
    for one in lines:
        one["log_probs"] = [-90.0, -90.0] if one["method"] == "guided" else one["log_probs"]
    worse = guiding.compare(lines)
    assert worse["one text each, guided against mask"].endswith("not shown to be better")
    page = guiding.page(lines)
    assert "## a, b" in page and "- *guided* (-90.0): text 0" in page
    with pytest.raises(SystemExit, match="no lines; run it first"):
        guiding.page([])


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A tiny language model, and an HMM, of the words of one topic."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("guiding")
    words = Tokenizer.words([f"{guiding.TOPICS['weather']} the a is of and in . user words"])
    size, torch_seed = words.vocab_size, torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, bos_token_id=0, eos_token_id=words.eos_id,
        initializer_range=0.5,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "llm")
    (folder / "llm/tokenizer.json").write_text(words.as_json())
    tables = [torch.randn(shape, generator=torch_seed) for shape in ((4,), (4, 4), (size, 4))]
    hmm = HMM(
        tables[0].log_softmax(0),
        Dense(tables[1].log_softmax(1)),
        tables[2].log_softmax(0),
        Support.dense(size, 4),
    )
    Model(hmm, words).save(folder / "guide")
    return folder


def test_texts_are_written_and_scored(place: Path, tmp_path: Path) -> None:
    from hmmlm.distill.causal import CausalTeacher

    words = ["run", "--llm", str(place / "llm"), "--guide", str(place / "guide"), "--commit=x"]
    words += ["--prompts=2", "--count=3", "--out", str(tmp_path / "lines")]
    assert guiding.main(words) == 0
    lines = [json.loads(one) for one in (tmp_path / "lines").read_text().splitlines()]
    assert [one["method"] for one in lines] == [m for m in guiding.METHODS for _ in range(2)]
    llm = CausalTeacher(place / "llm")
    for one in lines:
        if one["method"] != "rejection":
            assert one["met"] == [True] * 3
            for text in one["texts"]:
                assert set(one["keywords"]) <= set(text.split())
        assert len(one["texts"]) == 3 and max(one["tokens"]) <= guiding.BUDGET + 1
        asked = guiding.CHAT.format(guiding.REQUEST.format(", ".join(one["keywords"])))
        prompt = llm.tokenizer.encode(asked)
        for text, told in zip(one["texts"], one["log_probs"], strict=True):
            ids = torch.tensor(
                [[llm.first_id, *prompt, *llm.tokenizer.encode(text), llm.tokenizer.eos_id]]
            )
            with torch.no_grad():
                log_probs = llm.model(input_ids=ids).logits[0].double().log_softmax(1)
            own = sum(log_probs[n - 1, ids[0, n]] for n in range(len(prompt) + 1, ids.shape[1]))
            assert told == pytest.approx(float(own), rel=1e-4)
    assert (
        guiding.main(["page", "--lines", str(tmp_path / "lines"), "--out", str(tmp_path / "p.md")])
        == 0
    )
    assert lines[0]["texts"][0].strip() in (tmp_path / "p.md").read_text()
