"""Run pipelines on saved checkpoints without this package: see test_pipelines.py.

Its arguments are folders: each is named after its task, and holds model and tokenizer or processor.
"""

import json
import sys
from pathlib import Path

from PIL import Image
from transformers import pipeline, set_seed


INPUTS = {
    "fill-mask": ["the [MASK] mixes"],
    "text-classification": ["the gate", "channels"],
    "token-classification": ["the gate"],
    "feature-extraction": ["the gate"],
    "zero-shot-classification": ["the gate"],
    "text-generation": ["the gate"],
    "question-answering": [{"question": "what mixes", "context": "the gate mixes tokens, this example is long " * 4}],
    "image-classification": [Image.new("RGB", (8, 8), (200, 30, 90))],
    "image-feature-extraction": [Image.new("RGB", (8, 8), (200, 30, 90))],
}
OPTIONS = {
    "zero-shot-classification": {"candidate_labels": ["tokens", "channels"]},
    "question-answering": {"top_k": 3, "handle_impossible_answer": True},
    "text-generation": {"max_new_tokens": 4, "do_sample": False},
}


def answers_of(folder: Path) -> str:
    """What the pipeline of the folder's task says, as JSON."""
    set_seed(0)
    run = pipeline(folder.name, model=str(folder), trust_remote_code=True)
    answers = [run(value, **OPTIONS.get(folder.name, {})) for value in INPUTS[folder.name]]
    return json.dumps(answers, default=float)  # scores may be numbers of NumPy


if __name__ == "__main__":
    print(json.dumps({folder: answers_of(Path(folder)) for folder in sys.argv[1:]}))
