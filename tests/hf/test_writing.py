"""A language model that writes with a guide: prompts side by side, counts, and what is refused."""

import pytest
import torch

from generate.random_constraints import make_model
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.generate import Guide, contains, words
from hmmlm.model import Model

transformers = pytest.importorskip("transformers")

from hmmlm.distill.causal import CausalTeacher  # noqa: E402
from hmmlm.hf.writing import Writer, check_same  # noqa: E402

TOKENIZER, HMM = make_model()
LENGTH = 9


@pytest.fixture(scope="module")
def writer(tmp_path_factory) -> Writer:
    folder = tmp_path_factory.mktemp("writer")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=TOKENIZER.vocab_size, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, bos_token_id=0,
        eos_token_id=TOKENIZER.eos_id, initializer_range=0.5,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(TOKENIZER.as_json())
    return Writer(CausalTeacher(folder), Model(HMM, TOKENIZER))


def test_prompts_of_other_lengths_beside_it_do_not_matter(writer) -> None:
    wanted = [contains("rain"), words(3, 5), contains("park", "sun")]
    looks = [writer.hmm.look_ahead(one, length=LENGTH) for one in wanted]
    prompts = [TOKENIZER.encode(text) for text in ("the sun was bright and", "", "a park")]
    together = writer.go_on(prompts, Guide(looks), temperature=0.0)
    for prompt, look, text in zip(prompts, looks, together, strict=True):
        assert writer.go_on([prompt], Guide([look]), temperature=0.0) == [text]
        assert look.automaton.accepts(text) and len(text) < LENGTH
    plain = writer.go_on(prompts, None, length=6, temperature=0.0)
    assert plain == [writer.go_on([one], None, length=6, temperature=0.0)[0] for one in prompts]
    assert plain != [text[:6] for text in together]


def test_texts_are_counted_by_prompt_and_seeds_repeat(writer) -> None:
    looks = [writer.hmm.look_ahead(one, length=LENGTH) for one in (contains("rain"), words(2, 2))]
    prompts = [TOKENIZER.encode("the"), TOKENIZER.encode("a park was")]
    how = {"count": 5, "seed": 3}
    rows = writer.go_on(prompts, Guide(looks), **how)
    assert len(rows) == 10 and rows == writer.go_on(prompts, Guide(looks), **how)
    assert all(looks[place // 5].automaton.accepts(row) for place, row in enumerate(rows))
    assert rows != writer.go_on(prompts, Guide(looks), count=5, seed=4)
    same = writer.go_on(prompts, Guide(looks), count=2, temperature=0.0)
    assert same[0] == same[1] and same[2] == same[3] and len(same) == 4


def test_what_is_refused(writer) -> None:
    with pytest.raises(InputError, match=r"Without a guide length must be given\."):
        writer.go_on([[]], None)
    check_same(TOKENIZER, TOKENIZER)
    told = TOKENIZER.as_json()
    longer = told.replace('"was": 13', '"was": 13, "zebra": 14')
    for text, eos, message in (
        (
            longer,
            "<eos>",
            "has 14 tokens and ends texts with 1, the HMM 15 and 1; use an HMM of te",
        ),
        (told, "the", "has 14 tokens and ends texts with 1, the HMM 14 and 12; use an HMM of text"),
        (told.replace('"sun"', '"son"'), "<eos>", "Token 11 is 'sun' to the .* and 'son' to the H"),
    ):
        with pytest.raises(InputError, match=message):
            check_same(TOKENIZER, Tokenizer.from_json(text, source="another", eos=eos))
