"""What the demo answers: the inputs of each task, and the answer and mixing maps of a checkpoint for them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers import BatchEncoding, Pipeline, pipeline

from .checkpoints import Checkpoint
from .mixing_maps import MAX_TOKENS, MixingMap, collect_maps


#: Answers to show.
TOP_K = 5
#: Tokens that question answering reads at a time, if the model takes as many: the default of its pipeline.
WINDOW = 384


class InputError(ValueError):
    """An input that the user of the page can correct. The message is shown as it is."""


class Field(NamedTuple):
    """An input of a task.

    Attributes:
        name: The key of its value.
        label: What the page calls it.
        example: Its value at the start; a text with `{mask}` where the mask token goes.
        kind: "text", "number", "flag" or "image".
        optional: Whether it may be empty.
    """

    name: str
    label: str
    example: str | int | bool = ""
    kind: str = "text"
    optional: bool = False


class Row(NamedTuple):
    """A possible answer and its score: a probability, unless the table says otherwise."""

    answer: str
    score: float


@dataclass(frozen=True)
class Table:
    """Answers, best first.

    Attributes:
        caption: What they answer.
        rows: The answers.
        are_probabilities: Whether the scores are.
    """

    caption: str
    rows: list[Row]
    are_probabilities: bool = True


class Span(NamedTuple):
    """A piece of a text, and its label if it is marked."""

    text: str
    label: str | None = None


@dataclass(frozen=True)
class Answer:
    """What the page shows for an input.

    Attributes:
        tables: Answers with scores.
        text: Answers within a text, as its pieces.
        notes: Sentences about the answer.
        maps: What mixed which tokens.
        pixels: What an image model has seen, shape `(channels, height, width)`.
    """

    tables: list[Table] = field(default_factory=list)
    text: list[Span] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    maps: list[MixingMap] = field(default_factory=list)
    pixels: torch.Tensor | None = None


@dataclass(frozen=True)
class Task:
    """How a task is shown.

    Attributes:
        title: A heading.
        fields: Its inputs.
        answer: The function that answers, given the checkpoint and the values by field.
    """

    title: str
    fields: tuple[Field, ...]
    answer: Callable[[Checkpoint, Mapping[str, Any]], Answer]


def answer(checkpoint: Checkpoint, values: Mapping[str, Any]) -> Answer:
    """Run a checkpoint on the inputs of its task.

    Args:
        checkpoint: The model.
        values: By the name of the field: texts, a whole number, a PIL image.

    Raises:
        InputError: If an input is missing, too long, or not what the task needs.
    """
    task = TASKS[checkpoint.task]
    for each in task.fields:
        value = values.get(each.name)
        missing = value is None or (isinstance(value, str) and not value.strip())
        if missing and not each.optional:
            raise InputError(
                f"{each.label} is empty: " + ("choose one." if each.kind == "image" else "write something.")
            )
    return task.answer(checkpoint, values)


def _pipeline(checkpoint: Checkpoint, name: str) -> Pipeline:
    processor = "image_processor" if name == "image-classification" else "tokenizer"
    # Without a device it moves the model to an accelerator of its own choice, away from the inputs of the maps.
    device = checkpoint.model.device
    return pipeline(name, model=checkpoint.model, device=device, **{processor: checkpoint.processor})


def encode(checkpoint: Checkpoint, text: str, pair: str | None = None, room: int = 0) -> BatchEncoding:
    """Tokenize an input whole.

    Args:
        checkpoint: The model.
        text: The text.
        pair: The second text.
        room: Tokens that have to fit behind it.

    Raises:
        InputError: If it has no tokens, or more than the model takes.
    """
    encoded = checkpoint.processor(text, pair, return_tensors="pt", verbose=False)
    length, limit = encoded["input_ids"].shape[1], checkpoint.max_length
    if not length:
        raise InputError("The text has no tokens: write something else.")
    if limit is not None and length + room > limit:
        new = f" with room for {room} new one" if room else ""
        raise InputError(f"The text has {length} tokens, and the model takes at most {limit}{new}: shorten it.")
    return encoded.to(checkpoint.model.device)


def _maps(checkpoint: Checkpoint, inputs: BatchEncoding, **decoder: torch.Tensor) -> tuple[list[MixingMap], list[str]]:
    """The maps, and a note if they show a part only."""
    ids = [inputs["input_ids"][0], *(value[0] for value in decoder.values())]
    texts = [checkpoint.processor.convert_ids_to_tokens(row) for row in ids]
    maps = collect_maps(checkpoint.model, {**inputs, **decoder}, *texts)
    cut = max(map(len, texts)) > MAX_TOKENS
    return maps, [f"The picture shows the first {MAX_TOKENS} tokens."] * cut


def _rows(found: list[dict], key: str) -> list[Row]:
    return [Row(str(entry[key]), entry["score"]) for entry in found]


def _fill_mask(checkpoint: Checkpoint, values: Mapping[str, Any]) -> Answer:
    tokenizer, text = checkpoint.processor, values["text"]
    encoded = encode(checkpoint, text)
    masks = int((encoded["input_ids"] == tokenizer.mask_token_id).sum())
    if not masks:
        raise InputError(f"The text has no mask: write {tokenizer.mask_token} where a word is missing.")
    found = _pipeline(checkpoint, "fill-mask")(text, top_k=min(TOP_K, checkpoint.model.config.vocab_size))
    captions = ["Fillings"] if masks == 1 else [f"Fillings of mask {number}" for number in range(1, masks + 1)]
    groups = [found] if masks == 1 else found
    tables = [Table(caption, _rows(group, "token_str")) for caption, group in zip(captions, groups, strict=True)]
    maps, notes = _maps(checkpoint, encoded)
    return Answer(tables=tables, notes=notes, maps=maps)


def _classify(checkpoint: Checkpoint, values: Mapping[str, Any]) -> Answer:
    text, pair = values["text"], (values.get("text_pair") or "").strip() or None
    encoded = encode(checkpoint, text, pair)
    inputs = {"text": text} if pair is None else {"text": text, "text_pair": pair}
    found = _pipeline(checkpoint, "text-classification")(inputs, top_k=TOP_K)
    regression = checkpoint.model.config.problem_type == "regression"
    table = Table("Score" if regression else "Classes", _rows(found, "label"), not regression)
    maps, notes = _maps(checkpoint, encoded)
    return Answer(tables=[table], notes=notes, maps=maps)


def _tag(checkpoint: Checkpoint, values: Mapping[str, Any]) -> Answer:
    text = values["text"]
    encoded = encode(checkpoint, text)
    found = _pipeline(checkpoint, "token-classification")(text, aggregation_strategy="simple")
    table = Table(
        "Tagged words", [Row(f"{text[e['start'] : e['end']].strip()}: {e['entity_group']}", e["score"]) for e in found]
    )
    maps, notes = _maps(checkpoint, encoded)
    if not found:
        notes = ["No word has a tag.", *notes]
    marks = [(entry["start"], entry["end"], entry["entity_group"]) for entry in found]
    return Answer(tables=[table] if found else [], text=mark(text, marks), notes=notes, maps=maps)


def mark(text: str, marks: list[tuple[int, int, str]]) -> list[Span]:
    """Cut a text into pieces.

    Args:
        text: The text.
        marks: Start, end and label of the pieces with a label, in their order, without overlap.
    """
    pieces, done = [], 0
    for start, end, label in marks:
        start += len(text[start:end]) - len(text[start:end].lstrip())  # a token may begin with the space before it
        pieces += [Span(text[done:start]), Span(text[start:end], label)]
        done = end
    return [piece for piece in [*pieces, Span(text[done:])] if piece.text]


def _answer_question(checkpoint: Checkpoint, values: Mapping[str, Any]) -> Answer:
    question, context = values["question"], values["context"]
    found = _pipeline(checkpoint, "extractive-question-answering")(question=question, context=context, top_k=TOP_K)
    table = Table("Answers", [Row(entry["answer"] or "(no answer)", entry["score"]) for entry in found])
    best = found[0]
    window = min(checkpoint.max_length or WINDOW, WINDOW)
    encoded = checkpoint.processor(question, context, return_tensors="pt", verbose=False)
    notes = []
    if encoded["input_ids"].shape[1] > window:
        notes.append(f"The text is read in parts of {window} tokens; the picture is of the first.")
        options = {"truncation": True, "max_length": window}
        encoded = checkpoint.processor(question, context, return_tensors="pt", **options)
    maps, cut = _maps(checkpoint, encoded.to(checkpoint.model.device))
    text = mark(context, [(best["start"], best["end"], "answer")])
    return Answer(tables=[table], text=text, notes=[*notes, *cut], maps=maps)


def _continue(checkpoint: Checkpoint, values: Mapping[str, Any]) -> Answer:
    text = values["text"]
    prompt = encode(checkpoint, text, room=1)["input_ids"]
    new, notes = int(values["max_new_tokens"]), []
    limit = checkpoint.max_length
    if limit is not None and prompt.shape[1] + new > limit:
        new = limit - prompt.shape[1]
        notes.append(f"The model takes {limit} tokens, which leaves room for {new} new ones.")
    (found,) = _pipeline(checkpoint, "text-generation")(
        text, max_new_tokens=new, do_sample=bool(values.get("do_sample")), return_tensors=True
    )
    ids = torch.tensor([found["generated_token_ids"]], device=prompt.device)
    # Together with the prompt: decoders drop the space at the start of a text, also if the model wrote it.
    whole, read = (
        checkpoint.processor.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for row in (ids[0], prompt[0])
    )
    written = whole[len(read) :]
    if not written:
        notes.append("The model wrote nothing more.")
    maps, cut = _maps(checkpoint, BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)}))
    return Answer(text=[Span(text), *([Span(written, "new")] if written else [])], notes=[*notes, *cut], maps=maps)


def _rewrite(checkpoint: Checkpoint, values: Mapping[str, Any]) -> Answer:
    encoded = encode(checkpoint, values["text"])
    limit = checkpoint.max_length
    new = int(values["max_new_tokens"])
    if limit is not None:
        new = min(new, limit - 1)  # after the start token
    names = ("input_ids", "attention_mask")
    inputs = BatchEncoding({name: encoded[name] for name in names if name in encoded})
    with torch.no_grad():
        ids = checkpoint.model.generate(**inputs, max_new_tokens=new, do_sample=bool(values.get("do_sample")))
    written = checkpoint.processor.decode(ids[0], skip_special_tokens=True).strip()
    maps, notes = _maps(checkpoint, inputs, decoder_input_ids=ids[:, :-1])
    return Answer(text=[Span(written or "(nothing)")], notes=notes, maps=maps)


def _classify_image(checkpoint: Checkpoint, values: Mapping[str, Any]) -> Answer:
    image = values["image"].convert("RGB")
    found = _pipeline(checkpoint, "image-classification")(image, top_k=min(TOP_K, checkpoint.model.config.num_labels))
    inputs = checkpoint.processor(image, return_tensors="pt").to(checkpoint.model.device)
    pixels = inputs["pixel_values"]
    maps = collect_maps(checkpoint.model, {"pixel_values": pixels})
    return Answer(tables=[Table("Classes", _rows(found, "label"))], maps=maps, pixels=pixels[0].float().cpu())


_GENERATION = (
    Field("max_new_tokens", "New tokens at most", 20, "number"),
    Field("do_sample", "Sample: another text each time", False, "flag", optional=True),
)

#: Name of a task, as in `checkpoints.TASK_NAMES` -> how it is shown.
TASKS = {
    "fill-mask": Task(
        "Fill in missing words",
        (Field("text", "Text with a mask", "The first argument must be a {mask} of integers."),),
        _fill_mask,
    ),
    "text-classification": Task(
        "Classify a text",
        (
            Field("text", "Text", "A film that one wants to see again."),
            Field("text_pair", "Second text (only for models of pairs)", optional=True),
        ),
        _classify,
    ),
    "token-classification": Task("Tag words", (Field("text", "Text", "Ada lives in Rome and works in Oslo."),), _tag),
    "question-answering": Task(
        "Answer a question",
        (
            Field("question", "Question", "What mixes tokens?"),
            Field(
                "context",
                "Text with the answer",
                "In a gMLP the spatial gate mixes tokens, and linear maps mix channels.",
            ),
        ),
        _answer_question,
    ),
    "text-generation": Task(
        "Continue a text", (Field("text", "Start of a text", "The first argument"), *_GENERATION), _continue
    ),
    "text2text-generation": Task(
        "Turn a text into another", (Field("text", "Text", "A house stands on the hill."), *_GENERATION), _rewrite
    ),
    "image-classification": Task("Classify an image", (Field("image", "Image", kind="image"),), _classify_image),
}
