"""Tokenizers, prompts, chats, and sampling of tokens."""
