"""Tests how the program handles arguments, help, stdin, stdout and stderr."""
import os
import re
import signal
import subprocess
import unittest

from program import BINARY, ProgramTest, environment, run, run_on_terminal
import tiny_model

def commands():
    """Returns the commands that the program's help lists."""
    text = run("--help").stdout.decode()
    names = re.findall(r"^  (\w+)  ", text[text.index("\nCommands:"):text.index("\nOptions:")], re.M)
    assert len(names) >= 6, text
    return names


COMMANDS = commands()


class Usage(ProgramTest):
    def test_no_arguments_get_the_short_help_on_stderr_and_status_2(self):
        result = run()
        self.assertEqual((result.returncode, result.stdout), (2, b""))
        for command in COMMANDS:
            self.assertIn(command, result.stderr.decode())

    def test_help_is_a_command_too(self):
        self.assertEqual(self.succeeds("help").stdout, self.succeeds("--help").stdout)
        for command in COMMANDS:
            self.assertEqual(self.succeeds("help", command).stdout, self.succeeds(command, "--help").stdout)
        self.fails(2, "help", "veiw", mentions=["did you mean 'view'?"])

    def test_usage_shows_what_is_required(self):
        self.assertIn("Usage: polyhead attend --tensors FILE --output FILE [OPTIONS]\n", self.succeeds("attend", "--help").stdout.decode())
        self.assertIn("Usage: polyhead view [MODEL_DIR] [TEXTS] [OPTIONS]\n", self.succeeds("view", "--help").stdout.decode())

    def test_help_of_the_program_has_an_example_of_every_command_that_takes_arguments(self):
        examples = self.succeeds("--help").stdout.decode().split("Usage:")[0]
        for command in COMMANDS:
            if command != "devices":
                self.assertIn(f"  polyhead {command} ", examples)

    def test_help_of_the_program_starts_with_examples(self):
        text = self.succeeds("--help").stdout.decode()
        self.assertLess(text.index("Examples:"), text.index("Usage:"))
        self.assertEqual(text, self.succeeds("-h").stdout.decode())

    def test_help_of_each_command_starts_with_examples_and_names_every_example_option(self):
        for command in COMMANDS:
            with self.subTest(command):
                text = self.succeeds(command, "--help").stdout.decode()
                self.assertLess(text.index("Examples:"), text.index("Usage:"))
                examples = text[text.index("Examples:"):text.index("Usage:")]
                options = text[text.index("\nOptions:"):]
                for word in examples.split():
                    if word.startswith("--"):
                        self.assertIn(word, options)

    def test_help_fits_narrow_terminals(self):
        for command in ((), *((c,) for c in COMMANDS)):
            text = self.succeeds(*command, "--help", env={"COLUMNS": "40"}).stdout.decode()
            for line in text[text.index("Usage:"):].splitlines():
                self.assertLessEqual(len(line), 40, line)
                self.assertEqual(line, line.rstrip())

    def test_version(self):
        self.assertRegex(self.succeeds("--version").stdout.decode(), r"\Apolyhead \d+\.\d+\.\d+\n\Z")

    def test_an_unknown_command_names_the_near_one(self):
        self.fails(2, "veiw", mentions=["'veiw'", "did you mean 'view'?"])
        self.fails(2, "inspct", "x", mentions=["did you mean 'inspect'?"])
        self.fails(2, "VIEW", mentions=["did you mean 'view'?"])
        self.assertNotIn("did you mean", self.fails(2, "banana"))

    def test_an_unknown_option_names_the_near_one(self):
        self.fails(2, "--verison", mentions=["did you mean '--version'?"])
        self.fails(2, "view", "model", "--txet", "a", mentions=["'--txet'", "did you mean '--text'?"])
        self.fails(2, "explain", "--q", "1,1,1,1", "--k", "1,1,1,1", "--casual", "top_left", mentions=["did you mean '--causal'?"])
        self.fails(2, "inspect", "x", "--jsno", mentions=["did you mean '--json'?"])

    def test_a_name_of_a_value_that_is_near_is_named(self):
        shape = ("--q", "1,1,1,1", "--k", "1,1,1,1")
        self.fails(2, "explain", *shape, "--backend", "refernce", mentions=["--backend", "did you mean 'reference'?"])
        self.fails(2, "explain", *shape, "--dtype", "f23", mentions=["--dtype", "did you mean 'f32'?"])
        self.fails(2, "view", "m", "--text", "a", "--arrays", "out.safetensor", mentions=["did you mean 'out.safetensors'?"])

    def test_wrong_arguments_are_one_sentence(self):
        self.fails(2, "inspect", mentions=["PATH is required"])
        self.fails(2, "inspect", "a", "b", mentions=["'b'"])
        self.fails(2, "devices", "--", "b", mentions=["unexpected argument 'b'"])
        self.fails(2, "view", "m", "--text", mentions=["--text needs a value"])
        self.fails(2, "view", "m", "--text", "a", "--layer", "two", mentions=["--layer", "'two'"])
        self.fails(2, "view", "m", "--text", "a", "--layer", "-1", mentions=["--layer", "'-1'"])
        self.fails(2, "view", "m", "--text", "a", "--layer", "1", "--layer", "2", mentions=["--layer", "more than once"])
        self.fails(2, "view", "m", "--text", "a", "--head", "1", "--mean", mentions=["--mean", "--head"])
        self.fails(2, "view", "m", mentions=["--text"])
        self.fails(2, "devices", "--json=maybe", mentions=["--json", "maybe"])
        for value in ("-5", "2", "-", "1;2", "t"):
            self.fails(2, "devices", f"--json={value}", mentions=["--json", f"'{value}' is neither true nor false"])

    def test_a_name_that_is_empty_is_not_a_name_that_is_absent(self):
        for arguments in (("inspect", ""), ("view", "", "--text", "a"), ("view", "m", "", "--text", "a"), ("view", "m", "--text", "a", "-o", ""),
                          ("view", "m", "--text", "a", "--arrays", ""), ("view", "m", "--file", ""), ("attend", "--tensors", "", "-o", "x.npz"),
                          ("attend", "--tensors", "x.npz", "-o", ""), ("attend", "--parameters", "", "--tensors", "x.npz", "-o", "y.npz"),
                          ("trace", "--layer", "t5", "--parameters", ""), ("trace", "--layer", ""), ("trace", "--layer", "t5", "--input", "")):
            with self.subTest(arguments):
                self.fails(2, *arguments, mentions=["is empty"])

    def test_names_of_files_cannot_command_the_terminal(self):
        name = "\x1b[31mred\x9b"
        for arguments in (("inspect", name), ("view", name, "--text", "a"), ("attend", "--tensors", name, "-o", "x.npz"), (name,), ("inspect", "--" + name)):
            said = run(*arguments).stderr.decode()
            self.assertNotIn("\x1b", said)
            self.assertNotIn("\x9b", said)
            self.assertIn("red", said)
        model = tiny_model.write(self.folder / "model")
        said = self.succeeds("view", model, "--text", "the fox", "-o", self.folder / (name + ".html")).stderr
        self.assertNotIn(b"\x1b", said)

    def test_a_file_may_be_called_like_a_command(self):
        self.fails(1, "inspect", "view", mentions=["cannot open", "view"])

    def test_standard_input_cannot_be_inspected(self):
        self.fails(2, "inspect", "-", mentions=["standard input"])


class Streams(ProgramTest):
    def test_a_closed_pipe_ends_quietly(self):
        model = tiny_model.write(self.folder / "model")
        for arguments in (("--help",), ("inspect", model), ("inspect", model, "--json"), ("view", model, "--text", "the fox")):
            for ignored in (False, True):  # the program that starts polyhead may have set SIGPIPE to its default action, as a shell does, or to be ignored
                with self.subTest(arguments, ignored=ignored):
                    reader, writer = os.pipe()
                    os.close(reader)
                    handler = signal.SIG_IGN if ignored else signal.SIG_DFL
                    process = subprocess.run([BINARY, *map(str, arguments)], stdout=writer, stderr=subprocess.PIPE, env=environment(), timeout=600,
                                             restore_signals=False, preexec_fn=lambda h=handler: signal.signal(signal.SIGPIPE, h))
                    os.close(writer)
                    self.assertEqual(process.stderr, b"")
                    self.assertEqual(process.returncode, 0)

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full here")
    def test_a_full_device_is_an_error(self):
        with open("/dev/full", "wb") as full:
            process = subprocess.run([BINARY, "--help"], stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=600)
        self.assertEqual(process.returncode, 1)
        self.assertRegex(process.stderr.decode(), r"\Apolyhead: cannot write to standard output: [^\n]+\n\Z")

    def test_closed_standard_output_does_not_end_in_a_file(self):
        model = tiny_model.write(self.folder / "model")
        page = self.folder / "page.html"
        process = subprocess.run([BINARY, "view", str(model), "--text", "the fox", "-o", str(page), "--json"], stderr=subprocess.PIPE, timeout=600,
                                 env=environment(), preexec_fn=lambda: os.close(1))
        self.assertEqual(process.returncode, 1)
        self.assertIn("cannot write to standard output", process.stderr.decode())
        self.assertNotIn(b'"embedding"', page.read_bytes())

    def test_help_uses_the_width_of_the_terminal(self):
        status, out, _ = run_on_terminal("view", "--help", columns=50)
        self.assertEqual(status, 0)
        self.assertLessEqual(max(map(len, out[out.index("Usage:"):].splitlines())), 50)
        self.assertNotIn("\x1b", out)


if __name__ == "__main__":
    unittest.main()
