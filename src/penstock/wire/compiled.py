"""Compiles the loops over bytes: machine code that runs without the interpreter's lock, cached on disk.

Compiled functions take numpy arrays and numbers only, check every bound themselves, and report what is
wrong by a number: an exception would need the lock, and an array index out of bounds is not caught.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function when it is first called, or load it from where an earlier run put it."""
    compile_: Any = numba.njit(nogil=True, cache=True)
    result: Function = compile_(function)
    return result


def _type_copy(_: Any, target: Any, target_at: Any, source: Any, source_at: Any, length: Any) -> Any:
    """Give the signature and the code of `copy_bytes`."""
    signature = types.void(target, target_at, source, source_at, length)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, target_at, source, source_at, length = arguments
        to = context.make_array(signature.args[0])(context, builder, target).data
        from_ = context.make_array(signature.args[2])(context, builder, source).data
        copy: Any = cgutils.raw_memcpy
        copy(builder, builder.gep(to, [target_at]), builder.gep(from_, [source_at]), length, 1)
        return context.get_dummy_value()

    return signature, generate


copy_bytes: Any = intrinsic(_type_copy)
"""Copy bytes between arrays: (target, its place, source, its place, length). A loop takes three times as long."""
