#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests and measures libamp on the GPU of this machine, by the programs beside this file (tools/gpu pack). Needs a
# driver, cuBLASLt, timeout and awk; `run --help` has the steps.
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
results=$here/results

tools='memcheck racecheck initcheck synccheck'
groups='casts unscale axpby norm lists optim pack bracket matmul step'
quick='machine device host bench-quick demo-quick'
all=$quick
for tool in $tools; do all="$all $tool-device $tool-host"; done
for group in $groups; do all="$all bench-$group"; done
all="$all demo torch"

usage() {
    cat <<TEXT
usage: run quick          $quick
       run all            and all others, the slow ones last
       run STEP...        these, whatever they came to before
       run list           the steps' names
       run with PROGRAM [ARGUMENT...]   a program of this folder, by hand
What was ok is not run again by quick and all; what failed or was interrupted is. Results of another GPU or another pack
are put aside. results/ has a log of each step, and figures.json: each ratio beside what is expected of it, and each
step. The status is 1 if a step failed. What a step does not come to is a failure: a test that is skipped, a plan that
is missing, a group that is left out, no GPU. The tools of compute-sanitizer are left out by all where there are none,
or where they do not know this GPU, and torch where no Python has PyTorch and libamp. A ratio below what is expected is
counted, and is no failure.
environment:
  AMP_CUBLASLT   the file libcublasLt.so, if it is not found
  RUN_PATIENCE   multiplies the steps' limits (default 1)
  RUN_PYTHON     the Python of the step torch (default python3)
  RUN_SITE       a folder with the package libamp for it, in the place of the pack's wheel
  RUN_MODELS     the models of that step (default: gpt2 bert resnet50 mlp)
TEXT
}

say() { printf 'run: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
made() { sed -n "s/^$1: //p" "$here/pack.txt"; } # KEY

# With the libraries of this folder.
carried() { # COMMAND...
    cd "$here" && exec env LD_LIBRARY_PATH="$here${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"
}

# ---- this machine ----------------------------------------------------------------------------------------------------

# What is tested does not hang on who runs it.
clean_environment() {
    for name in $(env | sed -n 's/^\(AMP_[A-Z_]*\|CK_[A-Z_]*\)=.*/\1/p'); do
        if [ "$name" != AMP_CUBLASLT ]; then unset "$name"; fi
    done
    export AMP_TEST_GPU=required CK_VERBOSITY=silent CK_TAP_LOG_FILE_NAME=-
}

# Beside the places that libamp looks at: where a Python has it.
find_cublas() {
    file=libcublasLt.so.$(made cublas)
    if [ -z "${AMP_CUBLASLT:-}" ]; then
        packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null || true)
        for folder in "$here" /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib /opt/cuda/lib64 \
            /usr/lib/*-linux-gnu \
            /usr/lib64 "$packages"/nvidia/*/lib /usr/local/lib/python3*/*-packages/nvidia/*/lib \
            /opt/*/lib/python3*/site-packages/nvidia/*/lib; do
            if [ -e "$folder/$file" ]; then
                AMP_CUBLASLT=$folder/$file
                break
            fi
        done
    fi
    if [ -n "${AMP_CUBLASLT:-}" ]; then
        MINITAPE_CUBLASLT=$AMP_CUBLASLT
        export AMP_CUBLASLT MINITAPE_CUBLASLT
    fi
}

find_sanitizer() {
    for sanitizer in compute-sanitizer /usr/local/cuda*/bin/compute-sanitizer /opt/cuda/bin/compute-sanitizer; do
        if have "$sanitizer"; then return; fi
    done
    return 1
}

gpus() { timeout 20 nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader \
    2>/dev/null || true; }

# Results belong to a pack and a GPU, the one that was here before if a busy one does not say which it is.
open_results() {
    pack=$(cksum "$here"/pack.txt "$here"/*.so* "$here"/test_cuda_* | cut -d' ' -f1,2 | cksum) gpu=$(gpus)
    old=$(cat "$results/key" 2>/dev/null || true)
    case $old in "$pack "*) gpu=${gpu:-${old#"$pack "}} ;; esac
    if [ -n "$old" ] && [ "$old" != "$pack $gpu" ]; then
        aside=$results.$(date +%Y%m%d-%H%M%S)
        mv "$results" "$aside"
        say "results of another GPU or pack are now in $aside"
    fi
    mkdir -p "$results"
    printf '%s\n' "$pack $gpu" >"$results/key"
}

child='' # what runs
trap 'if [ -n "$child" ]; then kill "$child"; fi; say interrupted; exit 130' INT TERM HUP

# ---- what a step came to: its reason in `why`, empty if it is ok -----------------------------------------------------

# LIMIT COMMAND...: its output in the step's log. runner: what starts it.
program() {
    limit=$(($1 * ${RUN_PATIENCE:-1}))
    shift
    code=0
    printf '$ %s\n' "$*" >>"$log"
    (${runner:-carried} timeout -k 10 "$limit" "$@") >>"$log" 2>&1 </dev/null & # so that a signal is heard
    child=$!
    wait "$child" 2>>"$log" || code=$? # which says what killed it
    child=
    why=
    case $code in
    0) ;;
    124 | 137) why="took longer than $limit s" ;;
    *) why="status $code" ;;
    esac
}

# The plan comes last: a program that ended early has none.
tap() {
    found=$(awk '
        /^ok / { run++ }
        /^not ok / { run++; bad++; if (first == "") { first = $0; sub(/^not ok [0-9]* *-* */, "", first) } }
        toupper($0) ~ /^(1\.\.0 *|OK .*)# *(SKIP|TODO)/ { skipped = $0 }
        /^1\.\.[0-9]+/ { planned = 1; plan = substr($1, 4) + 0 }
        END {
            if (bad) print bad " of " run " failed: " first
            else if (skipped != "") print "skipped: " skipped
            else if (!planned) print "no plan: the program ended early"
            else if (plan < 1 || plan != run) print plan " planned, " run + 0 " run"
        }' "$log")
    case $found in
    '') ;;
    *'no plan'*) why="$found${why:+, $why}" ;;
    *) why=$found ;;
    esac
}

bench() { # LIMIT ARGUMENT...
    limit=$1
    shift
    rm -f "$results/$step.json"
    program "$limit" ./bench --device cuda --json "$results/$step.json" "$@"
    missing=$(sed -n 's/^bench: skipped: /no device: /p' "$log")
    if [ -z "$missing" ]; then missing=$(grep ' left out: ' "$log" | grep -v 'against torch: ' | head -n 1); fi
    if [ -n "$missing" ]; then
        why=$missing
    elif [ -z "$why" ] && ! grep -q '"ratio"' "$results/$step.json"; then
        why='no line was measured'
    elif [ -z "$why" ] && grep -Eq ': -?(nan|inf)' "$results/$step.json"; then
        why='a figure is no number'
    fi
}

demo() { # LIMIT ARGUMENT...
    limit=$1
    shift
    rm -rf "${results:?}/$step"
    program "$limit" ./train --device cuda --level FP32,O1,O2 --quiet --output "$results/$step" "$@"
    if [ -n "$why" ]; then
        why="$why: $(tail -n 1 "$log")"
        return
    fi
    least=$(awk -F'\t' '$1 == "demo" { print $3 }' "$here/expected.tsv")
    why=$(awk -v least="$least" '
        /"test_accuracy"/ {
            split($0, word, /"level": "|"test_accuracy": |"device": "/)
            level = word[2]; sub(/".*/, "", level)
            if (word[3] !~ /^cuda"/) { print level " was not trained on the GPU"; exit }
            seen[level] = 1
            if (!(word[4] + 0 >= least)) {
                print level ": accuracy " word[4] + 0 " %, at least " least " expected"
                exit
            }
        }
        END { if (!(seen["FP32"] && seen["O1"] && seen["O2"])) print "a level is missing" }
    ' "$results/$step/results.json" | head -n 1)
    if [ -z "$why" ] && ! grep -q '^Wiring: sound' "$log"; then why='the wiring is not sound'; fi
}

# torch brings its own libraries; those of this folder are not for it.
bare() { exec "$@"; }

# The package for $python: RUN_SITE, the wheel that came with the pack, or what is installed.
find_site() {
    site=${RUN_SITE:-}
    wheel=$(made wheel)
    if [ -z "$site" ] && [ -n "$wheel" ]; then
        site=$results/site
        rm -rf "$site"
        "$python" -m zipfile -e "$here/$wheel" "$site" >>"$log" 2>&1 || return 1
    fi
    PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} "$python" -c 'import libamp.torch' >>"$log" 2>&1
}

training() {
    python=${RUN_PYTHON:-python3}
    if ! "$python" -c 'import importlib.util as u; exit(u.find_spec("torch") is None)' >>"$log" 2>&1; then
        absent="$python has no PyTorch: RUN_PYTHON names another"
        return
    fi
    if ! find_site; then
        absent="$python has no libamp that works: RUN_SITE names a folder with it, or tools/gpu pack --wheel"
        return
    fi
    rm -f "$results/$step.json"
    runner=bare
    # shellcheck disable=SC2086 # a list
    program 600 env -u AMP_CUBLASLT PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 "$python" \
        "$here/python/train.py" --device cuda --seconds 500 --json "$results/$step.json" ${RUN_MODELS:-}
    runner=
    missing=$(grep -h '^FAILED: \|^left out: all: ' "$log" | head -n 1)
    if [ -n "$missing" ]; then why=$missing; fi
}

sanitized() { # TOOL PROGRAM
    if ! find_sanitizer; then
        absent='there is no compute-sanitizer'
        return
    fi
    # initcheck does not see what the tensor memory accelerator writes, as cuBLASLt's products do on GPUs that have
    # one, nor what the host writes to managed memory.
    flags=''
    if [ "$1" = initcheck ]; then
        flags='--check-api-memory-access no --kernel-name-exclude kernel_substring=kernel_finish'
    fi
    # shellcheck disable=SC2086 # options
    program 1500 "$sanitizer" --tool "$1" $flags --error-exitcode 99 "./test_cuda_$2" gpu
    absent=$(grep -Ei 'device not supported|not supported on this (device|system|platform)' "$log" | head -n 1)
    if [ -z "$absent" ] && [ "$code" = 99 ]; then why="$1 found something"; fi
    if [ -z "$absent" ] && [ "$code" != 99 ]; then tap; fi
}

machine() {
    { uname -a && gpus && echo "cuBLASLt: ${AMP_CUBLASLT:-as the system finds it}"; } >>"$log" 2>&1
    bench 60 --quick --group casts --bytes 65536
    if [ -z "$why" ]; then bench 60 --quick --group matmul --bytes 65536; fi
    rm -f "$results/$step.json" # it measured nothing
    if [ "$code" = 127 ] || grep -q 'error while loading shared libraries\|version .* not found' "$log"; then
        why="programs do not start here: $(tail -n 1 "$log")"
    fi
}

# ---- steps -----------------------------------------------------------------------------------------------------------

run_step() {
    step=$1 log=$results/$1.log why='' absent='' code=0
    rm -f "$results/$step.result"
    : >"$log"
    printf '%-18s ' "$step"
    start=$(date +%s)
    case $step in
    machine) machine ;;
    device | host)
        program 120 "./test_cuda_$step" gpu
        tap
        ;;
    bench-quick) bench 90 --quick ;;
    bench-*) bench 600 --group "${step#bench-}" ;;
    demo-quick) demo 60 --seeds 1 --epochs 15 ;;
    demo) demo 300 --seeds 3 --epochs 15 ;;
    torch) training ;;
    *) sanitized "${step%-*}" "${step#*-}" ;;
    esac
    result=ok
    if [ -n "$absent" ] && ! $named; then result=left-out why=$absent; fi
    if [ -n "$absent" ] && $named; then why=$absent; fi
    if [ "$result" = ok ] && [ -n "$why" ]; then result=FAILED; fi
    printf '%s\t%s\t%s\n' "$result" $(($(date +%s) - start)) "$(printf %s "$why" | tr '\n\t' '  ')" \
        >"$results/$step.result"
    show
}

show() { awk -F'\t' '{ printf "%-8s %5d s  %s\n", $1, $2, $3 }' "$results/$step.result"; }

is_ok() { grep -q '^ok	' "$results/$1.result" 2>/dev/null; }

# Without a device nothing else can pass.
run_steps() {
    named=$1
    shift
    for step; do
        if ! $named && is_ok "$step"; then
            printf '%-18s ' "$step"
            show
            continue
        fi
        run_step "$step"
        if [ "$step" = machine ] && ! is_ok machine; then
            say "nothing else was run: $why"
            return
        fi
    done
}

# ---- what comes of it ------------------------------------------------------------------------------------------------

# As JSON, on one line.
text() { printf '"%s"' "$(printf '%s\n' "$1" | sed 's/["\\]/\\&/g; $!s/$/; /' | tr -d '\n' | tr '\000-\037' ' ')"; }

# Full measurements take the place of quick ones.
figures() {
    set -- "$here/expected.tsv"
    for name in quick $groups; do
        if is_ok "bench-$name" && [ -e "$results/bench-$name.json" ]; then set -- "$@" "$results/bench-$name.json"; fi
    done
    awk -F'\t' '
        function field(name) {
            if (!match($0, "\"" name "\": \"[^\"]*\"")) return ""
            return substr($0, RSTART + length(name) + 5, RLENGTH - length(name) - 6)
        }
        FILENAME == ARGV[2] { if ($0 !~ /^#/) { least[$1 "\t" $2] = $3; most[$1 "\t" $2] = $4 } next }
        /^\{"group"/ {
            what = field("group") "\t" field("name"); key = what "\t" field("size") "\t" field("reference_name")
            if (!(key in line)) order[++n] = key
            sub(/\},?$/, ""); line[key] = $0; ratio = $0; sub(/.*"ratio": /, "", ratio)
            expected = what in least && field("reference_name") ~ /^copying/
            line[key] = line[key] ", \"expected\": " (expected ? "[" least[what] ", " most[what] "]" : "null") "}"
            known[key] = expected; below[key] = expected && ratio + 0 < least[what] + 0
        }
        END {
            for (i = 1; i <= n; i++) {
                printf "%s\n    %s", (i > 1 ? "," : ""), line[order[i]]
                e += known[order[i]]; b += below[order[i]]
            }
            printf "%d of %d ratios are below what is expected\n", b, e >below_file
        }' below_file="$results/below" "$@"
}

write_figures() {
    {
        gpu=$(grep -h '^GPU: \|^driver: \|^toolkit: ' "$results/machine.log" 2>/dev/null | sort -u)
        printf '{\n  "pack": %s,\n  "gpu": %s,\n  "date": "%s",\n  "steps": [' "$(text "$(cat "$here/pack.txt")")" \
            "$(text "$gpu")" "$(date +%Y-%m-%d)"
        comma=''
        for step in $all; do
            if [ ! -e "$results/$step.result" ]; then continue; fi
            IFS='	' read -r result seconds why <"$results/$step.result"
            printf '%s\n    {"name": "%s", "result": "%s", "seconds": %s, "why": %s}' "$comma" "$step" "$result" \
                "$seconds" \
                "$(text "$why")"
            comma=,
        done
        printf '\n  ],\n  "figures": ['
        figures
        printf '\n  ],\n  "demo": '
        if is_ok demo; then cat "$results/demo/results.json"
        elif is_ok demo-quick; then cat "$results/demo-quick/results.json"
        else echo null; fi
        printf ',\n  "training": '
        if is_ok torch; then cat "$results/torch.json"; else echo null; fi
        printf '}\n'
    } >"$results/figures.json"
}

finish() { # STEP...: those that were wanted
    good=0 bad=0 out=0
    for step; do
        case $(cut -f1 "$results/$step.result" 2>/dev/null) in
        ok) good=$((good + 1)) ;;
        left-out) out=$((out + 1)) ;;
        *) bad=$((bad + 1)) ;;
        esac
    done
    write_figures
    printf '%s; figures: %s\n' "$(cat "$results/below")" "$results/figures.json"
    printf '%s ok, %s FAILED or not run, %s left out\n' "$good" "$bad" "$out"
    if [ "$bad" -eq 0 ] && [ "$good" -gt 0 ]; then exit 0; else exit 1; fi
}

# ---- the line --------------------------------------------------------------------------------------------------------

case ${1:-} in
'')
    usage >&2
    exit 2
    ;;
--help | -h | help)
    usage
    exit 0
    ;;
list)
    # shellcheck disable=SC2086 # a list
    printf '%s\n' $all
    exit 0
    ;;
esac
for need in timeout awk cksum; do
    if ! have $need; then
        say "$need is needed, which coreutils and every awk have"
        exit 2
    fi
done
clean_environment
find_cublas
# shellcheck disable=SC2086 # lists
case $1 in
with)
    shift
    carried "$@"
    ;;
quick) set -- false $quick ;;
all) set -- false $all ;;
*)
    for step; do
        case " $all " in *" $step "*) ;; *)
            say "no step is named '$step'"
            usage >&2
            exit 2
            ;;
        esac
    done
    set -- true "$@"
    ;;
esac
open_results
run_steps "$@"
shift
finish "$@"
