"""Formats of models of sentence embeddings, and the files of those that are exported."""

from pathlib import Path

from transformers.utils import cached_file

from ..base.errors import UserError, report_unreadable


#: Value of `--formats` -> its description.
FORMATS = {
    "float32": "PyTorch",
    "bfloat16": "PyTorch with half the size",
    "onnx": "ONNX Runtime, from onnx/model.onnx",
    "onnx-int8": "ONNX Runtime, from onnx/model_quantized.onnx or model_qint8_*.onnx",
}

#: Format -> patterns of its file in the folder `onnx` of a checkpoint; the first that is there counts.
ONNX_FILES = {
    "onnx": ("model.onnx",),
    "onnx-int8": ("model_quantized.onnx", "model_qint8*.onnx", "model_quint8*.onnx"),
}

_WEIGHTS = ("*.safetensors", "*.bin", "*.index.json", "*/*.safetensors")


def has_format(name: str, kind: str) -> bool:
    """Whether a checkpoint has the files of a format; of a Hub id this is assumed."""
    folder = Path(name)
    if not folder.is_dir():
        return True
    if kind in ONNX_FILES:
        return any(found for pattern in ONNX_FILES[kind] for found in folder.glob(f"onnx/{pattern}"))
    return not (folder / "onnx").is_dir() or any(found for pattern in _WEIGHTS for found in folder.glob(pattern))


def find_file(name: str, kind: str) -> Path:
    """The ONNX file of a checkpoint."""
    for pattern in ONNX_FILES[kind]:
        if Path(name).is_dir():
            if found := sorted(Path(name).glob(f"onnx/{pattern}")):
                return found[0]
        elif "*" not in pattern:
            with report_unreadable(name):
                file = cached_file(name, f"onnx/{pattern}", _raise_exceptions_for_missing_entries=False)
            if file is not None:
                return Path(file)
    raise UserError(f"{name!r} has no onnx/{ONNX_FILES[kind][0]}: export it first, or leave the format {kind!r} out.")
