"""`polyhead view --without` prints how much a text's embedding changes without a head. The change is compared with that of a forward pass in float64 in which the head's
output is zero."""
import json
import math
import unittest

from program import ModelTest, page_data, run_on_terminal, without_escapes
from tiny_model import HEADS, LAYERS
from trace_cell_test import TEXT, Forward


def embedding(off=None):
    x = Forward(off).x
    mean = [sum(values) / len(x) for values in zip(*x)]
    norm = math.sqrt(sum(value * value for value in mean))
    return [value / norm for value in mean]


def changes():
    """Returns {(layer, head): 1 - cosine of the embeddings with and without the head}."""
    whole = embedding()
    return {(layer, head): 1 - sum(a * b for a, b in zip(whole, embedding((layer, head)))) for layer in range(LAYERS) for head in range(HEADS)}


class Without(ModelTest):
    @classmethod
    def setUpClass(cls):
        cls.expected = changes()
        assert len({round(value, 6) for value in cls.expected.values()}) == LAYERS * HEADS and min(cls.expected.values()) > 1e-6, cls.expected

    def told(self, *arguments, text=TEXT):
        texts = json.loads(self.succeeds("view", self.model, "--text", text, "--json", *arguments).stdout)["texts"]
        return {(one["layer"], one["head"]): one["change"] for one in texts[0].get("without", [])}

    def test_every_head_has_the_change_of_a_float64_pass_without_it(self):
        told = self.told("--without", "all")
        self.assertEqual(list(told), list(self.expected))
        for head, change in told.items():
            self.assertAlmostEqual(change, self.expected[head], delta=1e-8 + 1e-3 * self.expected[head])

    def test_each_head_is_switched_off_alone_and_once_and_the_rest_does_not_change(self):
        self.assertEqual(self.told(), {})
        twice = self.told("--without", "1.0", "--without", "0.1", "--without", "1.0")
        self.assertEqual(list(twice), [(1, 0), (0, 1)])
        everything = self.told("--without", "all")
        self.assertEqual(everything, everything | twice)
        with_heads, plain = (json.loads(self.succeeds("view", self.model, "--text", TEXT, "--json", *more).stdout)["texts"][0] for more in (["--without", "0.0"], []))
        del with_heads["without"]
        self.assertEqual(with_heads, plain)

    def test_the_page_has_the_changes_of_each_text(self):
        page = self.folder / "fox.html"
        self.succeeds("view", self.model, "--text", TEXT, "--text", "the dog", "--without", "1.1", "--without", "0.0", "-o", page)
        data = page_data(page)
        for text, entry in zip((TEXT, "the dog"), data["texts"]):
            self.assertEqual({(layer, head): change for layer, head, change in entry["without"]}, self.told("--without", "1.1", "--without", "0.0", text=text))
        self.succeeds("view", self.model, "--text", TEXT, "-o", page)
        self.assertNotIn('"without":', page.read_text(encoding="utf-8").split('id="data">')[1].split("</script")[0])

    def test_the_terminal_says_it_too(self):
        for columns in (40, 80):
            status, text, said = run_on_terminal("view", self.model, "--text", TEXT, "--without", "1.0", columns=columns)
            self.assertEqual(status, 0)
            self.assertLessEqual(max(map(len, without_escapes(text).splitlines())), columns)
            self.assertIn(f"without head 1.0: the embedding changes by {self.expected[1, 0]:.6f} (1 - cosine)"[:columns - 4], " ".join(without_escapes(text).split()))

    def test_heads_that_do_not_exist_are_refused_by_name(self):
        for head, message in (("2.0", "there is no head 2.0; the model has the layers 0 to 1, each with the heads 0 to 1"), ("0.2", "there is no head 0.2"), ("1", "'1' is not LAYER.HEAD"),
                              ("1.", "'1.' is not"), ("x.1", "'x.1' is not"), ("", "is not LAYER.HEAD"), ("every", "nor all")):
            with self.subTest(head):
                self.fails(2, "view", self.model, "--text", TEXT, "--without", head, mentions=["--without", message])


if __name__ == "__main__":
    unittest.main()
