import json
from pydoc_data.topics import topics

import pytest

from tokenmixers.run_scripts import make_data
from tokenmixers.run_scripts.small_data import python_docs_corpus


def test_documents(tmp_path):
    (tmp_path / "one.py").write_bytes(b'"""Module text."""\ndef f():\n    "Function text."\n')
    (tmp_path / "two.py").write_bytes(b'"""Module text."""\ndef g():\n    """New text."""\n')
    (tmp_path / "three.py").write_bytes(b'"""Module text."""\n')
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "foreign.py").write_bytes(b'"""Foreign text."""\n')
    found = dict(python_docs_corpus.documents(tmp_path))
    assert {name: text for name, text in found.items() if not name.startswith("topics/")} == {
        "one.py": "Module text.\n\nFunction text.",
        "two.py": "New text.",
    }
    assert found["topics/assert"] == topics["assert"]
    assert len(found) == len(topics) + 2


@pytest.mark.usefixtures("library")
def test_writes_both_splits_and_refuses_to_overwrite(tmp_path):
    make_data.main(["python_docs_corpus", "--output_dir", str(tmp_path / "corpus")])
    splits = {}
    for name in ("train", "validation"):
        rows = [json.loads(line) for line in (tmp_path / "corpus" / f"{name}.jsonl").read_text().splitlines()]
        splits[name] = {row["name"] for row in rows}
        assert all(row["text"].strip() for row in rows)
    assert not splits["train"] & splits["validation"]
    assert 0.01 < len(splits["validation"]) / len(splits["train"]) < 0.12
    with pytest.raises(SystemExit, match="is not empty"):
        make_data.main(["python_docs_corpus", "--output_dir", str(tmp_path / "corpus")])
