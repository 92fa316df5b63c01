#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The session of docs/start/adapt.md with examples/adapt: test_session.py SOURCE LIBAMP CC... Prints TAP.

Its commands run in their order, and its diff is the answers.
"""
import pathlib
import re
import shutil
import sys

from adapt import Place, Tap, expect, run, scratch, skip_unless_supported


class Session(Place):
    def __init__(self, folder, source, library, compiler):
        super().__init__(folder, source, library, compiler)
        self.page = (source / "docs" / "start" / "adapt.md").read_text(encoding="utf-8")
        self.write("libamp.pc", "Name: libamp\nDescription: the one just built\nVersion: 0\n"
                   f"Cflags: -I{source}/include\nLibs: -L{library.parent} -lamp\n")
        (folder / "bin").mkdir()
        words = " ".join(shutil.which(word) or word for word in compiler)  # not the name alone: that is this script's
        # -ffp-contract: the program alone and the shared object round alike
        self.command("cc", f"exec {words} -ffp-contract=off \"$@\"")
        self.command("amp-adapt", f"exec {sys.executable} {source}/tools/amp-adapt \"$@\"")
        for name in ("net.h", "net.c"):
            self.write(name, (source / "examples" / "adapt" / name).read_text(encoding="utf-8"))

    def command(self, name, text):
        self.write(f"bin/{name}", f"#!/bin/sh\n{text}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def shell(self, command, **environment):
        return run("sh", "-ec", f"PATH={self.folder}/bin:$PATH; {command}", cwd=self.folder, env={
            "PKG_CONFIG_PATH": str(self.folder), "LD_LIBRARY_PATH": str(self.library.parent),
            "PYTHONDONTWRITEBYTECODE": "1", **environment})

    def section(self, heading):
        """Its commands, and the indented lines that it says they print, up to their dots."""
        text = self.page.split(f"\n### {heading}\n")[1].split("\n### ")[0].split("\n## ")[0]
        commands = "".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        printed = [line.strip().split("…")[0] for line in re.sub(r"^```.*?^```$", "", text,
                                                                 flags=re.M | re.S).splitlines()
                   if line.startswith("    ")]
        return commands, printed

    def says(self, heading):
        commands, printed = self.section(heading)
        said = self.shell(f"{{\n{commands}}} 2>&1")
        expect(printed and commands, f"{heading}: nothing to do or nothing to see")
        for line in printed:
            expect(line in said, f"{heading}: no {line!r} in:\n{said}")
        return said

    def answer(self):
        self.answered("adapter.c", re.search(r"^```diff\n(.*?)^```$", self.page, re.MULTILINE | re.DOTALL).group(1))


def main():
    source, library, compiler = *(pathlib.Path(each).resolve() for each in sys.argv[1:3]), sys.argv[3:]
    tap = Tap()
    skip_unless_supported(tap)
    with scratch() as folder:
        session = Session(folder, source, library, compiler)
        session.shell("cc -O2 -o plain net.c")
        plain = session.shell("./plain")
        with tap.test("the header is read, and the skeleton says what is missing while it trains as ever"):
            session.says("Read the header")
            said = session.says("Build it as it comes")
            expect(said.endswith(plain), f"unanswered, it does not print:\n{plain}but:\n{said}")
        with tap.test("with the page's answers nothing is open, and every level trains"):
            session.answer()
            said = session.says("Train")
            expect("AMP_ADAPT" not in said and "finding" not in said and "sound\n" in said, said)
            ends = re.findall(r"at the end: loss (\S+)", said)
            expect(len(ends) == 7 and all(float(loss) < 0.002 for loss in ends), f"losses: {ends}")
        with tap.test("overflows while the loss scale falls are no finding"):
            text = session.read("adapter.c")
            session.write("high.c", text.replace("    config.emulate =",
                                                 "    config.init_scale = 0x1p22f;\n    config.emulate ="))
            session.shell("cc -O2 -fno-lto high.c ./libnet.so $(pkg-config --cflags --libs libamp) -o high")
            said = session.shell("./high 2>&1", ADAPTER_LEVEL="O1", ADAPTER_HEALTH="1")
            expect(re.search(r"[3-9] brackets, [2-8] of them skipped", said) and "\nsound\n" in said, said)
        with tap.test("without a level, and at O0, it is the trainer alone"):
            expect(session.shell("./net") == plain, "without a level it differs")
            expect(session.shell("./net", ADAPTER_LEVEL="O0") == plain, "O0 differs")
            expect(session.shell("./net 2>&1", ADAPTER_LEVEL="O1") != plain, "O1 changes nothing")
        with tap.test("a scale at O0 changes no bit, and does where a parameter is forgotten"):
            expect(session.shell("./net", ADAPTER_LEVEL="O0", ADAPTER_SCALE="1024") == plain, "the scale is seen")
            session.write("adapter.c", re.sub(r' +param\("dense1.bias".*\n', "", session.read("adapter.c")))
            session.shell("cc -O2 -fno-lto adapter.c ./libnet.so $(pkg-config --cflags --libs libamp) -o net")
            expect(session.shell("./net 2>&1", ADAPTER_LEVEL="O0", ADAPTER_SCALE="1024") != plain, "it is not seen")
    tap.done()


if __name__ == "__main__":
    main()
