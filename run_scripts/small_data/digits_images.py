"""Write scikit-learn's handwritten digits as an image data set.

tokenmixers make_data digits_images --output_dir outputs/quickstart/digits
"""

from pathlib import Path

import datasets
import numpy as np
from PIL import Image

from ..base.optional_packages import import_optional


def write(folder: Path) -> None:
    """Write the data set to a new or empty folder."""
    load_digits = import_optional("sklearn.datasets", "digits", "this command").load_digits
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    held_out = len(order) // 5
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=[str(digit) for digit in range(10)])}
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("validation", order[:held_out]), ("train", order[held_out:])):
        rows = {
            "image": [Image.fromarray((digits.images[i] * 255 / 16).astype(np.uint8)) for i in chosen],
            "label": [int(digits.target[i]) for i in chosen],
        }
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{name}.parquet")
        print(f"{name}: {len(chosen):,} images of 8 x 8 pixels")
