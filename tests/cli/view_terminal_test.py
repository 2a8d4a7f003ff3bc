"""Tests the map that `polyhead view` draws in a terminal: its forms for different widths, colour only if it is wanted, progress only on a terminal."""
import unittest
import unicodedata

from program import ModelTest, run_on_terminal, without_escapes

FOX = "the quick brown fox jumps over the lazy dog"


def columns(text):
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


class Terminal(ModelTest):
    def map(self, *arguments, **env):
        return self.succeeds("view", self.model, *arguments, env=env).stdout.decode()

    def test_says_which_head_and_shows_rows_and_columns(self):
        text = self.map("--text", FOX, "--layer", "0", "--head", "1")
        self.assertIn(FOX, text)
        self.assertIn("layer 0, head 1", text)
        for word in ("[CLS]", "quick", "brown", "fox", "[SEP]"):
            self.assertGreaterEqual(text.count(word), 2, word)
        self.assertRegex(text, "[░▒▓█]")
        self.assertIn("layer 1, mean of its 2 heads", self.map("--text", FOX, "--layer", "1"))
        self.assertRegex(self.map("--text", FOX), r"layer [01], head [01], which looks most at single other words of all 4 heads;")
        self.assertIn("layer 1, mean of its 2 heads", self.map("--text", "the fox"), "each word has neighbours only")
        both = self.map("--text", FOX, "--text", "lazy dog")
        self.assertEqual(both, self.map("--text", FOX) + "\n" + self.map("--text", "lazy dog"), "the head of a text does not depend on other texts")

    def test_fits_every_width(self):
        for text in (FOX, FOX + " " + FOX + " " + FOX, "東京 " * 12, "extraordinary " * 3):
            for width in (20, 30, 40, 60, 80, 132):
                for line in self.map("--text", text, COLUMNS=str(width)).splitlines():
                    self.assertLessEqual(columns(line), width, line)

    def test_colour_on_a_terminal(self):
        for env, sequence in (({}, "\x1b[48;5;"), ({"COLORTERM": "truecolor"}, "\x1b[48;2;")):
            status, out, err = run_on_terminal("view", self.model, "--text", FOX, env=env)
            self.assertEqual((status, err), (0, ""))
            self.assertIn(sequence, out)
            for line in without_escapes(out).splitlines():
                self.assertLessEqual(columns(line), 80, line)

    def test_no_colour_where_it_is_not_wanted(self):
        self.assertNotIn("\x1b", self.map("--text", FOX, TERM="xterm-256color", COLORTERM="truecolor"))
        for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": None}):
            _, out, _ = run_on_terminal("view", self.model, "--text", FOX, env=env)
            self.assertNotIn("\x1b", out)
            self.assertRegex(out, "[░▒▓█]")
        _, out, _ = run_on_terminal("view", self.model, "--text", FOX, env={"NO_COLOR": ""})
        self.assertIn("\x1b", out, "an empty NO_COLOR has no effect")

    def test_the_width_is_the_terminals_own(self):
        _, out, _ = run_on_terminal("view", self.model, "--text", FOX, columns=40)
        self.assertLessEqual(max(columns(line) for line in without_escapes(out).splitlines()), 40)
        _, wide, _ = run_on_terminal("view", self.model, "--text", FOX, columns=120)
        self.assertGreater(max(columns(line) for line in without_escapes(wide).splitlines()), 80)

    def test_progress_is_seen_on_a_terminal_and_wiped_at_the_end(self):
        texts = self.folder / "texts.txt"
        texts.write_text("the fox\n" * 5)
        status, _, err = run_on_terminal("view", self.model, "--file", texts, "--json")
        self.assertEqual(status, 0)
        self.assertIn("4/5", err)
        self.assertTrue(err.endswith("\r\x1b[K"))
        for piece in err.replace("\r", "\x1b[K").split("\x1b[K"):
            self.assertLess(columns(piece), 80)
        self.assertEqual(self.succeeds("view", self.model, "--file", texts, "--json").stderr, b"")

    def test_a_terminal_that_cannot_clear_lines_sees_no_progress(self):
        texts = self.folder / "texts.txt"
        texts.write_text("the fox\n" * 5)
        for term in ("dumb", None):
            self.assertEqual(run_on_terminal("view", self.model, "--file", texts, "--json", env={"TERM": term})[2], "")

    def test_one_text_needs_no_progress(self):
        self.assertEqual(run_on_terminal("view", self.model, "--text", FOX)[2], "")

    def test_words_cannot_command_the_terminal(self):
        text = self.succeeds("view", self.model, "-", stdin="the \x1b[31m\u202efox\n".encode()).stdout
        self.assertNotIn(b"\x1b", text)
        self.assertNotIn("\u202e".encode(), text)


if __name__ == "__main__":
    unittest.main()
