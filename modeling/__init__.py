"""Models: one `modeling_<model_type>.py` per family, over the layers and task heads they share."""

# Import the Auto classes first: importing them registers our families, which must not happen while one of our modules
# is half imported.
import transformers.modeling_layers  # noqa: F401


def _bind_kernels() -> None:
    """Bind faster equivalents of layers to every new model. Without their folder, models run as they are written."""
    from importlib import import_module
    from importlib.util import find_spec

    spec = find_spec(f"{__name__}.kernels")
    if spec is not None and spec.origin is not None:  # a deleted folder can leave an empty one
        from .mixins.package_features import AFTER_INIT

        AFTER_INIT.append(import_module(f"{__name__}.kernels").bind)


_bind_kernels()
