"""Integrations: each module here is for one other library, and imports it.

Nothing in `torch_alm` imports this package; `import torch_alm` stays torch alone.
"""
