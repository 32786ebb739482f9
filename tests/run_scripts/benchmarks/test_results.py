from tokenmixers.run_scripts.benchmarks.results import crossover


def test_crossover():
    def rows(*ratios):
        lengths = zip((8, 16, 32), ratios, strict=True)
        return [{"model": "Toeplitz, Fourier", "length": length, "ratio": ratio} for length, ratio in lengths]

    assert crossover(rows(0.5, 1.2, 2.0)) == 16
    assert crossover(rows(1.5, 0.9, 2.0)) == 32
    assert crossover(rows(1.5, 2.0, 0.9)) is None
