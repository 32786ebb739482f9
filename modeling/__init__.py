"""Models: one `modeling_<model_type>.py` per family, over the layers and task heads they share."""
