"""One rule for mu against mu that is tuned, on problems with known optima."""
