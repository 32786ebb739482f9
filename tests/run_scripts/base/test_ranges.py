import math
from types import SimpleNamespace

import pytest

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.ranges import RULES, check_ranges


TINY, NAN, INF = 1e-9, math.nan, math.inf

#: Rule -> numbers that it allows, and numbers that it refuses, those at its ends among them.
NUMBERS = {
    "a finite number": ((-1e30, 0, 1e30), (NAN, INF, -INF)),
    "at least 0": ((0, 1), (-1,)),
    "at least 1": ((1, 2), (0, -1)),
    "at least 2": ((2, 3), (1, 0)),
    "-1 for no limit, or at least 1": ((-1, 1, 2), (0, -2)),
    "a finite number of at least 0": ((0, 1e30), (-TINY, NAN, INF)),
    "a finite number of at least 1": ((1, 1e30), (1 - TINY, NAN, INF)),
    "a finite number above 0": ((TINY, 1e30), (0, -1, NAN, INF)),
    "a share from 0 to 1": ((0, 1), (-TINY, 1 + TINY, NAN)),
    "a share above 0, up to 1": ((TINY, 1), (0, 1 + TINY, NAN)),
    "a share between 0 and 1": ((TINY, 1 - TINY), (0, 1, NAN)),
    "a share from 0 to less than 1": ((0, 1 - TINY), (-TINY, 1, NAN)),
    "from 0 to 4294967295": ((0, 4294967295), (-1, 4294967296)),
}


def test_every_rule_is_in_the_table():
    assert NUMBERS.keys() == RULES.keys()


@pytest.mark.parametrize("rule", NUMBERS)
def test_the_ends_of_every_rule(rule):
    allowed, refused = NUMBERS[rule]
    check_ranges(SimpleNamespace(one=allowed[0], several=list(allowed), none=None), (rule, "one several none missing"))
    for number in refused:
        for value in (number, [allowed[0], number]):
            with pytest.raises(UserError) as raised:
                check_ranges(SimpleNamespace(first=allowed[0], second=value), (rule, "first second"))
            assert str(raised.value) == f"error: --second must be {rule}, got {number}."
