#!/usr/bin/env bats
# The rules of the house that a machine can check. Each reads the sources, not the build.

sources() {
    (cd "$HEDDLE_SRCDIR" && find shm kernels worker coordinator client etc tests \
        -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
}

@test "formatted: clang-format changes nothing" {
    command -v clang-format >/dev/null || skip "clang-format is not installed"
    clang-format --version | grep -q ' 14\.' || skip "clang-format 14 decides; this is another"
    cd "$HEDDLE_SRCDIR"
    run clang-format --dry-run -Werror $(sources)
    echo "$output" | head -20
    [ "$status" -eq 0 ]
}

@test "comments: no line that clang-format broke lost its space" {
    cd "$HEDDLE_SRCDIR"
    run grep -nE '^ \*[A-Za-z0-9]' $(sources)
    echo "$output"
    [ "$status" -eq 1 ]
}

@test "size: no source file has more than 600 lines" {
    cd "$HEDDLE_SRCDIR"
    long=$(wc -l $(sources) $(find tests -name '*.py' -o -name '*.bats' -o -name '*.am') \
        Makefile.am configure.ac etc/m4/*.m4 |
        awk '$1 > 600 && $2 != "total"')
    echo "$long"
    [ -z "$long" ]
}

# A -> B: a file in A may include headers of B. Everyone may include what is generated from etc/.
@test "includes: folders only include what they may" {
    cd "$HEDDLE_SRCDIR"
    bad=
    check() { # folder, allowed folders
        for f in $(find "$1" -name '*.[ch]' -o -name '*.cu*'); do
            while read -r inc; do
                case " $2 etc config.h " in *" ${inc%%/*} "* | *" $inc "*) ;; *) bad="$bad$f includes $inc
";; esac
            done < <(sed -n 's/^#[ ]*include "\(.*\)"/\1/p' "$f")
        done
    }
    check shm "shm"
    check kernels "kernels shm/util.h" # its error sentence; nothing of the control plane
    check worker "worker kernels shm"
    check coordinator "coordinator shm"
    check client "client coordinator worker shm"
    echo "$bad"
    [ -z "$bad" ]
}

@test "includes: the coordinator and kernels stay ignorant of each other's world" {
    cd "$HEDDLE_SRCDIR"
    run grep -rnE --include='*.[ch]' '#include <(cuda|nccl|liburing|hwloc)' shm client
    echo "$output"
    [ "$status" -eq 1 ]
    run grep -rnlE '#include <liburing' coordinator worker
    [ "$(echo "$output" | grep -vE '^(coordinator/loop[a-z_]*\.[ch]|worker/ckpt/load[a-z_]*\.[ch])$')" = "" ]
}

@test "headers: each compiles alone" {
    cd "$HEDDLE_SRCDIR"
    for h in $(find shm kernels worker coordinator client -name '*.h'); do
        # the headers of the vector variants exist only in such code (kernels/module.am)
        case $h in kernels/cpu/*) vector="-mavx2 -mfma -mf16c" ;; *) vector= ;; esac
        ${CC:-cc} $vector -std=gnu11 -fsyntax-only -Wall -Werror -I. -I"$HEDDLE_BUILDDIR" -x c "$h" || {
            echo "$h does not compile alone"
            return 1
        }
    done
}

@test "docs: each is in the distribution" {
    cd "$HEDDLE_SRCDIR"
    for doc in docs/*.md; do
        grep -qwF "$doc" Makefile.am */*.am || {
            echo "$doc is in no EXTRA_DIST"
            return 1
        }
    done
}

# By file or pattern: ring.h/c and cpu/*.c name all of it; X_impl.h goes with X.
@test "docs: the README of a folder names each of its sources" {
    cd "$HEDDLE_SRCDIR"
    unnamed=
    for dir in shm kernels worker worker/ckpt coordinator client etc; do
        mapfile -t names < <(grep -oE '[a-z][a-z0-9_*]*\.[a-z[]' "$dir/README.md" | sed 's/\..*//' | sort -u)
        for f in $(find "$dir" -maxdepth 1 -name '*.[ch]' -o -maxdepth 1 -name '*.def'); do
            stem=$(basename "${f%.*}")
            for name in "${names[@]}"; do
                # shellcheck disable=SC2053 # a pattern
                [[ ${stem%_impl} == $name || $stem == $name ]] && continue 2
            done
            unnamed="$unnamed$dir/README.md does not name $f
"
        done
    done
    echo "$unnamed"
    [ -z "$unnamed" ]
}

@test "skips: each case that skips itself has printed what is missing" {
    cd "$HEDDLE_SRCDIR"
    run awk 'FNR == 1 { said = 0 }
        /print_message\(/ { said = FNR }
        /[^a-z_]skip\(\)/ && (!said || FNR - said > 2) { print FILENAME ":" FNR ": skips without a word" }' \
        $(sources | grep '^tests/')
    echo "$output"
    [ -z "$output" ]
}

@test "unfinished: no marker of work left over in the sources" {
    cd "$HEDDLE_SRCDIR"
    run grep -nE '\b(TODO|FIXME|XXX|HACK)\b' $(sources)
    echo "$output"
    [ "$status" -eq 1 ]
}

@test "ini: the committed sample and man page are what the table says" {
    diff -u "$HEDDLE_SRCDIR/etc/heddle.ini" <("$HEDDLE_BUILDDIR/confdump" ini)
    diff -u "$HEDDLE_SRCDIR/etc/heddle.ini.5" <("$HEDDLE_BUILDDIR/confdump" man)
}
