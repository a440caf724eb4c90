package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// The files with a run's secrets, within its folder. A process that joins a run from
// elsewhere has copies of them, the one beside the other.
const (
	secretFile = "secret"
	serversExt = ".servers" // of the servers' file, after the name of the other
)

// runSecrets are what the processes of a run show each other, and the open files in which
// those that the run's parent starts inherit them.
type runSecrets struct {
	wire.Keys
	path  string
	files []*os.File // Keys.Job's, Keys.Servers's
}

// drawSecrets draws the secrets of a run, and writes them into its folder.
func drawSecrets(run string) (s *runSecrets, err error) {
	path, err := filepath.Abs(filepath.Join(run, secretFile))
	if err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	s = &runSecrets{Keys: wire.Keys{Job: transport.NewSecret(), Servers: transport.NewSecret()}, path: path}
	for name, secret := range map[string]perdure.Secret{path: s.Job, path + serversExt: s.Servers} {
		if err := writeSecret(name, secret); err != nil {
			return nil, fmt.Errorf("run folder: %w", unwrapSyscall(err))
		}
	}
	for _, name := range []string{path, path + serversExt} {
		f, err := os.Open(name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("run folder: %w", unwrapSyscall(err)), s.Close())
		}
		s.files = append(s.files, f)
	}
	return s, nil
}

func writeSecret(name string, secret perdure.Secret) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(secret.Reveal() + "\n")
	return errors.Join(err, f.Close())
}

// inherits returns the files that a process of a role inherits: workers know nothing of the
// servers' secret.
func (s *runSecrets) inherits(role wire.Role) []*os.File {
	if role == wire.RoleWorker {
		return s.files[:1]
	}
	return s.files
}

// Close implements io.Closer.
func (s *runSecrets) Close() (err error) {
	for _, f := range s.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// inherited reads the secrets that a process of a role has inherited, in descriptors from
// the given one on.
func inherited(role wire.Role, first uintptr) (k wire.Keys, err error) {
	to := []*perdure.Secret{&k.Job, &k.Servers}
	if role == wire.RoleWorker {
		to = to[:1]
	}
	for i, secret := range to {
		f := os.NewFile(first+uintptr(i), secretFile)
		if f == nil {
			return k, errNoSecret
		}
		*secret, err = transport.InheritedSecret(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return k, fmt.Errorf("%w: %w", errNoSecret, err)
		}
	}
	return k, nil
}

// errNoSecret is what a process of a run says that somebody has started by hand.
var errNoSecret = errors.New("a run's processes are started by perdure train or perdure up, which hand them its secret; write --join to join a run")

// secretFlag is where a process that joins a run, or calls its control API, finds its
// secret.
type secretFlag struct {
	SecretFile string `name:"secret-file" env:"PERDURE_SECRET_FILE" help:"The file with the run's secret (default the file secret in the run's folder; a server needs that folder's secret.servers beside it)." placeholder:"FILE" type:"path"`
}

// read reads the secret of workers and callers, and for a server the servers' one.
func (f *secretFlag) read(run string, role wire.Role) (k wire.Keys, err error) {
	path := f.SecretFile
	if path == "" && run != "" {
		path = filepath.Join(run, secretFile)
	}
	if path == "" {
		return k, fmt.Errorf("%w: the run asks for its secret; name its file, secret in the run's folder, with --secret-file or PERDURE_SECRET_FILE", perdure.ErrUsage)
	}
	if k.Job, err = transport.ReadSecret(path); err == nil && role == wire.RoleServer {
		if k.Servers, err = transport.ReadSecret(path + serversExt); err != nil {
			err = fmt.Errorf("%w; a server needs the file secret%s of the run's folder there, too", err, serversExt)
		}
	}
	return k, err
}

// readFor is read for who names a run's folder, whatever PERDURE_SECRET_FILE says of
// another run.
func (f *secretFlag) readFor(run string) (wire.Keys, error) {
	file := secretFlag{SecretFile: filepath.Join(run, secretFile)}
	if _, err := os.Stat(file.SecretFile); err != nil {
		file.SecretFile = cmp.Or(f.SecretFile, file.SecretFile)
	}
	return file.read(run, wire.RoleWorker)
}
