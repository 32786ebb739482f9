"""Model cards of trained checkpoints, made from the configuration and the run."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedConfig, PreTrainedModel, Trainer, TrainingArguments

from ...configuration.auto_classes import FAMILIES
from ..base.reporting import markdown_table, transformers_model, versions
from ..base.sequence_limits import longest_sequence


TEMPLATE = Path(__file__).with_name("model_card_template.md")

#: Task -> its name on the Hub, where that differs.
HUB_TASKS = {"text2text-generation": "text-generation"}

#: Task -> the library that uses the model, where that is not Transformers.
LIBRARIES = {"sentence-similarity": "sentence-transformers"}

#: Task of a pipeline -> a name for it, and the arguments of an example.
_PIPELINES = {
    "fill-mask": ("fill", '"This is a {mask}."'),
    "text-generation": ("write", '"This is a", max_length=20'),
    "text-classification": ("classify", "{text}"),
    "token-classification": ("tag", '"This is a text."'),
    "question-answering": ("answer", 'question="What is this?", context="This is a text."'),
    "image-classification": ("classify", '"picture.png"'),
}

#: Task -> example code. `{options}` is `trust_remote_code=True` for checkpoints with code of their own.
SNIPPETS = {
    task: f"""
        from transformers import pipeline

        {name} = pipeline("{task}", model="{{model}}"{{options}})
        print({name}({arguments}))
        """
    for task, (name, arguments) in _PIPELINES.items()
}
SNIPPETS |= {
    "text2text-generation": """
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained("{model}"{options})
        model = AutoModelForSeq2SeqLM.from_pretrained("{model}"{options})
        answer = model.generate(**tokenizer("This is a text.", return_tensors="pt"))
        print(tokenizer.decode(answer[0]))
        """,
    "multiple-choice": """
        from transformers import AutoModelForMultipleChoice, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained("{model}"{options})
        model = AutoModelForMultipleChoice.from_pretrained("{model}"{options})
        choices = tokenizer(["It rained."] * 2, ["The road is wet.", "It is noon."], padding=True, return_tensors="pt")
        print(model(**{{name: tensor[None] for name, tensor in choices.items()}}).logits)
        """,
    "sentence-similarity": """
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer("{model}"{options})
        embeddings = model.encode(["This is a text.", "This is another one."])
        print(model.similarity(embeddings, embeddings))
        """,
}

CITATIONS = {
    "gmlp": """
        @inproceedings{liu2021pay,
          title     = {Pay Attention to {MLPs}},
          author    = {Liu, Hanxiao and Dai, Zihang and So, David R. and Le, Quoc V.},
          booktitle = {Advances in Neural Information Processing Systems},
          year      = {2021}
        }""",
    "synthesizer": """
        @inproceedings{tay2021synthesizer,
          title     = {Synthesizer: Rethinking Self-Attention for Transformer Models},
          author    = {Tay, Yi and Bahri, Dara and Metzler, Donald and Juan, Da-Cheng and Zhao, Zhe and Zheng, Che},
          booktitle = {International Conference on Machine Learning},
          year      = {2021}
        }""",
    "mlp_mixer": """
        @inproceedings{tolstikhin2021mixer,
          title     = {{MLP-Mixer}: An all-{MLP} Architecture for Vision},
          author    = {Tolstikhin, Ilya and Houlsby, Neil and Kolesnikov, Alexander and Beyer, Lucas and others},
          booktitle = {Advances in Neural Information Processing Systems},
          year      = {2021}
        }""",
    "hybrid_bert": """
        @inproceedings{devlin2019bert,
          title     = {{BERT}: Pre-training of Deep Bidirectional Transformers for Language Understanding},
          author    = {Devlin, Jacob and Chang, Ming-Wei and Lee, Kenton and Toutanova, Kristina},
          booktitle = {Proceedings of NAACL-HLT},
          year      = {2019}
        }""",
}
CITATIONS["amlp"] = CITATIONS["gmlp"]
#: Of the feed-forward layers other than ReLU.
GLU_VARIANTS = """
        @article{shazeer2020glu,
          title   = {{GLU} Variants Improve Transformer},
          author  = {Shazeer, Noam},
          journal = {arXiv preprint arXiv:2002.05202},
          year    = {2020}
        }"""

#: Fields of configurations in the table of the architecture, in this order.
SIZES = (
    "num_hidden_layers",
    "num_decoder_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "token_mixers",
    "spatial_weight_type",
    "gate_type",
    "attention_size",
    "attention_components",
    "feed_forward_type",
    "max_position_embeddings",
    "image_size",
    "patch_size",
    "vocab_size",
)

#: Training arguments that affect the trained weights; the others affect speed and output only.
HYPER_PARAMETERS = (
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "constant_warmup",
    "final_decay_steps",
    "max_steps",
    "num_train_epochs",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "world_size",
    "optim",
    "optim_args",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "label_smoothing_factor",
    "bf16",
    "fp16",
    "seed",
)


@dataclass
class CardFacts:
    """Facts for a model card that the Trainer does not know.

    Args:
        task: A key of `SNIPPETS`, or another task of the Hub if there is an `example`.
        data: Name of the evaluation data: a data set's name, or file names.
        metrics: Evaluation metric, without `eval_` -> its type on the Hub. Others are not reported.
        dataset_id: The data set's id on the Hub, if it is from there.
        train_data: Names of the training data.
        test_data: Names of the test data.
        test_results: Results on the test data, under the names of `metrics` with `test_` before them; others are not
            reported.
        text_pairs: Whether a text classifier reads pairs of texts.
        multi_label: Whether it gives a text several labels.
        example: Code that uses the model, instead of that in `SNIPPETS`.
        base_model: Folder or Hub id of the checkpoint that training started from, `None` if from scratch.
        notes: Further sentences about the training.
        hyper_parameters: The command's own settings that affect the trained weights.
    """

    task: str
    data: str
    metrics: Mapping[str, str]
    dataset_id: str | None = None
    train_data: str | None = None
    test_data: str | None = None
    test_results: Mapping[str, float] = field(default_factory=dict)
    text_pairs: bool = True
    multi_label: bool = False
    example: str | None = None
    base_model: str | None = None
    notes: str = ""
    hyper_parameters: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self):
        if self.example is None and self.task not in SNIPPETS:
            raise ValueError(
                f"the card has no example for the task {self.task!r}: let `card_facts` return an `example`, or choose "
                f"a pipeline_tag of {', '.join(SNIPPETS)}."
            )


def describe_data(arguments: Any) -> dict[str, str | None]:
    """The data that a command's argument dataclass names, as arguments of `CardFacts`.

    Files of a split take the place of a data set's. They are named with the folder that they are in, which often says
    more than `train.txt`.
    """
    train, validation, test = (_files(arguments, split) for split in ("train", "validation", "test"))
    name, held_out = getattr(arguments, "dataset_name", None), getattr(arguments, "train_val_split", None) is not None
    if name is not None:
        config = arguments.dataset_config_name
        known = None if Path(name).is_dir() else name
        data = f"{Path(name).name if known is None else name}{f' ({config})' if config else ''}"
        splits = {key: f"{data}, split {getattr(arguments, f'{key}_split', key)}" for key in ("train", "test")}
        return {
            "data": validation or (f"{splits['train']} (a part held out of training)" if held_out else data),
            "dataset_id": None if validation else known,
            "train_data": train or splits["train"],
            "test_data": test or splits["test"],
        }
    own = f"{train} (a part held out of training)" if train else "unnamed data"
    return {"data": validation or own, "dataset_id": None, "train_data": train, "test_data": test}


def _files(arguments: Any, split: str) -> str | None:
    for kind in ("file", "source_file", "dir"):
        files = getattr(arguments, f"{split}_{kind}", None)
        if files:
            return ", ".join(
                "/".join(Path(file).parts[-2:]) for file in ([files] if isinstance(files, str) else files)
            )
    return None


def training_card(trainer: Trainer, facts: CardFacts) -> ModelCard:
    """The card of the model that a Trainer has trained."""
    args, trained = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    model = transformers_model(trained)
    config, longest = model.config, getattr(trained, "max_seq_length", None)  # infinite in static embeddings
    repo_id = trainer.hub_model_id if args.push_to_hub else args.hub_model_id
    name = Path(repo_id or Path(args.output_dir).resolve()).name
    results = last_evaluation(trainer.state.log_history, facts.metrics)
    test_names = {f"test_{key}": key for key in facts.metrics}
    tested = {test_names[key]: value for key, value in facts.test_results.items() if key in test_names}
    ours = config.model_type in FAMILIES
    data = metadata(facts, config.model_type, name, results, tested)
    start = "trained from scratch" if facts.base_model is None else f"finetuned from {Path(facts.base_model).name}"
    tokenizer = trainer.processing_class
    return ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        name=name,
        summary=f"A `{type(model).__name__}` with {model.num_parameters():,} parameters, {start}.",
        data=facts.data,
        results=_table(results) if results else "not evaluated.",
        test_data=facts.test_data,
        test_results=_table(tested) if tested else None,
        train_data=facts.train_data,
        snippet=facts.example
        or snippet(
            facts.task,
            repo_id or args.output_dir,
            ours,
            getattr(tokenizer, "mask_token", ""),
            facts.text_pairs,
            facts.multi_label,
        ),
        needs_code=ours,
        library=LIBRARIES.get(facts.task, "Transformers"),
        task=facts.task,
        architecture=architecture(model),
        training=training(args, trainer.state.global_step, facts),
        history=history_table(trainer.state.log_history),
        versions=versions(),
        limits=limits(config, longest if isinstance(longest, int) else None),
        citation=citations(config),
    )


def converted_card(
    model: PreTrainedModel,
    output: str,
    task: str,
    command: str,
    *,
    summary: str,
    notes: str = "",
    licence: str | None = None,
    **entries: Any,
) -> ModelCard:
    """The card of a converted checkpoint.

    Args:
        model: The model.
        output: The folder that it is saved in.
        task: A key of `model_card.SNIPPETS`.
        command: What has converted it.
        summary: The first paragraph.
        notes: Further paragraphs.
        licence: Licence of the weights.
        entries: Further metadata.
    """
    title = Path(output).resolve().name
    facts = CardFacts(task, data="", metrics={})
    data = metadata(facts, model.config.model_type, title, {})
    for name, value in {"license": licence, **entries}.items():
        setattr(data, name, value)
    return ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        name=title,
        summary=summary,
        snippet=snippet(task, output, True, None),
        needs_code=True,
        library="Transformers",
        task=task,
        architecture=architecture(model),
        notes=notes,
        command=command,
        versions=versions(),
        citation=citations(model.config),
    )


def citations(config: PreTrainedConfig) -> str:
    """The BibTeX entries of a model's papers, `""` for models of other packages.

    Args:
        config: Its configuration; one with feed-forward layers other than ReLU cites their paper too.
    """
    entries = [CITATIONS.get(config.model_type, "")]
    if getattr(config, "feed_forward_type", "relu") != "relu":
        entries.append(GLU_VARIANTS)
    return "\n".join(textwrap.dedent(entry).strip() for entry in entries)


def metadata(
    facts: CardFacts,
    model_type: str,
    name: str,
    results: Mapping[str, float],
    test_results: Mapping[str, float] | None = None,
) -> ModelCardData:
    """The metadata at the head of a card."""
    from_hub = facts.base_model is not None and not Path(facts.base_model).is_dir()
    ours = model_type in FAMILIES
    task = HUB_TASKS.get(facts.task, facts.task)
    measured = [("validation", facts.data, key, value) for key, value in results.items()]
    measured += [("test", facts.test_data or "test data", key, value) for key, value in (test_results or {}).items()]
    return ModelCardData(
        library_name=LIBRARIES.get(facts.task, "transformers"),
        pipeline_tag=task,
        tags=[
            model_type.replace("_", "-"),
            *(["tokenmixers"] if ours else []),
            *([facts.task] if facts.task != task else []),
        ],
        datasets=[facts.dataset_id] if facts.dataset_id else None,
        base_model=facts.base_model if from_hub else None,
        metrics=sorted({facts.metrics[key] for *_, key, _ in measured}) or None,
        model_name=name,
        eval_results=[
            EvalResult(
                task_type=task,
                dataset_type=facts.dataset_id or "local",
                dataset_name=data,
                dataset_split=split,  # results that differ in the name alone would be merged
                metric_type=facts.metrics[key],
                metric_name=key.replace("_", " "),
                metric_value=value,
            )
            for split, data, key, value in measured
        ]
        or None,
    )


def last_evaluation(history: Sequence[Mapping[str, float]], metrics: Mapping[str, str]) -> dict[str, float]:
    """The metrics of the last evaluation in a Trainer's history, in the order of `metrics`."""
    entries = [entry for entry in history if any(f"eval_{key}" in entry for key in metrics)]
    return {key: float(entries[-1][f"eval_{key}"]) for key in metrics if entries and f"eval_{key}" in entries[-1]}


def history_table(history: Sequence[Mapping[str, float]]) -> str:
    """The evaluations in a Trainer's `log_history` as a table, each with the training loss logged last before it."""
    rows, loss = {}, ""
    for entry in history:
        if "loss" in entry:
            loss = f"{entry['loss']:.4f}"
        found = {key: value for key, value in entry.items() if key.startswith("eval_") and isinstance(value, float)}
        found = {key: value for key, value in found.items() if not key.endswith(("_runtime", "_per_second"))}
        if found:
            # Of several evaluation sets there is an entry for each. The last evaluation may be there twice.
            row = rows.setdefault(entry["step"], {"epoch": f"{entry.get('epoch', 0.0):.2f}", "training loss": loss})
            row |= {key.replace("_", " ").replace("eval ", "evaluation "): f"{v:.4f}" for key, v in found.items()}
    found = {name for row in rows.values() for name in row}
    first = [name for name in ("epoch", "training loss", "evaluation loss") if name in found]
    names = first + sorted(found.difference(first))  # the order of entries is lost where a run was resumed
    table = [(f"{step:,}", *(row.get(name, "") for name in names)) for step, row in rows.items()]
    return markdown_table(("step", *names), table) if rows else ""


def _table(results: Mapping[str, float]) -> str:
    return markdown_table(
        ("metric", "value"), [(key.replace("_", " "), f"{value:.4f}") for key, value in results.items()]
    )


def snippet(
    task: str, model: str, needs_code: bool, mask: str | None, text_pairs: bool = True, multi_label: bool = False
) -> str:
    """A few lines of Python that use the model.

    Args:
        task: A key of `SNIPPETS`.
        model: Hub id or folder.
        needs_code: Whether the checkpoint has code of its own.
        mask: The tokenizer's mask token, for fill-mask.
        text_pairs: Whether a text classifier reads pairs of texts.
        multi_label: Whether it gives a text several labels.
    """
    options = ", trust_remote_code=True" if needs_code else ""
    text = '{"text": "This is a text.", "text_pair": "This is another one."}' if text_pairs else '"This is a text."'
    text += ", top_k=None" if multi_label else ""
    name = Path(model).as_posix()  # backslashes of Windows would be escape sequences
    return textwrap.dedent(SNIPPETS[task]).strip().format(model=name, options=options, mask=mask, text=text)


def architecture(model: PreTrainedModel) -> str:
    """The sizes, counts and FLOPs of a model, as a table."""
    config = model.config
    rows = [("model type", config.model_type)]
    without_meaning = [] if config.is_encoder_decoder else ["num_decoder_layers"]
    without_meaning += ["max_position_embeddings"] if longest_sequence(config) is None else []
    without_meaning += ["patch_size"] if getattr(config, "image_size", None) is None else ["vocab_size"]
    sizes = ((key, getattr(config, key, None)) for key in SIZES if key not in without_meaning)
    rows += [(f"`{key}`", str(value)) for key, value in sizes if value not in (None, [], ())]
    rows.append(("parameters", f"{model.num_parameters():,}"))
    if config.model_type in FAMILIES:
        if getattr(config, "image_size", None) is not None:
            rows.append(("FLOPs, one image", f"{model.forward_flops() / 1e9:.3g} B"))
        else:
            length = config.max_position_embeddings
            rows.append((f"FLOPs, {length} tokens", f"{model.forward_flops(1, length) / 1e9:.3g} B"))
    return markdown_table(("", ""), rows)


def training_settings(args: TrainingArguments, facts: CardFacts) -> dict[str, Any]:
    """The settings that affect the trained weights, by name."""
    values = {key: getattr(args, key) for key in HYPER_PARAMETERS}
    values = {key: getattr(value, "value", value) for key, value in values.items()}
    values.pop("num_train_epochs" if args.max_steps > 0 else "max_steps")
    return {**values, **facts.hyper_parameters}


def training(args: TrainingArguments, steps: int, facts: CardFacts) -> str:
    """The steps done, and the settings that affect the trained weights, as a table."""
    values = training_settings(args, facts)
    rows = [(f"`{key}`", str(value)) for key, value in values.items() if value is not False and value is not None]
    notes = [f"{steps:,} steps.", facts.notes]
    return " ".join(filter(None, notes)) + "\n\n" + markdown_table(("", ""), rows)


def limits(config: PreTrainedConfig, max_seq_length: int | None = None) -> str:
    """Limits of the architecture and of the evaluation, in sentences.

    Args:
        config: The model's configuration.
        max_seq_length: Number of tokens from which on the saved model truncates, if it does.
    """
    if getattr(config, "image_size", None) is not None:
        size = config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return (
            f"Images are {height} pixels high and {width} wide; `resize_position_embeddings` fits the model to other "
            "sizes."
        )
    sentences = []
    # `None` where positions are relative, as in T5.
    if max_seq_length is not None:
        sentences.append(f"Texts longer than {max_seq_length} tokens are truncated.")
    elif config.model_type in FAMILIES and longest_sequence(config) is not None:
        sentences.append(f"Sequences have at most {longest_sequence(config)} tokens: the learned positions end there.")
    sentences.append("The model reflects its training data, and was evaluated on nothing but the data above.")
    return " ".join(sentences)
