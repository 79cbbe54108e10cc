"""MUSE: news and books, verbatim and as knowledge."""
