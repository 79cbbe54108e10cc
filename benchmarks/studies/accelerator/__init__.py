"""Exactness, waits, memory and time on an accelerator."""
