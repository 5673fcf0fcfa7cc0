"""From text to token ids, prompts and drawn tokens."""
