"""Small neural models in float64, and what they compute, one word at a time."""

import itertools
from typing import Any

import torch
from torch import Tensor

from hmmlm.baselines import awd_lstm, decoder, feed_forward, hmm_rnn, lstm
from hmmlm.baselines.network import Network

WORDS, START = 5, 2

SETTINGS: dict[str, Any] = {
    "feed_forward": feed_forward.Settings(width=4, order=4),
    "feed_forward, untied": feed_forward.Settings(width=4, order=2, tied=False, bias=True),
    "lstm": lstm.Settings(width=4),
    "lstm, untied": lstm.Settings(width=3, layers=1, tied=False, bias=True),
    "awd_lstm": awd_lstm.Settings(embedding=3, width=4),
    "decoder": decoder.Settings(width=4, depth=2, heads=2, context=3),
    "hmm_rnn": hmm_rnn.Settings(states=3, embedding=2, width=4, scale=1.5),
}


def make(name: str, *, dtype: torch.dtype = torch.float64) -> Network:
    generator = torch.Generator().manual_seed(1)
    model = SETTINGS[name].build(WORDS, start_id=START, generator=generator, dtype=dtype)
    with torch.no_grad():  # words far apart, so that nothing is right by chance
        model.words.mul_(20)
    return model


def text(rows: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(WORDS, (rows, length), generator=generator)


def defined_log_prob(model: Any, past: list[int], word: int) -> float:
    """log p(word | past) after a cold start."""
    with torch.no_grad():
        if isinstance(model, feed_forward.FeedForward):
            return _feed_forward(model, past)[word].item()
        if isinstance(model, lstm.LstmLM):
            return _lstm(model, past)[word].item()
        if isinstance(model, decoder.DecoderLM):
            return _decoder(model, past)[word].item()
        joint = [_paths(model, [*past, word]), _paths(model, past)]
        return (joint[0] - joint[1]).item()


def _softmax(model: Any, features: Tensor) -> Tensor:
    weight = model.words if model.output is None else model.output
    logits = weight @ features + (0 if model.bias is None else model.bias)
    return logits - logits.exp().sum().log()


def _feed_forward(model: Any, past: list[int]) -> Tensor:
    words = ([START] * model.past + past)[-model.past :]
    features = torch.cat([model.words[word] for word in words])
    features = (model.first @ features + model.first_bias).clamp(min=0)
    return _softmax(model, (model.second @ features + model.second_bias).clamp(min=0))


def _cell(layer: Any, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    gates = layer.from_input @ x + layer.input_bias + layer.from_hidden @ h + layer.hidden_bias
    i, f, g, o = gates.chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _hidden(model: Any, layers: list[Any], past: list[int]) -> list[Tensor]:
    """The output of the last layer after the start and after each word."""
    states = [(model.words.new_zeros(layer.width),) * 2 for layer in layers]
    found = []
    for word in [START, *past]:
        x = model.words[word]
        for number, layer in enumerate(layers):
            states[number] = _cell(layer, x, *states[number])
            x = states[number][0]
        found.append(x)
    return found


def _lstm(model: Any, past: list[int]) -> Tensor:
    return _softmax(model, _hidden(model, list(model.layers), past)[-1])


def _decoder(model: Any, past: list[int]) -> Tensor:
    """The output after all words, each of which sees up to `context` inputs before it."""
    inputs = [model.words[word] for word in [START, *past]]
    for block in model.body.blocks:
        split = [block.read(block.before_attention(x)).chunk(3) for x in inputs]
        query, key, value = (
            [part.view(block.heads, -1) for part in kind] for kind in zip(*split, strict=True)
        )
        outputs = []
        for place, x in enumerate(inputs):
            seen = range(max(0, place - model.context), place + 1)
            mixed = []
            for head, slope in enumerate(model.slopes):
                logits = [
                    query[place][head] @ key[one][head] / key[one][head].numel() ** 0.5
                    - slope * (place - one)
                    for one in seen
                ]
                weights = torch.softmax(torch.stack(logits), 0)
                values = torch.stack([value[one][head] for one in seen])
                mixed.append(weights @ values)
            x = x + block.write(torch.cat(mixed))
            layers = torch.nn.functional.gelu(block.widen(block.before_layers(x)))
            outputs.append(x + block.narrow(layers))
        inputs = outputs
    return _softmax(model, model.body.norm(inputs[-1]))


def _paths(model: Any, words: list[int]) -> Tensor:
    """log p(words) as a sum over all paths of states."""
    if not words:
        return torch.zeros((), dtype=torch.float64)
    heard = [model.push @ h + model.push_bias for h in _hidden(model, [model.layer], words[:-1])]
    emit = torch.log_softmax(model.words @ model.emit.T + model.bias[:, None], 0)
    totals = []
    for path in itertools.product(range(model.num_states), repeat=len(words)):
        total, before = torch.zeros((), dtype=torch.float64), model.num_states
        for word, state, push in zip(words, path, heard, strict=True):
            total = total + torch.log_softmax(model.trans[before] + push, 0)[state]
            total, before = total + emit[word, state], state
        totals.append(total)
    return torch.stack(totals).logsumexp(0)
