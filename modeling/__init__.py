"""Models: one `modeling_<model_type>.py` per family, over the layers and task heads they share."""

# Loads the Auto classes, and so registers all families, before the first of our modules is executed: Transformers
# imports them halfway through such a module otherwise, when its classes do not exist yet.
import transformers.models.auto.modeling_auto  # noqa: F401
