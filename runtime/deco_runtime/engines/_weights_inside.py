"""An ONNX file with its weights inside, and θ in their place, without the package onnx, which no device has.

A file is protobuf: records of a field number and a value. Weights of the same sizes are put where the old ones lie, so
nothing else in it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from deco_runtime.types import Floats

GRAPH, INITIALIZER = 7, 5
"""Fields of a ModelProto and of a GraphProto."""
RAW_DATA = 9
"""Of a TensorProto."""


class WeightsInside:
    """Where θ lies in a file. Raises ValueError where it cannot be found there, whole and in its order."""

    def __init__(self, model: bytes, theta: Floats, sizes: Sequence[int]) -> None:
        """theta: (P,), the weights that are in the file. sizes: of its parameters, in order; their sum is P."""
        self._model = model
        self._places: list[tuple[slice, slice]] = []  # of the file, of θ
        waiting, offset = _initialisers(model), 0
        for size in sizes:
            wanted = theta[offset : offset + size].astype("<f4").tobytes()
            place = next((each for each in waiting if model[each] == wanted), None)
            if place is None:
                raise ValueError(f"no weights like those of θ from {offset} on, in the order of θ")
            self._places.append((place, slice(offset, offset + size)))
            offset += size

    def with_theta(self, theta: Floats) -> bytes:
        """The file with θ (P,) in it."""
        changed = bytearray(self._model)
        for place, part in self._places:
            changed[place] = theta[part].astype("<f4").tobytes()
        return bytes(changed)


def _initialisers(model: bytes) -> Iterator[slice]:
    """Where the raw values of each initialiser lie, in the file's order."""
    for graph in _fields(model, slice(0, len(model)), GRAPH):
        for tensor in _fields(model, graph, INITIALIZER):
            yield from _fields(model, tensor, RAW_DATA)


def _fields(data: bytes, within: slice, wanted: int) -> Iterator[slice]:
    """Where the values of a field lie that have a length of their own."""
    at = within.start
    while at < within.stop:
        head, at = _number(data, at)
        kind = head & 7
        if kind == 0:
            _, at = _number(data, at)
        elif kind == 2:
            length, at = _number(data, at)
            if head >> 3 == wanted:
                yield slice(at, at + length)
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"no protobuf at byte {at}")


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits in each byte, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("the file is cut short")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def noise(theta: Floats) -> Floats:
    """Another θ near this one, always the same: to see whether new weights arrive."""
    drawn = np.random.default_rng(0).standard_normal(len(theta), np.float32)
    return theta + 0.01 * drawn * float(np.abs(theta).mean())
