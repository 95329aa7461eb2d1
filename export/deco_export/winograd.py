"""3 × 3 convolutions with a quarter of the multiplications: Winograd's F(4 × 4, 3 × 3), in standard operators.

A tile of 4 × 4 outputs needs 6 × 6 inputs d and the filter w: y = Aᵀ[(G w Gᵀ) ⊙ (Bᵀ d B)]A, where ⊙ multiplies element
by element, 36 times in place of 144. Over channels and tiles these are 36 products of matrices, (out × in) · (in ×
tiles of all images). Lavin & Gray 2016, https://arxiv.org/abs/1509.09308.

It rounds five times as much as a plain convolution, and a ReLU behind it makes that visible: more units that are near
their kink fall on the other side. So the forward graph keeps its convolutions, and `autodiff_linear` differentiates
this form in their place: the gradients are the same 36 products, with what is transformed shared between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from deco_export.onnx_graph import Graph, Shape

TILE, PATCH, PLACES = 4, 6, 36
"""Outputs along a side of a tile, inputs along the same, and inputs of the whole."""
POINTS = (0, Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2))
"""Where the polynomials of Toom and Cook are evaluated, and at infinity. With these, the errors of float32 are half of
those with the usual 0, ±1, ±2."""
CHANNELS, SIDE = 32, 8
"""Least numbers of input and output channels and sides of the map for which this is faster."""
SMALL_MAP = 64
"""Pixels of the largest map that is transformed by one matrix; a larger one is by rows and then by columns."""


def suits(s: Mapping[str, Any], w_shape: Shape) -> bool:
    """Whether a convolution of these sizes is dense, 3 × 3, of stride 1, with an output of the input's size, of whole
    tiles, and wide enough.

    s: as of `autodiff_linear`. w_shape: (out, in / group, 3, 3).
    """
    plain = (s["kernel"], s["stride"], s["dilation"], s["pads"], s["group"]) == ([3, 3], [1, 1], [1, 1], [1] * 4, 1)
    enough = min(int(d) for d in w_shape[:2]) >= CHANNELS and min(s["input"]) >= SIDE
    return plain and enough and not any(side % TILE for side in s["input"])


def convolution(g: Graph, x: str, w: str) -> str:
    """y (N, out, H, W) of x (N, in, H, W) and w (out, in, 3, 3), for sizes that it suits."""
    _, channels, *sides = (int(d) if d != "N" else 0 for d in g.shape(x))
    out, rows, columns = int(g.shape(w)[0]), *(side // TILE for side in sides)
    products = _op(g, (PLACES, out, "N"), "MatMul", _filters(g, w), _tiles(g, x, channels, sides))
    # Aᵀ · A of every tile, with the pixels of a tile as channels, and then side by side
    output = transforms()[0]
    flat = _op(g, (PLACES, "N"), "Reshape", products, g.integers([PLACES, -1]))
    made = _op(g, (TILE**2, "N"), "MatMul", g.constant(np.kron(output, output)), flat)
    made = _reshaped(g, made, (TILE**2 * out, "N", rows * columns))
    made = _op(g, ("N", TILE**2 * out, rows * columns), "Transpose", made, perm=[1, 0, 2])
    made = _reshaped(g, made, ("N", TILE**2 * out, rows, columns))
    return _op(g, ("N", out, *sides), "DepthToSpace", made, blocksize=TILE, mode="DCR")


def _filters(g: Graph, w: str) -> str:
    """w (out, in, 3, 3) → G w Gᵀ (36, out, in)."""
    out, channels = (int(d) for d in g.shape(w)[:2])
    taps = _op(g, (9, out * channels), "Transpose", _reshaped(g, w, (out * channels, 9)), perm=[1, 0])
    filters = transforms()[1]
    spread = _op(g, (PLACES, out * channels), "MatMul", g.constant(np.kron(filters, filters)), taps)
    return _reshaped(g, spread, (PLACES, out, channels))


def _tiles(g: Graph, x: str, channels: int, sides: list[int]) -> str:
    """x (N, channels, H, W) → Bᵀ d B of every tile d, (36, channels, N · tiles)."""
    down, across = (_along(side) for side in sides)
    rows, columns = (side // TILE for side in sides)
    if prod(sides) <= SMALL_MAP:
        whole = np.einsum("ity,jsx->ijtsyx", down, across).reshape(PLACES * rows * columns, prod(sides))
        flat = _reshaped(g, x, ("N", channels, prod(sides)))
        spread = _op(g, ("N", channels, len(whole)), "MatMul", flat, g.constant(whole.T))
        parts = _reshaped(g, spread, ("N", channels, PLACES, rows * columns))
        parts = _op(g, (PLACES, channels, "N", rows * columns), "Transpose", parts, perm=[2, 1, 0, 3])
    else:
        left, right = down.reshape(PATCH * rows, -1), across.reshape(PATCH * columns, -1)
        spread = _op(g, ("N", channels, sides[0], len(right)), "MatMul", x, g.constant(right.T))
        spread = _op(g, ("N", channels, len(left), len(right)), "MatMul", g.constant(left), spread)
        parts = _reshaped(g, spread, ("N", channels, PATCH, rows, PATCH, columns))
        to: Shape = (PATCH, PATCH, channels, "N", rows, columns)
        parts = _op(g, to, "Transpose", parts, perm=[2, 4, 1, 0, 3, 5])
    return _op(g, (PLACES, channels, "N"), "Reshape", parts, g.integers([PLACES, channels, -1]))


def _along(side: int) -> np.ndarray:
    """Bᵀ for every tile along one side, with a border of zeros around the pixels: (6, tiles, pixels)."""
    matrix = np.zeros((PATCH, side // TILE, side + 2))
    for tile in range(side // TILE):
        matrix[:, tile, tile * TILE : tile * TILE + PATCH] = transforms()[2]
    return matrix[..., 1:-1]


def _op(g: Graph, shape: Shape, kind: str, *inputs: str, **attributes: Any) -> str:
    """A node whose output has this shape, where "N" is whatever depends on the batch."""
    name = str(g.op(kind, *inputs, **attributes))
    g.shapes[name] = shape
    return name


def _reshaped(g: Graph, value: str, shape: Shape) -> str:
    return _op(g, shape, "Reshape", value, g.integers([-1 if d == "N" else int(d) for d in shape]))


def transforms() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Aᵀ (4, 6), G (6, 3) and Bᵀ (6, 6), by polynomials through POINTS and infinity."""
    output = [[point**power for point in POINTS] + [int(power == TILE - 1)] for power in range(TILE)]
    filters, patch = [], []
    for point in POINTS:
        others = [other for other in POINTS if other != point]
        scale = prod(point - other for other in others)
        filters.append([point**power / scale for power in range(3)])
        patch.append([*_polynomial(others), 0])
    filters.append([0, 0, 1])
    patch.append(_polynomial(POINTS))
    a, g, b = (np.array(rows, float) for rows in (output, filters, patch))
    return a, g, b


def _polynomial(roots: tuple[Fraction | int, ...] | list[Fraction | int]) -> list[Fraction | int]:
    """Coefficients of Π (x − root), the constant first."""
    found: list[Fraction | int] = [1]
    for root in roots:
        found = [above - root * here for above, here in zip([0, *found], [*found, 0], strict=True)]
    return found
