"""Tests that `polyhead train` makes models of images and of texts from files, and that the program runs these models."""
import json
import os
import math
import random
import re
import shutil
import signal
import struct
import subprocess
import unittest
import zlib

import tensor_files
from program import BINARY, ProgramTest, environment, page_data, run


def write_quarters(path, count=60):
    """Writes images in four classes: the class says which quarter of the image is bright."""
    draw = random.Random(1)
    labels = [draw.randrange(4) for _ in range(count)]
    pixels = [float(draw.randrange(8) + (8 if row // 2 * 2 + column // 2 == label else 0)) for label in labels for row in range(4) for column in range(4)]
    tensor_files.save_safetensors(path, {"images": ("F32", (count, 4, 4), pixels), "labels": ("I64", (count,), labels)})


def write_png(path, rows):
    """Writes a grey picture of 8 bits."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))) + chunk(b"IEND", b""))


class Train(ProgramTest):
    def setUp(self):
        super().setUp()
        self.data = self.folder / "quarters.safetensors"
        write_quarters(self.data)

    def train(self, name, *options):
        return self.succeeds("train", "digits", "--data", self.data, "-o", self.folder / name, *options).stdout.decode()

    def files(self, name):
        return {path.name: path.read_bytes() for path in (self.folder / name).iterdir()}

    def test_a_model_is_trained_tried_and_scored(self):
        text = self.train("model", "--steps", "60")
        self.assertIn("60 images of 4 x 4 pixels in 4 classes: 48 to train, 12 to validate\n", text)
        self.assertIn("step 60: loss ", text)
        self.assertEqual(sorted(self.files("model")), ["config.json", "model.safetensors"])
        self.assertEqual(json.loads(self.files("model")["config.json"])["model_type"], "polyhead-image-classifier")
        score = json.loads(self.succeeds("try", "digits", "--score", self.data, "--model", self.folder / "model", "--json").stdout)
        self.assertGreater(score["accuracy"], 0.8)
        self.assertEqual(score["images"], 60)
        answer = json.loads(self.succeeds("try", "digits", self.data, "--number", "3", "--model", self.folder / "model", "--json").stdout)
        self.assertAlmostEqual(sum(answer["probabilities"]), 1)
        told = self.succeeds("try", "digits", self.data, "--model", self.folder / "model").stdout.decode()
        self.assertIn("; the file says ", told)
        page = self.page("digits", self.data, "--model", self.folder / "model")
        self.assertEqual(page["title"], told.splitlines()[0])
        self.assertIn("image classifier (Vision Transformer), ", page["model"])
        image = page["texts"][0]["image"]
        self.assertEqual([image[name] for name in ("height", "width", "rows", "columns")], [4, 4, 2, 2])
        self.fails(2, "try", "digits", "--score", self.data, "--model", self.folder / "model", "-o", self.folder / "other.html", mentions=["-o and --score cannot be combined"])

    def test_snapshots_show_images_and_sentences(self):
        self.train("images", "--steps", "40", "--snapshots", "3", "--number", "9,4")
        self.assertEqual(sorted(self.files("images")), ["config.json", "learning.html", "model.safetensors"])
        data = page_data(self.folder / "images/learning.html")
        labels = dict(enumerate(tensor_files.load_safetensors(self.data)["labels"][1]))
        self.assertEqual([(one["text"], one["step"]) for one in data["texts"]], [(f"image {i}, a {labels[i]}", step) for step in (0, 10, 40) for i in (9, 4)])
        last = self.page("digits", self.data, "--number", "4", "--model", self.folder / "images")["texts"][0]
        shown = data["texts"][-1]
        self.assertEqual((shown["image"], shown["queries"]), (last["image"], last["queries"]))
        self.assertRegex(shown["answer"], r"^class \d \(probability \d\.\d{3}\)$")
        self.assertEqual(len({json.dumps(one["weights"]) for one in data["texts"] if one["text"] == shown["text"]}), 3)
        self.train("default", "--steps", "4", "--snapshots", "2")
        self.assertEqual([one["text"].split(",")[0] for one in page_data(self.folder / "default/learning.html")["texts"][:3]], ["image 4", "image 9", "image 14"])
        result = self.succeeds("train", "digits", "--data", self.data, "-o", self.folder / "default", "--steps", "4", "--seed", "5")
        self.assertIn("/default/learning.html' is from before; this run, without --snapshots, leaves it as it is", result.stderr.decode())
        self.fails(1, "train", "digits", "--data", self.data, "-o", self.folder / "none", "--snapshots", "2", "--number", "60", mentions=["there is no image 60", "0 to 59"])
        self.assertFalse((self.folder / "none").exists())

        abstracts = self.folder / "few.jsonl"
        abstracts.write_text("".join(json.dumps({"source": [f"Old {i} is slow.", f"We make {i} fast."], "target": [f"{i} fast"]}) + "\n" for i in range(200)))
        text = "All is slow. We make it fast."
        self.succeeds("train", "summarise", "--data", abstracts, "-o", self.folder / "summary", "--steps", "20", "--snapshots", "3", "--text", text)
        texts = page_data(self.folder / "summary/learning.html")["texts"]
        self.assertEqual([(one["text"], one["step"], one["queries"]["pieces"]) for one in texts], [(text, step, ["All is slow.", "We make it fast."]) for step in (0, 5, 20)])
        self.fails(1, "train", "summarise", "--data", abstracts, "-o", self.folder / "none", "--snapshots", "3", "--text", "Only one.", mentions=["'Only one.' has no two sentences"])
        self.assertFalse((self.folder / "none").exists())
        self.assertRegex(texts[-1]["answer"], r"^1: We make it fast\. \(\d\.\d\d\)$")

    def page(self, *arguments):
        """Returns the decoded JSON of the page's element `data`."""
        path = self.folder / "page.html"
        self.assertIn(b"page.html", self.succeeds("try", *arguments, "-o", path).stderr)
        return page_data(path)

    def test_a_summary_is_chosen_and_scored(self):
        data, model = self.folder / "abstracts.jsonl", self.folder / "model"
        draw = random.Random(2)
        with open(data, "w") as file:
            file.write("nothing\n")
            for i in range(200):
                sentences = [f"Many {draw.choice(['rivers', 'clocks'])} move at {i}." for _ in range(draw.randrange(3, 6))]
                sentences[draw.randrange(1, len(sentences) - 1)] = "We propose maps."
                file.write(json.dumps({"source": sentences, "target": ["Maps are proposed.", "Maps."]}) + "\n")
        result = self.succeeds("train", "summarise", "--data", data, "-o", model, "--steps", "60")
        self.assertIn(b"1 of 201 lines is skipped: line 1: the line is not JSON\n", result.stderr)
        self.assertEqual(json.loads(self.files("model")["config.json"])["model_type"], "polyhead-sentence-chooser")
        score = json.loads(self.succeeds("try", "summarise", "--score", data, "--model", model, "--json").stdout)
        self.assertEqual((score["abstracts"], score["rouge_1"]), (200, score["best_sentence"]))
        self.assertEqual((score["first_sentence"], score["cue_phrase"]), (0, score["best_sentence"]))
        text = "Many clocks move, e.g. mine. We propose new maps. Rivers do not."
        answer = json.loads(self.succeeds("try", "summarise", text, "--model", model, "--json").stdout)
        self.assertEqual((answer["chosen"], answer["sentence"], len(answer["sentences"])), (1, "We propose new maps.", 3))
        self.assertAlmostEqual(sum(answer["scores"]), 1)
        for head in answer["attentions"][0]:
            for row in head:
                self.assertAlmostEqual(sum(row), 1, places=5)
        (self.folder / "text").write_text(text.replace("maps. ", "maps.\n"))
        told = self.succeeds("try", "summarise", self.folder / "text", "--model", model).stdout.decode()
        page = self.page("summarise", text, "--model", model)
        self.assertEqual(page["texts"][0]["queries"]["pieces"], answer["sentences"])
        self.assertEqual(page["start"], f"#layer=0&head=mean&row={answer['chosen']}")
        self.assertEqual(page["texts"][0]["text"], " ".join(f"{at} ({score:.2f}): {sentence}" for at, (score, sentence) in enumerate(zip(answer["scores"], answer["sentences"]))))
        self.assertRegex(told, r"\AWe propose new maps\.\n(?s:.)*\n> 1  [01]\.\d\d  We propose new maps\.\n")
        read = [sum(map(float, line.split()[-3:])) for line in told.splitlines() if line.startswith("layer ")]
        self.assertEqual(len(read), len(answer["attentions"]) * len(answer["attentions"][0]))
        for total in read:
            self.assertAlmostEqual(total, 1, delta=0.02)
        self.fails(2, "try", "summarise", " ", "--model", model, mentions=["the text is empty"])
        self.fails(1, "try", "summarise", "--score", self.folder / "text", "--model", model, mentions=["the line is not JSON"])

    def test_the_same_seed_gives_the_same_files_with_any_number_of_threads(self):
        self.train("one", "--steps", "12", "--threads", "1")
        self.train("two", "--steps", "12", "--threads", "2")
        self.train("other", "--steps", "12", "--seed", "2")
        self.assertEqual(self.files("one"), self.files("two"))
        self.assertNotEqual(self.files("one"), self.files("other"))

    def test_an_interrupted_run_is_resumed_with_the_same_bits(self):
        self.train("whole", "--steps", "300")
        command = ["train", "digits", "--data", str(self.data), "-o", str(self.folder / "parts"), "--steps", "300"]
        process = subprocess.Popen([BINARY, *command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        process.stdout.readline()  # wait for the first validation
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=600)[1].decode()
        self.assertEqual(process.returncode, 1, error)
        self.assertRegex(error, r"stopped after step \d+ of 300; the same command with --resume goes on from there")
        self.assertIn("checkpoint.safetensors", self.files("parts"))
        self.fails(1, *command, mentions=["belongs to a run that was stopped"])
        self.fails(1, *command, "--seed", "2", "--resume", mentions=["is of another run"])
        self.succeeds(*command, "--resume")
        self.assertEqual(self.files("parts"), self.files("whole"))

    def test_a_quantised_model_answers_nearly_the_same(self):
        self.train("model", "--steps", "60")
        model, small = self.folder / "model", self.folder / "small"
        (model / "merges.txt").write_text("of a tokenizer")
        (model / "checkpoint.safetensors").write_bytes(b"")
        self.assertRegex(self.succeeds("quantise", model, "-o", small).stdout.decode(), r"/small: [\d.]+ KB of parameters, before [\d.]+ KB\n")
        self.assertEqual(sorted(self.files("small")), ["config.json", "merges.txt", "model.safetensors"])
        self.assertLess(3 * len(self.files("small")["model.safetensors"]), len(self.files("model")["model.safetensors"]))
        answers = [json.loads(self.succeeds("try", "digits", self.data, "--model", folder, "--json").stdout)["probabilities"] for folder in (model, small)]
        self.assertNotEqual(*answers)
        for before, after in zip(*answers):
            self.assertAlmostEqual(before, after, delta=0.03)
        found = [json.loads(self.succeeds("inspect", folder, "--json").stdout)["config"] for folder in (model, small)]
        self.assertEqual(*found)
        self.assertEqual({name: found[0][name] for name in ("model", "height", "heads", "classes")}, {"model": "polyhead-image-classifier", "height": 4, "heads": 4, "classes": 4})
        values = sum(math.prod(tensor["shape"]) for tensor in json.loads(self.succeeds("inspect", model, "--json").stdout)["tensors"])
        self.assertEqual(found[0]["parameters"], values)
        self.succeeds("quantise", model, "-o", model / "small")
        self.assertEqual(sorted(path.name for path in (model / "small").iterdir()), ["config.json", "merges.txt", "model.safetensors"])
        self.fails(2, "quantise", model, "-o", model, mentions=["exists already"])
        self.fails(1, "quantise", small, "-o", self.folder / "smaller", mentions=["is quantised already"])
        self.fails(1, "quantise", self.folder, "-o", self.folder / "smaller", mentions=["is neither a folder that `polyhead train` made nor an encoder of BERT's kind"])

    def test_without_a_model_the_one_of_the_program_answers(self):
        def ask(task, text):
            result = self.succeeds("try", task, text, "--json")
            self.assertRegex(result.stderr.decode(), r"the model is '\w+', which is part of polyhead \(MODELS\.md\)")
            return json.loads(result.stdout)

        self.assertEqual(json.loads(self.succeeds("try", "sentiment", "-", "--json", stdin=b"Lovely.\n").stdout), ask("sentiment", "Lovely."))
        self.fails(2, "try", "translate", "-", stdin=b"One.\nTwo.\n", mentions=["standard input has 2 lines"])
        self.fails(2, "try", "sentiment", "  ", mentions=["the text is empty"])
        unknown = self.succeeds("try", "sentiment", "xqzt")
        self.assertIn(b"the model has scores for no word of this text", unknown.stderr)
        self.assertRegex(unknown.stdout.decode(), r"^rating -?\d\.\d\d\n")
        mixed = ask("sentiment", "I am very happy with how it looks, but the manual is too complicated")
        read = {head["name"]: sum(word["weight"] for word in head["words"] if word["word"] in ("very", "happy", "too", "complicated")) for head in mixed["heads"]}
        self.assertGreater(read["pooling head 0 (trained on positive)"], 0.6)
        self.assertGreater(read["pooling head 1 (trained on negative)"], 0.6)
        for text, side in (("What a wonderful lens, I love it.", 1), ("The menu is a terrible mess and the sound is awful.", -1)):
            self.assertGreater(side * ask("sentiment", text)["rating"], 1, text)
        answer = ask("translate", "The small red car is parked outside.")
        self.assertEqual((answer["translation"], answer["complete"]), ("La petite voiture rouge est garée dehors.", True))
        self.assertEqual([word["read"] for word in answer["words"] if word["word"] == "voiture"], ["car"])
        for text, told in (("The dog sees an elephant.", False), ("Strategy eats culture.", True)):
            self.assertEqual(b"not a sentence of the teaching grammar" in self.succeeds("try", "translate", text).stderr, told, text)
        invented = self.succeeds("try", "translate", "The big dog eats the food.")
        self.assertIn(b"the teaching grammar, which does not have food; [food] replaces what the model invents for this word", invented.stderr)
        self.assertTrue(invented.stdout.decode().startswith("Le grand chien mange les [food].\n"), invented.stdout)
        self.assertIn(b"food (unknown: invented)", invented.stdout)
        marked = ask("translate", "The big dog eats the food")
        self.assertEqual((marked["unknown"], marked["translation"]), (["food"], "Le grand chien mange les [food]"))
        self.assertEqual(marked["translation"].replace("[food]", marked["words"][-1]["word"]), marked["raw_translation"])
        self.assertEqual([word["invented"] for word in marked["words"]], [word["read"] == "food" for word in marked["words"]])
        page = self.page("translate", "The big dog eats the food")
        self.assertEqual(page["title"], marked["translation"])
        self.assertIn("which does not have food; [food] replaces what the model invents for this word", page["model"])
        for text in ("The small red car is parked outside.", "Does she often read the old book?", "The dog sees an elephant."):
            known = ask("translate", text)
            self.assertEqual((known["unknown"], known["translation"]), ([], known["raw_translation"]), text)
            self.assertFalse(any(word["invented"] for word in known["words"]), text)

    def test_the_digits_of_the_program_are_read(self):
        note = "the image is one of those that are part of polyhead"
        score = json.loads(self.succeeds("try", "digits", "--score", "examples", "--json").stdout)
        self.assertEqual(score["images"], 186)
        self.assertGreaterEqual(score["accuracy"], 0.97)
        told = {}
        for number in ("0", "3", "185"):
            result = self.succeeds("try", "digits", "--number", number, "--json")
            self.assertIn(note, result.stderr.decode())
            self.assertIn("the model is 'digits', which is part of polyhead", result.stderr.decode())
            told[number] = json.loads(result.stdout)
            self.assertEqual(told[number]["class"], told[number]["label"])
            self.assertEqual(len(told[number]["attentions"]), 4)
        self.assertEqual(json.loads(self.succeeds("try", "digits", "--json").stdout), told["0"])
        text = self.succeeds("try", "digits", "--number", "3").stdout.decode()
        self.assertRegex(text, rf"^class {told['3']['class']} \(probability 0\.\d+\); the data set says {told['3']['label']}\n\n( *[░▒▓█ ]*\n){{8}}\nlayer 3, mean of its 4 heads; what the class token reads in each patch, in\npercent\n")
        page = self.page("digits", "--number", "3")
        self.assertEqual(page["title"], text.splitlines()[0])
        self.fails(2, "try", "digits", "--number", "186", mentions=["there is no image 186; polyhead has the images 0 to 185"])
        self.fails(2, "try", "digits", "--score", "examples", "--number", "3", mentions=["--number", "--score"])
        self.fails(2, "try", "digits", "--model", self.folder, mentions=["there is no input; give a PNG or JPEG image of a digit, or a file of images, or --score FILE"])

    def test_an_image_of_a_digit_is_cut_out_scaled_and_read(self):
        # A one and a seven, drawn as thick lines on a large sheet, in dark ink on paper and in chalk.
        strokes = {1: lambda y, x: abs(x - 150) < 12 and 40 < y < 180, 7: lambda y, x: 100 < x < 200 and (40 < y < 62 or (abs((180 - y) * 0.5 + 120 - x) < 12 and 40 < y < 180))}
        write_png(self.folder / "digit.png", [[0, 255]])
        if b"POLYHEAD_IMAGES=OFF" in run("try", "digits", self.folder / "digit.png").stderr:
            self.skipTest("the program is built without image files")
        for digit, is_ink in strokes.items():
            answers = []
            for ground, ink in ((240, 30), (20, 250)):
                picture = self.folder / "digit.png"
                write_png(picture, [[ink if is_ink(y, x) else ground for x in range(300)] for y in range(220)])
                result = self.succeeds("try", "digits", picture, "--json")
                answers.append(json.loads(result.stdout))
                self.assertNotIn("label", answers[-1])
                self.assertEqual(answers[-1]["class"], digit)
                self.assertNotIn("those that are part of polyhead", result.stderr.decode())
            for one, other in zip(*(answer["probabilities"] for answer in answers)):
                self.assertAlmostEqual(one, other, places=3)
        self.assertRegex(self.succeeds("try", "digits", picture).stdout.decode(), r"^class 7 \(probability 0\.\d+\)\n")
        self.assertEqual(self.page("digits", picture)["texts"][0]["image"]["height"], 8)
        self.fails(2, "try", "digits", picture, "--number", "0", mentions=["--number chooses one of several images; ", "is one image"])
        (self.folder / "digit.gif").write_bytes(b"GIF89a\1\0\1\0")
        self.fails(1, "try", "digits", self.folder / "digit.gif", mentions=["digit.gif", "; an image of a digit is a PNG or JPEG file"])
        write_png(picture, [[200] * 9] * 9)
        self.fails_after_note(1, "try", "digits", picture, mentions="shows no digit: its pixels differ from its border by at most 0 %")

    def fails_after_note(self, status, *arguments, mentions):
        result = run(*arguments)
        self.assertEqual((result.returncode, result.stdout), (status, b""))
        self.assertIn(mentions, result.stderr.decode())

    def test_the_page_of_a_rating_names_what_each_part_adds(self):
        text = "I am satisfied with how it looks, but the manual is too complicated."
        told = json.loads(self.succeeds("try", "sentiment", text, "--json").stdout)
        page = self.page("sentiment", text)
        parts = [f"{head['name']} {head['part']:.2f}" for head in told["heads"]] + [f"words and pairs {told['words_and_pairs']:.2f}", f"the constant {told['constant']:.2f}"]
        self.assertTrue(page["model"].endswith("; to the rating add " + ", ".join(parts)), page["model"])
        self.assertEqual(page["start"], "#pieces=merged&layer=0&head=0&view=read&row=0")

    def test_the_summary_model_of_the_program_answers(self):
        text = ("Batteries of small sensors must be replaced by hand. Harvesting energy from heat is cheap, but the power it yields changes by the minute. Here we introduce a "
                "scheduler that learns when a sensor should sleep from the temperature alone. It outperforms fixed plans on all benchmarks and doubles the time between visits.")
        result = self.succeeds("try", "summarise", text, "--json")
        self.assertIn("the model is 'summary', which is part of polyhead (MODELS.md)", result.stderr.decode())
        answer = json.loads(result.stdout)
        self.assertEqual((answer["chosen"], answer["sections"]), (2, ["background", "method", "result"]))
        told = self.succeeds("try", "summarise", text).stdout.decode()
        for head, (section, read) in enumerate((("background", 0), ("method", 2), ("result", 3))):
            row = re.search(rf"layer 0, head {head} \(trained on {section}\) +([\d. ]+)", told)[1].split()
            self.assertEqual(max(range(4), key=lambda s: float(row[s])), read, told)
        self.assertRegex(told, r"layer 0, head 3  +0\.")
        page = self.page("summarise", text)
        self.assertIn("; trained so that head 0 reads background, head 1 method, head 2 result", page["model"])
        self.fails(2, "try", "summarise", mentions=["there is no input; give a text or a file of one"])
        self.fails(2, "try", "summarise", "abstract.txt", mentions=["'abstract.txt' is no file; as a text it has one word, which cannot be summarised"])

    def test_long_texts_are_refused_at_once_and_replaced_bytes_are_noted(self):
        self.fails(2, "try", "sentiment", "-", stdin=b"good screen " * 1_700_000, mentions=["the text has 20.4 MB; a text of at most 64.0 KB is read"])
        self.fails(2, "try", "summarise", "-", stdin=b"We propose it. " * 1_400_000, mentions=["the text has 21.0 MB; a text of at most 500.0 KB is read"])
        self.fails(2, "try", "translate", "good screen " * 6_000, mentions=["the text has 72.0 KB"])
        for task in ("sentiment", "translate"):
            self.assertIn(b"note: 2 bytes of the text are not UTF-8; each is read as U+FFFD", self.succeeds("try", task, "-", stdin=b"Nice \xff\xfe screen").stderr)

    def test_the_words_that_a_head_reads_are_wrapped(self):
        text = "I am satisfied with the screen, but the manual is far too complicated and I had to ask my neighbour for help."
        for width in (30, 60, 80):
            lines = self.succeeds("try", "sentiment", text, env={"COLUMNS": str(width)}).stdout.decode().splitlines()
            self.assertLessEqual(max(map(len, lines)), max(width, 45), lines)
            self.assertLess(len(lines), 40 if width > 30 else 60, "a line of a list must have more than one word if the terminal is wide enough")
            self.assertFalse([line for line in lines if line.split()[0][0].isdigit()], "a word and its weight must be on the same line")

    def test_view_opens_trained_models(self):
        text = "The menu is a terrible mess."
        self.assertEqual(self.succeeds("view", "--text", text, "--json").stdout, self.succeeds("try", "sentiment", text, "--json").stdout)
        self.train("model", "--steps", "1")
        page = self.folder / "page.html"
        self.succeeds("view", self.folder / "model", "--text", self.data, "-o", page)
        self.assertIn("image classifier", page.read_text())
        self.fails(2, "view", self.folder / "model", "--text", self.data, "--head", "1", mentions=["--head is not for a model that `polyhead train` made"])
        self.fails(2, "view", "--text", text, "--truncate", mentions=["--truncate needs MODEL_DIR"])
        self.fails(2, "view", mentions=["there is no text"])
        self.fails(2, "try", "digits", self.data, "--beams", "2", "--model", self.folder / "model", mentions=["--beams is an option of translate, not of digits"])

    def test_wrong_calls_say_what_is_allowed(self):
        model = self.folder / "model"
        self.fails(2, "train", "digit", "-o", model, mentions=["'digit' is not a task; did you mean 'digits'?"])
        self.fails(2, "train", "digits", mentions=["--output"])
        self.fails(1, "train", "digits", "-o", model, mentions=["digits needs --data FILE"])
        self.fails(1, "train", "digits", "--data", self.folder / "none.npz", "-o", model, mentions=["none.npz"])
        self.fails(1, "train", "digits", "--data", self.data, "-o", model, "--resume", mentions=["there is no run to resume"])
        self.fails(2, "try", "digits", "--model", model, mentions=["there is no input"])
        self.fails(1, "try", "digits", self.data, "--model", model, mentions=["config.json"])
        self.assertFalse(model.exists())


def write_opinions(path, good="2", bad="-1.5", count=160):
    draw = random.Random(1)
    frames = ("The {} is {}", "this {} looks {}", "I find its {} {}")
    with open(path, "w") as file:
        for _ in range(count):
            positive = draw.random() < 0.5
            word = draw.choice(("bright", "lovely", "clever") if positive else ("dull", "broken", "clumsy"))
            file.write(f"{good if positive else bad}\t{draw.choice(frames).format(draw.choice(('screen', 'menu', 'sound', 'lens')), word)}\n")


class Classify(ProgramTest):
    def setUp(self):
        super().setUp()
        self.data, self.model = self.folder / "opinions.tsv", self.folder / "model"

    def train(self, *options):
        return self.succeeds("train", "classify", "--data", self.data, "-o", self.model, *options).stdout.decode()

    def try_json(self, *options):
        return json.loads(self.succeeds("try", "sentiment", *options, "--model", self.model, "--json").stdout)

    def test_ratings_are_learned_scored_and_explained(self):
        write_opinions(self.data)
        with open(self.data, "a") as file:
            file.write("five\tThe lens is odd\n")
        result = self.succeeds("train", "classify", "--data", self.data, "-o", self.model, "--steps", "80")
        self.assertIn("for comparison, a bag of words and word pairs: accuracy ", result.stdout.decode())
        self.assertIn("line 161", result.stderr.decode())
        self.assertEqual(sorted(path.name for path in self.model.iterdir()), ["config.json", "merges.txt", "model.safetensors", "terms.txt"])
        self.assertEqual(json.loads((self.model / "config.json").read_text())["model_type"], "polyhead-text-classifier")

        score = self.try_json("--score", self.data, "--baseline", self.data, "--ablate")
        self.assertEqual((score["texts"], score["counted"]), (160, 160))
        self.assertGreater(score["accuracy"], 0.9)
        self.assertGreater(score["bag_of_words"]["correlation"], 0.9)
        self.assertEqual(score["halves"]["texts"], 200)
        self.assertEqual([row["head"] for row in score["without"]][-4:], ["pooling head 0 (trained on positive)", "pooling head 1 (trained on negative)", "pooling head 2", "pooling head 3"])

        good, bad = (self.try_json(f"its {word} sound") for word in ("lovely", "broken"))
        self.assertGreater(good["rating"], 0)
        self.assertLess(bad["rating"], 0)
        self.assertIn("lovely", [read["word"] for read in good["heads"][0]["words"]])
        text = self.succeeds("try", "sentiment", "its lovely sound", "--model", self.model).stdout.decode()
        self.assertRegex(text, r"^rating \d\.\d\d \(positive\)\n  pooling head 0 \(trained on positive\) +-?\d\.\d\d\n    reads ")
        shown = [float(line.split(")")[-1].split("reads")[0].split()[-1]) for line in text.splitlines() if line.startswith("  pooling head")]
        for part, head in zip(shown, good["heads"]):
            self.assertAlmostEqual(part, head["part"], delta=0.0051)

    def test_snapshots_become_a_page_of_maps_over_the_steps(self):
        write_opinions(self.data)
        texts = ["its lovely sound", "this menu looks broken"]
        result = self.succeeds("train", "classify", "--data", self.data, "-o", self.model, "--steps", "60", "--snapshots", "4", "--text", texts[0], "--text", texts[1])
        self.assertIn("learning.html' (4 snapshots of 2 texts", result.stderr.decode())
        self.assertEqual(sorted(path.name for path in self.model.iterdir()), ["config.json", "learning.html", "merges.txt", "model.safetensors", "terms.txt"])
        shown = page_data(self.model / "learning.html")
        sets = [(one["text"], one["step"], one["name"]) for one in shown["texts"]]
        self.assertEqual(sets, [(text, step, name) for step in (0, 7, 27, 60) for text in texts for name in ("Pooling heads", "Encoder")])
        maps = {(one["text"], one["step"]): one["weights"] for one in shown["texts"] if one["name"] == "Pooling heads"}
        self.assertEqual(len({json.dumps(maps[texts[0], step]) for step in (0, 7, 27, 60)}), 4)  # training changes the maps
        answers = {one["step"]: one["answer"] for one in shown["texts"] if one["text"] == texts[0]}
        self.assertTrue(all(re.fullmatch(r"rating -?\d\.\d\d", answer) for answer in answers.values()), answers)
        self.assertGreater(float(answers[60].split()[1]), 0)

    def run_fails(self, *arguments):
        """Runs the program, which must print what it trains and then fail before the first step. Returns what it wrote to stderr."""
        result = subprocess.run([BINARY, *arguments], env=environment(), capture_output=True)
        self.assertEqual(result.returncode, 1, result.stderr.decode())
        self.assertNotIn(b"step 1", result.stdout + result.stderr)
        return result.stderr.decode()

    def resumed(self, command, *options, mentions):
        told = self.run_fails(*command, "--resume", *options)
        for word in mentions:
            self.assertIn(word, told)

    def test_snapshots_do_not_change_the_training_and_survive_a_stop(self):
        write_opinions(self.data)
        self.train("--steps", "30")
        before = (self.model / "model.safetensors").read_bytes()
        other = self.folder / "other"
        other.mkdir()
        (other / "learning.html").write_text("of an earlier run")
        command = ["train", "classify", "--data", self.data, "-o", other, "--steps", "30", "--snapshots", "3", "--text", "its lovely sound"]
        with subprocess.Popen([BINARY, *command, "--json"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            while running.poll() is None and not (other / "learning.snapshots" / "8").exists():
                pass
            running.send_signal(signal.SIGINT)
            running.communicate()
        self.assertNotEqual(running.returncode, 0, "the run ended before the signal arrived")
        self.assertFalse((other / "learning.html").exists(), "a page of an earlier run would pass as one of this run")
        shutil.copytree(other, self.folder / "third")
        without = self.succeeds("train", "classify", "--data", self.data, "-o", self.folder / "third", "--steps", "30", "--resume")
        self.assertIn("/third/learning.snapshots' is from before; this run, without --snapshots, leaves it as it is", without.stderr.decode())
        asked = "its lovely sound"
        told = self.succeeds("try", "sentiment", asked, "--model", other / "learning.snapshots" / "8", "-o", self.folder / "eight.html", "--json")
        eight = {one["name"]: one["weights"] for one in page_data(self.folder / "eight.html")["texts"]}
        ours = other / "learning.snapshots"
        self.assertEqual(json.loads((ours / "run.json").read_text())["steps"], [0, 8, 30])
        self.resumed([word if word != "3" else "4" for word in command], mentions=["begun with another --snapshots", "[0,8,30]"])
        self.resumed(command, "--text", "lovely " * 2000, mentions=["text has"])
        moved = (ours / "run.json").rename(self.folder / "run.json")
        self.resumed(command, mentions=["begun without --snapshots"])
        (ours / "run.json").write_text(moved.read_text().replace("seed 1", "seed 2"))
        self.resumed(command, mentions=["is of another run", "seed 2"])
        moved.rename(ours / "run.json")
        self.succeeds(*command, "--resume")
        self.assertFalse(ours.exists())
        found = [one for one in page_data(other / "learning.html")["texts"] if one["step"] == 8]
        self.assertEqual({one["name"]: one["weights"] for one in found}, eight)  # the page has the maps of the model at that step
        self.assertEqual(found[0]["answer"], f"rating {json.loads(told.stdout)['rating']:.2f}")
        self.assertEqual((other / "model.safetensors").read_bytes(), before)
        self.assertEqual(sorted({one["step"] for one in page_data(other / "learning.html")["texts"]}), [0, 8, 30])

    def test_a_missing_snapshot_is_noted(self):
        write_opinions(self.data)
        ours = self.model / "learning.snapshots"
        command = ["train", "classify", "--data", self.data, "-o", self.model, "--steps", "200", "--snapshots", "3", "--json"]
        with subprocess.Popen([BINARY, *command], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            while running.poll() is None and not (ours / "run.json").exists():
                pass
            ours.rename(self.folder / "elsewhere")  # A file replaces the folder, so later snapshots cannot be saved. The training must go on without them.
            ours.write_text("in the way")
            told = running.communicate()[1].decode()
        self.assertEqual(running.returncode, 0, told)
        self.assertIn("there is no snapshot of step 200: ", told)
        self.assertIn("snapshots; missing: ", told)
        self.assertTrue((self.model / "model.safetensors").exists())
        self.assertEqual(ours.read_text(), "in the way")

    def test_folders_of_the_user_are_left_alone(self):
        write_opinions(self.data)
        theirs = self.model / "snapshots" / "12"
        theirs.mkdir(parents=True)
        (theirs / "photo").write_text("mine")
        command = ["train", "classify", "--data", self.data, "-o", self.model, "--steps", "3", "--snapshots", "2"]
        old = self.model / "learning.snapshots" / "7"
        old.mkdir(parents=True)
        for name, is_ours in (("photo", False), ("config.json", True)):
            (old / name).write_text("{}")
            if not is_ours:
                self.assertIn("learning.snapshots' has '7', which no run with --snapshots writes", self.run_fails(*command))
                self.assertTrue((old / name).exists())
        self.succeeds(*command)
        self.assertEqual((theirs / "photo").read_text(), "mine")
        self.assertEqual(sorted(path.name for path in self.model.iterdir()), ["config.json", "learning.html", "merges.txt", "model.safetensors", "snapshots", "terms.txt"])
        self.assertEqual(sorted({one["step"] for one in page_data(self.model / "learning.html")["texts"]}), [0, 3])

    def test_a_page_without_room_is_refused_before_the_first_step(self):
        write_opinions(self.data)
        long = "its lovely sound " * 30
        told = self.run_fails("train", "classify", "--data", self.data, "-o", self.model, "--steps", "4000", "--snapshots", "4000", "--text", long, "--text", long)
        self.assertIn("a page holds at most 67108864 in all: give fewer snapshots, or fewer or shorter texts", told)
        self.assertFalse((self.model / "learning.snapshots").exists())

    def test_wrong_snapshots_are_refused(self):
        write_opinions(self.data)
        self.fails(2, "train", "classify", "--data", self.data, "-o", self.model, "--snapshots", "1", mentions=["--snapshots 1", "at least 2"])
        self.fails(2, "train", "classify", "--data", self.data, "-o", self.model, "--text", "x", mentions=["--text", "--snapshots N"])
        self.fails(2, "train", "digits", "--data", self.data, "-o", self.model, "--number", "3", mentions=["--number", "--snapshots N"])
        self.fails(2, "train", "digits", "--data", self.data, "-o", self.model, "--snapshots", "3", "--text", "x", mentions=["--text", "digits reads images; --number N"])
        self.fails(2, "train", "heads", "-o", self.model, "--snapshots", "3", "--number", "3", mentions=["--number", "heads reads texts"])
        self.fails(2, "train", "classify", "--data", self.data, "-o", self.model, "--short", mentions=["--short", "heads", "classify has --steps"])
        self.assertFalse(self.model.exists())

    def test_labels_are_learned(self):
        write_opinions(self.data, "praise", "blame")
        self.train("--steps", "80")
        answer = self.try_json("this menu looks clever")
        self.assertEqual(answer["label"], "praise")
        self.assertAlmostEqual(sum(answer["probabilities"].values()), 1)
        self.assertNotIn("part", answer["heads"][0])
        self.assertRegex(self.succeeds("try", "sentiment", "--score", self.data, "--model", self.model).stdout.decode(), r"^accuracy [01]\.\d{4} \(160 texts\)\n$")
        self.fails(1, "try", "sentiment", "--score", self.data, "--baseline", self.data, "--model", self.model, mentions=["a bag of words answers with ratings"])

    def test_wrong_calls_say_what_is_allowed(self):
        self.data.write_text("".join(f"{i % 2}\ttext number {i}\n" for i in range(40)))
        self.fails(1, "train", "classify", "--data", self.data, "-o", self.model, mentions=["ratings are from 0 to 1; some must be below 0 and some above 0"])
        self.data.write_text("")
        self.fails(1, "train", "classify", "--data", self.data, "-o", self.model, mentions=["opinions.tsv"])
        self.fails(2, "try", "sentiment", "fine", "--ablate", "--model", self.model, mentions=["--ablate and --baseline need --score FILE"])
        self.fails(1, "try", "sentiment", "fine", "--model", self.model, mentions=["config.json"])
        self.assertFalse(self.model.exists())


class Translate(ProgramTest):
    def setUp(self):
        super().setUp()
        self.data, self.model = self.folder / "pairs.tsv", self.folder / "model"
        numbers, things = {"two": "deux", "three": "trois", "six": "six"}, {"hats": "chapeaux", "trees": "arbres", "keys": "clefs", "boats": "bateaux"}
        pairs = [(f"{a} {b} and {c} {d}", f"{numbers[a]} {things[b]} et {numbers[c]} {things[d]}") for a in numbers for b in things for c in numbers for d in things]
        with open(self.data, "w") as file:
            for english, french in pairs:
                file.write(f"{english}\t{french}\n")
            file.write("no translation\n")

    def test_snapshots_of_a_translator_read_the_same_words(self):
        self.succeeds("train", "translate", "--data", self.data, "-o", self.model, "--steps", "6", "--snapshots", "3", "--text", "two hats and six keys")
        shown = page_data(self.model / "learning.html")["texts"]
        self.assertEqual([(one["step"], one["name"]) for one in shown], [(step, name) for step in (0, 2, 6) for name in ("Cross-attention", "Encoder", "Decoder")])
        for name in ("Cross-attention", "Encoder", "Decoder"):
            sets = [one for one in shown if one["name"] == name]
            self.assertEqual(len({json.dumps([one["queries"], one.get("keys")]) for one in sets}), 1, name)
            self.assertEqual(len({json.dumps(one["weights"]) for one in sets}), 3, name)
        self.data.write_text(self.data.read_text().replace("no translation\n", ""))
        (self.folder / "other").mkdir()
        self.fails(1, "train", "translate", "--data", self.data, "-o", self.folder / "other", "--json", "--steps", "6", "--snapshots", "3", "--text", "two hats " * 60, mentions=["the model takes at most 100"])

    def test_sentence_pairs_are_learned_scored_and_aligned(self):
        result = self.succeeds("train", "translate", "--data", self.data, "-o", self.model, "--steps", "6")
        self.assertIn("line 145", result.stderr.decode())
        self.assertIn("step 6: loss ", result.stdout.decode())
        self.assertEqual(sorted(path.name for path in self.model.iterdir()), ["config.json", "merges.txt", "model.safetensors"])
        (self.folder / "few.tsv").write_text("".join(self.data.read_text().splitlines(keepends=True)[:9]))
        score = json.loads(self.succeeds("try", "translate", "--score", self.folder / "few.tsv", "--model", self.model, "--beams", "2", "--json").stdout)
        self.assertEqual((score["sentences"], score["beams"]), (9, 2))
        self.assertTrue(0 <= score["bleu"] <= 100)
        (self.folder / "links.tsv").write_text("two hats\tdeux chapeaux\t0-0 1-1\n")
        links = json.loads(self.succeeds("try", "translate", "--score", self.folder / "links.tsv", "--baseline", self.data, "--model", self.model, "--json").stdout)
        self.assertEqual(links["alignment_error_rate"]["ibm_model_2"], 0)
        self.assertEqual(links["alignment_error_rate"]["diagonal"], 0)
        answer = json.loads(self.succeeds("try", "translate", "two hats", "--model", self.model, "--json").stdout)
        for row in answer["attentions"][-1][0]:
            self.assertAlmostEqual(sum(row), 1, places=5)
        self.fails(2, "try", "translate", "--score", self.data, "--baseline", self.data, "--model", self.model, mentions=["--baseline", "have no links"])
        self.fails(2, "try", "translate", "--score", self.folder / "links.tsv", "--beams", "5", "--model", self.model, mentions=["--beams is for translations"])
        self.fails(2, "try", "translate", "--score", "grammar", "--baseline", self.data, "--model", self.model, mentions=["--baseline is for a file of aligned sentences"])
        self.fails(2, "try", "translate", "two hats", "--baseline", self.data, "--model", self.model, mentions=["--baseline needs --score"])
        self.fails(1, "try", "translate", "two hats " * 60, "--model", self.model, mentions=["the model takes at most 100"])


class Heads(ProgramTest):
    def test_a_study_that_was_stopped_goes_on_and_tells_each_run(self):
        command = ["train", "heads", "-o", str(self.folder / "heads"), "--steps", "1", "--threads", "1", "--json"]
        process = subprocess.Popen([BINARY, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), start_new_session=True)
        run = json.loads(process.stdout.readline())
        os.killpg(process.pid, signal.SIGINT)  # as with Ctrl-C, both processes receive the signal
        error = process.communicate(timeout=600)[1].decode()
        self.assertEqual(process.returncode, 1, error)
        self.assertIn("the same command goes on from there", error)
        self.assertEqual((run["task"], run["heads"], run["seed"]), ("grammar", 1, 1))
        self.assertGreater(run["megabytes"], 1)
        self.fails(1, *command[:-4], "2", "--threads", "1", mentions=["grammar-1-1", "is of another run"])

    def test_the_short_study_has_nine_models_and_their_snapshots(self):
        folder = self.folder / "heads"
        command = ["train", "heads", "--short", "-o", folder, "--steps", "2", "--snapshots", "2"]
        page, result = (folder / "grammar-1-1" / name for name in ("learning.html", "run.json"))
        page.mkdir(parents=True)  # a page that cannot be written must not cost the training
        failed = run(*command)
        self.assertEqual(failed.returncode, 1, failed.stderr)
        for mention in ("/grammar-1-1' is complete, but there is no page of its snapshots", "is complete, but it has no page; the same command tries only to write the page"):
            self.assertIn(mention, failed.stderr.decode())
        before = result.read_bytes()
        page.rmdir()
        told = self.succeeds(*command).stdout.decode()
        self.assertEqual(result.read_bytes(), before, "the run was repeated")
        self.assertIn("grammar, 3 seeds\n", told)
        self.assertEqual(re.findall(r"^ +(\d+) +[\d.]+ \+-\.\d{4} ", told, re.M), ["1", "4", "16"])
        self.assertEqual(sorted(path.parent.name for path in folder.glob("*/run.json")), sorted(f"grammar-{heads}-{seed}" for heads in (1, 4, 16) for seed in (1, 2, 3)))
        pages = {int(path.parent.name.split("-")[1]): page_data(path) for path in folder.glob("*/learning.html")}
        self.assertEqual(sorted(pages), [1, 4, 16])
        for heads, data in pages.items():
            self.assertEqual({(one["step"], one["heads"]) for one in data["texts"]}, {(0, heads), (2, heads)})
            self.assertNotIn("trained so that", data["model"])  # no head of these models is guided
        self.assertFalse(list(folder.glob("*/*snapshots")) + list(folder.glob("*/model.safetensors")))
        example = "The small red car is parked outside."
        for count, text in (("2", "The big dog is here."), ("3", example)):
            self.fails(1, *command[:-1], count, "--text", text, mentions=["grammar-1-1", f"ended with 2 snapshots of '{example}'; this one has {count} snapshots of '{text}'"])
        (folder / "grammar-4-1/learning.html").unlink()
        self.assertIn("grammar-4-1' has neither learning.html nor the snapshots", run(*command).stderr.decode())
        result.write_text(json.dumps({key: value for key, value in json.loads(before).items() if key != "snapshots"}))
        self.fails(1, *command, mentions=["grammar-1-1", "ended without --snapshots"])


if __name__ == "__main__":
    unittest.main()
