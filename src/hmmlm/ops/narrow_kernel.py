"""Numbers as a product in a Triton kernel reads them."""

import triton
import triton.language as tl


@triton.jit
def narrowed(values, like, PRECISION: tl.constexpr):
    """Values in the type of another operand, rounded: tensor cores drop what tf32 does not hold."""
    if like.dtype == tl.float32 and PRECISION == "tf32":
        bits = values.to(tl.int32, bitcast=True)
        bits = (bits + 0xFFF + ((bits >> 13) & 1)) & -0x2000  # as `products.round_to_tf32`
        rounded = bits.to(tl.float32, bitcast=True)
        return tl.where(values - values == 0.0, rounded, values)  # what is no number stays none
    return values.to(like.dtype)
