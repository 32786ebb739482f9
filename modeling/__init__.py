"""Models: one `modeling_<model_type>.py` per family, over the layers and task heads they share."""

# Registers the models that are in these modules: better before any of them begins than in the middle of it.
import transformers.models.auto.modeling_auto  # noqa: F401
