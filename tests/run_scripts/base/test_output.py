import io
import sys
from dataclasses import dataclass

import pytest

from tokenmixers.run_scripts.base.arguments import parse_arguments


@dataclass
class NoArguments:
    pass


@pytest.mark.parametrize(("errors", "written"), [("strict", b"caf\xe9 \\u2603"), ("replace", b"caf\xe9 ?")])
def test_a_command_can_print_what_its_output_cannot_encode(errors, written, monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), "cp1252", errors)
    monkeypatch.setattr(sys, "stdout", output)
    parse_arguments((NoArguments,), [])
    print("café ☃", end="", flush=True)
    assert output.buffer.getvalue() == written


def test_other_kinds_of_output_stay_as_they_are(monkeypatch):
    for output in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stdout", output)
        parse_arguments((NoArguments,), [])
