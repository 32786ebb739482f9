"""Write questions in SQuAD's format about Python's docstrings.

A context lists functions of one module with the first sentence of their docstrings. A question asks which function
fits one of the sentences, and the answer is its name. This is far easier than SQuAD: it shows within minutes that
training works. The files are in SQuAD's JSON format. The sources are read with `ast`: nothing is executed.

    tokenmixers make_data python_docs_questions --output_dir outputs/questions
"""

import ast
import inspect
import json
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .python_docs import definitions, is_held_out, library_files


#: Share of the modules held out.
VALIDATION_PERCENTAGE = 10.0
#: Functions that a context lists, and questions about each function, each time with other functions in the context.
FUNCTIONS, REPEATS = 4, 4

_SENTENCE = re.compile(r"[A-Z][^.]{10,100}\.(?=\s|$)")


def summaries(source: bytes) -> dict[str, str]:
    """The first sentence of the docstring of every public function in a module; none if it is not valid Python."""
    found = {}
    for node in definitions(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            sentence = _SENTENCE.match(" ".join(inspect.cleandoc(ast.get_docstring(node) or "").split()))
            if sentence and sentence[0] not in found.values():
                found.setdefault(node.name, sentence[0])
    return found


def articles(standard_library: Path | None = None) -> Iterator[dict[str, Any]]:
    """One article of SQuAD's JSON for each module that documents enough functions."""
    root = standard_library or Path(sysconfig.get_path("stdlib"))
    for file in library_files(root):
        title = file.relative_to(root).as_posix()
        draw = random.Random(f"0 {title}")
        listed = list(summaries(file.read_bytes()).items())
        paragraphs: list[dict[str, Any]] = []
        for _ in range(REPEATS):
            draw.shuffle(listed)
            for start in range(0, len(listed) - FUNCTIONS + 1, FUNCTIONS):
                paragraphs.append(_paragraph(listed[start : start + FUNCTIONS], f"{title}:{len(paragraphs)}"))
        if paragraphs:
            yield {"title": title, "paragraphs": paragraphs}


def _paragraph(group: list[tuple[str, str]], identifier: str) -> dict[str, Any]:
    """A context about a group of functions, with a question about each."""
    context, questions = "", []
    for index, (name, sentence) in enumerate(group):
        answers = [{"text": name, "answer_start": len(context)}]
        context += f"{name}: {sentence} "
        questions.append(
            {
                "id": f"{identifier}:{index}",
                "question": f"Which function does this? {sentence}",
                "answers": answers,
            }
        )
    return {"context": context.strip(), "qas": questions}


def write(folder: Path) -> None:
    """Write the data set to a new or empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    splits: dict[str, list] = {"train": [], "validation": []}
    for article in articles():
        held_out = is_held_out(article["title"], VALIDATION_PERCENTAGE)
        splits["validation" if held_out else "train"].append(article)
    for name, data in splits.items():
        (folder / f"{name}.json").write_text(json.dumps({"version": "made here", "data": data}), encoding="utf-8")
        count = sum(len(paragraph["qas"]) for article in data for paragraph in article["paragraphs"])
        print(f"{name}: {count:,} questions about {len(data):,} modules")
