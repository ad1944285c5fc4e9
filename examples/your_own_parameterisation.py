"""Your own parameterisation of an HMM in thirty lines, trained by the ordinary loop.

A parameterisation is a PyTorch module that returns an `HMM`, on all states or on the subset that
state dropout keeps; loss, batches, schedule, checks and evaluation need not be told of it. `Clock`
puts into one what is known of some diaries: hidden hours that go round, so that p(z' | z) depends
on how far z' is ahead of z alone. That is 24 numbers to learn instead of 576. Prints the
perplexity of new diaries beside that of free tables (`params.scalar`) and of the truth, for few and
for more diaries to learn from; and the clock that was found.

    python examples/your_own_parameterisation.py
"""

import numpy as np
import torch
from torch import Tensor, nn

from hmmlm import HMM, Model, Support
from hmmlm.data.batches import Packed
from hmmlm.data.token_array import TokenArray
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.evaluate import HmmLM, evaluate
from hmmlm.hmm import emission_table
from hmmlm.params import scalar
from hmmlm.train.loss import HmmLoss
from hmmlm.train.schedule import TrainSettings
from hmmlm.train.sgd import train
from hmmlm.transitions import Dense

DAY = "sleep sleep sleep sleep sleep dream wake coffee bus work work meet lunch work work tea work "
DAY += "train shop cook dinner read bath sleep"
ANY_TIME = ["call", "walk", "rest"]
MOVES = {0: 0.15, 1: 0.7, 2: 0.15}  # how far an entry of a diary is from the one before, in hours
FEW, MORE, SEEDS, EPOCHS = 10, 80, 3, 60


class Clock(nn.Module):
    """p(z' | z) = p(move = z' - z, round the clock); p(z1) and p(w | z) are free."""

    def __init__(self, support: Support, generator: torch.Generator) -> None:
        super().__init__()
        self.support, states = support, support.num_states
        hours = torch.arange(states)
        self.ahead = (hours[None, :] - hours[:, None]) % states  # (from, to)
        self.init_logits = nn.Parameter(torch.zeros(states))
        self.move_logits = nn.Parameter(-hours / 2)  # hours go on, more often than back
        emit = torch.randn(support.vocab_size, states, generator=generator)
        self.emit_logits = nn.Parameter(emit)

    def forward(self, states: Tensor | None = None, carried: Tensor | None = None) -> HMM:
        hmm = HMM(
            self.init_logits.log_softmax(0),
            Dense(self.move_logits.log_softmax(0)[self.ahead]),
            emission_table(self.emit_logits, self.support),
            self.support,
        )
        return hmm if states is None else hmm.restrict(states, carried)


def make_truth() -> Model:
    """The HMM that writes the diaries: 24 hours, and an end after 48 entries in the mean."""
    hours, number = DAY.split(), 24
    words = Tokenizer.words({word: 1 for word in (*hours, *ANY_TIME)})
    emit, trans = torch.zeros(number, words.vocab_size), torch.zeros(number, number)
    for hour, word in enumerate(hours):
        emit[hour, words.id(word)] = 0.8
        emit[hour, [words.id(other) for other in ANY_TIME]] = 0.2 / 3
        for move, prob in MOVES.items():
            trans[hour, (hour + move) % number] = prob
    emit *= 47 / 48
    emit[:, words.eos_id] = 1 / 48
    start = torch.full((number,), 1 / number)
    return Model(HMM.from_tables(start.log(), trans.log(), emit.log()), words)


def learn(tables: nn.Module, support: Support, lines: list[str], valid: list[str]) -> float:
    """The ordinary loop, for any module that returns an HMM; the best perplexity on `valid`."""
    ids, held_out = (np.concatenate(list(words.encode_lines(part))) for part in (lines, valid))
    steps = train(
        tables,
        HmmLoss(tables, support, reset_id=eos),
        Packed(TokenArray.from_ids(ids, eos_id=eos), batch_size=4, length=256),
        settings=TrainSettings(epochs=EPOCHS, learning_rate=0.1, weight_decay=0.0),
        evaluate=lambda now: (
            evaluate(HmmLM(now()), held_out, mode="sentence", eos_id=eos).perplexity
        ),
    )
    return min(step.val for step in steps if step.val is not None)


truth = make_truth()
words, eos = truth.tokenizer, truth.tokenizer.eos_id
diaries = truth.sample(300, length=1000, seed=0)
valid, test, pool = diaries[:40], diaries[40:200], diaries[200:]
print("A diary begins:", *max(pool, key=len).split()[:14], "...\n")

support = Support.dense(words.vocab_size, 24)
kinds = {
    "free tables": lambda seeded: scalar.Settings().build(support, generator=seeded),
    "clock": lambda seeded: Clock(support, seeded),
}
print("Perplexity of 160 new diaries (of several starts, the best on validation)")
print(f"  {'truth':<12} {truth.perplexity(test):23.2f}")
best: nn.Module = nn.Module()
for name, build in kinds.items():
    found = []
    for count in (FEW, MORE):
        made = [build(torch.Generator().manual_seed(seed)) for seed in range(SEEDS)]
        values = [learn(tables, support, pool[:count], valid) for tables in made]
        best = made[int(np.argmin(values))]
        with torch.no_grad():
            found.append(Model(best(), words).perplexity(test))
    print(f"  {name:<12} {found[0]:6.2f} from {FEW} diaries, {found[1]:.2f} from {MORE}")

# Which way round, and where it begins, are names that no text tells; walk by the likeliest move.
with torch.no_grad():
    model, moves = Model(best(), words), best.move_logits.softmax(0)
usual = int(moves.argmax())
print(
    f"\nThe clock that was found: an entry is mostly {usual} states further, p = {moves[usual]:.2f}"
)
state = int(model.hmm.log_emit[words.id("wake")].argmax())
walk = [model.top_words((state + usual * hour) % 24, k=1)[0][0] for hour in range(24)]
print(" ", " ".join(walk))
