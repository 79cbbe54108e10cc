"""WMDP: dangerous knowledge, by multiple-choice questions."""
