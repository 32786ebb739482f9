"""Ranges of numbers on the command line."""

import math
from collections.abc import Callable
from typing import Any

from .errors import UserError


#: Rule -> function that checks a number. Comparisons with NaN are false.
RULES: dict[str, Callable[[float], bool]] = {
    "a finite number": math.isfinite,
    "at least 0": lambda value: value >= 0,
    "at least 1": lambda value: value >= 1,
    "at least 2": lambda value: value >= 2,
    "-1 for no limit, or at least 1": lambda value: value == -1 or value >= 1,
    "a finite number of at least 0": lambda value: 0 <= value < math.inf,
    "a finite number of at least 1": lambda value: 1 <= value < math.inf,
    "a finite number above 0": lambda value: 0 < value < math.inf,
    "a share from 0 to 1": lambda value: 0 <= value <= 1,
    "a share above 0, up to 1": lambda value: 0 < value <= 1,
    "a share between 0 and 1": lambda value: 0 < value < 1,
    "a share from 0 to less than 1": lambda value: 0 <= value < 1,
    "from 0 to 4294967295": lambda value: 0 <= value < 2**32,
}


def check_ranges(arguments: Any, *limits: tuple[str, str]) -> None:
    """Check numbers, and lists of numbers, of an argument dataclass; `None` is skipped.

    Args:
        arguments: The dataclass.
        limits: A key of `RULES` and field names separated by spaces; fields that the dataclass lacks are skipped.
    """
    for rule, names in limits:
        for name in names.split():
            value = getattr(arguments, name, None)
            for number in value if isinstance(value, list) else [value]:
                if number is not None and not RULES[rule](number):
                    raise UserError(f"--{name} must be {rule}, got {number}.")
