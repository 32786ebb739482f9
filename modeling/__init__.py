"""Models: one `modeling_<model_type>.py` per family, built from shared layers and task heads."""

# Import the Auto classes first, because this registers our families, which must not happen while one of our modules is
# only partly imported.
import transformers.modeling_layers  # noqa: F401


def _bind_kernels() -> None:
    """Bind kernels to the layers of every new model. Without the folder `kernels/`, models run in plain PyTorch."""
    from importlib import import_module
    from importlib.util import find_spec

    spec = find_spec(f"{__name__}.kernels")
    if spec is not None and spec.origin is not None:  # deleting the folder can leave an empty one
        from .mixins.package_features import AFTER_INIT

        AFTER_INIT.append(import_module(f"{__name__}.kernels").bind)


_bind_kernels()
