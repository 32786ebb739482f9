"""Models: one `modeling_<model_type>.py` per family, over the layers and task heads they share."""

# Imports the Auto classes, and so registers all families, before the first module of ours is executed; it would come
# halfway through one otherwise, when its classes do not exist yet.
import transformers.modeling_layers  # noqa: F401
