package keys

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/perdure/perdure"
)

// The files with the secrets of a run or of a folder of keys: that which all show each other, and, after the same name,
// that which servers show each other.
const (
	SecretFile = "secret"
	ServersExt = ".servers"
)

// secretBytes is how many random bytes a secret is made of; its file has twice as many
// digits, and a newline.
const secretBytes = 32

// NewSecret draws a secret.
func NewSecret() perdure.Secret {
	var b [secretBytes]byte
	_, _ = rand.Read(b[:]) // it never fails
	return perdure.Secret(hex.EncodeToString(b[:]))
}

// ReadSecret reads a run's secret from its file. One that others can read, too, is none
// any more.
func ReadSecret(path string) (perdure.Secret, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("%w: the run's secret: %w", perdure.ErrUsage, err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%w: %s is not a file with a run's secret; name the file secret in the run's folder, "+
			"or a copy of it", perdure.ErrUsage, path)
	}
	if open(info) {
		return "", fmt.Errorf("%w: others than its owner can use %s, which has a run's secret (mode %04o); write "+
			"chmod 600 %s", perdure.ErrUsage, path, info.Mode().Perm(), path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%w: the run's secret: %w", perdure.ErrUsage, err)
	}
	defer f.Close()
	return InheritedSecret(f)
}

// InheritedSecret reads a secret from an open file, from its beginning, wherever others
// that share the descriptor have read to.
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
		return "", fmt.Errorf("%w: the run's secret: %w", perdure.ErrUsage, err)
	}
	return "", fmt.Errorf("%w: %s has no run's secret, which is a line of %d hexadecimal digits; name the file "+
		"secret in the run's folder, or a copy of it", perdure.ErrUsage, f.Name(), 2*secretBytes)
}

// ReadToken reads a token from its file. One that others can read, too, is none any more.
func ReadToken(path string) (perdure.Secret, error) {
	text, err := readPrivate(path)
	if err != nil {
		return "", fmt.Errorf("%w: the token: %w", perdure.ErrUsage, err)
	}
	words := bytes.Fields(text)
	if len(words) != 1 {
		return "", fmt.Errorf("%w: %s has no token, which is one line that perdure keys token prints", perdure.ErrUsage,
			path)
	}
	return perdure.Secret(words[0]), nil
}

// WriteSecret makes a file with a secret, that its owner alone can read.
func WriteSecret(name string, secret perdure.Secret) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(secret.Reveal() + "\n")
	return errors.Join(err, f.Close())
}
