package reach

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/run/plain"
)

// A run has two secrets. All processes show the job's; servers also show each other the servers', which no
// worker ever has. The process that starts a run draws both and writes them into its directory, where only
// its user can read them. The processes that it starts inherit them in open files, so that no command line
// and no environment shows them; processes that join from elsewhere need copies of the files.

// The files with a run's secrets, within its folder. A process that joins a run from
// elsewhere has copies of them, the one beside the other.
const (
	SecretFile = keys.SecretFile
	ServersExt = keys.ServersExt // of the servers' file, after the name of the other
)

// Secrets are what the processes of a run show each other, and the open files in which
// those that the run's parent starts inherit them.
type Secrets struct {
	wire.Keys
	Path  string
	Files []*os.File // Keys.Job's, Keys.Servers's
}

// NewKeys are new secrets.
func NewKeys() wire.Keys { return wire.Keys{Job: keys.NewSecret(), Servers: keys.NewSecret()} }

// PutSecrets writes secrets into a run's folder.
func PutSecrets(run string, k wire.Keys) (s *Secrets, err error) {
	path, err := filepath.Abs(filepath.Join(run, SecretFile))
	if err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	s = &Secrets{Keys: k, Path: path}
	for name, secret := range map[string]perdure.Secret{path: s.Job, path + ServersExt: s.Servers} {
		if err := keys.WriteSecret(name, secret); err != nil {
			return nil, fmt.Errorf("run folder: %w", plain.Cause(err))
		}
	}
	return s.open()
}

// KeptSecrets returns the secrets that were drawn for a run before.
func KeptSecrets(run string) (s *Secrets, err error) {
	path, err := filepath.Abs(filepath.Join(run, SecretFile))
	if err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	s = &Secrets{Path: path}
	if s.Keys, err = ReadSecrets(path, run, wire.RoleServer); err != nil {
		return nil, err
	}
	return s.open()
}

// open opens the files that processes inherit.
func (s *Secrets) open() (*Secrets, error) {
	for _, name := range []string{s.Path, s.Path + ServersExt} {
		f, err := os.Open(name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("run folder: %w", plain.Cause(err)), s.Close())
		}
		s.Files = append(s.Files, f)
	}
	return s, nil
}

// Inherits returns the files that a process of a role inherits: workers know nothing of the
// servers' secret.
func (s *Secrets) Inherits(role wire.Role) []*os.File {
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

// InheritedSecrets reads the secrets that a process of a role has inherited, in descriptors from
// the given one on.
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

// errNoSecret is what a process of a run says that somebody has started by hand.
var errNoSecret = errors.New("a run's processes are started by perdure train or perdure up, which hand them its " +
	"secret; write --join to join a run")

// ReadSecrets reads what a process of a role shows that joins a run: the secret of workers and
// callers, and for a server the servers' one. It is in file, or where that is "" in the run's
// folder.
func ReadSecrets(file, run string, role wire.Role) (k wire.Keys, err error) {
	path := file
	if path == "" && run != "" {
		path = filepath.Join(run, SecretFile)
	}
	if path == "" {
		return k, fmt.Errorf("%w: the run asks for its secret; name its file, secret in the run's folder, with "+
			"--secret-file or PERDURE_SECRET_FILE", perdure.ErrUsage)
	}
	if k.Job, err = keys.ReadSecret(path); err == nil && role == wire.RoleServer {
		if k.Servers, err = keys.ReadSecret(path + ServersExt); err != nil {
			err = fmt.Errorf("%w; a server needs the file secret%s of the run's folder there, too", err, ServersExt)
		}
	}
	return k, err
}

// ReadSecretsOf reads what a caller shows that names a run's folder: the folder's own secret
// counts, whatever PERDURE_SECRET_FILE says of another run; file is for a folder without one.
func ReadSecretsOf(file, run string) (wire.Keys, error) {
	own := filepath.Join(run, SecretFile)
	if _, err := os.Stat(own); err != nil {
		own = cmp.Or(file, own)
	}
	return ReadSecrets(own, run, wire.RoleWorker)
}
