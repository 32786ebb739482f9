"""Models as ONNX graphs in float32, float16 and int8, and for OpenVINO, as the libraries that read them expect it."""

import contextlib
import importlib
import importlib.metadata
import io
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packaging.version import Version
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from ..base.errors import UserError
from ..base.optional_packages import install_hint


#: Format -> its file: the names that sentence-transformers, Transformers.js and Optimum look for.
FILES = {
    "onnx": "onnx/model.onnx",
    "onnx-fp16": "onnx/model_fp16.onnx",
    "onnx-int8": "onnx/model_quantized.onnx",
    "openvino": "openvino/openvino_model.xml",
}

#: Value of `--formats` -> its description.
FORMATS = {
    "onnx": "ONNX in float32",
    "onnx-fp16": "ONNX with weights and operators in float16, for GPUs and browsers; inputs and outputs stay float32",
    "onnx-int8": "ONNX with int8 weights, and activations rounded on the fly",
    "openvino": "OpenVINO in float32; it computes in bfloat16 where the processor has that",
}

#: Oldest version of each package that writing or running a format needs: those of the extras.
ONNX_PACKAGES = {"onnx": "1.21", "onnxruntime": "1.27", "onnxscript": "0.7"}
OPENVINO_PACKAGES = {**ONNX_PACKAGES, "openvino": "2026.1"}

#: Most bytes of one ONNX file.
LARGEST = 2**31 - 2**26

Inputs = dict[str, torch.Tensor]


def check_packages(kinds: Iterable[str]) -> None:
    """Check that the packages that formats need are there, and new enough."""
    for kind in kinds:
        packages, extra = (OPENVINO_PACKAGES, "edge") if kind == "openvino" else (ONNX_PACKAGES, "export")
        for package, oldest in packages.items():
            try:
                importlib.import_module(package)
                found = importlib.metadata.version(package)
            except ImportError as error:  # also without the package's metadata
                raise UserError(f"the format {kind!r}: {error}; {install_hint(extra)}, or leave it out.") from error
            if Version(found) < Version(oldest):
                raise UserError(f"the format {kind!r} needs {package} {oldest} or newer, and this is {found}.")


def trace(model: PreTrainedModel, inputs: Inputs) -> Any:
    """A model as an `onnx_ir.Model` for any batch size and length, from inputs of at least two rows."""
    from transformers.exporters.auto import AutoHfExporter
    from transformers.exporters.configs import OnnxConfig

    size = sum(parameter.nbytes for parameter in model.parameters())
    if size > LARGEST:
        raise UserError(f"the weights have {size / 1e9:.1f} GB in float32, and one ONNX file holds 2 GB at most.")
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False  # it would be an output
    config = OnnxConfig(dynamic=True)
    with _quiet():
        graph = AutoHfExporter.from_config(config).export(model, inputs, config=config).program
    _number_fixed_axes(graph)
    return graph


def _number_fixed_axes(graph: Any) -> None:
    """Give axes of one size, such as those of an image, that size: tracing names them "3", and names allow any."""
    import onnx_ir

    for port in (*graph.graph.inputs, *graph.graph.outputs):
        sizes = [axis.value if isinstance(axis, onnx_ir.SymbolicDim) else axis for axis in port.shape]
        port.shape = onnx_ir.Shape([int(size) if str(size).isdigit() else size for size in sizes])


@contextlib.contextmanager
def _quiet():
    """No progress on standard output and no warnings: they are about other models' operators."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)
        transformers_logging.set_verbosity(verbosity)


def write(graph: Any, kind: str, path: Path) -> None:
    """Write a graph in a format."""
    import onnx_ir

    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "onnx":
        onnx_ir.save(graph, str(path))
    elif kind == "onnx-int8":
        onnx_ir.save(_in_int8(graph), str(path))
    elif kind == "onnx-fp16":
        import onnx

        onnx.save(_in_float16(onnx_ir.to_proto(graph)), str(path))
    else:
        import openvino

        program = openvino.convert_model(io.BytesIO(onnx_ir.to_proto(graph).SerializeToString()))
        openvino.save_model(program, str(path), compress_to_fp16=False)


def _in_float16(program: Any) -> Any:
    """A graph that computes in float16, except for what becomes an integer.

    An example are the buckets of T5's relative positions: rounding would move a distance to the next bucket.
    """
    from onnx import TensorProto
    from onnxruntime.transformers.float16 import convert_float_to_float16

    graph = program.graph
    makers = {output: node for node in graph.node for output in node.output}
    constants = {constant.name: constant for constant in graph.initializer}
    integers = (TensorProto.INT64, TensorProto.INT32)
    casts = [node for node in graph.node if node.op_type == "Cast"]
    waiting = [node for node in casts if any(field.name == "to" and field.i in integers for field in node.attribute)]
    kept = set()
    while waiting:
        node = waiting.pop()
        for place, name in enumerate(node.input):
            maker = makers.get(name)
            if maker is not None and maker.name not in kept:
                kept.add(maker.name)
                waiting += [maker] if maker.op_type != "Cast" else []  # from integers
            elif name in constants and constants[name].data_type == TensorProto.FLOAT:
                # A copy of its own, as others may read the constant in float16.
                copied = graph.initializer.add()
                copied.CopyFrom(constants[name])
                copied.name = node.input[place] = f"{name}_of_{node.name}_{place}"
    return convert_float_to_float16(program, keep_io_types=True, node_block_list=sorted(kept))


def _in_int8(graph: Any) -> Any:
    """Linear layers and embeddings in int8, with a scale for every output channel.

    Products of two activations stay in float32, and so do spatial projections, whose matrices are made from the
    weights for each length: rounding both gains no time. Weights have 7 bits (`reduce_range`): with 8, processors
    without VNNI instructions overflow.
    """
    from transformers.exporters import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer
    from transformers.exporters.configs import ExportFormat

    config = OnnxRuntimeDynamicConfig(per_channel=True, reduce_range=True)
    with _quiet():  # it would say that a graph should be preprocessed, which the exporter has done
        return OnnxRuntimeQuantizer(config).quantize(graph, {}, ExportFormat.ONNX)


class Program:
    """An exported file, called with tensors by name. `float32` is for OpenVINO, which prefers bfloat16."""

    def __init__(self, path: Path, float32: bool = False):
        if path.suffix == ".xml":
            import openvino

            precision = {"INFERENCE_PRECISION_HINT": "f32"} if float32 else {}
            self._program = openvino.compile_model(str(path), "CPU", precision)
            self.inputs = [port.any_name for port in self._program.inputs]
            self.outputs = [port.any_name for port in self._program.outputs]
        else:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            options.log_severity_level = 3
            self._program = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            self.inputs = [port.name for port in self._program.get_inputs()]
            self.outputs = [port.name for port in self._program.get_outputs()]

    def __call__(self, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The outputs by name. Inputs that the program does not read are left out."""
        feed = {name: np.asarray(inputs[name]) for name in self.inputs}
        if hasattr(self._program, "run"):
            found = self._program.run(self.outputs, feed)
        else:
            results = self._program(feed)
            found = [results[name] for name in self.outputs]
        return {name: torch.from_numpy(np.array(value)) for name, value in zip(self.outputs, found, strict=True)}


def size_of(path: Path) -> int:
    """Bytes of an exported file, including the separate file of OpenVINO's weights."""
    return sum(os.path.getsize(part) for part in (path, path.with_suffix(".bin")) if part.is_file())
