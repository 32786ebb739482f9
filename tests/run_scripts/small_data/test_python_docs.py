import ast

from tokenmixers.run_scripts.small_data import python_docs


SOURCE = b'''"""Module text."""
raise SystemExit("must not be executed")

class A:
    """
    Class text,
      indented.
    """

    async def f(self):
        "Function text."
        return "no docstring"
'''


def test_docstrings_are_read_without_executing_anything():
    assert list(python_docs.docstrings(SOURCE)) == ["Module text.", "Class text,\n  indented.", "Function text."]
    assert list(python_docs.docstrings(b"def broken(:")) == []


BLOCKS = b"""
def outer():
    if x:
        def of_if(): ...
    elif y:
        def of_elif(): ...
    else:
        class OfElse: ...
    try:
        def of_try(): ...
    except ValueError:
        def of_except(): ...
    else:
        def of_else(): ...
    finally:
        def of_finally(): ...
    for i in x:
        def of_for(): ...
    while x:
        async def of_while():
            async with x:
                def of_with(): ...
    match x:
        case 1:
            def of_case(): ...
"""


def test_definitions_are_those_of_the_whole_tree():
    tree = ast.parse(BLOCKS)
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    expected = [ast.dump(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    found = python_docs.definitions(BLOCKS)
    assert [ast.dump(node) for node in found] == expected
    assert len(expected) == 13
