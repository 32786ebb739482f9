"""Tiny runs of run_glue: sentences with one of six telling words, in the formats of benchmarks."""

import json

import pytest

from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


SIZES = "hidden_size=16,intermediate_size=32,num_hidden_layers=2,max_position_embeddings=64,classifier_pooling=mean"
GOOD, BAD = ("fine", "lovely", "great"), ("dull", "awful", "poor")


def _sentences(count: int, start: int = 0) -> list[tuple[str, int]]:
    words = [(word, int(word in GOOD)) for word in (*GOOD, *BAD)]
    return [
        (f"the film number {index} is {words[index % 6][0]} and it is over", words[index % 6][1])
        for index in range(start, start + count)
    ]


@pytest.fixture(scope="session")
def sentences():
    """`sentences(count, start=0)`: pairs of a sentence and whether its telling word is a good one."""
    return _sentences


@pytest.fixture(scope="session")
def sizes():
    """`config_overrides` of the tiny model, without the size of the vocabulary."""
    return SIZES


@pytest.fixture(scope="session")
def learn():
    """Arguments of a run that is long enough to learn six words."""
    return {"max_steps": 40, "per_device_train_batch_size": 30, "learning_rate": 3e-2}


@pytest.fixture
def trained(tmp_path):
    """Arguments that evaluate the checkpoint of a run, in another folder."""
    return {"do_train": None, "model_name_or_path": tmp_path / "run", "output_dir": tmp_path / "next"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_unigram_tokenizer([text for text, _ in _sentences(60)], 80, 64).save_pretrained(folder)
    # Training counts in parallel: order and scores of the pieces, not the pieces, differ from run to run.
    file = folder / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    special = [token["content"] for token in state["added_tokens"]]
    pieces = sorted(piece for piece, _ in state["model"]["vocab"] if piece not in special)
    assert [piece for piece, _ in state["model"]["vocab"][: len(special)]] == special
    state["model"]["vocab"] = [[piece, -1.0] for piece in special + pieces]
    file.write_text(json.dumps(state), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """SST-2, MNLI, STS-B and COPA in their official formats, with sentences of our own."""
    folder = tmp_path_factory.mktemp("glue")
    for task in ("SST-2", "MNLI", "STS-B", "COPA"):
        (folder / task).mkdir()
    for name, count in (("train", 60), ("dev", 18), ("test", 6)):
        rows = _sentences(count, start=len(name))
        hidden = name == "test"
        lines = ["index\tsentence" if hidden else "sentence\tlabel"]
        lines += [f"{index}\t{text}" if hidden else f"{text}\t{label}" for index, (text, label) in enumerate(rows)]
        (folder / "SST-2" / f"{name}.tsv").write_text("\n".join(lines))
        lines = ["index\tsentence1\tsentence2" + ("" if hidden else "\tscore")]
        lines += [
            f"{i}\t{text}\tit is" + ("" if hidden else f"\t{5 * label:.3f}") for i, (text, label) in enumerate(rows)
        ]
        (folder / "STS-B" / f"{name}.tsv").write_text("\n".join(lines))
        kinds = ("neutral", "entailment", "contradiction")
        for part in ("",) if name == "train" else ("_matched", "_mismatched"):
            lines = ["index\tsentence1\tsentence2" + ("" if hidden else "\tgold_label")]
            lines += [
                f"{i}\t{text}\tit is" + ("" if hidden else f"\t{kinds[i % 3]}") for i, (text, _) in enumerate(rows)
            ]
            (folder / "MNLI" / f"{name}{part}.tsv").write_text("\n".join(lines))
        choices = []
        for index in range(count):
            row = {"premise": "the film", "question": "cause", "choice1": "it is fine", "choice2": "it is over"}
            choices.append(row | {"idx": index + 100} | ({} if hidden else {"label": index % 2}))
        content = "\n".join(map(json.dumps, choices))
        (folder / "COPA" / f"{ {'dev': 'val'}.get(name, name) }.jsonl").write_text(content)
    return folder


@pytest.fixture
def command(data, tokenizer, as_words, tmp_path):
    """`command(name=value, ...)`: arguments of a tiny run, with changes; `None` leaves an argument out."""
    settings = {
        "task_name": "sst2",
        "data_dir": data,
        "config_name": "gmlp-base",
        "config_overrides": f"{SIZES},vocab_size=80",
        "tokenizer_name": tokenizer,
        "output_dir": tmp_path / "run",
        "max_steps": 2,
        "per_device_train_batch_size": 6,
        "per_device_eval_batch_size": 9,  # half of the rows: those of a short last batch would weigh more
        "learning_rate": 1e-2,
        "save_strategy": "no",
    }
    return lambda *more, **changes: as_words(settings, *more, changes)
