"""A GPT of your own: train it, compile it, and let it write the same text as torch.

    python examples/char_gpt.py FOLDER              train 400 steps, compile, write with the golden model
    python examples/char_gpt.py FOLDER --simulate   the RTL writes, too

The module knows nothing of hardware and has no cache: it maps ids [1, T] to logits. FOLDER gets weights.pt,
characters.json and, in `accelerator`, the compiled design. The command line does the same:

    streamgen compile examples/char_gpt.py:GPT -o FOLDER/accelerator --weights w8 \\
        --checkpoint FOLDER/weights.pt --tokenizer FOLDER/characters.json
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import streamgen
from streamgen.text.characters import character_tokenizer

TEXT = """\
Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date:
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd;
And every fair from fair sometime declines,
By chance or nature's changing course untrimm'd;
But thy eternal summer shall not fade
Nor lose possession of that fair thou owest;
Nor shall Death brag thou wander'st in his shade,
When in eternal lines to time thou growest:
So long as men can breathe or eyes can see,
So long lives this, and this gives life to thee.
"""
CHARACTERS = sorted(set(TEXT))
WIDTH, HEADS, LAYERS, CONTEXT = 64, 4, 2, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        heads = (batch, tokens, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.feed_forward(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(len(CHARACTERS), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(CHARACTERS), bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(ids.shape[1])
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions(positions))))


def trained(steps: int) -> GPT:
    """A model that has read the text so often."""
    torch.manual_seed(0)
    model, ids = GPT(), torch.tensor([CHARACTERS.index(character) for character in TEXT])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        starts = torch.randint(len(ids) - CONTEXT, (12,))
        batch = torch.stack([ids[start : start + CONTEXT + 1] for start in starts])
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return model.eval()


@torch.no_grad()
def written_by_torch(model: GPT, prompt: list[int], count: int) -> list[int]:
    """The likeliest ids after a prompt."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def main(folder: Path, steps: int, count: int, simulate: bool) -> None:
    model, tokenizer = trained(steps), character_tokenizer(CHARACTERS)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "weights.pt")
    (folder / "characters.json").write_text(json.dumps(CHARACTERS))
    config = streamgen.CompileConfig(name="char_gpt", weights="w8", max_tokens=8)
    accelerator = streamgen.compile(model, config=config, tokenizer=tokenizer)
    prompt = tokenizer.encode("Shall I")
    expected = written_by_torch(model, prompt, count)
    ids = [int(index) for index in accelerator.golden.generate(prompt, count)]
    assert ids == expected, "rounding has changed the text: train longer"
    print(f"the golden model writes the text of torch:\n{tokenizer.decode(prompt + ids)}")
    accelerator.write(folder / "accelerator")
    if simulate:
        few = [int(index) for index in accelerator.generate(prompt, 8)]
        assert few == ids[:8]
        print(f"the simulated RTL writes its first {len(few)} characters: {tokenizer.decode(few)!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Train a small GPT, compile it, and compare its text with torch's."
    )
    parser.add_argument("folder", type=Path, nargs="?", help="new folder for weights and design")
    parser.add_argument("--steps", type=int, default=400, help="steps of training")
    parser.add_argument("--count", type=int, default=50, help="characters to write")
    parser.add_argument("--simulate", action="store_true", help="let the simulated RTL write, too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        main(given.folder or Path(scratch), given.steps, given.count, given.simulate)
