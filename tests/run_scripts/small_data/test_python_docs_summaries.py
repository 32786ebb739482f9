import json

from tokenmixers.run_scripts import make_data
from tokenmixers.run_scripts.small_data.python_docs_summaries import texts_and_summaries


def test_a_summary_is_the_path_of_the_module_in_words(tmp_path):
    (tmp_path / "email" / "mime").mkdir(parents=True)
    (tmp_path / "email" / "mime" / "_text2.py").write_text('"""Parts."""\ndef f():\n    """Make a part."""\n')
    (tmp_path / "os.py").write_text('class C:\n    """Make a part."""\n')  # once more: only the first counts
    (tmp_path / "broken.py").write_text("def\n")
    assert list(texts_and_summaries(tmp_path)) == [
        ("Parts.", "email mime text 2"),
        ("Make a part.", "email mime text 2"),
    ]


def test_writes_both_sets(library, tmp_path, capsys):
    make_data.main(["python_docs_summaries", "--output_dir", str(tmp_path / "new")])
    sets = {
        name: [json.loads(line) for line in (tmp_path / "new" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "validation")
    }
    assert f"train: {len(sets['train']):,} texts" in capsys.readouterr().out
    assert len(sets["train"]) > 10 * len(sets["validation"]) > 1000 * library
    texts = {name: {row["source"] for row in rows} for name, rows in sets.items()}
    assert not texts["train"] & texts["validation"]
    assert all(row["source"].strip() and row["target"] for rows in sets.values() for row in rows)
