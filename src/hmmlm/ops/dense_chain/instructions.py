"""What numba lacks for the loops of `compiled`: a product in registers, a vector exponential."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

ROWS = 8
"""Rows of a group: as many sums as a processor needs under way to be busy."""

VECTOR = 64 if binding.get_host_cpu_features().get("avx512f", False) else 32
"""Bytes of a vector register, and of a panel's rows."""

_intrinsic: Any = intrinsic


def _tile(rows: int) -> Callable:
    """out = left @ panel for a few rows of `left` and one panel, sums held in registers.

    With fewer rows than `ROWS`, the depth is split among several sums so that as many additions
    are under way. Addresses instead of arrays, which numba would not keep in registers.
    """
    ways = ROWS // rows

    @_intrinsic
    def tile(context, left, stride, panel, out, depth, like):
        signature = types.void(*[types.uintp, types.intp, types.uintp, types.uintp], depth, like)

        def generate(context, builder, signature, values):
            left, stride, panel, out, depth, _ = values
            number = context.get_value_type(like)
            lanes = VECTOR * 8 // like.bitwidth
            vector, whole = ir.VectorType(number, lanes), depth.type

            def at(address, offset, kind=number):
                return builder.bitcast(builder.gep(address, [offset]), kind.as_pointer())

            def constant(value):
                return ir.Constant(whole, value)

            left, panel, out = (
                builder.inttoptr(address, number.as_pointer()) for address in (left, panel, out)
            )
            sums = [
                [cgutils.alloca_once(builder, vector) for _ in range(ways)] for _ in range(rows)
            ]
            for one in itertools.chain(*sums):
                builder.store(ir.Constant(vector, None), one)
            starts = [builder.mul(stride, constant(row)) for row in range(rows)]
            nothing = ir.Constant(vector, ir.Undefined)
            first = ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)
            bytes_each = like.bitwidth // 8
            with cgutils.for_range(builder, builder.udiv(depth, constant(ways))) as loop:
                for way in range(ways):
                    k = builder.add(builder.mul(loop.index, constant(ways)), constant(way))
                    source = at(panel, builder.mul(k, constant(lanes)), vector)
                    right = builder.load(source, align=bytes_each)
                    for row in range(rows):
                        value = builder.load(at(left, builder.add(starts[row], k)))
                        value = builder.insert_element(
                            nothing, value, ir.Constant(ir.IntType(32), 0)
                        )
                        value = builder.shuffle_vector(value, nothing, first)
                        term = builder.fmul(value, right, flags=("contract",))
                        total = builder.load(sums[row][way])
                        total = builder.fadd(total, term, flags=("contract",))
                        builder.store(total, sums[row][way])
            for row in range(rows):
                total = builder.load(sums[row][0])
                for way in range(1, ways):
                    total = builder.fadd(total, builder.load(sums[row][way]))
                builder.store(total, at(out, starts[row], vector), align=bytes_each)
            return context.get_dummy_value()

        return signature, generate

    return tile


tile1, tile2, tile4, tile8 = _tile(1), _tile(2), _tile(4), _tile(8)


@_intrinsic
def _power_of_two(context, exponent):
    """2^n for a whole n within the range of normal numbers, in the type of n."""
    bits, bias, mantissa = (32, 127, 23) if exponent == types.float32 else (64, 1023, 52)

    def generate(context, builder, signature, values):
        whole = ir.IntType(bits)
        n = builder.fptosi(values[0], whole)
        n = builder.shl(builder.add(n, ir.Constant(whole, bias)), ir.Constant(whole, mantissa))
        return builder.bitcast(n, context.get_value_type(exponent))

    return exponent(exponent), generate


def exp(value):
    """e^value, to the last bit or two; numba has no exponential that runs on vectors."""


LN2 = Fraction("0.69314718055994530941723212145817656807550013436")


def _exponential(number: type, terms: int, low: float, high: float, to_whole: float) -> Callable:
    series = [number(1 / math.factorial(n)) for n in range(terms + 1)]
    to_two, half = number(1 / math.log(2)), number(0.5)
    # ln 2 in two parts, the first with so few digits that its product with n is exact.
    coarse = number(round(math.log(2) * 2**9) / 2**9)
    fine = number(LN2 - Fraction(float(coarse)))
    low, high, to_whole = number(low), number(high), number(to_whole)
    if number is np.float32:
        c0, c1, c2, c3, c4, c5, c6, c7 = series

        def polynomial(x):
            return c0 + x * (c1 + x * (c2 + x * (c3 + x * (c4 + x * (c5 + x * (c6 + x * c7))))))

    else:
        c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13 = series

        def polynomial(x):
            upper = c7 + x * (c8 + x * (c9 + x * (c10 + x * (c11 + x * (c12 + x * c13)))))
            return c0 + x * (c1 + x * (c2 + x * (c3 + x * (c4 + x * (c5 + x * (c6 + x * upper))))))

    polynomial = numba.njit(fastmath={"contract"})(polynomial)

    def exponential(value):
        value = min(max(value, low), high)
        n = (value * to_two + to_whole) - to_whole
        lower = (n * half + to_whole) - to_whole
        rest = (value - n * coarse) - n * fine
        # Two factors, because the smallest results are below the normal numbers.
        return polynomial(rest) * _power_of_two(lower) * _power_of_two(n - lower)

    return exponential


_exp32 = _exponential(np.float32, 7, -110.0, 100.0, 1.5 * 2**23)
_exp64 = _exponential(np.float64, 13, -760.0, 720.0, 1.5 * 2**52)


@overload(exp, jit_options={"fastmath": {"contract"}})
def _exp_of(value):
    return _exp32 if value == types.float32 else _exp64
