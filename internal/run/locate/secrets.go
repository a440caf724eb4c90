package locate

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/run/humanize"
)

// A run has two secrets. All processes present the job's secret. Servers also present the servers' secret to each
// other, and no worker ever has it. The process that starts a run generates both and writes them to the run's
// directory, where only its user can read them. Child processes inherit them in open files, so that they appear in no
// command line and no environment. Processes that join from elsewhere need copies of the files.

// The files with a run's secrets in its directory. A process that joins a run from elsewhere needs copies of both in
// one directory.
const (
	SecretFile = keys.SecretFile
	ServersExt = keys.ServersExt // suffix of the file with the servers' secret
)

// Secrets are the secrets that the processes of a run present to each other, and the open files in which the children
// of the run's parent inherit them.
type Secrets struct {
	wire.Keys
	Path  string
	Files []*os.File // of Keys.Job and Keys.Servers
}

// NewKeys generates new secrets.
func NewKeys() wire.Keys { return wire.Keys{Job: keys.NewSecret(), Servers: keys.NewSecret()} }

// WriteSecrets writes secrets to a run's directory.
func WriteSecrets(run string, k wire.Keys) (s *Secrets, err error) {
	path, err := filepath.Abs(filepath.Join(run, SecretFile))
	if err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	s = &Secrets{Keys: k, Path: path}
	for name, secret := range map[string]perdure.Secret{path: s.Job, path + ServersExt: s.Servers} {
		if err := keys.WriteSecret(name, secret); err != nil {
			return nil, fmt.Errorf("run directory: %w", humanize.Cause(err))
		}
	}
	return s.open()
}

// ReadRunSecrets returns the existing secrets of a run.
func ReadRunSecrets(run string) (s *Secrets, err error) {
	path, err := filepath.Abs(filepath.Join(run, SecretFile))
	if err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	s = &Secrets{Path: path}
	if s.Keys, err = ReadSecrets(path, run, wire.RoleServer); err != nil {
		return nil, err
	}
	return s.open()
}

// open opens the files that child processes inherit.
func (s *Secrets) open() (*Secrets, error) {
	for _, name := range []string{s.Path, s.Path + ServersExt} {
		f, err := os.Open(name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("run directory: %w", humanize.Cause(err)), s.Close())
		}
		s.Files = append(s.Files, f)
	}
	return s, nil
}

// InheritedBy returns the files that a process with the given role inherits. Workers do not get the servers' secret.
func (s *Secrets) InheritedBy(role wire.Role) []*os.File {
	if role == wire.RoleWorker {
		return s.Files[:1]
	}
	return s.Files
}

// Close implements io.Closer.
func (s *Secrets) Close() (err error) {
	for _, f := range s.Files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// InheritedSecrets reads the secrets that a process with the given role has inherited, from the descriptor first on.
func InheritedSecrets(role wire.Role, first uintptr) (k wire.Keys, err error) {
	to := []*perdure.Secret{&k.Job, &k.Servers}
	if role == wire.RoleWorker {
		to = to[:1]
	}
	for i, secret := range to {
		f := os.NewFile(first+uintptr(i), SecretFile)
		if f == nil {
			return k, errNoSecret
		}
		*secret, err = keys.InheritedSecret(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return k, fmt.Errorf("%w: %w", errNoSecret, err)
		}
	}
	return k, nil
}

// errNoSecret is the error of a run's process that was started by hand.
var errNoSecret = errors.New("a run's processes are started by perdure train or perdure up, which pass them the " +
	"run's secret; use --join to join a run")

// ReadSecrets reads the secrets of a process that joins a run: the job's secret and, for a server, also the servers'.
// They are in file or, if that is "", in the run's directory.
func ReadSecrets(file, run string, role wire.Role) (k wire.Keys, err error) {
	path := file
	if path == "" && run != "" {
		path = filepath.Join(run, SecretFile)
	}
	if path == "" {
		return k, perdure.Usagef("the run requires its secret; set --secret-file or PERDURE_SECRET_FILE to the file " +
			"secret in the run's directory, or --keys to the job's keys")
	}
	if k.Job, err = keys.ReadSecret(path); err == nil && role == wire.RoleServer {
		if k.Servers, err = keys.ReadSecret(path + ServersExt); err != nil {
			err = fmt.Errorf("%w; a server also needs the file secret%s from the run's directory, in the same place",
				err, ServersExt)
		}
	}
	return k, err
}

// ReadSecretsOf reads the secret for a caller that names a run's directory. The secret in the directory takes
// precedence over file, since PERDURE_SECRET_FILE may belong to another run. file is used for a directory without a
// secret.
func ReadSecretsOf(file, run string) (wire.Keys, error) {
	own := filepath.Join(run, SecretFile)
	if _, err := os.Stat(own); err != nil {
		own = cmp.Or(file, own)
	}
	return ReadSecrets(own, run, wire.RoleWorker)
}
