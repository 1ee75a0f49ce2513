"""ONNX Runtime's side of the benchmark: W1 padded, as a graph of its own fused operators."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import onnxruntime
import workloads as w
from onnx import TensorProto, helper, numpy_helper
from padded_peer import variants
from worker import serve

HEAD_DIM = w.DIM // w.HEADS


class Graph:
    """Nodes and constants of a model under construction."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, op, *inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names if outputs > 1 else names[0]


def engine():
    g = Graph()
    heads = g.constant(np.array([0, 0, w.HEADS, HEAD_DIM]))
    merged = g.constant(np.array([0, 0, w.DIM]))
    scale, hidden = g.constant(np.float32(HEAD_DIM**-0.5)), g.constant(np.float32(-np.inf))

    def linear(x, layer, name):
        return g.add("Add", g.add("MatMul", x, g.constant(layer[f"{name}_w"])), g.constant(layer[f"{name}_b"]))

    def norm(x, layer, name):
        return g.add("LayerNormalization", x, g.constant(layer[f"{name}_w"]), g.constant(layer[f"{name}_b"]))

    x = "x"
    for layer in w.decoder_weights():
        parts = g.add("Split", linear(norm(x, layer, "norm1"), layer, "qkv"), outputs=3, axis=-1, num_outputs=3)
        q, k, v = (
            g.add("Transpose", g.add("Reshape", part, heads), perm=perm)
            for part, perm in zip(parts, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=True)
        )
        scores = g.add("Where", "seen", g.add("Mul", g.add("MatMul", q, k), scale), hidden)
        attended = g.add("Transpose", g.add("MatMul", g.add("Softmax", scores), v), perm=(0, 2, 1, 3))
        x = g.add("Add", x, linear(g.add("Reshape", attended, merged), layer, "out"))
        up = g.add("Gelu", linear(norm(x, layer, "norm2"), layer, "up"))
        x = g.add("Add", x, linear(up, layer, "down"))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", w.DIM]),
        helper.make_tensor_value_info("seen", TensorProto.BOOL, ["batch", 1, "length", "length"]),
    ]
    output = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", "length", w.DIM])
    graph = helper.make_graph(g.nodes, "decoder", inputs, [output], g.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return lambda x, seen: session.run(None, {"x": x, "seen": seen})[0]


if __name__ == "__main__":
    serve(variants(engine))
