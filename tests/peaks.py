"""Inference in a process of its own: how far the peak of its memory rises."""

import textwrap
from pathlib import Path

from memory import run_measured

HEAD = """
    import torch
    from hmmlm import inference
    from hmmlm.hmm import HMM
    from hmmlm.support import Support
    from hmmlm.transitions import Factored
    from hmmlm.inference import smoothing

    def blocked(states, block, words):
        generator = torch.Generator().manual_seed(0)
        support = Support.from_clusters(torch.arange(words) % (states // block), block)
        factors = torch.randn(2, states, 16, generator=generator) * 0.3
        share = torch.bincount(support.row_of_word)[support.row_of_word].float()
        emit = (-share.log())[:, None].expand(words, block).contiguous()
        init = torch.full((states,), -torch.log(torch.tensor(float(states))))
        return HMM(init, Factored.normalise(*factors), emit, support)

    def dense(states, words):
        generator = torch.Generator().manual_seed(0)
        noise = lambda *size: torch.randn(*size, generator=generator)
        return HMM.from_tables(
            noise(states).log_softmax(0), noise(states, states).log_softmax(1),
            noise(states, words).log_softmax(1))

    def warm(hmm):
        inference.counts(hmm, torch.zeros(1, 5, dtype=torch.long))
        inference.smooth(hmm, torch.zeros(1, 5, dtype=torch.long))
"""


def megabytes(body: str) -> float:
    """How far the peak of resident memory rises while `run` does, which `body` defines."""
    script = textwrap.dedent(HEAD) + textwrap.dedent(body)
    script += """
before = status("VmHWM")
run()
print(json.dumps({"rise": status("VmHWM") - before}), file=sys.stderr)
"""
    return run_measured(script, Path.cwd())["rise"] / (1 << 20)
