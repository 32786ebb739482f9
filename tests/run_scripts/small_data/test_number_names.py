from tokenmixers.run_scripts import make_data
from tokenmixers.run_scripts.small_data.number_names import english


def value(name: str) -> int:
    """The number that an English name means, word by word."""
    words = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    words += "seventeen eighteen nineteen"
    values = {word: number for number, word in enumerate(words.split())}
    tens = "twenty thirty forty fifty sixty seventy eighty ninety"
    values |= {word: 10 * number for number, word in enumerate(tens.split(), start=2)}
    thousands = below = 0
    for word in name.split():
        if word == "thousand":
            thousands, below = below, 0
        else:
            below = below * 100 if word == "hundred" else below + values[word]
    return thousands * 1000 + below


def test_names():
    names = {0: "zero", 13: "thirteen", 40: "forty", 1042: "one thousand forty two", 700_000: "seven hundred thousand"}
    assert {number: english(number) for number in names} == names


def test_names_mean_their_numbers():
    for number in [*range(2000), *range(2000, 1_000_000, 997), 999_999]:
        assert value(english(number)) == number


def test_writes_lines_that_belong_together(tmp_path):
    make_data.main(["number_names", "--output_dir", str(tmp_path / "new")])
    numbers = {}
    for split, count in (("train", 20_000), ("validation", 500)):
        digits, words = (
            (tmp_path / "new" / f"{split}.{kind}.txt").read_text().splitlines() for kind in ("digits", "words")
        )
        numbers[split] = {int(line.replace(" ", "")) for line in digits}
        assert [value(line) for line in words] == [int(line.replace(" ", "")) for line in digits]
        assert len(numbers[split]) == count
    assert not numbers["train"] & numbers["validation"]
