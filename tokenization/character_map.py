"""Replace single characters in one pass, with SentencePiece's precompiled character map.

`tokenizers.normalizers.Precompiled` expects a size in bytes, a double-array trie of the keys in UTF-8 (units as in
darts-clone), and the replacements, each terminated by a zero byte.
"""

import struct
from collections.abc import Iterator, Mapping


_LEAF = 1 << 8  # in the unit of a key's last byte: its children begin with a value
_VALUE = 1 << 31
_BLOCK = 256  # the children of a unit lie in one aligned block, because positions are combined by exclusive or
_SEARCHED = 2 * _BLOCK


def precompiled_character_map(replacements: Mapping[str, str]) -> bytes:
    """Build the map for `tokenizers.normalizers.Precompiled`.

    Args:
        replacements: Character -> replacement.

    Raises:
        ValueError: If a key is not one character, or a text contains the zero character, which terminates texts in
            this format.
    """
    texts, values = bytearray(), {}
    for key, text in sorted(replacements.items()):
        if len(key) != 1 or "\0" in key + text:
            raise ValueError(f"{key!r} cannot be replaced by {text!r}: keys are single characters, other than '\\0'.")
        values[key.encode()] = len(texts)
        texts += text.encode() + b"\0"
    units = _DoubleArray(values).units
    return struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + bytes(texts)


class _DoubleArray:
    """The trie as `units`: label in bits 0 to 7, `_LEAF` in bit 8, distance to the children from bit 10 on."""

    def __init__(self, values: Mapping[bytes, int]):
        self.units: list[int] = []
        self._used = bytearray()
        self._bases: set[int] = set()
        trie: dict = {}
        for key, value in values.items():
            node = trie
            for byte in key:
                node = node.setdefault(byte, {})
            node[None] = value
        self._add_block()
        self._used[0] = 1
        self._add(trie, 0)

    def _add(self, node: dict, position: int) -> None:
        """Place the children of the unit at `position`; label 0 is the value."""
        labels = [0 if byte is None else byte for byte in node]
        base = next(base for base in self._candidates(labels[0]) if self._is_free(base, labels))
        self._bases.add(base)
        self.units[position] |= (position ^ base) << 10 | (_LEAF if None in node else 0)
        for label in labels:
            self._used[base ^ label] = 1
        for byte, child in node.items():
            if byte is None:
                self.units[base] = _VALUE | child
            else:
                self.units[base ^ byte] = byte
                self._add(child, base ^ byte)

    def _candidates(self, label: int) -> Iterator[int]:
        position = max(1, len(self.units) - _SEARCHED)  # searching further back costs more time than it saves space
        while True:
            if position >= len(self.units):
                self._add_block()
            if not self._used[position]:
                yield position ^ label
            position += 1

    def _is_free(self, base: int, labels: list[int]) -> bool:
        # Bases are unique, so that no unit gets another's children.
        return base not in self._bases and not any(self._used[base ^ label] for label in labels)

    def _add_block(self) -> None:
        self.units += [0] * _BLOCK
        self._used += bytes(_BLOCK)


__all__ = ["precompiled_character_map"]
