"""A small language model that has read running text, to be taught a benchmark's facts."""
