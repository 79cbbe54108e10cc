"""Parts of a DualOptimizer: its gate, its checks, and both sides as one state."""
