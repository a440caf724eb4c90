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

// URLFile is the file in a log's folder that says how to reach its server, with its secret.
const URLFile = "url"

// ServerName is how a server says its name that Perdure runs itself.
const ServerName = "perdure-log"

// MaxUnread is how many bytes a client may be behind before such a server cuts it off.
const MaxUnread = 256 << 20

// mostURL is how many bytes it may have.
const mostURL = 1 << 16

// Sync says when the log's own server writes through to the disk.
type Sync string

const (
	// SyncInterval acknowledges what the operating system has, and syncs it every
	// few seconds: it survives the process's death at any moment, not a power cut.
	SyncInterval Sync = "interval"
	// SyncAlways acknowledges what is on the disk.
	SyncAlways Sync = "always"
)

// ReadURL reads the URL of the log that has its streams in a folder. The log need
// not run.
func ReadURL(dir string) (string, error) {
	b, err := disk.ReadRegular(filepath.Join(dir, URLFile), mostURL)
	if at, bad := os.Stat(dir); bad == nil && !at.IsDir() {
		return "", fmt.Errorf("%w: %s is a file; name the folder of a log, or of a run that has one", ErrRefused, dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: there is no log in %s", ErrRefused, dir)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if !bytes.HasSuffix(b, []byte("\n")) {
		return "", fmt.Errorf("%w: the log in %s is just starting", ErrAway, dir)
	}
	line := strings.TrimSpace(string(b))
	schemes := []string{"nats", "tls", KeysScheme}
	if u, err := url.Parse(line); err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme) {
		return "", NoAddress(dir)
	}
	return line, nil
}

// Authorized returns the address of a log with the token that it asks for.
func Authorized(addr, token string) string {
	u, err := url.Parse(addr)
	if err != nil || token == "" {
		return addr
	}
	u.User = url.User(token)
	return u.String()
}

// NoAddress says what is wrong with a log's file that is to have its address. What is there
// may be secret.
func NoAddress(dir string) error {
	return fmt.Errorf("%w: %s has no address of a log; write one there, a line such as nats://SECRET@127.0.0.1:4222 "+
		"(a run's is in its run.json, as the job's log; to look into a log that nobody serves any will do)",
		ErrRefused, filepath.Join(dir, URLFile))
}
