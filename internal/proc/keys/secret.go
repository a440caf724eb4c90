package keys

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"github.com/perdure/perdure"
)

// The secret files of a run or a directory of keys. SecretFile holds the secret that all processes share. The file with
// ServersExt appended holds the one that only servers share.
const (
	SecretFile = "secret"
	ServersExt = ".servers"
)

// secretBytes is the number of random bytes in a secret. Its file has twice as many hexadecimal digits, and a newline.
const secretBytes = 32

// NewSecret returns a new random secret.
func NewSecret() perdure.Secret {
	var b [secretBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return perdure.Secret(hex.EncodeToString(b[:]))
}

// ReadSecret reads a run's secret from its file. It returns an error if other users can access the file.
func ReadSecret(path string) (perdure.Secret, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", perdure.Usagef("the run's secret: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", perdure.Usagef("%s does not contain a run's secret; use the file secret in the run's directory, "+
			"or a copy of it", path)
	}
	if accessibleToOthers(info) {
		return "", perdure.Usagef("%s contains a run's secret but is accessible to other users (mode %04o); run "+
			"chmod 600 %s", path, info.Mode().Perm(), path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", perdure.Usagef("the run's secret: %w", err)
	}
	defer f.Close()
	return InheritedSecret(f)
}

// InheritedSecret reads a secret from the start of an open file, independent of the descriptor's shared offset.
func InheritedSecret(f *os.File) (perdure.Secret, error) {
	b := make([]byte, 2*secretBytes+2)
	n, err := f.ReadAt(b, 0)
	text := bytes.TrimSpace(b[:n])
	if err == io.EOF && len(text) == 2*secretBytes {
		if _, err := hex.DecodeString(string(text)); err == nil {
			return perdure.Secret(text), nil
		}
	}
	if err != nil && err != io.EOF {
		return "", perdure.Usagef("the run's secret: %w", err)
	}
	return "", perdure.Usagef("%s does not contain a run's secret, a line of %d hexadecimal digits; use the file "+
		"secret in the run's directory, or a copy of it", f.Name(), 2*secretBytes)
}

// ReadToken reads a token from its file. It returns an error if other users can access the file.
func ReadToken(path string) (perdure.Secret, error) {
	text, err := readPrivate(path)
	if err != nil {
		return "", perdure.Usagef("the token: %w", err)
	}
	words := bytes.Fields(text)
	if len(words) != 1 {
		return "", perdure.Usagef("%s does not contain a token, the single line printed by perdure keys token", path)
	}
	return perdure.Secret(words[0]), nil
}

// WriteSecret creates a file with a secret that only its owner can read.
func WriteSecret(name string, secret perdure.Secret) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(secret.Reveal() + "\n")
	return errors.Join(err, f.Close())
}
