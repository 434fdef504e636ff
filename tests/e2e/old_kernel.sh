#!/bin/bash
# old_kernel.sh [VMLINUZ]: boots a kernel in qemu (TCG, no KVM needed), with an initramfs of busybox,
# the tests of loop, sockets, rings and processes, and heddled with two workers, and runs them there.
# Without an argument it fetches the kernel of this Debian release, the oldest heddle is meant for.
# By hand, by `make check-old-kernel`; needs qemu-system-x86, busybox-static, cpio.
set -e
: "${HEDDLE_BUILDDIR:=build}" "${HEDDLE_SRCDIR:=.}"
TESTS=${OLD_KERNEL_TESTS:-test_timer test_work test_loop test_loop_ring test_listen test_notify
    test_http_parse test_http_server test_http_conn test_http_room test_bell test_ring test_ring_stress test_seg
    test_slot test_msg test_group test_group_kill test_link test_engine test_engine_loss test_load}
SECONDS_MAX=${OLD_KERNEL_SECONDS:-1800}

for tool in qemu-system-x86_64 busybox cpio ldd; do
    command -v $tool >/dev/null || { echo "skipped: there is no $tool"; exit 77; }
done
work=$HEDDLE_BUILDDIR/old-kernel
mkdir -p "$work"
work=$(cd "$work" && pwd)

fetch_kernel()
{
    local package

    package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
    [ -n "$package" ] || { echo "skipped: apt knows no linux-image-amd64; name a vmlinuz"; exit 77; }
    if ! ls "$work"/kernel/boot/vmlinuz-* >"$work/vmlinuz" 2>/dev/null; then
        # what it prints is not the answer
        (cd "$work" && apt-get download -q "$package" >&2 && dpkg -x "$package"_*.deb kernel && rm "$package"_*.deb)
        ls "$work"/kernel/boot/vmlinuz-* >"$work/vmlinuz"
    fi
    tail -1 "$work/vmlinuz"
}

# put FILE...: into the tree at the same place, with the libraries it wants
put()
{
    local f

    for f in "$@"; do
        install -D "$f" "$root$f"
        ldd "$f" | sed -n 's/.*\(=> \|^[ \t]*\)\(\/[^ ]*\) (.*/\2/p' | while read -r lib; do
            [ -e "$root$lib" ] || install -D "$lib" "$root$lib"
        done
    done
}

make_tree()
{
    local t build

    build=$(cd "$HEDDLE_BUILDDIR" && pwd)
    root=$work/root
    rm -rf "$root"
    mkdir -p "$root"/{bin,dev,etc,proc,sys,tmp,run,heddle/build,heddle/models}
    install "$(command -v busybox)" "$root/bin/busybox"
    for t in $TESTS fake-worker heddled heddle-worker heddle; do
        [ -x "$build/$t" ] || continue
        put "$build/$t"
        ln -sf "$build/$t" "$root/heddle/build/$t"
    done
    cp -r "$HEDDLE_SRCDIR/models/heddle-mini" "$root/heddle/models/"
    echo "127.0.0.1 localhost" >"$root/etc/hosts"
    cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HEDDLE_SRCDIR=/heddle HEDDLE_BUILDDIR=/heddle/build HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmp /dev/shm
mount -t tmpfs tmp /tmp
ifconfig lo up
ulimit -n 20000
echo "KERNEL $(uname -r) $(uname -v)"
INIT
    echo "cd $build" >>"$root/init" # tests find the programs beside them
    for t in $TESTS; do
        [ -x "$build/$t" ] || continue
        cat >>"$root/init" <<INIT
echo "== $t"
$build/$t; r=\$?
echo "RESULT $t \$r"
INIT
    done
    cat >>"$root/init" <<INIT
echo "== heddled, two workers"
cat >/tmp/heddle.ini <<INI
[model]
path = /heddle/models/heddle-mini
[listen]
socket = /tmp/s
INI
HEDDLE_WORKER=$build/heddle-worker $build/heddled -f -c /tmp/heddle.ini -s fabric.workers=2 \\
    -s fabric.progress_timeout=300s -s cache.memory=64M >/tmp/log 2>&1 &
pid=\$!
until grep -q 'main: serving' /tmp/log || ! kill -0 \$pid; do sleep 0.2; done
answer=\$($build/heddle -S /tmp/s chat -t 0 -m "What is 3 + 4?" 2>&1)
echo "answer: \$answer"
[ "\$(echo "\$answer" | tr -dc 0-9)" = 7 ]; right=\$?
kill -TERM \$pid
wait \$pid; r=\$?
[ \$r = 0 ] && [ \$right = 0 ] || { cat /tmp/log; r=1; }
echo "RESULT heddled \$r"
echo "ALL RUN"
poweroff -f
INIT
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initramfs"
}

kernel=${1:-$(fetch_kernel)}
make_tree
timeout "$SECONDS_MAX" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 3072 -nographic -no-reboot \
    -nodefaults -serial "file:$work/serial" -kernel "$kernel" -initrd "$work/initramfs" \
    -append "console=ttyS0 panic=1 quiet no_timer_check rdinit=/init" </dev/null || echo "qemu left with $?"
tr -d '\r' <"$work/serial" | sed 's/^.*KERNEL /KERNEL /' >"$work/log" # after what the BIOS draws
grep -aE '^(KERNEL|RESULT|ALL RUN|answer)|\[  FAILED|\[  PASSED|SKIPPED|panic' "$work/log" || true
passed=$(grep -ac '^RESULT .* 0$' "$work/log") || true
skipped=$(grep -ac '^RESULT .* 77$' "$work/log") || true
failed=$(grep -a '^RESULT' "$work/log" | grep -avcE ' (0|77)$') || true
echo "$(sed -n 's/^KERNEL //p' "$work/log"): $passed passed, $skipped skipped, $failed failed (log: $work/log)"
grep -aq '^ALL RUN' "$work/log" || echo "not all of them ran"
grep -aq '^ALL RUN' "$work/log" && [ "$failed" = 0 ]
