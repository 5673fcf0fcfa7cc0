"""What others have published of GPT-2 Medium, one text at a time."""

PEER = "StreamTensor, U55C 250 MHz, W4A8"  # the same card
PUBLISHED_SHAPE = "gpt2-medium"  # of benchmarks/u55c.py

# Latency in ms, time to the first token in ms, tokens a second behind it; by the length of prompt and answer.
# StreamTensor, arXiv 2509.13694, which also gives those of Allo, DFX and the A100; CODO, ISCA 2026.
PUBLISHED: dict[str, dict[int, tuple[float | None, float, float | None]]] = {
    PEER: {
        32: (194.99, 34.59, 199.51),
        64: (358.24, 61.27, 215.51),
        128: (696.65, 125.35, 224.05),
        256: (1387.76, 272.85, 229.61),
    },
    "Allo, U280 250 MHz, W4A8": {
        32: (238.32, 81.50, 204.05),
        64: (476.64, 162.99, 204.05),
        128: (953.28, 325.98, 204.05),
        256: (1906.56, 651.96, 204.05),
    },
    "DFX, U280 200 MHz, FP16": {
        32: (350.0, 177.2, 185.19),
        64: (694.7, 349.1, 185.19),
        128: (1384.0, 692.8, 185.19),
        256: (2800.0, 1417.6, 185.19),
    },
    "CODO": {32: (None, 20.4, 231.48), 64: (None, 32.6, 231.48), 128: (None, 110.4, 231.48)},
    "A100, W8A8": {
        32: (291.16, 8.72, 113.30),
        64: (567.41, 8.76, 114.56),
        128: (1118.28, 8.65, 115.35),
        256: (2227.79, 8.53, 115.35),
    },
}
