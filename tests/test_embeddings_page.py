"""The figures on the first page, the embeddings' pages and the cards are those that were measured."""

import contextlib
import csv
import io
import json
import re
import shutil
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from huggingface_hub import ModelCard

import tokenmixers
from tokenmixers.run_scripts.embeddings.pictures import published_speeds


MODELS = tokenmixers.shipped_models()
FOLDER = Path(tokenmixers.__file__).parent / "model_cards"
#: Names of the sets on the cards -> their folders.
SETS = {
    "BIOSSES": "biosses",
    "STS-B dev": "STS-B",
    "STS12": "sts12",
    "STS13 (without SMT)": "sts13",
    "STS14": "sts14",
    "STS15": "sts15",
    "Twitter URL paraphrases": "pair_twitter_url",
    "WikiQA": "rerank_wikiqa",
    "CISI": "retrieval_cisi",
    "NPL": "retrieval_npl",
    "BBC headlines": "bbc_news",
    "COVID-QA": "covid_qa",
    "AG News": "ag_news",
    "CLINC150": "clinc150",
    "CR": "cr",
    "HWU64": "hwu64",
    "MPQA": "mpqa",
    "TREC": "trec",
    "TweetEval irony": "tweeteval_irony",
    "20 Newsgroups subjects": "cluster_20newsgroups",
    "biomedical titles": "cluster_biomedical_titles",
    "search snippets": "cluster_searchsnippets",
}
TEACHER = "all-MiniLM-L6-v2"
STSB, STS, RETRIEVAL = ("STS-B",), ("sts12", "sts13", "sts14", "sts15"), ("retrieval_cisi", "retrieval_npl")
#: Columns of the pages that quality.json names otherwise.
NAMES = {
    "static": "MiniLM, static",
    "1 layer": "MiniLM, 1 layer",
    "2 hybrid layers": "hybrid-minilm-small",
    "6 hybrid layers": "hybrid-minilm",
}
NAMES |= {
    f"{layers} layers": f"MiniLM, {layers} layers"
    for layers in (2, 3, 4, "2 narrow", "6 narrow", "6 joined narrow", "6 aft")
}
#: Names on the pages of scores, where the layers that the files call so are the joined ones.
SCORED = NAMES | {"3 layers": "3 layers, 240,000 rows", "3 joined layers": "MiniLM, 3 layers"}
#: The first column of the page's table of speeds.
SPEEDS = "times the teacher's speed, one / two threads"
EMBEDDINGS = FOLDER / "embeddings"
PAGES = [EMBEDDINGS / f"{name}.md" for name in ("README", "training", "comparisons", "finetuning")]
#: The words of the pages on embeddings.
TEXT = " ".join(" ".join(page.read_text().split()) for page in PAGES)


def tables(path: Path) -> list[list[list[str]]]:
    """The tables of a page: their rows, head first, and cells, without the marks of bold text."""
    found = re.findall(r"(?:^\|.*\|\n)+", path.read_text(), re.MULTILINE)
    rows = [[row for row in table.splitlines() if not re.fullmatch(r"[|:\- ]+", row)] for table in found]
    return [[[cell.strip(" *") for cell in row.strip("|").split("|")] for row in table] for table in rows]


def table_with(head: str, *pages: Path) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of some pages, by default those on embeddings, whose first column has this head."""
    (table,) = (table for page in pages or PAGES for table in tables(page) if table[0][0] == head)
    return table[0], table[1:]


def results_of(name: str, *keys: str):
    """What a file of results has under these keys."""
    found = json.loads((EMBEDDINGS / f"{name}.json").read_text())
    for key in keys:
        found = found[key]
    return found


def means(scores: dict[str, float], *columns: tuple[str, ...]) -> list[float]:
    """Means of scores times 100 over the sets of each column."""
    return [100 * np.mean([scores[name] for name in names]) for names in columns]


def numbers(*cells: str) -> list[float]:
    """The numbers in some cells, also several in one."""
    return [float(number) for cell in cells for number in re.findall(r"\d+(?:\.\d+)?", cell.replace(",", ""))]


@pytest.fixture(scope="module")
def scores() -> dict[tuple[str, str], float]:
    """Score times 100 of a model on a set."""
    rows = results_of("quality", "results")
    return {(row["model"], row["set"]): 100 * row["score"] for row in rows}


@pytest.fixture(scope="module")
def intervals(tmp_path_factory) -> tuple[dict, str]:
    """The names of the pages' code for intervals, and what it prints."""
    folder = tmp_path_factory.mktemp("intervals")
    (folder / "outputs" / "evaluation").mkdir(parents=True)
    shutil.copy(EMBEDDINGS / "quality.json", folder / "outputs" / "evaluation" / "results.json")
    code = compile((EMBEDDINGS / "retrieval_intervals.py").read_text(), "page", "exec")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.chdir(folder)
        exec(code, names := {})
    return names, printed.getvalue()


def check_scores(head: list[str], cells: list[str], found: dict[str, float], shares: dict[str, float]) -> None:
    """Check a row: scores by model, and each share next to the column of its model."""
    models = [NAMES.get(model, model) for model in head]
    for number, cell in enumerate(cells):
        if models[number] == "share":
            assert float(cell.removesuffix(" %")) == pytest.approx(shares[models[number - 1]], abs=0.06)
        elif models[number] in found:
            assert float(cell) == pytest.approx(found[models[number]], abs=0.06), (cells, models[number])


def test_scores_of_the_file_are_those_that_were_measured(scores):
    head, *rows = csv.reader((EMBEDDINGS / "scores.csv").read_text().splitlines())
    assert {row[1] for row in rows} == {*SETS.values()} and len(rows) == len(SETS)
    cells = {(model, row[1]): float(cell) for row in rows for model, cell in zip(head[3:], row[3:], strict=True)}
    assert cells == pytest.approx(scores, abs=0.0051)


def test_narrow_layers_are_what_was_measured():
    _, rows = table_with("narrow layers")
    runs = results_of("rows", "narrow", "runs")
    for (_, units, mixing, operations, *cells), run in zip(rows, runs, strict=True):
        types, count = run["token_mixers"] or ["full_attention"], len(run["keep_layers"])
        assert {kind.split("_")[0].replace("full", "attention") for kind in types} == {
            *re.findall("random|attention", mixing)
        }
        # Of 12 squares of the width, a whole layer has 2 for queries and keys, and 8 in 1,536 units.
        spared = 2 * types.count("random_synthesizer") + count * 8 * (1 - run["intermediate_size"] / 1536)
        assert operations == f"{100 * (12 * count - spared) / 72:.0f} %" and units == f"{run['intermediate_size']:,}"
        assert numbers(*cells) == pytest.approx(means(run["scores"], STSB, STS, RETRIEVAL), abs=0.051)


def test_shapes_without_attention_are_what_was_measured(scores):
    _, rows = table_with("`aft` layers")
    runs = results_of("rows", "aft", "runs")
    for (kept, units, queries, operations, *cells), run in zip(rows, runs, strict=True):
        assert kept == ", ".join(map(str, run["keep_layers"])) and units == f"{run['intermediate_size']:,}"
        assert int(queries) == run["num_mean_queries"]
        # Of 12 squares of the width in a whole layer, 2 remain of attention, and 8 for 1,536 units.
        squares = len(run["keep_layers"]) * (2 + 8 * run["intermediate_size"] / 1536)
        assert operations == f"{100 * squares / 72:.0f} %"
        assert numbers(*cells) == pytest.approx(means(run["scores"], STSB, STS), abs=0.051)
    scores, kinds = with_more_rows(scores)
    ours = "MiniLM, 6 aft layers"
    names = ours, f"{ours}, seed 2", "hybrid-minilm", "5 aft layers, 1 with attention"
    fewer, *units = means(results_of("rows", "aft", "long", "scores"), STSB + STS)
    units += [np.mean([scores[name, key] for key in STSB + STS]) for name in names]
    assert max(units[2:]) - min(units[:2]) < 0.35  # "within 0.3 points"
    assert "have {:.1f} and {:.1f} after 240,000 rows, and one with 768 units".format(*units[:2]) in TEXT
    assert f"(half) {fewer:.1f}. " in TEXT
    assert f"Six hybrid layers have {units[2]:.1f} after fewer rows." in TEXT
    first, second, _, mixed = (shares_by_kind(name, scores, kinds) for name in names)
    found = units[3], np.mean([*mixed.values()]), mixed["retrieval"]
    claim = "have {:.1f} too, and keep {:.1f} % in the mean of the kinds and {:.1f} % in retrieval."
    assert claim.format(*found) in TEXT
    narrow, whole = (shares_by_kind(SCORED[f"{name} layers"], scores, kinds) for name in ("6 narrow", "3"))
    one, other, *attention = (np.mean([*found.values()]) for found in (first, second, narrow, whole))
    claim = "In the mean they differ by at most {:.1f} points, and the two seeds of `6 aft layers` by {:.1f}."
    assert claim.format(max(one, *attention) - min(one, *attention), one - other) in TEXT
    assert all(found["retrieval"] > first["retrieval"] for found in (narrow, whole))
    ahead = {kind for kind in narrow if narrow[kind] > first[kind]}
    assert ahead == {"retrieval", "similarity", "classification"}  # as it says; at paraphrases it is `aft` again
    five = np.mean([scores["MiniLM, 6 narrow layers", key] for key in STSB + STS])
    assert f"where it is {five - fewer:.1f} points behind `6 narrow layers`" in TEXT
    more = narrow["retrieval"] - first["retrieval"]
    assert f"six narrow layers keep {more:.1f} points more than six `aft` layers, which is [within chance]" in TEXT
    four, ours = (shares_by_kind(name, scores, kinds) for name in ("MiniLM, 4 layers", "aft-minilm"))
    assert f"the {four['retrieval'] - ours['retrieval']:.1f} points of four of the teacher's layers over" in TEXT
    claim = "`aft-minilm` keeps {:.1f} % then (one seed), and {:.1f} % in retrieval."
    assert claim.format(np.mean([*ours.values()]), ours["retrieval"]) in TEXT


def test_the_same_layers_differ_between_tables_as_it_says():
    columns = {"kept layers": 3, "narrow layers": 4, "without / with states": 2}
    found = numbers(table_with("layers")[1][0][1])
    for head, column in columns.items():
        first, *_ = (row for row in table_with(head)[1] if "0, 2, 5" in row[0] and "random" not in row[1])
        found += numbers(first[column])[:1]
    assert f"layers 0, 2, 5 have {min(found)} to {max(found)} in four tables" in TEXT


def test_states_of_tokens_are_what_was_measured():
    _, rows = table_with("without / with states")
    found: dict[str, list[list[float]]] = {}
    for run in results_of("rows", "states", "runs"):
        if run["states_weight"] in (0, 5):
            found.setdefault(run["model"], []).append(means(run["scores"], STSB, STS, ("retrieval",)))
    facts = json.loads((FOLDER / "studies" / "inheritance.json").read_text())["models"]["inheritance"]
    teacher = 2 * facts["layers/2x"]["flops"]
    gained = {model: np.subtract(*reversed(values)) for model, values in found.items()}
    more = [gain[1] for model, gain in gained.items() if model.startswith(("layers", "attention"))]
    assert f"On STS12 to STS15 students with attention gain {min(more):.1f} to {max(more):.1f} points" in TEXT
    (lost,) = (-gain for model, gain in gained.items() if model.startswith("no attention"))
    assert f"a student that inherits loses {min(lost):.1f} to {max(lost):.1f} points" in TEXT
    for (_, operations, *cells), (model, values) in zip(rows, found.items(), strict=True):
        assert operations == f"{100 * facts[model]['flops'] / teacher:.0f} %"
        assert numbers(*cells) == pytest.approx(np.transpose(values).flatten(), abs=0.051)


def test_intervals_of_the_page_are_those_of_its_code(intervals, scores):
    names, printed = intervals
    head, ((_, *queries), *rows) = table_with("retrieval set")
    found = [SETS[title] for title in head[1:-1]]
    assert found == [name for name in SETS.values() if name in names["scores"]]
    cells = {SCORED.get(title, title): shares for title, *shares in rows}
    for model, shares in cells.items():
        for name, count, share in zip([*found, "mean"], queries, shares, strict=True):
            assert f"{model} {name} {share}\n" in printed
            if name != "mean":
                by_query = names["scores"][name][model]
                assert len(by_query) == int(count)
                assert 100 * np.mean(by_query) == pytest.approx(scores[model, name], abs=1e-3)
    assert {*MODELS} <= {*cells}


def test_differences_between_students_are_those_of_the_code(intervals):
    shares = intervals[0]["shares"]
    mean = {model.removeprefix("MiniLM, "): np.mean([*sets.values()], axis=0) for model, sets in shares.items()}
    for pair, points, interval in table_with("first, second")[1]:
        more, less = (SCORED.get(title, title).removeprefix("MiniLM, ") for title in pair.split(", "))
        gap = mean[more] - mean[less]
        assert points == f"{gap[-1]:.1f}"
        low, high = np.percentile(gap[:-1], [2.5, 97.5])
        assert interval == f"{low:.1f} to {high:.1f}", pair
        assert less != "aft-minilm" or low < 0, pair  # "No student with attention is clearly better"


@pytest.mark.parametrize("page", MODELS)
def test_means_by_kind_are_those_of_the_sets(page, scores):
    head, rows = table_with("kind", FOLDER / page / "README.md")
    _, kind_of = with_more_rows(scores)
    kinds, models = [*dict.fromkeys(kind_of.values())], {model for model, _ in scores}
    shares = {model: shares_by_kind(model, scores, kind_of) for model in models}
    assert len(head) == 4 and len(rows) == len(kinds) + 2  # and two speeds; more columns do not fit on a phone
    for row, kind in zip(rows, kinds, strict=False):
        sets = [name for name, its_kind in kind_of.items() if its_kind == kind]
        assert row[0].startswith("paraphrases" if kind[0] == "p" else kind)
        found = {model: np.mean([scores[model, name] for name in sets]) for model in models}
        check_scores(head, row, found, {model: shares[model][kind] for model in models})


def shares_by_kind(model: str, scores: dict[tuple[str, str], float], kinds: dict[str, str]) -> dict[str, float]:
    """Kind -> mean share of the teacher's score; `kinds` has the kind of each set."""
    shares: dict[str, list[float]] = {}
    for name, kind in kinds.items():
        shares.setdefault(kind, []).append(100 * scores[model, name] / scores[TEACHER, name])
    return {kind: float(np.mean(values)) for kind, values in shares.items()}


def with_more_rows(scores: dict[tuple[str, str], float]) -> tuple[dict[tuple[str, str], float], dict[str, str]]:
    """The scores with those of `rows.json`, and the kind of each set."""
    more = results_of("rows")
    more = [*more["all_sets"]["results"], *more["narrow"]["all_sets"], *more["states"]["all_sets"]]
    scores = scores | {(row["model"], row["set"]): 100 * row["score"] for row in more}
    results = results_of("quality", "results")
    kinds = {row["set"]: row["kind"].replace("_", " ") for row in results if row["model"] == TEACHER}
    return scores, kinds


def test_narrow_layers_of_two_seeds_are_what_was_measured(scores):
    scores, kinds = with_more_rows(scores)
    head, rows = table_with("share, two seeds")
    five = STSB + STS
    shares: dict[str, list[dict[str, float]]] = {}
    for model in head[1:]:
        for name in (NAMES.get(model, model) + seed for seed in ("", ", seed 2")):
            found = shares_by_kind(name, scores, kinds)
            found |= {"mean of the kinds": np.mean([*found.values()])}
            found["score on five sets"] = np.mean([scores[name, key] for key in five])
            shares.setdefault(model, []).append(found)
    for kind, *cells in rows:
        form = "{:.1f} / {:.1f}" if kind == "score on five sets" else "{:.1f} / {:.1f} %"
        for model, cell in zip(head[1:], cells, strict=True):
            assert cell == form.format(*(seed[kind] for seed in shares[model]))
    overall = {model: [seed["mean of the kinds"] for seed in seeds] for model, seeds in shares.items()}
    whole, narrow, hybrid, scored = map(np.mean, overall.values())
    spread = [abs(np.subtract(*seeds)) for seeds in overall.values()]
    small = [
        np.mean([*shares_by_kind(f"aft-minilm-small{seed}", scores, kinds).values()]) for seed in ("", ", seed 2")
    ]
    spread.append(abs(np.subtract(*small)))
    seeds = "`aft-minilm-small` keeps {:.1f} %, {:.1f} % with another seed".format(*small)
    assert seeds in TEXT and seeds.replace(" %, ", " %, and ") in TEXT
    names = "2 narrow layers, 480,000 rows", "aft-minilm-small", "aft-minilm-small, seed 2"
    two, *both = (shares_by_kind(name, scores, kinds) for name in names)
    behind = [ours["retrieval"] - two["retrieval"] for ours in both]
    assert f"and two narrow layers {np.mean([*two.values()]):.1f} % (one seed)." in TEXT
    claim = "keep {:.1f} % then (one seed), and {:.1f} to {:.1f} points less in retrieval than both."
    assert claim.format(np.mean([*two.values()]), min(behind), max(behind)) in TEXT
    assert f"keep {narrow - whole:.1f} points more than a whole one of as many operations" in TEXT
    assert max(narrow, hybrid, scored) - min(narrow, hybrid, scored) < max(spread)  # "as much"
    claim = "three `aft` layers keep {:.1f} %, two narrow layers {:.1f} %, and one whole layer {:.1f} %"
    assert claim.format(scored, narrow, whole) in TEXT
    more, less = (np.mean([seed["retrieval"] for seed in shares[model]]) for model in ("2 narrow layers", head[-1]))
    assert f"In retrieval attention keeps {more - less:.1f} points more" in TEXT
    two = np.mean([*shares_by_kind("2 aft layers", scores, kinds).values()])
    assert f"as much as two with 768. Two keep {two:.1f} %" in TEXT
    states = np.mean([*shares_by_kind("hybrid-minilm-small, states", scores, kinds).values()])  # "without and with it"
    ours = overall["2 hybrid layers"][0]
    assert f"{states:.1f}" == f"{ours:.1f}" and f"has a mean share of {states:.1f} % without and with it" in TEXT


def test_shares_of_the_page_are_means_of_those_of_the_sets(scores):
    head, rows = table_with("share of the teacher")
    scores, kinds = with_more_rows(scores)
    overall = {}
    assert head[-1] == "rows, thousands" and len(rows) == 14
    for title, *cells, _ in rows:
        means = shares_by_kind(SCORED.get(title, title), scores, kinds)
        overall[title] = means["mean of the kinds"] = np.mean([*means.values()])
        expected = [means[kind] for kind in head[1:-1]]
        assert numbers(*cells) == pytest.approx(expected, abs=0.06)
    fewer = np.mean([*shares_by_kind("3 layers, 120,000 rows", scores, kinds).values()])
    assert f"Three joined layers keep {overall['3 joined layers']:.1f} % after 160,000 rows." in TEXT
    assert f"Without it three keep {fewer:.1f} % after 120,000 and {overall['3 layers']:.1f} % after 240,000." in TEXT
    gain = overall["6 joined narrow layers"] - overall["6 narrow layers"]
    assert f"Six narrow layers gain {gain:.1f} points with it, and fewer rows." in TEXT
    other = np.mean([*shares_by_kind("aft-minilm-small, seed 2", scores, kinds).values()])
    assert overall["gmlp-minilm"] < min(other, overall["aft-minilm-small"])  # as it says


@pytest.mark.parametrize("name", MODELS)
def test_metadata_of_the_card_are_the_scores(name, scores):
    results = ModelCard.load(FOLDER / name / "README.md").data.eval_results
    assert {result.dataset_name: result.metric_value for result in results} == {
        title: pytest.approx(scores[name, key], abs=0.02) for title, key in SETS.items()
    }


def test_published_figures_meet_those_that_were_measured(scores):
    """The teacher's published scores are ours, so that the means of the four sets compare."""
    head, rows = table_with("published")
    assert head[1:5] == [name.upper() for name in STS]
    for title, *cells in rows:
        *published, mean = map(float, cells[:5])
        assert mean == pytest.approx(np.mean(published), abs=0.0051)
        if f"[{TEACHER}]" in title:
            assert published == pytest.approx([scores[TEACHER, name] for name in STS], abs=0.02)


FORMATS = {"float32": "float32", "bfloat16": "bfloat16", "ONNX": "onnx", "ONNX int8": "onnx-int8"}


def speeds_on(machine: str, folder: Path) -> dict[tuple[str, str, int], float]:
    """Multiples of the teacher's speed in float32, on the last of the machines whose name has this."""
    measured = results_of("speed")
    runs = {index for index, run in enumerate(measured["runs"]) if machine in run["processor"]}
    tables = [table for table in measured["speeds"] if table["run"] in runs]
    (folder / "speed.json").write_text(json.dumps(measured | {"speeds": tables}))
    return {(row["model"], row["format"], row["threads"]): row["speed"] for row in published_speeds(folder)}


def check_speed(cell: str, expected: float | None) -> None:
    assert cell == ("" if expected is None else f"{expected:.{0 if expected > 10 else 1}f}")


def times(ratios: list[float]) -> str:
    return f"{min(ratios):.1f} to {max(ratios):.1f} times"


def test_speeds_are_those_that_were_measured(tmp_path):
    measured, speeds = results_of("speed"), speeds_on("", tmp_path)
    assert speeds == speeds_on("family 25, model 1)", tmp_path)  # of the last machine
    head, rows = table_with(SPEEDS)
    assert len(rows) == 11
    for model, *cells in rows:
        for kind, cell in zip(head[1:], cells, strict=True):
            for threads, part in enumerate(cell.split(" / "), 1):
                check_speed(part, speeds.get((NAMES.get(model, model), FORMATS[kind], threads)))
    for name in MODELS:
        (_, _, *models, _), rows = table_with("kind", FOLDER / name / "README.md")
        for title, _, *cells, _ in rows[-2:]:
            for model, cell in zip(models, cells, strict=True):
                check_speed(cell, speeds[model, FORMATS[title.removeprefix("speed, ")], 1])
    single = {
        (row["model"], row["format"]): row["sentences_per_second"]
        for run in reversed(measured["one_at_a_time"])  # the first run counts, where both have a model
        for row in run["rows"]
    }
    head, rows = table_with("one text at a time, one thread")
    for model, *cells in rows:
        expected = [single[NAMES.get(model, model), FORMATS[kind]] for kind in head[1:]]
        assert numbers(*cells) == pytest.approx(expected, abs=0.6), model
    needed = (1000 / single["aft-minilm", kind] for kind in ("float32", "onnx-int8"))
    assert "So `aft-minilm` needs {:.0f} ms for a text in PyTorch, and {:.0f} ms in int8.".format(*needed) in TEXT
    for name, _, size, _ in tables(FOLDER / "README.md")[0][1:]:
        assert f"{4 * numbers(size)[0] / 1e6:.0f} MB ({re.search('`.+?`', name)[0]})" in TEXT
    rates = {
        row["threads"]: f"{row['sentences_per_second']:.0f}"
        for row in published_speeds(EMBEDDINGS)
        if (row["model"], row["format"]) == (TEACHER, "float32")
    }
    assert f"{rates[1]} sentences per second with one thread, {rates[2]} with two" in TEXT
    scores = {(row["model"], row["format"]): row["score"] for row in measured["results"] if row["set"] == "STS-B"}
    changes = [abs(scores[key] - scores[key[0], "float32"]) for key in scores if key[1] == "onnx-int8"]
    assert f"in int8 differ from float32's by about {100 * max(changes):.1f} at most" in TEXT
    narrow, ours, kinds = "MiniLM, 2 narrow layers", "aft-minilm-small", [FORMATS[kind] for kind in head[1:]]
    faster = [speeds[narrow, kind, 1] / speeds[ours, kind, 1] for kind in kinds]
    assert f"two narrow layers are {times(faster)} as fast as `{ours}`" in TEXT
    faster = [speeds["MiniLM, 3 layers", kind, 1] / speeds["aft-minilm", kind, 1] for kind in kinds]
    assert f"Three layers of the teacher are {times(faster)} as fast as `aft-minilm`" in TEXT
    faster = [single[ours, kind] / single[narrow, kind] for kind in kinds]
    assert f"`{ours}` is {times(faster)} as fast as two narrow layers" in TEXT


def test_speeds_on_a_processor_with_amx_are_those_that_were_measured(tmp_path):
    xeon = "family 6, model 167"
    found, one_by_one = speeds_on(xeon, tmp_path), {}
    (table,) = (table for table in results_of("speed")["one_at_a_time"] if xeon in table["run"]["processor"])
    seconds = {(row["model"], row["format"]): row["seconds"] for row in table["rows"]}
    for key, values in seconds.items():
        one_by_one[key] = np.median(np.divide(seconds[TEACHER, "float32"], values))
    pair = "six-aft768", "MiniLM, 6 narrow layers"
    with_amx = [found[pair[0], kind, n] / found[pair[1], kind, n] for kind in FORMATS.values() for n in (1, 2)]
    with_amx += [one_by_one[pair[0], kind] / one_by_one[pair[1], kind] for kind in FORMATS.values()]
    equal = [row["median"] for row in results_of("rows", "aft", "equal_operations", "times_as_fast")]
    means = (np.exp(np.log(ratios).mean()) for ratios in (equal, with_amx))
    assert f"Six `aft` layers with 768 units are {times(equal)} as fast as six narrow layers with attention" in TEXT
    assert f"and {times(with_amx)} on an [Intel Xeon]" in TEXT
    assert "the geometric means are {:.2f} and {:.2f}.".format(*means) in TEXT
    head, rows = table_with("Intel Xeon")
    for model, *cells in rows:
        for kind, cell in zip(head[1:], cells, strict=True):
            name, kind = {"6 aft layers, 768 units": pair[0]}.get(model, NAMES.get(model, model)), FORMATS[kind]
            batches, single = cell.split(" / ")
            check_speed(batches, found[name, kind, 1] / found[TEACHER, kind, 1])
            check_speed(single, one_by_one[name, kind] / one_by_one[TEACHER, kind])
    gains = [
        table[TEACHER, kind, *n] for kind in ("bfloat16", "onnx-int8") for table, n in ((found, [1]), (one_by_one, []))
    ]
    assert (
        "{:.1f} / {:.1f} times as fast in bfloat16 as in float32, and {:.1f} / {:.1f} times in int8".format(*gains)
        in TEXT
    )


def test_the_guide_has_the_students_speed_and_quality():
    page = {row[0]: row[1] for row in table_with("share of the teacher")[1]}
    speeds = {row[0]: row[1].partition(" / ")[0] for row in table_with(SPEEDS)[1]}
    _, rows = table_with("options", FOLDER.parent / "run_scripts/guides/sentence_embeddings.md")
    titles = ("3 layers", "2 layers", "2 narrow layers", "aft-minilm-small", "1 layer")
    assert [row[1:] for row in rows] == [[speeds[title], page[title]] for title in titles]


def test_more_rows_are_what_was_measured():
    """Students of few rows are those of the study with its first seed."""
    mixing = {"attention": "full_attention", "random": "random_synthesizer", "gMLP": "gmlp"}
    many: dict[tuple, float] = {}
    for run in results_of("rows", "runs"):  # the rate of the table stands first
        many.setdefault((tuple(run["keep_layers"]), tuple(run["token_mixers"] or ())), run["spearman_cosine"])
    all_of, gains = {**many}, {}
    study = json.loads((FOLDER / "studies" / "inheritance.json").read_text())
    results = {run["model"]: run["result"] for run in study["runs"] if run["seed"] == 1}
    few = {}
    for name, variant in study["definition"]["variants"].items():
        for size, facts in variant.get("sizes", {"": variant}).items():
            model = f"{name}/{size}" if size else name
            key = tuple(facts.get("keep_layers", ())), tuple(facts.get("token_mixers", ()))
            few.setdefault(key, (results[model], study["models"]["inheritance"][model]["flops"]))
    few[(), ()] = results["static"], 0
    _, rows = table_with("kept layers")
    for layers, types, share, *cells in rows:
        kept = tuple(int(layer) for layer in layers.split(", ")) if layers != "none" else ()
        names = tuple(mixing[name] for name in types.split(", ")) if kept else ()
        key = kept, names if {*names} - {"full_attention"} else ()
        assert float(cells[1]) == pytest.approx(100 * many.pop(key), abs=0.051), key
        if cells[0]:
            assert float(cells[0]) == pytest.approx(100 * few[key][0], abs=0.051), key
            assert int(share.split()[0]) == round(100 * few[key][1] / few[(0, 2, 5), ()][1] / 2), key
            gains[key] = few[key][0], all_of[key]
    assert not many
    hybrids = [key for key in gains if {*key[1]} == {"random_synthesizer", "full_attention"}]
    line = sorted((few[key][1], all_of[key]) for key in gains if key[0] and not key[1])
    assert all(abs(all_of[key] - np.interp(few[key][1], *zip(*line, strict=True))) < 0.002 for key in hybrids)  # level
    without = gains[(0, 2, 5), ("random_synthesizer",) * 3]
    lost = 100 * np.subtract(gains[(0, 2, 5), ()], without)
    assert "a student is {1:.1f} points behind instead of {0:.1f}".format(*lost) in TEXT
    behind = 100 * np.array([np.subtract(gains[key[0], ()], gains[key]) for key in hybrids]).round(3)
    claim = "are {1:.1f} to {3:.1f} points behind as many layers of BERT. After 24,000 rows it was {0:.1f} to {2:.1f}"
    ends = np.concatenate([behind.min(axis=0), behind.max(axis=0)])
    assert claim.format(*ends).replace("-0.0", "0.0") in TEXT


def test_finetuning_is_what_was_measured():
    """Mean and deviation of three seeds with the rate that was better with the first."""
    tasks = {"SST-2": "sst2", "CoLA": "cola", "MRPC": "mrpc", "STS-B": "stsb", "RTE": "rte", "SQuAD 1.1": "squad"}
    metrics = {"cola": "matthews_correlation", "stsb": "spearman", "squad": "f1"}
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    for run in results_of("finetuning", "runs"):
        score = run[metrics.get(run["task"], "accuracy")] * (1 if run["task"] == "squad" else 100)
        found.setdefault((run["task"], run["model"]), {}).setdefault(run["learning_rate"], []).append(score)
    head, rows = table_with("task")
    assert [row[0].partition(" (")[0] for row in rows] == list(tasks)
    for row in rows:
        for model, cell in zip(head[1:-1], row[1:-1], strict=True):
            rates = found[tasks[row[0].partition(" (")[0]], model]
            (seeds,) = (values for values in rates.values() if len(values) > 1)
            assert numbers(cell) == pytest.approx([np.mean(seeds), np.std(seeds, ddof=1)], abs=0.051)


def test_finetuned_layers_are_what_was_measured():
    """The mean of the seeds, with its deviation where there are several."""
    tasks = {"SST-2": "sst2", "MRPC": "mrpc", "STS-B": "stsb", "RTE": "rte", "SQuAD, F1": "squad"}
    runs = results_of("finetuning", "layers", "runs")
    metrics = {"stsb": "spearman", "squad": "f1"}
    seeds: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        score = 100 * run[metrics.get(run["task"], "accuracy")]
        seeds.setdefault((run["model"], run["task"]), []).append(score)
    head, rows = table_with("finetuned layers")
    cells = {(row[0], tasks[task]): cell for row in rows for task, cell in zip(head[2:], row[2:], strict=True)}
    assert {key for key, cell in cells.items() if cell} == {*seeds}
    for key, values in seeds.items():
        expected = [np.mean(values), np.std(values, ddof=1)] if len(values) > 1 else values
        assert numbers(cells[key]) == pytest.approx(expected, abs=0.051), key
    (narrow,) = seeds["6 narrow layers", "stsb"]
    assert f"Six narrow layers with attention, trained alike, have {narrow:.1f}." in TEXT


def test_finetuning_with_few_rows_is_what_was_measured():
    """Mean and deviation of the draws, in how many finetuning is better, and what the mean loses."""
    measured = results_of("few_rows")
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for run in measured["runs"]:
        found.setdefault((run["set"], f"{run['rows']:,}"), []).append((run["finetuned"], run["logistic"]))
    (_, rows), name = table_with("few rows"), ""
    for title, size, *cells, majority in rows:
        name = title or name
        scores = 100 * np.array(found.pop((name, size)))
        assert len(scores) == (3 if name in ("TREC", "TweetEval irony") else 5)  # as the page says
        assert float(majority) == pytest.approx(100 * measured["majority"][name], abs=0.051)
        for column, cell in zip(scores.T, cells, strict=True):
            assert numbers(cell) == pytest.approx([np.mean(column), np.std(column, ddof=1)], abs=0.051), (name, size)
    assert not found
    better = [run["finetuned"] > run["logistic"] for run in measured["runs"]]
    text = TEXT
    assert f"better than a classifier on embeddings in {sum(better)} of the {len(better)} draws" in text
    lower: dict[tuple[str, int], list[float]] = {}
    for run in measured["runs"]:
        lower.setdefault((run["set"], run["rows"]), []).append(run["logistic"] - run["logistic_with_c_1"])
    points = 100 * max(map(np.mean, lower.values()))
    assert f"with the default its means are lower by up to {points:.1f} points" in text
    both = [run for run in measured["runs"] if "with_mean" in run]
    assert f"was measured on {len(both)} of the draws" in text
    _, rows = table_with("set")
    for name, *cells in rows:
        runs = [run for run in both if run["set"] == name]
        lost = np.mean([run.get("three_epochs", run["finetuned"]) - run["with_mean"] for run in runs])
        scores = ((run["finetuned"], run["three_epochs"]) for run in runs if "three_epochs" in run)
        assert cells == [f"{100 * x:.1f}" for x in (lost, *np.mean([*scores], axis=0))], name
    assert [name for name, *_ in rows] == [*measured["majority"]]
    reviews = 100 * np.mean(measured["first_page"]["draws"])
    finetuned = 100 * np.mean(measured["first_page"]["finetuned"])
    assert f"it has {finetuned:.1f} % (600 rows" in text and f"embeddings has {reviews:.1f} %." in text


def test_the_models_of_the_first_page_are_as_good_and_fast_as_measured(scores):
    page = FOLDER.parent / "README.md"
    scores, kinds = with_more_rows(scores)
    speeds = {
        (row["model"], row["format"]): row["speed"] for row in published_speeds(EMBEDDINGS) if row["threads"] == 1
    }
    head, rows = table_with("take", page)
    assert head == ["take", "if you", "quality", "speed", "in int8"] and len(rows) == 5
    models = [re.match(r"\[`?([^`\]]+)", title)[1] for title, *_ in rows]
    for model, (_, _, *cells) in zip(models, rows, strict=True):
        name = SCORED.get(model.removeprefix("MiniLM, "), model)
        share = np.mean([*shares_by_kind(name, scores, kinds).values()])
        speed = [f"{speeds[model, kind]:.1f}" for kind in ("float32", "onnx-int8")]
        assert cells == [f"{share:.{0 if model == models[0] else 1}f} %", *speed], model
    text, measured = " ".join(page.read_text().split()), results_of("speed", "results")
    found = {(row["model"], row["format"]): 100 * row["score"] for row in measured if row["set"] == "STS-B"}
    changes = [abs(found[model, "onnx-int8"] - found[model, "float32"]) for model in MODELS]
    assert 0.1 < max(changes) < 0.2  # as it says
    assert "In int8 the scores of the shipped models on STS-B change by less than 0.2 points." in text
    means = (100 * fmean(results_of("few_rows", "first_page", kind)) for kind in ("finetuned", "draws"))
    claim = "With 600 product reviews, a finetuned `aft-minilm` classifies {:.1f} % of others correctly, "
    assert (
        claim + "a [logistic regression](model_cards/embeddings/finetuning.md#few-rows) on its embeddings {:.1f} %"
    ).format(*means) in text
    runs = results_of("finetuning", "layers", "runs")
    tuned = {run["model"]: 100 * run["spearman"] for run in runs if run["task"] == "stsb"}  # one seed of these
    names = "6 aft layers", "6 narrow layers", "6 joined narrow layers"
    claim = "fail: {:.1f} on STS-B, six narrow layers with attention {:.1f}, and {:.1f} if they [learned pairs]"
    assert claim.format(*(tuned[name] for name in names)) in text


def test_the_rows_of_a_student_are_those_of_its_command():
    seen = {row[0]: f"{row[-1]},000" for row in table_with("share of the teacher")[1]}
    titles = {
        "three-layers-joined": "3 joined layers",
        "two-narrow-layers": "2 narrow layers",
        "six-narrow-layers": "6 narrow layers",
        "six-narrow-layers-joined": "6 joined narrow layers",
    }
    commands = re.search(r"```bash\n(LEARN=.+?)```", (EMBEDDINGS / "training.md").read_text(), re.DOTALL)[1]
    found = re.findall(r"\$LEARN (.+?)--output_dir outputs/(\S+)", commands, re.DOTALL)
    found = [(options, name) for options, name in found if "hybrid" not in name]
    assert len(found) == 7
    for options, name in found:
        given = {"max_train_samples": 120_000, "num_train_epochs": 1}  # of `$LEARN`
        given |= {key: int(value) for key, value in re.findall(r"--(\w+) (\d+)\b", options)}
        count = given["max_train_samples"] * given["num_train_epochs"]
        assert seen[titles.get(name, name)] == f"{given['max_steps'] * 64 if 'max_steps' in given else count:,}", name
