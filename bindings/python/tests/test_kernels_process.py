# SPDX-License-Identifier: Apache-2.0
"""libamp.kernels among threads and forks."""
import os
import sys
import threading
import time

import numpy as np
import pytest
from libamp import kernels


@pytest.fixture
def patient_threads():
    """Nobody is made to give up the GIL within a test's time: what runs meanwhile, runs because it was let go."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(before)


def test_the_gil_is_let_go_while_a_kernel_runs(patient_threads):
    big, started, turns, done = np.ones(30_000_000, np.float32), threading.Event(), 0, []

    def work():
        started.set()
        kernels.l2norm([big] * 5)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    while not done:
        turns += 1
        time.sleep(0.001)  # lets go of the GIL itself, so that the thread can end
    thread.join()
    assert turns > 2


def test_many_threads_on_lists_of_their_own():
    bad = []

    def work(seed):
        x = np.random.default_rng(seed).standard_normal(5000).astype(np.float32)
        want = x.astype(np.float16)
        for _ in range(200):
            y = np.zeros(5000, np.float16)
            kernels.cast([y], [x])
            if y.tobytes() != want.tobytes() or kernels.l2norm(x) != kernels.l2norm([x]):
                bad.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not bad


def test_number_of_threads():
    before = kernels.get_num_threads()
    try:
        kernels.set_num_threads(2)
        assert kernels.get_num_threads() == 2
        x = np.random.default_rng(1).standard_normal(1_000_000).astype(np.float32)
        several = kernels.l2norm(x)
        kernels.set_num_threads(1)
        assert kernels.l2norm(x) == several
        with pytest.raises(ValueError, match="-1"):
            kernels.set_num_threads(-1)
    finally:
        kernels.set_num_threads(before)
    assert kernels.cpu_flags() >= 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_works():
    before = kernels.get_num_threads()
    kernels.set_num_threads(2)
    try:
        x = np.ones(1_000_000, np.float32)
        assert kernels.l2norm(x) == 1000.0
        child = os.fork()
        if child == 0:
            os._exit(0 if kernels.l2norm(x) == 1000.0 and kernels.get_num_threads() == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        kernels.set_num_threads(before)
