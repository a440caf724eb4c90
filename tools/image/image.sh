#!/usr/bin/env bash
# image.sh writes an image of Perdure as an OCI layout with crane: the static binary, the licences of third-party
# components, certificates, and a user that is not root. The same files make the same image, to the last bit: no file
# has a time. It needs crane in PATH, and GNU tar.
#
#	image.sh OUT VERSION CERTIFICATES LICENCES linux/amd64=PROGRAM linux/arm64=PROGRAM
set -euo pipefail
umask 022
out=$1 version=$2 certificates=$3 licences=$4
user=65532 # of no account on any machine
command -v crane > /dev/null || { echo "image.sh needs crane in PATH; make image builds it" >&2; exit 1; }

# crane builds images in a registry: this one ends with the script. Its first line names its port.
coproc registry { exec crane registry serve --address 127.0.0.1:0 2>&1; }
work=$(mktemp -d)
trap 'kill "$registry_PID"; rm -rf "$work"' EXIT
read -r line <&"${registry[0]}"
repo=127.0.0.1:${line##*[!0-9]}/perdure

for arg in "${@:5}"; do
	platform=${arg%%=*} root=$work/${arg%%=*} image=$repo:${platform##*/}
	install -d "$root"/{etc/ssl/certs,usr/local/bin,usr/local/share,var/lib}
	install -d -m 1777 "$root/tmp"
	install -d -m 750 "$root/var/lib/perdure"
	printf 'root:x:0:\nperdure:x:%d:\n' $user > "$root/etc/group"
	printf 'root:x:0:0:root:/:/bin/false\nperdure:x:%d:%d:perdure:/tmp:/bin/false\n' $user $user > "$root/etc/passwd"
	install -m 644 "$certificates" "$root/etc/ssl/certs/ca-certificates.crt"
	install -m 644 "$licences" "$root/usr/local/share/licences.txt"
	install -m 755 "${arg#*=}" "$root/usr/local/bin/perdure"
	layer=(tar --sort=name --format=ustar --mtime=@0 --numeric-owner -C "$root" -f "$root.tar")
	"${layer[@]}" --create --owner=0 --group=0 --exclude=var/lib/perdure etc tmp usr var
	"${layer[@]}" --append --owner=$user --group=$user var/lib/perdure
	crane append --oci-empty-base --new_layer "$root.tar" --new_tag "$image"
	crane mutate "$image" --tag "$image" --set-platform "$platform" --entrypoint /usr/local/bin/perdure \
		--user $user:$user --workdir /tmp --env PATH=/usr/local/bin \
		--env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
		--label org.opencontainers.image.title=perdure --label "org.opencontainers.image.version=$version" \
		--label org.opencontainers.image.source=https://github.com/perdure/perdure
	manifests+=(--manifest "$image")
done >&2

# One index of all platforms within that of the layout: a copy of the layout is a copy of one image.
crane index append "${manifests[@]}" --tag "$repo:all" >&2
rm -rf "$out"
crane pull --format=oci --annotate-ref "$repo:all" "$out"
sed -i "s|$repo:all|$version|" "$out/index.json"
crane digest "$repo:all"
