"""Convert images in MNIST's file format (idx) to an image data set.

tokenmixers make_data idx_images --input_dir fashion-mnist --output_dir outputs/fashion-mnist
"""

import gzip
import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import numpy as np
from PIL import Image

from ..base.errors import UserError
from . import OutputArguments


#: Split of the data set -> prefix of its files.
SPLITS = {"train": "train", "validation": "t10k"}
UNSIGNED_BYTES = 8  # the only type in these data sets


@dataclass
class Arguments(OutputArguments):
    """Where from and where to."""

    input_dir: str = field(
        metadata={"help": "Folder with train-images-idx3-ubyte, train-labels-idx1-ubyte and t10k-..., maybe with .gz."}
    )


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes from an idx file, compressed if its name ends in .gz.

    Format: two zero bytes, the type, the number of dimensions, each dimension as a big-endian 32-bit integer, and the
    data.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} cannot be decompressed: {error}. Fetch it again.") from error
    if len(content) < 4 or content[:3] != bytes([0, 0, UNSIGNED_BYTES]):
        raise UserError(
            f"{path} is not an idx file of bytes: it begins with {content[:4].hex(' ')}, not with 00 00 08."
        )
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise UserError(f"{path} is damaged: {len(content):,} bytes for an array of shape {shape}. Fetch it again.")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def find_idx(folder: Path, name: str) -> Path:
    """The file `name`, compressed or not."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise UserError(f"--input_dir: there is neither {name} nor {name}.gz in {str(folder)!r}.")


def write(folder: Path, arguments: Arguments) -> None:
    """Write the data set to a new or empty folder."""
    source = Path(arguments.input_dir)
    arrays = {
        split: (
            read_idx(find_idx(source, f"{prefix}-images-idx3-ubyte")),
            read_idx(find_idx(source, f"{prefix}-labels-idx1-ubyte")),
        )
        for split, prefix in SPLITS.items()
    }
    for split, (images, labels) in arrays.items():
        if images.ndim != 3 or images.size == 0 or labels.shape != images.shape[:1]:
            raise UserError(
                f"the {split} files are not images with classes: shapes {images.shape} and {labels.shape}; "
                "expected are (images, height, width) and (images,)."
            )
    num_labels = 1 + max(int(labels.max()) for _, labels in arrays.values())
    names = [str(label) for label in range(num_labels)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    folder.mkdir(parents=True, exist_ok=True)
    for split, (images, labels) in arrays.items():
        rows = {"image": [Image.fromarray(image) for image in images], "label": labels.tolist()}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{split}.parquet")
        print(f"{split}: {len(labels):,} images of {images.shape[2]} x {images.shape[1]} pixels")
