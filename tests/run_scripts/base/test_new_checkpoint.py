import os

import pytest

from tokenmixers.run_scripts.base.new_checkpoint import new_checkpoint


def test_the_configuration_comes_last(tmp_path, monkeypatch):
    moved, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda path, target: (moved.append(target.name), replace(path, target)))
    with new_checkpoint(tmp_path / "new" / "out") as folder:
        for name in ("config.json", "a.txt", "weights"):
            (folder / name).write_text(name)
        assert not (tmp_path / "new" / "out").exists()
    assert sorted(moved) == ["a.txt", "config.json", "weights"] and moved[-1] == "config.json"
    assert (tmp_path / "new" / "out" / "weights").read_text() == "weights"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]


def test_nothing_is_left_by_an_error(tmp_path):
    with pytest.raises(KeyError), new_checkpoint(tmp_path / "out") as folder:
        (folder / "weights").write_text("x")
        raise KeyError
    assert list(tmp_path.iterdir()) == []
