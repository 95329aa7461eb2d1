"""What is learned as named arrays: out of a memory, and back into one that is like it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Memory = Any
"""What a learner makes its model of: a frozen dataclass whose fields are all arrays, none of them named model, scene
or best, which are stored beside it. Whole numbers of 64 bits are classes and never change, see `like`; counts are
float32 or of 32 bits."""


def arrays_of(memory: Memory) -> dict[str, Array]:
    """The arrays of a memory by name."""
    return {each.name: getattr(memory, each.name) for each in fields(memory)}


def memory_like(arrays: Mapping[str, Array], memory: Memory, prefix: str = "") -> Memory:
    """A memory of the kind of `memory` made of these arrays. Raises KeyError or ValueError unless they fit."""
    return type(memory)(**{name: like(arrays[prefix + name], array) for name, array in arrays_of(memory).items()})


def like(array: Array, other: Array) -> Array:
    """The array; ValueError unless its shape and type are those of the other, and its numbers finite. Whole numbers of
    64 bits are classes, and must be the same."""
    if array.shape != other.shape or array.dtype != other.dtype:
        raise ValueError("its arrays do not fit the bundle")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("its arrays are not finite")
    if array.dtype == np.int64 and array.ndim and not np.array_equal(array, other):
        raise ValueError("its classes are not the bundle's")
    return array


def whole(value: Any) -> int:
    """The value; ValueError unless it is a count."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("its counts are not whole numbers")
    return value
