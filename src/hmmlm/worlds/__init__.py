"""Synthetic worlds: HMMs that are known, text drawn from them, and the best that a model can do.

A world is one HMM, also where a hidden concept chooses among several: its states are (concept,
state) and no transition leaves a concept before `<eos>`. So every question to it is one of
`inference`, and its answers are those of the Bayes-optimal reader.
"""

from hmmlm.worlds.drawing import Document
from hmmlm.worlds.folder import WorldSettings, write_world
from hmmlm.worlds.prompts import Prompt, draw_prompts
from hmmlm.worlds.recipes import ginc, random_hmm
from hmmlm.worlds.world import EntropyBounds, World

__all__ = [
    "Document",
    "EntropyBounds",
    "Prompt",
    "World",
    "WorldSettings",
    "draw_prompts",
    "ginc",
    "random_hmm",
    "write_world",
]
