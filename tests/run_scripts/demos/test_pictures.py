import gc
import warnings
import weakref
import xml.etree.ElementTree as ElementTree
from urllib.parse import unquote

import pytest
import torch

from tokenmixers.run_scripts.demos import pictures
from tokenmixers.run_scripts.demos.mixing_maps import MixingMap
from tokenmixers.run_scripts.demos.pictures import (
    Choice,
    Picture,
    draw,
    image_html,
    patch_weights,
    tick_labels,
    title,
)


pytest.importorskip("matplotlib")


def text_map(weights, signed=True, tokens=("▁the", "gate", "$x$")):
    return MixingMap("spatial weights", weights, signed, tokens, tokens)


@pytest.fixture
def example():
    return text_map(torch.tensor([[[[0.5, 0.0, 0.0], [0.0, -2.0, 0.0], [0.25, 0.0, 1.0]]]]))


def texts_of(svg):
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_axes_have_the_tokens(example):
    texts = texts_of(draw(example, Choice()).svg)
    for token in example.rows:  # a dollar sign is no formula
        assert texts.count(token) == 2, token
    assert {"from the token", "to the token", "weight"} <= set(texts)


def test_the_description_says_what_is_seen(example):
    assert draw(example, Choice()).description == (
        "Heat map of spatial weights, layer 1: weights to 3 tokens (rows) from 3 tokens (columns), between -2 and 1. "
        "Largest: 'gate' from 'gate' -2, '$x$' from '$x$' 1, '▁the' from '▁the' 0.5."
    )


def test_titles():
    several = text_map(torch.zeros(3, 4, 3, 3))
    assert title(several, Choice(2)) == "spatial weights, layer 3, mean of 4 heads"
    assert title(several, Choice(1, 3)) == "spatial weights, layer 2, head 4"


def recorded_scale(monkeypatch):
    found, show = [], pictures._show

    def record(*arguments):
        found.append(show(*arguments))
        return found[-1]

    monkeypatch.setattr(pictures, "_show", record)
    return found


def test_the_scale_of_weights_is_symmetric_and_that_of_probabilities_starts_at_zero(example, monkeypatch):
    found = recorded_scale(monkeypatch)
    draw(example, Choice())
    draw(text_map(example.weights.abs(), signed=False), Choice())
    draw(text_map(torch.zeros(1, 1, 3, 3)), Choice())
    assert [image.get_clim() for image in found[:2]] == [(-2.0, 2.0), (0.0, 2.0)]
    low, high = found[2].get_clim()
    assert low < 0 < high
    assert found[0].get_cmap().name == "RdBu"  # as in plot_spatial_weights: blue is positive


def test_every_script_is_left_to_the_browser_without_warnings():
    tokens = ("▁東京", "مرحبا", "<script>")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        texts = texts_of(draw(text_map(torch.eye(3)[None, None], tokens=tokens), Choice()).svg)
    assert set(tokens) <= set(texts)


def test_long_texts_have_fewer_labels_and_long_tokens_are_cut():
    places, labels = tick_labels([f"t{index}" for index in range(128)])
    assert len(places) <= pictures.MAX_LABELS and labels[:2] == ["t0", "t3"] and places[:2] == [0, 3]
    assert tick_labels(["x" * 50])[1] == ["x" * 15 + "…"]
    assert tick_labels(["a", "b"]) == ([0, 1], ["a", "b"])


@pytest.fixture
def image_map():
    weights = torch.arange(2 * 49.0).view(1, 2, 7, 7)
    return MixingMap("token mixing", weights, True, grid=(2, 3))


def test_the_weights_of_a_patch_are_those_of_its_row(image_map):
    # A class token and six patches: row 1, column 2 (from 0) is token 6.
    expected = image_map.weights[0, 1, 6, 1:].tolist()
    assert patch_weights(image_map, Choice(0, 1, (1, 2))).flatten().tolist() == expected
    assert patch_weights(image_map, Choice(0, 0, None)).tolist() == [[1, 2, 3], [4, 5, 6]]
    without = MixingMap("token mixing", torch.arange(36.0).view(1, 1, 6, 6), True, grid=(2, 3))
    assert patch_weights(without, Choice(0, 0, (0, 1))).tolist() == [[6, 7, 8], [9, 10, 11]]


def test_images_are_drawn_beside_the_weights(image_map):
    picture = draw(image_map, Choice(0, 0, (1, 0)), torch.rand(3, 8, 12))
    assert {"what the model has seen", "weights to the patch with +"} <= set(texts_of(picture.svg))
    assert picture.svg.count("<image") >= 2
    assert picture.description.startswith(
        "Map of token mixing, layer 1, head 1: weights to the patch in row 2, column 1 from 2 x 3 patches"
    )
    assert "Largest: from the patch in row 2, column 3 34" in picture.description
    grey = draw(image_map, Choice(0, 0, None), torch.zeros(1, 8, 12))
    assert "weights to the class token" in texts_of(grey.svg) and "to the class token from" in grey.description


def test_figures_are_not_kept(example, monkeypatch):
    from matplotlib import pyplot

    make, made = pictures._figure, []

    def record(*size):
        figure = make(*size)
        made.append(weakref.ref(figure))
        return figure

    monkeypatch.setattr(pictures, "_figure", record)
    draw(example, Choice())
    gc.collect()
    assert [figure() for figure in made] == [None] and pyplot.get_fignums() == []


def test_as_html_a_picture_has_its_description_and_keeps_its_file():
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><text>"a" &amp; 東 # %</text></svg>'
    html = image_html(Picture(svg, "Heat map <script>alert('x')</script>\"&"), "layer <1>")
    tree = ElementTree.fromstring(html.replace('"><figcaption', '"/><figcaption'))  # what is not escaped is an error
    image = tree.find("img")
    assert image.get("alt") == "Heat map <script>alert('x')</script>\"&"
    assert tree.find("figcaption").text == "layer <1>"
    kind, _, content = image.get("src").partition(",")
    assert kind.startswith("data:image/svg+xml") and unquote(content) == svg
