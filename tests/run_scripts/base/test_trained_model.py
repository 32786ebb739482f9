import pytest
from transformers import AutoModelForMaskedLM

from tokenmixers.run_scripts.base.arguments import ModelArguments
from tokenmixers.run_scripts.base.trained_model import check_folder, load_trained
from tokenmixers.run_scripts.demos.checkpoints import load_checkpoint
from tokenmixers.run_scripts.plot_spatial_weights import main as plot
from tokenmixers.run_scripts.training.model_loading import load_config


@pytest.mark.parametrize(
    "load",
    [
        lambda name: load_trained(AutoModelForMaskedLM, name),
        lambda name: load_config(ModelArguments(model_name_or_path=name)),
        load_checkpoint,
        lambda name: plot(["--model", name, "--output_dir", "pictures"]),
    ],
    ids=["load_trained", "load_config", "demo", "plot_spatial_weights"],
)
def test_a_mistyped_folder_is_not_looked_for_on_the_hub(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs" / "gmlp").mkdir(parents=True)
    (tmp_path / "outputs" / "gmlp" / "config.json").touch()
    with pytest.raises(SystemExit, match=r"error: there is no 'gmpl' in the folder 'outputs': correct 'outputs/gmpl'"):
        load("outputs/gmpl")
    with pytest.raises(SystemExit, match=r"error: there is no folder 'outputs/gmlp/seed_1'"):  # no Hub id
        load("outputs/gmlp/seed_1")


@pytest.mark.parametrize("name", ["outputs/gmlp", "user/gmpl", "google/gmpl", "gmpl"])
def test_folders_and_hub_ids_are_looked_for(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs" / "gmlp").mkdir(parents=True)
    (tmp_path / "outputs" / "gmlp" / "config.json").touch()
    (tmp_path / "google" / "notes").mkdir(parents=True)  # no model
    check_folder(name)
