"""ONNX Runtime and OpenVINO on exported folders, without PyTorch: NumPy in, NumPy out."""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import openvino


inputs, *folders = sys.argv[1:]
core = openvino.Core()
for folder in map(Path, folders):
    given = dict(np.load(inputs))
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    feed = {port.name: given[port.name] for port in session.get_inputs()}
    found = {"onnx": session.run(["logits"], feed)[0]}
    compiled = core.compile_model(
        folder / "openvino" / "openvino_model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    found["openvino"] = compiled({port.any_name: given[port.any_name] for port in compiled.inputs})["logits"]
    np.savez(folder / "found.npz", **found)
assert "torch" not in sys.modules
