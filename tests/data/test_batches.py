import hashlib
import json
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmmlm.data import batches as batches_module
from hmmlm.data.batches import Packed, Windows
from hmmlm.data.shards import TokenArray
from hmmlm.data.streams import Streams
from hmmlm.errors import InputError

EOS = 1
KINDS = [Streams, Windows, Packed]


def array(num_tokens, *, eos_every=7):
    """Distinct ids but for <eos>, so that each token can be told from every other."""
    ids = np.arange(num_tokens) + 10
    ids[eos_every - 1 :: eos_every] = EOS
    return TokenArray.from_ids(ids, eos_id=EOS)


def rows(batch):
    """The tokens of each row, up to its length."""
    return [row[:n].tolist() for row, n in zip(batch.tokens, batch.lengths.tolist(), strict=True)]


def pieces(batch):
    """The tokens of each row cut at its restarts."""
    found = []
    for row, flags in zip(rows(batch), batch.restart.tolist(), strict=True):
        for token, restart in zip(row, flags, strict=False):
            if restart:
                found.append([])
            found[-1].append(token)
    return found


def same(left, right):
    return left.num_tokens == right.num_tokens and all(
        torch.equal(a, b) for a, b in zip(left[:3], right[:3], strict=True)
    )


sizes = {"n": st.integers(1, 120), "b": st.integers(1, 9), "t": st.integers(1, 13)}


@pytest.mark.parametrize("kind", KINDS)
@given(**sizes)
def test_every_token_comes_once_an_epoch(kind, n, b, t):
    tokens = array(n)
    batches = kind(tokens, b, t)
    for _ in range(2):
        seen = []
        count = 0
        for batch in batches:
            count += 1
            assert batch.tokens.dtype == batch.lengths.dtype == torch.int64
            assert batch.restart.dtype == torch.bool
            assert batch.tokens.shape == batch.restart.shape
            assert batch.tokens.shape[0] == len(batch.lengths) <= b
            assert batch.tokens.shape[1] <= t
            assert batch.lengths.min() >= 1 and batch.lengths.max() <= batch.tokens.shape[1]
            assert batch.num_tokens == int(batch.lengths.sum())
            beyond = torch.arange(batch.tokens.shape[1]) >= batch.lengths[:, None]
            assert not batch.tokens[beyond].any() and not batch.restart[beyond].any()
            seen += [token for row in rows(batch) for token in row]
        assert count == batches.num_batches
        assert sorted(seen) == sorted(tokens[:].tolist())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(**sizes, steps=st.integers(0, 60))
def test_restored_position_gives_the_same_batches(kind, n, b, t, steps):
    def endless(batches):
        while True:
            yield from batches

    first = kind(array(n), b, t)
    stream = endless(first)
    for _ in range(steps):
        next(stream)
    saved = json.loads(json.dumps(first.position))
    second = kind(array(n), b, t)
    second.position = saved
    assert second.position == saved
    for _, ours, theirs in zip(range(20), endless(second), stream, strict=False):
        assert same(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_position_names_the_next_batch_and_the_end_of_an_epoch(kind):
    batches = kind(array(40), 2, 5)
    assert batches.position == {"epoch": 0, "batch": 0}
    for index, _ in enumerate(batches, 1):
        assert batches.position == {"epoch": 0, "batch": index}
    assert batches.position == {"epoch": 1, "batch": 0}
    batches.position = {"epoch": 3, "batch": batches.num_batches}
    assert list(batches) == []
    assert batches.position == {"epoch": 4, "batch": 0}


@pytest.mark.parametrize("kind", KINDS)
def test_impossible_positions_are_refused(kind):
    batches = kind(array(40), 2, 5)
    with pytest.raises(
        InputError,
        match=rf"^The position is batch 99 of epoch 0 but an epoch has {batches.num_batches} batch"
        r"es here; resume with the same text, batch size and length\.$",
    ):
        batches.position = {"epoch": 0, "batch": 99}
    for position in ({"epoch": -1, "batch": 0}, {"epoch": 0, "batch": -1}):
        with pytest.raises(InputError, match=r"^The position is batch"):
            batches.position = position


@pytest.mark.parametrize("kind", KINDS)
def test_impossible_sizes_are_refused(kind):
    with pytest.raises(InputError, match=r"^batch_size is 0 but must be at least 1\.$"):
        kind(array(9), 0, 5)
    with pytest.raises(InputError, match=r"^length is -1 but must be at least 1\.$"):
        kind(array(9), 2, -1)
    with pytest.raises(InputError, match=r"^There are no tokens to make batches of; give some te"):
        kind(TokenArray.from_ids([], eos_id=EOS), 2, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_text_shorter_than_a_batch_is_a_smaller_batch(kind):
    (batch,) = kind(array(3, eos_every=9), 8, 8)
    assert batch.num_tokens == 3


@given(**sizes)
def test_streams_go_on_from_batch_to_batch(n, b, t):
    streams = Streams(array(n), b, t)
    texts = [[] for _ in range(min(b, n))]
    for index, batch in enumerate(streams):
        expected = torch.zeros_like(batch.restart)
        expected[:, 0] = index == 0
        assert torch.equal(batch.restart, expected)
        for text, row in zip(texts, rows(batch), strict=False):
            text += row
    assert [token for text in texts for token in text] == array(n)[:].tolist()
    assert max(map(len, texts)) - min(map(len, texts)) <= 1


def test_streams_drop_rows_that_are_over():
    *_, last = Streams(array(3 * 4 + 1), 3, 4)
    assert rows(last) == [[14]]


@given(**sizes)
def test_windows_start_cold_every_length_tokens(n, b, t):
    windows = Windows(array(n), b, t, seed=2)
    text = array(n)[:].tolist()
    expected = [text[i : i + t] for i in range(0, n, t)]
    for _ in range(2):
        made = list(windows)
        assert sorted(row for batch in made for row in rows(batch)) == sorted(expected)
        assert all(len(batch.lengths) == b for batch in made[:-1])
        for batch in made:
            assert batch.restart[:, 0].all() and not batch.restart[:, 1:].any()
    still = Windows(array(n), b, t, shuffle=False)
    for _ in range(2):
        assert [row for batch in still for row in rows(batch)] == expected


def sentences(ids, length):
    found = [[]]
    for token in ids:
        if len(found[-1]) == length or (found[-1] and found[-1][-1] == EOS):
            found.append([])
        found[-1].append(token)
    return found


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 20))
def test_packed_rows_hold_whole_sentences(words, batch_size, length):
    ids, token = [], 10
    for count in words:
        ids += [*range(token, token + count), EOS]
        token += count
    packed = Packed(TokenArray.from_ids(ids, eos_id=EOS), batch_size, length, seed=3)
    found = [piece for batch in packed for piece in pieces(batch)]
    assert sorted(found) == sorted(sentences(ids, length))
    width = max(int(batch.lengths.max()) for batch in packed)
    assert all(batch.tokens.shape[1] == width for batch in packed)
    assert packed.fill == pytest.approx(len(ids) / (packed.num_rows * width))


def text(batches):
    return [row for batch in batches for row in rows(batch)]


@pytest.mark.parametrize("kind", [Packed, Windows])
def test_epochs_are_drawn_anew_each_and_from_their_seed(kind):
    tokens = array(700)
    batches = kind(tokens, 4, 20, seed=1)
    first, second = text(batches), text(batches)
    assert first != second
    again = kind(tokens, 4, 20, seed=1)
    assert (text(again), text(again)) == (first, second)
    assert text(kind(tokens, 4, 20, seed=2)) != first
    still = kind(tokens, 4, 20, seed=1, shuffle=False)
    assert text(still) == text(still)


def test_streams_stay_in_the_order_of_the_text():
    """What is carried from batch to batch would not go on in another."""
    streams = Streams(array(700), 4, 20)
    assert text(streams) == text(streams)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_see_the_same_order(kind):
    tokens = array(701)
    options = {} if kind is Streams else {"seed": 3}
    whole = kind(tokens, 4, 20, **options)
    parts = [kind(tokens, 4, 20, rank=rank, ranks=2, **options) for rank in range(2)]
    for _ in range(2):
        for batch, *shares in zip(whole, *parts, strict=True):
            shared = [row for share in shares if share.num_tokens for row in rows(share)]
            assert shared == rows(batch)


def test_packed_epochs_mix_sentences_of_one_length():
    packed = Packed(array(700), 4, 21, seed=1)
    rows_by_epoch = [{frozenset(row) for batch in packed for row in rows(batch)} for _ in range(2)]
    assert len(rows_by_epoch[0] & rows_by_epoch[1]) < len(rows_by_epoch[0]) / 4


def test_packed_rows_are_nearly_full():
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(3.0, 0.6, size=5000), 2, 90).astype(int)
    ids = np.concatenate([[*([5] * (n - 1)), EOS] for n in lengths])
    packed = Packed(TokenArray.from_ids(ids, eos_id=EOS), 16, 64)
    assert packed.fill > 0.97
    # One more sentence never fits: two rows are never both half empty.
    room = [64 - len(row) for batch in packed for row in rows(batch)]
    assert sum(space >= 32 for space in room) <= 1


@pytest.mark.parametrize("length", [700, 10**9, 2**63 - 1])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_no_longer_than_the_text(kind, length):
    (batch,) = kind(array(700), 4, length)
    assert batch.tokens.shape[1] <= 700 and batch.num_tokens == 700


def test_long_rows_of_a_long_text_cost_no_more_than_its_pieces():
    lengths = np.random.default_rng(0).integers(2, 90, 30_000)
    ids = np.full(int(lengths.sum()), 5)
    ids[np.cumsum(lengths) - 1] = EOS
    tokens = TokenArray.from_ids(ids, eos_id=EOS)
    began = time.process_time()
    for length in (4_000, 100_000, 10**8):
        packed = Packed(tokens, 16, length)
        assert packed.num_rows == -(-len(ids) // length)
    assert time.process_time() - began < 5


def test_packed_without_a_last_eos_keeps_the_rest():
    packed = Packed(TokenArray.from_ids([5, EOS, 6, 7], eos_id=EOS), 2, 4, shuffle=False)
    (batch,) = packed
    assert sorted(pieces(batch)) == [[5, EOS], [6, 7]]


def test_packed_rows_are_not_in_the_order_of_packing():
    ids = [token for n in range(1, 60) for token in [*([5] * (n % 20)), EOS]]
    packed = Packed(TokenArray.from_ids(ids, eos_id=EOS), 1, 20)
    longest = [max(map(len, pieces(batch))) for batch in packed]
    assert longest != sorted(longest, reverse=True)


@pytest.mark.parametrize(
    ("shuffle", "digest"),
    [
        (True, "fe61c07acf78fc5a4c5e0169e491562993f4e28f2a9b4db683546b95ce1745af"),
        (False, "868b3da91f792240b35e385aab0fdefdf9264fc8d59b7c294b7941f5839a99e4"),
    ],
)
def test_packed_draws_what_it_always_drew(shuffle, digest):
    random = np.random.default_rng(0)
    ids = random.integers(2, 500, 30_000)
    ids[random.choice(30_000, 1_500, replace=False)] = EOS
    packed = Packed(TokenArray.from_ids(ids, eos_id=EOS), 7, 32, seed=5, shuffle=shuffle)
    assert (packed.num_batches, packed.num_rows) == (134, 938)
    found = hashlib.sha256()
    for batch in [*packed, *packed]:
        for part in batch[:3]:
            found.update(part.numpy().tobytes())
    assert found.hexdigest() == digest


@pytest.fixture
def short_sections(monkeypatch):
    """Sections of 8 pieces, found by reading 11 tokens at a time."""
    monkeypatch.setattr(batches_module, "_SECTION", 8)
    monkeypatch.setattr(batches_module, "_CHUNK", 11)


@pytest.mark.parametrize("eos_every", [1, 4, 7, 60, 1000])
@pytest.mark.parametrize("length", [1, 3, 5, 13])
@pytest.mark.parametrize("shuffle", [True, False])
def test_sections_hold_every_piece_once(short_sections, eos_every, length, shuffle):
    tokens = array(333, eos_every=eos_every)
    packed = Packed(tokens, 3, length, seed=2, shuffle=shuffle)
    expected = sorted(sentences(tokens[:].tolist(), length))
    num_sections = -(-len(expected) // 8)
    assert num_sections > 1
    for _ in range(2):
        made = list(packed)
        assert sorted(piece for batch in made for piece in pieces(batch)) == expected
        assert len(made) == packed.num_batches
        assert sum(len(batch.lengths) for batch in made) == packed.num_rows
        assert sum(len(batch.lengths) < 3 for batch in made) <= num_sections
        assert len(packed._starts) <= 8


@pytest.mark.parametrize("kind", [Packed, Windows])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_position_among_sections_gives_the_same_batches(short_sections, kind, shuffle):
    first, number = kind(array(600), 3, 9, seed=4, shuffle=shuffle), 0
    batches = [batch for _ in range(2) for batch in first]
    for number in range(2 * first.num_batches):
        again = kind(array(600), 3, 9, seed=4, shuffle=shuffle)
        epoch, batch = divmod(number, first.num_batches)
        again.position = {"epoch": epoch, "batch": batch}
        assert same(next(iter(again)), batches[number])


@pytest.mark.parametrize("kind", [Packed, Windows])
def test_sections_come_in_another_order_every_epoch(short_sections, kind):
    def order(batches):
        return [min(x for x in batch.tokens.flatten().tolist() if x > EOS) for batch in batches]

    batches = kind(array(600), 8, 7, seed=1)
    first, second = order(batches), order(batches)
    assert first != second and sorted(first) != first and sorted(first) == sorted(second)
    still = kind(array(600), 8, 7, seed=1, shuffle=False)
    assert order(still) == order(still) == sorted(order(still))


def test_windows_of_a_long_text_are_those_of_a_short_one(short_sections):
    """In sections of 8, of which the last batch may be short, and every one is drawn apart."""
    tokens, drawn = array(8 * 7 * 10 + 3), set()
    windows = Windows(tokens, 3, 7, seed=2)
    made = [row for batch in windows for row in rows(batch)]
    assert sorted(made) == sorted(tokens[i : i + 7].tolist() for i in range(0, len(tokens), 7))
    assert windows.num_batches == 10 * 3 + 1
    for start in range(0, len(made), 8):
        firsts = [row[0] for row in made[start : start + 8]]
        if max(firsts) - min(firsts) == 7 * 7:  # not one that the short section shifts
            drawn.add(tuple(first - min(firsts) for first in firsts))
    assert len(drawn) > 3


def test_sections_are_drawn_apart(short_sections):
    # All sentences are of one length, so only the draw says which are neighbours.
    packed = Packed(array(8 * 7 * 10), 100, 14, seed=1)
    drawn = set()
    for batch in packed:
        firsts = [piece[0] for piece in pieces(batch)]
        drawn.add(tuple((first - min(firsts)) // 7 for first in firsts))
    assert len(drawn) == packed.num_batches == 10


@pytest.mark.parametrize(("n", "b", "t"), [(1, 1, 1), (5, 8, 3), (61, 4, 5), (700, 3, 20)])
def test_streams_that_vary_are_the_same_text_cut_elsewhere(n, b, t):
    tokens = array(n)
    batches = Streams(tokens, b, t, vary=True, seed=3)
    whole = [[] for _ in range(min(b, n))]
    for batch in Streams(tokens, b, t):
        for row, (words, length) in zip(
            whole, zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True), strict=False
        ):
            row += words[:length]
    epochs = [list(batches) for _ in range(3)]
    for epoch in epochs:
        assert len(epoch) == batches.num_batches
        rows = [[] for _ in whole]
        for place, batch in enumerate(epoch):
            assert bool(batch.restart[:, 0].all()) == (place == 0)
            for row, words, length in zip(rows, batch.tokens, batch.lengths, strict=False):
                row += words[:length].tolist()
        assert rows == whole
    widths = [[batch.tokens.shape[1] for batch in epoch] for epoch in epochs]
    assert n < 100 or widths[0] != widths[1] != widths[2]
    assert widths == [
        [batch.tokens.shape[1] for batch in epoch]
        for again in [Streams(tokens, b, t, vary=True, seed=3)]
        for epoch in [list(again) for _ in range(3)]
    ]


def test_streams_that_vary_are_around_their_length_and_go_on_where_they_were():
    batches = Streams(array(40_000), 2, 70, vary=True)
    widths = np.array([batch.tokens.shape[1] for batch in batches])
    assert abs(widths.mean() - 0.975 * 70) < 1 and 4 < widths[:-1].std() < 12
    assert 0.01 < (widths < 50).mean() < 0.1
    batches.position = {"epoch": 0, "batch": 3}
    rest = list(batches)
    again = Streams(array(40_000), 2, 70, vary=True)
    assert all(same(x, y) for x, y in zip(rest, list(again)[3:], strict=True))


def of_rows(batches, labels=False):
    """All tokens of the rows of streams, or the labels beside them, one row after the other."""
    found = []
    for batch in batches:
        values = batch.labels if labels else batch.tokens
        for place, (row, length) in enumerate(zip(values, batch.lengths.tolist(), strict=True)):
            if place == len(found):
                found.append([])
            found[place] += row[:length].tolist()
    return [value for row in found for value in row]


@pytest.mark.parametrize("vary", [False, True])
@given(**sizes)
def test_streams_that_are_shuffled_have_the_same_sentences_in_another_order(vary, n, b, t):
    n *= 7  # whole sentences
    tokens, places = array(n), TokenArray.from_ids(np.arange(n) + 1, eos_id=0)
    batches = Streams(tokens, b, t, shuffle=True, vary=vary, seed=3, labels=places)
    orders = []
    for _ in range(3):
        epoch = list(batches)
        text, marks = of_rows(epoch), of_rows(epoch, labels=True)
        assert text == [tokens[place] for place in marks]
        sentences = [tuple(marks[start : start + 7]) for start in range(0, n, 7)]
        assert sorted(sentences) == [tuple(range(start, start + 7)) for start in range(0, n, 7)]
        orders.append(marks)
    assert n < 70 or (orders[0] != orders[1] != orders[2] and orders[0] != sorted(orders[0]))
    again = Streams(tokens, b, t, shuffle=True, vary=vary, seed=3, labels=places)
    again.position = {"epoch": 2, "batch": 1}
    assert all(same(x, y) for x, y in zip(list(again), epoch[1:], strict=True))


@pytest.mark.parametrize("kind", [Windows, Packed])
@pytest.mark.parametrize("shuffle", [True, False])
@given(first=st.integers(0, 130), **sizes)
def test_what_is_to_come_first_does_so_in_the_first_epoch(kind, shuffle, first, n, b, t):
    """All of its whole windows or sentences, before anything else; and every token still once."""
    tokens = array(n)
    labels = TokenArray.from_ids(np.arange(n) + 1, eos_id=0)
    batches = kind(tokens, b, t, seed=3, shuffle=shuffle, first=first, labels=labels)
    whole = min(first // t * t, n) if kind is Windows else min(first, n) // 7 * 7
    for epoch in range(2):
        seen = []
        for batch in batches:
            if epoch == 0:
                inside = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
                seen += batch.labels[inside].tolist()
            else:
                assert batch.labels is None or first == 0
        if epoch == 0:
            assert sorted(seen) == list(range(n))
            assert set(seen[:whole]) == set(range(whole))


@pytest.mark.parametrize("kind", [Windows, Packed])
def test_a_position_among_what_comes_first_gives_the_same_batches(kind, short_sections):
    for steps in range(12):
        one, two = (kind(array(120), 3, 5, seed=1, first=40) for _ in range(2))
        rest = [batch for _, batch in zip(range(steps), one, strict=False)]
        two.position = one.position
        assert len(rest) <= steps
        for left, right in zip(one, two, strict=True):
            assert same(left, right)
