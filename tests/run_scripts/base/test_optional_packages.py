import pytest

from tokenmixers.run_scripts.base import optional_packages
from tokenmixers.run_scripts.base.errors import UserError


def test_hints_need_no_checkout_where_the_package_is_installed(monkeypatch):
    def requires(name):
        assert name == "tokenmixers"
        return ["torch>=2.11", 'timm>=1.0; extra == "bench"', 'matplotlib>=3.9; extra == "plot"']

    monkeypatch.setattr(optional_packages.importlib.metadata, "requires", requires)
    assert optional_packages.install_hint("plot").startswith(
        "pip install 'matplotlib>=3.9', or pip install '.[plot]' in a "
    )

    def not_installed(name):
        raise optional_packages.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(optional_packages.importlib.metadata, "requires", not_installed)
    assert optional_packages.install_hint("plot").startswith("pip install '.[plot]' in a ")


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError"])
def test_a_package_that_breaks_as_it_is_imported_is_named(tmp_path, monkeypatch, error):
    (tmp_path / f"broken_{error}.py").write_text(f'raise {error}("built for another torch")')
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=f"the test needs broken_{error}, .*built for another torch.*bench"):
        optional_packages.import_optional(f"broken_{error}", "bench", "the test")
