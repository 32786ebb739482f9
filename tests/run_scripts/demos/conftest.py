"""Small checkpoints of every kind that the demo shows."""

import pytest

import tokenmixers
from tokenmixers.run_scripts.demos.checkpoints import TASK_NAMES, Checkpoint


LENGTH = 24
KINDS = {task: endings[0] for task, (_, endings) in TASK_NAMES.items()}


@pytest.fixture(scope="session")
def demo_tokenizer():
    """`demo_tokenizer(kind)`: a tokenizer of "encoder", "decoder" or "encoder-decoder"."""
    texts = ["the gate mixes tokens", "linear maps mix channels", "a film that one sees again"] * 9
    return lambda kind="encoder": tokenmixers.train_unigram_tokenizer(
        texts, 90 if kind == "encoder" else 150, model_max_length=LENGTH, show_progress=False, kind=kind
    )


@pytest.fixture
def demo_checkpoint(demo_tokenizer, tiny_model):
    """`demo_checkpoint(family, task, **changes)`: a small model with random weights and what prepares its inputs."""

    def build(family: str, task: str, **changes) -> Checkpoint:
        from transformers import CLIPImageProcessorPil

        if task == "image-classification":
            processor = CLIPImageProcessorPil(size={"height": 8, "width": 8}, crop_size={"height": 8, "width": 8})
            fields = {}
        else:
            kinds = {"text-generation": "decoder", "text2text-generation": "encoder-decoder"}
            processor = demo_tokenizer(kinds.get(task, "encoder"))
            fields = {"vocab_size": len(processor), "max_position_embeddings": LENGTH}
            fields["pad_token_id"] = processor.pad_token_id
        if task.endswith("classification"):
            labels = {0: "good", 1: "bad", 2: "<i>odd</i>"}
            fields |= {"id2label": labels, "label2id": {name: index for index, name in labels.items()}}
        model = tiny_model(family + KINDS[task], **{**fields, **changes})
        model.set_attn_implementation("eager")
        return Checkpoint(f"tiny-{task}", task, model, processor)

    return build
