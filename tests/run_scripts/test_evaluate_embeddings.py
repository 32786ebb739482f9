"""The command that evaluates sentence embeddings, on sets whose scores are computed by hand or by scikit-learn."""

import gzip
import json
import math
import os
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import tokenmixers
from tokenmixers.run_scripts import evaluate_embeddings
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.embeddings import pictures
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


pytest.importorskip("sentence_transformers", reason="needs the extra embeddings")
import sentence_transformers as library

from tokenmixers.run_scripts.embeddings import scores


#: Words and the angles of their embeddings, in degrees.
ANGLES = {"a": 0, "b": 30, "c": 60, "d": 90, "e": 135, "f": 180}
VECTORS = {word: np.array([math.cos(math.radians(x)), math.sin(math.radians(x))]) for word, x in ANGLES.items()}

#: Name of a set -> its score with these embeddings; those of labels are computed in the tests.
BY_HAND = {
    "similar": 1 - 6 * 4 / (4 * 15),  # the ranks of the four pairs differ by 1 each
    "pairs": (1 / 1 + 2 / 3) / 2,
    "rerank": (1 / 2 + 1) / 2,
    "retrieval": (1 / math.log2(3) + 1) / 2,
}
STANDARD = (*BY_HAND, "folds", "topics", "cluster_two")


def table(*rows: str) -> str:
    return "".join(row.replace("|", "\t") + "\n" for row in rows)


def texts(count: int, seed: int) -> list[tuple[str, str]]:
    """Labels and texts: the label is often, not always, that of the words' half of the plane."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        words = draw.choices([*ANGLES], k=3)
        left = sum(VECTORS[word][0] for word in words) < draw.gauss(0.5, 0.7)
        rows.append(("left" if left else "right", " ".join(words)))
    return rows


def embed(words: list[str]) -> np.ndarray:
    return np.array([np.mean([VECTORS[word] for word in text.split()], axis=0) for text in words])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    labelled = {"train": texts(60, 1), "test": texts(40, 2), "all": texts(50, 3)}
    files = {
        "similar/dev.tsv": table("score|sentence1|sentence2", "3.5|a|b", "4|a|c", "1|a|d", "2.0|b|e"),
        "similar/test.tsv": table("sentence1|sentence2", "a|b"),  # hides the scores
        "pairs/test.tsv": table("label|votes|sentence1|sentence2", "1|x|a|b", "0|x|a|c", "1|x|a|d", "0|x|b|e"),
        "rerank/test.tsv": table(
            *("query_id|label|query|document", "1|0|a|b", "1|1|a|c", "1|0|a|d", "2|1|f|e", "2|0|f|d", "3|1|c|d")
        ),
        "retrieval/corpus.jsonl": '{"_id": "1", "title": "", "text": "b"}\n{"_id": "2", "title": "c", "text": ""}\n'
        '{"_id": 3, "text": "d"}\n{"_id": "4", "text": "e"}\n',
        "retrieval/queries.jsonl": "".join(f'{{"_id": "q{n}", "text": "{text}"}}\n' for n, text in enumerate("afb")),
        "retrieval/qrels.tsv": table("query-id|corpus-id|score", "q0|2|1", "q1|4|2", "q1|3|1", "q2|1|0"),
        "folds/all.tsv": table("label|text", *map("|".join, labelled["all"])),
        "topics/train.tsv": table("label|text", *map("|".join, labelled["train"])),
        "topics/test.tsv": table("fine|label|text", *(f"x|{label}|{text}" for label, text in labelled["test"])),
        "cluster_two/all.tsv": table("label|text", *("x|a", "y|a b a a", "x|a a", "x|a a a"), *["y|f", "y|f f"] * 2),
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if name.startswith("folds"):
            path.with_name("all.tsv.gz").write_bytes(gzip.compress(content.encode()))
        else:
            path.write_text(content)
    return folder, labelled


def static_model(folder: Path, words: str = "abcdef") -> str:
    """A checkpoint of Sentence Transformers that gives the words a to f the vectors of others."""
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(ANGLES)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    weights = torch.tensor(np.array([VECTORS[word] for word in words]), dtype=torch.float32)
    library.SentenceTransformer(modules=[StaticEmbedding(tokenizer, weights)], device="cpu").save(str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return static_model(tmp_path_factory.mktemp("models") / "static")


@pytest.fixture
def command(data, model, tmp_path):
    def build(*models: str, **changes) -> list[str]:
        settings = {"models": models or [model], "data_dir": data[0], "output_dir": tmp_path / "out"} | changes
        words = []
        for name, value in settings.items():
            words += [f"--{name}", *map(str, value if isinstance(value, list | tuple) else [value])]
        return words

    return build


def scores_of(rows: list[dict], column: int = 0) -> dict[str, float]:
    return {row["name"].partition(" (")[0]: row["scores"][column] for row in rows if row["metric"]}


def test_every_kind_has_the_score_computed_by_hand(command, data, capsys, tmp_path):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    found = scores_of(evaluate_embeddings.main(command()))
    shown = capsys.readouterr().out
    assert {name: found[name] for name in BY_HAND} == pytest.approx(BY_HAND, abs=1e-6)

    parts = {name: (embed([text for _, text in rows]), [label for label, _ in rows]) for name, rows in data[1].items()}
    classifier = LogisticRegression(max_iter=1000)
    expected = classifier.fit(*parts["train"]).score(*parts["test"])
    assert 0.5 < expected < 1 and found["topics"] == pytest.approx(expected)
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    assert found["folds"] == pytest.approx(cross_val_score(classifier, *parts["all"], cv=folds).mean())

    # Two clusters of four texts: x x x y and y y y y. Entropies in bits.
    mixed = -(3 / 4 * math.log2(3 / 4) + 1 / 4 * math.log2(1 / 4)) / 2
    labels = -(3 / 8 * math.log2(3 / 8) + 5 / 8 * math.log2(5 / 8))
    information = labels - mixed
    assert found["cluster_two"] == pytest.approx(2 * information / (labels + 1))
    assert {*found} == {*STANDARD}

    assert "rerank: 1 of 3 queries left out" in shown and "retrieval: 1 of 3 queries left out" in shown
    assert re.search(r"^\| similar \(dev\) +\| spearman_cosine \| +60\.00 \|$", shown, flags=re.MULTILINE)
    run = json.loads((tmp_path / "out" / "results.json").read_text())
    assert run["command"].startswith("tokenmixers evaluate_embeddings --models ")
    assert all(text in run["versions"] for text in ("sentence-transformers", "scikit-learn", "torch"))
    assert {result["set"]: result["score"] for result in run["results"]} == found
    (by_query,) = [result["by_query"] for result in run["results"] if result["set"] == "retrieval"]
    assert by_query == pytest.approx({"q0": 1 / math.log2(3), "q1": 1})
    page = (tmp_path / "out" / "results.md").read_text()
    assert run["command"] in page and run["processor"] in page and run["date"] in page
    assert page.partition("\n\n")[0] in shown


def test_models_stand_side_by_side_with_shares_and_means(command, model, tmp_path):
    other = static_model(tmp_path / "models" / "swapped", "abedcf")
    tasks = ["similar", "rerank", "retrieval", "pairs"]
    rows = evaluate_embeddings.main(command(model, other, tasks=tasks))
    alone = scores_of(evaluate_embeddings.main(command(other, tasks=tasks, output_dir=tmp_path / "alone")))
    assert [row["name"] for row in rows[:4]] == ["similar (dev)", "pairs", "rerank", "retrieval"]  # by kind
    for row in rows[:4]:
        name = row["name"].partition(" ")[0]
        assert row["scores"] == pytest.approx([BY_HAND[name], alone[name]], abs=1e-6)
        assert row["shares"] == pytest.approx([1, alone[name] / BY_HAND[name]], abs=1e-6)
    assert alone != pytest.approx(BY_HAND, abs=1e-3)
    overall = rows[-1]
    assert overall["name"] == "mean of 4 kinds"
    for part in ("scores", "shares"):
        assert overall[part] == pytest.approx(np.mean([row[part] for row in rows[:4]], axis=0))
    # A single set has no mean.
    (row,) = evaluate_embeddings.main(command(model, tasks=["pairs"], output_dir=tmp_path / "one set"))
    assert (row["name"], row["scores"]) == ("pairs", pytest.approx([BY_HAND["pairs"]]))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A gMLP without pooling of its own, as `run_mlm` saves it."""
    folder = tmp_path_factory.mktemp("encoder") / "gmlp"
    lines = [text for _, text in texts(80, 4)]
    tokenizer = train_unigram_tokenizer(lines, 20, 12, show_progress=False)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 12}
    model = tokenmixers.GMLPForMaskedLM(tokenmixers.GMLPConfig(vocab_size=len(tokenizer), **sizes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return str(folder)


def test_an_encoder_is_pooled_by_the_mean(encoder, command, data, tmp_path):
    from scipy.stats import spearmanr
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()

    def embedding(text: str) -> torch.Tensor:
        with torch.no_grad():
            return model(**tokenizer(text, return_tensors="pt"))[0][0].mean(dim=0)

    pairs, gold = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "e")], [3.5, 4, 1, 2]
    cosines = [torch.cosine_similarity(*map(embedding, pair), dim=0).item() for pair in pairs]
    rows = evaluate_embeddings.main(command(encoder, tasks=["similar"]))
    assert scores_of(rows)["similar"] == pytest.approx(spearmanr(cosines, gold)[0])


def test_formats_are_evaluated_side_by_side(encoder, command, tmp_path, capsys):
    evaluate_embeddings.main(command(encoder, formats=["float32", "bfloat16"]))
    assert re.search(r"\| +gmlp, float32 \| +gmlp, bfloat16 \| +share \|\n", capsys.readouterr().out)
    results = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    assert [result["format"] for result in results] == ["float32"] * len(STANDARD) + ["bfloat16"] * len(STANDARD)
    first, second = (result["figures"] for result in results if result["set"] == "similar")
    assert first != second and first == pytest.approx(second, abs=0.05)  # the correlation of numbers, not of ranks
    evaluate_embeddings.main(command(encoder, max_seq_length=4, tasks=["folds"], output_dir=tmp_path / "cut"))
    (cut,) = json.loads((tmp_path / "cut" / "results.json").read_text())["results"]
    (whole,) = (result for result in results if (result["set"], result["format"]) == ("folds", "float32"))
    assert (whole["max_seq_length"], cut["max_seq_length"]) == (12, 4) and whole["score"] != cut["score"]


def test_embeddings_in_bfloat16_are_compared_in_float32(encoder):
    from tokenmixers.run_scripts.embeddings.models import load_embedder

    model = load_embedder(encoder, "bfloat16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.encode(["a b"], convert_to_tensor=True).dtype == torch.float32


def test_static_embeddings_of_model2vec(model, command, tmp_path):
    static = pytest.importorskip("model2vec").StaticModel
    from tokenizers import Tokenizer

    vectors = np.array([*VECTORS.values()], dtype=np.float32)
    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
    static(vectors, tokenizer, {"normalize": True}).save_pretrained(tmp_path / "model2vec")
    rows = evaluate_embeddings.main(command(model, str(tmp_path / "model2vec"), tasks=[*BY_HAND]))
    assert scores_of(rows, 1) == pytest.approx(BY_HAND, abs=1e-6)


@pytest.fixture
def exported(model, tmp_path):
    """An encoder in ONNX alone, whose states of tokens are the words' vectors; in int8 two words are swapped."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper
    from transformers import BertConfig, PreTrainedTokenizerFast

    folder = tmp_path / "exported"
    sizes = {"hidden_size": 2, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    BertConfig(vocab_size=6, max_position_embeddings=8, architectures=["BertModel"], **sizes).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_file=f"{model}/tokenizer.json", pad_token="a").save_pretrained(folder)
    (folder / "onnx").mkdir()
    for file, words in (("model", "abcdef"), ("model_qint8_avx512", "abedcf")):
        vectors = np.array([VECTORS[word] for word in words], dtype=np.float32)
        ids, mask = (
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
            for name in ("input_ids", "attention_mask")
        )
        states = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", 2])
        gather = helper.make_node("Gather", ["vectors", "input_ids"], ["last_hidden_state"])
        graph = helper.make_graph(
            [gather], "encoder", [ids, mask], [states], [numpy_helper.from_array(vectors, "vectors")]
        )
        program = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.save(program, folder / "onnx" / f"{file}.onnx")
    return str(folder)


def test_exported_encoders_are_evaluated_in_onnx_runtime(exported, model, command, tmp_path, capsys):
    formats = ["float32", "onnx", "onnx-int8"]
    rows = evaluate_embeddings.main(command(model, exported, formats=formats, tasks=[*BY_HAND]))
    shown = capsys.readouterr().out
    assert "exported: has no files for float32, left out" in shown
    assert "static: has no files for onnx, onnx-int8, left out" in shown
    head = re.search(r"^\| set .*$", shown, flags=re.MULTILINE)[0]
    assert [cell.strip() for cell in head.split("|")[3:-1]] == [
        *("static, float32", "exported, onnx", "share", "exported, onnx-int8", "share")
    ]
    assert scores_of(rows, 1) == pytest.approx(BY_HAND, abs=1e-6)
    swapped = static_model(tmp_path / "models" / "swapped", "abedcf")
    expected = scores_of(evaluate_embeddings.main(command(swapped, tasks=[*BY_HAND], output_dir=tmp_path / "swapped")))
    assert scores_of(rows, 2) == pytest.approx(expected, abs=1e-6)
    assert expected != pytest.approx(BY_HAND, abs=1e-3)
    with pytest.raises(UserError, match="exported' has no files for float32 or bfloat16: give another of --formats"):
        evaluate_embeddings.main(command(exported, formats=["float32", "bfloat16"], output_dir=tmp_path / "none"))


def test_speeds_stand_in_the_results_and_in_the_picture(command, model, data, tmp_path, capsys):
    other = static_model(tmp_path / "models" / "swapped", "abedcf")
    options = {"tasks": ["similar", "pairs"], "formats": ["float32", "bfloat16"]}
    timed = {"speed_file": data[0] / "similar" / "dev.tsv", "threads": [1], "rounds": 2, "speed_sentences": 5}
    evaluate_embeddings.main(command(model, other, **options, **timed))
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    names = ["static, float32", "static, bfloat16", "swapped, float32", "swapped, bfloat16"]
    assert [row["name"] for row in content["speeds"]] == content["models"] == names
    shown = capsys.readouterr().out
    assert re.search(r"^\| sentences per second +\| +1 thread \| times the first \|$", shown, flags=re.MULTILINE)
    assert re.search(r"^\| static, float32 +\| +[\d,]+ \| +1\.00 \|$", shown, flags=re.MULTILINE)
    assert "| sentences per second " in (tmp_path / "out" / "results.md").read_text()
    assert (tmp_path / "out" / "quality_speed.png").read_bytes().startswith(b"\x89PNG")

    (axis,) = pictures.picture(content["results"], content["speeds"]).axes
    quality = {(row["model"], row["format"], row["kind"]): 100 * row["score"] for row in content["results"]}
    expected = {
        (row["sentences_per_second"], quality[row["model"], row["format"], "similarity"]) for row in content["speeds"]
    }
    drawn = {tuple(*line.get_xydata()) for line in axis.lines if line.get_marker() != "None"}
    assert drawn == expected
    assert [text.get_text() for text in axis.texts] in (["static", "swapped"], ["swapped", "static"])
    assert axis.get_ylabel() == "Spearman's correlation times 100, similar"


def test_held_out_pairs_are_a_set_and_sentences_to_measure_speed_with(command, tmp_path):
    """Every anchor is a query among all positives."""
    pairs = tmp_path / "held_out.tsv"
    pairs.write_text(table("anchor|positive", "a|c", "f|e", "a|b", "d|a"))
    timed = {"speed_file": pairs, "threads": [1], "rounds": 1}
    (row,) = evaluate_embeddings.main(command(data_dir=pairs, tasks=["held_out"], **timed))
    assert (row["name"], row["metric"]) == ("held_out", "ndcg@10")
    # a does not find itself, then b and c are next; e is next to f; d finds c and e, b, and then a.
    first, second, fourth = 1, 1 / math.log2(3), 1 / math.log2(5)
    assert row["scores"] == pytest.approx([((first + second) / (first + second) + 1 + fourth) / 3])
    assert json.loads((tmp_path / "out" / "results.json").read_text())["speeds"]
    # A file with the columns of a kind, and speed alone.
    scored = tmp_path / "train.tsv"
    scored.write_text(table("score|sentence1|sentence2", "3.5|a|b", "4|a|c", "1|a|d", "2.0|b|e"))
    (row,) = evaluate_embeddings.main(command(data_dir=scored, output_dir=tmp_path / "scored"))
    assert row["name"] == "train" and row["scores"] == pytest.approx([BY_HAND["similar"]])


def test_speed_is_measured_without_a_set(model, tmp_path, capsys):
    pairs = tmp_path / "held_out.tsv"
    pairs.write_text(table("anchor|positive", "a|c"))
    words = ["--models", model, "--speed_file", str(pairs), "--threads", "1", "--rounds", "1"]
    assert evaluate_embeddings.main([*words, "--output_dir", str(tmp_path / "out")]) == []
    assert "| sentences per second " in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"results.json", "results.md"}
    assert "Scores" not in (tmp_path / "out" / "results.md").read_text()


def test_an_evaluation_that_was_stopped_goes_on(command, model, data, tmp_path, monkeypatch, capsys):
    other = static_model(tmp_path / "swapped", "abedcf")
    sets_there = shutil.copytree(data[0], tmp_path / "sets", copy_function=shutil.copy)
    arguments = command(model, other, tasks=["similar", "pairs", "rerank"], data_dir=sets_there)
    whole = evaluate_embeddings.main([*arguments, "--output_dir", str(tmp_path / "whole")])
    calls = []

    def stopped(embedder, task, batch_size):
        calls.append(task.name)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return score(embedder, task, batch_size)

    score = scores.evaluate
    monkeypatch.setattr(scores, "evaluate", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate_embeddings.main(arguments)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.unfinished.json"]
    capsys.readouterr()
    assert evaluate_embeddings.main(arguments) == whole
    assert calls[5:] == [*calls[4:5], "rerank"]
    assert "going on from 4 results in" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["results.json", "results.md"]


@pytest.mark.parametrize("changed", ["model", "set", "time"])
def test_only_what_has_changed_is_evaluated_anew(changed, command, model, data, tmp_path, monkeypatch):
    """Contents count: another model or set may be older than the evaluation, and a newer file may be the same."""
    other = static_model(tmp_path / "swapped", "abedcf")
    sets_there = shutil.copytree(data[0], tmp_path / "sets", copy_function=shutil.copy)
    arguments = command(model, other, tasks=["similar", "pairs"], data_dir=sets_there)
    before = evaluate_embeddings.main(arguments)
    results = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.unfinished.json").write_text(json.dumps(results))
    pairs = sets_there / "pairs" / "test.tsv"
    if changed == "model":
        static_model(tmp_path / "swapped", "fedcba")
    if changed == "set":
        pairs.write_text(table("label|votes|sentence1|sentence2", "0|x|a|b", "1|x|a|c", "0|x|a|d", "1|x|b|e"))
    for path in (pairs, *(tmp_path / "swapped").iterdir()):
        os.utime(path, (2**32, 2**32) if changed == "time" else (2**20, 2**20))
    calls, score = [], scores.evaluate
    monkeypatch.setattr(scores, "evaluate", lambda *given: calls.append(given[1].name) or score(*given))
    found = evaluate_embeddings.main(arguments)
    assert calls == {"model": ["similar", "pairs"], "set": ["pairs", "pairs"], "time": []}[changed]
    assert found == evaluate_embeddings.main([*arguments, "--output_dir", str(tmp_path / "fresh")])
    assert (found == before) is (changed == "time")


def test_the_dev_split_and_tasks_can_be_chosen(command, data, capsys, tmp_path):
    rows = evaluate_embeddings.main(command(split="dev"))
    assert scores_of(rows) == pytest.approx({"similar": BY_HAND["similar"]})
    left_out = capsys.readouterr().out
    assert all(f"{name}: left out, it has no dev split" in left_out for name in STANDARD if name != "similar")
    rows = evaluate_embeddings.main(command(tasks=["classification", "pairs"], output_dir=tmp_path / "some"))
    assert {*scores_of(rows)} == {"pairs", "folds", "topics"}
    single = data[0] / "pairs"  # a folder that is a set
    folders = command(data_dir=[single, data[0] / "rerank"], output_dir=tmp_path / "two")
    assert {*scores_of(evaluate_embeddings.main(folders))} == {"pairs", "rerank"}
    with pytest.raises(UserError, match="two exists and is not empty: give another one"):
        evaluate_embeddings.main(folders)


def test_a_query_that_is_a_document_does_not_find_itself(command, tmp_path, capsys):
    """As in ArguAna and Quora; ids alone, as those of NPL, say nothing."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text(
        '{"_id": "1", "title": "a", "text": "a"}\n{"_id": "2", "text": "b"}\n{"_id": "3", "text": "d"}\n'
    )
    (folder / "queries.jsonl").write_text(
        '{"_id": "1", "text": "a"}\n{"_id": "2", "text": "c"}\n{"_id": "3", "text": "d"}\n'
    )
    (folder / "qrels.tsv").write_text(table("query-id|corpus-id|score", "1|2|1.0", "2|1|1", "3|3|1"))
    (row,) = evaluate_embeddings.main(command(data_dir=folder))
    # 1 finds b first. 2 finds b, d and a. 3 is judged relevant for itself.
    assert row["scores"] == pytest.approx([(1 + 1 / math.log2(4) + 1) / 3])
    assert "own: 1 of 3 queries are documents of the corpus and do not find themselves" in capsys.readouterr().out
    (result,) = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    assert result["figures"]["map@100"] == pytest.approx((1 + 1 / 3 + 1) / 3) and "map@101" not in result["figures"]


def test_wrong_calls_compute_and_write_nothing(command, model, data, encoder, tmp_path):
    clip = tmp_path / "images"
    config = tokenmixers.GMLPConfig(
        image_size=8, patch_size=4, hidden_size=8, intermediate_size=8, num_hidden_layers=1
    )
    tokenmixers.GMLPModel(config).save_pretrained(clip)
    (tmp_path / "similar").mkdir()
    shutil.copy(data[0] / "similar" / "dev.tsv", tmp_path / "similar")
    damaged = shutil.copytree(model, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"no weights")
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    for words, sentence in (
        (command("no/such/model"), "there is no folder 'no/such/model'"),
        (command(model, str(nothing)), "nothing' cannot be loaded: "),
        (command(str(damaged)), "damaged' cannot be loaded: "),
        (command(str(clip)), "cannot be loaded: |the model reads images"),
        (command(encoder, max_seq_length=13), "--max_seq_length 13 does not fit the model, whose sequences have at"),
        (command(tasks=["sts12"]), "--tasks 'sts12' is neither a set in --data_dir nor a kind; there are"),
        (command(tasks=["clustering"], split="dev"), "has no dev split of clustering"),
        (command(data_dir=[data[0], tmp_path / "similar"]), "have the same name: give one of them"),
        (command(speed_file="nope.tsv"), "there is no file 'nope.tsv'"),
        (command(data_dir="nope.tsv"), "there is no folder or file 'nope.tsv'"),
        (command(data_dir=data[0] / "retrieval" / "qrels.tsv"), "needs the columns anchor, positive, or score,"),
        (["--models", model, "--output_dir", str(tmp_path / "out")], "there is nothing to measure: give --data_dir,"),
        (command(speed_file=data[0] / "retrieval" / "qrels.tsv"), "has none of the columns sentence1, sentence2,"),
    ):
        with pytest.raises(UserError, match=sentence) as raised:
            evaluate_embeddings.main(words)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()
