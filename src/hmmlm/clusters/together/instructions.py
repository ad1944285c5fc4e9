"""What numba lacks for threads that work together: numbers that all of them see change.

Pieces of work are numbered for good: `announce` says up to which number there is work, `take` gives
the next one or -1, `finish` counts it as done, `wait` returns when all announced are done.
"""

import sys
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hmmlm.clusters.together import STOP

_intrinsic: Any = intrinsic
_WORD = ir.IntType(64)
# Far apart on the board, so that a change of one does not slow down readers of another.
_ANNOUNCED, _TAKEN, _FINISHED = 0, 16, 32

_SPINS = 2000
"""Looks at a number, for about 10 us, before a waiting thread offers its processor."""


@_intrinsic
def _load(context, address):
    """The number at an address as other threads have left it."""

    def generate(context, builder, signature, values):
        pointer = builder.inttoptr(values[0], _WORD.as_pointer())
        return builder.load_atomic(pointer, "seq_cst", 8)

    return types.int64(types.uintp), generate


@_intrinsic
def _add(context, address, value):
    """Adds to the number at an address, in one step."""

    def generate(context, builder, signature, values):
        pointer = builder.inttoptr(values[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", pointer, values[1], "seq_cst")

    return types.int64(types.uintp, types.int64), generate


@_intrinsic
def _replace(context, address, old, new):
    """Writes `new` where `old` still is, in one step; says whether it was."""

    def generate(context, builder, signature, values):
        pointer = builder.inttoptr(values[0], _WORD.as_pointer())
        found = builder.cmpxchg(pointer, values[1], values[2], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(types.uintp, types.int64, types.int64), generate


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
def _at(board, place):  # pragma: no cover
    return board.ctypes.data + 8 * place


@numba.njit(nogil=True)
def announce(board, pieces):  # pragma: no cover
    """As many more pieces of work; gives the number of the first."""
    return _add(_at(board, _ANNOUNCED), pieces)


@numba.njit(nogil=True)
def take(board):  # pragma: no cover
    """The number of a piece that nobody has, which is now the caller's; -1 if there is none."""
    while True:
        taken = _load(_at(board, _TAKEN))
        if taken >= _load(_at(board, _ANNOUNCED)):
            return -1
        if _replace(_at(board, _TAKEN), taken, taken + 1):
            return taken


@numba.njit(nogil=True)
def finish(board):  # pragma: no cover
    """Says that a piece is done."""
    _add(_at(board, _FINISHED), 1)


@numba.njit(nogil=True)
def wait(board):  # pragma: no cover
    """Returns when all announced pieces are done; what others wrote in them can be read then."""
    spins = 0
    announced = _load(_at(board, _ANNOUNCED))
    while _load(_at(board, _FINISHED)) < announced:
        spins += 1
        if spins > _SPINS:
            _offer_processor()


@numba.njit(nogil=True)
def take_or_wait(board):  # pragma: no cover
    """For helpers: the number of a piece as soon as there is one; -1 when the work is over."""
    spins = 0
    while True:
        piece = take(board)
        if piece >= 0 or _load(_at(board, STOP)) != 0:
            return piece
        spins += 1
        if spins > _SPINS:
            _offer_processor()
