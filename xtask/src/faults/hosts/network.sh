# Two hosts, and a network between them and the launcher.
mkdir -p /run/netns
mount -t tmpfs none /run/netns
ip link set lo up
ip link add hosts type bridge
ip addr add 10.77.0.254/24 dev hosts
ip link set hosts up
for n in 1 2; do
  ip netns add 10.77.0.$n
  ip link add to$n type veth peer name eth0 netns 10.77.0.$n
  ip link set to$n master hosts up
  ip -n 10.77.0.$n link set lo up
  ip -n 10.77.0.$n addr add 10.77.0.$n/24 dev eth0
  ip -n 10.77.0.$n link set eth0 up
done
