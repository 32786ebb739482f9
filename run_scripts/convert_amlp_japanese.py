"""Convert a checkpoint of aMLP-japanese to a Transformers checkpoint.

tokenmixers convert_amlp_japanese --source aMLP-base-ja.pt --output_dir amlp-base-ja
"""

import json
import pickle
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..modeling.conversion.amlp_japanese import DROPOUT, amlp_from_japanese
from ..tokenization.amlp_japanese import VocabularyError, amlp_japanese_tokenizer
from .base.arguments import check_new_folder, parse_arguments
from .base.errors import UserError
from .base.new_checkpoint import new_checkpoint
from .base.optional_packages import import_optional
from .training.converted_card import converted_card


REPOSITORY = "https://github.com/tanreinama/aMLP-japanese"

#: Class of the model -> its pipeline.
PIPELINES = {
    "AMLPForMaskedLM": "fill-mask",
    "AMLPForQuestionAnswering": "question-answering",
    "AMLPForSequenceClassification": "text-classification",
}
ORIGIN = f"[aMLP-japanese]({REPOSITORY})"
TRAINING = " They were trained by the author of aMLP-japanese, who publishes them under the MIT licence."
DIFFERENCES = """## What differs from the paper

"Pay Attention to MLPs" ([arXiv 2105.08050](https://arxiv.org/abs/2105.08050)) describes another block. Here the
activation is SiLU and acts on the block's output as well, tiny attention reads the block's input before the norm,
spatial weights are full matrices, no norm follows the last block, and a linear map comes before the language modelling
head."""


@dataclass
class ConvertAMLPJapaneseArguments:
    """What to convert, and into what."""

    source: str = field(
        metadata={
            "help": "The .pt file that their tfmodel2torch.py writes, or the folder of a model in TensorFlow (needs "
            "the extra tensorflow)."
        }
    )
    output_dir: str = field(metadata={"help": "New or empty folder for the checkpoint."})
    vocabulary: str | None = field(
        default=None,
        metadata={"help": "Their vocabulary; by default the .txt next to the .pt, or vocabulary.txt in the folder."},
    )
    emoji: str | None = field(
        default=None,
        metadata={"help": "emoji.json of their repository; by default the one next to the source or in its folder."},
    )
    source_license: str | None = field(
        default=None,
        metadata={
            "help": "Licence of the weights for the card. By default MIT, that of the published models; none for a "
            "classifier, which the user of aMLP-japanese has trained."
        },
    )


@dataclass
class Source:
    """The files of one of their models."""

    weights: Path
    vocabulary: Path
    emoji: Path
    settings: Path
    labels: Path


def _check_archive(path: Path) -> None:
    """Check the form and the checksums of a .pt file, which PyTorch does not compare in a file mapped into memory."""
    try:
        if not zipfile.is_zipfile(path):
            raise UserError(
                f"{str(path)!r} is not a .pt file of aMLP-japanese: it is not a file that torch.save of PyTorch 1.6 "
                "or later has written completely."
            )
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{str(path)!r} is damaged ({error}): copy or download it again.") from error
    if damaged is not None:
        raise UserError(f"{str(path)!r} is damaged (in {damaged!r}): copy or download it again.")


def _find(arguments: ConvertAMLPJapaneseArguments) -> Source:
    """The files next to the .pt, or in the folder."""
    weights = Path(arguments.source).expanduser()
    if weights.is_dir():
        if not (weights / "variables" / "variables.index").is_file():
            raise UserError(f"{str(weights)!r} is not a model of aMLP-japanese: it has no variables/variables.index.")
        beside = {"vocabulary": "vocabulary.txt", "settings": "hparams.json", "labels": "idmap.json"}
        found = {role: weights / name for role, name in beside.items()}
    elif weights.is_file():
        _check_archive(weights)
        endings = {"vocabulary": ".txt", "settings": ".json", "labels": "-idmap.json"}
        found = {role: weights.with_name(weights.stem + ending) for role, ending in endings.items()}
    else:
        raise UserError(
            f"--source {arguments.source!r} is not a file or folder here: give a .pt file, or a model's folder."
        )
    found["vocabulary"] = Path(arguments.vocabulary or found["vocabulary"]).expanduser()
    places = [*([weights] if weights.is_dir() else []), weights.parent]
    emoji = next((place / "emoji.json" for place in places if (place / "emoji.json").is_file()), None)
    found["emoji"] = Path(arguments.emoji or emoji or places[0] / "emoji.json").expanduser()
    for role in ("vocabulary", "emoji"):
        if not found[role].is_file():
            raise UserError(f"there is no {str(found[role])!r}, which comes with {REPOSITORY}: give --{role}.")
    return Source(weights=weights, **found)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{str(path)!r} holds no mapping, as the file of aMLP-japanese does.")
    return content


def _read_emoji(path: Path) -> dict[str, dict[str, str]]:
    """`emoji`, from text to token, and `emoji_inv`, from token to text."""
    content = _read_json(path)
    tables = [content.get(name) for name in ("emoji", "emoji_inv")]
    if not all(isinstance(table, dict) and all(map(_is_text, table.items())) for table in tables):
        raise UserError(
            f"{str(path)!r} is not an emoji.json of aMLP-japanese: 'emoji' and 'emoji_inv' must map texts to texts."
        )
    return content


def _is_text(item: tuple[str, Any]) -> bool:
    return item[0] != "" and isinstance(item[1], str)


def _read_labels(path: Path, classes: int) -> dict[str, int]:
    """The ids of the classes by name."""
    labels = _read_json(path)
    if any(type(index) is not int for index in labels.values()) or sorted(labels.values()) != list(range(classes)):
        raise UserError(
            f"{str(path)!r} does not name the model's {classes} classes: it must map each name to an integer from 0 "
            f"to {classes - 1}."
        )
    return labels


def _read_vocabulary(path: Path, size: int) -> list[str]:
    """One line for each of `size` tokens."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the vocabulary {str(path)!r} cannot be read: {error}") from error
    if len(lines) == size + 1 and not lines[-1]:
        lines.pop()
    if len(lines) != size:
        raise UserError(f"the model has {size} tokens, but the vocabulary {str(path)!r} has {len(lines)} lines.")
    return lines


def _read_torch(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a .pt file. Nothing else is unpickled."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, ValueError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{str(path)!r} is not a .pt file of aMLP-japanese: {reason.rstrip('.')}.") from error
    if not isinstance(content, dict) or not content or not all(map(_is_named_tensor, content.items())):
        raise UserError(f"{str(path)!r} is not a .pt file of aMLP-japanese: it holds no mapping of names to tensors.")
    return content


def _is_named_tensor(item: tuple[Any, Any]) -> bool:
    name, value = item
    return isinstance(name, str) and isinstance(value, torch.Tensor)


def _read_tensorflow(folder: Path) -> dict[str, torch.Tensor]:
    """The variables of a SavedModel by their own names; the optimizer's are left out."""
    purpose = "reading a model in TensorFlow"
    tensorflow = import_optional("tensorflow", "tensorflow", purpose)
    graphs = import_optional("tensorflow.core.protobuf.trackable_object_graph_pb2", "tensorflow", purpose)
    try:
        reader = tensorflow.train.load_checkpoint(str(folder / "variables" / "variables"))
        graph = graphs.TrackableObjectGraph.FromString(reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"))
        names = {entry.full_name: entry.checkpoint_key for node in graph.nodes for entry in node.attributes}
        names = {name: key for name, key in names.items() if _is_weight(name)}
        return {name: torch.from_numpy(reader.get_tensor(key)) for name, key in names.items()}
    except (tensorflow.errors.OpError, RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{str(folder)!r} is not a model of aMLP-japanese: {reason.rstrip('.')}.") from error


def _is_weight(name: str) -> bool:
    """Whether a variable is a model's own: not an optimizer's, and not one that counts steps or losses."""
    own = ("embed_w", "vocabrary_embed", "last_proj_", "squad_output_", "output_", "layer_", "position_embed_")
    return name.startswith(own) and "/" not in name


def _load(source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    settings = _read_json(source.settings) if source.settings.is_file() else {}
    if settings.get("type", "mlp") != "mlp":
        raise UserError(
            f"{str(source.weights)!r} is a model of the type {settings['type']!r}: only aMLPs, of the type 'mlp', can "
            "be converted."
        )
    emoji = _read_emoji(source.emoji)
    tensors = _read_tensorflow(source.weights) if source.weights.is_dir() else _read_torch(source.weights)
    try:
        model = amlp_from_japanese(tensors, dropout=settings.get("dropout_prob", DROPOUT))
        config = model.config
        vocabulary = _read_vocabulary(source.vocabulary, config.vocab_size)
        tokenizer = amlp_japanese_tokenizer(vocabulary, emoji, config.max_position_embeddings)
    except VocabularyError as error:
        raise UserError(f"{str(source.vocabulary)!r} cannot be converted: {error}") from error
    except ValueError as error:
        raise UserError(f"{str(source.weights)!r} cannot be converted: {error}") from error
    if source.labels.is_file() and type(model).__name__ == "AMLPForSequenceClassification":
        config.label2id = _read_labels(source.labels, model.num_labels)
        config.id2label = {index: name for name, index in config.label2id.items()}
    return model, tokenizer


def _card(source: Source, model: PreTrainedModel, mask: str, output: str, licence: str | None) -> ModelCard:
    """The card of a model; without `licence`, that of the published models if it can be one of them."""
    pipeline, name = PIPELINES[type(model).__name__], source.weights.name
    own = pipeline == "text-classification"  # no classifier is published
    origin = f"a model trained with the code of {ORIGIN}" if own else ORIGIN
    training = "" if own or licence else TRAINING
    return converted_card(
        model,
        output,
        pipeline,
        f"tokenmixers convert_amlp_japanese --source {name}",
        summary=f"An aMLP for Japanese text: the weights of {origin} (`{name}`), unchanged, in the form of Hugging "
        f"Face Transformers.{training}",
        notes=DIFFERENCES,
        mask=mask,
        licence=licence or (None if own else "mit"),
        language="ja",
    )


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((ConvertAMLPJapaneseArguments,), argv)
    output = check_new_folder(arguments.output_dir)
    source = _find(arguments)
    model, tokenizer = _load(source)
    card = _card(source, model, tokenizer.mask_token, arguments.output_dir, arguments.source_license)
    with new_checkpoint(output) as complete:
        model.save_pretrained(complete)
        tokenizer.save_pretrained(complete)
        card.save(complete / "README.md")
    if card.data.license is None:
        print("The source states no licence: add it to the card, or give --source_license.")
    print(f"{type(model).__name__}, {model.num_parameters():,} parameters, saved in {output}")


if __name__ == "__main__":
    main()
