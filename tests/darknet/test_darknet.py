#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libamp_darknet.so, preloaded: test_darknet.py FOLDER DIGITS LIBRARY DARKNET COMPILER...

The programs are compiled against libdarknet.so alone. What they print and the weights that they save are compared with
those of the same program without the library: bit for bit where the level is O0, by what the network knows elsewhere.
"""
import concurrent.futures
import gzip
import os
import pathlib
import re
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "packaging"))
from support import Tap, expect, run, scratch  # noqa: E402  pylint: disable=wrong-import-position

FOLDER, DIGITS, LIBRARY, DARKNET, COMPILER = pathlib.Path(sys.argv[1]), *sys.argv[2:5], sys.argv[5:]
LEVELS = ["O1", "O2", "O3", "O4", "O5"]
STEPS, SEEDS = 120, (1, 2)
# images: three standard deviations of the difference of two means of two seeds; in FP32 ten seeds deviate by 6.5
NOISE = 20
LINE = re.compile(r"^loss (\S+) known (\d+) of \d+ weights (\w+)$", re.M)


class Trainer:
    """The programs in a folder of their own."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "digits.csv").write_bytes(gzip.decompress(pathlib.Path(DIGITS).read_bytes()))
        plain, layers = ((FOLDER / name).read_text(encoding="utf-8") for name in ["digits.cfg", "layers.cfg"])
        last = "[connected]\noutput=10\n"
        # darknet's files of weights have no momentum: only without it is a resumed training the one that went on
        texts = {"digits.cfg": plain, "layers.cfg": layers, "resumed.cfg": plain.replace("momentum=0.9", "momentum=0")}
        texts["plain.cfg"] = plain.replace("batch_normalize=1", "")  # its averages are FP32 at every level
        texts |= {f"{kind}.cfg": layers.replace(last, f"[{kind}]\noutput=24\n\n{last}")
                  for kind in ["gru", "rnn", "lstm"]}
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name in ["digits", "programs"]:
            run(*COMPILER, "-O2", "-o", folder / name, FOLDER / f"{name}.c", "-isystem", f"{DARKNET}/include",
                f"-L{DARKNET}", "-ldarknet", f"-Wl,-rpath,{DARKNET},--disable-new-dtags,--allow-shlib-undefined", "-lm")

    def run(self, *command, level=None, preload=True, status=0, **settings):
        """A program, by default under the library; settings are the environment's AMP_*."""
        env = {"LD_PRELOAD": os.path.abspath(LIBRARY)} if preload else {}
        env["LD_LIBRARY_PATH"] = f"{DARKNET}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        env |= {"AMP_LEVEL": level} if level else {}
        env |= {f"AMP_{name.upper()}": str(value) for name, value in settings.items()}
        return run(*command, status=status, cwd=self.folder, env=env)

    def digits(self, cfg, steps, *files, seed=1, **settings):
        """(loss, known, sum of the weights' bits, all that was printed)"""
        text = self.run("./digits", cfg, "digits.csv", steps, seed, *files, **settings)
        loss, known, weights = LINE.search(text).groups()
        return float(loss), int(known), weights, text

    def weights(self, name):
        """The file that darknet saved."""
        return (self.folder / name).read_bytes()


def test_equal(tap, trainer):
    plain = {cfg: trainer.digits(cfg, 20, "-", f"{cfg}.plain", preload=False)
             for cfg in ["digits.cfg", "layers.cfg", "gru.cfg"]}
    for what, settings in {"without AMP_LEVEL": {}, "at O0": {"level": "O0"},
                           "at O0 with a loss scale of 1024": {"level": "O0", "loss_scale": 1024}}.items():
        for cfg in plain:
            with tap.test(f"{cfg} {what}: the bits that it has without the library"):
                result = trainer.digits(cfg, 20, "-", "weights", **settings)
                expect(result[:3] == plain[cfg][:3], f"{result[:3]} is not {plain[cfg][:3]}")
                expect(trainer.weights("weights") == trainer.weights(f"{cfg}.plain"), "the saved weights differ")
                expect(("libamp_darknet" in result[3]) == bool(settings), result[3])


def test_levels(tap, trainer):
    """Known images, by level and seed: every product in 16 bits, so that there is something to see."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {(level, seed): pool.submit(trainer.digits, "digits.cfg", STEPS, seed=seed, level=level, gate="off")
                for level in ["O0", *LEVELS] for seed in SEEDS}
    results = {key: job.result() for key, job in jobs.items()}
    reference = [results["O0", seed][1] for seed in SEEDS]
    for level in LEVELS:
        with tap.test(f"{level}: what FP32 knows, but for the noise of seeds"):
            for seed in SEEDS:
                text = results[level, seed][3]
                expect(re.search(r"[1-9]\d* products in 16 bits, 0 in FP32", text), text)
                expect(results[level, seed][2] != results["O0", seed][2], "the weights are those of FP32")
            known = [results[level, seed][1] for seed in SEEDS]
            expect(sum(known) / len(known) > sum(reference) / len(reference) - NOISE, f"{known}, FP32 {reference}")


def test_layers(tap, trainer):
    plain = trainer.digits("layers.cfg", 40, level="O0")
    for level in LEVELS:
        with tap.test(f"{level}: all kinds of layers, in micro-batches"):
            low = trainer.digits("layers.cfg", 40, level=level, gate="off")
            expect(low[2] != plain[2], "the weights are those of FP32")
            expect(abs(low[0] - plain[0]) < 0.25 * plain[0], f"loss {low[0]}, in FP32 {plain[0]}")
    for kind, parts in {"rnn": 3, "lstm": 8}.items():
        with tap.test(f"{kind}: is wired (training it on a CPU, this darknet itself writes outside of its memory)"):
            text = trainer.digits(f"{kind}.cfg", 0, level="O5")[3]
            counts = [int(re.search(r"(\d+) of them trained", it).group(1)) for it in [text, plain[3]]]
            expect(counts[0] == counts[1] + parts, f"{counts}")


LOSSES = {  # the filters that each takes, and the rest of its section
    "yolo": (14, "mask=0,1\nanchors=2,3, 4,5\nclasses=2\nnum=2\nignore_thresh=.5\ntruth_thresh=1"),
    "cost": (4, "type=sse"),
    "logistic": (4, ""),
}


def test_losses(tap, trainer):
    """Each makes its own deltas: all of them must be scaled, or the weights would be others."""
    top = (FOLDER / "digits.cfg").read_text(encoding="utf-8").split("[connected]")[0].replace("=0.05", "=0.001")
    for name, (filters, section) in LOSSES.items():
        with tap.test(f"{name}: the same bits at a loss scale of 1024"):
            cfg = f"{top}[convolutional]\nfilters={filters}\nsize=1\nactivation=linear\n\n[{name}]\n{section}\n"
            (trainer.folder / "loss.cfg").write_text(cfg, encoding="utf-8")
            plain = trainer.run("./programs", "loss.cfg", "train", preload=False)
            untrained = trainer.run("./programs", "loss.cfg", "train", level="O1", loss_scale=1e-30, gate="off",
                                    log="off")
            wired = trainer.run("./programs", "loss.cfg", "train", level="O0", loss_scale=1024, log="off")
            last = [re.findall(r"^[0-9a-f]{16}$", text, re.M)[-1] for text in [plain, wired, untrained]]
            expect(last[0] == last[1] != last[2], f"{last}\n{plain}")


def test_resume(tap, trainer):
    """From a scale that is too large at first: without it the resumed training would skip again."""
    for level in ["O0", *LEVELS]:
        with tap.test(f"{level}: saved and resumed is trained in one go, to the bit"):
            settings = {"level": level, "gate": "off"}
            if level in ("O1", "O2"):
                settings["init_scale"] = 2.0**20
            trainer.digits("resumed.cfg", 20, "-", "whole", **settings)
            trainer.digits("resumed.cfg", 8, "-", "half", **settings)
            trainer.digits("resumed.cfg", 12, "half", "rest", **settings)
            expect(trainer.weights("whole") == trainer.weights("rest"), "the saved weights differ")
            expect(trainer.weights("whole.amp.json") == trainer.weights("rest.amp.json"), "the loss scales differ")


def test_masters(tap, trainer):
    """O1 and O4 leave weights alone and round each product's operands: so do O2 and O5, or the weights would be
    others."""
    trainer.digits("digits.cfg", 5, "-", "fp32", preload=False)
    for level, casts in {"O2": "O1", "O5": "O4"}.items():
        with tap.test(f"{level}: the weights in darknet's memory are the FP32 masters, those of {casts} to the last "
                      f"bit"):
            for cfg in ["digits.cfg", "layers.cfg"]:
                masters, weights = (trainer.digits(cfg, 20, "-", it, level=it, gate="off") for it in [level, casts])
                expect(masters[:3] == weights[:3], f"{masters[:3]} is not {weights[:3]}")
                expect(trainer.weights(level) == trainer.weights(casts), "the saved weights differ")
        with tap.test(f"{level}: FP32 weights are loaded and saved as they are"):
            plain = trainer.digits("digits.cfg", 0, "fp32", preload=False)
            loaded = trainer.digits("digits.cfg", 0, "fp32", "again", level=level)
            expect(loaded[2] == plain[2], "in memory they differ")
            expect(trainer.weights("again") == trainer.weights("fp32"), "in the file they differ")
    with tap.test("O3: the weights, which have no masters, are 16-bit values"):
        for level, rounded in {"O2": False, "O3": True}.items():
            trainer.digits("plain.cfg", 5, "-", level, level=level, gate="off")
            values = trainer.weights(level)[20:]  # after darknet's header
            expect(all(bits & 0x1FFF == 0 for bits, in struct.iter_unpack("<I", values)) == rounded, level)


def test_overflow(tap, trainer):
    for level in ["O1", "O2"]:
        settings = {"level": level, "gate": "off", "init_scale": 2.0**24, "log": "info"}
        with tap.test(f"{level}: an overflow: the step is skipped, and says so"):
            before = trainer.digits("digits.cfg", 0, **settings)
            after = trainer.digits("digits.cfg", 1, **settings)
            expect(before[2] == after[2], "the weights changed")
            expect("the step is skipped" in after[3] and "1 of them overflowed" in after[3], after[3])
        with tap.test(f"{level}: and the training recovers"):
            loss, known, _, text = trainer.digits("digits.cfg", STEPS, **settings)
            expect(loss < 0.3 and known > 450, text)
            skipped = int(re.search(r"(\d+) of them overflowed", text).group(1))
            expect(4 < skipped < STEPS / 4, text)


def test_programs(tap, trainer):
    for name in ["several", "by_hand"]:
        with tap.test(f"{name}: the same numbers"):
            plain = trainer.run("./programs", "digits.cfg", name, preload=False)
            wired = trainer.run("./programs", "digits.cfg", name, level="O0", loss_scale=1024, log="off")
            expect(plain == wired, f"{wired}\nand without the library\n{plain}")
    with tap.test("columns: the same bits"):
        plain = trainer.run("./programs", "digits.cfg", "columns", preload=False)
        expect(plain == trainer.run("./programs", "digits.cfg", "columns", level="O4"), "they differ")
        expect(len(set(plain.split())) > 400, "they are no sums")
    for name, message in {"shared": "two threads work on one network", "replaced": "were replaced"}.items():
        with tap.test(f"{name}: ends with a message"):
            text = trainer.run("./programs", "digits.cfg", name, level="O4", status=1)
            expect(message in text, text)
    with tap.test("a script that opens libdarknet.so"):
        script = ("import ctypes, os; lib = ctypes.CDLL(None);"
                  f"assert lib.dlopen(b'{DARKNET}/libdarknet.so', os.RTLD_LAZY | os.RTLD_GLOBAL);"
                  "lib.parse_network_cfg.restype = ctypes.c_void_p; net = "
                  "ctypes.c_void_p(lib.parse_network_cfg(b'digits.cfg'));lib.train_network_datum(net); "
                  "lib.free_network(net)")
        text = trainer.run(sys.executable, "-c", script, level="O4", gate="off")
        expect("1 backward passes" in text, text)


def test_settings(tap, trainer):
    wrong = {"AMP_LEVEL": {"level": "O9"}, "AMP_LOSS_SCALE": {"level": "O1", "loss_scale": "big"},
             "AMP_INIT_SCALE": {"level": "O1", "init_scale": 0}, "AMP_GATE": {"level": "O1", "gate": "none"},
             "AMP_FP32_MATMUL": {"level": "O0", "fp32_matmul": "2"}}
    for name, settings in wrong.items():
        with tap.test(f"{name} that cannot be read: ends with its name"):
            text = trainer.run("./digits", "digits.cfg", "digits.csv", 1, 1, status=1, **settings)
            expect(f"libamp_darknet: {name}" in text, text)
    with tap.test("a damaged loss scale beside the weights: ends with its name"):
        trainer.digits("digits.cfg", 1, "-", "damaged", level="O1")
        (trainer.folder / "damaged.amp.json").write_text("{", encoding="utf-8")
        text = trainer.run("./digits", "digits.cfg", "digits.csv", 1, 1, "damaged", level="O1", status=1)
        expect("damaged.amp.json" in text, text)
    with tap.test("AMP_FP32_MATMUL=1 at O0: other sums, the same knowledge"):
        plain, ours = (trainer.digits("digits.cfg", 40, level="O0", fp32_matmul=it) for it in ["No", "on"])
        expect(plain[2] != ours[2], "darknet's own products ran")
        expect(abs(plain[0] - ours[0]) < 0.05 * plain[0] + 0.01, f"loss {ours[0]}, by darknet's {plain[0]}")
    with tap.test("a program that has darknet in itself is told so, another one not"):
        program = pathlib.Path(DARKNET).parents[1] / "bin" / "darknet"
        if program.exists():
            expect("in itself" in trainer.run(program, level="O4", status=1), "it is not told")
        expect(trainer.run("true", level="O4") == "", "`true` was told something")
    with tap.test("the library stands before functions of darknet's and no others"):
        names = {line.split()[-1] for line in run("nm", "-D", "--defined-only", LIBRARY).splitlines()}
        theirs = {line.split()[-1] for line in run("nm", "-D", "--defined-only",
                                                   f"{DARKNET}/libdarknet.so").splitlines()}
        expect(len(names) == 9 and names <= theirs, f"{names - theirs}")
    with tap.test("a trace"):
        trainer.digits("digits.cfg", 3, level="O4", trace="run.jsonl")
        trace = (trainer.folder / "run.jsonl").read_text(encoding="utf-8")
        expect('"0.convolutional.backward"' in trace and '"kind":"end"' in trace, trace)


def test_foreign(tap, trainer):
    """Darknet's names in a library of another's: linked to the program, and opened by it, where no other is to be
    seen."""
    source = FOLDER / "foreign.c"
    run(*COMPILER, "-O1", "-shared", "-fPIC", "-o", trainer.folder / "libforeign.so", source)
    run(*COMPILER, "-O1", "-DMAIN", "-o", trainer.folder / "opens", source)
    run(*COMPILER, "-O1", "-DMAIN", "-DLINKED", "-o", trainer.folder / "linked", source, f"-L{trainer.folder}",
        "-lforeign", f"-Wl,-rpath,{trainer.folder}")
    for program, *arguments in [["./linked"], ["./linked", "./libforeign.so"], ["./opens", "./libforeign.so"]]:
        plain = trainer.run(program, *arguments, preload=False)
        expect("free 3 33" in plain and "save 250, load -2 1" in plain, plain)
        for level in [None, "O1", "O4"]:
            with tap.test(f"functions of another library with darknet's names: {' '.join([program, *arguments])}, "
                          f"{level}"):
                expect(trainer.run(program, *arguments, level=level) == plain, "they are not left alone")


def products(text):
    """(in 16 bits, in FP32): which of them gain depends on the processor, their sum does not."""
    return sum(map(int, re.search(r"(\d+) products in 16 bits, (\d+) in FP32", text).groups()))


def test_shown(tap):
    """show.sh makes the figures of docs/start/darknet.md."""
    page = (FOLDER.parents[1] / "docs" / "start" / "darknet.md").read_text(encoding="utf-8")
    shown = re.search(r"^    \$ (tests/darknet/show\.sh)\n(?:    .*\n)*", page, re.MULTILINE)
    with tap.test("the figures of docs/start/darknet.md come from its script"):
        said = run(FOLDER.parents[1] / shown.group(1), 2, 1, "O0", "O4", env={
            "AMP_SHOW_BUILD": str(pathlib.Path(LIBRARY).resolve().parents[2]), "AMP_SHOW_DARKNET": DARKNET})
        weights = [line[2] for line in LINE.findall(said)]
        expect(len(weights) == 3 and weights[0] == weights[1] != weights[2], said)
        expect(re.search(r"^user \d+m\d+\.\d+s$", said, re.MULTILINE), said)
    with tap.test("and the network is the one that the page shows"):
        for line in re.findall(r"libamp_darknet: a network .*", shown.group()):
            expect(line in said, said)
        steps = int(re.search(r"digits.csv (\d+) ", shown.group()).group(1))
        expect(products(shown.group()) == products(said[said.index("at O4"):]) + 123 * (steps - 2), said)


def main():
    tap = Tap()
    if LIBRARY == "none":
        tap.skip_all("libamp_darknet.so is not built: it needs Debian's package darknet, and no sanitizer")
    with scratch() as folder:
        trainer = Trainer(pathlib.Path(folder))
        for test in [test_equal, test_levels, test_layers, test_losses, test_resume, test_masters, test_overflow,
                     test_programs, test_settings, test_foreign]:
            test(tap, trainer)
    test_shown(tap)
    tap.done()


main()
