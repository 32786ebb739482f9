"""Write a small data set, to try things out without a download.

tokenmixers make_data python_docs_corpus --output_dir outputs/corpus
tokenmixers make_data python_docs_corpus --help
"""

import importlib
import sys

from .base.arguments import check_new_folder, parse_arguments
from .base.commands import SMALL_DATA, describe, module_of
from .base.errors import UserError
from .small_data import OutputArguments


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words.pop(0) if words and not words[0].startswith("-") else ""
    if name in SMALL_DATA:
        maker = importlib.import_module(module_of(name))
        kind = getattr(maker, "Arguments", OutputArguments)
        (arguments,) = parse_arguments((kind,), words, f"{name} [recipe.yaml] [arguments]", maker.__doc__)
        more = () if kind is OutputArguments else (arguments,)
        maker.write(check_new_folder(arguments.output_dir), *more)
        return
    if {"-h", "--help"} & {*words}:
        width = max(map(len, SMALL_DATA))
        listed = "".join(f"\n  {each:{width}}  {describe(each)}" for each in SMALL_DATA)
        parse_arguments((), words, "NAME [arguments]", f"NAME is one of{listed}")
    got = f", got {name!r}" if name else ""
    raise UserError(f"the first argument must be the name of a data set{got}; there are {', '.join(SMALL_DATA)}.")


if __name__ == "__main__":
    main()
