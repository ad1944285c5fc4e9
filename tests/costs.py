"""The estimated memory of a training, beside what it takes."""

import torch

from hmmlm.data.batches import Batch
from hmmlm.evaluate import HmmLM, evaluate
from hmmlm.support import Support
from hmmlm.train.config import make_config
from hmmlm.train.estimate import LOST, SENTENCE, estimate
from hmmlm.train.learner import make_learner
from hmmlm.train.loop import Training
from memory import Held


class Repeated:
    """The same batch, some times an epoch."""

    def __init__(self, batch, times):
        self.batch, self.num_batches = batch, times

    def __iter__(self):
        return iter([self.batch] * self.num_batches)


def check_memory(tables, words):
    """Two steps and a validation take what was estimated, within a quarter."""
    if tables["train"].get("optimiser") != "em":
        tables["train"]["learning_rate"] = 1e-4  # tables stay far from zeros, which take more
    config = make_config(tables)
    states, blocks = config.model.states, config.model.blocks
    generator = torch.Generator().manual_seed(0)
    support = Support.dense(words, states)
    if blocks:
        support = Support.from_clusters(torch.arange(words) % blocks, states // blocks)
    tokens = torch.randint(words, (16, 64), generator=generator)
    batch = Batch(tokens, torch.full((16,), 64), torch.rand(tokens.shape) < 0.05, 1024)
    held_out = torch.randint(1, words, (25_000,), generator=generator)
    held_out[torch.rand(25_000, generator=generator) < 1 / SENTENCE] = 0
    before = []  # the peak of the steps alone

    def validate(model):
        before.append(held.peak)
        return evaluate(HmmLM(model()), held_out, mode="sentence", eos_id=0).perplexity

    with Held() as held:
        model = config.params.build(support, generator=generator)
        learner = make_learner(config, model, support, eos_id=0)
        batches = Repeated(batch, 2 * (config.train.accumulate or 1))
        for _ in Training(learner, batches, settings=config.train, evaluate=validate):
            pass
    for validation, peak in ((False, before[0]), (True, held.peak)):
        expected = estimate(config, words, validation=validation).total_memory / LOST
        assert 0.8 * peak < expected < 1.25 * peak
