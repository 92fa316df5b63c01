#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What several ranks cost, and the bytes that they send: run.py PROGRAM WIDTH ROUNDS RANKS...

Runs bench/ranks/ranks.c on each number of ranks and prints a table. Bytes are those that one rank gave to the others
below MPI's collectives, as Open MPI's monitoring counts them: with and without three more calls of one work.
"""
import os
import re
import subprocess
import sys

# One machine, perhaps without a network, perhaps as root, with as many ranks as are asked for.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_plm": "isolated", "OMPI_MCA_btl": "self,vader",
               "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_mpi_yield_when_idle": "1",
               "OMPI_MCA_hwloc_base_binding_policy": "none"}
# Chosen by name, ob1 would be without its monitor.
MONITORED = {"OMPI_MCA_pml": "", "OMPI_MCA_pml_monitoring_enable": "1", "OMPI_MCA_pml_monitoring_enable_output": "1"}
CALLS = 3


def run(ranks, more, *command):
    return subprocess.run(["mpirun", "-n", str(ranks), *command], check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env={**os.environ, **ENVIRONMENT, **more}).stdout


def sent(program, width, ranks, work, calls):
    """Bytes of a whole run, of all ranks."""
    said = run(ranks, MONITORED, program, width, str(calls), str(work))
    return sum(int(found) for found in re.findall(r"^E\t\d+\t\d+\t(\d+) bytes", said, re.MULTILINE))


def counted(program, width, ranks, work):
    """Of one call, a rank's mean. The measurement's own barrier and maximum, some tens of bytes, are in it."""
    if ranks == 1:
        return 0.0
    return (sent(program, width, ranks, work, CALLS) - sent(program, width, ranks, work, 0)) / CALLS / ranks


def measure(program, width, rounds, ranks):
    """(name, milliseconds, ratio, theory) of each work."""
    said = run(ranks, {}, program, width, rounds)
    return [line.split("\t") for line in said.splitlines() if line.count("\t") == 3]


def main():
    program, width, rounds, *numbers = sys.argv[1:]
    for ranks in map(int, numbers):
        print(f"{f'{ranks} ranks, 16 layers of {width} x {width}, {rounds} rounds':<49}{'median ms':>12}{'ratio':>8}"
              f"{'bytes a rank':>15}{'in theory':>12}")
        for work, (name, milliseconds, ratio, theory) in enumerate(measure(program, width, rounds, ranks)):
            sends = counted(program, width, ranks, work)
            print(f"  {name:<47}{milliseconds:>12}{ratio:>8}{sends:>15.0f}{theory:>12}", flush=True)


if __name__ == "__main__":
    main()
