"""Checkpoints in the formats that other runtimes read: ONNX and OpenVINO."""
