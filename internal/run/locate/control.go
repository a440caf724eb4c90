package locate

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
	"github.com/perdure/perdure/internal/run/settings"
)

// maxAddress limits how much of an address file is read, in bytes.
const maxAddress = 1 << 12

// Control returns a client of a running job's control API: at an address, or of the run in a directory. Without both,
// it uses the newest run in runs/. found is the directory.
func Control(address, run, secretFile, keysDir string) (c *control.Client, found string, err error) {
	if address != "" {
		ring, err := CallerRing(keysDir)
		if err != nil {
			return nil, run, err
		}
		file := secretOf(secretFile, ring)
		if ring != nil && file == "" && run == "" { // the certificate authenticates the caller
			return control.NewClient(address, "", ring), run, nil
		}
		k, err := ReadSecrets(file, run, wire.RoleWorker)
		return control.NewClient(address, k.Job, ring), run, err
	}
	at, run, err := controlOf(run)
	if err != nil {
		return nil, run, err
	}
	if keysDir == "" {
		keysDir = keysOf(run)
	}
	ring, err := CallerRing(keysDir)
	if err != nil {
		return nil, run, err
	}
	k, err := ReadSecretsOf(secretFile, run)
	return control.NewClient(at, k.Job, ring), run, err
}

// keysOf returns the keys directory in the settings of the run in a directory. It returns "" if the run has no keys or
// they are not on this machine.
func keysOf(run string) string {
	s, err := settings.Read(filepath.Join(run, "run.json"))
	if err != nil || s.Reach.Keys == "" {
		return ""
	}
	if _, err := os.Stat(s.Reach.Keys); err != nil {
		return ""
	}
	return s.Reach.Keys
}

// ByToken returns a client of a running job's control API that authenticates with a token instead of a certificate. It
// trusts the authority in the file ca.pem in keysDir or, without keysDir, next to the token. found is the directory, as
// for Control.
func ByToken(address, run, tokenFile, keysDir string) (c *control.Client, found string, err error) {
	text, err := keys.ReadToken(tokenFile)
	if err != nil {
		return nil, run, err
	}
	job, err := authority.TokenJob(text.Reveal())
	if err != nil {
		return nil, run, perdure.Usagef("%s: %w", tokenFile, err)
	}
	dir := cmp.Or(keysDir, filepath.Dir(tokenFile))
	if _, err := os.Stat(filepath.Join(dir, keys.CAFile)); err != nil && keysDir != "" {
		dir = keys.RoleDir(dir, keys.Viewer)
	}
	ring, err := keys.OpenTrusted(dir, job)
	if err != nil {
		return nil, run, fmt.Errorf("%w; copy the file ca/ca.pem of the job's keys next to the token", err)
	}
	if address == "" {
		if address, run, err = controlOf(run); err != nil {
			return nil, run, err
		}
	}
	return control.NewClient(address, text, ring), run, nil
}

// controlOf returns the address of the control API of the run in a directory, or of the newest run.
func controlOf(run string) (address, found string, err error) {
	if run == "" {
		runs, _ := filepath.Glob("runs/*/control") // the pattern is valid
		if len(runs) == 0 {
			return "", "", perdure.Usagef("there is no run in runs/; specify one with --run DIR or --address HOST:PORT")
		}
		newest := slices.MaxFunc(runs, func(a, b string) int { return modified(a).Compare(modified(b)) })
		run = filepath.Dir(newest)
	}
	b, err := disk.ReadRegular(filepath.Join(run, "control"), maxAddress)
	if err != nil {
		return "", run, fmt.Errorf("%s is not a run's directory: %w", run, err)
	}
	return strings.TrimSpace(string(b)), run, nil
}

func modified(path string) time.Time {
	if i, err := os.Stat(path); err == nil {
		return i.ModTime()
	}
	return time.Time{}
}
