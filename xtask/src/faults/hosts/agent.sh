#!/bin/sh
host=$1; shift
export TMPDIR=${0%/*}/$host # daemons name their files by their process, and those of two hosts may have one number
mkdir -p $TMPDIR
exec ip netns exec "$host" unshare --uts --pid --fork --kill-child --mount-proc \
  sh -c "hostname host-${host##*.}; $*"
