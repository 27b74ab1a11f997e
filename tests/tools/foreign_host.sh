#!/bin/sh
# foreign_host.sh COMMAND...: runs it in a mount namespace of its own where the kernel seems to have the devices mlx5_0 and
# mana_0.  Nothing stays of them.  Exit status 77: no such namespace can be made.
set -e
if [ ! "${FOREIGN_HOST:-}" ]; then
	export FOREIGN_HOST=1
	unshare -m true 2>/dev/null && exec unshare -m "$0" "$@"
	unshare -Urm true 2>/dev/null && exec unshare -Urm "$0" "$@"
	echo "SKIP: no mount namespace can be made here"
	exit 77
fi
mount --make-rprivate /
# What is beneath stays to be had at a place that a tmpfs of this namespace alone has.
place=/sys/kernel
mount -t tmpfs none "$place"
mkdir "$place/class" "$place/dev"
mount --rbind /sys/class "$place/class"
mount -t tmpfs none /sys/class
mkdir /sys/class/net
mount --rbind "$place/class/net" /sys/class/net
for device in mlx5_0 mana_0; do
	mkdir -p "/sys/class/infiniband/$device/ports/1"
	echo "1: CA" >"/sys/class/infiniband/$device/node_type"
	echo "4: ACTIVE" >"/sys/class/infiniband/$device/ports/1/state"
done
mkdir -p /sys/class/infiniband_verbs/uverbs0 /sys/class/infiniband_verbs/uverbs1 /sys/class/infiniband_mad/umad0
echo mlx5_0 >/sys/class/infiniband_verbs/uverbs0/ibdev
echo mana_0 >/sys/class/infiniband_verbs/uverbs1/ibdev
echo mlx5_0 >/sys/class/infiniband_mad/umad0/ibdev
echo 5 >/sys/class/infiniband_mad/abi_version
mount --rbind /dev "$place/dev"
mount -t tmpfs -o mode=755 none /dev
for file in null zero full random urandom tty; do
	: >"/dev/$file"
	mount --bind "$place/dev/$file" "/dev/$file"
done
mkdir /dev/infiniband /dev/shm
for file in uverbs0 uverbs1 umad0 rdma_cm; do echo "a real one" >"/dev/infiniband/$file"; done
ln -s /proc/self/fd /dev/fd
for n in "0 stdin" "1 stdout" "2 stderr"; do ln -s "/proc/self/fd/${n% *}" "/dev/${n#* }"; done
exec "$@"
