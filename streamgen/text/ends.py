"""Tokens that end a text, known by their names."""

from collections.abc import Collection

# What models call the tokens that end a text, a turn, a message or the call of a tool (source: llama.cpp).
ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|END_OF_TURN_TOKEN|>", "<|end_of_turn|>", "<|endofturn|>",
)  # fmt: skip
END_OF_CHANNEL = "<|end|>"  # ends no text if the vocabulary has one of these
ENDS_OF_CHANNELS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})


def ends_among(tokens: Collection[str]) -> set[str]:
    """Those of the tokens whose name says that they end a text. tokens: all but the words of a vocabulary."""
    named = {token for token in ENDS if token in tokens}
    if any(ends <= named for ends in ENDS_OF_CHANNELS):
        named.discard(END_OF_CHANNEL)
    return named
