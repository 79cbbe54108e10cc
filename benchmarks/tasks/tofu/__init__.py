"""TOFU: questions and answers about fictitious authors."""
