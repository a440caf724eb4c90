package dataset

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// staging is a directory of files that are being written, and that publish makes visible together.
type staging struct {
	dir   string
	files []*stagedFile // in the order of their creation
}

// A stagedFile is a file that is being written. Its content is compressed if its name ends with .gz. Write errors are
// returned by staging.close.
type stagedFile struct {
	*bufio.Writer
	name string
	file *os.File
	zip  *gzip.Writer // nil if the file is not compressed
	sum  hash.Hash    // of the uncompressed content
}

// create begins a file.
func (s *staging) create(name string) (*stagedFile, error) {
	file, err := os.Create(filepath.Join(s.dir, name))
	if err != nil {
		return nil, err
	}
	f := &stagedFile{name: name, file: file, sum: sha256.New()}
	var to io.Writer = file
	if strings.HasSuffix(name, ".gz") {
		f.zip = gzip.NewWriter(file) // its header has neither a name nor a time: equal content gives equal bytes
		to = f.zip
	}
	f.Writer = bufio.NewWriterSize(io.MultiWriter(to, f.sum), 1<<16)
	s.files = append(s.files, f)
	return f, nil
}

// sha256 returns the sum of the uncompressed content of a closed file.
func (f *stagedFile) sha256() string { return hex.EncodeToString(f.sum.Sum(nil)) }

// close ends all files and makes them durable, unless err, which it returns, says that writing them failed.
func (s *staging) close(err error) error {
	for _, f := range s.files {
		if err == nil {
			err = f.Flush()
		}
		if err == nil && f.zip != nil {
			err = f.zip.Close()
		}
		if err == nil {
			err = f.file.Sync()
		}
		if closeErr := f.file.Close(); err == nil {
			err = closeErr
		}
	}
	return err
}

// publish renames the directory to the target of a conversion, or its only file if the target is a file.
func (s *staging) publish(c *conversion, target string) error {
	from := s.dir
	if c.target == c.files[0].name {
		from = filepath.Join(s.dir, c.target)
	} else if err := syncPath(s.dir); err != nil {
		return err
	}
	if err := os.Rename(from, target); err != nil {
		return err
	}
	return syncPath(filepath.Dir(target))
}
