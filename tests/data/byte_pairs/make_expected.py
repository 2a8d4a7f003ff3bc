"""Trains the `tokenizers` package's BPE on texts.txt and writes its merges and ids to expected.json.

    python3 make_expected.py

A regular expression splits the texts into words. It is right for these texts only: they are in NFC, and have no underscores and no symbols except € and ¥.
The package merges characters and not bytes, so each byte becomes the character U+4E00 + its value, and the mark of a word becomes U+4EFF. This keeps the order of ids.
"""
import json
import pathlib
import re

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

folder = pathlib.Path(__file__).parent
texts = folder.joinpath("texts.txt").read_text().splitlines()


def pre_tokens(text):
    found = list(re.finditer(r"(?P<word>[\w€¥]+(?:['’](?=[\w€¥]))?)|\s*[^\w\s€¥]+\s*|\s+", text))
    for at, here in enumerate(found):
        between = 0 < at < len(found) - 1 and found[at - 1]["word"] and found[at - 1].end() == here.start()
        if here[0] == " " and between and found[at + 1]["word"]:
            continue
        yield (b"\xff" if here["word"] else b"") + here[0].encode()


marked = [" ".join("".join(chr(0x4E00 + byte) for byte in pre_token) for pre_token in pre_tokens(text)) for text in texts]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer.train_from_iterator(marked, trainers.BpeTrainer(vocab_size=420, min_frequency=2, show_progress=False,
                                                          initial_alphabet=[chr(0x4E00 + byte) for byte in range(256)]))
model = json.loads(tokenizer.to_str())["model"]
merges = [[model["vocab"][piece] for piece in merge] for merge in model["merges"]]
expected = {"vocabulary": tokenizer.get_vocab_size(), "merges": merges, "ids": [tokenizer.encode(text).ids for text in marked]}
folder.joinpath("expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")
print(expected["vocabulary"], "ids,", len(merges), "merges")
