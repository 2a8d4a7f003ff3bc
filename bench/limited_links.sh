#!/bin/sh
# Runs an MPI program with one process in each of N network namespaces, whose links have a limited rate (tc tbf). Linux, as root, Open MPI.
#
#   bench/limited_links.sh N RATE PROGRAM [ARGUMENT ...]       RATE in the form of tc: 1gbit, 10gbit; none: not limited
#
# A bridge in a further namespace connects the namespaces. All namespaces are deleted at the end. Both directions of each link are limited.
set -eu
if [ "${1:-}" = --agent ]; then  # mpirun calls this script in place of ssh: --agent PREFIX HOST COMMAND ...
  prefix=$2 host=$3
  shift 3
  # Each namespace gets its own host name, because MPI processes with one host name would share folders and addresses.
  exec ip netns exec "$prefix${host##*.}" unshare --uts sh -c "hostname $prefix${host##*.}; $*"
fi
count=$1 rate=$2
shift 2
prefix=ph$$-
script=$(realpath "$0")
hosts=$(mktemp)
clean() {
  for i in $(seq 0 "$count"); do ip netns delete "$prefix$i" 2>/dev/null || true; done
  rm -f "$hosts"
}
trap clean EXIT
trap 'exit 1' INT TERM
limit() {  # NAMESPACE DEVICE
  # The latency makes the queue as short as in a switch; the burst is large enough for 10 Gbit/s.
  [ "$rate" = none ] || ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$rate" burst 1mb latency 5ms
}
switch=${prefix}0
ip netns add "$switch"
ip -n "$switch" link add bridge type bridge
ip -n "$switch" link set bridge up
for i in $(seq 1 "$count"); do
  space=$prefix$i
  ip netns add "$space"
  ip -n "$space" link add link0 type veth peer name "port$i" netns "$switch"
  ip -n "$space" address add "10.77.0.$i/24" dev link0
  ip -n "$space" link set lo up
  ip -n "$space" link set link0 up
  ip -n "$switch" link set "port$i" master bridge
  ip -n "$switch" link set "port$i" up
  limit "$space" link0
  limit "$switch" "port$i"
  echo "10.77.0.$i slots=1" >> "$hosts"
done
# By default Open MPI 4.1 requests large messages piece by piece (its flag `put`). The requests wait behind data of the other direction, so that
# each direction has only half the rate if both are used at once. The value 1 sets only the flag `send`, which avoids these requests.
export OMPI_MCA_btl_tcp_flags="${OMPI_MCA_btl_tcp_flags:-1}" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ip netns exec "${prefix}1" unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' sh "${prefix}1" \
  mpirun -n "$count" --hostfile "$hosts" --map-by node --bind-to none --mca plm_rsh_agent "$script --agent $prefix" \
  --mca btl tcp,self --mca btl_tcp_if_include link0 --mca oob_tcp_if_include link0 "$@"
