#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""amp_ggml.hpp: test_ggml.py SOURCE LIBRARY GGML COMPILER...

examples/ggml/stories.cpp and programs.cpp are compiled with an unpatched ggml. Losses and weights are compared with
those of ggml alone: bit for bit at O0, elsewhere by what 16 bits and other seeds change.
"""
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "packaging"))
from support import Tap, expect, run, scratch  # noqa: E402  pylint: disable=wrong-import-position

SOURCE, LIBRARY = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
GGML, COMPILER = sys.argv[3], sys.argv[4:]
LEVELS = ["O1", "O2", "O3", "O4", "O5"]
SMALL = ["--width", 64, "--layers", 2, "--heads", 4, "--kv-heads", 4, "--context", 64, "--stories", 16]
# grouped queries: ggml's backward has them for one story at a time
MICRO = ["--width", 64, "--layers", 2, "--heads", 4, "--kv-heads", 2, "--context", 64, "--stories", 16, "--batch", 1,
         "--micro-batches", 4]
GATE_OFF = ["--gate", 1]


class Programs:
    """What was compiled, in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        for source in [SOURCE / "examples" / "ggml" / "stories.cpp", SOURCE / "tests" / "ggml" / "programs.cpp"]:
            run(*COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-o", folder / source.stem, source,
                f"-I{SOURCE}/include", f"-I{SOURCE}/adapters/ggml", "-isystem", f"{GGML}/include", "-isystem",
                f"{GGML}/src", *(f"{GGML}/lib/src/lib{name}.a" for name in ["ggml", "ggml-cpu", "ggml-base"]),
                f"-L{LIBRARY.parent}", "-lamp", f"-Wl,-rpath,{LIBRARY.parent}", "-lpthread", "-ldl", "-lm")

    def run(self, name, *arguments, status=0, **settings):
        env = {f"AMP_{key.upper()}": str(value) for key, value in settings.items()} | {"GGML_NO_BACKTRACE": "1"}
        return run(self.folder / name, *arguments, status=status, cwd=self.folder, env=env)

    def stories(self, *arguments, **settings):
        """(loss, sum of the weights' bits, bytes of weights, of activations, all that was printed)"""
        text = self.run("stories", *arguments, **settings)
        found = re.search(r"loss (\S+), .* in (\S+) MB, activations (\S+) MB, weights (\w+)", text)
        return float(found[1]), found[4], float(found[2]), float(found[3]), text


def test_equal(tap, programs):
    for what, arguments in {"batches": SMALL, "grouped queries, micro-batches": MICRO}.items():
        with tap.test(f"O0, {what}: the bits of ggml alone"):
            plain = programs.stories(*arguments, "--epochs", 2)
            wired = programs.stories(*arguments, "--epochs", 2, "--level", "O0")
            expect(wired[:2] == plain[:2], f"{wired} is not {plain}")
            expect("8 backward passes" in wired[4] or "32 backward passes" in wired[4], wired[4])
    with tap.test("O0, a convolution by ggml_opt_fit: the bits of ggml alone"):
        plain = programs.run("programs", "fit", "-", "f32", "adamw")
        expect(programs.run("programs", "fit", "O0", "f32", "adamw") == plain, plain)
    for period in [1, 2]:
        with tap.test(f"graphs built for each step, an update after {period}: at O0 the bits of ggml alone"):
            plain, wired, low = (programs.run("programs", "anew", level, period) for level in ["-", "O0", "O4"])
            weights = [text.splitlines()[-1] for text in [plain, wired, low]]
            expect(weights[0] == weights[1] != weights[2], f"{plain}{wired}{low}")
            expect("AMP-M68" in wired, wired)  # ggml 0.15 never clears the gradients of such graphs


def test_levels(tap, programs):
    """The loss of 8 epochs, which goes from 3.3 to about 1.7. The bound is the standard deviation of five seeds."""
    losses = [programs.stories(*SMALL, "--epochs", 8, "--seed", seed)[0] for seed in range(1, 6)]
    mean = sum(losses) / len(losses)
    bound = (sum((loss - mean) ** 2 for loss in losses) / (len(losses) - 1)) ** 0.5
    results = {}
    for level in LEVELS:
        for half in [0, 1]:
            with tap.test(f"{level}{', weights, keys and values in F16' if half else ''}: learns as FP32 does"):
                arguments = [*SMALL, "--epochs", 8, "--level", level, "--half", half, *GATE_OFF]
                results[level, half] = programs.stories(*arguments)
                loss, weights = results[level, half][:2]
                expect(abs(loss - losses[0]) < bound, f"{loss}, FP32 {losses}")
                expect(weights not in [it[1] for key, it in results.items() if key[0] in "O1O2" and level in "O4O5"],
                       "the weights are those of another type")
    with tap.test("O2 is O1, and O5 is O4, where every product is in 16 bits: ggml's F32 weights are the masters"):
        for pair in [("O1", "O2"), ("O4", "O5")]:
            for half in [0, 1]:
                expect(results[pair[0], half][1] == results[pair[1], half][1], f"{pair} {half}")
    with tap.test("F16: half of the weights' memory but for the embeddings, fewer activations"):
        wide, half = results["O4", 0], results["O4", 1]
        expect(half[2] < 0.52 * wide[2] and half[3] < 0.9 * wide[3], f"{half[2:4]}, FP32 {wide[2:4]}")


def test_products(tap, programs):
    for level in ["O1", "O4"]:
        with tap.test(f"{level}: batched, broadcast and permuted products are ggml's, but for 16 bits"):
            text = programs.run("programs", "shapes", level, verify=1)
            expect(re.search(r"compared with FP32: MUL_MAT \(16 calls\); OUT_PROD \(\d+ calls\)\nsound", text), text)
        for kernel, optimizer in [("f32", "adamw"), ("f16", "adamw"), ("f16", "sgd")]:
            with tap.test(f"{level}: a convolution, {kernel}, by ggml_opt_fit and {optimizer}"):
                text = programs.run("programs", "fit", level, kernel, optimizer)
                expect(int(re.search(r"known (\d+) of 256", text)[1]) > 250, text)


def test_resume(tap, programs):
    """From a scale that is too large at first: a resumed training with another scale, or count of steps, differs."""
    for level in ["O0", "O2", "O3", "O5"]:
        for what, arguments in {"": SMALL, ", F16": [*SMALL, "--half", 1], ", micro-batches": MICRO}.items():
            if level == "O0" and "F16" in what:
                continue
            with tap.test(f"{level}{what}: saved and resumed is trained in one go, to the bit"):
                settings = [*arguments, "--level", level] + (["--init-scale", 2.0**24] if level == "O2" else [])
                whole = programs.stories(*settings, "--epochs", 4)
                part = programs.stories(*settings, "--epochs", 2, "--save", "state.gguf")
                rest = programs.stories(*settings, "--epochs", 2, "--load", "state.gguf")
                expect(part[1] != whole[1] == rest[1], f"{whole}\n{part}\n{rest}")
                expect(level != "O2" or " 0 skipped" not in part[4], f"no step was skipped\n{part[4]}")


def test_overflow(tap, programs):
    one = [*SMALL, "--batch", 1, "--context", 16, "--stories", 1]
    with tap.test("a step that overflows changes nothing"):
        start = programs.stories(*one, "--epochs", 0)
        skipped = programs.stories(*one, "--level", "O2", "--init-scale", 2.0**24)
        expect(skipped[1] == start[1] and "1 skipped, loss scale 8.38861e+06" in skipped[4], skipped[4])
    with tap.test("its culprit has ggml's names of op and tensors"):
        text = programs.stories(*one, "--level", "O2", "--init-scale", 2.0**24, observe=1, log="info")[4]
        expect(re.search(r"began in op OUT_PROD, .* grad for output \(fp32\)", text), text)
    with tap.test("observed and not, the weights are the same"):
        for level in ["O0", "O4"]:
            plain, seen = (programs.stories(*SMALL, "--level", level, **more) for more in [{}, {"observe": "every=1"}])
            expect(plain[1] == seen[1], f"{level}: {plain} {seen}")
    with tap.test("clipped"):
        clipped = [*SMALL, "--epochs", 2, "--level", "O4", "--clip"]
        results = [programs.stories(*clipped, norm)[1] for norm in [0, 1e9, 1e-4]]
        expect(results[0] == results[1] != results[2], f"{results}")


def test_mistakes(tap, programs):
    said = {"eval": "eval callback", "twice": "one with an adapter", "save": "not between two steps",
            "load": "programs"}
    for what, wanted in said.items():
        with tap.test(f"wrong {what}: an error that says so"):
            text = programs.run("programs", "wrong", what, status=1)
            expect(re.search(f"^error: .*{wanted}", text, re.MULTILINE), text)
    with tap.test("a file of another model: an error, and no step"):
        programs.stories(*SMALL, "--level", "O4", "--save", "state.gguf")
        text = programs.run("stories", *SMALL, "--layers", 1, "--level", "O4", "--load", "state.gguf", status=1)
        expect("blk.1" in text, text)


def main():
    tap = Tap()
    gone = [word for word in COMPILER if not word.startswith("-") and not shutil.which(word)]  # ccache is one, too
    if not COMPILER or gone or not (pathlib.Path(GGML) / "lib" / "src" / "libggml.a").exists():
        tap.skip_all("ggml-python is not here: ggml_root is no folder of a ggml that was built, or no C++ compiler is")
    with tap.test("the adapter has fewer than 400 lines"):
        expect(len((SOURCE / "adapters" / "ggml" / "amp_ggml.hpp").read_text(encoding="utf-8").splitlines()) < 400, "")
    with scratch() as folder:
        programs = Programs(folder)
        for test in [test_equal, test_levels, test_products, test_resume, test_overflow, test_mistakes]:
            test(tap, programs)
    tap.done()


main()
