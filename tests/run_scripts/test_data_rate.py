"""The pipeline's rate: all scripts' data are counted as they would be trained on, and nothing is trained."""

import time
from types import SimpleNamespace

import pytest
import torch

from tokenmixers.run_scripts import data_rate
from tokenmixers.run_scripts.base.errors import UserError


@pytest.mark.parametrize(
    "data",
    [{}, {"streaming": True, "max_eval_samples": 5, "shuffle_buffer_size": 20, "dataloader_num_workers": 1}],
    ids=["cached", "streamed"],
)
def test_language_modelling(command, tmp_path, capsys, data):
    figures = data_rate.main(["run_mlm", "--seconds", "0.5", *command(**data)])
    assert figures["tokens_per_second"] > figures["rows_per_second"] > 0
    assert f"{figures['tokens_per_second']:,.1f}" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_counts_what_is_in_the_batches():
    def batches():
        while True:
            time.sleep(0.01)
            mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
            yield {"input_ids": torch.ones(2, 3), "attention_mask": mask}

    figures = data_rate.measure(SimpleNamespace(get_train_dataloader=batches), 0.2)
    assert figures["tokens_per_second"] == pytest.approx(2.5 * figures["rows_per_second"])
    assert 20 < figures["rows_per_second"] <= 200
    assert 0.01 <= figures["seconds_to_first_batch"] < 0.2


def test_mistakes_are_named(command):
    with pytest.raises(UserError, match="argument command: invalid choice: 'run_everything'"):
        data_rate.main(["run_everything"])
