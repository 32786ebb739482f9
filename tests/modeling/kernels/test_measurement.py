"""Choices are measured once, and kept for all processes of a machine."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch
from accelerate import init_empty_weights
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tokenmixers.modeling.kernels import fourier, linear, measurement


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """No choice has been made, and the cache folder is empty."""
    monkeypatch.setattr(measurement, "_CHOICES", {})
    monkeypatch.setattr(measurement, "_SPENT", [])
    monkeypatch.setattr(measurement.constants, "HF_HOME", str(tmp_path / "home"))


def alternatives(reference=0.0, other=0.0, calls=None):
    """Two functions that sleep for some seconds, and note their calls."""

    def run(name, seconds):
        if calls is not None:
            calls.append(name)
        time.sleep(seconds)

    return lambda: {"other": lambda: run("other", other), "reference": lambda: run("reference", reference)}


def measured(name, make_alternatives):
    measurement.measure(name, make_alternatives)
    return measurement.choice(name)


def test_the_faster_one_is_taken_and_the_reference_in_doubt():
    assert measured("a", alternatives(reference=0.004, other=0.001)) == "other"
    assert measured("b", alternatives(reference=0.001, other=0.004)) == "reference"
    assert measured("c", alternatives(reference=0.01, other=0.0095)) == "reference"


def test_one_comparison_takes_a_fraction_of_a_second():
    start = time.perf_counter()
    measured("slow", alternatives(reference=0.03, other=0.03))
    assert time.perf_counter() - start < 8 * 0.03 + measurement.TIME_LIMIT + 0.2


def test_all_comparisons_of_a_process_take_about_a_second(monkeypatch):
    monkeypatch.setattr(measurement, "SECONDS_IN_ALL", 0.05)
    choices = {name: measured(name, alternatives(reference=0.01, other=0.001)) for name in "abcd"}
    assert choices["a"] == "other" and choices["d"] == "reference"
    kept = {key.rpartition("; ")[2] for key in json.loads(measurement.cache_file().read_text())}
    assert "a" in kept and "d" not in kept  # to be measured by another process


def test_measured_once_and_kept_in_the_cache_folder():
    calls = []
    assert measurement.measure("a", alternatives(0.004, 0.001, calls))
    assert {"reference", "other"} == set(calls)
    (choice,) = json.loads(measurement.cache_file().read_text()).values()
    assert choice == "other"
    del calls[:]
    assert measurement.measure("a", alternatives(0.004, 0.001, calls))
    measurement._CHOICES.clear()  # as in another process
    assert measurement.measure("a", alternatives(0.004, 0.001, calls))
    assert not calls


@pytest.mark.slow  # two processes import PyTorch
def test_processes_that_start_together_choose_alike():
    """Each would choose its own number."""
    program = (
        "import sys, time; from huggingface_hub import constants; constants.HF_HOME = sys.argv[1]\n"
        "import importlib.util as util\n"
        "spec = util.spec_from_file_location('measurement', sys.argv[2])\n"
        "module = util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        "slow, own = (lambda: time.sleep(0.01)), (lambda: None)\n"
        "module.measure('a', lambda: {'reference': slow, sys.argv[3]: own}); print(module.choice('a'))"
    )
    command = [sys.executable, "-c", program, measurement.constants.HF_HOME, measurement.__file__]
    processes = [subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True) for number in range(2)]
    found = {process.communicate()[0].strip() for process in processes}
    assert found in ({"0"}, {"1"})
    assert set(json.loads(measurement.cache_file().read_text()).values()) == found


def test_an_alternative_that_does_not_work_loses():
    def fails():
        raise RuntimeError("not for this processor")

    alternatives = {"reference": lambda: time.sleep(0.001), "other": fails}
    assert measured("a", lambda: alternatives) == "reference"
    with pytest.raises(RuntimeError, match="not for this"):
        measured("b", lambda: {"reference": fails})


@pytest.mark.parametrize("content", ["", "{", "[1]", "null"])
def test_a_broken_file_is_replaced(content):
    measurement.cache_file().parent.mkdir(parents=True)
    measurement.cache_file().write_text(content)
    assert measured("a", alternatives(0.004, 0.001)) == "other"
    assert list(json.loads(measurement.cache_file().read_text()).values()) == ["other"]


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(measurement.constants, "HF_HOME", str(tmp_path / "file"))
    assert measured("a", alternatives(0.004, 0.001)) == "other"
    assert measured("a", lambda: pytest.fail("measured again")) == "other"


def test_a_file_system_without_locks(monkeypatch):
    def acquire(*args, **kwargs):
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(measurement.FileLock, "acquire", acquire)
    assert measured("a", alternatives(0.004, 0.001)) == "other"
    assert not measurement.cache_file().exists()


def test_a_choice_is_for_the_number_of_threads_it_was_measured_with():
    threads = torch.get_num_threads()
    assert measurement.choice("a") == "reference"
    measurement.measure("a", alternatives(0.004, 0.001))
    assert measurement.choice("a") == "other"
    try:
        torch.set_num_threads(threads + 1)
        assert measurement.choice("a") == "reference"
    finally:
        torch.set_num_threads(threads)


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "context",
    [
        lambda: torch.device("meta"),
        init_empty_weights,
        torch.inference_mode,
        lambda: default_dtype(torch.bfloat16),
        FakeTensorMode,
    ],
    ids=["meta device", "empty weights", "inference mode", "bfloat16 by default", "fake tensors"],
)
def test_measures_real_products_wherever_models_are_built(context, monkeypatch):
    products = []

    class Record(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            if function in (F.linear, torch.baddbmm):
                products.append((found.device.type, found.dtype))
            return found

    def run_once(alternatives):
        with Record():
            for run in alternatives.values():
                run()
        return "other"

    monkeypatch.setattr(measurement, "_fastest_of", run_once)
    monkeypatch.setattr(measurement, "SECONDS_IN_ALL", float("inf"))
    with context():
        found = [measurement.measure(name, comparison) for name, comparison in linear.COMPARISONS.items()]
        found.append(measurement.measure("a", fourier._comparison(64)))
    has_values = context is not FakeTensorMode
    assert found == [has_values] * (len(linear.COMPARISONS) + 1)
    assert set(products) == ({("cpu", torch.float32)} if has_values else set())
    assert len(products) >= (len(found) if has_values else 0)
