# Runs a command in a Debian of FOLDER, with the sources at /sources and cargo's downloads: FOLDER SOURCES CARGO_HOME COMMAND...
# What is mounted here is gone with the namespace that this runs in.
folder=$1 sources=$2 home=$3
shift 3
cp /etc/resolv.conf "$folder/etc/"
mkdir -p "$folder/sources" "$folder/cargo" "$home/registry"
mount --bind "$sources" "$folder/sources"
mount --bind "$home" "$folder/cargo"
mount --bind /etc/ssl/certs "$folder/etc/ssl/certs"
mount --rbind /proc "$folder/proc"
mount --rbind /dev "$folder/dev"
exec chroot "$folder" sh -c 'cd /sources && exec "$@"' sh "$@"
