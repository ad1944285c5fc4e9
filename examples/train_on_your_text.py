"""Train a hidden Markov model on text of your own, and see what it knows that n-grams do not.

Trains 1,040 states, 16 for each of 65 clusters of words, and prints the perplexity of sentences
that were held out: that of the model, of Kneser-Ney n-grams, and of both together; where the HMM
is ahead of the trigram (words that were never seen side by side); and states with their words.
The model is kept in runs/my-text, for `hmmlm next`, `hmmlm sample` and the rest.

    python examples/train_on_your_text.py
"""

from pathlib import Path

import numpy as np

from hmmlm.baselines.kneser_ney import KneserNey
from hmmlm.baselines.ngram import Unigram
from hmmlm.data.builtin import builtin_sentences
from hmmlm.evaluate import token_log_probs
from hmmlm.fitting import fit

TEXT = ""  # the path of a file, a sentence per line; without one it is the help that Python ships
OUT = Path("runs/my-text")
STATES, BLOCKS, EPOCHS = 1040, 65, 10


def read(path: str) -> dict[str, list[str]]:
    if not path:
        return builtin_sentences()
    lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    train = [line for number, line in enumerate(lines) if number % 10 > 1]
    return {"train": train, "valid": lines[0::10], "test": lines[1::10]}


def perplexity(log_probs: np.ndarray) -> float:
    return float(np.exp(-log_probs.mean()))


text = read(TEXT)
model = fit(
    text["train"],
    valid=text["valid"],
    model={"states": STATES, "blocks": BLOCKS},
    train={"epochs": EPOCHS},
    follow=lambda step: step.val and print(f"epoch {step.epoch:2}: {step.val:.1f} on validation"),
)

# All models read the same ids, so that their perplexities can be compared.
words = model.tokenizer
train, test = (np.concatenate(list(model.encode(text[name]))) for name in ("train", "test"))
size, eos = words.vocab_size, words.eos_id
rivals = {
    "unigram": Unigram(train, size),
    "Kneser-Ney bigram": KneserNey(train, size, order=2, eos_id=eos),
    "Kneser-Ney trigram": KneserNey(train, size, order=3, eos_id=eos),
    f"HMM, {STATES:,} states": model.lm,
}
scores = {name: token_log_probs(rival, test, eos_id=eos) for name, rival in rivals.items()}
trigram, hmm = scores["Kneser-Ney trigram"], scores[f"HMM, {STATES:,} states"]
scores["HMM and trigram, half each"] = np.logaddexp(trigram, hmm) - np.log(2)

print(f"\nPerplexity of {len(test):,} tokens that were held out (lower is better)")
for name, log_probs in scores.items():
    print(f"  {name:<28} {perplexity(log_probs):6.1f}")

# What the two know differently: a trigram has to have seen these very words one after the other.
pairs = set(zip(train[:-1].tolist(), train[1:].tolist(), strict=True))
seen = np.array([pair in pairs for pair in zip([eos, *test[:-1]], test.tolist(), strict=True)])
print("\nThe same by whether the word before and the word were seen together in training")
for name, which in (("seen", seen), ("never seen", ~seen)):
    ours, theirs = perplexity(hmm[which]), perplexity(trigram[which])
    print(f"  {name:<10} {which.mean():4.0%} of tokens   HMM {ours:8.1f}   trigram {theirs:8.1f}")

print("\nStates that are used much, by their words")
shown: set[str] = set()
for state in model.hmm.long_run().argsort(descending=True).tolist():
    top = model.top_words(state, k=5)
    if top[0][1] < 0.5 and top[0][0] not in shown:  # of several words, and new ones
        shown |= {word for word, _ in top}
        print(f"  {state:>5}  " + "  ".join(f"{word} {prob:.2f}" for word, prob in top))
    if len(shown) >= 40:
        break

if OUT.exists():
    print(f"\nNot kept: {OUT} is there already.")
else:
    model.save(OUT)
    print(f"\nIt is in {OUT}; try: hmmlm next {OUT} '{' '.join(text['test'][0].split()[:3])}'")
