"""Tasks of lm-evaluation-harness for local files: see run_scripts/guides/evaluation.md."""
