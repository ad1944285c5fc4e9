"""Words that move to the block in which a model expects them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from hmmlm import inference
from hmmlm.data.token_array import TokenArray
from hmmlm.errors import InputError
from hmmlm.hmm import HMM, emission_table
from hmmlm.support import Support
from hmmlm.train import moving
from hmmlm.train.moving import Moved, move_words
from hmmlm.transitions import Dense
from models import make_hmm

EOS = 0
BLOCKS, OTHERS = [0, 1, 1, 1, 2, 2, 2, 3], [0, 1, 1, 2, 2, 2, 1, 3]
"""Of `<eos>`, alone, of words in two blocks, of a word that is alone too; of those that wrote."""


def drawn_text(hmm: HMM, lines: int) -> TokenArray:
    """Lines of an HMM, each to its `<eos>`."""
    generator = torch.Generator().manual_seed(0)
    drawn = inference.sample(hmm, length=30, num_samples=lines, stop_id=EOS, generator=generator)
    rows = [row[:size] for row, size in zip(drawn.tokens, drawn.lengths.tolist(), strict=True)]
    return TokenArray.from_ids(torch.cat(rows).numpy(), eos_id=EOS)


def of_others(states: int | list[int]) -> dict[str, object]:
    """What another HMM of the same transitions has, with two words in the other block."""
    support = Support.from_clusters(OTHERS, states)
    return {"support": support, "log_emit": make_hmm(support).log_emit}


def by_the_formula(hmm: HMM, text: TokenArray) -> Moved:
    """Place by place, from posteriors of the line with that token missing."""
    support = hmm.support
    blocks, words = support.num_blocks, support.vocab_size
    block_of = support.row_of_word.tolist()
    members = [[z for z in row if z >= 0] for row in support.rows.tolist()]
    reached, used = np.zeros((words, blocks)), np.zeros((words, hmm.num_states))
    starts = [*text.sentence_offsets().tolist(), len(text)]
    for start, stop in pairwise(starts):
        line = text[start:stop].tolist()
        for t, word in enumerate(line):
            gap = torch.tensor([[*line[:t], -1, *line[t + 1 :]]])
            context = inference.smooth(hmm, gap).missing_log_probs[0].exp().numpy()
            for m, states in enumerate(members):
                inside = context[states].sum()
                reached[word, m] += np.log(inside)
                used[word, states] += context[states] / inside
    counts = np.bincount(text[:], minlength=words)
    result, gains = np.array(block_of), np.zeros(words)
    alone = [block_of.count(m) == 1 for m in range(blocks)]
    for word in range(words):
        if alone[block_of[word]] or not counts[word]:
            continue
        scores = []
        for m, states in enumerate(members):
            total = sum(used[other, states] for other in range(words) if block_of[other] == m)
            total = total if block_of[word] == m else total + used[word, states]
            share = used[word, states]
            scores.append(reached[word, m] + (share * np.log(share / total)).sum())
        best = max((m for m in range(blocks) if not alone[m]), key=lambda m: scores[m])
        result[word], gains[word] = best, scores[best] - scores[block_of[word]]
    for m in set(range(blocks)) - {block_of[word] for word in range(words) if gains[word] == 0}:
        kept = max((w for w in range(words) if block_of[w] == m), key=lambda word: counts[word])
        result[kept], gains[kept] = m, 0
    return Moved(result, gains)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("states", [2, [1, 3, 2, 2]])
def test_scores_are_those_of_the_formula(states, dtype, monkeypatch):
    hmm = make_hmm(Support.from_clusters(BLOCKS, states))
    text = drawn_text(replace(hmm, **of_others(states)), 30)
    truth = by_the_formula(hmm, text)
    monkeypatch.setattr(moving, "READ", 64)  # a few lines, and a few words, at a time
    heard = []
    found = move_words(hmm.to(dtype=dtype), text, progress=heard.append)
    assert sum(heard) == len(text) and len(heard) > 3
    np.testing.assert_array_equal(found.block_of_word, truth.block_of_word)
    np.testing.assert_allclose(
        found.gains, truth.gains, rtol=0, atol=1e-9 if dtype.itemsize > 4 else 1e-3
    )
    assert (found.gains > 0).any() and not (found.gains > 0).all()


def test_a_word_in_the_wrong_block_finds_its_own():
    """Two kinds of words take turns; the model has word 4, of the first kind, in the second."""
    true = Support.from_clusters([0, 1, 1, 2, 1, 2], 1)
    table = torch.tensor([[0.0, 0.5, 0.5], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]]).double()
    emit = emission_table(torch.zeros(6, 1).double(), true)
    start = torch.tensor([0.0, 0.5, 0.5]).double().log()
    truth = HMM(start, Dense(table.log()), emit, true).validate()
    wrong = Support.from_clusters([0, 1, 1, 2, 2, 2], 1)
    model = replace(
        truth, support=wrong, log_emit=emission_table(torch.zeros(6, 1).double(), wrong)
    )
    found = move_words(model, drawn_text(truth, 200))
    assert found.block_of_word.tolist() == true.row_of_word.tolist()
    assert (found.gains > 0).tolist() == [False] * 4 + [True, False]


def test_a_block_that_all_would_leave_keeps_its_most_frequent_word():
    support = Support.from_clusters([0, 1, 1, 2, 2], 1)
    table = torch.tensor([[0.0, 0.01, 0.99], [0.2, 0.0, 0.8], [0.2, 0.0, 0.8]]).double()
    table[:, 1] += 1e-6
    table /= table.sum(1, keepdim=True)
    start = torch.tensor([0.0, 1e-6, 1 - 1e-6]).double().log()
    model = HMM(
        start, Dense(table.log()), emission_table(torch.zeros(5, 1).double(), support), support
    )
    text = TokenArray.from_ids([1, 2, 2, EOS, 3, 2, 4, 1, 3, EOS, 2, 4, EOS], eos_id=EOS)
    found = move_words(model, text)
    assert found.block_of_word.tolist() == [0, 2, 1, 2, 2]
    assert found.gains[2] == 0 < found.gains[1]


def left_model(blocks: list[int]) -> HMM:
    """A model that expects almost nothing in block 1, whichever words are there."""
    support = Support.from_clusters(blocks, 1)
    table = torch.tensor([[0.0, 0.01, 0.99], [0.2, 0.0, 0.8], [0.2, 0.0, 0.8]]).double()
    table[:, 1] += 1e-6
    start = torch.tensor([0.0, 1e-6, 1 - 1e-6]).double().log()
    emit = emission_table(torch.zeros(len(blocks), 1).double(), support)
    return HMM(start, Dense((table / table.sum(1, keepdim=True)).log()), emit, support)


def test_a_word_that_never_occurs_does_not_hold_a_block():
    """A paths file has no such word, so that the block would be gone."""
    text = TokenArray.from_ids([1, 2, 3, EOS, 1, 4, EOS], eos_id=EOS)
    found = move_words(left_model([0, 1, 2, 2, 2, 1]), text)
    assert found.block_of_word.tolist() == [0, 1, 2, 2, 2, 1]
    assert (found.gains == 0).all()


def test_the_end_of_lines_neither_moves_nor_holds_a_block():
    """Paths files are without it."""
    text = TokenArray.from_ids([1, 2, 3, EOS, 1, 4, EOS], eos_id=EOS)
    model = left_model([1, 1, 2, 2, 2, 0])
    found = move_words(model, text)
    assert found.block_of_word.tolist() == [1, 1, 2, 2, 2, 0]
    assert found.gains[EOS] == 0


def test_no_text_is_refused():
    with pytest.raises(InputError, match="There are no tokens to see words in"):
        move_words(make_hmm(Support.from_clusters(BLOCKS, 2)), TokenArray.from_ids([], eos_id=EOS))


def test_words_times_states_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(moving, "free_memory", lambda device: 8 * 8 * 8 - 1)
    text = TokenArray.from_ids([1, EOS], eos_id=EOS)
    with pytest.raises(InputError, match="8 words x 8 states need 512 B and 511 B are free"):
        move_words(make_hmm(Support.from_clusters(BLOCKS, 2)), text)


def test_tables_with_gradients_will_do():
    hmm = make_hmm(Support.from_clusters(BLOCKS, 2))
    text = drawn_text(hmm, 5)
    truth = move_words(hmm, text)
    found = move_words(replace(hmm, log_init=hmm.log_init.clone().requires_grad_()), text)
    np.testing.assert_array_equal(found.gains, truth.gains)


def test_lines_with_wide_tiles_are_few_at_a_time(monkeypatch):
    """Five lines of one token would fit, but not the tiles of their steps."""
    sizes = []

    def listen(hmm, ids, **how):
        sizes.append(len(ids))
        return inference.context_log_probs(hmm, ids, **how)

    monkeypatch.setattr(moving, "context_log_probs", listen)
    monkeypatch.setattr(moving, "READ", 64)
    text = TokenArray.from_ids([EOS] * 6, eos_id=EOS)
    move_words(make_hmm(Support.from_clusters(BLOCKS, [1, 3, 2, 4])), text)
    move_words(make_hmm(Support.from_clusters(BLOCKS, [1, 2, 1, 6])), text)
    assert sizes == [4, 2, *[1] * 6]


def test_a_long_line_is_read_in_pieces(monkeypatch):
    hmm = make_hmm(Support.from_clusters(BLOCKS, 2))
    text = drawn_text(replace(hmm, **of_others(2)), 30)
    whole = move_words(hmm, text)
    monkeypatch.setattr(moving, "LONGEST", 2)
    heard = []
    cut = move_words(hmm, text, progress=heard.append)
    assert sum(heard) == len(text)
    assert not np.allclose(cut.gains, whole.gains)


def test_models_without_blocks_are_refused():
    text = TokenArray.from_ids([1, EOS], eos_id=EOS)
    for kind in ("dense", "uniform", "ragged"):
        with pytest.raises(InputError, match="words of this model are not in blocks"):
            move_words(make_hmm(kind), text)
