"""Softmax of rows, masked or not."""
