"""Facts that a published chat model knows: which of them it can be made to forget, at what cost."""
