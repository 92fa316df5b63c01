# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Sourced by tools/test and tools/release after setup.sh and python.sh. Debian's smallest system as a root of its own,
# in which the commands of README.md run as they do for somebody who has nothing yet. The root sees nothing of this
# machine but its network settings.
#
#   bare_stage quick   what README.md says, a short demo, and the suite bare: part of tools/test --strict
#   bare_stage whole   the same with tools/demo and tools/test as they are, and the packages of debian/: tools/test
#                      --bare
#   bare_stage NAME    bare_NAME of the caller, in a fresh root
#
# Downloads are kept in the cache folder of python.sh, the unpacked system too, for 30 days. The root itself is
# build/bare/root.

: "${root:?tools/bare.sh is sourced with root set}" "${python_cache:?tools/bare.sh is sourced after tools/python.sh}"

debian=bookworm
bare_disk=6 # GB that the root needs

seconds_since() { echo $(($(date +%s) - $1)); }

# Why this machine cannot make a root, in `why`; empty: it can.
bare_refusal() {
    why=''
    if [ "$(id -u)" != 0 ]; then
        why="it needs root"
        return
    fi
    setup_want debootstrap git
    bare_settings
    if ! have debootstrap || ! have wget; then
        why="there is no debootstrap"
    elif ! have git || ! bare_git -C "$root" rev-parse HEAD >/dev/null 2>&1; then
        why="it clones what is committed, and this is no git checkout"
    elif ! unshare --mount --pid --mount-proc --fork true >/dev/null 2>&1; then
        why="mounts are not allowed here"
    elif ! mkdir -p "$python_cache" 2>/dev/null; then
        why="$python_cache cannot be written"
    elif [ "$(free_gigabytes "$dir")" -lt "$bare_disk" ]; then
        why="it needs $bare_disk GB in build/bare"
    elif ! (bare_network wget -q -T 20 -t 2 -O /dev/null "$mirror/dists/$debian/Release"); then
        why="the Debian mirror cannot be reached"
    fi
}

# git, also where the checkout is somebody else's
bare_git() {
    printf '[safe]\n\tdirectory = *\n' >"$dir/gitconfig"
    GIT_CONFIG_GLOBAL=$dir/gitconfig git "$@"
}

# The mirror and the proxy that this machine's apt uses, if it is one of that Debian.
bare_settings() {
    mirror='' proxy=''
    if have apt-get; then
        # shellcheck disable=SC2016 # apt's own variables
        mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' \
            2>/dev/null |
            sed -n "s|^$debian main \(https\{0,1\}://.*[^/]\)/*\$|\1|p" | head -n 1)
        eval "$(apt-config shell proxy Acquire::http::Proxy 2>/dev/null)"
    fi
    : "${mirror:=http://deb.debian.org/debian}"
    for name in http_proxy https_proxy no_proxy; do eval "bare_$name=\${$name:-}"; done
    : "${bare_http_proxy:=$proxy}"
}

# bare_network COMMAND...: in the place of this shell, with no other settings than the network's
# shellcheck disable=SC2154 # bare_settings sets them
bare_network() {
    exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        ${bare_http_proxy:+"http_proxy=$bare_http_proxy"} \
        ${bare_https_proxy:+"https_proxy=$bare_https_proxy"} ${bare_no_proxy:+"no_proxy=$bare_no_proxy"} "$@"
}

# bare_alone COMMAND...: in namespaces of its own. Its mounts and processes end with it, and with this script.
bare_alone() {
    bare_network unshare --mount --pid --mount-proc --fork --kill-child "$@" &
    bare_child=$!
    code=0
    wait "$bare_child" || code=$?
    bare_child=''
    return "$code"
}
bare_child=''

# unshare leaves INT and TERM to its child, which ignores them: it runs in the background.
bare_interrupted() {
    if [ -n "$bare_child" ]; then kill -KILL "$bare_child" 2>/dev/null; fi
    trap - "$1"
    kill -s "$1" $$
}

# in_bare_root COMMAND...
in_bare_root() {
    # shellcheck disable=SC2016 # for the shell inside
    bare_alone sh -c 'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && shift && exec chroot "$@"' \
        sh "$dir/root" "$dir/root" "$@"
}

# A fresh root in build/bare/root: debootstrap's, from the cache where it is there.
bare_root() {
    cache=$python_cache/bare-$debian
    rm -rf --one-file-system "$dir/root"
    mkdir -p "$cache/packages" "$cache/archives" "$dir/root"
    find "$cache/root.tar" -mtime +30 -delete 2>/dev/null || true
    if [ ! -f "$cache/root.tar" ]; then
        # dpkg need not wait for the disk
        logged "$dir/debootstrap.log" bare_alone debootstrap --variant=minbase --cache-dir="$cache/packages" \
            --include=ca-certificates "$debian" "$dir/root" "$mirror" || return
        rm -f "$dir/root"/var/cache/apt/archives/*.deb
        tar -C "$dir/root" -cf "$cache/root.tar.$$" . && mv "$cache/root.tar.$$" "$cache/root.tar" || return
    else
        tar -C "$dir/root" -xpf "$cache/root.tar" || return
    fi
    cp "$cache"/archives/*.deb "$dir/root/var/cache/apt/archives/" 2>/dev/null || true
    cp -L /etc/resolv.conf /etc/hosts "$dir/root/etc/"
    # As containers have it: what is only recommended is not there. Nothing asks, and nothing waits for the disk.
    printf '%s;\n' 'APT::Install-Recommends "false"' 'APT::Get::Assume-Yes "true"' 'Acquire::Languages "none"' \
        >"$dir/root/etc/apt/apt.conf.d/bare"
    if [ -n "$bare_http_proxy" ]; then
        printf 'Acquire::http::Proxy "%s";\n' "$bare_http_proxy" >>"$dir/root/etc/apt/apt.conf.d/bare"
    fi
    echo force-unsafe-io >"$dir/root/etc/dpkg/dpkg.cfg.d/bare"
    logged "$dir/clone.log" bare_git clone --quiet "$root" "$dir/root/root/libamp"
}

# Packages that were fetched are kept; those that no repository has any more are not.
bare_keep() {
    in_bare_root apt-get autoclean >/dev/null 2>&1 || true
    rm -f "$cache"/archives/*.deb
    mv "$dir/root"/var/cache/apt/archives/*.deb "$cache/archives/" 2>/dev/null || true
}

# bare_point NAME COMMAND...: one test
bare_point() {
    point=$1 start=$(date +%s)
    shift
    if in_bare_root "$@" >"$dir/$point.log" 2>&1; then
        passed=$((passed + 1))
        printf '   %s: passed in %s s\n' "$point" "$(seconds_since "$start")"
    else
        failed=$((failed + 1))
        tail -n 20 "$dir/$point.log"
        printf '   %s: FAILED: %s\n' "$point" "$dir/$point.log"
    fi
}

# bare_tests ARG...: tools/test there; its numbers are added.
bare_tests() {
    start=$(date +%s)
    in_bare_root /root/libamp/tools/test ${jobs:+--jobs "$jobs"} ${allowed:+--skips} "$@" >"$dir/test.log" 2>&1 || true
    sed '$d' "$dir/test.log"
    counted=$(tail -n 1 "$dir/test.log" |
        sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p')
    # shellcheck disable=SC2086 # three numbers
    set -- ${counted:-0 1 0}
    printf '   tools/test: %s passed, %s failed, %s skipped in %s s\n' "$1" "$2" "$3" "$(seconds_since "$start")"
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

bare_ran=false
bare_stage() {
    dir=$root/build/bare began_bare=$(date +%s)
    printf '== bare: Debian %s and nothing else\n' "$debian"
    mkdir -p "$dir"
    bare_refusal
    if [ -n "$why" ]; then
        skip_stage bare bare "$why"
        return
    fi
    for signal in INT TERM HUP; do
        # shellcheck disable=SC2064 # this signal
        trap "bare_interrupted $signal" "$signal"
    done
    if bare_root; then
        printf '   root: made in %s s\n' "$(seconds_since "$began_bare")"
        bare_"$1"
        bare_ran=true
        bare_keep
        rm -rf --one-file-system "$dir/root"
    else
        stage_failed=$((stage_failed + 1))
    fi
    trap - INT TERM HUP
    printf '   bare: all of it in %s s\n' "$(seconds_since "$began_bare")"
}

# The lines of README.md come first: there is nothing yet but what they install.
bare_quick() {
    bare_point readme /root/libamp/tests/packaging/readme_lines.sh
    bare_point demo /root/libamp/tools/demo --epochs 1 --seeds 1
    bare_tests --suite bare
}

bare_whole() {
    bare_point readme /root/libamp/tests/packaging/readme_lines.sh
    bare_point demo /root/libamp/tools/demo
    bare_tests
    bare_point packages /root/libamp/tests/packaging/debian_packages.sh
}
