"""Ask a model for what is missing: words in gaps, how probable a span is, and hidden paths.

Prints the words of a gap given what stands on both sides (and on the left alone, to see what the
right side tells); whole lines drawn for several gaps; p(these words | the rest); and the best
paths of states behind a sentence, each with its share of all paths. All of it is exact: sums over
all paths of states, not samples.

    python examples/fill_and_ask.py
"""

import torch

from hmmlm import inference
from hmmlm.data.builtin import builtin_sentences
from hmmlm.fitting import fit

text = builtin_sentences()
model = fit(
    text["train"],
    valid=text["valid"],
    model={"states": 1040, "blocks": 65},
    train={"epochs": 10},
)


def table(pairs: list[tuple[str, float]]) -> str:
    return "  ".join(f"{word} {prob:.2f}" for word, prob in pairs)


print("One gap, known from both sides, or from the left alone")
for left, right in (("a", "of integers ."), ("an", "is raised ."), ("a new", "is created .")):
    print(f"  {left} ? {right}")
    print(f"     given all of it    {table(model.gap_words(f'{left} ? {right}', k=5)[0])}")
    print(f"     given the left     {table(model.next(left, k=5))}")

print("\nTwo gaps and some words at the end, drawn together, with p of what was filled in")
for line in model.fill("the ? of the ? is *", n=5, length=(2, 5), seed=5):
    print(f"  {line.prob:.1e}  {line.text}")

print("\nWhich of these is it? p(the gap is this | the rest)")
pattern = "if the * is omitted , it defaults to ? ."
for filled in (["argument", "none"], ["first argument", "none"], ["method", "object"]):
    print(f"  {model.span(pattern, filled):.2e}  {' ... '.join(filled)}")

# Below `Model` are functions of token ids: batches, gaps as -1, any number of best paths.
sentence = "the return value of the function is a string ."
words, eos = model.tokenizer, model.tokenizer.eos_id
tokens = torch.tensor([[*words.encode(sentence), eos]])
best = inference.best_paths(model.hmm, tokens, k=100)
evidence = inference.log_prob(model.hmm, tokens).log_evidence
shares = (best.log_probs[0] - evidence[0]).exp()
entropy = float(inference.path_entropy(model.hmm, tokens)[0])

print(f"\nThe best path of states behind '{sentence}'")
for token, state in zip(tokens[0].tolist(), best.states[0, 0].tolist(), strict=True):
    word = words.token(token)
    others = [(w, p) for w, p in model.top_words(state, k=5) if w != word and p > 0.005]
    print(f"  {word:>9}  state {state:>4}  {'also says ' if others else ''}{table(others[:4])}")
print(
    f"It is only {shares[0]:.2%} of p(sentence), and the 100 best are {shares.sum():.1%} of it: the"
)
print(
    f"entropy is {entropy:.1f} nats, as of {torch.tensor(entropy).exp():,.0f} equally likely paths."
)

alone = inference.pseudo_log_prob(model.hmm, tokens, reset_id=eos).token_log_probs[0]
after = inference.log_prob(model.hmm, tokens).token_log_probs[0]
print("\nHow sure is the model of each word, given those before it, and given all others?")
for token, left, both in zip(tokens[0].tolist(), after.exp(), alone.exp(), strict=True):
    print(f"  {words.token(token):>9}  {left:.3f}  {both:.3f}")
