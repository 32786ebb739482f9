import datasets

from tokenmixers.run_scripts.data.distillation_texts import LENGTH, DistillationTexts


def test_spread_takes_texts_from_everywhere():
    lines = [f"text {row}" for row in range(700)]
    pairs = {"anchor": [f"a {row}" for row in range(350)], "positive": [f"p {row}" for row in range(350)]}
    splits = {"texts": datasets.Dataset.from_dict({"text": lines, LENGTH: [3] * 700})}
    splits["pairs"] = datasets.Dataset.from_dict(pairs)
    found = DistillationTexts(splits, skipped=0).spread(100)  # of 1,050 rows: every tenth
    expected = [*lines[::10], *pairs["anchor"][::10], *pairs["positive"][::10]]
    assert found == expected
    assert len(DistillationTexts(splits, skipped=0).spread(5000)) == 1400
