"""What the demo answers: a checkpoint's pipeline on one input, and the maps of what it mixed for that."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import BatchEncoding, pipeline

from .checkpoints import Checkpoint
from .mixing_maps import MAX_TOKENS, MixingMap, collect_maps


#: Answers to show.
TOP_K = 5
#: Tokens that question answering reads at a time, if the model takes as many: the default of its pipeline.
WINDOW = 384


class InputError(ValueError):
    """An input that the user of the page can correct. The message is shown as it is."""


@dataclass
class Answer:
    """What the page shows for an input.

    Attributes:
        rows: Answers and their scores, best first.
        text: Pieces of a text, each with its label if it is marked.
        notes: Sentences about the answer.
        maps: What mixed which tokens.
        pixels: What an image model has seen, shape `(channels, height, width)`.
    """

    rows: list[tuple[str, float]] = field(default_factory=list)
    text: list[tuple[str, str | None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    maps: list[MixingMap] = field(default_factory=list)
    pixels: torch.Tensor | None = None


def answer(checkpoint: Checkpoint, *values: Any) -> Answer:
    """Run a checkpoint on the inputs of its task.

    Raises:
        InputError: If the first input is missing, or a text is too long or not what the task needs.
    """
    if values[0] is None or (isinstance(values[0], str) and not values[0].strip()):
        raise InputError("The input is empty: " + ("choose an image." if values[0] is None else "write something."))
    return ANSWERS[checkpoint.task](checkpoint, *values)


def run_pipeline(checkpoint: Checkpoint, name: str, *inputs: Any, **options: Any) -> Any:
    """Call the pipeline of a task; without a device it would move the model away from the inputs of the maps."""
    processor = "image_processor" if name == "image-classification" else "tokenizer"
    device = checkpoint.model.device
    found = pipeline(name, model=checkpoint.model, device=device, **{processor: checkpoint.processor})
    return found(*inputs, **options)


def encode(checkpoint: Checkpoint, text: str, pair: str | None = None, room: int = 0) -> BatchEncoding:
    """Tokenize an input whole, or refuse it if no `room` tokens fit behind it."""
    encoded = checkpoint.processor(text, pair, return_tensors="pt", verbose=False)
    length, limit = encoded["input_ids"].shape[1], checkpoint.max_length
    if not length:
        raise InputError("The text has no tokens: write something else.")
    if limit is not None and length + room > limit:
        raise InputError(f"The text has {length} tokens, and the model takes at most {limit - room}: shorten it.")
    return encoded.to(checkpoint.model.device)


def add_maps(found: Answer, checkpoint: Checkpoint, inputs: BatchEncoding, **decoder: torch.Tensor) -> Answer:
    """The answer with the maps of the inputs, and a note if they show a part only."""
    ids = [inputs["input_ids"][0], *(value[0] for value in decoder.values())]
    texts = [checkpoint.processor.convert_ids_to_tokens(row) for row in ids]
    found.maps = collect_maps(checkpoint.model, {**inputs, **decoder}, *texts)
    if max(map(len, texts)) > MAX_TOKENS:
        found.notes.append(f"The picture shows the first {MAX_TOKENS} tokens.")
    return found


def mark(text: str, marks: list[tuple[int, int, str]]) -> list[tuple[str, str | None]]:
    """Cut a text into pieces. `marks` are start, end and label of the labelled ones, in order."""
    pieces, done = [], 0
    for start, end, label in marks:
        start += len(text[start:end]) - len(text[start:end].lstrip())  # a token may begin with the space before it
        pieces += [(text[done:start], None), (text[start:end], label)]
        done = end
    return [piece for piece in [*pieces, (text[done:], None)] if piece[0]]


def fill_mask(checkpoint: Checkpoint, text: str) -> Answer:
    """The most probable tokens of each mask."""
    tokenizer = checkpoint.processor
    encoded = encode(checkpoint, text)
    masks = int((encoded["input_ids"] == tokenizer.mask_token_id).sum())
    if not masks:
        raise InputError(f"The text has no mask: write {tokenizer.mask_token} where a word is missing.")
    found = run_pipeline(checkpoint, "fill-mask", text, top_k=min(TOP_K, checkpoint.model.config.vocab_size))
    groups = [found] if masks == 1 else found
    rows = [
        (f"mask {number}: {entry['token_str']}" if masks > 1 else entry["token_str"], entry["score"])
        for number, group in enumerate(groups, 1)
        for entry in group
    ]
    return add_maps(Answer(rows), checkpoint, encoded)


def classify(checkpoint: Checkpoint, text: str, pair: str | None = None) -> Answer:
    """The most probable classes, or the value of a regression."""
    inputs = {"text": text, "text_pair": pair.strip()} if pair and pair.strip() else {"text": text}
    encoded = encode(checkpoint, text, inputs.get("text_pair"))
    found = run_pipeline(checkpoint, "text-classification", inputs, top_k=TOP_K)
    return add_maps(Answer([(entry["label"], entry["score"]) for entry in found]), checkpoint, encoded)


def tag(checkpoint: Checkpoint, text: str) -> Answer:
    """The words that have a tag."""
    encoded = encode(checkpoint, text)
    found = run_pipeline(checkpoint, "token-classification", text, aggregation_strategy="simple")
    marks = [(entry["start"], entry["end"], entry["entity_group"]) for entry in found]
    rows = [
        (f"{text[start:end].strip()}: {name}", each["score"])
        for (start, end, name), each in zip(marks, found, strict=True)
    ]
    return add_maps(Answer(rows, mark(text, marks)), checkpoint, encoded)


def answer_question(checkpoint: Checkpoint, question: str, context: str) -> Answer:
    """The best answers in a context."""
    if not context.strip():
        raise InputError("The text with the answer is empty: write something.")
    found = run_pipeline(checkpoint, "extractive-question-answering", question=question, context=context, top_k=TOP_K)
    rows = [(entry["answer"] or "(no answer)", entry["score"]) for entry in found]
    window = min(checkpoint.max_length or WINDOW, WINDOW)
    # A longer context is read in parts; the maps are of the first.
    encoded = checkpoint.processor(question, context, return_tensors="pt", truncation=True, max_length=window)
    text = mark(context, [(found[0]["start"], found[0]["end"], "answer")])
    return add_maps(Answer(rows, text), checkpoint, encoded.to(checkpoint.model.device))


def continue_text(checkpoint: Checkpoint, text: str, new_tokens: int = 20, sample: bool = False) -> Answer:
    """A text and what a decoder writes after it."""
    prompt = encode(checkpoint, text, room=1)["input_ids"]
    limit = checkpoint.max_length
    new_tokens = min(int(new_tokens), limit - prompt.shape[1]) if limit is not None else int(new_tokens)
    options = {"max_new_tokens": new_tokens, "do_sample": bool(sample), "return_tensors": True}
    (found,) = run_pipeline(checkpoint, "text-generation", text, **options)
    ids = torch.tensor([found["generated_token_ids"]], device=prompt.device)
    # Together with the prompt: decoders drop the space at the start of a text, also if the model wrote it.
    whole, read = (
        checkpoint.processor.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for row in (ids[0], prompt[0])
    )
    pieces = [(text, None), (whole[len(read) :], "new")]
    inputs = BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return add_maps(Answer(text=[piece for piece in pieces if piece[0]]), checkpoint, inputs)


def rewrite(checkpoint: Checkpoint, text: str, new_tokens: int = 20, sample: bool = False) -> Answer:
    """What an encoder-decoder writes for a text."""
    encoded = encode(checkpoint, text)
    limit = checkpoint.max_length
    new_tokens = min(int(new_tokens), limit - 1) if limit is not None else int(new_tokens)  # after the start token
    inputs = BatchEncoding({name: encoded[name] for name in ("input_ids", "attention_mask") if name in encoded})
    with torch.no_grad():
        ids = checkpoint.model.generate(**inputs, max_new_tokens=new_tokens, do_sample=bool(sample))
    written = checkpoint.processor.decode(ids[0], skip_special_tokens=True).strip()
    found = Answer(text=[(written or "(nothing)", None)])
    return add_maps(found, checkpoint, inputs, decoder_input_ids=ids[:, :-1])


def classify_image(checkpoint: Checkpoint, image: Any) -> Answer:
    """The most probable classes of an image."""
    image = image.convert("RGB")
    found = run_pipeline(
        checkpoint, "image-classification", image, top_k=min(TOP_K, checkpoint.model.config.num_labels)
    )
    pixels = checkpoint.processor(image, return_tensors="pt").to(checkpoint.model.device)["pixel_values"]
    maps = collect_maps(checkpoint.model, {"pixel_values": pixels})
    rows = [(entry["label"], entry["score"]) for entry in found]
    return Answer(rows, maps=maps, pixels=pixels[0].float().cpu())


#: Task -> the function that answers it.
ANSWERS: dict[str, Callable[..., Answer]] = {
    "fill-mask": fill_mask,
    "text-classification": classify,
    "token-classification": tag,
    "question-answering": answer_question,
    "text-generation": continue_text,
    "text2text-generation": rewrite,
    "image-classification": classify_image,
}
