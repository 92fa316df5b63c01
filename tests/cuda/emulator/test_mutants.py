# SPDX-License-Identifier: Apache-2.0
"""The emulator can fail: kernels with a fault each are found under the tests that pass without it.

test_mutants.py PROGRAM FAKE_BLAS EMULATOR.a SOURCE_OF_KERNELS OBJECT... -- NVCC FLAG... -- C++ COMPILER... -- LINK
FLAG...: the objects are those of the translated kernels, and a mutant's takes the place of one.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# What it is, where, what is there, what stands there instead, what is said of it ("": a result is wrong).
MUTANTS = [
    ("the kernels as they are", "sum.cuh", "", "", None),
    ("a barrier is taken out", "sum.cuh", "        __syncthreads();\n        if", "        if",
     "emulator: kernel_sum_"),
    ("an index is off by one", "finish_kernels.cu", "cuda_sums_range(begin + (int64_t)q,",
     "cuda_sums_range(begin + (int64_t)q + 1,", ""),
    ("a tail is not checked", "group.h", "if (i < at->count) nonfinite |= cuda_store_one_f32",
     "nonfinite |= cuda_store_one_f32", ""),
]


def split(words):
    parts = [[]]
    for word in words:
        if word == "--":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def build(folder, mutant, archive, source, objects, nvcc, cxx, link):
    """A plugin whose products' kernels are the mutant's."""
    kernels = folder / "src" / "kernels" / "cuda"
    shutil.copytree(source, kernels)
    file = kernels / mutant[1]
    text = file.read_text(encoding="utf-8")
    if mutant[2] not in text:
        raise LookupError(f"{mutant[1]} has no {mutant[2]!r} any more: choose another mutant")
    file.write_text(text.replace(mutant[2], mutant[3]), encoding="utf-8")
    ptx, made = folder / "finish.ptx", folder / "finish.o"
    subprocess.run([nvcc[0], f"-I{folder / 'src'}", *nvcc[1:], "-ptx", "-arch=compute_90",
                    kernels / "finish_kernels.cu", "-o", ptx], check=True, stderr=subprocess.DEVNULL)
    subprocess.run([sys.executable, HERE / "compile.py", ptx, made, *cxx], check=True)
    kept = [made if "finish_kernels" in object else object for object in objects]
    subprocess.run([*cxx, "-shared", "-o", folder / "libamp_cuda.so", "-Wl,--whole-archive", archive,
                    "-Wl,--no-whole-archive", *kept, *link, "-lm"], check=True)


def run(folder, program, blas):
    environment = dict(os.environ, AMP_BACKEND_PATH=str(folder), AMP_CUBLASLT=os.path.abspath(blas),
                       CK_RUN_CASE="test_products.c", CK_VERBOSITY="silent", CK_TAP_LOG_FILE_NAME="-",
                       AMP_TEST_SHORT="1")
    return subprocess.run([program, "fake"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", check=False)


def main():
    (program, blas, archive, source, *objects), nvcc, cxx, link = split(sys.argv[1:])
    print(f"1..{len(MUTANTS)}")
    failed = 0
    for number, mutant in enumerate(MUTANTS, 1):
        with tempfile.TemporaryDirectory() as made:
            build(pathlib.Path(made), mutant, archive, source, objects, nvcc, cxx, link)
            result = run(pathlib.Path(made), program, blas)
        found = result.returncode == 0 if mutant[4] is None else result.returncode != 0 and mutant[4] in result.stdout
        failed += not found
        print(f"{'ok' if found else 'not ok'} {number} - {mutant[0]}")
        said = [line for line in result.stdout.splitlines() if "emulator:" in line or line.startswith("not ok")]
        print("".join(f"# {line[:200]}\n" for line in said[-2:]), end="", flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
