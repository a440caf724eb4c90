// Command image writes an image of Perdure as an OCI layout: the static binary, the licences of what is in it, the
// certificates of authorities, and a user who is not root. The same files make the same image, to the last bit.
//
//	image OUT VERSION CERTIFICATES LICENCES linux/amd64=PROGRAM linux/arm64=PROGRAM
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is who the program runs as: nobody on any machine.
const user = 65532

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 5 {
		return errors.New("write image OUT VERSION CERTIFICATES LICENCES SYSTEM/PROCESSOR=PROGRAM…")
	}
	out, version := args[0], args[1]
	certificates, err := os.ReadFile(args[2])
	if err != nil {
		return err
	}
	licences, err := os.ReadFile(args[3])
	if err != nil {
		return err
	}
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arg := range args[4:] {
		name, path, _ := strings.Cut(arg, "=")
		platform, err := v1.ParsePlatform(name)
		if err != nil {
			return err
		}
		program, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		image, err := build(version, *platform, program, certificates, licences)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: platform},
		})
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	// One index of all systems within that of the layout: who copies the layout copies one image.
	path, err := layout.Write(out, empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": version,
	})); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Println(digest)
	return nil
}

// build makes the image of one system.
func build(version string, platform v1.Platform, program, certificates, licences []byte) (v1.Image, error) {
	files, err := archive([]file{
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, text: fmt.Appendf(nil, "root:x:0:\nperdure:x:%d:\n", user)},
		{name: "etc/passwd", mode: 0o644, text: fmt.Appendf(nil, "root:x:0:0:root:/:/bin/false\n"+
			"perdure:x:%d:%d:perdure:/tmp:/bin/false\n", user, user)},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, text: certificates},
		{name: "tmp/", mode: 0o1777},
		{name: "usr/", mode: 0o755},
		{name: "usr/local/", mode: 0o755},
		{name: "usr/local/bin/", mode: 0o755},
		{name: "usr/local/bin/perdure", mode: 0o755, text: program},
		{name: "usr/local/share/", mode: 0o755},
		{name: "usr/local/share/licences.txt", mode: 0o644, text: licences},
		{name: "var/", mode: 0o755},
		{name: "var/lib/", mode: 0o755},
		{name: "var/lib/perdure/", mode: 0o750, owner: user},
	})
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{CreatedBy: "tools/image", Comment: "perdure " + version},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/local/bin/perdure"}, User: fmt.Sprintf("%d:%d", user, user), WorkingDir: "/tmp",
		Env: []string{"PATH=/usr/local/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "perdure", "org.opencontainers.image.version": version,
			"org.opencontainers.image.source": "https://github.com/perdure/perdure",
		},
	}
	return mutate.ConfigFile(image, config)
}

// file is one of the image, or a folder, whose name ends with a slash.
type file struct {
	name  string
	mode  int64
	owner int
	text  []byte
}

// archive makes a tar of files, with no time of anything in it.
func archive(files []file) ([]byte, error) {
	if !slices.IsSortedFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) }) {
		return nil, errors.New("files are not in order")
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		kind := byte(tar.TypeReg)
		if strings.HasSuffix(f.name, "/") {
			kind = tar.TypeDir
		}
		if err := w.WriteHeader(&tar.Header{
			Typeflag: kind, Name: f.name, Mode: f.mode, Uid: f.owner, Gid: f.owner, Size: int64(len(f.text)),
			ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}
