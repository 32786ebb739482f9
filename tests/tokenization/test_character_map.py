import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from tokenmixers.tokenization.character_map import precompiled_character_map


CHARACTERS = st.characters(min_codepoint=0x2E80, exclude_categories=("Cs", "Mn", "Me", "Mc"))


@given(
    replacements=st.dictionaries(CHARACTERS, st.text(CHARACTERS, min_size=1, max_size=3), min_size=1, max_size=300),
    others=st.text(CHARACTERS),
)
def test_every_character_is_replaced_and_no_other(replacements, others):
    normalizer = normalizers.Precompiled(precompiled_character_map(replacements))
    for text in (others, *replacements):
        expected = "".join(replacements.get(character, character) for character in text)
        assert normalizer.normalize_str(text) == expected


def test_thousands_of_characters():
    replacements = {chr(code): f"<{code}>" for code in range(0x4E00, 0x9000, 3)}
    normalizer = normalizers.Precompiled(precompiled_character_map(replacements))
    for code in range(0x4D00, 0x9100):
        assert normalizer.normalize_str(chr(code)) == replacements.get(chr(code), chr(code))


@pytest.mark.parametrize("replacements", [{"ab": "c"}, {"": "c"}, {"a": "\0"}, {"\0": "a"}])
def test_what_the_format_cannot_hold(replacements):
    with pytest.raises(ValueError, match="keys are single characters"):
        precompiled_character_map(replacements)
