"""Messages through links, in two arithmetics with the same names.

`reference` keeps log-probabilities and is the definition; `scaled` keeps probabilities that sum to
one, with the scale taken out at every step. Both modules have `zero`, `one`, `enter` and `leave`
(from and to logarithms), `probs`, `push`, `absorb`, `weigh`, `pull`, `posterior` and `add_pairs`.
"""
