#!/usr/bin/env python3
"""Trains the models of docs/use-cases.md, scores them on examples that were not used for training, and writes the figures into that page.

    python3 scripts/use_cases.py PROGRAM DATA_FOLDER [--only NAME ...]

PROGRAM is the program polyhead; DATA_FOLDER has the files that the page names. Models whose files are missing are left out, and their figures in the page are
not changed. A tenth of the examples in sentiment.tsv, en-fr.tsv and digits.npz, chosen by a hash, is put aside before training and used only for scoring.
Models and logs are written to build/use-cases/.
"""
import argparse
import hashlib
import itertools
import json
import math
import pathlib
import resource
import subprocess

from page_block import write_block

root = pathlib.Path(__file__).resolve().parents[1]
work = root / "build/use-cases"
page = root / "docs/use-cases.md"


def held_out(key):
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % 10 == 0


def split(source, key):
    """Splits the file in two: one part to train the model, one to score it."""
    parts = work / f"train-{source.name}", work / f"test-{source.name}"
    with source.open(encoding="utf-8", newline="\n") as lines, parts[0].open("w", encoding="utf-8") as train, parts[1].open("w", encoding="utf-8") as test:
        for line in lines:
            (test if held_out(key(line)) else train).write(line)
    return parts


def split_images(source):
    import numpy as np
    data = np.load(source)
    test = np.array([held_out(image.tobytes().hex()) for image in data["images"]])
    parts = work / "train-digits.npz", work / "test-digits.npz"
    for path, rows in zip(parts, (~test, test)):
        np.savez(path, images=data["images"][rows], labels=data["labels"][rows])
    return parts


def train(program, name, *arguments):
    """Trains a model into build/use-cases/NAME. Returns its number of parameters and the seconds of processor time."""
    folder = work / name
    if folder.exists():
        for file in folder.iterdir():
            file.unlink()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    log = subprocess.run([program, "train", *map(str, arguments), "-o", folder], check=True, stdout=subprocess.PIPE, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (work / f"{name}.log").write_text(log)
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    parameters = sum(math.prod(tensor["shape"]) for tensor_name, tensor in header.items() if tensor_name != "__metadata__")
    return {"processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "parameters": parameters}


def score(program, task, name, file, *arguments):
    run = subprocess.run([program, "try", task, "--model", work / name, "--score", file, "--json", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout)


def cost(run):
    return f"The model has {run['parameters']:,} parameters, trained in {run['processor']:.0f} s of processor time"


def digits(program, data):
    train_file, test_file = split_images(data / "digits.npz")
    run = train(program, "digits", "digits", "--data", train_file)
    result = score(program, "digits", "digits", test_file)
    return [f"The accuracy is **{result['accuracy']:.3f}** on {result['images']} images that were put aside. {cost(run)}."]


def sentiment(program, data):
    train_file, test_file = split(data / "sentiment.tsv", lambda line: line.rstrip("\n").split("\t")[-1])
    run = train(program, "sentiment", "classify", "--data", train_file)
    result = score(program, "sentiment", "sentiment", test_file, "--baseline", train_file, "--ablate")
    words, halves = result["bag_of_words"], result["halves"]
    changes = sorted(result["without"], key=lambda head: -head["change"])
    return [
        f"On {result['texts']} texts that were put aside, the model has the accuracy **{result['accuracy']:.3f}** (positive or negative, of the {result['counted']} texts that are not rated 0), correlation with people's "
        f"ratings **{result['correlation']:.3f}**. A bag of words and word pairs alone has {words['accuracy']:.3f} and {words['correlation']:.3f}.",
        f"From them {halves['texts']} texts \"A, but B\" were made. In **{halves['both']}** of the {halves['texts']} each half is read by its own head, that is, the positive head gives at least 0.45 of its attention to the positive half and the negative head at least 0.45 to the negative half.",
        "",
        "| without | rating changes by | accuracy changes by |",
        "|---|---|---|",
        *[f"| {head['head']} | {head['change']:.3f} | {head['accuracy_change']:+.4f} |" for head in changes],
        "",
        f"{cost(run)}.",
    ]


def grammar(program, data):
    run = train(program, "grammar", "translate")
    result = score(program, "translate", "grammar", "grammar")
    links = result["alignment_error_rate"]
    return [
        f"Of {result['sentences']} held-out sentences **{result['exact']:.4f}** are exactly right (BLEU {result['bleu']:.1f}). The alignment error rate of the guided head is **{links['guided']:.3f}**, "
        f"that of IBM model 2 {links['ibm_model_2']:.3f}, that of the diagonal {links['diagonal']:.3f}. {cost(run)}."
    ]


def sentences(program, data):
    train_file, test_file = split(data / "en-fr.tsv", lambda line: line.split("\t")[0])
    run = train(program, "sentences", "translate", "--data", train_file)
    greedy, beams = (score(program, "translate", "sentences", test_file, "--beams", width) for width in ("1", "4"))
    links = score(program, "translate", "sentences", data / "en-fr-aligned.tsv", "--baseline", train_file)["alignment_error_rate_short"]
    return [
        f"On {greedy['sentences']} English sentences that were put aside, translations by the likeliest tokens have BLEU **{greedy['bleu']:.1f}**, and those by a search with 4 beams **{beams['bleu']:.1f}**. "
        f"On {links['sentences']} hand-aligned sentences of up to 20 words, the alignment error rate of the guided head is **{links['guided']:.3f}**, that of IBM model 2 {links['ibm_model_2']:.3f}, "
        f"that of the diagonal {links['diagonal']:.3f}. {cost(run)}."
    ]


def divergence(p, q):
    """Jensen-Shannon divergence of two distributions in bits: 0 if they are equal, 1 if they have nothing in common."""
    return sum(a * math.log2(2 * a / (a + b)) / 2 for x, y in zip(p, q) for a, b in ((x, y), (y, x)) if a > 0)


def heads_of_summaries(program, name, file):
    """Returns how much the heads differ: the mean divergence of the rows of two heads, over pairs of heads and abstracts."""
    differences, lines = [], file.read_text(encoding="utf-8").splitlines()
    for line in lines:
        sentences = "\n".join(json.loads(line)["source"])
        told = subprocess.run([program, "try", "summarise", "-", "--model", work / name, "--json"], input=sentences, check=True, stdout=subprocess.PIPE, text=True).stdout
        heads = json.loads(told)["attentions"][0]
        if len(heads[0]) > 1:
            differences += [sum(map(divergence, *pair)) / len(heads[0]) for pair in itertools.combinations(heads, 2)]
    return sum(differences) / len(differences)


def summary(program, data):
    run = train(program, "summary", "summarise", "--data", data / "scitldr-train.jsonl")
    result = score(program, "summarise", "summary", data / "scitldr-dev.jsonl")
    heads = heads_of_summaries(program, "summary", data / "scitldr-dev.jsonl")
    return [
        f"On {result['abstracts']} abstracts of scitldr-dev, the chosen sentence has ROUGE-1 **{result['rouge_1']:.1f}**, the first sentence {result['first_sentence']:.1f}, the sentence with a cue phrase "
        f"{result['cue_phrase']:.1f}, and the best possible choice of one sentence {result['best_sentence']:.1f}. Two heads differ by **{heads:.2f}** bits on average. "
        f"The difference is measured as the Jensen-Shannon divergence of the rows of two heads, which is 0 for equal heads and 1 for heads that read different sentences. {cost(run)}."
    ]


TASKS = {
    "sentiment": ("sentiment.tsv", sentiment),
    "grammar": ("", grammar),
    "sentences": ("en-fr.tsv", sentences),
    "summary": ("scitldr-train.jsonl", summary),
    "digits": ("digits.npz", digits),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", choices=TASKS, default=list(TASKS))
    arguments = parser.parse_args()
    work.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        file, task = TASKS[name]
        if file and not (arguments.data / file).exists():
            print(f"{name}: {arguments.data / file} is missing; left out")
            continue
        lines = task(arguments.program, arguments.data)
        write_block(page, name, lines)
        print(name, *lines, sep="\n")


if __name__ == "__main__":
    main()
