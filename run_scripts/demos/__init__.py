"""The demo in the browser: what a checkpoint answers, and which tokens it mixed for that."""
