"""Utility at equal forgetting over learning rates: searched without ALM, asked for with it."""
