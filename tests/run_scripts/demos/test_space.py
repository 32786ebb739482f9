import ast
import re

import pytest
import yaml
from packaging.requirements import Requirement

import tokenmixers
from tokenmixers import GMLPConfig
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.demos import checkpoints, page
from tokenmixers.run_scripts.demos.space import GRADIO_VERSION, space_files


TEXT = ["config.json", "model.safetensors", "tokenizer.json"]
CARD = "---\nlicense: mit\n---\n# Mine\n"


def config(ending="ForMaskedLM"):
    return GMLPConfig(architectures=[f"GMLP{ending}"])


def head(files):
    return yaml.safe_load(files["README.md"].decode().split("---\n")[1])


def test_the_head_says_how_to_run_it():
    files = space_files(config(), TEXT, "me/my-gmlp", card=CARD)
    assert list(files) == ["README.md", "app.py", "requirements.txt"]
    found = head(files)
    assert (found["sdk"], found["sdk_version"], found["app_file"]) == ("gradio", GRADIO_VERSION, "app.py")
    assert (found["models"], found["license"], found["title"]) == (["me/my-gmlp"], "mit", "my-gmlp")
    assert "license" not in head(space_files(config(), TEXT, "me/my-gmlp"))


def test_the_version_of_gradio_is_one_that_the_extra_allows():
    pyproject = (checkpoints.Path(tokenmixers.__file__).parent / "pyproject.toml").read_text()
    extra = re.search(r'^demo = \["(gradio[^"]+)"', pyproject, flags=re.MULTILINE)[1]
    assert GRADIO_VERSION in Requirement(extra).specifier


def test_the_requirement_is_this_version_or_what_is_given():
    default = Requirement(space_files(config(), TEXT, "me/my-gmlp")["requirements.txt"].decode().strip())
    assert (default.name, default.extras) == ("tokenmixers", {"demo"}) and tokenmixers.__version__ in default.specifier
    given = "tokenmixers[demo] @ git+https://example.org/tokenmixers"
    files = space_files(config(), TEXT, "me/my-gmlp", given)
    assert files["requirements.txt"].decode() == given + "\n" and given in files["README.md"].decode()


def test_the_app_calls_what_there_is():
    tree = ast.parse(space_files(config(), TEXT, "me/my-gmlp")["app.py"])
    modules = {node.module: node.names[0].name for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert modules == {checkpoints.__name__: "load_checkpoint", page.__name__: "launch"}
    assert all(callable(getattr(module, modules[module.__name__])) for module in (checkpoints, page))
    assert ast.unparse(tree.body[-1]) == "launch(load_checkpoint('me/my-gmlp'))"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((config("ForMultipleChoice"), TEXT, "me/x"), "the demo cannot show 'me/x', which was saved by GMLPForMul"),
        ((config(), TEXT[:1], "me/x"), "has no weights: a demo needs them"),
        ((config(), TEXT[:2], "me/x"), "has no tokenizer, which a demo needs"),
        ((config("ForImageClassification"), TEXT, "me/x"), "has no image processor"),
        ((config(), TEXT, "x"), "'x' does not say whose model the Space shows"),
        ((config(), TEXT, "me/x", "gradio"), "--space_requirement 'gradio' does not name this package"),
        ((config(), TEXT, "me/x", "tokenmixers\n--pre"), "does not name this package"),
        ((config(), TEXT, "me/x", None, "---\nlicense: [\n---\n"), "the metadata of the model card of 'me/x' cannot"),
    ],
)
def test_what_has_no_demo_is_refused(arguments, complaint):
    with pytest.raises(UserError, match=re.escape(complaint)):
        space_files(*arguments)
