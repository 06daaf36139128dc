#!/bin/sh
# Starts systemd as the first process of a machine made of namespaces, whose /usr is this machine's with the
# files of a package on top: boot.sh PACKAGE ROOT. It has no network, and of units only the package's and those
# below. To be run in new network, mount, pid, cgroup, UTS and IPC namespaces.
set -ex
package=$1
root=$2

mount -t tmpfs -o mode=755 tmpfs "$root"
cd "$root"
mkdir -p usr etc/systemd/system proc sys dev run tmp var/lib var/log old root home
for dir in bin sbin lib lib64; do
	if [ -L /$dir ]; then
		ln -s usr/$dir $dir
	elif [ -d /$dir ]; then
		mkdir $dir
		mount --bind -o ro /$dir $dir
	fi
done
mount -t overlay -o "lowerdir=$package/usr:/usr" overlay usr
cp -r "$package/etc/." etc
cp /etc/passwd /etc/group /etc/nsswitch.conf /etc/ld.so.cache etc
echo 0123456789abcdef0123456789abcdef > etc/machine-id
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,ro,bind proc/sys # which systemd would set for the whole machine
mount --bind /dev dev
mount -t tmpfs -o mode=755 tmpfs sys
mkdir -p sys/fs/cgroup
if [ -f /sys/fs/cgroup/cgroup.procs ]; then
	mount -t cgroup2 cgroup2 sys/fs/cgroup
else
	mkdir sys/fs/cgroup/systemd
	mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
fi
mount -t tmpfs -o mode=755 tmpfs run

mkdir run/units
cp "$package"/usr/lib/systemd/system/* run/units
for unit in sysinit basic sockets multi-user shutdown; do
	printf '[Unit]\nDescription=%s\n' $unit > run/units/$unit.target
done
ln -s multi-user.target run/units/default.target
mkdir run/units/service.d
printf '[Service]\nStandardOutput=append:/run/systemd.log\n' > run/units/service.d/log.conf # there is no journal
mount --bind run/units usr/lib/systemd/system
mount -t tmpfs tmpfs usr/lib/systemd/system-generators

pivot_root . old
umount -l /old
export container=criproxy-test
exec /lib/systemd/systemd --system --log-target=console --show-status=0 >> /run/systemd.log 2>&1
