"""The verification kit: benches, stalls, stream-law monitors, synthesis counts, memory models.

It may import anything of streamgen; streamgen never imports it.
"""
