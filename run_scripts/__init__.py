"""Training and tool scripts: `python -m tokenmixers.run_scripts.<name> --help`."""
