import re

import pytest
from PIL import Image

from tokenmixers.run_scripts.base.pictures import METRIC_NAMES, metric_name, panels, plain_axis, plot_history


pytest.importorskip("matplotlib")


def test_names_of_metrics():
    names = {"eval_spearman_cosine": "Spearman's correlation", "cosine_ndcg@10": "nDCG@10", "macro_f1": "macro, F1"}
    names |= {"eval_sst2_f1": "sst2, F1", "token_perplexity": "token perplexity"}
    assert {metric: metric_name(metric) for metric in names} == names


@pytest.mark.fast_cases
@pytest.mark.parametrize("values", [(12, 19), (12, 24), (11, 150), (90, 130), (250, 52_000), (0.002, 0.9)])
@pytest.mark.parametrize("which", ["x", "y"])
def test_ticks_of_a_logarithmic_axis_are_plain_numbers(values, which):
    figure, (axis,) = panels(1, 3)
    axis.plot(values, values)
    plain_axis(axis, which, log=True)
    figure.draw_without_rendering()
    labels = axis.get_xticklabels() if which == "x" else axis.get_yticklabels()
    low, high = axis.get_xlim() if which == "x" else axis.get_ylim()
    shown = [label.get_text() for label in labels if low <= float(label.get_text().replace(",", "")) <= high]
    assert 2 <= len(shown) <= 8
    assert all(re.fullmatch(r"\d{1,3}(,\d{3})*(\.\d+)?", label) for label in shown)


def test_the_history_has_a_panel_for_each_metric_and_a_legend_above_the_losses(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, dpi: saved.append((figure, dpi)))
    history = [{"step": step, "loss": 1 / step} for step in (1, 2, 3)]
    results = {"eval_loss": 0.4, "eval_pearson": 0.5, "eval_f1": 0.6, "eval_runtime": 9.0}
    history += [{"step": step, **results} for step in (2, 3)]
    plot_history(history, tmp_path / "history.png")
    ((figure, dpi),) = saved
    losses, *metrics = (axis for axis in figure.axes if axis.get_visible())
    assert [axis.get_ylabel() for axis in metrics] == [METRIC_NAMES["f1"], METRIC_NAMES["pearson"]]
    figure.draw_without_rendering()
    assert [text.get_text() for text in losses.get_legend().get_texts()] == ["training", "validation"]
    assert not losses.get_legend().get_window_extent().overlaps(losses.get_window_extent())
    assert figure.get_figwidth() * dpi <= 1000


def test_what_was_measured_once_is_not_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    once = [{"step": 3, "loss": 1.0}, {"step": 3, "eval_loss": 2.0, "eval_f1": 0.5}, {"step": 3, "eval_f1": 0.5}]
    plot_history(once, tmp_path / "once.png")
    plot_history([{"step": 1, "loss": 2.0}, *once], tmp_path / "loss.png")
    plot_history([*once, {"step": 6, "eval_f1": 0.6}], tmp_path / "metric.png")
    sizes = {path.name: Image.open(path).size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"loss.png", "metric.png"} and sizes["loss.png"][0] < sizes["metric.png"][0]
