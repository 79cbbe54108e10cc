"""What can only be seen on an accelerator: exactness, waits, memory and time."""
