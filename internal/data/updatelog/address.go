package updatelog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"
)

// URLFile is the file in a log's directory that holds the server's URL, including its secret.
const URLFile = "url"

// ServerName is the name of the NATS servers that Perdure runs itself.
const ServerName = "perdure-log"

// MaxUnreadBytes is how many unread bytes a client may have before such a server disconnects it.
const MaxUnreadBytes = 256 << 20

// maxURLBytes is the maximum size of that file in bytes.
const maxURLBytes = 1 << 16

// Sync selects when the log's own server flushes to disk.
type Sync string

const (
	// SyncInterval acknowledges records when the operating system has them, and flushes every few seconds. Records
	// survive the death of the process at any moment, but not a power failure.
	SyncInterval Sync = "interval"
	// SyncAlways acknowledges records when they are on disk.
	SyncAlways Sync = "always"
)

// ReadURL reads the URL of the log in a directory. The log does not have to be running.
func ReadURL(dir string) (string, error) {
	b, err := disk.ReadRegular(filepath.Join(dir, URLFile), maxURLBytes)
	if at, bad := os.Stat(dir); bad == nil && !at.IsDir() {
		return "", fmt.Errorf("%w: %s is a file; specify the directory of a log, or of a run with a log", ErrRefused,
			dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: there is no log in %s", ErrRefused, dir)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if !bytes.HasSuffix(b, []byte("\n")) {
		return "", fmt.Errorf("%w: the log in %s is starting", ErrAway, dir)
	}
	line := strings.TrimSpace(string(b))
	schemes := []string{"nats", "tls", KeysScheme}
	if u, err := url.Parse(line); err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme) {
		return "", NoAddressError(dir)
	}
	return line, nil
}

// WithToken returns the address of a log with the given token.
func WithToken(addr, token string) string {
	u, err := url.Parse(addr)
	if err != nil || token == "" {
		return addr
	}
	u.User = url.User(token)
	return u.String()
}

// NoAddressError returns the error for a log whose URL file has no valid address. The error omits the contents, which
// may be secret.
func NoAddressError(dir string) error {
	return fmt.Errorf("%w: %s does not contain a valid log address; write a line such as "+
		"nats://SECRET@127.0.0.1:4222 to it (run.json has the address of a run's log; to inspect a log that is not "+
		"served, any address will do)",
		ErrRefused, filepath.Join(dir, URLFile))
}
