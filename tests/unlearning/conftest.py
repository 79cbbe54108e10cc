"""The tiny Llama of the command's tests, in memory."""

from tests.command.conftest import folder, model, tokenizer

__all__ = ["folder", "model", "tokenizer"]
