"""Compiles every kernel for an NVIDIA GPU of capability 9.0 on a machine that has none.

The interpreter runs kernels that the compiler refuses. Here a launch is a compilation: tensors on a
CPU stand for those on the GPU, in bfloat16 and at the sizes that are used there. What the kernels
would have written is not there, so only shapes may depend on it.
"""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from hmmlm.hmm import HMM
from hmmlm.inference.chain import Chain
from hmmlm.inference.dispatch import kernel_passes
from hmmlm.inference.kernels import count
from hmmlm.ops.cells import Tiling
from hmmlm.ops.choice import kernel as choice
from hmmlm.ops.emission import cells_kernel, dense_kernel
from hmmlm.ops.emission import kernel as emission
from hmmlm.ops.links import CountSums
from hmmlm.ops.normaliser import kernel as normaliser
from hmmlm.ops.residual import kernel as residual
from hmmlm.products import BF16, FLOAT32, TF32
from hmmlm.support import Support
from hmmlm.transitions import Dense, Factored

TARGET = GPUTarget("cuda", 90, 32)
SHARED = 227 << 10  # bytes of shared memory that a program may have there
POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
    torch.bool: "*i1",
}
compiled: set[str] = set()


def compile_instead(self, *args, grid, warmup, num_warps=4, num_stages=3, **constants) -> None:
    given = dict(zip(self.arg_names, args, strict=False)) | constants
    signature, fixed, attributes = {}, {}, {}
    for place, parameter in enumerate(self.params):
        name, value = parameter.name, given[parameter.name]
        aligned = isinstance(value, torch.Tensor)
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            signature[name], fixed[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name], aligned = "i32", value % 16 == 0
        if aligned:
            attributes[(place,)] = [["tt.divisibility", 16]]
    key = f"{self.fn.__module__}.{self.fn.__name__} {signature} {fixed} {num_warps} {num_stages}"
    if key in compiled:
        return
    compiled.add(key)
    source = ASTSource(self, signature, fixed, attributes)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    made = triton.compile(source, target=TARGET, options=options)
    assert made.metadata.shared <= SHARED, f"{key} needs {made.metadata.shared:,} shared bytes"


def counts(support: Support, table: Dense | Factored, wide: bool = False) -> None:
    states, words = support.num_states, support.vocab_size
    hmm = HMM(torch.zeros(states), table, torch.zeros(words, support.width), support)
    tokens = torch.zeros(2, 3, dtype=torch.long)
    given = hmm, tokens, tokens > 0, torch.tensor([3, 2]), torch.ones(2)
    count(*given, wide=wide)
    if not support.is_dense:
        count(*given, torch.zeros(2, support.width), wide)


def ask(support: Support, table: Dense | Factored, dtype: torch.dtype = torch.float32) -> None:
    """Every question that kernels answer."""
    states, words = support.num_states, support.vocab_size
    hmm = HMM(torch.zeros(states), table, torch.zeros(words, support.width), support)
    hmm = hmm.to(dtype=dtype)
    chain = Chain(hmm, torch.zeros(2, 3, dtype=torch.long))
    passes = kernel_passes(chain, back=True)
    passes.forward(0, 3, None, keep=True, best=True)
    forward = passes.forward(0, 3, None, keep=True)
    sums = CountSums(hmm.transitions, dtype)
    passes.backward(0, 3, None, forward, None, sums, torch.ones(2, dtype=dtype))
    passes.trace(forward.messages, 1, None)
    passes.trace(forward.messages, 2, torch.zeros(2, 2, 3))


def main() -> int:
    JITFunction.run = compile_instead
    plain = torch.mm
    torch.mm = lambda one, other, out_dtype=None, out=None: plain(
        one.to(out_dtype or one.dtype), other.to(out_dtype or one.dtype)
    )
    narrow = BF16
    for width in (64, 256):
        left = torch.zeros(300, width, requires_grad=True)
        normaliser.LogNormaliser.apply(left, left, narrow).sum().backward()
        normaliser.LogNormaliser.apply(left, left, TF32).sum().backward()
        held = left.detach().to(narrow.dtype)
        normaliser.log_normaliser(held, held, narrow.precision)
        words, bias = torch.zeros(70, width, requires_grad=True), torch.zeros(70)
        support = Support.from_clusters(torch.arange(70) % 3, 100)
        tiling = Tiling(support.row_of_word)
        for operand in (narrow, TF32):
            given = (left, words, bias, support.rows, tiling, operand)
            emission.LogSoftmax.apply(*given).sum().backward()
        dense_kernel.LogSoftmax.apply(left, words, bias, narrow).sum().backward()
    for width in (64, 256):
        inputs, weight = torch.zeros(70, width, requires_grad=True), torch.zeros(width, width)
        layers = [weight, weight[0], weight, weight[0], weight[0], weight[0]]
        residual.Residual.apply(inputs, *layers, 1e-5, narrow).sum().backward()
    for slots in (16, 50, 256, 1024):
        support = Support.from_clusters([0, 1, 1, 0], slots)
        states = support.num_states
        factors = torch.zeros(states, 256)
        for wide in (False, True):
            for operand in (narrow, TF32):
                counts(support, Factored(factors, factors, torch.zeros(states), operand), wide)
            if slots <= 256:
                counts(support, Dense(torch.zeros(states, states), narrow), wide)
    support = Support.uniform(9, 300, 128, torch.Generator())
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        logits = torch.zeros(9, 128, dtype=dtype, requires_grad=True)
        made = cells_kernel.LogSoftmax.apply(logits, support.rows, *support.cells_by_state)
        made.sum().backward()
    factors = torch.zeros(300, 256)
    for wide in (False, True):
        counts(support, Factored(factors, factors, torch.zeros(300), narrow), wide)
        counts(support, Dense(torch.zeros(300, 300), narrow), wide)
        ask(support, Dense(torch.zeros(300, 300)), torch.float64 if wide else torch.float32)
    for states in (17, 512, 2048):
        for wide in (False, True):
            counts(Support.dense(5, states), Dense(torch.zeros(states, states), narrow), wide)
    for operand in (FLOAT32, narrow):
        for slots in (50, 256, 1024):
            support = Support.from_clusters([0, 1, 1, 0], slots)
            factors = torch.zeros(support.num_states, 256)
            ask(support, Factored(factors, factors, torch.zeros(support.num_states), operand))
    for slots in (50, 256, 1024):
        support = Support.from_clusters([0, 1, 1, 0], slots)
        factors, norms = torch.zeros(support.num_states, 256), torch.zeros(support.num_states)
        ask(support, Factored(factors, factors, norms), torch.float64)
    for states in (17, 512, 4096):
        ask(Support.dense(5, states), Dense(torch.zeros(states, states)))
    for states in (17, 512):
        ask(Support.dense(5, states), Dense(torch.zeros(states, states)), torch.float64)
    scores, ids = torch.zeros(3, 200), torch.zeros(3, 200, dtype=torch.long)
    choice.choose(scores, ids, ids[:, 0], ids[:, 0], 5)
    print(f"{len(compiled)} kernels compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
