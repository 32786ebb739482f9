"""Commands to train, evaluate, convert and share models: `tokenmixers --help` lists them."""
