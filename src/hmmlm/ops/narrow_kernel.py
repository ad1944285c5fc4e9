"""Numbers as a product in a Triton kernel reads them."""

import triton
import triton.language as tl


@triton.jit
def narrowed(values, like, PRECISION: tl.constexpr):
    """Values in the type of another operand, rounded: tensor cores drop what tf32 does not hold."""
    if like.dtype == tl.float32 and PRECISION == "tf32":
        bits = values.to(tl.int32, bitcast=True)
        rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & -0x2000  # as `products.round_to_tf32`
        # What is no number stays none. By its bits: of a product less itself a fused
        # multiply-add makes what rounding lost, which is not zero.
        is_number = (bits & 0x7F800000) != 0x7F800000
        return tl.where(is_number, rounded, bits).to(tl.float32, bitcast=True)
    return values.to(like.dtype)
