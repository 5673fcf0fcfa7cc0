"""Streams: the signature that an ITensor gives, and the plumbing that every design needs."""

from streamgen.stream.signature import descriptor_layout, descriptor_signature, signature

__all__ = ["descriptor_layout", "descriptor_signature", "signature"]
