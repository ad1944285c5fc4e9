"""Write text that must meet a constraint, and know before how probable it is that any does.

For some constraints prints the exact probability that a text of the model meets it; beside it how
many of 2,000 free texts did; and texts drawn from p(text | it is met), all of which do.
Where one text in a million is right, drawing and throwing away would take a million texts: here it
takes as many tokens as are printed.

    python examples/constrained_text.py
"""

from hmmlm.data.builtin import builtin_sentences
from hmmlm.fitting import fit
from hmmlm.generate import contains, contains_any, ends_with, regex, starts_with, words

LENGTH, FREE, DRAWN = 16, 2000, 3
WANTED = {
    "ends in a full stop": ends_with("."),
    "has 'string', but not 'the'": contains("string") & ~contains("the"),
    "begins with 'if', has a comma": starts_with("if ") & contains(","),
    "is about a list or a tuple, in 6 to 9 words": contains_any("list", "tuple") & words(6, 9),
    "the pattern '(a|an) \\w+ (is|has) .* \\.'": regex(r"(a|an) \w+ (is|has) .* \."),
    "has 'integer' and 'iterator' and 'exception'": contains("integer", "iterator", "exception"),
}

text = builtin_sentences()
model = fit(
    text["train"],
    valid=text["valid"],
    model={"states": 1040, "blocks": 65},
    train={"epochs": 10},
)

free = model.sample(FREE, length=LENGTH, seed=0)
free = [line for line in free if len(line.split()) < LENGTH]  # those that ended in time
print(f"Texts of at most {LENGTH} tokens, <eos> among them; {FREE:,} were drawn freely")
for name, wanted in WANTED.items():
    wanted &= ~contains("<unk>", whole=False)  # and no word that the model does not know
    look = model.look_ahead(wanted, length=LENGTH)  # made once, for both of what follows
    probability = model.probability(look, length=LENGTH)
    met = sum(wanted.accepts(line) for line in free)
    print(f"\n{name}: p = {probability:.2g}; of the free texts {met:,}, {met / FREE:.2g}")
    for line in model.sample(DRAWN, constraint=look, length=LENGTH, seed=1):
        print(f"   {'met' if wanted.accepts(line) else 'NOT MET'}:  {line}")
