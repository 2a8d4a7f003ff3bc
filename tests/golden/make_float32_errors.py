"""Writes the errors of plain PyTorch in float32 against the golden vectors, with which this library's float32 errors are compared.

    python make_float32_errors.py VECTORS OUT.json [--seed 0]

Runs the formulas of make_golden.py again with every leaf rounded to float32, so that forward and autograd happen in float32, and compares
with the float64 tensors in VECTORS, which must come from the same seed. OUT.json: {case: {tensor: largest absolute error}}, without second derivatives, which
are judged by the error from rounding the inputs (README.md).
"""
import argparse, json, os, tempfile
import torch
from safetensors.torch import load_file
import make_golden

make_leaf = torch.Tensor.requires_grad_
forward = torch.nn.MultiheadAttention.forward


def make_float32_leaf(x, requires_grad=True):
    return make_leaf(x.detach().float(), requires_grad)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("vectors")
    arguments.add_argument("out")
    arguments.add_argument("--seed", type=int, default=0)
    arguments = arguments.parse_args()
    errors = {}

    def compare(tensors, path, metadata):
        if json.loads(metadata["case"])["op"] == "second_derivatives":
            return
        name = os.path.splitext(os.path.basename(path))[0]
        expected = load_file(os.path.join(arguments.vectors, name + ".safetensors"))
        assert sorted(tensors) == sorted(expected), name
        errors[name] = {}
        for key, x in tensors.items():
            if x.dtype == torch.bool:
                assert torch.equal(x, expected[key]), (name, key)
            elif make_golden.is_expected(key):
                assert x.dtype == torch.float32, (name, key)
                difference = (x.double() - expected[key]).abs()
                difference[x == expected[key]] = 0  # the lse of an empty row is -inf in both results, and their difference would be NaN
                errors[name][key] = difference.max().item()
            else:
                assert torch.equal(x.float(), expected[key].float()), (name, key)

    torch.Tensor.requires_grad_ = make_float32_leaf
    torch.nn.MultiheadAttention.forward = lambda self, *a, **k: forward(self.float(), *a, **k)
    make_golden.save_file = compare
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        make_golden.sdpa_cases(folder, arguments.seed)
        make_golden.layer_cases(folder, arguments.seed)
    with open(arguments.out, "w") as file:
        json.dump(errors, file, indent=1, sort_keys=True)
        file.write("\n")
    print(len(errors), "cases in", arguments.out)


if __name__ == "__main__":
    main()
