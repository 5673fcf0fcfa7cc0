"""A host program of a user: `python text_host.py FOLDER XCLBIN TOKENS IDS...`, on whatever card XRT has."""

import sys
from pathlib import Path

import streamgen
from streamgen import cli
from streamgen.api.language_model import LanguageModel
from streamgen.runtime import on_board


def main(folder: Path, xclbin: Path, count: int, prompt: list[int]) -> None:
    model = streamgen.load(folder)
    assert isinstance(model, LanguageModel)
    card = on_board(0, xclbin)
    session = model.session(card)
    print("ids:", *session.generate(prompt, count))
    print("goes on:", *session.generate([5], 1))
    model.close()
    told = ["generate", str(folder), "--prompt", "FOWB94", "--max-new-tokens", "2", "--compare"]
    assert cli.main([*told, "--xclbin", str(xclbin), "--device", "0"]) == 0, "on the command line"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), [*map(int, sys.argv[4:])])
