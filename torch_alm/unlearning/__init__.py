"""Unlearning, evaluation and attacks of a language model and rows in memory."""
