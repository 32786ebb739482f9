"""Models: one `modeling_<model_type>.py` per family, over the layers and task heads they share."""

# Imports the Auto classes, and so registers all families, before the first module of ours is executed; it would come
# halfway through one otherwise, when its classes do not exist yet.
import transformers.modeling_layers  # noqa: F401


def _bind_kernels() -> None:
    """Bind faster equivalents of layers to every new model. Without their folder, models run as they are written."""
    from importlib import import_module
    from importlib.util import find_spec

    if find_spec(f"{__name__}.kernels"):
        from .mixins.package_features import AFTER_INIT

        AFTER_INIT.append(import_module(f"{__name__}.kernels").bind)


_bind_kernels()
