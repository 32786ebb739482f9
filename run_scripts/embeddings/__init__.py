"""Evaluation of sentence embeddings: sets, models, scores, results and speed."""
