from tokenmixers.run_scripts.benchmarks import experiments


def test_every_cell_says_in_a_line_what_it_measures():
    assert all(function.__doc__.split("\n")[0].endswith(".") for function in experiments.EXPERIMENTS.values())
