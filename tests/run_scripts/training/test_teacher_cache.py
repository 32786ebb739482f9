import datasets
import pytest
import torch
from PIL import Image
from transformers import BertConfig, BertForSequenceClassification

from tokenmixers.run_scripts.base.errors import BadDataError
from tokenmixers.run_scripts.training.distillation import Distillation, TokenDistillation
from tokenmixers.run_scripts.training.teacher_cache import TEACHER_LOGITS, CachingCollator, LogitsFiles, fingerprint


@pytest.fixture
def rows():
    """Logits of seven rows with 0 to 3 tokens each."""
    return [torch.randn(count, 5) for count in (2, 0, 3, 1, 1, 0, 2)]


def written(files, rows):
    files.folder.mkdir(parents=True)
    for number in range(len(files)):
        files.write(number, [rows[row] for row in files.rows_of(number)])
    return files


@pytest.mark.parametrize("per_file", [1, 3, 7, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_read_as_written(per_file, dtype, rows, tmp_path):
    rows = [row.to(dtype) for row in rows]
    files = written(LogitsFiles(tmp_path / "cache", 7, per_file, 5), rows)
    assert len(list(files.folder.iterdir())) == -(-7 // per_file)
    for index in (6, 0, 1, 2, 3, 4, 5):
        assert torch.equal(files[index], rows[index])
        assert files[index].dtype == dtype


def test_rows_of_several_lengths(tmp_path):
    rows = [torch.randn(2, width) for width in (4, 1, 6)]
    files = written(LogitsFiles(tmp_path / "cache", 3, 2, None, top_k=2), rows)  # has no meaning here
    assert all(torch.equal(files[index], row) for index, row in enumerate(rows))


def test_the_highest_logits_are_kept(rows, tmp_path):
    files = written(LogitsFiles(tmp_path / "cache", 7, 3, 5, top_k=2), rows)
    for index, row in enumerate(rows):
        found = files[index]
        assert found.shape == row.shape
        for values, kept in zip(row, found, strict=True):
            best = values.sort(descending=True).indices[:2]
            assert torch.equal(kept[best], values[best])
            assert kept.isinf().sum() == 3


@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_damaged_files_are_named(damage, rows, tmp_path):
    files = written(LogitsFiles(tmp_path / "cache", 7, 3, 5), rows)
    if damage == "missing":
        files.path(1).unlink()
    else:
        files.path(1).write_bytes(files.path(1).read_bytes()[:-4])
    assert torch.equal(files[0], rows[0])
    with pytest.raises(BadDataError, match=r"logits-00001-of-00003.safetensors' cannot be read .* remove that file"):
        files[3]


def test_batches_get_the_logits_of_their_rows(rows, tmp_path):
    files = written(LogitsFiles(tmp_path / "cache", 7, 3, 5), rows)
    collate = CachingCollator(lambda rows: {"numbers": [row["x"] for row in rows]}, TokenDistillation, files)
    batch = collate([{"x": 10 * row, "teacher_row": row} for row in (4, 0, 5)])
    assert batch["numbers"] == [40, 0, 50]
    assert torch.equal(batch[TEACHER_LOGITS], torch.cat([rows[4], rows[0]]))
    assert collate([{"x": 1}]) == {"numbers": [1]}  # rows of an evaluation
    assert CachingCollator(collate.collator, Distillation)([{"x": 1, "teacher_row": 0}]) == {"numbers": [1]}


def test_fingerprints(tmp_path):
    """Equal for equal teachers and rows, however these are stored; another one for any change."""

    def teacher(**changes):
        sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
        torch.manual_seed(0)
        return BertForSequenceClassification(BertConfig(vocab_size=9, **{**sizes, **changes}))

    ids = [[1, 2], [3], [4, 5, 6]]
    data = datasets.Dataset.from_dict({"input_ids": ids})
    first = fingerprint(teacher(), data, {"seed": 1})
    assert len(first) == 32
    data.save_to_disk(tmp_path / "data")
    others = datasets.Dataset.from_dict({"input_ids": [[7], *ids[::-1]]})
    copies = (datasets.load_from_disk(tmp_path / "data"), others.select([3, 2, 1]))
    assert {fingerprint(teacher(), copy, {"seed": 1}) for copy in copies} == {first}
    teacher().save_pretrained(tmp_path / "teacher")
    assert fingerprint(BertForSequenceClassification.from_pretrained(tmp_path / "teacher"), data, {"seed": 1}) == first
    changed = teacher()
    changed.classifier.bias.data[0] += 1e-6
    found = {
        first,
        fingerprint(changed, data, {"seed": 1}),
        fingerprint(teacher(layer_norm_eps=1e-3), data, {"seed": 1}),
        fingerprint(teacher(), data.select([0, 2, 1]), {"seed": 1}),
        fingerprint(teacher(), data, {"seed": 2}),
    }
    assert len(found) == 5


def test_a_changed_image_file_is_other_data(tmp_path):
    model = torch.nn.Linear(1, 1)
    model.config = BertConfig()
    file = tmp_path / "a.png"
    data = datasets.Dataset.from_dict({"image": [str(file)]}).cast_column("image", datasets.Image(decode=False))
    found = []
    for size in (8, 9):
        Image.new("RGB", (size, size)).save(file)
        found += [fingerprint(model, data, {}), fingerprint(model, data, {})]
    assert found[0] == found[1] != found[2] == found[3]
