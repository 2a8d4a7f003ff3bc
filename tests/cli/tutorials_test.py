"""Runs the commands of docs/tutorials.md, except those that need a file or a model which the reader has to provide, and one that takes minutes."""
import re
import shlex
import unittest

from program import DATA, ProgramTest

DOCS = DATA.parents[1] / "docs"


def commands(page):
    return re.findall(r"`polyhead ([^`]+)`", (DOCS / page).read_text())


class Tutorials(ProgramTest):
    def test_commands_run(self):
        runnable = [command for command in commands("tutorials.md") if command != "trace" and not re.search(r"\b(MODEL_DIR|FILE|REPORT)\b|--short", command)]  # train_test.py runs the study of heads with fewer steps
        self.assertGreater(len(runnable), 15)
        for command in runnable:
            with self.subTest(command):
                self.assertGreater(len(self.succeeds(*shlex.split(command), cwd=self.folder).stdout), 100)

    def test_both_languages_have_the_same_commands(self):
        self.assertEqual(commands("tutorials.zh-CN.md"), commands("tutorials.md"))


if __name__ == "__main__":
    unittest.main()
