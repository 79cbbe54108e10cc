"""The runs behind `results/README.md`, their tables and figures."""
