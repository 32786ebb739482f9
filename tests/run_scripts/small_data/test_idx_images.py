import gzip
import struct

import datasets
import numpy as np
import pytest

from tokenmixers.run_scripts import make_data


NAMES = {"train": "train", "validation": "t10k"}


def idx(array):
    """The bytes of an idx file, by the format's description."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    return {
        split: (random.integers(0, 256, (count, 5, 4)), np.arange(count) % 3)
        for split, count in (("train", 7), ("validation", 4))
    }


@pytest.fixture
def source(arrays, tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    for split, (images, labels) in arrays.items():
        (folder / f"{NAMES[split]}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{NAMES[split]}-labels-idx1-ubyte").write_bytes(idx(labels))
    return folder


def convert(source, tmp_path):
    make_data.main(["idx_images", "--input_dir", str(source), "--output_dir", str(tmp_path / "made")])


def test_pictures_and_classes_are_those_of_the_files(source, arrays, tmp_path):
    convert(source, tmp_path)
    for split, (images, labels) in arrays.items():
        rows = datasets.load_dataset(str(tmp_path / "made"), split=split)
        assert rows.features["label"].names == ["0", "1", "2"]
        assert rows["label"][:] == labels.tolist()
        assert np.array_equal(np.stack([np.asarray(image) for image in rows["image"][:]]), images)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train-labels-idx1-ubyte", None, "neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte.gz"),
        ("train-labels-idx1-ubyte", b"a,b,c\n", "begins with 61 2c 62 2c"),
        ("train-labels-idx1-ubyte", idx(np.arange(3))[:-1], "is damaged: 10 bytes for an array of shape"),
        ("train-labels-idx1-ubyte", bytes([0, 0, 8, 3, 0]), "is damaged"),
        ("train-labels-idx1-ubyte", idx(np.arange(3)), r"shapes \(7, 5, 4\) and \(3,\)"),
        ("train-images-idx3-ubyte.gz", b"no gzip", "cannot be decompressed"),
        ("t10k-images-idx3-ubyte.gz", gzip.compress(idx(np.arange(30)), mtime=0)[:-9], "cannot be decompressed"),
    ],
)
def test_mistakes_are_one_sentence(source, tmp_path, file, content, message):
    if content is None:
        (source / file).unlink()
    else:
        (source / file).write_bytes(content)
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        convert(source, tmp_path)
    assert not (tmp_path / "made").exists()
