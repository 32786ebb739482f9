"""Data and arguments of a tiny run of every training command."""

import json
import random
import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers import BertConfig, BertModel

from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


TINY_RUNS = runpy.run_path(str(Path(__file__).with_name("tiny_runs.py")))
SIZES = "hidden_size=16,intermediate_size=32,num_hidden_layers=1,max_position_embeddings=24"
IMAGE_SIZES = "hidden_size=16,intermediate_size=32,num_hidden_layers=1"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files for every script: sentences about which of two animals there is, and pictures."""
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    for split, count in (("train", 24), ("validation", 6), ("test", 6)):
        rows = []
        for index in range(count):
            name, animal = draw.choice(["Ada", "Bo", "Cleo"]), draw.choice(["cat", "dog"])
            rows.append(
                {"text": f"{name} has a {animal} that is old.", "label": animal, "animal": animal, "id": index}
            )
        (folder / f"{split}.txt").write_text("\n".join(row["text"] for row in rows))
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        pairs = ({"source": row["text"], "target": row["label"]} for row in rows)
        (folder / f"{split}_pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
        words = ([f"{word} {'B-PER' if not i else 'O'}" for i, word in enumerate(row["text"].split())] for row in rows)
        (folder / f"{split}.conll").write_text("\n\n".join("\n".join(lines) for lines in words) + "\n")
        paragraphs = []
        for row in rows:
            answers = [{"text": row["label"], "answer_start": row["text"].index(row["label"])}]
            asked = {"id": str(row["id"]), "question": "Which animal?", "answers": answers}
            paragraphs.append({"context": row["text"], "qas": [asked]})
        squad = {"version": "1.1", "data": [{"title": "animals", "paragraphs": paragraphs}]}
        (folder / f"{split}.json").write_text(json.dumps(squad))
        for name in ("squad", "CB"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "squad" / f"{split}.json").write_text(json.dumps(squad))
        names = {"cat": "entailment", "dog": "neutral"}
        pairs = (
            {"premise": r["text"], "hypothesis": "A cat.", "label": names[r["label"]], "idx": r["id"]} for r in rows
        )
        name = {"validation": "val"}.get(split, split)
        (folder / "CB" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, pairs)))
        for label, rows_lit in (("bottom", slice(4, 8)), ("top", slice(0, 4))):
            (folder / split / label).mkdir(parents=True)
            for index in range(count // 2):
                pixels = np.full((8, 8), index, dtype=np.uint8)
                pixels[rows_lit] += 120
                Image.fromarray(pixels).save(folder / split / label / f"{index}.png")
    lines = (folder / "train.txt").read_text().splitlines()
    tokenizer = train_unigram_tokenizer(lines, 60, 24, show_progress=False)
    for name in ("encoder", "encoder-model"):
        tokenizer.save_pretrained(folder / name)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    teacher = BertModel(BertConfig(vocab_size=len(tokenizer), **sizes))
    teacher.save_pretrained(folder / "encoder-model")
    t5 = train_unigram_tokenizer(lines, 160, 24, show_progress=False, kind="encoder-decoder")
    t5.save_pretrained(folder / "encoder-decoder")
    return folder


@pytest.fixture(scope="module")
def arguments(data, as_words):
    """`arguments(script, folder, **changes)`: those of a tiny run of the script that saves every second step."""

    def build(script: str, folder: Path, **changes) -> list[str]:
        images, mixture = script == "run_image_classification", script == "run_text_to_text"
        texts_to_texts = mixture or script in ("run_seq2seq", "run_span_corruption")
        ending = {
            "run_seq2seq": "_pairs.jsonl",
            "run_glue": ".jsonl",
            "run_sentence_embeddings": ".jsonl",
            TINY_RUNS["TEACHER"]: ".jsonl",
            "run_token_classification": ".conll",
            "run_qa": ".json",
        }.get(script, "" if images else ".txt")
        kind = "encoder-decoder" if texts_to_texts else "encoder"
        own = TINY_RUNS["SCRIPTS_AND_GRID"][script]
        settings = {
            "config_name": "gmlp-base",
            "tokenizer_name": None if images or "train_tokenizer" in own else data / kind,
            "output_dir": folder,
            "precision": "fp32",
            "max_steps": 5,
            "save_strategy": "steps",
            "save_steps": 2,
            "logging_steps": 1,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-2,
            **own,
            **changes,
        }
        for split in ("train", "validation", *(["test"] if settings.get("do_predict") else [])) if not mixture else ():
            settings[f"{split}_{'dir' if images else 'file'}"] = data / f"{split}{ending}"
        if mixture:
            settings["data_dir"] = data
        if "teacher" in settings:
            settings["teacher"] = data / settings["teacher"]
        vocabulary = 160 if texts_to_texts else 60
        sizes = IMAGE_SIZES if images else f"{SIZES},vocab_size={vocabulary},hidden_dropout_prob=0.1"
        if "keep_layers" not in settings:
            settings["config_overrides"] = ",".join(filter(None, [sizes, settings.get("config_overrides", "")]))
        return as_words(settings)

    return build
