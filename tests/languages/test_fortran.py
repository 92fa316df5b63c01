#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The modules of bindings/fortran, with gfortran: test_fortran.py SOURCE LIBAMP_C_F90 API_JSON LIBAMP. Prints TAP.

They compile without a warning, types lie in memory as the API's description says, what the module promises holds, and
the example trains at each level.
"""
import json
import pathlib
import re
import sys

from programs import Tap, check_levels, check_page, expect, find, run, scratch, write_digits


class Modules:
    def __init__(self, gfortran, source, folder, library):
        self.source, self.folder, self.library = source / "bindings" / "fortran", folder, library.parent
        self.command = [gfortran, "-std=f2018", "-Wall", "-Wextra", "-Werror", "-O1"]

    def compile(self, name, *sources):
        """A program of the modules' objects and these sources."""
        objects = self.folder.glob("libamp*.o")
        run(*self.command, "-o", name, *objects, *sources, f"-L{self.library}", "-lamp", cwd=self.folder)

    def module(self, source):
        run(*self.command, "-c", source, cwd=self.folder)

    def run(self, name, *arguments, status=0):
        environment = {"LD_LIBRARY_PATH": str(self.library)}
        return run(self.folder / name, *arguments, cwd=self.folder, status=status, env=environment)


def layout(api):
    """A program that prints where Fortran has each member that lies elsewhere in C."""
    structs = api["structs"]
    yield "program layout\n  use libamp_c\n  implicit none"
    yield from (f"  type({struct['name']}), target, save :: {struct['name']}_" for struct in structs)
    for struct in structs:
        name = f"{struct['name']}_"
        yield f"  call compare(\"{struct['name']}\", int(c_sizeof({name})), {struct['size']})"
        for field in struct["fields"]:
            yield f"  call compare(\"{struct['name']}%{field['name']}\", &"
            yield f"    int(place(c_loc({name}%{field['name']})) - place(c_loc({name}))), {field['offset']})"
        if "init" in struct:
            yield f"  call compare(\"{struct['name']}%struct_size as it begins\", &"
            yield f"    int({name}%struct_size), {struct['size']})"
    yield """contains
  subroutine compare(what, found, wanted)
    character(*), intent(in) :: what
    integer, intent(in) :: found, wanted
    if (found /= wanted) print *, what, found, wanted
  end subroutine compare

  function place(address)
    type(c_ptr), value :: address
    integer(c_intptr_t) :: place
    place = transfer(address, place)
  end function place
end program layout"""


def check_layout(modules, api):
    path = modules.folder / "layout.f90"
    path.write_text("\n".join(layout(api)) + "\n", encoding="utf-8")
    modules.compile("layout", path)
    said = modules.run("layout")
    expect(not said, said)


def check_promises(modules):
    modules.compile("training", modules.source / "tests/training.f90")
    said = modules.run("training")
    points = re.findall(r"^(not ok|ok) +\d+ - ", said, re.MULTILINE)
    expect(len(points) > 20 and f"\n1..{len(points)}\n" in said and "not ok" not in points, said)
    expect("libamp: AMP_ERR_WRONG_STATE: it is not initialized" in modules.run("training", "stop", status=1),
           "without `status` a call that fails does not stop the program")
    expect("libamp: an amp_training that is described is not copied" in modules.run("training", "copy", status=1),
           "a copy does not stop the program")


def main():
    source, generated, described, library = (pathlib.Path(path).resolve() for path in sys.argv[1:5])
    tap, gfortran = Tap(), find("FC", "gfortran")
    if not gfortran:
        tap.skip_all("there is no gfortran (Debian: gfortran)")
    print(f"# {run(gfortran, '--version').splitlines()[0]}")
    with scratch() as folder:
        modules = Modules(gfortran, source, folder, library)
        with tap.test("the generated declarations compile"):
            modules.module(generated)
        with tap.test("types lie in memory as C's"):
            check_layout(modules, json.loads(described.read_text(encoding="utf-8")))
        with tap.test("the module compiles"):
            modules.module(modules.source / "libamp.f90")
        with tap.test("what it promises holds"):
            check_promises(modules)
        with tap.test("the program of the documentation prints what stands there"):
            page = (source / "docs" / "start" / "other-languages.md").read_text(encoding="utf-8")
            program = modules.source / "examples" / "minimal.f90"
            modules.compile("minimal", program)
            check_page(page, "fortran", program, modules.run("minimal"))
        with tap.test("the digits are learned at O0, O1 and O4"):
            examples = modules.source / "examples"
            modules.compile("digits", examples / "layers.f90", examples / "digits.f90")
            digits = write_digits(source, folder)
            check_levels(lambda level: modules.run("digits", digits, level))
    tap.done()


if __name__ == "__main__":
    main()
