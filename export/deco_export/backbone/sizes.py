"""A graph followed at two batch sizes at once: what is constant is folded, what holds the batch is set free.

A file exported at a fixed batch holds that size in the targets of its reshapes, and one exported at a free batch
computes them from Shape nodes. Both are read off the same way: every value's sizes are inferred at the batch of the
file and at another one. Whatever comes out different depends on the batch, and is said again through it; whatever
comes out the same is a constant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import prod

import numpy as np
import onnx
import onnxruntime as ort
from deco_runtime.errors import ExportError, first_line
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_node_outputs

from deco_export.backbone.mend import MENDED
from deco_export.onnx_graph import IR_VERSION, OPSET, attributes

OTHER = 10007  # the second batch size: a prime that no size of a network is likely to be a multiple of
_OPSETS = [helper.make_opsetid("", OPSET)]
_FOLDED = 2**28  # elements: a constant that grows beyond this on folding stays computed
_LOOPS = ("Loop", "Scan")
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")

Dims = tuple[int, ...]


class Sizes:
    """Nodes and constants of the graph so far, and of every value its type and its sizes at both batch sizes.

    batch: the batch size of the file. literal: whether the file's own reshapes are true at every batch size, as those
    of a file with a free batch should be; if not, a size that can be the batch's is.
    """

    def __init__(self, shape: Sequence[int], batch: int, literal: bool, taken: set[str]) -> None:
        self.batch, self.literal, self._taken, self._count = batch, literal, taken, 0
        self.x = x = self.fresh("image")
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.kinds: dict[str, int] = {x: TensorProto.FLOAT}
        self.dims: dict[str, tuple[Dims, Dims]] = {x: ((batch, *shape), (OTHER, *shape))}
        self.within: dict[str, int] = {}  # where images lie not first in their dimension: how many rows are ahead
        self.known: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._alias: dict[str, str] = {}
        self._maker: dict[str, onnx.NodeProto] = {}
        self._pixels: dict[str, str] = {}  # a value as uint8 → the same as float32
        self._said: dict[str, str] = {}  # sizes known at both → the same computed from the batch
        self._parts: dict[tuple[int, int], str] = {}  # the same for single sizes: so many per image, and so many more

    def fresh(self, hint: str) -> str:
        """A value name that neither the file nor this graph has used."""
        while (name := f"{hint}.{self._count}") in self._taken:
            self._count += 1
        self._taken.add(name)
        return name

    def name(self, value: str) -> str:
        """The value that stands for one of the file, whose own node may have fallen away."""
        while value in self._alias:
            value = self._alias[value]
        return value

    def constant(self, array: np.ndarray, name: str = "") -> str:
        """Add a constant; returns its name."""
        name = name or self.fresh("constant")
        self.constants[name] = array
        self.known[name] = (array, array)
        self.kinds[name] = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.dims[name] = (array.shape, array.shape)
        return name

    def integers(self, values: Sequence[int]) -> str:
        """An int64 vector constant."""
        return self.constant(np.array(values, np.int64))

    def op(self, kind: str, *inputs: str, **attrs: object) -> str:
        """Append a node of this module's own; returns its output's name."""
        out = self.fresh(kind)
        self.add(helper.make_node(kind, list(inputs), [out], **attrs))
        return self.name(out)

    def take(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """Follow nodes of opset 18, in topological order. Raises ExportError where one cannot be followed."""
        waiting = deque(nodes)
        while waiting:
            node = waiting.popleft()
            if node.op_type == "If":
                waiting.extendleft(reversed(self._branch(node)))
            elif node.op_type in _LOOPS:
                raise ExportError(
                    f"expected a network without loops, but it has a {node.op_type}; export it from traced tensors only"
                )
            else:
                self.add(node)

    def add(self, node: onnx.NodeProto) -> None:
        """Append one node of opset 18, folded if its inputs are constant, its sizes freed of the batch."""
        new = onnx.NodeProto()
        new.CopyFrom(node)
        for i, name in enumerate(new.input):
            new.input[i] = self.name(name)
            if new.input[i] and new.input[i] not in self.kinds:
                raise ExportError(
                    f"expected every value to come from a node before, but {name!r} of {node.op_type} does not; "
                    "export the model again"
                )
        if self._falls_away(new) or self._folded(new):
            return
        if new.op_type in MENDED:
            MENDED[new.op_type](self, new)
        for i, name in enumerate(new.input):
            if name in self.known and name not in self.constants:
                new.input[i] = self._from_batch(name)
        kinds, now, other = self._infer(new)
        unchanged = new.op_type in ("Reshape", "Expand") and self.dims.get(new.input[0]) == (now[0], other[0])
        if unchanged and kinds[0] == self.kinds[new.input[0]]:
            self._alias[new.output[0]] = new.input[0]
            return
        self.nodes.append(new)
        within = max((self.within.get(n, 1) for n in new.input), default=1)
        for i, name in enumerate(n for n in new.output if n):
            if within > 1:
                self.within.setdefault(name, within)
            self.kinds[name] = kinds[i]
            self._maker[name] = new
            both = now[i], other[i]
            if both[0] is not None and both[1] is not None:
                self.dims[name] = (both[0], both[1])

    def symbolic(self, name: str) -> list[int | str] | None:
        """Sizes of a value, the batch as "N" and k times the batch as "k*N"; None where they are not known."""
        if name not in self.dims:
            return None
        sizes: list[int | str] = []
        for now, other in zip(*self.dims[name], strict=True):
            per, rest = divmod(other, OTHER)
            if now != other and rest:
                return None
            sizes.append(now if now == other else "N" if per == 1 else f"{per}*N")
        return sizes

    def let(self, name: str, value: str) -> None:
        """Have a value of this graph stand for one of the file."""
        self._alias[name] = value

    def _branch(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes of the branch that an If with a constant condition takes, its outputs named as the If's."""
        condition = self.known.get(self.name(node.input[0]))
        if condition is None or bool(condition[0].ravel()[0]) != bool(condition[1].ravel()[0]):
            raise ExportError(
                "expected a network that computes the same for every image, but it has an If that depends on the "
                "input; export it from traced tensors only"
            )
        branch = attributes(node)["then_branch" if condition[0].ravel()[0] else "else_branch"]
        names = {o.name: name for o, name in zip(branch.output, node.output, strict=True)}
        made = {name for n in branch.node for name in n.output} | {t.name for t in branch.initializer}
        for name in made - set(names):  # two branches may use one name, which is then one value here
            names[name] = self.fresh(name)
        for t in branch.initializer:
            self.constant(numpy_helper.to_array(t), names[t.name])
        nodes = [_renamed(inner, {name: names[name] for name in made}) for inner in branch.node]
        through = [o.name for o in branch.output if o.name not in made]  # a value from outside, as it is
        nodes += [helper.make_node("Identity", [n], [names[n]]) for n in through]
        return nodes

    def _falls_away(self, node: onnx.NodeProto) -> bool:
        """Whether a node does nothing at inference; if so its output stands for its input from here on."""
        x = node.input[0] if node.input else ""
        kind, maker = node.op_type, self._maker.get(x)
        nothing: bool = kind == "Identity"
        if kind in ("Dropout", "BatchNormalization"):
            mode = self.known.get(node.input[2]) if kind == "Dropout" and len(node.input) > 2 else None
            training = (mode is not None and mode[0].any()) or attributes(node).get("training_mode")
            if training and x not in self.known:  # of weights alone it is their normalization
                raise ExportError(
                    f"expected a network in evaluation mode, but its {kind} is in training mode; "
                    "export it after model.eval()"
                )
            nothing = kind == "Dropout"
        if kind == "Cast":
            to = attributes(node)["to"]
            if to == TensorProto.FLOAT and x in self._pixels:
                x, nothing = self._pixels[x], True
            nothing = nothing or self.kinds[x] == to
        if kind == "CastLike":
            nothing = self.kinds[x] == self.kinds[node.input[1]]
        if kind == "Transpose" and "perm" in attributes(node):
            perm = attributes(node)["perm"]
            if x in self._pixels:  # what moves pixels about can as well do so before they are rounded
                moved = self.op("Transpose", self._pixels[x], perm=perm)
                self.as_pixels(moved, node.output[0])
                return True
            if maker is not None and maker.op_type == "Transpose":
                perm = [attributes(maker)["perm"][i] for i in perm]
                x = node.input[0] = maker.input[0]
                node.CopyFrom(helper.make_node("Transpose", [x], list(node.output), name=node.name, perm=perm))
            nothing = list(perm) == sorted(perm)
        if nothing:
            self._alias[node.output[0]] = x
        return nothing

    def as_pixels(self, value: str, name: str) -> None:
        """Give a float32 value of whole numbers 0 … 255 as uint8 under this name."""
        node = helper.make_node("Cast", [value], [name], to=TensorProto.UINT8)
        self.nodes.append(node)
        self._maker[name], self._pixels[name] = node, value
        self.kinds[name], self.dims[name] = TensorProto.UINT8, self.dims[value]

    def _folded(self, node: onnx.NodeProto) -> bool:
        """Compute a node whose inputs are all known, at either batch size; whether that was possible."""
        if node.op_type in ("Shape", "Size") and node.input[0] in self.dims:
            start, end = attributes(node).get("start", 0), attributes(node).get("end")
            pair = [np.array(d[start:end], np.int64) for d in self.dims[node.input[0]]]
            if node.op_type == "Size":
                pair = [np.array(prod(d), np.int64) for d in self.dims[node.input[0]]]
            self.learn(node.output[0], pair[0], pair[1])
            return True
        if node.op_type in _RANDOM:
            raise ExportError(
                f"expected a network without chance, but it has a {node.op_type}; export it after model.eval()"
            )
        if any(n and n not in self.known for n in node.input):
            return False
        constant = all(n in self.constants for n in node.input if n)
        kinds, now, other = self._infer(node)
        if not constant and any(d is None or prod(d) > 1024 for d in other):
            return False  # not sizes any more, but values as many as the images
        if any(d is not None and prod(d) > _FOLDED for d in now):
            return False
        results = []
        for which in (0,) if constant else (0, 1):
            values = {n: self.known[n][which] for n in node.input if n}
            computed = _compute(node, values, kinds)
            if computed is None:
                return False
            results.append(computed)
        for name, first, second in zip([n for n in node.output if n], results[0], results[-1], strict=True):
            self.learn(name, first, second)
        return True

    def learn(self, name: str, now: np.ndarray, other: np.ndarray) -> None:
        """Give a value that is known at both batch sizes a name; where both are the same it is a constant."""
        if now is other or (now.shape == other.shape and np.array_equal(now, other)):
            self.constant(now, name)
            return
        self.known[name] = (now, other)
        self.kinds[name] = helper.np_dtype_to_tensor_dtype(now.dtype)
        self.dims[name] = (now.shape, other.shape)

    def _from_batch(self, name: str) -> str:
        """A value of sizes, known at both batch sizes, computed from the number of images."""
        if name in self._said:
            return self._said[name]
        now, other = self.known[name]
        per = (other.astype(np.float64) - now) / (OTHER - self.batch)
        if now.ndim > 1 or now.shape != other.shape or np.any(per != np.round(per)):
            raise ExportError(
                "expected sizes that are the batch, a multiple of it or fixed, but the network computes others from "
                "it; keep the batch first and apart in every reshape of the model"
            )
        parts = [self._times(int(k), int(v)) for k, v in zip(per.ravel(), now.ravel(), strict=True)]
        out = self._plain("Concat", now.shape, *parts, axis=0) if now.ndim else self._plain("Squeeze", (), parts[0])
        kind = helper.np_dtype_to_tensor_dtype(now.dtype)
        out = out if kind == TensorProto.INT64 else self._plain("Cast", now.shape, out, to=kind)
        self._said[name] = self._said[out] = out
        self.learn(out, now, other)  # inference reads targets off their values
        return out

    def _times(self, per: int, size: int) -> str:
        """One size, `size` at the batch of the file and `per` more for each image more, int64 (1,)."""
        key = per, size - per * self.batch
        if key not in self._parts:
            part = self.integers([size])
            if per:
                part = (
                    self._times(1, self.batch) if key != (1, 0) else self._plain("Shape", (1,), self.x, start=0, end=1)
                )
            if per > 1 or per < 0:
                part = self._plain("Mul", (1,), part, self.integers([per]))
            if per and key[1]:
                part = self._plain("Add", (1,), part, self.integers([key[1]]))
            self._parts[key] = part
        return self._parts[key]

    def _plain(self, kind: str, shape: Dims, *inputs: str, **attrs: object) -> str:
        """A node that is not folded, for all that its value is known at both batch sizes."""
        out = self.fresh(kind)
        self.nodes.append(helper.make_node(kind, list(inputs), [out], **attrs))
        self.kinds[out], self.dims[out] = TensorProto.INT64, (shape, shape)
        return out

    def _infer(self, node: onnx.NodeProto) -> tuple[list[int], list[Dims | None], list[Dims | None]]:
        """Types of a node's outputs, and their sizes at both batch sizes: None where they are not fixed."""
        kinds: list[int] = []
        sizes: list[list[Dims | None]] = []
        for which in (0, 1):
            values = {
                n: numpy_helper.from_array(self.known[n][which])
                for n in node.input
                if n in self.known and self.known[n][which].size <= 1024
            }
            try:
                types = {n: helper.make_tensor_type_proto(self.kinds[n], self._size(n, which)) for n in node.input if n}
                schema = onnx.defs.get_schema(node.op_type, OPSET, "")
                found = infer_node_outputs(schema, node, types, values, opset_imports=_OPSETS, ir_version=IR_VERSION)
            except Exception as error:  # onnx has no one class for what its C++ finds wrong
                what = "{2}×{3} images".format(*self.dims[self.x][0]) if which == 0 else "any number of images at once"
                do = "give the size it was trained for" if which == 0 else "export it with a free batch size"
                raise ExportError(
                    f"expected a network that takes {what}, but {node.op_type} {node.output[0]!r} does not "
                    f"({first_line(error)}); {do}"
                ) from error
            outputs = [found.get(n, onnx.TypeProto()) for n in node.output if n]
            if any(t.WhichOneof("value") != "tensor_type" for t in outputs):
                raise ExportError(
                    f"expected a network of tensors only, but {node.op_type} gives something else; export it without"
                )
            kinds = [t.tensor_type.elem_type for t in outputs]
            sizes.append([_fixed(t) for t in outputs])
        return kinds, sizes[0], sizes[1]

    def _size(self, name: str, which: int) -> Dims | None:
        return self.dims[name][which] if name in self.dims else None

    def carrying(self, name: str) -> int | None:
        """The one dimension of a value that grows with the batch; None if there is none, or not just one."""
        places = [i for i, (a, b) in enumerate(zip(*self.dims[name], strict=True)) if a != b]
        return places[0] if len(places) == 1 else None


def _renamed(node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
    """A copy of a node with other names for values, in the graphs inside it too."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(n, n) for n in node.input]
    copy.output[:] = [names.get(n, n) for n in node.output]
    for attribute in copy.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            inner = [_renamed(n, names) for n in attribute.g.node]
            del attribute.g.node[:]
            attribute.g.node.extend(inner)
            for out in attribute.g.output:
                out.name = names.get(out.name, out.name)
    return copy


def _fixed(kind: onnx.TypeProto) -> Dims | None:
    tensor = kind.tensor_type
    if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    return tuple(d.dim_value for d in tensor.shape.dim)


def _compute(node: onnx.NodeProto, values: dict[str, np.ndarray], kinds: list[int]) -> list[np.ndarray] | None:
    """A node's outputs, by ONNX Runtime or by onnx; None where neither can."""
    outputs = [n for n in node.output if n]
    graph = helper.make_graph(
        [node],
        "constant",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in values.items()
        ],
        [helper.make_tensor_value_info(n, kind, None) for n, kind in zip(outputs, kinds, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=_OPSETS, ir_version=IR_VERSION)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(v) for v in session.run(outputs, values)]
    except Exception:  # whatever ONNX Runtime raises where it lacks a kernel, as for batch norm of weights
        try:
            return [np.asarray(v) for v in ReferenceEvaluator(model).run(outputs, values)]
        except Exception:  # then it stays a node
            return None
