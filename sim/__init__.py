"""The project's own benches: memory models, networks of kernels, the cocotb device, proofs, campaigns.

They are not installed; what users need is `streamgen.testing`. They may import anything of streamgen;
streamgen never imports them.
"""
