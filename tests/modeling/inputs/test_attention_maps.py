"""Masks and positions against loops over pairs of a query and a key."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokenmixers import GMLPConfig, SynthesizerConfig
from tokenmixers.modeling.inputs.attention_maps import move_padding_right, take_tokens, visible_keys
from tokenmixers.modeling.inputs.token_layout import TokenLayout, token_layout


CPU = torch.device("cpu")


def visible_by_hand(layout: TokenLayout, queries: list[int], row: int) -> list[list[bool]]:
    def visible(query, key):
        real = layout.padding_mask is None or bool(layout.padding_mask[row, key])
        same_document = layout.seq_idx is None or layout.seq_idx[row, query] == layout.seq_idx[row, key]
        return real and bool(same_document) and (not layout.is_causal or key <= query)

    return [[visible(query, key) for key in range(layout.key_length)] for query in queries]


@given(data=st.data(), is_causal=st.booleans(), as_indices=st.booleans())
def test_visible_keys(data, is_causal, as_indices):
    keys = data.draw(st.integers(1, 5))
    queries = data.draw(st.integers(1, keys))
    booleans = st.lists(st.lists(st.booleans(), min_size=keys, max_size=keys), min_size=2, max_size=2)
    mask = data.draw(st.none() | booleans)
    seq_idx = data.draw(st.none() | booleans) if queries == keys else None
    new = torch.arange(keys - queries, keys) if as_indices else slice(keys - queries, keys)
    layout = TokenLayout(
        queries,
        keys,
        new,
        padding_mask=None if mask is None else torch.tensor(mask),
        is_causal=is_causal,
        seq_idx=None if seq_idx is None else torch.tensor(seq_idx).long(),
    )
    found = visible_keys(layout, CPU)
    found = torch.ones(2, 1, queries, keys, dtype=torch.bool) if found is None else found.expand(2, 1, queries, keys)
    assert layout.query_index(CPU).tolist() == list(range(keys - queries, keys))
    for row in range(2):
        assert found[row, 0].tolist() == visible_by_hand(layout, list(range(keys - queries, keys)), row)


def test_one_new_token_needs_no_causal_mask():
    assert visible_keys(TokenLayout(1, 4, slice(3, 4), is_causal=True), CPU) is None
    assert visible_keys(TokenLayout(1, 4, torch.tensor([1]), is_causal=True), CPU).tolist() == [[[[1, 1, 0, 0]]]]


@pytest.mark.parametrize("config", [GMLPConfig(is_decoder=True), SynthesizerConfig(is_decoder=True)], ids=str)
def test_one_layout_for_all_families(config):
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    layout = token_layout(config, torch.zeros(2, 4, 3), mask)
    assert (layout.query_length, layout.key_length, layout.is_causal, layout.shifted) == (4, 4, True, True)
    assert layout.padding_mask.tolist() == mask.bool().tolist()
    assert layout.positions.tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    assert layout.query_positions(CPU).tolist() == layout.positions.tolist()
    assert layout.distances(CPU)[0].tolist() == [[key - query for key in range(4)] for query in range(4)]
    documents = token_layout(config, torch.zeros(1, 4, 3), seq_idx=torch.tensor([[5, 5, 2, 2]]))
    assert documents.positions.tolist() == [[0, 1, 0, 1]] and documents.seq_idx.tolist() == [[5, 5, 2, 2]]


def test_given_positions_have_their_own_distances():
    layout = token_layout(SynthesizerConfig(), torch.zeros(1, 3, 3), position_ids=torch.tensor([[4, 0, 2]]))
    assert not layout.shifted
    assert layout.distances(CPU).tolist() == [[[0, -4, -2], [4, 0, 2], [2, -2, 0]]]


def test_moving_padding_to_the_right():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [0, 1, 1, 0]])
    layout = token_layout(SynthesizerConfig(), torch.zeros(3, 4, 3), mask)
    moved, (index, back) = move_padding_right(layout)
    assert index.tolist() == [[2, 3, 0, 1], [0, 1, 2, 3], [1, 2, 3, 0]]
    tokens = torch.rand(3, 4, 2, 5)
    right = take_tokens(tokens, index)
    assert right[0].equal(tokens[0].roll(-2, 0)) and take_tokens(right, back).equal(tokens)
    assert moved.padding_mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]]
    assert moved.positions is None and move_padding_right(moved) == (moved, None)
