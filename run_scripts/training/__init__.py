"""What training scripts share: trainer, models and tokenizers, model cards, grids of hyper-parameters."""
