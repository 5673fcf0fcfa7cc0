"""Hardware below kernels, in Amaranth: its conversion to Verilog, arithmetic units, handshakes."""
