"""What numba lacks for threads that work together: a counter they share, and a meeting point."""

import sys
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_intrinsic: Any = intrinsic
_SPINS = 4000
"""Looks at the counter, about 20 us of them, before a waiting thread offers its processor."""


@_intrinsic
def _fetch_add(context, address, value):
    """Adds to the number at an address in one step; gives what was there before."""

    def generate(context, builder, signature, values):
        pointer = builder.inttoptr(values[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, values[1], "seq_cst")

    return types.int64(types.uintp, types.int64), generate


@_intrinsic
def _load(context, address):
    """The number at an address as other threads have left it."""

    def generate(context, builder, signature, values):
        pointer = builder.inttoptr(values[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.uintp), generate


@_intrinsic
def _offer_processor(context):
    """Lets another thread run here, if one waits."""

    def generate(context, builder, signature, values):
        if sys.platform != "win32":  # which has no such function; there a wait only spins
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@numba.njit(nogil=True)
def take(shared):  # pragma: no cover
    """The next number of 0, 1, 2, ... that no thread has taken."""
    return _fetch_add(shared.ctypes.data + 256, 1)


@numba.njit(nogil=True)
def give_back(shared):  # pragma: no cover
    """Lets `take` begin with 0 again; for one thread, while the others wait."""
    shared[32] = 0


@numba.njit(nogil=True)
def barrier(shared, meeting, threads):  # pragma: no cover
    """Waits until all threads are at this meeting; gives the number of the next, from 1."""
    if threads > 1:
        _fetch_add(shared.ctypes.data, 1)
        spins = 0
        while _load(shared.ctypes.data) < meeting * threads:
            spins += 1
            if spins > _SPINS:
                _offer_processor()
    return meeting + 1
