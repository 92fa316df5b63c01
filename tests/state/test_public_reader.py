#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A state read by others: by hand with struct and json, checksums computed anew, and by the public safetensors package,
which is installed into a folder of its own where it is missing and there is a network: test_public_reader.py WRITER"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "packaging"))
from support import Tap, expect  # noqa: E402


def crc64_xz(data):
    """CRC-64/XZ, bit by bit from its definition."""
    crc = (1 << 64) - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xC96C5795D7870F42 if crc & 1 else 0)
    return crc ^ ((1 << 64) - 1)


def find_package():
    """(module, None) or (None, why not)."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "libamp-tests"
    target = cache / f"safetensors-py{sys.version_info[0]}.{sys.version_info[1]}"
    try:
        import safetensors  # pylint: disable=import-outside-toplevel
        return safetensors, None
    except ImportError:
        pass
    if not (target / "safetensors").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--retries", "0", "--timeout", "10", "--target",
                   str(target), "safetensors", "numpy"]
        try:
            said = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, timeout=90, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, f"pip: {error}"
        if said.returncode != 0:
            why = (said.stdout.strip() or "?").splitlines()[-1]
            return None, f"the package safetensors is missing and pip failed: {why}"
    sys.path.insert(0, str(target))
    try:
        import safetensors  # pylint: disable=import-outside-toplevel
        return safetensors, None
    except ImportError as error:
        return None, str(error)


def floats(data):
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "amp.safetensors"
        said = subprocess.run([sys.argv[1], str(path)], stdout=subprocess.PIPE, check=True).stdout.decode("utf-8")
        wanted = {line.split("\t")[0]: [float.fromhex(word) for word in line.split("\t")[1].split()]
                  for line in said.strip("\n").split("\n")}
        scale = wanted.pop("scale")[0]
        raw = path.read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:8 + length].decode("utf-8"))
        metadata = header.pop("__metadata__")

        with tap.test("header by hand: F32 tensors under the parameters' names, aligned data"):
            expect(length % 8 == 0, f"the header has {length} bytes")
            expect(set(header) == set(wanted), f"{set(header)} and {set(wanted)}")
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                expect(entry["dtype"] == "F32" and entry["shape"] == [4], str(entry))
                expect(floats(raw[8 + length + begin:8 + length + end]) == wanted[name], name)
        with tap.test("metadata: strings that hold the exact state and configuration"):
            expect(all(isinstance(value, str) for value in metadata.values()), str(metadata))
            expect(metadata["libamp.config.level"] == "O2", str(metadata))
            expect(float.fromhex(metadata["libamp.loss_scaler0.scale"]) == scale, str(metadata))
            expect(float.fromhex(metadata["libamp.config.scaler.backoff"]) == 0.3, str(metadata))
        with tap.test("both checksums are CRC-64/XZ"):
            expect(crc64_xz(b"123456789") == 0x995DC9BBDF1939FA, "the check value of the CRC catalogue")
            at = raw.index(b'"libamp.crc64":"') + len(b'"libamp.crc64":"')
            blanked = raw[:at] + b"0" * 16 + raw[at + 16:8 + length]
            found = f"{crc64_xz(blanked):016x} {crc64_xz(raw[8 + length:]):016x}"
            expect(metadata["libamp.crc64"] == found, f"{metadata['libamp.crc64']} is {found}")

        package, reason = find_package()
        what = "the public safetensors package reads it"
        if package is None:
            tap.number += 1
            print(f"ok {tap.number} - {what} # SKIP {reason}")
        else:
            with tap.test(what):
                tensors = dict(package.deserialize(raw))
                expect(set(tensors) == set(wanted), str(set(tensors)))
                for name, tensor in tensors.items():
                    expect(tensor["dtype"] in ("F32", "float32") and list(tensor["shape"]) == [4], str(tensor))
                    expect(floats(bytes(tensor["data"])) == wanted[name], name)
            try:
                from safetensors.numpy import load_file  # pylint: disable=import-outside-toplevel
            except ImportError as error:
                tap.number += 1
                print(f"ok {tap.number} - and as numpy arrays, with the metadata # SKIP {error}")
            else:
                with tap.test("and as numpy arrays, with the metadata"):
                    for name, array in load_file(str(path)).items():
                        expect(str(array.dtype) == "float32" and array.tolist() == wanted[name], name)
                    with package.safe_open(str(path), framework="np") as opened:
                        expect(opened.metadata() == metadata, str(opened.metadata()))
    tap.done()


main()
