"""Numbers as a product in a Triton kernel reads them."""

import triton
import triton.language as tl


@triton.jit
def narrowed(values, like, PRECISION: tl.constexpr):
    """Values in the type of another operand, rounded: tensor cores drop what tf32 does not hold."""
    if like.dtype == tl.float32 and PRECISION == "tf32":
        bits = (values.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        return bits.to(tl.float32, bitcast=True)
    return values.to(like.dtype)
