package kubernetes

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestImage: the same files make the same image, which is whole, for each system, with the program in it that one who
// is not root runs; other files make another one.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	crane, err := exec.Command("go", "tool", "-n", "crane").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(string(crane))+":"+os.Getenv("PATH"))
	run := func(args ...string) (string, error) {
		out, err := exec.Command("../image/image.sh", args...).CombinedOutput()
		return string(out), err
	}
	make := func(name, program string) (layout.Path, v1.Hash) {
		t.Helper()
		out := filepath.Join(dir, name)
		for range 2 { // the second replaces the first
			said, err := run(out, "1.2", write("ca", "CA"), write("licences", "MIT"),
				"linux/amd64="+write("amd", program), "linux/arm64="+write("arm", "arm"))
			if err != nil {
				t.Fatal(err, said)
			}
		}
		p, err := layout.FromPath(out)
		if err != nil {
			t.Fatal(err)
		}
		index, err := p.ImageIndex()
		if err != nil {
			t.Fatal(err)
		}
		m, err := index.IndexManifest()
		if err != nil || len(m.Manifests) != 1 || m.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1.2" {
			t.Fatalf("%v: %v", m, err)
		}
		return p, m.Manifests[0].Digest
	}
	p, first := make("a", "amd")
	if _, again := make("b", "amd"); again != first {
		t.Errorf("the same files make %s and %s", first, again)
	}
	if _, other := make("c", "amd64"); other == first {
		t.Error("other files make the same image")
	}
	top, err := p.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	index, err := top.ImageIndex(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"amd64": "amd", "arm64": "arm"}
	for _, d := range m.Manifests {
		image, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		c, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c.OS != "linux" || c.Architecture != d.Platform.Architecture || c.Config.User != "65532:65532" {
			t.Errorf("%v is of %s on %s/%s", d.Platform, c.Config.User, c.OS, c.Architecture)
		}
		if got := read(t, image, "usr/local/bin/perdure"); got != want[c.Architecture] {
			t.Errorf("%s has %q", c.Architecture, got)
		}
		if got := read(t, image, "etc/ssl/certs/ca-certificates.crt"); got != "CA" {
			t.Errorf("its certificates are %q", got)
		}
		if got := read(t, image, "usr/local/share/licences.txt"); got != "MIT" {
			t.Errorf("its licences are %q", got)
		}
	}
	if len(m.Manifests) != 2 {
		t.Errorf("%d systems", len(m.Manifests))
	}
	said, err := run(filepath.Join(dir, "d"), "1", "nowhere", write("licences", "MIT"), "linux/amd64="+write("amd", "amd"))
	if err == nil || !strings.Contains(said, "nowhere") {
		t.Errorf("without certificates: %v, %s", err, said)
	}
}

// read is a file of an image that root owns, and others may read.
func read(t *testing.T, image v1.Image, name string) string {
	t.Helper()
	flat := mutate.Extract(image)
	defer flat.Close()
	files := tar.NewReader(flat)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("there is no %s", name)
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Name != name {
			continue
		}
		if h.Uid != 0 || h.Mode&0o044 == 0 || !h.ModTime.IsZero() && h.ModTime.Unix() != 0 {
			t.Errorf("%s is of %d, mode %o, of %v", name, h.Uid, h.Mode, h.ModTime)
		}
		text, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}
