"""The tasks to unlearn: TOFU, MUSE and WMDP, each with its data, metrics and presets."""
