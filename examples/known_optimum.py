"""How near does a model come to the best that any model could do?

On real text nobody knows. Here the text is drawn from a GINC world (Xie et al. 2021): documents of
three concepts, each with its own grammar of hidden states, so the best reader's log p of every
token is known. Trains models of more and more states and prints how many nats per token each is
above the optimum, where in a document it loses them, and what the best reader makes of one
document: p(concept | the words so far).

    python examples/known_optimum.py
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from hmmlm import worlds
from hmmlm.baselines.kneser_ney import KneserNey
from hmmlm.data.shards import Corpus
from hmmlm.distill.sampling import read_log_probs
from hmmlm.evaluate import token_log_probs
from hmmlm.fitting import fit

STATES_PER_WORD = (1, 4, 16)
EPOCHS = 30
DOCUMENTS = worlds.WorldSettings(documents=250, valid=0, test=100)

world = worlds.ginc(concepts=3, entities=5, properties=5, words=20, length=128, seed=0)
with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch) / "world"
    worlds.write_world(folder, world, DOCUMENTS)
    corpus = Corpus.open(folder / "corpus")
    train, test = (corpus.split(name)[:] for name in ("train", "test"))
    optimum = read_log_probs(corpus, "test")

    eos, size = corpus.tokenizer.eos_id, corpus.tokenizer.vocab_size
    blocks = len(np.unique(train))  # a block for every word that occurs
    found = {
        f"Kneser-Ney, order {order}": KneserNey(train, size, order=order, eos_id=eos)
        for order in (2, 3, 5)
    }
    for each in STATES_PER_WORD:
        found[f"HMM, {each * blocks} states"] = fit(
            corpus,
            model={"kind": "scalar", "states": each * blocks, "blocks": blocks},
            train={"learning_rate": 0.5, "dropout": 0.0, "epochs": EPOCHS},
        ).lm

# Where each token stands in its document.
starts = np.flatnonzero(np.append(True, test[:-1] == eos))
place = np.arange(len(test)) - np.repeat(starts, np.diff(np.append(starts, len(test))))
parts = {"all": place >= 0, "1-4": place < 4, "5-32": (place >= 4) & (place < 32)}
parts["33-"] = place >= 32

print(f"The world has {world.hmm.num_states} states, {blocks} words and 3 concepts; ", end="")
print(f"{len(train):,} tokens to learn.")
print(f"The best reader needs {-optimum.mean():.3f} nats per token of the test documents.\n")
print("nats per token above that, by the token's place in its document")
print(f"{'':>20}" + "".join(f"{name:>9}" for name in parts))
for name, lm in found.items():
    gap = optimum - token_log_probs(lm, test, eos_id=eos)
    print(f"{name:>20}" + "".join(f"{gap[which].mean():9.3f}" for which in parts.values()))

document = world.draw(1, generator=torch.Generator().manual_seed(3))[0]
posterior = world.concept_posterior(torch.from_numpy(document.tokens)[None])[0].exp()
print(
    f"\nA document of concept {document.concept}; p(concept | its words so far) of the best reader"
)
for seen in (1, 2, 4, 8, 16, 32):
    if seen <= len(posterior):
        words = " ".join(
            corpus.tokenizer.token(int(id)) for id in document.tokens[max(0, seen - 8) : seen]
        )
        shares = "  ".join(f"{share:.2f}" for share in posterior[seen - 1])
        print(f"  after {seen:>2}: {shares}   ... {words}")
