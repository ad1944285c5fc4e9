"""The sgemm floor: the matrix products of a quantity alone, same shapes, same thread count."""

from collections.abc import Callable

import torch

from benchmarks.cases import Case


def floor(case: Case, what: str) -> Callable[[], None]:
    """log-likelihood: T products (B x Z)(Z x Z). counts: twice those, and one (Z x BT)(BT x Z).

    An EM step has the products of the counts.
    """
    generator = torch.Generator().manual_seed(0)
    states, batch = case.states, case.batch
    matrix = torch.rand(states, states, generator=generator)
    message, out = torch.rand(batch, states, generator=generator), torch.empty(batch, states)

    def products(times: int) -> None:
        for _ in range(times):
            torch.mm(message, matrix, out=out)

    if what == "log-likelihood":
        return lambda: products(case.steps)
    left = torch.rand(case.tokens_per_call, states, generator=generator)
    right = torch.rand(case.tokens_per_call, states, generator=generator)
    table = torch.empty(states, states)

    def run() -> None:
        products(2 * case.steps)
        torch.mm(left.T, right, out=table)

    return run
